"""The models of every family against transformers (torch), and against themselves: padding, caching, tying, dtypes."""

import dataclasses
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import hf, models
from jaxppo.errors import ModelError
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.layers import ACTIVATIONS
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.nn.rotary import Rope
from jaxppo.parallel import platform
from tests import quick_first

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GPT2_SIZES = {
    "vocab_size": 61,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
RAW = {
    "gpt_neox": {"model_type": "gpt_neox"} | SIZES,
    "gpt2": {"model_type": "gpt2"} | GPT2_SIZES,
    "llama": {"model_type": "llama", "num_key_value_heads": 2} | SIZES,
}
"""Content of `config.json`."""
CONFIGS = {
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "gpt2": GPT2Config(**(SIZES | {"intermediate_size": 128, "max_position_embeddings": 128})),
    "llama": LlamaConfig(num_key_value_heads=2, **SIZES),
}
LENGTHS = np.array([11, 3, 7, 1])  # ragged rows, one full and one of a single token

DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}

# Keys of `config.json`, and which of our settings they must change.
OPTIONS = {
    "gpt_neox": {
        "default": ({}, {}),
        "new_rotary_keys": ({"rope_parameters": DEFAULT_ROPE}, {}),
        "old_rotary_keys": ({"rotary_pct": 0.25, "rotary_emb_base": 10000, "rope_scaling": None}, {}),
        "rotary_half": ({"rope_parameters": DEFAULT_ROPE | {"partial_rotary_factor": 0.5}}, {"rotary_pct": 0.5}),
        "old_rotary_half": ({"rotary_pct": 0.5}, {"rotary_pct": 0.5}),
        "rotary_full": ({"rope_parameters": DEFAULT_ROPE | {"partial_rotary_factor": 1.0}}, {"rotary_pct": 1.0}),
        # 3 of 8 dimensions: transformers rotates two pairs
        "rotary_odd": ({"rope_parameters": DEFAULT_ROPE | {"partial_rotary_factor": 0.4}}, {"rotary_pct": 0.4}),
        "rotary_none": ({"rotary_pct": 0.0}, {"rotary_pct": 0.0}),
        "rope_theta": (
            {"rope_parameters": DEFAULT_ROPE | {"rope_theta": 5.0, "partial_rotary_factor": 1.0}},
            {"rope": Rope(rope_theta=5.0), "rotary_pct": 1.0},
        ),
        "old_rope_theta": ({"rotary_emb_base": 5, "rotary_pct": 1.0}, {"rope": Rope(rope_theta=5), "rotary_pct": 1.0}),
        "rope_linear": (
            {"rope_parameters": DEFAULT_ROPE | {"rope_type": "linear", "factor": 4.0}},
            {"rope": Rope(rope_type="linear", factor=4.0)},
        ),
        "old_rope_linear": (
            {"rope_scaling": {"type": "linear", "factor": 2.5}, "rotary_pct": 0.5},
            {"rope": Rope(rope_type="linear", factor=2.5), "rotary_pct": 0.5},
        ),
        "sequential": ({"use_parallel_residual": False}, {"use_parallel_residual": False}),
        "sequential_tied_no_bias": (
            {"use_parallel_residual": False, "tie_word_embeddings": True, "attention_bias": False},
            {"use_parallel_residual": False, "tie_word_embeddings": True, "attention_bias": False},
        ),
        "tied": ({"tie_word_embeddings": True}, {"tie_word_embeddings": True}),
        "no_attention_bias": ({"attention_bias": False}, {"attention_bias": False}),
        "relu": ({"hidden_act": "relu"}, {"hidden_act": "relu"}),
        "laplace": ({"hidden_act": "laplace"}, {"hidden_act": "laplace"}),
        "layer_norm_eps": ({"layer_norm_eps": 0.1}, {"layer_norm_eps": 0.1}),
    },
    "gpt2": {
        "default": ({}, {}),
        "untied": ({"tie_word_embeddings": False}, {"tie_word_embeddings": False}),
        "attention_not_scaled": ({"scale_attn_weights": False}, {"scale_attn_weights": False}),
        "scaled_by_layer": ({"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_by_inverse_layer_idx": True}),
        "scaled_by_layer_alone": (
            {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
            {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
        ),
        "reorder_and_upcast": ({"reorder_and_upcast_attn": True}, {}),
        "reorder_and_upcast_scaled_by_layer": (
            {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True},
            {"scale_attn_by_inverse_layer_idx": True},
        ),
        "n_inner": ({"n_inner": 48}, {"intermediate_size": 48}),
        "n_inner_null": ({"n_inner": None}, {}),
        "layer_norm_epsilon": ({"layer_norm_epsilon": 0.1}, {"layer_norm_eps": 0.1}),
        "relu": ({"activation_function": "relu"}, {"hidden_act": "relu"}),
        "gelu": ({"activation_function": "quick_gelu"}, {"hidden_act": "quick_gelu"}),
        "n_positions": ({"n_positions": 11}, {"max_position_embeddings": 11}),
        "names_of_other_families": (
            {"max_position_embeddings": 64, "n_positions": 32},
            {"max_position_embeddings": 64},
        ),
    },
    "llama": {"default": ({}, {})},  # more of it in nn/test_llama.py
}
SHAPES = {"attention_bias", "intermediate_size", "max_position_embeddings", "tie_word_embeddings"}
"""Settings that decide which arrays there are."""
OPTION_NAMES = [(family, name) for family, options in OPTIONS.items() for name in options]

apply = jax.jit(models.apply, static_argnums=0, static_argnames="logits")


def torch_model(raw, head="lm"):
    """A transformers model with parameters large enough that every option shows in the outputs."""
    config = transformers.AutoConfig.for_model(**(raw | {"num_labels": 1}))
    auto = {"lm": transformers.AutoModelForCausalLM, "score": transformers.AutoModelForSequenceClassification}[head]
    torch.manual_seed(0)
    # The fused kernels know nothing of `reorder_and_upcast_attn`.
    eager = {"attn_implementation": "eager"} if raw.get("reorder_and_upcast_attn") else {}
    model = auto.from_config(config, **eager).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def from_torch(model, folder, raw):
    """Our configuration and parameters, from a folder with exactly the `config.json` that transformers was given."""
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(raw | {"architectures": [type(model).__name__]}))
    return hf.load_pretrained(folder)


@pytest.fixture(params=list(CONFIGS))
def small(request):
    """The configuration of a small model of each family."""
    return CONFIGS[request.param]


@pytest.fixture(scope="module", params=list(RAW))
def default_model(request, tmp_path_factory):
    """(transformers model, config, parameters) with the default options."""
    raw = RAW[request.param]
    model = torch_model(raw)
    return model, *from_torch(model, tmp_path_factory.mktemp("model"), raw)


def ragged_batch(side, seed=0):
    """(ids, mask), padded on the given side; the padding holds ordinary tokens that must not leak."""
    width = LENGTHS.max()
    ids = np.random.default_rng(seed).integers(0, SIZES["vocab_size"], (len(LENGTHS), width))
    right = np.arange(width) < LENGTHS[:, None]
    return ids, right if side == "right" else right[:, ::-1]


def torch_positions(mask):
    return torch.tensor(np.clip(mask.cumsum(1) - 1, 0, None))


def torch_logits(model, ids, mask):
    with torch.no_grad():
        mask_ids = torch.tensor(mask.astype(int))
        return model(torch.tensor(ids), attention_mask=mask_ids, position_ids=torch_positions(mask)).logits.numpy()


@pytest.mark.parametrize(("family", "name"), quick_first(12, OPTION_NAMES[::-1]))
def test_apply_gives_the_logits_of_transformers(family, name, tmp_path):
    keys, changed = OPTIONS[family][name]
    raw = RAW[family] | keys
    model = torch_model(raw)
    config, params = from_torch(model, tmp_path, raw)
    assert config == dataclasses.replace(CONFIGS[family], **changed)
    for side in ("left", "right"):
        ids, mask = ragged_batch(side)
        expected = torch_logits(model, ids, mask)
        logits = apply(config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask)).logits
        assert np.abs(expected[mask]).max() > 1  # or the tolerance would be empty
        np.testing.assert_allclose(logits[mask], expected[mask], atol=1e-4, rtol=0)
    for field in changed if not set(changed) & SHAPES else ():
        other = dataclasses.replace(config, **{field: getattr(CONFIGS[family], field)})
        others = apply(other, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask)).logits
        assert np.abs(others - logits)[mask].max() > 1e-2  # or the comparison would say nothing of this setting


