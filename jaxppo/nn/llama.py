"""Llama and those built like it, computed exactly as transformers computes them.

Source: arXiv:2302.13971 (Llama), arXiv:2305.13245 (grouped queries), arXiv:2002.05202 (SwiGLU); transformers
modeling_llama.py, modeling_qwen2.py, modeling_qwen3.py, modeling_mistral.py, modeling_smollm3.py, modeling_gemma3.py.
"""

import re

import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxppo.nn.attention import PROJECTED, SAVED, AttentionContext, LayerCache, attend_cached
from jaxppo.nn.blocks import select_tokens
from jaxppo.nn.config import SCORE_NAMES, Family, HfName, linear_names
from jaxppo.nn.layers import (
    ACTIVATIONS,
    Linear,
    RMSNorm,
    embed,
    embedding,
    pre_norm_layer,
    saved_residual,
    split_heads,
)
from jaxppo.nn.llama_kinds import KINDS, Kind, LlamaConfig, from_hf, to_hf
from jaxppo.nn.rotary import Rotary, rotate_queries_and_keys
from jaxppo.parallel import partition
from jaxppo.parallel.partition import COLUMN_PARALLEL, ROW_PARALLEL, TENSOR
from jaxppo.types import Array


def _norm(config: LlamaConfig, size: int) -> RMSNorm:
    return RMSNorm(size, config.layer_norm_eps, adds_one=config.kind.norms_add_one)


class LlamaAttention(nnx.Module):
    """Self-attention whose heads of queries share keys and values in groups."""

    def __init__(self, config: LlamaConfig, layer: int, rngs: nnx.Rngs):
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.rotates = layer not in config.unrotated_layers
        self.form = config.computation.attention
        self.window = config.sliding_window if layer in config.window_layers else None
        size = config.hidden_size
        query_size = self.num_heads * config.head_dim
        kv_size = self.num_kv_heads * config.head_dim
        # Qwen2 has biases of queries, keys and values and
        # none of the output, without a setting for it.
        qkv_bias = config.attention_bias or config.kind.qkv_bias
        self.q_proj = Linear(config, size, query_size, use_bias=qkv_bias, rngs=rngs)
        self.k_proj = Linear(config, size, kv_size, use_bias=qkv_bias, rngs=rngs)
        self.v_proj = Linear(config, size, kv_size, use_bias=qkv_bias, rngs=rngs)
        self.o_proj = Linear(
            config, query_size, size, use_bias=config.attention_bias, axes=ROW_PARALLEL, rngs=rngs
        )
        # None: 1 / sqrt(K).
        self.scale = None
        if config.query_pre_attn_scalar is not None:
            self.scale = config.query_pre_attn_scalar**-0.5
        qk_norm = config.kind.qk_norm
        self.q_norm = _norm(config, config.head_dim) if qk_norm else None
        self.k_norm = _norm(config, config.head_dim) if qk_norm else None

    def __call__(self, x_btd: Array, context: AttentionContext) -> tuple[Array, LayerCache | None]:
        """Mix the tokens: [B, T, D] -> [B, T or R, D] and the cache with their keys and values."""
        assert context.rotary is not None
        query = self.q_proj(select_tokens(x_btd, context.read, axis=1))
        key = self.k_proj(x_btd)
        # The gradient of a norm needs what goes into it, not only what attention takes.
        query, key = checkpoint_name((query, key), PROJECTED if self.q_norm is None else SAVED)
        value = checkpoint_name(self.v_proj(x_btd), PROJECTED)
        query = split_heads(query, self.head_dim)
        key = self._split_kv_heads(key)
        value = self._split_kv_heads(value)
        # Each head by itself, and before the rotation, as in transformers' Qwen3Attention.
        if self.q_norm is not None and self.k_norm is not None:
            query = self.q_norm(query, is_part=query.shape[1] < self.num_heads)
            key = self.k_norm(key, is_part=key.shape[1] < self.num_kv_heads)
        # SmolLM3 has layers without positions (NoPE).
        if self.rotates:
            rotary = context.rotary
            if self.window is not None and rotary.windowed is not None:
                rotary = rotary.windowed
            query, key = rotate_queries_and_keys(query, key, rotary, context.read)
        # Devices may be more than heads of keys: then several hold the same one.
        key = partition.local_heads(key, self.num_heads, self.num_kv_heads)
        value = partition.local_heads(value, self.num_heads, self.num_kv_heads)
        attended, cache = attend_cached(
            query, key, value, context, self.form, self.scale, self.window
        )
        return self.o_proj(attended), cache

    def _split_kv_heads(self, x_bte: Array) -> Array:
        """[B, T, G K] -> [B, G, T, K]; all heads, where this device's columns are a part of one."""
        # Columns are cut evenly over the devices, without regard to heads.
        if x_bte.shape[-1] % self.head_dim:
            x_bte = partition.gather_parts(x_bte, 2, self.num_kv_heads * self.head_dim)
        return split_heads(x_bte, self.head_dim)


