"""`config.json` -> configuration -> `config.json`, of every family: as transformers reads it, and written as it was."""

import dataclasses
import json

import numpy as np
import pytest
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from jaxppo import hf
from jaxppo.nn import FAMILIES, Computation
from jaxppo.nn.llama_kinds import KINDS
from jaxppo.nn.rotary import Rope
from tests.hf.families import FILES, OLD_CONFIGS
from tests.torch_models import RAW, SIZES, refused, transformers

NEOX, GPT2 = RAW["gpt_neox"], RAW["gpt2"]
KIND = {name: SIZES | {"model_type": name, "num_key_value_heads": 2} for name in KINDS}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


def read_by_transformers(raw):
    """What transformers makes of a file, written out by it."""
    return json.loads(json.dumps(transformers.AutoConfig.for_model(**json.loads(json.dumps(raw))).to_dict()))


# As files say it, of whatever age.
AS_WRITTEN = [
    NEOX | {"rope_parameters": {"rope_theta": 3.0, "partial_rotary_factor": 1.0, "rope_type": "default"}},
    NEOX | {"rope_parameters": {"rope_theta": 3.0}, "rotary_pct": 0.5},
    NEOX | {"rotary_pct": 0.5, "rotary_emb_base": 500, "rope_theta": 7.0, "rope_scaling": None},
    NEOX | {"rope_scaling": {"type": "default", "rope_theta": 3.0}},
    NEOX | {"rope_scaling": {"type": "linear", "factor": 2}, "rotary_pct": 0.5, "rotary_emb_base": 500},
    NEOX | {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 7.0, "partial_rotary_factor": 1.0}},
    NEOX | {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 7.0}},
    NEOX | {"use_parallel_residual": False, "tie_word_embeddings": True, "attention_bias": False, "hidden_act": "relu"},
    GPT2 | {"n_inner": 40, "activation_function": "relu", "layer_norm_epsilon": 1e-3},
    GPT2 | {"n_inner": None, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    {"model_type": "gpt2", "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "n_positions": 64},
    GPT2 | {"max_position_embeddings": 64, "n_positions": 32, "hidden_size": 64},  # the shared names win
    GPT2 | {"intermediate_size": 40, "hidden_act": "relu", "layer_norm_eps": 0.1},  # names that mean nothing there
    GPT2 | {"n_ctx": 64, "tie_word_embeddings": False, "eos_token_id": None, "bos_token_id": None},
    KIND["llama"] | {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    KIND["llama"] | {"sliding_window": 8},  # the key of others
    KIND["llama"] | {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 500.0},
    KIND["llama"] | {"rope_scaling": LLAMA3, "rope_theta": 1e4},
    KIND["qwen2"] | {"rope_parameters": YARN | {"rope_theta": 1e4}},
    KIND["qwen2"] | WINDOW,
    KIND["qwen2"] | WINDOW | {"max_window_layers": 0},
    KIND["qwen3"] | {"rope_scaling": YARN | {"truncate": False, "attention_factor": 1.3}, "rope_theta": 500.0},
    KIND["mistral"] | {"sliding_window": 8},
    KIND["mistral"] | {"sliding_window": None, "head_dim": 6},
    KIND["smollm3"] | {"num_hidden_layers": 5},
    KIND["smollm3"] | {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 8, "mlp_bias": True},
    # As Gemma 3 1B and 270M were published.
    KIND["gemma3_text"] | {"rope_theta": 1e6, "rope_local_base_freq": 500, "rope_scaling": None, "sliding_window": 8},
    KIND["gemma3_text"]
    | {"_sliding_window_pattern": 6, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 6}
    | {"use_bidirectional_attention": False, "final_logit_softcapping": None, "query_pre_attn_scalar": 16},
    KIND["gemma3_text"]
    | {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 7.0}}}
    | {"num_hidden_layers": 5, "sliding_window_pattern": 3},
    KIND["gemma3_text"]
    | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 500.0, "rope_local_base_freq": 10},
    KIND["gemma3_text"] | {"layer_types": ["full_attention"] * 2, "sliding_window": 8},
]


@pytest.mark.parametrize("raw", [*AS_WRITTEN, *FILES.values()])
def test_config_is_read_as_transformers_reads_it_and_written_back(raw):
    config = hf.config_from_hf(raw)
    assert config == hf.config_from_hf(read_by_transformers(raw))
    assert hf.config_to_hf(config, "lm").items() >= raw.items()
    changes = {"initializer_range": 0.5, "layer_norm_eps": 0.25}  # no longer what was read
    if "gpt2" not in config.model_type:
        changes["rope"] = dataclasses.replace(config.rope, rope_theta=99.0)
    changed = dataclasses.replace(config, **changes)
    written = hf.config_to_hf(changed, "lm")
    assert hf.config_from_hf(written) == changed
    assert hf.config_from_hf(read_by_transformers(written)) == changed


