"""Rotary position embeddings of all families, and how transformers writes their settings. Source: arXiv:2104.09864."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.data import SEQUENCE_BUCKET
from jaxppo.errors import ModelError
from jaxppo.nn.config import check_at_least, check_bool, check_choice, check_positive_int

_LENGTH = "original_max_position_embeddings"
# rope_type -> its settings in transformers; the first ones have no default.
_SETTINGS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _LENGTH),
    "yarn": ("factor", _LENGTH, "beta_fast", "beta_slow", "attention_factor", "truncate"),
}


class Rotary(NamedTuple):
    """Cosines and sines of the rotary angles, each [B or 1, 1, T, R / 2]."""

    cos: jax.Array
    sin: jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary frequencies, and how they are stretched for texts longer than a model was first trained on.

    Names and meanings are transformers'.

    Attributes:
        rope_type: default (not stretched), linear (arXiv:2306.15595), dynamic (NTK-aware), llama3 or yarn
            (arXiv:2309.00071).
        rope_theta: base of the frequencies.
        factor: about how many times longer texts may be.
        original_max_position_embeddings: tokens of a text before that; `dynamic` stretches nothing up to there.
        low_freq_factor: llama3: wavelengths above `original_max_position_embeddings` over it are stretched in full.
        high_freq_factor: llama3: those below `original_max_position_embeddings` over it not at all.
        beta_fast: yarn: frequencies with more than so many rotations in the original length stay.
        beta_slow: yarn: those with fewer are stretched in full.
        attention_factor: yarn: factor of cosines and sines.
        truncate: yarn: the two limits are rounded outwards to whole frequencies.

    Raises:
        ModelError: a field has a value that means nothing; the message names it.
    """

    rope_type: str = "default"
    rope_theta: float = 10000.0
    factor: float = 1.0
    original_max_position_embeddings: int = 2048
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True

    def __post_init__(self):
        check_choice("rope_type", self.rope_type, _SETTINGS)
        for name in ("rope_theta", "factor"):
            check_at_least(1.0, name, getattr(self, name))
        check_positive_int("original_max_position_embeddings", self.original_max_position_embeddings)
        check_at_least(0.0, "attention_factor", self.attention_factor)
        for name in ("low_freq_factor", "beta_fast", "beta_slow"):
            check_at_least(1e-6, name, getattr(self, name))
        check_at_least(1.000001 * self.low_freq_factor, "high_freq_factor", self.high_freq_factor)
        check_bool("truncate", self.truncate)
        if self.rope_type == "yarn" and self.rope_theta == 1.0:
            raise ModelError("rope_theta: expected more than 1.0 for rope_type yarn, got 1.0")

    def check(self, dimensions: int) -> None:
        """Raise a `ModelError` unless so many dimensions of a head can rotate like this."""
        if self.rope_type == "dynamic" and dimensions <= 2:
            raise ModelError(f"rope_type: expected more than 2 rotated dimensions for dynamic, got {dimensions}")

    @property
    def max_length(self) -> int | None:
        """Most tokens of a row for which no token depends on later ones; None: of any length.

        With `dynamic`, frequencies change with the length of a text beyond the original one: log-probabilities of
        sampling and of learning would differ. The padding of packed rows counts.
        """
        if self.rope_type != "dynamic":
            return None
        return self.original_max_position_embeddings // SEQUENCE_BUCKET * SEQUENCE_BUCKET

    def angles(self, positions: jax.Array, dimensions: int, dtype: Any) -> Rotary:
        """Rotary angles of each position: angle_i = position f_i, f_i = theta^(-2 i / n), some of them stretched.

        Args:
            positions: [B or 1, T] int32, the index of each token among the real tokens of its row. With `dynamic`,
                frequencies follow the longest of these rows, as in transformers.
            dimensions: n, rotated dimensions of a head.
            dtype: dtype of the result; the angles themselves are float32.

        Source: transformers modeling_rope_utils.py.
        """
        exponents = jnp.arange(0, dimensions, 2, dtype=jnp.float32) / max(dimensions, 1)
        frequencies = 1.0 / self._base(positions, dimensions) ** exponents
        kept = self._kept(frequencies)
        if kept is not None:
            frequencies = (1 - kept) * frequencies / self.factor + kept * frequencies
        elif self.rope_type == "linear":
            frequencies = frequencies / self.factor
        angles = positions[:, None, :, None].astype(jnp.float32) * frequencies
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        if self.attention_factor != 1.0:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        return Rotary(cos.astype(dtype), sin.astype(dtype))

    def _base(self, positions: jax.Array, dimensions: int) -> Any:
        """Theta; with `dynamic`, for L >= L0 tokens, theta (s L / L0 - (s - 1))^(n / (n - 2))."""
        theta, factor = float(self.rope_theta), float(self.factor)  # JAX takes no integers of 2^31
        if self.rope_type != "dynamic":
            return theta
        original = self.original_max_position_embeddings
        length = jnp.maximum(jnp.max(positions) + 1, original)
        times = factor * length / original - (factor - 1)
        return theta * times ** (dimensions / (dimensions - 2))

    def _kept(self, frequencies: jax.Array) -> jax.Array | None:
        """Share of each frequency that is not stretched: [n / 2] fp32; None where all are treated alike."""
        original, n = self.original_max_position_embeddings, 2 * frequencies.shape[0]
        if self.rope_type == "llama3":
            rotations = original * frequencies / (2 * math.pi)
            return jnp.clip(
                (rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0
            )
        if self.rope_type != "yarn":
            return None

        def dimension_of(rotations: float) -> float:
            return n * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(self.rope_theta))

        low, high = dimension_of(self.beta_fast), dimension_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, n - 1)
        width = high - low if high != low else 0.001  # transformers' way round a division by 0
        return 1 - jnp.clip((jnp.arange(n // 2, dtype=jnp.float32) - low) / width, 0.0, 1.0)

    def to_hf(self, theta_key: str = "rope_theta", share: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Write the rotary settings twice, as transformers 5 and as earlier versions read them.

        Those pass over `rope_parameters`, and would take their defaults without a word. Where there is a
        `rope_scaling`, transformers 5 reads it in place of `rope_parameters`, and the base beside it.

        Args:
            theta_key: name of the base there.
            share: {"partial_rotary_factor": share of each head that rotates}, in families that have it.
        """
        settings = {name: getattr(self, name) for name in _SETTINGS[self.rope_type]}
        new = {"rope_type": self.rope_type, "rope_theta": self.rope_theta, **(share or {}), **settings}
        keys = {theta_key: self.rope_theta, "rope_parameters": new}
        if self.rope_type == "default":
            return keys
        # Before 4.43 there was no `rope_type`, and linear and dynamic had just two keys.
        name = "type" if len(settings) == 1 else "rope_type"
        return keys | {"rope_scaling": {name: self.rope_type, **settings}}


PLAIN = Rope()


def rotate(x_bhtk: jax.Array, rotary: Rotary) -> jax.Array:
    """Rotate the first R dimensions of each head, dimension i paired with i + R / 2; the others pass unchanged.

    Source: transformers modeling_gpt_neox.py, apply_rotary_pos_emb; arXiv:2104.09864.
    """
    half = rotary.cos.shape[-1]
    first, second, rest = x_bhtk[..., :half], x_bhtk[..., half : 2 * half], x_bhtk[..., 2 * half :]
    rotated = (first * rotary.cos - second * rotary.sin, second * rotary.cos + first * rotary.sin)
    return jnp.concatenate((*rotated, rest), axis=-1)


def rope_from_hf(raw: Mapping[str, Any], theta: Any) -> tuple[Rope, float | None]:
    """Read the rotary settings of a `config.json`: `rope_parameters` (transformers 5) or `rope_scaling` (earlier).

    Args:
        raw: its content, `max_position_embeddings` included.
        theta: base of the frequencies where these do not name it.

    Returns:
        The settings, and the share of each head that rotates, if they name one.

    Raises:
        ModelError: the kind is unknown, or what it needs is missing; the message names it.

    Source: transformers modeling_rope_utils.py, convert_rope_params_to_dict.
    """
    where = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    rope = raw.get(where) or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        expected = "an object of numbers and names (settings by the kind of layer are not supported)"
        raise ModelError(f"{where}: expected {expected}, got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _SETTINGS:
        raise ModelError(f"{where}.rope_type: expected one of {', '.join(_SETTINGS)}, got {kind!r}")
    given = {name: rope[name] for name in _SETTINGS[kind] if rope.get(name) is not None}
    longest = raw["max_position_embeddings"]
    if kind == "dynamic":
        given[_LENGTH] = longest
    elif _LENGTH in _SETTINGS[kind]:
        given.setdefault(_LENGTH, longest)
        given |= {name: raw[name] for name in (_LENGTH,) if raw.get(name) is not None}
    if kind == "yarn":
        given = _filled_yarn(given, rope, longest)
    for name in _SETTINGS[kind][:3] if kind == "llama3" else _SETTINGS[kind][:1]:
        check_at_least(1.0 if name == "factor" else 0.0, f"{where}.{name}", given.get(name))
    return Rope(rope_type=kind, rope_theta=rope.get("rope_theta", theta), **given), rope.get("partial_rotary_factor")


def _filled_yarn(given: dict[str, Any], rope: Mapping[str, Any], longest: Any) -> dict[str, Any]:
    """Fill in what yarn derives: the factor from the lengths, 0.1 ln(factor) + 1 for cosines and sines.

    With `mscale` and `mscale_all_dim` the latter is the quotient of two such numbers.
    """
    numbers = (longest, given[_LENGTH])
    if "factor" not in given and all(type(each) is int and each > 0 for each in numbers):
        given["factor"] = max(1.0, numbers[0] / numbers[1])
    factor: Any = given.get("factor")
    if "attention_factor" in given or type(factor) not in (int, float) or not factor >= 1.0:
        return given
    scales: Any = (rope.get("mscale"), rope.get("mscale_all_dim"))
    for name, value in zip(("mscale", "mscale_all_dim"), scales, strict=True):
        check_at_least(0.0, name, value or 0.0)
    above, below = (0.1 * scale * math.log(factor) + 1.0 for scale in (scales if all(scales) else (1.0, 0.0)))
    return given | {"attention_factor": above / below}