def test_apply_of_right_padded_rows_needs_no_mask(default_model):
    model, config, params = default_model
    ids, mask = ragged_batch("right")
    output = apply(config, params, jnp.asarray(ids))
    np.testing.assert_allclose(output.logits[mask], torch_logits(model, ids, mask)[mask], atol=1e-4, rtol=0)
    assert output.logits.dtype == jnp.float32
    assert output.cache is None


def test_apply_without_a_mask_treats_pad_tokens_as_real(default_model):
    model, config, params = default_model
    ids = np.full((1, 6), config.pad_token_id)
    ids[0, 3] = 5
    expected = torch_logits(model, ids, np.ones_like(ids, bool))
    np.testing.assert_allclose(apply(config, params, jnp.asarray(ids)).logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_apply_ignores_what_the_padding_holds(default_model, side):
    _, config, params = default_model
    ids, mask = ragged_batch(side)
    other = np.where(mask, ids, (ids + 1) % config.vocab_size)
    first, second = (
        apply(config, params, jnp.asarray(x), attention_mask=jnp.asarray(mask)).logits for x in (ids, other)
    )
    np.testing.assert_array_equal(first[mask], second[mask])
    assert np.isfinite(first).all()
    assert (first[~mask] != second[~mask]).any()


def test_apply_gives_a_row_the_same_logits_at_any_offset(default_model):
    _, config, params = default_model
    ids, mask = ragged_batch("right")
    left = np.array([np.roll(row, LENGTHS.max() - length) for row, length in zip(ids, LENGTHS, strict=True)])
    right_logits = apply(config, params, jnp.asarray(ids)).logits
    left_logits = apply(config, params, jnp.asarray(left), attention_mask=jnp.asarray(mask[:, ::-1])).logits
    np.testing.assert_allclose(left_logits[mask[:, ::-1]], right_logits[mask], atol=1e-5)


@pytest.mark.parametrize("compute_dtype", [None, pytest.param("bfloat16", marks=pytest.mark.full)])
def test_apply_reads_any_tokens_as_if_it_had_read_all(default_model, compute_dtype):
    _, config, params = default_model
    config = dataclasses.replace(config, compute_dtype=compute_dtype)
    params = adapted(params, ADAPTED[config.model_type])
    ids, mask = (jnp.asarray(x) for x in ragged_batch("left"))
    read = jnp.asarray(np.random.default_rng(1).integers(0, ids.shape[1], (len(ids), 3)))  # some twice, in any order
    cache = models.init_cache(config, *ids.shape)

    def of_read(params, whole):
        output = models.apply(
            config, params, ids, attention_mask=mask, cache=cache, read=None if whole else read, logits=False
        )
        hidden = jnp.take_along_axis(output.hidden, read[..., None], axis=1) if whole else output.hidden
        assert hidden.shape == (*read.shape, config.hidden_size)
        hidden = jnp.where(jnp.take_along_axis(mask, read, axis=1)[..., None], hidden, 0)
        return jnp.sum(jnp.sin(hidden.astype(jnp.float32))), (hidden, output.cache)

    run = jax.jit(jax.value_and_grad(of_read, has_aux=True), static_argnums=1)
    (_, (hidden, new_cache)), grads = run(params, False)
    (_, (whole, whole_cache)), whole_grads = run(params, True)
    close = partial(np.testing.assert_allclose, **({"atol": 1e-4} if compute_dtype is None else {"atol": 0.1}))
    jax.tree.map(close, (hidden, new_cache), (whole, whole_cache))
    scale = max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(whole_grads))
    jax.tree.map(lambda a, b: close(a / scale, b / scale), grads, whole_grads)


