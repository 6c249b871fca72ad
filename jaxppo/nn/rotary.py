"""Rotary position embeddings of all families, and how transformers writes their settings. Source: arXiv:2104.09864."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxppo.errors import ModelError
from jaxppo.nn.blocks import select_tokens
from jaxppo.nn.checks import check_at_least, check_bool, check_choice, check_positive_int
from jaxppo.types import Array

_LENGTH = "original_max_position_embeddings"
# rope_type -> its settings in transformers.
_SETTINGS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _LENGTH),
    "yarn": ("factor", _LENGTH, "beta_fast", "beta_slow", "attention_factor", "truncate"),
}
_OPTIONAL_SETTINGS = (_LENGTH, "beta_fast", "beta_slow", "attention_factor", "truncate")


class Rotary(NamedTuple):
    """Cosines and sines of the rotary angles, each [B or 1, 1, T, R / 2]."""

    cos: Array
    sin: Array
    # Of the layers with a window, where these have other frequencies.
    windowed: "Rotary | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary frequencies, and how they are stretched for texts longer than a model was first trained on.

    Names and meanings are transformers'.

    Attributes:
        rope_type: default (not stretched), linear (arXiv:2306.15595), llama3 or yarn (arXiv:2309.00071).
        rope_theta: base of the frequencies.
        factor: about how many times longer texts may be.
        original_max_position_embeddings: tokens of a text before that.
        low_freq_factor: llama3: wavelengths above `original_max_position_embeddings` over it are stretched in full.
        high_freq_factor: llama3: those below `original_max_position_embeddings` over it not at all.
        beta_fast: yarn: frequencies with more rotations than this in the original length are not stretched.
        beta_slow: yarn: those with fewer than this are stretched in full.
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
        check_positive_int(
            "original_max_position_embeddings", self.original_max_position_embeddings
        )
        check_at_least(0.0, "attention_factor", self.attention_factor)
        for name in ("low_freq_factor", "beta_fast", "beta_slow"):
            check_at_least(1e-6, name, getattr(self, name))
        # llama3 divides by the difference of the two.
        check_at_least(1.000001 * self.low_freq_factor, "high_freq_factor", self.high_freq_factor)
        check_bool("truncate", self.truncate)
        # yarn divides by its logarithm.
        if self.rope_type == "yarn" and self.rope_theta == 1.0:
            raise ModelError("rope_theta: expected more than 1.0 for rope_type yarn, got 1.0")

    def angles(self, positions: Array, dimensions: int, dtype: Any) -> Rotary:
        """Rotary angles of each position: angle_i = position f_i, f_i = theta^(-2 i / n), some of them stretched.

        Args:
            positions: [B or 1, T] int32, the index of each token among the real tokens of its row.
            dimensions: n, rotated dimensions of a head.
            dtype: dtype of the result; the angles themselves are float32.

        Source: transformers modeling_rope_utils.py.
        """
        exponents = jnp.arange(0, dimensions, 2, dtype=jnp.float32) / max(dimensions, 1)
        # A float: JAX takes no integers of 2^31.
        frequencies = 1.0 / float(self.rope_theta) ** exponents
        unstretched = self._unstretched_share(frequencies)
        if unstretched is not None:
            frequencies = (1 - unstretched) * frequencies / self.factor + unstretched * frequencies
        elif self.rope_type == "linear":
            frequencies = frequencies / self.factor
        # In float32: bfloat16 has no integers above 256, and positions go further.
        angles = positions[:, None, :, None].astype(jnp.float32) * frequencies
        cos = jnp.cos(angles)
        sin = jnp.sin(angles)
        if self.attention_factor != 1.0:
            cos = cos * self.attention_factor
            sin = sin * self.attention_factor
        return Rotary(cos.astype(dtype), sin.astype(dtype))

    def _unstretched_share(self, frequencies: Array) -> Array | None:
        """Share of each frequency that is not stretched: [n / 2] fp32; None where all are treated alike.

        A frequency that makes many turns within the original length encodes short distances. These are the same in
        longer texts, so it is not stretched. One that makes less than a turn would reach angles that training never
        saw, and is divided by the factor. Between the two limits the share falls linearly: in llama3 by the rotations,
        in yarn by the number of the frequency.
        """
        original = self.original_max_position_embeddings
        if self.rope_type == "llama3":
            rotations = original * frequencies / (2 * math.pi)
            share = (rotations - self.low_freq_factor) / (
                self.high_freq_factor - self.low_freq_factor
            )
            return jnp.clip(share, 0.0, 1.0)
        if self.rope_type != "yarn":
            return None
        n = 2 * frequencies.shape[0]

        def dimension_with(rotations: float) -> float:
            """Solve original theta^(-2 i / n) = 2 pi rotations for i."""
            return (
                n * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(self.rope_theta))
            )

        low = dimension_with(self.beta_fast)
        high = dimension_with(self.beta_slow)
        if self.truncate:
            low = math.floor(low)
            high = math.ceil(high)
        low = max(low, 0)
        high = min(high, n - 1)
        width = high - low if high != low else 0.001  # transformers' way round a division by 0
        numbers = jnp.arange(n // 2, dtype=jnp.float32)
        return 1 - jnp.clip((numbers - low) / width, 0.0, 1.0)

    def to_hf(
        self, theta_key: str = "rope_theta", share: Mapping[str, float] | None = None
    ) -> dict[str, Any]:
        """Write the rotary settings twice, as transformers 5 and as earlier versions read them.

        Those pass over `rope_parameters`, and would take their defaults without a word. Where there is a
        `rope_scaling`, transformers 5 reads it, and the base next to it, in place of `rope_parameters`.

        Args:
            theta_key: name of the base there.
            share: {"partial_rotary_factor": share of each head that rotates}, in families that have it.
        """
        settings = {name: getattr(self, name) for name in _SETTINGS[self.rope_type]}
        parameters = {
            "rope_type": self.rope_type,
            "rope_theta": self.rope_theta,
            **(share or {}),
            **settings,
        }
        keys = {theta_key: self.rope_theta, "rope_parameters": parameters}
        if self.rope_type == "default":
            return keys
        # Before 4.43 there was no `rope_type`, and linear had just two keys.
        name = "type" if len(settings) == 1 else "rope_type"
        return keys | {"rope_scaling": {name: self.rope_type, **settings}}


PLAIN = Rope()


def rotate(x_bhtk: Array, rotary: Rotary) -> Array:
    """Rotate the first R dimensions of each head, dimension i paired with i + R / 2; the others pass unchanged.

    Source: transformers modeling_gpt_neox.py, apply_rotary_pos_emb; arXiv:2104.09864.
    """
    half = rotary.cos.shape[-1]
    first = x_bhtk[..., :half]
    second = x_bhtk[..., half : 2 * half]
    unrotated = x_bhtk[..., 2 * half :]
    # Pairs are half a head apart, as in transformers, not side by side as in the paper.
    new_first = first * rotary.cos - second * rotary.sin
    new_second = second * rotary.cos + first * rotary.sin
    return jnp.concatenate((new_first, new_second, unrotated), axis=-1)


def rotate_queries_and_keys(
    q_bhtk: Array, k_bgtk: Array, rotary: Rotary, read: Array | None
) -> tuple[Array, Array]:
    """Rotate the queries of the tokens that are read, and the keys of all, see `rotate`.

    Args:
        q_bhtk: [B, H, T or R, K].
        k_bgtk: [B, G, T, K].
        rotary: of all T tokens.
        read: see `select_tokens`.
    """
    return rotate(q_bhtk, select_tokens(rotary, read, axis=2)), rotate(k_bgtk, rotary)


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
    key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    rope = raw.get(key) or {}
    # Gemma 3 has one object for each kind of layer: `llama_kinds.py` takes them apart.
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        allowed = "an object of numbers and names (settings by the kind of layer are not supported)"
        raise ModelError(f"{key}: expected {allowed}, got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _SETTINGS:
        raise ModelError(f"{key}.rope_type: expected one of {', '.join(_SETTINGS)}, got {kind!r}")
    settings = {name: rope[name] for name in _SETTINGS[kind] if rope.get(name) is not None}
    max_positions = raw["max_position_embeddings"]
    # Of the length before stretching a value next to the settings counts before one among them.
    if _LENGTH in _SETTINGS[kind]:
        settings.setdefault(_LENGTH, max_positions)
        if raw.get(_LENGTH) is not None:
            settings[_LENGTH] = raw[_LENGTH]
    if kind == "yarn":
        settings = _with_yarn_defaults(settings, rope, max_positions)
    for name in _SETTINGS[kind]:
        if name not in _OPTIONAL_SETTINGS:
            check_at_least(1.0 if name == "factor" else 0.0, f"{key}.{name}", settings.get(name))
    return Rope(rope_type=kind, rope_theta=rope.get("rope_theta", theta), **settings), rope.get(
        "partial_rotary_factor"
    )


def _with_yarn_defaults(
    settings: dict[str, Any], rope: Mapping[str, Any], max_positions: Any
) -> dict[str, Any]:
    """Fill in what yarn derives: the factor from the lengths, 0.1 ln(factor) + 1 for cosines and sines.

    With `mscale` and `mscale_all_dim` the latter is the quotient of two such numbers.
    """
    lengths = (max_positions, settings[_LENGTH])
    if "factor" not in settings and all(type(length) is int and length > 0 for length in lengths):
        settings["factor"] = max(1.0, max_positions / settings[_LENGTH])
    # A factor that means nothing is refused by the caller, by name.
    factor: Any = settings.get("factor")
    if "attention_factor" in settings or type(factor) not in (int, float) or not factor >= 1.0:
        return settings
    # DeepSeek's two settings count only together.
    mscale = rope.get("mscale")
    mscale_all_dim = rope.get("mscale_all_dim")
    check_at_least(0.0, "mscale", mscale or 0.0)
    check_at_least(0.0, "mscale_all_dim", mscale_all_dim or 0.0)
    if not (mscale and mscale_all_dim):
        mscale = 1.0
        mscale_all_dim = 0.0
    above = 0.1 * mscale * math.log(factor) + 1.0
    below = 0.1 * mscale_all_dim * math.log(factor) + 1.0
    return settings | {"attention_factor": above / below}