def test_names_of_settings_are_those_of_transformers():
    """Hand-read, as all else compares one reading with another."""
    old = hf.config_from_hf(NEOX | {"rotary_pct": 0.5, "rotary_emb_base": 500, "rope_theta": 7.0})
    assert (old.rotary_pct, old.rope.rope_theta) == (0.5, 500)
    linear = hf.config_from_hf(NEOX | {"rope_scaling": {"type": "linear", "factor": 2.5}})
    assert linear.rope == Rope(rope_type="linear", factor=2.5)
    gpt2 = hf.config_from_hf({"model_type": "gpt2"})
    assert (gpt2.vocab_size, gpt2.bos_token_id, gpt2.eos_token_id) == (50257, 50256, 50256)
    assert (gpt2.hidden_size, gpt2.num_hidden_layers, gpt2.num_attention_heads) == (768, 12, 12)
    assert (gpt2.intermediate_size, gpt2.max_length, gpt2.hidden_act) == (3072, 1024, "gelu_new")
    assert hf.config_from_hf(GPT2 | {"n_inner": 40, "activation_function": "relu"}).intermediate_size == 40
    windows = (KIND["llama"] | {"sliding_window": 8}, KIND["qwen2"] | WINDOW, KIND["mistral"] | {"sliding_window": 8})
    configs = [hf.config_from_hf(raw) for raw in windows]
    assert [each.window_layers for each in configs] == [(), (1,), (0, 1)]
    assert [each.sliding_window for each in configs] == [None, 8, 8]
    assert hf.config_from_hf(KIND["smollm3"] | {"num_hidden_layers": 5}).unrotated_layers == (3,)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_file_that_says_little_means_what_it_means_to_transformers(model_type):
    raw = {"model_type": model_type} | ({} if model_type == "gpt2" else {"hidden_size": 64, "intermediate_size": 80})
    raw |= {"num_attention_heads": 32, "vocab_size": 128300, "num_hidden_layers": 30, "pad_token_id": 0}
    assert hf.config_from_hf(raw) == hf.config_from_hf(read_by_transformers(raw))


def test_numbers_that_files_write_in_other_ways_are_read():
    llama = KIND["llama"]
    for changes in ({"rope_theta": 3_580_165_449}, {"pad_token_id": -1}, {"pad_token_id": SIZES["vocab_size"]}):
        config = hf.config_from_hf(llama | changes)
        assert hf.config_to_hf(config, "lm").items() >= changes.items()
        assert config.pad_token_id == (1 if "rope_theta" in changes else None)
    # GPT2Config(vocab_size=61) says 50256 for both.
    past = hf.config_from_hf(GPT2 | {"bos_token_id": 61, "eos_token_id": 50256})
    assert (past.bos_token_id, past.eos_token_id, past.pad_token_id) == (None, None, 1)
    assert hf.config_to_hf(past, "lm")["eos_token_id"] == 50256
    theta = hf.config_from_hf(llama | {"rope_theta": 3_580_165_449}).rope  # JAX takes no integers of 2^31
    assert np.isfinite(theta.angles(np.arange(8)[None], 8, "float32").cos).all()
    assert hf.config_from_hf(KIND["qwen2"] | {"max_window_layers": None}).window_layers == ()
    yarn = KIND["qwen2"] | {"rope_parameters": YARN | {"rope_theta": 1e4}}
    assert hf.config_from_hf(yarn | {"original_max_position_embeddings": None}) == hf.config_from_hf(yarn)


@pytest.mark.parametrize("family", OLD_CONFIGS)
def test_config_to_hf_does_not_depend_on_where_a_model_computes(family):
    config = hf.config_from_hf(OLD_CONFIGS[family])
    computation = Computation(accelerated=True, attention="triton", dtype="bfloat16", gradient_checkpointing=True)
    on_a_gpu = dataclasses.replace(config, computation=computation)
    assert hf.config_to_hf(on_a_gpu, "lm") == hf.config_to_hf(config, "lm") == OLD_CONFIGS[family]