@pytest.mark.parametrize("cached", [False, True])
def test_apply_counts_positions_from_the_mask_and_not_from_the_left(default_model, cached):
    """The classic defect of left padding: GPT-2 with the positions of padded columns computes something else."""
    model, config, params = default_model
    ids, mask = ragged_batch("left")
    run = partial(apply, config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask))
    cache = models.init_cache(config, *ids.shape) if cached else None
    logits, by_column = run(cache=cache).logits, run(cache=cache, positions=jnp.arange(ids.shape[1])[None]).logits
    np.testing.assert_allclose(logits[mask], torch_logits(model, ids, mask)[mask], atol=1e-4, rtol=0)
    difference = np.abs(logits - by_column)[mask].max()
    assert difference > 1 if config.model_type == "gpt2" else difference < 1e-4


@pytest.mark.parametrize("cached", [False, True])
def test_apply_counts_only_real_tokens_for_positions(default_model, cached):
    """Rotary attention is relative, so only a gap inside a row shows how positions are counted."""
    model, config, params = default_model
    ids = np.random.default_rng(0).integers(0, 61, (2, 9))
    mask = np.array([[1, 1, 1, 0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1, 0, 1]], bool)
    cache = models.init_cache(config, *ids.shape) if cached else None
    logits = apply(config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask), cache=cache).logits
    np.testing.assert_allclose(logits[mask], torch_logits(model, ids, mask)[mask], atol=1e-4, rtol=0)
    compact = apply(config, params, jnp.asarray(ids[:1, mask[0]])).logits
    np.testing.assert_allclose(logits[0, mask[0]], compact[0], atol=1e-5)


