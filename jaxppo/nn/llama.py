"""Llama and those built like it, computed exactly as transformers computes them: one row of `KINDS` for each.

Source: arXiv:2302.13971 (Llama), arXiv:2305.13245 (grouped queries), arXiv:2002.05202 (SwiGLU); transformers
modeling_llama.py, modeling_qwen2.py, modeling_qwen3.py, modeling_mistral.py, modeling_smollm3.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from jaxppo.errors import ModelError
from jaxppo.nn.config import (
    SCORE_NAMES,
    Family,
    HfName,
    ModelConfig,
    check_bool,
    check_choice,
    check_positive_int,
    check_present,
    linear_names,
)
from jaxppo.nn.layers import (
    ACTIVATIONS,
    MASKED,
    Cache,
    LayerCache,
    Linear,
    RMSNorm,
    attend_cached,
    columns,
    embedding,
    look_up,
    run_layers,
    split_heads,
)
from jaxppo.nn.rotary import (
    RopeScaling,
    Rotary,
    check_rope,
    longest_text,
    rope_of,
    rotary_angles,
    rotate,
    scaling_from_hf,
    scaling_to_hf,
)
from jaxppo.parallel import partition
from jaxppo.parallel.partition import NARROWS, TENSOR, WIDENS

FULL, SLIDING = "full_attention", "sliding_attention"
"""transformers' kinds of layers."""


class Kind(NamedTuple):
    """What tells a `model_type` from the others.

    Attributes:
        name: beginning of its classes in transformers.
        defaults: what a key means that a file does not have.
        flags: keys of its own that switch biases on: of attention, of the MLP.
        qkv_bias: queries, keys and values have biases, and there is no key for that.
        qk_norm: queries and keys are normalised, each head by itself.
        unrotated_every: one of so many layers has no rotary embedding; 0: all have one.
        layers_slide: whether files name the layers with a window; else all have one that is not null, or none.
    """

    name: str
    defaults: Mapping[str, Any]
    flags: tuple[str, ...] = ()
    qkv_bias: bool = False
    qk_norm: bool = False
    unrotated_every: int = 0
    layers_slide: bool = False


