"""Llama and those built like it against transformers: logits, gradients, greedy texts, scores, configurations."""

import dataclasses
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import hf, models
from jaxppo.errors import ModelError
from jaxppo.nn.llama_kinds import KINDS
from tests import quick_first
from tests.test_models import from_torch, torch, torch_logits, torch_model, torch_positions, transformers

SIZES = {
    "vocab_size": 61,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
YARN_SCALING = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
YARN = YARN_SCALING | {"rope_theta": 1e4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}

CONFIGURATIONS = {
    "llama": {"model_type": "llama"},
    "llama 4/4 heads, biases": {
        "model_type": "llama",
        "num_key_value_heads": 4,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama 6/2 heads of 48": {
        "model_type": "llama",
        "num_attention_heads": 6,
        "head_dim": 48,
        "hidden_size": 66,
        "tie_word_embeddings": True,
    },
    "llama key of others": {"model_type": "llama", "sliding_window": 8},
    "llama linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 500.0},
    "llama dynamic": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
        "max_position_embeddings": 16,
    },
    "llama llama3": {"model_type": "llama", "rope_scaling": LLAMA3, "rope_theta": 1e4, "num_key_value_heads": 1},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2 yarn": {"model_type": "qwen2", "rope_parameters": YARN},
    "qwen2 window": {"model_type": "qwen2", **QWEN_WINDOW},
    "qwen3 heads of 48": {"model_type": "qwen3", "head_dim": 48, "tie_word_embeddings": True},
    "qwen3 4/1 heads of 8": {"model_type": "qwen3", "head_dim": 8, "num_key_value_heads": 1, "attention_bias": True},
    "qwen3 yarn": {
        "model_type": "qwen3",
        "rope_scaling": {**YARN_SCALING, "truncate": False, "beta_fast": 4.0, "attention_factor": 1.3},
        "rope_theta": 500.0,
        "head_dim": 32,
    },
    "mistral window": {"model_type": "mistral", "sliding_window": 8},
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 8},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 5},
    "smollm3 window": {
        "model_type": "smollm3",
        "num_hidden_layers": 3,
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 8,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
    },
}
"""What each `config.json` has beside, or in place of, `SIZES`."""
LENGTHS = np.array([40, 3, 23, 1])
"""Beyond every window and, of rotary settings, every original length."""

in_turns = pytest.mark.parametrize("name", quick_first(5, list(CONFIGURATIONS)[::-1]))


def raw_of(name):
    return SIZES | CONFIGURATIONS[name]


def ragged(seed=0):
    """Left-padded rows whose padding holds ordinary tokens."""
    width = LENGTHS.max()
    ids = np.random.default_rng(seed).integers(3, SIZES["vocab_size"], (len(LENGTHS), width))
    return ids, (np.arange(width) < LENGTHS[:, None])[:, ::-1]


def close(ours, theirs, share):
    """Within so much of the largest number."""
    largest = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, atol=share * largest, rtol=0)
    return largest


def test_a_key_that_the_kind_has_not_means_nothing():
    config = hf.config_from_hf(raw_of("llama key of others"))
    assert (config.sliding_window, config.window_layers) == (None, ())


