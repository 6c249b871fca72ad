"""One table of small models, for the tests that hold for every family: a new family joins them by its rows here."""

from typing import NamedTuple

import pytest

from jaxppo.nn import FAMILIES, ModelConfig
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.nn.rotary import Rope

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # large enough for every setting to be seen in the logits
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}


SHARED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
LLAMA3 = Rope(rope_type="llama3", rope_theta=500.0, factor=8.0, original_max_position_embeddings=4)
YARN = Rope(
    rope_type="yarn",
    rope_theta=500.0,
    factor=4.0,
    original_max_position_embeddings=16,  # a fourth of the positions: transformers 4 takes the factor from there
    attention_factor=1.3,
    beta_fast=4.0,
    truncate=False,
)
DYNAMIC = Rope(rope_type="dynamic", factor=4.0, original_max_position_embeddings=64)


def settings_of(rope: Rope) -> dict[str, object]:
    """Return its settings beside kind and base, as they are in `rope_scaling`."""
    names = ["factor", "original_max_position_embeddings"]
    of_kind = {
        "llama3": ["low_freq_factor", "high_freq_factor"],
        "yarn": ["beta_fast", "beta_slow", "attention_factor", "truncate"],
    }
    return {name: getattr(rope, name) for name in names + of_kind[rope.rope_type]}


class Small(NamedTuple):
    """A small model.

    Attributes:
        config: far from the defaults of its class, where a reader that passes over a key falls back.
        older: the keys of `config.json` that an export has beside those that transformers 5 writes.
    """

    config: ModelConfig
    older: dict[str, object] = {}  # noqa: RUF012 (of a tuple, never written to)


SMALL = {
    "gpt_neox": Small(
        GPTNeoXConfig(**SIZES, rotary_pct=1.0, rope=Rope(rope_theta=500.0)),
        {"rotary_pct": 1.0, "rotary_emb_base": 500.0},
    ),
    "gpt_neox-linear-tied": Small(
        GPTNeoXConfig(
            **SIZES,
            rotary_pct=0.5,
            rope=Rope(rope_type="linear", factor=4.0),
            tie_word_embeddings=True,
            attention_bias=False,
            hidden_act="relu",
        ),
        {"rotary_pct": 0.5, "rotary_emb_base": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    "gpt_neox-sequential": Small(
        GPTNeoXConfig(**SIZES, use_parallel_residual=False, layer_norm_eps=1e-3),
        {"rotary_pct": 0.25, "rotary_emb_base": 10000.0},
    ),
    "gpt2": Small(GPT2Config(**SIZES)),
    "gpt2-untied": Small(
        GPT2Config(
            **(SIZES | {"intermediate_size": 128}),  # four times the hidden size: `n_inner` is null
            tie_word_embeddings=False,
            scale_attn_by_inverse_layer_idx=True,
            hidden_act="relu",
            layer_norm_eps=0.1,
        )
    ),
    "llama": Small(
        LlamaConfig(**SHARED, rope=LLAMA3, attention_bias=True, mlp_bias=True),
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", **settings_of(LLAMA3)}},
    ),
    "llama-dynamic-tied": Small(
        LlamaConfig(**SHARED, rope=DYNAMIC, tie_word_embeddings=True),
        {"rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
    ),
    "qwen2": Small(
        LlamaConfig(**SHARED, model_type="qwen2", sliding_window=4, window_layers=(1,), rope=Rope(rope_theta=1e6)),
        {"rope_theta": 1e6},
    ),
    "qwen3": Small(
        LlamaConfig(**SHARED, model_type="qwen3", rope=YARN, tie_word_embeddings=True),
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "yarn", **settings_of(YARN)}},
    ),
    "mistral": Small(
        LlamaConfig(
            **SHARED, model_type="mistral", sliding_window=4, window_layers=(0, 1), rope=Rope(rope_theta=500.0)
        ),
        {"rope_theta": 500.0},
    ),
    "smollm3": Small(
        LlamaConfig(
            **(SHARED | {"num_hidden_layers": 4}),
            model_type="smollm3",
            unrotated_layers=(1, 2),
            sliding_window=4,
            window_layers=(2,),
            layer_norm_eps=0.1,
            tie_word_embeddings=False,
        ),
        {"rope_theta": 10000.0},
    ),
}

HEADS = ("lm", "score", None)


def torch_model(name: str, head: str | None, dtype: str = "float32"):
    """Return a random model of transformers, no two of its weights equal."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = SMALL[name].config
    family = FAMILIES[config.model_type]
    made = getattr(transformers, family.architectures[head])
    torch.manual_seed(0)
    model = made(made.config_class.from_dict(family.to_hf(config) | {"num_labels": 1})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(getattr(torch, dtype))
