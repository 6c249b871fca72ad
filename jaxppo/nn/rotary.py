"""Rotary position embeddings of all families, and how transformers writes their settings. Source: arXiv:2104.09864."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.data import SEQUENCE_BUCKET
from jaxppo.errors import ModelError
from jaxppo.nn.config import check_at_least, check_bool, check_choice, check_positive_int

# rope_type -> the settings that it needs beside the first.
_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_OF_YARN = ("beta_fast", "beta_slow", "attention_factor", "truncate")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for texts longer than a model was first trained on; transformers' names.

    Attributes:
        rope_type: linear (arXiv:2306.15595), dynamic (NTK-aware), llama3 or yarn (arXiv:2309.00071).
        factor: about how many times longer they may be.
        original_max_position_embeddings: tokens of a text then; of `dynamic`, those up to which nothing is stretched.
        low_freq_factor: llama3: wavelengths above `original_max_position_embeddings` over it are stretched in full.
        high_freq_factor: llama3: those below `original_max_position_embeddings` over it not at all.
        beta_fast: yarn: frequencies with more than so many rotations in the original length stay.
        beta_slow: yarn: those with fewer are stretched in full.
        attention_factor: yarn: factor of cosines and sines.
        truncate: yarn: the two limits are rounded outwards to whole frequencies.

    Raises:
        ModelError: a field has a value that means nothing; the message names it.
    """

    rope_type: str
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True

    def __post_init__(self):
        check_choice("rope_type", self.rope_type, _NEEDS)
        check_at_least(1.0, "factor", self.factor)
        check_positive_int("original_max_position_embeddings", self.original_max_position_embeddings)
        for name in ("low_freq_factor", "high_freq_factor", "attention_factor"):
            check_at_least(0.0, name, getattr(self, name))
        for name in ("beta_fast", "beta_slow"):
            check_at_least(1e-6, name, getattr(self, name))
        check_bool("truncate", self.truncate)
        if self.rope_type == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ModelError(
                f"high_freq_factor: expected more than low_freq_factor={self.low_freq_factor}, which is above 0, "
                f"got {self.high_freq_factor}"
            )


def check_rope(theta: float, scaling: RopeScaling | None, dimensions: int) -> None:
    """Raise a `ModelError` unless these rotary settings go with so many rotated dimensions of a head."""
    check_at_least(1.0, "rope_theta", theta)
    kind = None if scaling is None else scaling.rope_type
    if kind == "dynamic" and dimensions <= 2:
        raise ModelError(f"rope_type: expected more than 2 rotated dimensions of a head for dynamic, got {dimensions}")
    if kind == "yarn" and theta == 1.0:
        raise ModelError("rope_theta: expected more than 1.0 for rope_type yarn, got 1.0")


class Rotary(NamedTuple):
    """Cosines and sines of the rotary angles, each [B or 1, 1, T, R / 2]."""

    cos: jax.Array
    sin: jax.Array