@in_turns
def test_logits_and_gradients_are_those_of_transformers(name, tmp_path):
    model = torch_model(raw_of(name))
    config, params = from_torch(model, tmp_path / "model", raw_of(name))
    ids, mask = ragged()
    logits = jax.jit(partial(models.apply, config))(params, jnp.asarray(ids), attention_mask=jnp.asarray(mask)).logits
    assert close(logits[mask], torch_logits(model, ids, mask)[mask], 1e-4) > 1

    counted = mask[:, 1:] & mask[:, :-1]

    def loss(params):
        logits = models.apply(config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask)).logits
        logprobs = jax.nn.log_softmax(logits[:, :-1])
        picked = jnp.take_along_axis(logprobs, jnp.asarray(ids)[:, 1:, None], axis=-1)[..., 0]
        return -jnp.where(counted, picked, 0).sum() / counted.sum()

    gradients = jax.jit(jax.grad(loss))(params)
    labels = torch.tensor(np.where(np.pad(counted, ((0, 0), (1, 0))), ids, -100))
    mask_ids = torch.tensor(mask.astype(int))
    model(torch.tensor(ids), attention_mask=mask_ids, position_ids=torch_positions(mask), labels=labels).loss.backward()
    with torch.no_grad():  # through the folder the gradients reach the places of their parameters
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    _, expected = from_torch(model, tmp_path / "gradients", raw_of(name))
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4 * largest, rtol=0), gradients, expected)
    kernels = [leaf for leaf in jax.tree.leaves(expected) if leaf.ndim > 1]  # a bias of all keys changes no softmax
    assert min(np.abs(leaf).max() for leaf in kernels) > 1e-3 * largest


@in_turns
def test_greedy_texts_are_those_of_generate(name, tmp_path):
    raw, steps = raw_of(name), 64
    model = torch_model(raw)
    config, params = from_torch(model, tmp_path, raw)
    ids, mask = ragged()
    expected = model.generate(
        torch.tensor(ids),
        attention_mask=torch.tensor(mask.astype(int)),
        do_sample=False,
        max_new_tokens=steps,
        min_new_tokens=steps,
        eos_token_id=None,
        use_cache=name != "llama key of others",  # their cache, unlike their model, takes the key for a window
    )
    rows, prompt = ids.shape
    slots = jnp.asarray(np.pad(mask, ((0, 0), (0, steps)), constant_values=True))

    @jax.jit
    def greedy(params):
        def body(carry):
            i, tokens, output = carry
            chosen = output.logits[:, -1].argmax(axis=-1).astype(tokens.dtype)
            tokens = jax.lax.dynamic_update_slice(tokens, chosen[:, None], (0, i))
            output = models.apply(
                config, params, chosen[:, None], attention_mask=slots, cache=output.cache, cache_index=i
            )
            return i + 1, tokens, output

        tokens = jnp.pad(jnp.asarray(ids), ((0, 0), (0, steps)))
        cache = models.init_cache(config, rows, prompt + steps)
        assert cache[0][0].shape[1] == config.num_key_value_heads
        first = models.apply(config, params, jnp.asarray(ids), attention_mask=slots, cache=cache)
        first = first._replace(logits=first.logits[:, -1:], hidden=first.hidden[:, -1:])
        return jax.lax.while_loop(lambda carry: carry[0] < prompt + steps, body, (prompt, tokens, first))[1]

    np.testing.assert_array_equal(greedy(params), expected.numpy())
    assert len(np.unique(expected.numpy()[:, prompt:])) > 8


@in_turns
def test_scores_are_those_of_sequence_classification(name, tmp_path):
    model = torch_model(raw_of(name), head="score")
    config, params = from_torch(model, tmp_path, raw_of(name))
    ids, mask = ragged()
    ids = np.where(mask, ids, config.pad_token_id)
    with torch.no_grad():
        mask_ids, positions = torch.tensor(mask.astype(int)), torch_positions(mask)
        expected = model(torch.tensor(ids), attention_mask=mask_ids, position_ids=positions).logits[:, 0].numpy()
    hidden = models.apply(config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask), logits=False).hidden
    assert close(models.scores(params, hidden)[:, -1], expected, 1e-5) > 0.1


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_config_is_read_as_transformers_reads_it_and_written_back(name):
    raw = raw_of(name)
    theirs = transformers.AutoConfig.for_model(**json.loads(json.dumps(raw)))
    config = hf.config_from_hf(raw)
    assert config == hf.config_from_hf(json.loads(json.dumps(theirs.to_dict())))
    assert hf.config_to_hf(config, "lm").items() >= raw.items()
    changed = dataclasses.replace(config, rope=dataclasses.replace(config.rope, rope_theta=99.0), original=None)
    written = hf.config_to_hf(changed, "lm")
    assert hf.config_from_hf(written) == changed
    again = transformers.AutoConfig.for_model(**json.loads(json.dumps(written)))
    assert hf.config_from_hf(json.loads(json.dumps(again.to_dict()))) == changed