def test_apply_takes_positions_from_the_caller(default_model):
    model, config, params = default_model
    ids = np.arange(10, 16)[None]
    positions = np.array([[0, 1, 2, 7, 9, 30]])
    with torch.no_grad():
        expected = model(torch.tensor(ids), position_ids=torch.tensor(positions)).logits.numpy()
    logits = apply(config, params, jnp.asarray(ids), positions=jnp.asarray(positions)).logits
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)
    assert np.abs(logits - apply(config, params, jnp.asarray(ids)).logits).max() > 1e-2


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_transformers(name):
    x = np.linspace(-9, 9, 1001, dtype=np.float32)
    expected = transformers.activations.ACT2FN[name](torch.tensor(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(x)), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_the_gradients_of_transformers(name):
    x = np.linspace(-9, 9, 1000, dtype=np.float32)  # without the kinks, at whole numbers
    variable = torch.tensor(x, requires_grad=True)
    transformers.activations.ACT2FN[name](variable).sum().backward()
    gradients = jax.vmap(jax.grad(ACTIVATIONS[name]))(jnp.asarray(x))
    np.testing.assert_allclose(gradients, variable.grad.numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "key"), [("gpt_neox", "hidden_act"), ("gpt2", "activation_function")])
def test_activations_are_all_but_those_with_parameters(family, key):
    others = set(transformers.activations.ACT2CLS) - set(ACTIVATIONS)
    assert others == {"prelu", "xielu"}
    for name in others:
        with pytest.raises(ModelError, match=f"^{key}: expected one of gelu, .*, got '{name}'"):
            hf.config_from_hf(RAW[family] | {key: name})
    assert {hf.config_from_hf(RAW[family] | {key: name}).hidden_act for name in ACTIVATIONS} == set(ACTIVATIONS)


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("gpt_neox", {}),
        ("gpt_neox", OPTIONS["gpt_neox"]["sequential_tied_no_bias"][0]),
        ("gpt_neox", OPTIONS["gpt_neox"]["old_rope_linear"][0]),
        ("gpt2", {}),
        ("gpt2", OPTIONS["gpt2"]["untied"][0] | OPTIONS["gpt2"]["n_inner"][0]),
        ("gpt2", OPTIONS["gpt2"]["reorder_and_upcast_scaled_by_layer"][0]),
    ],
)
def test_apply_has_the_gradients_of_transformers(family, keys, tmp_path):
    raw = RAW[family] | keys
    model = torch_model(raw)
    config, params = from_torch(model, tmp_path / "model", raw)
    ids, mask = ragged_batch("left")
    counted = mask[:, 1:] & mask[:, :-1]

    def loss(params):
        logits = apply(config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask)).logits
        logprobs = jax.nn.log_softmax(logits[:, :-1])
        picked = jnp.take_along_axis(logprobs, jnp.asarray(ids)[:, 1:, None], axis=-1)[..., 0]
        return -jnp.where(counted, picked, 0).sum() / counted.sum()

    gradients = jax.grad(loss)(params)
    labels = torch.tensor(np.where(np.pad(counted, ((0, 0), (1, 0))), ids, -100))
    mask_ids = torch.tensor(mask.astype(int))
    model(torch.tensor(ids), attention_mask=mask_ids, position_ids=torch_positions(mask), labels=labels).loss.backward()
    with torch.no_grad():  # through the folder the gradients reach the places of their parameters
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    _, expected = from_torch(model, tmp_path / "gradients", raw)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4, rtol=0), gradients, expected)
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 1e-3  # or the tolerance would be empty


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", RAW)
def test_scores_are_those_of_sequence_classification(family, side, tmp_path):
    model = torch_model(RAW[family], head="score")
    config, params = from_torch(model, tmp_path, RAW[family])
    ids, mask = ragged_batch(side)
    ids = np.where(mask, np.maximum(ids, 2), config.pad_token_id)  # transformers finds the last token by its id
    with torch.no_grad():
        mask_ids, positions = torch.tensor(mask.astype(int)), torch_positions(mask)
        expected = model(torch.tensor(ids), attention_mask=mask_ids, position_ids=positions).logits[:, 0].numpy()
    hidden = apply(config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask), logits=False).hidden
    scores = models.scores(params, hidden)
    assert scores.shape == ids.shape
    last = LENGTHS - 1 if side == "right" else -1
    np.testing.assert_allclose(scores[np.arange(len(LENGTHS)), last], expected, atol=1e-4, rtol=0)
    assert np.abs(expected).max() > 0.5


