"""GPT-2, computed exactly as transformers computes it. Source: Radford et al. 2019."""

import re
from dataclasses import dataclass
from typing import Any

from flax import nnx

from jaxppo.errors import ModelError
from jaxppo.nn.attention import AttentionContext, LayerCache, attend_cached
from jaxppo.nn.checks import check_bool, check_choice
from jaxppo.nn.config import (
    SCORE_NAMES,
    Family,
    HfName,
    ModelConfig,
    linear_names,
    norm_names,
)
from jaxppo.nn.layers import (
    ACTIVATIONS,
    Linear,
    embed,
    embedding,
    layer_norm,
    pre_norm_layer,
    project_qkv,
    saved_residual,
)
from jaxppo.parallel import partition
from jaxppo.parallel.partition import COLUMN_PARALLEL, FSDP, ROW_PARALLEL, TENSOR
from jaxppo.types import Array


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
        # The two settings are independent: either divides by itself.
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


class GPT2Attention(nnx.Module):
    """Multi-head self-attention with one projection to all queries, then all keys, then all values."""

    def __init__(self, config: GPT2Config, layer: int, rngs: nnx.Rngs):
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.form = config.computation.attention
        self.scale = config.attention_scale(layer)
        # The order in which layers are drawn is part of what a seed means.
        self.c_attn = Linear(config, size, 3 * size, rngs=rngs)
        self.c_proj = Linear(
            config, size, size, init_scale=config.residual_init_scale, axes=ROW_PARALLEL, rngs=rngs
        )

    def __call__(self, x_btd: Array, context: AttentionContext) -> tuple[Array, LayerCache | None]:
        """Mix the tokens: [B, T, D] -> [B, T or R, D] and the cache with their keys and values."""
        qkv_shape = (3, -1, x_btd.shape[2] // self.num_heads)
        qkv = project_qkv(self.c_attn, x_btd, context.read, qkv_shape, axis=0)
        # A part of the fused columns would be no heads, so that
        # every device computes all of them and takes its own.
        query, key, value = [partition.local_heads(x, self.num_heads, self.num_heads) for x in qkv]
        attended, cache = attend_cached(query, key, value, context, self.form, self.scale)
        return self.c_proj(attended), cache


class GPT2Mlp(nnx.Module):
    """Two linear layers around the activation."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        size = config.hidden_size
        inner = config.intermediate_size
        self.activation = ACTIVATIONS[config.hidden_act]
        self.c_fc = Linear(config, size, inner, rngs=rngs)
        self.c_proj = Linear(
            config, inner, size, init_scale=config.residual_init_scale, axes=ROW_PARALLEL, rngs=rngs
        )

    def __call__(self, x_btd: Array) -> Array:
        """Transform each token alone: [B, T, D] -> [B, T, D]."""
        return self.c_proj(self.activation(saved_residual(self.c_fc(x_btd))))


class GPT2Layer(nnx.Module):
    """Attention, then MLP, around one residual stream."""

    def __init__(self, config: GPT2Config, layer: int, rngs: nnx.Rngs):
        self.ln_1 = layer_norm(config, rngs)
        self.ln_2 = layer_norm(config, rngs)
        self.attn = GPT2Attention(config, layer, rngs)
        self.mlp = GPT2Mlp(config, rngs)

    def __call__(self, x_btd: Array, context: AttentionContext) -> tuple[Array, LayerCache | None]:
        """Transform the residual stream: [B, T, D] -> [B, T or R, D] and the cache of this layer."""
        return pre_norm_layer(
            x_btd,
            context,
            attention_norm=self.ln_1,
            attention=self.attn,
            mlp_norm=self.ln_2,
            mlp=self.mlp,
        )


class GPT2Trunk(nnx.Module):
    """GPT-2 without a head. Source: transformers modeling_gpt2.py, GPT2Model."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        self.embed_in = embedding(config, config.vocab_size, rngs)
        self.embed_positions = embedding(config, config.max_position_embeddings, rngs)
        self.layers = nnx.Dict(
            {str(i): GPT2Layer(config, i, rngs) for i in range(config.num_hidden_layers)}
        )
        self.final_layer_norm = layer_norm(config, rngs)

    def embed(self, input_ids: Array, positions: Array) -> tuple[Array, None]:
        """Map token ids to the input of the first layer, see `Family.trunk`.

        Positions past the table take its last row: right padding may reach there, real tokens must not
        (`ModelConfig.max_length`).
        """
        return embed(self.embed_in, input_ids) + embed(
            self.embed_positions, positions, mode="clip"
        ), None


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
# Source: transformers GPT2Config.attribute_map; a file's
# `hidden_act` or `layer_norm_eps` mean nothing to it.
_SHARED_NAMES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
# What GPT2Config means where a file does not name them; `n_inner` null means 4 n_embd.
_DEFAULTS = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}
_END_OF_TEXT = 50256


def _from_hf(raw: dict[str, Any]) -> dict[str, Any]:
    """Also reads some names that other families have (`hidden_size` for `n_embd`): those that transformers reads."""
    if raw.get("add_cross_attention"):
        raise ModelError("add_cross_attention: expected false (no encoder to attend to), got true")
    shared = {_KEYS[name]: raw[name] for name in _SHARED_NAMES if name in raw}
    settings = _DEFAULTS | raw | shared
    # What neither the file nor `_DEFAULTS` has is left to the defaults of `GPT2Config`.
    fields = {name: settings[key] for name, key in _KEYS.items() if key in settings}
    hidden_size = fields["hidden_size"]
    intermediate_size = raw.get("n_inner")
    if intermediate_size is None and isinstance(hidden_size, int):
        intermediate_size = 4 * hidden_size
    special = {name: raw.get(name, _END_OF_TEXT) for name in ("bos_token_id", "eos_token_id")}
    return fields | {"intermediate_size": intermediate_size} | special


def _to_hf(config: GPT2Config) -> dict[str, Any]:
    fields = {key: getattr(config, name) for name, key in _KEYS.items()}
    # null is what published files say for the default size.
    is_default_size = config.intermediate_size == 4 * config.hidden_size
    return fields | {
        "model_type": "gpt2",
        "n_inner": None if is_default_size else config.intermediate_size,
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
    architectures={
        "lm": "GPT2LMHeadModel",
        "score": "GPT2ForSequenceClassification",
        None: "GPT2Model",
    },
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
        # Its columns are all queries, then all keys: no part of them is a head
        "attn/c_attn/kernel": (FSDP, None),
        "attn/c_proj/kernel": ROW_PARALLEL,
        "mlp/c_fc/kernel": COLUMN_PARALLEL,
        "mlp/c_fc/bias": (TENSOR,),
        "mlp/c_proj/kernel": ROW_PARALLEL,
    },
    replaced_keys=(*_SHARED_NAMES, "n_ctx"),
)
