"""Llama and those built like it, computed exactly as transformers computes them.

Source: arXiv:2302.13971 (Llama), arXiv:2305.13245 (grouped queries), arXiv:2002.05202 (SwiGLU); transformers
modeling_llama.py, modeling_qwen2.py, modeling_qwen3.py, modeling_mistral.py, modeling_smollm3.py.
"""

import re

import jax
from flax import nnx

from jaxppo.nn.attention import Cache, LayerCache, Run, attend_cached
from jaxppo.nn.blocks import columns
from jaxppo.nn.config import SCORE_NAMES, Family, HfName, linear_names
from jaxppo.nn.layers import ACTIVATIONS, Linear, RMSNorm, embedding, kept, look_up, split_heads
from jaxppo.nn.llama_kinds import KINDS, Kind, LlamaConfig, from_hf, to_hf
from jaxppo.nn.rotary import Rotary, rotate
from jaxppo.parallel import partition
from jaxppo.parallel.partition import NARROWS, TENSOR, WIDENS


class LlamaAttention(nnx.Module):
    """Self-attention whose heads of queries share keys and values in groups."""

    def __init__(self, config: LlamaConfig, layer: int, rngs: nnx.Rngs):
        assert config.unrotated_layers is not None
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.rotates, self.form = layer not in config.unrotated_layers, config.attention
        self.window = config.sliding_window if layer in config.window_layers else None
        size, inner, shared = config.hidden_size, self.heads * config.head_dim, self.kv_heads * config.head_dim
        qkv_bias = config.attention_bias or config.kind.qkv_bias
        self.q_proj = Linear(config, size, inner, use_bias=qkv_bias, rngs=rngs)
        self.k_proj = Linear(config, size, shared, use_bias=qkv_bias, rngs=rngs)
        self.v_proj = Linear(config, size, shared, use_bias=qkv_bias, rngs=rngs)
        self.o_proj = Linear(config, inner, size, use_bias=config.attention_bias, axes=NARROWS, rngs=rngs)
        self.q_norm, self.k_norm = (
            RMSNorm(config.head_dim, config.layer_norm_eps) if config.kind.qk_norm else None for _ in range(2)
        )

    def __call__(
        self,
        x_btd: jax.Array,
        rotary: Rotary,
        mask: jax.Array | None,
        cache: LayerCache | None,
        cache_index: jax.Array | None,
        read: jax.Array | None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """Mix the tokens: [B, T, D] -> [B, T or R, D] and the cache with their keys and values."""
        query = split_heads(kept(self.q_proj(columns(x_btd, read, 1))), self.head_dim)
        key, value = (self._shared_heads(kept(linear(x_btd))) for linear in (self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            query = self.q_norm(query, of_part=query.shape[1] < self.heads)
            key = self.k_norm(key, of_part=key.shape[1] < self.kv_heads)
        if self.rotates:
            query, key = rotate(query, columns(rotary, read, 2)), rotate(key, rotary)
        key, value = (partition.own_heads(x, self.heads, self.kv_heads) for x in (key, value))
        attended, cache = attend_cached(
            query, key, value, mask, cache, cache_index, read, self.form, window=self.window
        )
        return self.o_proj(attended), cache

    def _shared_heads(self, x_bte: jax.Array) -> jax.Array:
        """[B, T, G K] -> [B, G, T, K]; all heads, where this device's columns are a part of one."""
        if x_bte.shape[-1] % self.head_dim:
            x_bte = partition.all_parts(x_bte, 2, self.kv_heads * self.head_dim)
        return split_heads(x_bte, self.head_dim)


class LlamaMlp(nnx.Module):
    """A layer that widens, gated by another, and one that narrows."""

    def __init__(self, config: LlamaConfig, rngs: nnx.Rngs):
        self.activation, bias = ACTIVATIONS[config.hidden_act], config.mlp_bias
        self.gate_proj = Linear(config, config.hidden_size, config.intermediate_size, use_bias=bias, rngs=rngs)
        self.up_proj = Linear(config, config.hidden_size, config.intermediate_size, use_bias=bias, rngs=rngs)
        sizes = config.intermediate_size, config.hidden_size
        self.down_proj = Linear(config, *sizes, use_bias=bias, axes=NARROWS, rngs=rngs)

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """Transform each token alone: [B, T, D] -> [B, T, D]."""
        return self.down_proj(self.activation(kept(self.gate_proj(x_btd))) * kept(self.up_proj(x_btd)))


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
        mask: jax.Array | None,
        cache: LayerCache | None,
        cache_index: jax.Array | None,
        read: jax.Array | None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """Transform the residual stream: [B, T, D] -> [B, T or R, D] and the cache of this layer."""
        attended, cache = self.self_attn(self.input_layernorm(x_btd), rotary, mask, cache, cache_index, read)
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
        mask: jax.Array | None,
        run: Run,
    ) -> tuple[jax.Array, Cache | None]:
        """Map token ids to hidden states after the final norm: [B, T] -> [B, T or R, D] and the cache.

        Arguments as of `NeoXTrunk`.
        """
        config, hidden = self.config, look_up(self.embed_in, input_ids)
        rotary = config.rope.angles(positions, config.head_dim, hidden.dtype)
        hidden, cache = run(hidden, (rotary, mask))
        return self.final_layer_norm(hidden), cache


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
        from_hf=from_hf,
        to_hf=to_hf,
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
        kept_inner=2,
        kept_widths=(9, 5),  # with shared keys and values a little less
        replaced_keys=("rope_scaling", "rope_theta", "max_window_layers", "no_rope_layer_interval"),
    )


LLAMA = {model_type: _family(kind) for model_type, kind in KINDS.items()}
"""`model_type` -> family."""