def test_scores_of_a_value_head_on_the_policy_trunk(small):
    params = models.init_params(small, jax.random.key(0))
    head = models.init_score_head(small, jax.random.key(1), use_bias=True)
    params["score"] = head | {"bias": jnp.array([3.0])}
    output = apply(small, params, jnp.arange(5)[None])
    values = models.scores(params, output.hidden)
    np.testing.assert_allclose(values, (output.hidden @ head["kernel"])[..., 0] + 3.0, rtol=1e-6)
    assert output.logits is not None


@pytest.mark.parametrize("side", ["left", "none"])
def test_cached_decoding_equals_the_full_forward(default_model, side):
    _, config, params = default_model
    ids, mask = ragged_batch(side)
    prompt, steps = ids.shape[1], 5
    ids = np.concatenate([ids, np.random.default_rng(1).integers(0, 61, (len(ids), steps))], axis=1)
    mask = None if side == "none" else jnp.asarray(np.pad(mask, ((0, 0), (0, steps)), constant_values=True))
    full = apply(config, params, jnp.asarray(ids), attention_mask=mask)

    @jax.jit
    def step(cache, new_ids, cache_index):
        return apply(config, params, new_ids, attention_mask=mask, cache=cache, cache_index=cache_index)

    output = step(models.init_cache(config, len(ids), prompt + steps), jnp.asarray(ids[:, :prompt]), 0)
    hidden, logits = [output.hidden], [output.logits]
    for i in range(prompt, prompt + steps):
        output = step(output.cache, jnp.asarray(ids[:, i : i + 1]), i)
        hidden.append(output.hidden)
        logits.append(output.logits)
    real = np.ones_like(ids, bool) if mask is None else np.asarray(mask)
    np.testing.assert_allclose(np.concatenate(hidden, 1)[real], full.hidden[real], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate(logits, 1)[real], full.logits[real], atol=1e-5, rtol=1e-5)


def test_cached_decoding_ignores_what_unused_slots_hold(default_model):
    _, config, params = default_model
    ids = jnp.arange(8)[None]
    caches = [
        jax.tree.map(lambda x, fill=fill: jnp.full_like(x, fill), models.init_cache(config, 1, 12)) for fill in (0, 9)
    ]
    clean, stale = (apply(config, params, ids, cache=cache).logits for cache in caches)
    np.testing.assert_array_equal(clean, stale)


def test_greedy_decoding_gives_the_tokens_of_generate(default_model):
    model, config, params = default_model
    ids, mask = ragged_batch("left")
    steps, (rows, prompt) = 64, ids.shape
    expected = model.generate(
        torch.tensor(ids),
        attention_mask=torch.tensor(mask.astype(int)),
        do_sample=False,
        max_new_tokens=steps,
        min_new_tokens=steps,
        eos_token_id=None,
    )
    slots = jnp.asarray(np.pad(mask, ((0, 0), (0, steps)), constant_values=True))

    @jax.jit
    def greedy(params):
        def body(carry):
            i, tokens, cache = carry
            last = jax.lax.dynamic_slice(tokens, (0, i), (rows, 1))
            output = apply(config, params, last, attention_mask=slots, cache=cache, cache_index=i)
            chosen = output.logits.argmax(axis=-1).astype(tokens.dtype)
            return i + 1, jax.lax.dynamic_update_slice(tokens, chosen, (0, i + 1)), output.cache

        tokens = jnp.pad(jnp.asarray(ids), ((0, 0), (0, steps)))
        cache = models.init_cache(config, rows, prompt + steps)
        cache = models.apply(
            config, params, tokens[:, : prompt - 1], attention_mask=slots, cache=cache, logits=False
        ).cache
        return jax.lax.while_loop(lambda carry: carry[0] < prompt + steps - 1, body, (prompt - 1, tokens, cache))[1]

    np.testing.assert_array_equal(greedy(params), expected.numpy())
    assert len(np.unique(expected.numpy()[:, prompt:])) > 8


def test_apply_compiles_once_for_equal_configs(small):
    params = models.init_params(small, jax.random.key(0))
    traces = []

    @partial(jax.jit, static_argnums=0)
    def run(config, params, ids):
        traces.append(config)
        return apply(config, params, ids).hidden

    run(small, params, jnp.arange(4)[None])
    run(dataclasses.replace(small), params, jnp.arange(4)[None])
    assert len(traces) == 1


def cast(params, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), params)