_COMMON = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": False}
_QWEN = _COMMON | {"num_key_value_heads": 32, "max_position_embeddings": 32768}
_QWEN |= {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {"max_position_embeddings": 2048, **_ENDS}
_MISTRAL = {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096, **_ENDS}
_SMOLLM3 = {"max_position_embeddings": 32768, "num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True}
_SMOLLM3 |= {"use_sliding_window": False, "bos_token_id": 128000, "eos_token_id": 128001, "no_rope_layer_interval": 4}

KINDS = {
    "llama": Kind("Llama", _COMMON | _LLAMA, ("attention_bias", "mlp_bias")),
    "qwen2": Kind("Qwen2", _QWEN, qkv_bias=True, layers_slide=True),
    "qwen3": Kind("Qwen3", _QWEN | {"head_dim": 128}, ("attention_bias",), qk_norm=True, layers_slide=True),
    "mistral": Kind("Mistral", _COMMON | _MISTRAL),
    "smollm3": Kind(
        "SmolLM3", _COMMON | _SMOLLM3, ("attention_bias", "mlp_bias"), unrotated_every=4, layers_slide=True
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Names and meanings of transformers, whose `rms_norm_eps` is `layer_norm_eps` here.

    Attributes:
        head_dim: size K of one head, which need not be D / H; 0: it is.
        num_key_value_heads: heads of keys and values, a divisor of the others; 0: as many.
        rope_theta: base of the rotary frequencies.
        rope_scaling: how they are stretched for longer texts; None: not at all.
        attention_bias: biases of queries, keys, values and of the output (Qwen2 has those of the first three anyway).
        mlp_bias: biases of the MLP.
        sliding_window: how many tokens, itself among them, a token sees in the layers with a window.
        window_layers: numbers of these layers.
        unrotated_layers: numbers of the layers without rotary embedding; None: those that the kind has.
    """

    model_type: str = "llama"
    max_position_embeddings: int = 2048
    layer_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    head_dim: int = 0
    num_key_value_heads: int = 0
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    window_layers: tuple[int, ...] = ()
    unrotated_layers: tuple[int, ...] | None = None

    def _check_heads(self) -> None:
        if self.num_key_value_heads == 0:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        if self.head_dim == 0:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        for name in ("num_key_value_heads", "head_dim"):
            check_positive_int(name, getattr(self, name))
        if self.num_attention_heads % self.num_key_value_heads:
            divisor = f"a divisor of num_attention_heads={self.num_attention_heads}"
            raise ModelError(f"num_key_value_heads: expected {divisor}, got {self.num_key_value_heads}")
        if self.head_dim % 2:
            raise ModelError(f"head_dim: expected an even number, whose halves rotate, got {self.head_dim}")

    def _check_family(self) -> None:
        check_choice("model_type", self.model_type, KINDS)
        check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        for name in ("attention_bias", "mlp_bias"):
            check_bool(name, getattr(self, name))
            if getattr(self, name) and name not in self.kind.flags:
                raise ModelError(f"{name}: expected false for a {self.model_type} model, got true")
        check_rope(self.rope_theta, self.rope_scaling, self.head_dim)
        every = self.kind.unrotated_every
        if self.unrotated_layers is None:
            unrotated = range(every - 1, self.num_hidden_layers, every) if every else ()
            object.__setattr__(self, "unrotated_layers", tuple(unrotated))
        if self.sliding_window is not None:
            check_positive_int("sliding_window", self.sliding_window)
        elif self.window_layers:
            raise ModelError("sliding_window: expected an integer >= 1 for the layers with a window, got null")

    @property
    def kind(self) -> Kind:
        """What tells this `model_type` from the others."""
        return KINDS[self.model_type]

    @property
    def max_length(self) -> int | None:
        """None but for frequencies that depend on the length of the text."""
        return longest_text(self.rope_scaling)


Biases: TypeAlias = tuple[jax.Array, jax.Array | None]
"""[B or 1, 1, T, S] float32, added to the attention scores of layers without and, if there are such, with a window."""


class LlamaAttention(nnx.Module):
    """Self-attention whose heads of queries share keys and values in groups."""

    def __init__(self, config: LlamaConfig, layer: int, rngs: nnx.Rngs):
        assert config.unrotated_layers is not None
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.rotates, self.slides = layer not in config.unrotated_layers, layer in config.window_layers
        size, inner, shared = config.hidden_size, self.heads * config.head_dim, self.kv_heads * config.head_dim
        qkv_bias = config.attention_bias or config.kind.qkv_bias
        self.q_proj = Linear(config, size, inner, use_bias=qkv_bias, rngs=rngs)
        self.k_proj = Linear(config, size, shared, use_bias=qkv_bias, rngs=rngs)
        self.v_proj = Linear(config, size, shared, use_bias=qkv_bias, rngs=rngs)
        self.o_proj = Linear(config, inner, size, use_bias=config.attention_bias, rngs=rngs)
        self.q_norm, self.k_norm = (
            RMSNorm(config.head_dim, config.layer_norm_eps) if config.kind.qk_norm else None for _ in range(2)
        )

    def __call__(
        self,
        x_btd: jax.Array,
        rotary: Rotary,
        biases: Biases,
        cache: LayerCache | None,
        cache_index: int | jax.Array,
        read: jax.Array | None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """Mix the tokens: [B, T, D] -> [B, T or R, D] and the cache with their keys and values."""
        query = split_heads(self.q_proj(columns(x_btd, read, 1)), self.heads)
        key, value = (split_heads(linear(x_btd), self.kv_heads) for linear in (self.k_proj, self.v_proj))
        key, value = partition.over_tensor(key, 1), partition.over_tensor(value, 1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.rotates:
            query, key = rotate(query, columns(rotary, read, 2)), rotate(key, rotary)
        bias = columns(biases[self.slides], read, 2)
        attended, cache = attend_cached(query, key, value, bias, cache, cache_index)
        return self.o_proj(attended), cache


class LlamaMlp(nnx.Module):
    """A layer that widens, gated by another, and one that narrows."""

    def __init__(self, config: LlamaConfig, rngs: nnx.Rngs):
        self.activation, bias = ACTIVATIONS[config.hidden_act], config.mlp_bias
        self.gate_proj = Linear(config, config.hidden_size, config.intermediate_size, use_bias=bias, rngs=rngs)
        self.up_proj = Linear(config, config.hidden_size, config.intermediate_size, use_bias=bias, rngs=rngs)
        self.down_proj = Linear(config, config.intermediate_size, config.hidden_size, use_bias=bias, rngs=rngs)

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """Transform each token alone: [B, T, D] -> [B, T, D]."""
        return self.down_proj(self.activation(self.gate_proj(x_btd)) * self.up_proj(x_btd))


class LlamaLayer(nnx.Module):
    """Attention, then MLP, around one residual stream."""

    def __init__(self, config: LlamaConfig, layer: int, rngs: nnx.Rngs):
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(config.hidden_size, config.layer_norm_eps) for _ in range(2)
        )
        self.self_attn = LlamaAttention(config, layer, rngs)
        self.mlp = LlamaMlp(config, rngs)

    def __call__(
        self,
        x_btd: jax.Array,
        rotary: Rotary,
        biases: Biases,
        cache: LayerCache | None,
        cache_index: int | jax.Array,
        read: jax.Array | None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """Transform the residual stream: [B, T, D] -> [B, T or R, D] and the cache of this layer."""
        attended, cache = self.self_attn(self.input_layernorm(x_btd), rotary, biases, cache, cache_index, read)
        x_btd = columns(x_btd, read, 1) + attended
        return x_btd + self.mlp(self.post_attention_layernorm(x_btd)), cache


class LlamaTrunk(nnx.Module):
    """A model of this family without a head."""

    def __init__(self, config: LlamaConfig, rngs: nnx.Rngs):
        self.config = config
        self.embed_in = embedding(config, config.vocab_size, rngs)
        self.layers = nnx.Dict({str(i): LlamaLayer(config, i, rngs) for i in range(config.num_hidden_layers)})
        self.final_layer_norm = RMSNorm(config.hidden_size, config.layer_norm_eps)

    def __call__(
        self,
        input_ids: jax.Array,
        positions: jax.Array,
        bias: jax.Array,
        cache: Cache | None,
        cache_index: int | jax.Array,
        read: jax.Array | None,
    ) -> tuple[jax.Array, Cache | None]:
        """Map token ids to hidden states after the final norm: [B, T] -> [B, T or R, D] and the cache.

        Arguments as of `NeoXTrunk`.
        """
        config, hidden = self.config, look_up(self.embed_in, input_ids)
        rotary = rotary_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling, hidden.dtype)
        shared = (rotary, (bias, self._within_window(bias, cache_index)))
        recompute = config.gradient_checkpointing
        hidden, cache = run_layers(self.layers, hidden, shared, cache, cache_index, read, recompute)
        return self.final_layer_norm(hidden), cache

    def _within_window(self, bias: jax.Array, cache_index: int | jax.Array) -> jax.Array | None:
        """Hide from each token, among the slots, those that are `sliding_window` or more before its own."""
        if not self.config.window_layers:
            return None
        queries, slots = cache_index + jnp.arange(bias.shape[2]), jnp.arange(bias.shape[3])
        near = slots > queries[:, None] - self.config.sliding_window
        return jnp.where(near, bias, MASKED)


_REQUIRED_KEYS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
# Field of our configuration -> key in transformers.
_KEYS = {name: name for name in (*_REQUIRED_KEYS, "max_position_embeddings", "hidden_act", "tie_word_embeddings")}
_KEYS |= {"layer_norm_eps": "rms_norm_eps", "initializer_range": "initializer_range", "pad_token_id": "pad_token_id"}
_KEYS |= {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id"}


def _from_hf(raw: dict[str, Any]) -> dict[str, Any]:
    check_present(raw, _REQUIRED_KEYS)
    kind, rope = KINDS[raw["model_type"]], rope_of(raw)
    given = {"bos_token_id": None, "eos_token_id": None} | dict(kind.defaults) | raw
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError(f"partial_rotary_factor: expected 1.0 for a {raw['model_type']} model, whose heads rotate whole")
    layers = given["num_hidden_layers"]
    check_positive_int("num_hidden_layers", layers)
    unrotated = _unrotated(given, layers) if kind.unrotated_every else ()
    window, window_layers = _windows(kind, given, unrotated)
    return {name: given[key] for name, key in _KEYS.items() if key in given} | {
        "model_type": raw["model_type"],
        "head_dim": 0 if given.get("head_dim") is None else given["head_dim"],
        "num_key_value_heads": 0 if given.get("num_key_value_heads") is None else given["num_key_value_heads"],
        "rope_theta": rope.get("rope_theta", given["rope_theta"]),
        "rope_scaling": scaling_from_hf(dict(kind.defaults) | raw),
        "sliding_window": window,
        "window_layers": window_layers,
        "unrotated_layers": unrotated,
    } | {name: given.get(name, False) for name in kind.flags}


def _unrotated(given: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Read the layers without rotary embedding: those with a 0 in `no_rope_layers`, or the last of every interval."""
    rotates = given.get("no_rope_layers")
    if rotates is None:
        every = given["no_rope_layer_interval"]
        check_positive_int("no_rope_layer_interval", every)
        return tuple(range(every - 1, layers, every))
    if not isinstance(rotates, list) or len(rotates) < layers or not all(each in (0, 1) for each in rotates):
        raise ModelError(f"no_rope_layers: expected a list with 0 or 1 for each of {layers} layers, got {rotates!r}")
    return tuple(i for i in range(layers) if not rotates[i])


def _windows(kind: Kind, given: Mapping[str, Any], unrotated: tuple[int, ...]) -> tuple[int | None, tuple[int, ...]]:
    """Read the window and the layers that have it; (None, ()) where none has."""
    layers, window = range(given["num_hidden_layers"]), given.get("sliding_window")
    if kind.layers_slide:
        check_bool("use_sliding_window", given["use_sliding_window"])
        window = window if given["use_sliding_window"] else None
        kinds = given.get("layer_types")
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != len(layers) or not set(kinds) <= {FULL, SLIDING}:
                expected = f"a list with {FULL} or {SLIDING} for each of {len(layers)} layers"
                raise ModelError(f"layer_types: expected {expected}, got {kinds!r}")
            layers = tuple(i for i in layers if kinds[i] == SLIDING)
        elif kind.unrotated_every:
            layers = unrotated if window is not None else ()
        else:
            check_positive_int("max_window_layers", given["max_window_layers"] + 1)
            layers = layers[given["max_window_layers"] :] if window is not None else ()
    elif window is None:
        layers = ()
    return (window, tuple(layers)) if layers else (None, ())


def _to_hf(config: LlamaConfig) -> dict[str, Any]:
    kind, raw = config.kind, {key: getattr(config, name) for name, key in _KEYS.items()}
    raw |= {name: getattr(config, name) for name in ("model_type", "num_key_value_heads", "head_dim", *kind.flags)}
    if kind.layers_slide:
        slides = [i in config.window_layers for i in range(config.num_hidden_layers)]
        raw |= {"use_sliding_window": any(slides), "layer_types": [SLIDING if each else FULL for each in slides]}
    if kind.layers_slide or "sliding_window" in kind.defaults:
        raw["sliding_window"] = config.sliding_window
    if kind.unrotated_every:
        assert config.unrotated_layers is not None
        raw["no_rope_layers"] = [int(i not in config.unrotated_layers) for i in range(config.num_hidden_layers)]
    return raw | {"rope_parameters": {"rope_theta": config.rope_theta} | scaling_to_hf(config.rope_scaling)}


_LAYER = "trunk/layers/{i}"
_NAMES = {
    "trunk/embed_in/embedding": HfName("embed_tokens.weight"),
    "trunk/final_layer_norm/scale": HfName("norm.weight"),
    "lm_head/kernel": HfName("lm_head.weight", transpose=True),
} | SCORE_NAMES
for _name in ("input_layernorm", "post_attention_layernorm", "self_attn/q_norm", "self_attn/k_norm"):
    _NAMES[f"{_LAYER}/{_name}/scale"] = HfName(f"layers.{{i}}.{_name.replace('/', '.')}.weight")
for _name in (*(f"self_attn/{x}_proj" for x in "qkvo"), *(f"mlp/{x}_proj" for x in ("gate", "up", "down"))):
    _NAMES |= linear_names(f"{_LAYER}/{_name}", f"layers.{{i}}.{_name.replace('/', '.')}")


def _family(kind: Kind) -> Family:
    wide = ("self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj", "mlp/gate_proj", "mlp/up_proj")
    return Family(
        config=LlamaConfig,
        trunk=LlamaTrunk,
        from_hf=_from_hf,
        to_hf=_to_hf,
        trunk_prefix="model.",
        architectures={
            "lm": f"{kind.name}ForCausalLM",
            "score": f"{kind.name}ForSequenceClassification",
            None: f"{kind.name}Model",
        },
        names=_NAMES,
        ignored=re.compile(r"rotary_emb\.inv_freq$"),
        partition={f"{name}/kernel": WIDENS for name in wide}
        | {f"{name}/bias": (TENSOR,) for name in wide}
        | {"self_attn/o_proj/kernel": NARROWS, "mlp/down_proj/kernel": NARROWS},
        replaced_keys=("rope_scaling", "rope_theta", "max_window_layers", "no_rope_layer_interval"),
    )


LLAMA = {model_type: _family(kind) for model_type, kind in KINDS.items()}
"""`model_type` -> family."""
