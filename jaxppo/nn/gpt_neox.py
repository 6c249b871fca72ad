"""GPT-NeoX (Pythia), computed exactly as transformers computes it. Source: arXiv:2204.06745, arXiv:2104.09864."""

import re
from dataclasses import dataclass
from typing import Any

from flax import nnx

from jaxppo.errors import ModelError
from jaxppo.nn.attention import AttentionContext, LayerCache, attend_cached
from jaxppo.nn.checks import check_at_least, check_bool, check_choice, check_present
from jaxppo.nn.config import (
    SCORE_NAMES,
    SIZES,
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
from jaxppo.nn.rotary import PLAIN, Rope, Rotary, rope_from_hf, rotate_queries_and_keys
from jaxppo.parallel.partition import COLUMN_PARALLEL, ROW_PARALLEL, TENSOR
from jaxppo.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTNeoXConfig(ModelConfig):
    """Names, meanings and defaults of transformers' `GPTNeoXConfig`, with the rotary settings flat.

    Attributes:
        rotary_pct: share of each head that rotates.
        rope: rotary frequencies.
    """

    model_type: str = "gpt_neox"
    max_position_embeddings: int = 2048
    hidden_act: str = "gelu"
    tie_word_embeddings: bool = False
    rotary_pct: float = 0.25
    rope: Rope = PLAIN
    use_parallel_residual: bool = True
    attention_bias: bool = True

    def _check_family(self) -> None:
        check_choice("model_type", self.model_type, ("gpt_neox",))
        check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        for name in ("use_parallel_residual", "attention_bias"):
            check_bool(name, getattr(self, name))
        check_at_least(0.0, "rotary_pct", self.rotary_pct)
        if self.rotary_dim > self.head_dim:
            raise ModelError(
                f"rotary_pct: expected a share in [0, 1] of the head size, so that pairs of its {self.head_dim} "
                f"dimensions can rotate, got {self.rotary_pct}"
            )

    @property
    def rotated(self) -> int:
        """Dimensions n of each head that set the frequencies: floor(K rotary_pct)."""
        # Rounded down, as in transformers; the frequencies
        # are those of this number, though pairs rotate.
        return int(self.head_dim * self.rotary_pct)

    @property
    def rotary_dim(self) -> int:
        """Rotated dimensions R of each head: pairs, rounded up."""
        # -(-a // b) is a / b rounded up.
        return 2 * -(-self.rotated // 2)


class NeoXAttention(nnx.Module):
    """Multi-head self-attention with one fused projection, interleaved per head as [H, (query, key, value), K]."""

    def __init__(self, config: GPTNeoXConfig, rngs: nnx.Rngs):
        size = config.hidden_size
        bias = config.attention_bias
        self.num_heads = config.num_attention_heads
        self.form = config.computation.attention
        self.query_key_value = Linear(config, size, 3 * size, use_bias=bias, rngs=rngs)
        self.dense = Linear(config, size, size, use_bias=bias, axes=ROW_PARALLEL, rngs=rngs)

    def __call__(self, x_btd: Array, context: AttentionContext) -> tuple[Array, LayerCache | None]:
        """Mix the tokens: [B, T, D] -> [B, T or R, D] and the cache with their keys and values."""
        assert context.rotary is not None
        # Head by head, so that a part of the columns is whole heads: devices can split them.
        qkv_shape = (-1, 3, x_btd.shape[2] // self.num_heads)
        query, key, value = project_qkv(
            self.query_key_value, x_btd, context.read, qkv_shape, axis=1
        )
        query, key = rotate_queries_and_keys(query, key, context.rotary, context.read)
        attended, cache = attend_cached(query, key, value, context, self.form)
        return self.dense(attended), cache


class NeoXMlp(nnx.Module):
    """Two linear layers around the activation."""

    def __init__(self, config: GPTNeoXConfig, rngs: nnx.Rngs):
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense_h_to_4h = Linear(config, config.hidden_size, config.intermediate_size, rngs=rngs)
        self.dense_4h_to_h = Linear(
            config, config.intermediate_size, config.hidden_size, axes=ROW_PARALLEL, rngs=rngs
        )

    def __call__(self, x_btd: Array) -> Array:
        """Transform each token alone: [B, T, D] -> [B, T, D]."""
        return self.dense_4h_to_h(self.activation(saved_residual(self.dense_h_to_4h(x_btd))))


class NeoXLayer(nnx.Module):
    """Attention and MLP around one residual stream, side by side (`use_parallel_residual`) or one after the other."""

    def __init__(self, config: GPTNeoXConfig, rngs: nnx.Rngs):
        self.use_parallel_residual = config.use_parallel_residual
        self.input_layernorm = layer_norm(config, rngs)
        self.post_attention_layernorm = layer_norm(config, rngs)
        self.attention = NeoXAttention(config, rngs)
        self.mlp = NeoXMlp(config, rngs)

    def __call__(self, x_btd: Array, context: AttentionContext) -> tuple[Array, LayerCache | None]:
        """Transform the residual stream: [B, T, D] -> [B, T or R, D] and the cache of this layer."""
        return pre_norm_layer(
            x_btd,
            context,
            attention_norm=self.input_layernorm,
            attention=self.attention,
            mlp_norm=self.post_attention_layernorm,
            mlp=self.mlp,
            parallel=self.use_parallel_residual,
        )


class NeoXTrunk(nnx.Module):
    """GPT-NeoX without a head. Source: transformers modeling_gpt_neox.py, GPTNeoXModel."""

    def __init__(self, config: GPTNeoXConfig, rngs: nnx.Rngs):
        self.config = config
        self.embed_in = embedding(config, config.vocab_size, rngs)
        self.layers = nnx.Dict(
            {str(i): NeoXLayer(config, rngs) for i in range(config.num_hidden_layers)}
        )
        self.final_layer_norm = layer_norm(config, rngs)

    def embed(self, input_ids: Array, positions: Array) -> tuple[Array, Rotary]:
        """Map token ids to the input of the first layer and rotary angles, see `Family.trunk`."""
        # Angles once for all layers, in the dtype that the embeddings compute in.
        hidden = embed(self.embed_in, input_ids)
        return hidden, self.config.rope.angles(positions, self.config.rotated, hidden.dtype)


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
    check_present(raw, SIZES)
    fields = {name: raw[name] for name in (*SIZES, *_OPTIONAL_KEYS) if name in raw}
    # Where a file does not name these two, GPTNeoXConfig means 0 and 2.
    fields["bos_token_id"] = raw.get("bos_token_id", 0)
    fields["eos_token_id"] = raw.get("eos_token_id", 2)
    # Some rotary settings are derived from the length, which files may leave out.
    settings = {"max_position_embeddings": 2048} | raw
    rope, rotary_pct = rope_from_hf(settings, raw.get("rotary_emb_base", 10000.0))
    if rotary_pct is None:
        rotary_pct = raw.get("rotary_pct", 0.25)
    return fields | {"rope": rope, "rotary_pct": rotary_pct}


def _to_hf(config: GPTNeoXConfig) -> dict[str, Any]:
    names = (
        "model_type",
        *SIZES,
        *_OPTIONAL_KEYS,
        "bos_token_id",
        "eos_token_id",
        "rotary_pct",
    )
    # `rotary_pct` for transformers 4, `partial_rotary_factor` for 5.
    rope = config.rope.to_hf("rotary_emb_base", {"partial_rotary_factor": config.rotary_pct})
    return {name: getattr(config, name) for name in names} | rope


# Names as on disk: transformers 5 calls the module
# `lm_head` but still reads and writes `embed_out`.
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
    names={
        "trunk/embed_in/embedding": HfName("embed_in.weight"),
        "lm_head/kernel": HfName("embed_out.weight", True),
    }
    | norm_names("trunk/final_layer_norm", "final_layer_norm")
    | norm_names("trunk/layers/{i}/input_layernorm", "layers.{i}.input_layernorm")
    | norm_names("trunk/layers/{i}/post_attention_layernorm", "layers.{i}.post_attention_layernorm")
    | linear_names(
        "trunk/layers/{i}/attention/query_key_value", "layers.{i}.attention.query_key_value"
    )
    | linear_names("trunk/layers/{i}/attention/dense", "layers.{i}.attention.dense")
    | linear_names("trunk/layers/{i}/mlp/dense_h_to_4h", "layers.{i}.mlp.dense_h_to_4h")
    | linear_names("trunk/layers/{i}/mlp/dense_4h_to_h", "layers.{i}.mlp.dense_4h_to_h")
    | SCORE_NAMES,
    ignored=re.compile(r"attention\.(bias|masked_bias)$|rotary_emb\.inv_freq$"),
    partition={
        "attention/query_key_value/kernel": COLUMN_PARALLEL,
        "attention/query_key_value/bias": (TENSOR,),
        "attention/dense/kernel": ROW_PARALLEL,
        "mlp/dense_h_to_4h/kernel": COLUMN_PARALLEL,
        "mlp/dense_h_to_4h/bias": (TENSOR,),
        "mlp/dense_4h_to_h/kernel": ROW_PARALLEL,
    },
    replaced_keys=("rope_scaling", "rotary_emb_base", "rotary_pct"),
)