def test_apply_computes_in_the_dtype_of_the_parameters(default_model):
    _, config, params = default_model
    ids = jnp.asarray(ragged_batch("right")[0])
    cache = cast(models.init_cache(config, *ids.shape), jnp.bfloat16)
    output = apply(config, cast(params, jnp.bfloat16), ids, cache=cache)
    assert output.hidden.dtype == output.cache[0][0].dtype == jnp.bfloat16
    assert output.logits.dtype == jnp.float32
    expected = apply(config, params, ids).logits
    assert np.abs(output.logits - expected).mean() < 0.05 * np.abs(expected).mean()


def test_compute_dtype_is_that_of_parameters_cast_by_hand(default_model):
    _, config, params = default_model
    half_config = dataclasses.replace(config, compute_dtype="bfloat16")
    ids, mask = (jnp.asarray(x) for x in ragged_batch("left"))
    run = partial(apply, input_ids=ids, attention_mask=mask)
    cache = models.init_cache(half_config, *ids.shape)
    output, by_hand = run(half_config, params, cache=cache), run(config, cast(params, jnp.bfloat16), cache=cache)
    jax.tree.map(np.testing.assert_array_equal, output, by_hand)
    assert output.hidden.dtype == output.cache[0][0].dtype == jnp.bfloat16
    assert output.logits.dtype == jnp.float32
    expected = run(config, params).logits[mask]
    assert 0 < np.abs(output.logits[mask] - expected).mean() < 0.05 * np.abs(expected).mean()


def test_compute_dtype_can_be_above_that_of_the_parameters(default_model):
    _, config, params = default_model
    ids, half = jnp.arange(9)[None], cast(params, jnp.bfloat16)
    output = apply(dataclasses.replace(config, compute_dtype="float32"), half, ids)
    assert output.hidden.dtype == jnp.float32
    np.testing.assert_allclose(output.logits, apply(config, cast(half, jnp.float32), ids).logits, atol=1e-5)


@pytest.mark.full
def test_compute_dtype_leaves_gradients_in_the_dtype_of_the_parameters(default_model):
    _, config, params = default_model
    ids = jnp.asarray(ragged_batch("right")[0])

    @partial(jax.grad, argnums=1)
    def gradients(config, params):
        logprobs = jax.nn.log_softmax(apply(config, params, ids[:, :-1]).logits)
        return -jnp.take_along_axis(logprobs, ids[:, 1:, None], axis=-1).mean()

    half, full = (gradients(dataclasses.replace(config, compute_dtype=dtype), params) for dtype in ("bfloat16", None))
    assert {leaf.dtype for leaf in jax.tree.leaves(half)} == {jnp.dtype("float32")}
    both = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (half, full)]
    assert np.linalg.norm(both[0] - both[1]) < 0.1 * np.linalg.norm(both[1])


def adapted(params, paths, key=7):
    """The same parameters, with factors of an adapter beside the kernels at these paths of the trunk."""
    tree = jax.tree.map(lambda x: x, params)  # a copy of the dicts
    for path in paths:
        layer = tree["trunk"]
        for part in path.split("/"):
            layer = layer[part]
        keys = jax.random.split(jax.random.key(key), 2)
        inputs, outputs = layer["kernel"].shape
        layer["lora_a"] = 0.3 * jax.random.normal(keys[0], (inputs, 3))
        layer["lora_b"] = 0.3 * jax.random.normal(keys[1], (3, outputs))
    return tree


ADAPTED = {
    "gpt_neox": ("layers/0/attention/query_key_value", "layers/1/mlp/dense_4h_to_h"),
    "gpt2": ("layers/0/attn/c_attn", "layers/1/mlp/c_proj"),
    "llama": ("layers/0/self_attn/k_proj", "layers/1/mlp/down_proj"),
}


def test_apply_adds_the_adapters_that_for_decoding_merges(default_model):
    _, config, params = default_model
    with_adapters = adapted(params, ADAPTED[config.model_type])
    merged = models.for_decoding(config, with_adapters)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    ids = jnp.asarray(ragged_batch("right")[0])
    first, second, plain = (apply(config, tree, ids).logits for tree in (with_adapters, merged, params))
    np.testing.assert_allclose(first, second, atol=1e-4, rtol=0)
    assert np.abs(first - plain).max() > 1


