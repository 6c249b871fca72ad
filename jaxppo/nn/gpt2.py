"""GPT-2, computed exactly as transformers computes it. Source: Radford et al. 2019."""

import re
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from jaxppo.errors import ModelError
from jaxppo.nn.attention import Cache, LayerCache, Run, attend_cached
from jaxppo.nn.blocks import columns
from jaxppo.nn.config import (
    SCORE_NAMES,
    Family,
    HfName,
    ModelConfig,
    check_bool,
    check_choice,
    linear_names,
    norm_names,
)
from jaxppo.nn.layers import ACTIVATIONS, Linear, embedding, kept, layer_norm, look_up, project
from jaxppo.parallel import partition
from jaxppo.parallel.partition import FSDP, NARROWS, TENSOR, WIDENS


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Config(ModelConfig):
    """Meanings and defaults of transformers' `GPT2Config`, under the names that all families share.

    Attributes:
        scale_attn_weights: divide attention scores by the root of the head size.
        scale_attn_by_inverse_layer_idx: divide those of layer i (from 0) by i + 1.
    """

    model_type: str = "gpt2"
    max_position_embeddings: int = 1024
    hidden_act: str = "gelu_new"
    tie_word_embeddings: bool = True
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False

    def _check_family(self) -> None:
        check_choice("model_type", self.model_type, ("gpt2",))
        check_choice("activation_function", self.hidden_act, ACTIVATIONS)
        for name in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx"):
            check_bool(name, getattr(self, name))

    @property
    def max_length(self) -> int:
        """Rows of the table of positions."""
        return self.max_position_embeddings

    @property
    def residual_init_scale(self) -> float:
        """Factor of the first draw of the layers that write to the residual stream, of which each block has two.

        Source: Radford et al. 2019; transformers modeling_gpt2.py, GPT2PreTrainedModel._init_weights.
        """
        return (2 * self.num_hidden_layers) ** -0.5

    def attention_scale(self, layer: int) -> float:
        """Factor of the attention scores of a layer."""
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


class GPT2Attention(nnx.Module):
    """Multi-head self-attention with one projection to all queries, then all keys, then all values."""

    def __init__(self, config: GPT2Config, layer: int, rngs: nnx.Rngs):
        self.num_heads, self.form = config.num_attention_heads, config.attention
        self.scale = config.attention_scale(layer)
        self.c_attn = Linear(config, config.hidden_size, 3 * config.hidden_size, rngs=rngs)
        sizes, scale = (config.hidden_size, config.hidden_size), config.residual_init_scale
        self.c_proj = Linear(config, *sizes, init_scale=scale, axes=NARROWS, rngs=rngs)

    def __call__(
        self,
        x_btd: jax.Array,
        mask: jax.Array | None,
        cache: LayerCache | None,
        cache_index: jax.Array | None,
        read: jax.Array | None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """Mix the tokens: [B, T, D] -> [B, T or R, D] and the cache with their keys and values."""
        shape = (3, -1, x_btd.shape[2] // self.num_heads)
        of_all = project(self.c_attn, x_btd, read, shape, axis=0)
        query, key, value = (partition.own_heads(x, self.num_heads, self.num_heads) for x in of_all)
        attended, cache = attend_cached(query, key, value, mask, cache, cache_index, read, self.form, self.scale)
        return self.c_proj(attended), cache


class GPT2Mlp(nnx.Module):
    """Two linear layers around the activation."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        self.activation = ACTIVATIONS[config.hidden_act]
        self.c_fc = Linear(config, config.hidden_size, config.intermediate_size, rngs=rngs)
        sizes, scale = (config.intermediate_size, config.hidden_size), config.residual_init_scale
        self.c_proj = Linear(config, *sizes, init_scale=scale, axes=NARROWS, rngs=rngs)

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """Transform each token alone: [B, T, D] -> [B, T, D]."""
        return self.c_proj(self.activation(kept(self.c_fc(x_btd))))


class GPT2Layer(nnx.Module):
    """Attention, then MLP, around one residual stream."""

    def __init__(self, config: GPT2Config, layer: int, rngs: nnx.Rngs):
        self.ln_1, self.ln_2 = layer_norm(config, rngs), layer_norm(config, rngs)
        self.attn = GPT2Attention(config, layer, rngs)
        self.mlp = GPT2Mlp(config, rngs)

    def __call__(
        self,
        x_btd: jax.Array,
        mask: jax.Array | None,
        cache: LayerCache | None,
        cache_index: jax.Array | None,
        read: jax.Array | None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """Transform the residual stream: [B, T, D] -> [B, T or R, D] and the cache of this layer."""
        attended, cache = self.attn(self.ln_1(x_btd), mask, cache, cache_index, read)
        x_btd = attended + columns(x_btd, read, 1)
        return self.mlp(self.ln_2(x_btd)) + x_btd, cache


class GPT2Trunk(nnx.Module):
    """GPT-2 without a head. Source: transformers modeling_gpt2.py, GPT2Model."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        self.config = config
        self.embed_in = embedding(config, config.vocab_size, rngs)
        self.embed_positions = embedding(config, config.max_position_embeddings, rngs)
        self.layers = nnx.Dict({str(i): GPT2Layer(config, i, rngs) for i in range(config.num_hidden_layers)})
        self.final_layer_norm = layer_norm(config, rngs)

    def __call__(
        self,
        input_ids: jax.Array,
        positions: jax.Array,
        mask: jax.Array | None,
        run: Run,
    ) -> tuple[jax.Array, Cache | None]:
        """Map token ids to hidden states after the final layer norm: [B, T] -> [B, T or R, D] and the cache.

        Arguments as of `NeoXTrunk`. Positions past the table take its last row: right padding may reach there, real
        tokens must not (`ModelConfig.max_length`).
        """
        hidden = look_up(self.embed_in, input_ids) + look_up(self.embed_positions, positions, mode="clip")
        hidden, cache = run(hidden, (mask,))
        return self.final_layer_norm(hidden), cache


# Field of our configuration -> key in transformers.
_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
    "tie_word_embeddings": "tie_word_embeddings",
    "initializer_range": "initializer_range",
    "scale_attn_weights": "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx": "scale_attn_by_inverse_layer_idx",
    "pad_token_id": "pad_token_id",
}
# Source: transformers GPT2Config.attribute_map; a file's `hidden_act` or `layer_norm_eps` mean nothing to it.
_SHARED_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
# What GPT2Config means where a file does not name them; `n_inner` null means 4 n_embd.
_DEFAULTS = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}
_END_OF_TEXT = 50256


