"""GPT-NeoX (Pythia), computed exactly as transformers computes it. Source: arXiv:2204.06745, arXiv:2104.09864."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxppo.errors import ModelError
from jaxppo.nn.config import (
    SCORE_NAMES,
    Family,
    HfName,
    ModelConfig,
    check_at_least,
    check_bool,
    check_choice,
    linear_names,
    norm_names,
)
from jaxppo.nn.layers import (
    ACTIVATIONS,
    Cache,
    LayerCache,
    Linear,
    attend_cached,
    columns,
    embedding,
    layer_norm,
    look_up,
    project,
    run_layers,
)
from jaxppo.parallel.partition import NARROWS, TENSOR, WIDENS


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTNeoXConfig(ModelConfig):
    """Names, meanings and defaults of transformers' `GPTNeoXConfig`, with the rotary settings flat.

    Attributes:
        rotary_pct: share of each head that rotates.
        rope_theta: base of the rotary frequencies.
        rope_factor: positions are divided by it (transformers' `rope_type: linear`, arXiv:2306.15595).
    """

    model_type: str = "gpt_neox"
    max_position_embeddings: int = 2048
    hidden_act: str = "gelu"
    tie_word_embeddings: bool = False
    rotary_pct: float = 0.25
    rope_theta: float = 10000.0
    rope_factor: float = 1.0
    use_parallel_residual: bool = True
    attention_bias: bool = True

    def _check_family(self) -> None:
        check_choice("model_type", self.model_type, ("gpt_neox",))
        check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        for name in ("use_parallel_residual", "attention_bias"):
            check_bool(name, getattr(self, name))
        check_at_least(0.0, "rotary_pct", self.rotary_pct)
        for name in ("rope_theta", "rope_factor"):
            check_at_least(1.0, name, getattr(self, name))
        if self.rotary_dim > self.head_dim:
            raise ModelError(
                f"rotary_pct: expected a share in [0, 1] of the head size, so that pairs of its {self.head_dim} "
                f"dimensions can rotate, got {self.rotary_pct}"
            )

    @property
    def rotary_dim(self) -> int:
        """Rotated dimensions R of each head: transformers takes floor(K rotary_pct), then pairs, rounded up."""
        return 2 * -(-int(self.head_dim * self.rotary_pct) // 2)


class Rotary(NamedTuple):
    """Cosines and sines of the rotary angles, each [B or 1, 1, T, R / 2]."""

    cos: jax.Array
    sin: jax.Array


def rotary_angles(config: GPTNeoXConfig, positions: jax.Array, dtype: Any) -> Rotary:
    """Rotary angles of each position: angle_i = position / factor * theta^(-2 i / n), n = floor(K rotary_pct).

    Args:
        config: gives theta, factor, K and rotary_pct.
        positions: [B or 1, T] int32, the index of each token among the real tokens of its row.
        dtype: dtype of the result; the angles themselves are float32.

    Source: transformers modeling_gpt_neox.py, GPTNeoXRotaryEmbedding.
    """
    n = int(config.head_dim * config.rotary_pct)
    exponents = jnp.arange(0, n, 2, dtype=jnp.float32) / max(n, 1)
    inverse_frequencies = 1.0 / config.rope_theta**exponents / config.rope_factor
    angles = positions[:, None, :, None].astype(jnp.float32) * inverse_frequencies
    return Rotary(jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype))


def rotate(x_bhtk: jax.Array, rotary: Rotary) -> jax.Array:
    """Rotate the first R dimensions of each head, dimension i paired with i + R / 2; the others pass unchanged.

    Source: transformers modeling_gpt_neox.py, apply_rotary_pos_emb; arXiv:2104.09864.
    """
    half = rotary.cos.shape[-1]
    first, second, rest = x_bhtk[..., :half], x_bhtk[..., half : 2 * half], x_bhtk[..., 2 * half :]
    rotated = (first * rotary.cos - second * rotary.sin, second * rotary.cos + first * rotary.sin)
    return jnp.concatenate((*rotated, rest), axis=-1)


class NeoXAttention(nnx.Module):
    """Multi-head self-attention with one fused projection, interleaved per head as [H, (query, key, value), K]."""

    def __init__(self, config: GPTNeoXConfig, rngs: nnx.Rngs):
        self.num_heads = config.num_attention_heads
        size, bias = config.hidden_size, config.attention_bias
        self.query_key_value = Linear(config, size, 3 * size, use_bias=bias, rngs=rngs)
        self.dense = Linear(config, size, size, use_bias=bias, rngs=rngs)

    def __call__(
        self,
        x_btd: jax.Array,
        rotary: Rotary,
        bias: jax.Array,
        cache: LayerCache | None,
        cache_index: int | jax.Array,
        read: jax.Array | None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """Mix the tokens: [B, T, D] -> [B, T or R, D] and the cache with their keys and values."""
        shape = (self.num_heads, 3, x_btd.shape[2] // self.num_heads)
        query, key, value = project(self.query_key_value, x_btd, read, shape, axis=1)
        query, key = rotate(query, columns(rotary, read, 2)), rotate(key, rotary)
        attended, cache = attend_cached(query, key, value, columns(bias, read, 2), cache, cache_index)
        return self.dense(attended), cache


class NeoXMlp(nnx.Module):
    """Two linear layers around the activation."""

    def __init__(self, config: GPTNeoXConfig, rngs: nnx.Rngs):
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense_h_to_4h = Linear(config, config.hidden_size, config.intermediate_size, rngs=rngs)
        self.dense_4h_to_h = Linear(config, config.intermediate_size, config.hidden_size, rngs=rngs)

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """Transform each token alone: [B, T, D] -> [B, T, D]."""
        return self.dense_4h_to_h(self.activation(self.dense_h_to_4h(x_btd)))


class NeoXLayer(nnx.Module):
    """Attention and MLP around one residual stream, side by side (`use_parallel_residual`) or one after the other."""

    def __init__(self, config: GPTNeoXConfig, rngs: nnx.Rngs):
        self.use_parallel_residual = config.use_parallel_residual
        self.input_layernorm = layer_norm(config, rngs)
        self.post_attention_layernorm = layer_norm(config, rngs)
        self.attention = NeoXAttention(config, rngs)
        self.mlp = NeoXMlp(config, rngs)

    def __call__(
        self,
        x_btd: jax.Array,
        rotary: Rotary,
        bias: jax.Array,
        cache: LayerCache | None,
        cache_index: int | jax.Array,
        read: jax.Array | None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """Transform the residual stream: [B, T, D] -> [B, T or R, D] and the cache of this layer."""
        attended, cache = self.attention(self.input_layernorm(x_btd), rotary, bias, cache, cache_index, read)
        x_btd = columns(x_btd, read, 1)
        if self.use_parallel_residual:
            return self.mlp(self.post_attention_layernorm(x_btd)) + attended + x_btd, cache
        x_btd = attended + x_btd
        return self.mlp(self.post_attention_layernorm(x_btd)) + x_btd, cache


class NeoXTrunk(nnx.Module):
    """GPT-NeoX without a head. Source: transformers modeling_gpt_neox.py, GPTNeoXModel."""

    def __init__(self, config: GPTNeoXConfig, rngs: nnx.Rngs):
        self.config = config
        self.embed_in = embedding(config, config.vocab_size, rngs)
        self.layers = nnx.Dict({str(i): NeoXLayer(config, rngs) for i in range(config.num_hidden_layers)})
        self.final_layer_norm = layer_norm(config, rngs)

    def __call__(
        self,
        input_ids: jax.Array,
        positions: jax.Array,
        bias: jax.Array,
        cache: Cache | None,
        cache_index: int | jax.Array,
        read: jax.Array | None,
    ) -> tuple[jax.Array, Cache | None]:
        """Map token ids to hidden states after the final layer norm: [B, T] -> [B, T or R, D] and the cache.

        Args:
            input_ids: [B, T] int.
            positions: [B or 1, T] int32.
            bias: [B or 1, 1, T, S] float32, added to the attention scores.
            cache: the slots to write to and to attend to, or None to attend to these tokens alone.
            cache_index: slot of the first token.
            read: [B, R] int, tokens whose hidden states are wanted, or None for all.
        """
        hidden = look_up(self.embed_in, input_ids)
        rotary = rotary_angles(self.config, positions, hidden.dtype)
        recompute = self.config.gradient_checkpointing
        hidden, cache = run_layers(self.layers, hidden, (rotary, bias), cache, cache_index, read, recompute)
        return self.final_layer_norm(hidden), cache


_REQUIRED_KEYS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_OPTIONAL_KEYS = (
    "max_position_embeddings",
    "layer_norm_eps",
    "hidden_act",
    "use_parallel_residual",
    "attention_bias",
    "tie_word_embeddings",
    "initializer_range",
    "pad_token_id",
)


def _from_hf(raw: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in _REQUIRED_KEYS if name not in raw]
    if missing:
        raise ModelError(f"{missing[0]}: expected an integer, got no such key")
    fields = {name: raw[name] for name in (*_REQUIRED_KEYS, *_OPTIONAL_KEYS) if name in raw}
    # Where a file does not name these two, GPTNeoXConfig means 0 and 2.
    fields |= {"bos_token_id": raw.get("bos_token_id", 0), "eos_token_id": raw.get("eos_token_id", 2)}
    return fields | _rotary_fields(raw)


def _rotary_fields(raw: dict[str, Any]) -> dict[str, Any]:
    # From `rope_parameters` (transformers 5), or from `rotary_pct`, `rotary_emb_base` and `rope_scaling` (earlier).
    # Source: transformers GPTNeoXConfig.convert_rope_params_to_dict.
    key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    rope = raw.get(key) or {}
    if not isinstance(rope, dict):
        raise ModelError(f"{key}: expected an object, got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear"):
        raise ModelError(f"{key}.rope_type: expected default or linear (others are not supported), got {kind!r}")
    if kind == "linear":
        check_at_least(1.0, f"{key}.factor", rope.get("factor"))
    return {
        "rotary_pct": rope.get("partial_rotary_factor", raw.get("rotary_pct", 0.25)),
        "rope_theta": rope.get("rope_theta", raw.get("rotary_emb_base", 10000.0)),
        "rope_factor": rope["factor"] if kind == "linear" else 1.0,
    }


def _to_hf(config: GPTNeoXConfig) -> dict[str, Any]:
    special = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    plain = {name: getattr(config, name) for name in ("model_type", *_REQUIRED_KEYS, *_OPTIONAL_KEYS)}
    return plain | special | _rotary_to_hf(config)


def _rotary_to_hf(config: GPTNeoXConfig) -> dict[str, Any]:
    # Twice: transformers 4 does not know `rope_parameters`, and would take its defaults without a word. Where there is
    # a `rope_scaling`, transformers 5 reads it in place of `rope_parameters`, and the other two keys with it.
    rope = {"rope_theta": config.rope_theta, "partial_rotary_factor": config.rotary_pct}
    older: dict[str, Any] = {"rotary_pct": config.rotary_pct, "rotary_emb_base": config.rope_theta}
    if config.rope_factor == 1.0:
        return older | {"rope_parameters": rope | {"rope_type": "default"}}
    scaling = {"type": "linear", "factor": config.rope_factor}  # before 4.43 these two keys and no other
    linear = {"rope_type": "linear", "factor": config.rope_factor}
    return older | {"rope_scaling": scaling, "rope_parameters": rope | linear}


# Names as on disk: transformers 5 calls the module `lm_head` but still reads and writes `embed_out`.
GPT_NEOX = Family(
    config=GPTNeoXConfig,
    trunk=NeoXTrunk,
    from_hf=_from_hf,
    to_hf=_to_hf,
    trunk_prefix="gpt_neox.",
    architectures={
        "lm": "GPTNeoXForCausalLM",
        "score": "GPTNeoXForSequenceClassification",
        None: "GPTNeoXModel",
    },
    names={"trunk/embed_in/embedding": HfName("embed_in.weight"), "lm_head/kernel": HfName("embed_out.weight", True)}
    | norm_names("trunk/final_layer_norm", "final_layer_norm")
    | norm_names("trunk/layers/{i}/input_layernorm", "layers.{i}.input_layernorm")
    | norm_names("trunk/layers/{i}/post_attention_layernorm", "layers.{i}.post_attention_layernorm")
    | linear_names("trunk/layers/{i}/attention/query_key_value", "layers.{i}.attention.query_key_value")
    | linear_names("trunk/layers/{i}/attention/dense", "layers.{i}.attention.dense")
    | linear_names("trunk/layers/{i}/mlp/dense_h_to_4h", "layers.{i}.mlp.dense_h_to_4h")
    | linear_names("trunk/layers/{i}/mlp/dense_4h_to_h", "layers.{i}.mlp.dense_4h_to_h")
    | SCORE_NAMES,
    ignored=re.compile(r"attention\.(bias|masked_bias)$|rotary_emb\.inv_freq$"),
    partition={
        "attention/query_key_value/kernel": WIDENS,
        "attention/query_key_value/bias": (TENSOR,),
        "attention/dense/kernel": NARROWS,
        "mlp/dense_h_to_4h/kernel": WIDENS,
        "mlp/dense_h_to_4h/bias": (TENSOR,),
        "mlp/dense_4h_to_h/kernel": NARROWS,
    },
    replaced_keys=("rope_scaling", "rotary_emb_base", "rotary_pct"),
)