def test_for_decoding_casts_what_a_language_model_reads(default_model):
    _, config, params = default_model
    half_config = dataclasses.replace(config, compute_dtype="bfloat16")
    params |= {"value_head": models.init_score_head(config, jax.random.key(0))}
    ready = models.for_decoding(half_config, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(ready["trunk"])} == {jnp.dtype("bfloat16")}
    assert ready["value_head"] is params["value_head"]
    ids = jnp.arange(9)[None]
    np.testing.assert_array_equal(apply(half_config, ready, ids).logits, apply(half_config, params, ids).logits)
    same = models.for_decoding(config, params)
    assert same["trunk"]["embed_in"]["embedding"] is params["trunk"]["embed_in"]["embedding"]


@pytest.mark.full
@pytest.mark.parametrize("cached", [False, True])
def test_right_padding_may_reach_past_the_positions_of_gpt2(default_model, cached):
    """Without a mask every column counts; rows of real tokens that fit must not notice."""
    _, config, params = default_model
    config = dataclasses.replace(config, max_position_embeddings=11)
    if config.model_type == "gpt2":
        table = {"embedding": params["trunk"]["embed_positions"]["embedding"][:11]}
        params = {"trunk": params["trunk"] | {"embed_positions": table}}
    ids, mask = ragged_batch("right")
    wide = jnp.asarray(np.pad(ids, ((0, 0), (0, 20)), constant_values=5))
    cache = models.init_cache(config, *wide.shape) if cached else None
    logits = apply(config, params, wide, cache=cache).logits
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits[:, :11][mask], apply(config, params, jnp.asarray(ids)).logits[mask], atol=1e-5)

    def loss(params):
        return jnp.where(mask[..., None], jnp.square(apply(config, params, wide).logits[:, :11]), 0).mean()

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.grad(loss)(params)))


def test_check_length_refuses_more_tokens_than_positions(small):
    models.check_length(small, small.max_position_embeddings, "prompt")
    if small.model_type != "gpt2":  # rotary positions have no end
        assert small.max_length is None
        models.check_length(small, 10**6, "prompt")
        return
    with pytest.raises(
        ModelError, match=r"^prompt: expected at most 128 tokens \(positions of this gpt2 model\), got 129"
    ):
        models.check_length(small, 129, "prompt")


@pytest.mark.full
@pytest.mark.parametrize("family", RAW)
def test_init_params_draws_like_transformers(family, tmp_path):
    wide = {"n_embd": 128} if family == "gpt2" else {"hidden_size": 128, "intermediate_size": 256}
    raw = RAW[family] | wide | {"initializer_range": 0.05, "tie_word_embeddings": False}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**raw))
    config, expected = from_torch(model, tmp_path, raw)
    params = models.init_params(config, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}

    def same_distribution(ours, theirs):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours.std(), theirs.std(), rtol=0.06)
        np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=0.005)

    jax.tree.map(same_distribution, params, expected)
    first, second = (jax.tree.leaves(params["trunk"]["layers"][i]) for i in "01")
    assert not any(np.array_equal(*pair) for pair in zip(first, second, strict=True) if pair[0].ndim == 2)


