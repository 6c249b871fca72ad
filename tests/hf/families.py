"""One table of small models, for the tests that hold for every family: a new family joins them by its rows here."""

import json
from typing import NamedTuple

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
    "initializer_range": 0.1,
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
YARN_OF_DEFAULTS = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


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

    @property
    def raw(self) -> dict[str, object]:
        """Its `config.json`."""
        return FAMILIES[self.config.model_type].to_hf(self.config)


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
    "llama-linear-tied": Small(
        LlamaConfig(**SHARED, rope=Rope(rope_type="linear", factor=4.0), tie_word_embeddings=True),
        {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
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
    "gemma3_text": Small(
        LlamaConfig(
            **(SHARED | {"num_hidden_layers": 3}),
            model_type="gemma3_text",
            rope=Rope(rope_type="linear", rope_theta=500.0, factor=4.0),
            window_rope=Rope(rope_theta=99.0),
            sliding_window=4,
            window_layers=(0, 2),
            query_pre_attn_scalar=24,
            hidden_act="gelu_pytorch_tanh",
            tie_word_embeddings=True,
        ),
        {"rope_theta": 500.0, "rope_local_base_freq": 99.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
}

FILES: dict[str, dict[str, object]] = {name: small.raw for name, small in SMALL.items()} | {
    # 3 of 8 dimensions: transformers rotates two pairs.
    "gpt_neox-odd": SIZES | {"model_type": "gpt_neox", "rotary_pct": 0.4, "hidden_act": "silu"},
    "gpt_neox-unrotated": SIZES | {"model_type": "gpt_neox", "rotary_pct": 0.0},
    "gpt2-unscaled": SMALL["gpt2-untied"].raw
    | {"scale_attn_weights": False, "reorder_and_upcast_attn": True, "activation_function": "relu"},
    "llama-wide heads": SIZES
    | {"model_type": "llama", "hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8},
    "qwen2-yarn": SIZES | {"model_type": "qwen2", "num_key_value_heads": 4, "rope_parameters": YARN_OF_DEFAULTS},
    "qwen3-one key": SIZES | {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 24, "attention_bias": True},
    "mistral-no window": SIZES | {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None},
    "smollm3-no window": SIZES
    | {"model_type": "smollm3", "num_key_value_heads": 2, "no_rope_layer_interval": 2}
    | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "gemma3_text-untied": SIZES
    | {"model_type": "gemma3_text", "num_key_value_heads": 1, "head_dim": 16, "attention_bias": True}
    | {"sliding_window": 4, "sliding_window_pattern": 2, "tie_word_embeddings": False},
}
"""Name -> `config.json`: all of these and some more, for what they compute."""

HEADS = ("lm", "score", None)

PUBLISHED = json.loads("""
{"architectures": ["GPTNeoXForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 0, "classifier_dropout": 0.1,
 "eos_token_id": 0, "hidden_act": "gelu", "hidden_dropout": 0.0, "hidden_size": 2048, "initializer_range": 0.02,
 "intermediate_size": 8192, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox",
 "num_attention_heads": 8, "num_hidden_layers": 16, "rope_scaling": null, "rotary_emb_base": 10000, "rotary_pct": 0.25,
 "tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": "4.33.1", "use_cache": true,
 "use_parallel_residual": true, "vocab_size": 50304}
""")
"""Pythia-1B, as transformers 4.33 writes it."""
OLD_CONFIGS = {
    "gpt_neox": PUBLISHED
    | {name: SIZES[name] for name in PUBLISHED if name in SIZES}
    | {"eos_token_id": 0, "my_own_key": {"nested": [1, None]}, "rotary_pct": 0.5},
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "n_ctx": 128,
        "summary_type": "cls_index",
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    }
    | {"model_type": "gpt2", "vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
}
"""As older versions of transformers wrote them: the dtype under its older name, or not at all."""