def rotary_angles(
    positions: jax.Array, dimensions: int, theta: float, scaling: RopeScaling | None, dtype: Any
) -> Rotary:
    """Rotary angles of each position: angle_i = position f_i, f_i = theta^(-2 i / n), stretched where `scaling` says.

    Args:
        positions: [B or 1, T] int32, the index of each token among the real tokens of its row.
        dimensions: n, rotated dimensions of a head.
        theta: base of the frequencies.
        scaling: None for none. With `dynamic`, frequencies follow the longest row of these, as in transformers.
        dtype: dtype of the result; the angles themselves are float32.

    Source: transformers modeling_rope_utils.py.
    """
    if scaling is not None and scaling.rope_type == "dynamic":
        theta = _longer_base(theta, jnp.max(positions) + 1, dimensions, scaling)
    exponents = jnp.arange(0, dimensions, 2, dtype=jnp.float32) / max(dimensions, 1)
    frequencies = 1.0 / theta**exponents
    if scaling is not None and scaling.rope_type != "dynamic":
        frequencies = _STRETCH[scaling.rope_type](frequencies, theta, scaling)
    angles = positions[:, None, :, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if scaling is not None and scaling.attention_factor != 1.0:
        cos, sin = cos * scaling.attention_factor, sin * scaling.attention_factor
    return Rotary(cos.astype(dtype), sin.astype(dtype))


def _longer_base(theta: float, length: jax.Array, dimensions: int, scaling: RopeScaling) -> Any:
    """Base of the NTK-aware method: theta (s L / L0 - (s - 1))^(n / (n - 2)) for L tokens, L at least L0."""
    original = scaling.original_max_position_embeddings
    times = scaling.factor * jnp.maximum(length, original) / original - (scaling.factor - 1)
    return theta * times ** (dimensions / (dimensions - 2))


def _stretch_all(frequencies: jax.Array, theta: float, scaling: RopeScaling) -> jax.Array:
    del theta
    return frequencies / scaling.factor


def _stretch_long_waves(frequencies: jax.Array, theta: float, scaling: RopeScaling) -> jax.Array:
    """Stretch wavelengths above one limit in full, below another not at all, and between them in part."""
    del theta
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    rotations = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = jnp.clip((rotations - low) / (high - low), 0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _stretch_slow_dimensions(frequencies: jax.Array, theta: float, scaling: RopeScaling) -> jax.Array:
    """Stretch the dimensions that rotate less than `beta_slow` times, keep those above `beta_fast`, a ramp between."""
    n = 2 * frequencies.shape[0]

    def dimension_of(rotations: float) -> float:
        times = scaling.original_max_position_embeddings / (rotations * 2 * math.pi)
        return n * math.log(times) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    width = high - low if high != low else 0.001  # transformers' way round a division by 0
    stretched = jnp.clip((jnp.arange(n // 2, dtype=jnp.float32) - low) / width, 0.0, 1.0)
    return stretched * frequencies / scaling.factor + (1 - stretched) * frequencies


_STRETCH = {"linear": _stretch_all, "llama3": _stretch_long_waves, "yarn": _stretch_slow_dimensions}


def rotate(x_bhtk: jax.Array, rotary: Rotary) -> jax.Array:
    """Rotate the first R dimensions of each head, dimension i paired with i + R / 2; the others pass unchanged.

    Source: transformers modeling_gpt_neox.py, apply_rotary_pos_emb; arXiv:2104.09864.
    """
    half = rotary.cos.shape[-1]
    first, second, rest = x_bhtk[..., :half], x_bhtk[..., half : 2 * half], x_bhtk[..., 2 * half :]
    rotated = (first * rotary.cos - second * rotary.sin, second * rotary.cos + first * rotary.sin)
    return jnp.concatenate((*rotated, rest), axis=-1)


def longest_text(scaling: RopeScaling | None) -> int | None:
    """Return the most tokens of a row for which no token depends on later ones; None: of any length.

    With `dynamic`, frequencies change with the length of a text beyond the original one: log-probabilities of sampling
    and of learning would differ. The padding of packed rows counts.
    """
    if scaling is None or scaling.rope_type != "dynamic":
        return None
    return scaling.original_max_position_embeddings // SEQUENCE_BUCKET * SEQUENCE_BUCKET


# --- transformers' settings


def rope_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings of a `config.json`: `rope_parameters` (transformers 5) or `rope_scaling` (earlier).

    Source: transformers modeling_rope_utils.py, convert_rope_params_to_dict.
    """
    key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    rope = raw.get(key) or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        expected = "an object of numbers and names (settings by the kind of layer are not supported)"
        raise ModelError(f"{key}: expected {expected}, got {rope!r}")
    return rope


def scaling_from_hf(raw: Mapping[str, Any]) -> RopeScaling | None:
    """Read how rotary frequencies are stretched; None where they are not.

    Raises:
        ModelError: the kind is unknown, or what it needs is missing; the message names it.
    """
    rope = rope_of(raw)
    where = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind not in _NEEDS:
        expected = f"default, {', '.join(_NEEDS)} (others are not supported)"
        raise ModelError(f"{where}.rope_type: expected {expected}, got {kind!r}")
    longest = raw.get("max_position_embeddings", 2048)
    original = longest
    if kind in ("llama3", "yarn"):
        given = rope.get("original_max_position_embeddings", longest)
        original = raw.get("original_max_position_embeddings", given)
    numbers = {name: rope.get(name) for name in _NEEDS[kind]}
    if kind == "yarn":
        if numbers["factor"] is None and type(longest) is type(original) is int and original > 0:
            numbers["factor"] = max(1.0, longest / original)
        numbers |= {name: rope[name] for name in _OF_YARN if rope.get(name) is not None}
    for name in _NEEDS[kind]:
        check_at_least(1.0 if name == "factor" else 0.0, f"{where}.{name}", numbers[name])
    if kind == "yarn":
        numbers.setdefault("attention_factor", _attention_factor(numbers["factor"], rope, where))
    return RopeScaling(rope_type=kind, original_max_position_embeddings=original, **numbers)


def _attention_factor(factor: float, rope: Mapping[str, Any], where: str) -> float:
    """Factor of cosines and sines: 0.1 ln(factor) + 1, or the quotient of two such with `mscale`, `mscale_all_dim`."""
    scales = [rope.get("mscale"), rope.get("mscale_all_dim")]
    if not all(scales):
        return 0.1 * math.log(factor) + 1.0
    for name, value in zip(("mscale", "mscale_all_dim"), scales, strict=True):
        check_at_least(0.0, f"{where}.{name}", value)
    above, below = (0.1 * scale * math.log(factor) + 1.0 for scale in scales)
    return above / below


def scaling_to_hf(scaling: RopeScaling | None) -> dict[str, Any]:
    """Write what `scaling_from_hf` reads: `rope_type` and what it needs."""
    if scaling is None:
        return {"rope_type": "default"}
    names = {"rope_type", *_NEEDS[scaling.rope_type]}
    names |= {"yarn": {*_OF_YARN}}.get(scaling.rope_type, set())
    names |= {"original_max_position_embeddings"} if scaling.rope_type in ("llama3", "yarn") else set()
    return {field.name: getattr(scaling, field.name) for field in fields(scaling) if field.name in names}