def test_config_to_hf_writes_the_dtype_under_the_names_that_a_file_has():
    old, both = OLD_CONFIGS["gpt_neox"], {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    for raw, names in ((old, {"torch_dtype"}), (old | both, set(both)), (OLD_CONFIGS["gpt2"], {"dtype"})):
        written = hf.config_to_hf(hf.config_from_hf(raw), "lm", "float16")
        assert {name: value for name, value in written.items() if "dtype" in name} == dict.fromkeys(names, "float16")


def test_gpt2_config_that_changed_is_written_with_its_own_names():
    raw = {"model_type": "gpt2", "hidden_size": 24, "num_attention_heads": 2, "n_layer": 2, "vocab_size": 60}
    config = hf.config_from_hf(raw | {"n_ctx": 1024, "summary_type": "cls_index", "reorder_and_upcast_attn": True})
    changed = dataclasses.replace(
        config, hidden_size=32, num_attention_heads=4, intermediate_size=40, max_position_embeddings=77, eos_token_id=5
    )
    written = hf.config_to_hf(changed, "lm")
    assert not written.keys() & {"hidden_size", "num_attention_heads", "max_position_embeddings", "n_ctx"}
    assert (written["summary_type"], written["reorder_and_upcast_attn"], written["n_inner"]) == ("cls_index", True, 40)
    assert hf.config_from_hf(written) == changed
    assert hf.config_from_hf(read_by_transformers(written)) == changed


@pytest.mark.parametrize(
    ("raw", "changes", "named"),
    [
        (NEOX, {"model_type": "bert"}, "model_type"),
        (NEOX, {"model_type": "gemma2"}, "model_type: .*gemma2"),
        (NEOX, {"model_type": "qwen3_moe"}, "model_type: .*qwen3_moe"),
        (NEOX, {"quantization_config": {"bits": 4}}, "quantization_config"),
        (NEOX, {"is_causal": False}, "is_causal"),
        (NEOX, {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
        (NEOX, {"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "rope_parameters.factor"),
        (NEOX, {"rope_parameters": "default"}, "rope_parameters"),
        (NEOX, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type"),
        (NEOX, {"bos_token_id": [2, 3]}, "bos_token_id"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention"),
        (GPT2, {"activation_function": "prelu"}, "activation_function"),
        (GPT2, {"n_embd": "32"}, "hidden_size"),
        (KIND["llama"], {"num_key_value_heads": 3}, "num_attention_heads: .*num_key_value_heads"),
        (KIND["llama"], {"hidden_size": 66}, "num_attention_heads: .*hidden_size"),
        (KIND["llama"], {"head_dim": 7}, "head_dim"),
        (KIND["llama"], {"hidden_act": "mish"}, "hidden_act"),
        (KIND["llama"], {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (KIND["llama"], {"rope_scaling": LLAMA3 | {"low_freq_factor": None}}, "rope_scaling.low_freq_factor"),
        (KIND["llama"], {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "high_freq_factor"),
        (KIND["llama"], {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters"),
        (KIND["qwen2"], {"use_sliding_window": 1}, "use_sliding_window"),
        (KIND["qwen2"], WINDOW | {"sliding_window": 0}, "sliding_window"),
        (KIND["qwen2"], WINDOW | {"max_window_layers": -1}, "max_window_layers"),
        (KIND["qwen2"], {"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
        (KIND["qwen2"], {"layer_types": ["linear_attention"] * 2}, "layer_types"),
        (KIND["qwen3"], {"rope_theta": 1.0, "rope_scaling": YARN | {"rope_theta": 1.0}}, "rope_theta"),
        (KIND["qwen3"], {"rope_scaling": YARN | {"mscale": -1.0}}, "mscale"),
        (KIND["smollm3"], {"no_rope_layers": [1]}, "no_rope_layers"),
        (KIND["smollm3"], {"num_hidden_layers": 10**12}, "num_hidden_layers: .*256"),
        (KIND["smollm3"], {"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        (KIND["gemma3_text"], {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        (KIND["gemma3_text"], {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (KIND["gemma3_text"], {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        (KIND["gemma3_text"], {"sliding_window": None}, "sliding_window"),
        (KIND["gemma3_text"], {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        (KIND["gemma3_text"], {"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters: .*sliding_attention"),
    ],
)
def test_config_from_hf_names_what_is_wrong(raw, changes, named):
    refused(f"^{named}", hf.config_from_hf, raw | changes)


def test_config_from_hf_names_a_missing_size_and_kinds_of_rope_that_are_not_supported():
    for raw in (NEOX, KIND["qwen3"]):
        refused("^hidden_size: ", hf.config_from_hf, {name: raw[name] for name in raw if name != "hidden_size"})
    unsupported = sorted(set(ROPE_INIT_FUNCTIONS) - {"linear", "llama3", "yarn"})
    assert "longrope" in unsupported
    for key in ("rope_scaling", "rope_parameters"):
        for kind in (*unsupported, "su", None, []):
            refused(rf"^{key}\.rope_type: ", hf.config_from_hf, NEOX | {key: {"rope_type": kind, "factor": 2.0}})