def test_numbers_that_files_write_in_other_ways_are_read():
    ids = jnp.arange(8)[None] + 3
    for changes in ({"rope_theta": 3_580_165_449}, {"pad_token_id": -1}, {"pad_token_id": SIZES["vocab_size"]}):
        config = hf.config_from_hf(raw_of("llama") | changes)
        output = models.apply(config, models.init_params(config, jax.random.key(0)), ids)
        assert np.isfinite(output.logits).all()
        assert hf.config_to_hf(config, "lm").items() >= changes.items()
    assert hf.config_from_hf(raw_of("qwen2") | {"max_window_layers": None}).window_layers == ()
    yarn = raw_of("qwen2 yarn") | {"original_max_position_embeddings": None}
    assert hf.config_from_hf(yarn) == hf.config_from_hf(raw_of("qwen2 yarn"))
    assert hf.config_from_hf(raw_of("qwen2 window") | {"max_window_layers": 0}).window_layers == (0, 1)


@pytest.mark.parametrize("model_type", KINDS)
def test_a_file_that_says_little_means_what_it_means_to_transformers(model_type):
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    raw = {"model_type": model_type} | {name: SIZES[name] for name in names}
    raw |= {"num_attention_heads": 32, "vocab_size": 128300, "num_hidden_layers": 30, "pad_token_id": 0}
    theirs = transformers.AutoConfig.for_model(**raw)
    assert hf.config_from_hf(raw) == hf.config_from_hf(json.loads(json.dumps(theirs.to_dict())))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "llama",
            {"num_key_value_heads": 3},
            "num_attention_heads: expected a multiple of num_key_value_heads=3, got 4",
        ),
        ("llama", {"hidden_size": 66}, "num_attention_heads: expected a divisor of hidden_size=66, got 4"),
        ("llama", {"head_dim": 7}, "head_dim: expected an even number"),
        ("llama", {"head_dim": "8"}, "head_dim: expected an integer >= 1, got '8'"),
        ("llama", {"hidden_act": "xielu"}, "hidden_act: expected one of .*, got 'xielu'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1.0"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "longrope"}},
            "rope_scaling.rope_type: expected one of default, linear",
        ),
        ("llama", {"rope_parameters": {"rope_type": []}}, "rope_parameters.rope_type: expected one of default, linear"),
        ("llama", {"rope_scaling": LLAMA3 | {"low_freq_factor": None}}, "rope_scaling.low_freq_factor: expected"),
        (
            "llama",
            {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}},
            "high_freq_factor: expected a finite number >= 4.0",
        ),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters: expected an object"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 0, "max_window_layers": 0},
            "sliding_window: expected",
        ),
        ("qwen3 yarn", {"rope_theta": 1.0, "rope_scaling": YARN | {"rope_theta": 1.0}}, "rope_theta: expected more"),
        ("qwen2 window", {"max_window_layers": "1"}, "max_window_layers: expected an integer >= 0, got '1'"),
        ("qwen2 window", {"max_window_layers": 1.5}, "max_window_layers: expected an integer >= 0, got 1.5"),
        ("qwen2 window", {"max_window_layers": -1}, "max_window_layers: expected an integer >= 0, got -1"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "sliding_window: expected an integer"),
        ("qwen2", {"layer_types": ["linear_attention"] * 2}, "layer_types: expected a list with"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers: expected a list with"),
        ("mistral", {"sliding_window": -3}, "sliding_window: expected an integer >= 1, got -3"),
    ],
)
def test_config_names_what_is_wrong(name, changes, message):
    with pytest.raises(ModelError, match=f"^{message}"):
        hf.config_from_hf(raw_of(name) | changes)