def test_init_params_depends_on_the_key_alone(small):
    config = dataclasses.replace(small, tie_word_embeddings=False)
    first, again, other = (models.init_params(config, jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first["lm_head"]["kernel"], other["lm_head"]["kernel"])
    assert not np.array_equal(first["trunk"]["embed_in"]["embedding"], other["trunk"]["embed_in"]["embedding"])


def test_init_params_has_the_head_asked_for(small):
    key = jax.random.key(0)
    for tied, lm_head in ((False, {"lm_head"}), (True, set())):
        config = dataclasses.replace(small, tie_word_embeddings=tied)
        assert set(models.init_params(config, key)) == {"trunk"} | lm_head
        assert set(models.init_params(config, key, head=None)) == {"trunk"}
    score = models.init_params(small, key, head="score")
    assert jax.tree.map(jnp.shape, score["score"]) == {"kernel": (32, 1)}
    with pytest.raises(ModelError, match="head: expected 'lm', 'score' or None, got 'value'"):
        models.init_params(small, key, head="value")


def test_init_score_head_can_start_at_zero(small):
    head = models.init_score_head(small, jax.random.key(0), scale=0.0, use_bias=True)
    assert jax.tree.map(jnp.shape, head) == {"kernel": (32, 1), "bias": (1,)}
    assert not any(leaf.any() for leaf in jax.tree.leaves(head))
    assert 0.01 < models.init_score_head(small, jax.random.key(0))["kernel"].std() < 0.03


@pytest.mark.parametrize("tied", [False, True])
def test_lm_logits_are_hidden_states_times_the_head_kernel(small, tied):
    config = dataclasses.replace(small, tie_word_embeddings=tied)
    params = models.init_params(config, jax.random.key(0))
    output = apply(config, params, jnp.arange(6)[None])
    kernel = models.lm_head_kernel(config, params)
    assert kernel.shape == (config.hidden_size, config.vocab_size)
    np.testing.assert_allclose(models.lm_logits(config, params, output.hidden[0, 3:]), output.logits[0, 3:], atol=1e-6)
    np.testing.assert_allclose(output.hidden @ kernel, output.logits, atol=1e-6)


def test_apply_without_a_head_names_it(small):
    config = dataclasses.replace(small, tie_word_embeddings=False)
    params = models.init_params(config, jax.random.key(0), head="score")
    with pytest.raises(ModelError, match="lm_head: expected among the parameters, got trunk, score"):
        models.apply(config, params, jnp.arange(3)[None])
    assert apply(config, params, jnp.arange(3)[None], logits=False).logits is None


def test_apply_checks_the_shapes(small):
    params = models.init_params(small, jax.random.key(0))
    ids = jnp.arange(4)[None]
    with pytest.raises(ValueError, match=r"attention_mask: expected shape \(1, 4\), got \(1, 5\)"):
        apply(small, params, ids, attention_mask=jnp.ones((1, 5), bool))
    with pytest.raises(ValueError, match=r"attention_mask: expected shape \(1, 6\), got \(1, 4\)"):
        cache = models.init_cache(small, 1, 6)
        apply(small, params, ids, attention_mask=jnp.ones((1, 4), bool), cache=cache)
    with pytest.raises(ValueError, match="cache: expected at least 4 slots"):
        apply(small, params, ids, cache=models.init_cache(small, 1, 3))


SHARED_FIELDS = [
    ("model_type", "bert"),
    ("vocab_size", 0),
    ("hidden_size", 32.0),
    ("num_hidden_layers", -1),
    ("num_attention_heads", 5),
    ("intermediate_size", None),
    ("max_position_embeddings", "2048"),
    ("layer_norm_eps", float("nan")),
    ("initializer_range", -0.1),
    ("tie_word_embeddings", None),
    ("eos_token_id", 61),
    ("pad_token_id", -1),
    ("bos_token_id", [0, 1]),
    ("compute_dtype", "float16"),
]


@pytest.mark.parametrize(("field", "value"), SHARED_FIELDS)
def test_model_config_names_a_bad_field(small, field, value):
    with pytest.raises(ModelError, match=f"^{field}: expected .*, got "):
        dataclasses.replace(small, **{field: value})


@pytest.mark.parametrize(
    ("family", "field", "value", "named"),
    [
        ("gpt_neox", "hidden_act", "softplus", "hidden_act"),
        ("gpt_neox", "hidden_act", ["gelu"], "hidden_act"),
        ("gpt_neox", "model_type", "gpt2", "model_type"),
        ("gpt_neox", "rotary_pct", 1.5, "rotary_pct"),
        ("gpt_neox", "rotary_pct", -0.25, "rotary_pct"),
        ("gpt_neox", "rotary_pct", "0.25", "rotary_pct"),
        ("gpt_neox", "use_parallel_residual", "false", "use_parallel_residual"),
        ("gpt_neox", "attention_bias", 1, "attention_bias"),
        ("gpt2", "hidden_act", "softplus", "activation_function"),
        ("gpt2", "model_type", "gpt_neox", "model_type"),
        ("gpt2", "scale_attn_weights", 1, "scale_attn_weights"),
        ("gpt2", "scale_attn_by_inverse_layer_idx", None, "scale_attn_by_inverse_layer_idx"),
    ],
)
def test_model_config_names_a_bad_field_of_a_family(family, field, value, named):
    with pytest.raises(ModelError, match=f"^{named}: expected .*, got "):
        dataclasses.replace(CONFIGS[family], **{field: value})


@pytest.mark.parametrize(
    ("name", "head", "order"),
    [("tpu", 64, "2, 3, 1, 0"), ("tpu", 128, "3, 2, 1, 0"), ("gpu", 64, None), ("cpu", 64, None)],
)
def test_densely_laid_is_about_tpus(name, head, order):
    cache = tuple((jnp.ones((2, 3, 5, head)), jnp.zeros((2, 3, 5, head))) for _ in range(2))
    with platform.compiling_for(platform.Platform(name, None)):
        lowered = jax.jit(lambda cache: models.densely_laid(cache)).lower(cache)
    text = lowered.as_text()
    assert text.count("LayoutConstraint") == (0 if order is None else 4)
    assert text.count(f"result_layouts = [dense<[{order}]>") == (0 if order is None else 4)
    jax.tree.map(np.testing.assert_array_equal, lowered.compile()(cache), cache)