class LlamaMlp(nnx.Module):
    """A layer that widens, gated by another, and one that narrows."""

    def __init__(self, config: LlamaConfig, rngs: nnx.Rngs):
        size = config.hidden_size
        inner = config.intermediate_size
        bias = config.mlp_bias
        self.activation = ACTIVATIONS[config.hidden_act]
        self.gate_proj = Linear(config, size, inner, use_bias=bias, rngs=rngs)
        self.up_proj = Linear(config, size, inner, use_bias=bias, rngs=rngs)
        self.down_proj = Linear(config, inner, size, use_bias=bias, axes=ROW_PARALLEL, rngs=rngs)

    def __call__(self, x_btd: Array) -> Array:
        """Transform each token alone: [B, T, D] -> [B, T, D]."""
        gate = self.activation(saved_residual(self.gate_proj(x_btd)))
        return self.down_proj(gate * saved_residual(self.up_proj(x_btd)))


class LlamaLayer(nnx.Module):
    """Attention, then MLP, around one residual stream."""

    def __init__(self, config: LlamaConfig, layer: int, rngs: nnx.Rngs):
        self.input_layernorm = _norm(config, config.hidden_size)
        self.post_attention_layernorm = _norm(config, config.hidden_size)
        self.self_attn = LlamaAttention(config, layer, rngs)
        self.mlp = LlamaMlp(config, rngs)

    def __call__(self, x_btd: Array, context: AttentionContext) -> tuple[Array, LayerCache | None]:
        """Transform the residual stream: [B, T, D] -> [B, T or R, D] and the cache of this layer."""
        return pre_norm_layer(
            x_btd,
            context,
            attention_norm=self.input_layernorm,
            attention=self.self_attn,
            mlp_norm=self.post_attention_layernorm,
            mlp=self.mlp,
        )


class GemmaLayer(LlamaLayer):
    """The same with two more norms: of what attention and MLP give, before it is added to the residual stream."""

    def __init__(self, config: LlamaConfig, layer: int, rngs: nnx.Rngs):
        super().__init__(config, layer, rngs)
        # `post_attention_layernorm` says what it is here; a Llama's stands before the MLP.
        self.pre_feedforward_layernorm = _norm(config, config.hidden_size)
        self.post_feedforward_layernorm = _norm(config, config.hidden_size)

    def __call__(self, x_btd: Array, context: AttentionContext) -> tuple[Array, LayerCache | None]:
        """Transform the residual stream: [B, T, D] -> [B, T or R, D] and the cache of this layer."""
        return pre_norm_layer(
            x_btd,
            context,
            attention_norm=self.input_layernorm,
            attention=self._attention,
            mlp_norm=self.pre_feedforward_layernorm,
            mlp=self._mlp,
        )

    # The gradient of a norm needs what goes into it: saved, so that no product is computed again.
    def _attention(
        self, x_btd: Array, context: AttentionContext
    ) -> tuple[Array, LayerCache | None]:
        attended, cache = self.self_attn(x_btd, context)
        return self.post_attention_layernorm(saved_residual(attended)), cache

    def _mlp(self, x_btd: Array) -> Array:
        return self.post_feedforward_layernorm(saved_residual(self.mlp(x_btd)))