def _from_hf(raw: dict[str, Any]) -> dict[str, Any]:
    """Also reads some names that other families have (`hidden_size` for `n_embd`): those that transformers reads."""
    if raw.get("add_cross_attention"):
        raise ModelError("add_cross_attention: expected false (no encoder to attend to), got true")
    given = _DEFAULTS | raw | {_KEYS[name]: raw[name] for name in _SHARED_NAMES if name in raw}
    fields = {name: given[key] for name, key in _KEYS.items() if key in given}
    inner, size = raw.get("n_inner"), fields["hidden_size"]
    fields["intermediate_size"] = 4 * size if inner is None and isinstance(size, int) else inner
    special = {name: raw.get(name, _END_OF_TEXT) for name in ("bos_token_id", "eos_token_id")}
    return fields | special


def _to_hf(config: GPT2Config) -> dict[str, Any]:
    inner = None if config.intermediate_size == 4 * config.hidden_size else config.intermediate_size
    return {key: getattr(config, name) for name, key in _KEYS.items()} | {
        "model_type": "gpt2",
        "n_inner": inner,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
    }


# GPT-2's Conv1D stores [inputs, outputs], as we do.
GPT2 = Family(
    config=GPT2Config,
    trunk=GPT2Trunk,
    from_hf=_from_hf,
    to_hf=_to_hf,
    trunk_prefix="transformer.",
    architectures={"lm": "GPT2LMHeadModel", "score": "GPT2ForSequenceClassification", None: "GPT2Model"},
    names={
        "trunk/embed_in/embedding": HfName("wte.weight"),
        "trunk/embed_positions/embedding": HfName("wpe.weight"),
        "lm_head/kernel": HfName("lm_head.weight", transpose=True),
    }
    | norm_names("trunk/final_layer_norm", "ln_f")
    | norm_names("trunk/layers/{i}/ln_1", "h.{i}.ln_1")
    | norm_names("trunk/layers/{i}/ln_2", "h.{i}.ln_2")
    | linear_names("trunk/layers/{i}/attn/c_attn", "h.{i}.attn.c_attn", transpose=False)
    | linear_names("trunk/layers/{i}/attn/c_proj", "h.{i}.attn.c_proj", transpose=False)
    | linear_names("trunk/layers/{i}/mlp/c_fc", "h.{i}.mlp.c_fc", transpose=False)
    | linear_names("trunk/layers/{i}/mlp/c_proj", "h.{i}.mlp.c_proj", transpose=False)
    | SCORE_NAMES,
    ignored=re.compile(r"attn\.(bias|masked_bias)$"),
    partition={
        "embed_positions/embedding": (None, FSDP),
        "attn/c_attn/kernel": (FSDP, None),  # its columns are all queries, then all keys: no part of them is a head
        "attn/c_proj/kernel": NARROWS,
        "mlp/c_fc/kernel": WIDENS,
        "mlp/c_fc/bias": (TENSOR,),
        "mlp/c_proj/kernel": NARROWS,
    },
    replaced_keys=(*_SHARED_NAMES, "n_ctx"),
)