class LlamaTrunk(nnx.Module):
    """A model of this family without a head."""

    def __init__(self, config: LlamaConfig, rngs: nnx.Rngs):
        self.config = config
        self.embed_in = embedding(config, config.vocab_size, rngs)
        layer = GemmaLayer if config.kind.post_norms else LlamaLayer
        self.layers = nnx.Dict(
            {str(i): layer(config, i, rngs) for i in range(config.num_hidden_layers)}
        )
        self.final_layer_norm = _norm(config, config.hidden_size)

    def embed(self, input_ids: Array, positions: Array) -> tuple[Array, Rotary]:
        """Map token ids to the input of the first layer and rotary angles, see `Family.trunk`."""
        # Angles once for all layers, in the dtype that the embeddings compute in.
        config = self.config
        hidden = embed(self.embed_in, input_ids)
        if config.kind.scales_embeddings:
            # Rounded to the dtype first, as in transformers' Gemma3TextScaledWordEmbedding.
            hidden *= jnp.asarray(config.hidden_size**0.5, hidden.dtype)
        rotary = config.rope.angles(positions, config.head_dim, hidden.dtype)
        if config.window_rope is not None:
            windowed = config.window_rope.angles(positions, config.head_dim, hidden.dtype)
            rotary = rotary._replace(windowed=windowed)
        return hidden, rotary


# One list for the names and for how devices split the
# layers: a layer that is forgotten has no name either.
_COLUMN_PARALLEL = (
    "self_attn/q_proj",
    "self_attn/k_proj",
    "self_attn/v_proj",
    "mlp/gate_proj",
    "mlp/up_proj",
)
_ROW_PARALLEL = ("self_attn/o_proj", "mlp/down_proj")
_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "self_attn/q_norm",
    "self_attn/k_norm",
)

_NAMES = {
    "trunk/embed_in/embedding": HfName("embed_tokens.weight"),
    "trunk/final_layer_norm/scale": HfName("norm.weight"),
    "lm_head/kernel": HfName("lm_head.weight", transpose=True),
} | SCORE_NAMES
for _name in _NORMS:
    _NAMES[f"trunk/layers/{{i}}/{_name}/scale"] = HfName(
        f"layers.{{i}}.{_name.replace('/', '.')}.weight"
    )
for _name in (*_COLUMN_PARALLEL, *_ROW_PARALLEL):
    _NAMES |= linear_names(f"trunk/layers/{{i}}/{_name}", f"layers.{{i}}.{_name.replace('/', '.')}")

_PARTITION: dict[str, tuple[str | None, ...]] = {}
for _name in _COLUMN_PARALLEL:
    _PARTITION[f"{_name}/kernel"] = COLUMN_PARALLEL
    _PARTITION[f"{_name}/bias"] = (TENSOR,)
for _name in _ROW_PARALLEL:
    _PARTITION[f"{_name}/kernel"] = ROW_PARALLEL


def _family(kind: Kind) -> Family:
    return Family(
        config=LlamaConfig,
        trunk=LlamaTrunk,
        from_hf=from_hf,
        to_hf=to_hf,
        trunk_prefix="model.",
        architectures={
            "lm": kind.causal_lm or f"{kind.name}ForCausalLM",
            "score": f"{kind.name}ForSequenceClassification",
            None: f"{kind.name}Model",
        },
        names=_NAMES,
        ignored=re.compile(r"rotary_emb\.inv_freq$"),
        partition=_PARTITION,
        saved_intermediates=2,  # the gate, and what it is multiplied by
        # With shared keys and values a little less.
        saved_widths=(13, 5) if kind.post_norms else (9, 5),
        saved_outputs=2 if kind.post_norms else 0,
        replaced_keys=(
            "rope_scaling",
            "rope_theta",
            "rope_local_base_freq",
            "max_window_layers",
            "no_rope_layer_interval",
            "sliding_window_pattern",
        ),
    )


LLAMA = {model_type: _family(kind) for model_type, kind in KINDS.items()}
"""`model_type` -> family."""
