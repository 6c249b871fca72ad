"""The models against transformers (torch), and against themselves: padding, caching, tying."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import hf, models
from jaxppo.errors import ModelError
from jaxppo.models import ModelConfig

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
CONFIG = ModelConfig(**SIZES)
LENGTHS = np.array([11, 3, 7, 1])  # ragged rows, one full and one of a single token

OPTIONS = {
    "default": {},
    "rotary_half": {"rotary_pct": 0.5},
    "rotary_full": {"rotary_pct": 1.0},
    "rotary_odd": {"rotary_pct": 0.4},  # 3 of 8 dimensions: transformers rotates two pairs
    "rope_theta": {"rope_theta": 100.0},
    "sequential": {"use_parallel_residual": False},
    "sequential_tied_no_bias": {"use_parallel_residual": False, "tie_word_embeddings": True, "attention_bias": False},
    "tied": {"tie_word_embeddings": True},
    "no_attention_bias": {"attention_bias": False},
    "relu": {"hidden_act": "relu"},
    "gelu_new": {"hidden_act": "gelu_new"},
    "layer_norm_eps": {"layer_norm_eps": 0.1},
}


apply = jax.jit(models.apply, static_argnums=0, static_argnames="logits")


def torch_model(options, head="lm"):
    """A transformers model with parameters large enough that every option shows in the outputs."""
    fields = SIZES | options
    rope = {
        "rope_type": "default",
        "rope_theta": fields.pop("rope_theta", 10000.0),
        "partial_rotary_factor": fields.pop("rotary_pct", 0.25),
    }
    config = transformers.GPTNeoXConfig(**fields, rope_parameters=rope, num_labels=1)
    name = {"lm": "GPTNeoXForCausalLM", "score": "GPTNeoXForSequenceClassification"}[head]
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def from_torch(model, folder):
    model.save_pretrained(folder)
    return hf.load_pretrained(folder)


@pytest.fixture(scope="module")
def default_model(tmp_path_factory):
    """(transformers model, config, parameters) with the default options."""
    model = torch_model({})
    return model, *from_torch(model, tmp_path_factory.mktemp("model"))


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


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_apply_gives_the_logits_of_transformers(options, tmp_path):
    model = torch_model(options)
    config, params = from_torch(model, tmp_path)
    assert {name: getattr(config, name) for name in options} == options
    for side in ("left", "right"):
        ids, mask = ragged_batch(side)
        expected = torch_logits(model, ids, mask)
        logits = apply(config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask)).logits
        assert np.abs(expected[mask]).max() > 1  # or the tolerance would be empty
        np.testing.assert_allclose(logits[mask], expected[mask], atol=1e-4, rtol=0)


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


@pytest.mark.parametrize("name", models.ACTIVATIONS)
def test_activations_are_those_of_transformers(name):
    x = np.linspace(-9, 9, 1001, dtype=np.float32)
    expected = transformers.activations.ACT2FN[name](torch.tensor(x)).numpy()
    np.testing.assert_allclose(models.ACTIVATIONS[name](jnp.asarray(x)), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, OPTIONS["sequential_tied_no_bias"]], ids=["default", "tied"])
def test_apply_has_the_gradients_of_transformers(options, tmp_path):
    model = torch_model(options)
    config, params = from_torch(model, tmp_path / "model")
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
    _, expected = from_torch(model, tmp_path / "gradients")
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4, rtol=1e-4), gradients, expected)
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients)) > 1e-6


def test_scores_are_those_of_sequence_classification(tmp_path):
    model = torch_model({}, head="score")
    config, params = from_torch(model, tmp_path)
    ids, mask = ragged_batch("right")
    ids = np.where(mask, np.maximum(ids, 2), config.pad_token_id)  # transformers finds the last token by its id
    with torch.no_grad():
        expected = model(torch.tensor(ids), attention_mask=torch.tensor(mask.astype(int))).logits[:, 0].numpy()
    scores = models.scores(params, apply(config, params, jnp.asarray(ids), logits=False).hidden)
    assert scores.shape == ids.shape
    np.testing.assert_allclose(scores[np.arange(len(LENGTHS)), LENGTHS - 1], expected, atol=1e-4, rtol=0)


def test_scores_of_a_value_head_on_the_policy_trunk():
    params = models.init_params(CONFIG, jax.random.key(0))
    head = models.init_score_head(CONFIG, jax.random.key(1), use_bias=True)
    params["value_head"] = head | {"bias": jnp.array([3.0])}
    output = apply(CONFIG, params, jnp.arange(5)[None])
    values = models.scores(params, output.hidden, head="value_head")
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
    steps, (rows, prompt) = 32, ids.shape
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


def test_apply_compiles_once_for_equal_configs():
    params = models.init_params(CONFIG, jax.random.key(0))
    traces = []

    @partial(jax.jit, static_argnums=0)
    def run(config, params, ids):
        traces.append(config)
        return apply(config, params, ids).hidden

    run(CONFIG, params, jnp.arange(4)[None])
    run(dataclasses.replace(CONFIG), params, jnp.arange(4)[None])
    assert len(traces) == 1


def test_apply_computes_in_the_dtype_of_the_parameters(default_model):
    _, config, params = default_model
    ids = jnp.asarray(ragged_batch("right")[0])
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    cache = models.init_cache(config, *ids.shape, dtype=jnp.bfloat16)
    output = apply(config, half, ids, cache=cache)
    assert output.hidden.dtype == output.cache[0][0].dtype == jnp.bfloat16
    assert output.logits.dtype == jnp.float32
    expected = apply(config, params, ids).logits
    assert np.abs(output.logits - expected).mean() < 0.05 * np.abs(expected).mean()


def test_init_params_draws_like_transformers():
    config = dataclasses.replace(CONFIG, hidden_size=64, intermediate_size=256, initializer_range=0.05)
    params = models.init_params(config, jax.random.key(0))
    layer = params["trunk"]["layers"]["1"]
    for kernel in (layer["attention"]["query_key_value"]["kernel"], layer["mlp"]["dense_4h_to_h"]["kernel"]):
        assert 0.047 < kernel.std() < 0.053
    assert 0.047 < params["trunk"]["embed_in"]["embedding"].std() < 0.053
    assert 0.047 < params["lm_head"]["kernel"].std() < 0.053
    assert (layer["input_layernorm"]["scale"] == 1).all()
    assert (layer["mlp"]["dense_h_to_4h"]["bias"] == 0).all()
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert not np.array_equal(
        params["trunk"]["layers"]["0"]["mlp"]["dense_h_to_4h"]["kernel"], layer["mlp"]["dense_h_to_4h"]["kernel"]
    )


def test_init_params_depends_on_the_key_alone():
    first, again, other = (models.init_params(CONFIG, jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first["lm_head"]["kernel"], other["lm_head"]["kernel"])
    assert not np.array_equal(first["trunk"]["embed_in"]["embedding"], other["trunk"]["embed_in"]["embedding"])


def test_init_params_has_the_head_asked_for():
    key = jax.random.key(0)
    tied = dataclasses.replace(CONFIG, tie_word_embeddings=True)
    assert set(models.init_params(CONFIG, key)) == {"trunk", "lm_head"}
    assert set(models.init_params(tied, key)) == {"trunk"}
    assert set(models.init_params(CONFIG, key, head=None)) == {"trunk"}
    score = models.init_params(CONFIG, key, head="score")
    assert jax.tree.map(jnp.shape, score["score"]) == {"kernel": (32, 1)}
    with pytest.raises(ModelError, match="head: expected 'lm', 'score' or None, got 'value'"):
        models.init_params(CONFIG, key, head="value")


def test_init_score_head_can_start_at_zero():
    head = models.init_score_head(CONFIG, jax.random.key(0), scale=0.0, use_bias=True)
    assert jax.tree.map(jnp.shape, head) == {"kernel": (32, 1), "bias": (1,)}
    assert not any(leaf.any() for leaf in jax.tree.leaves(head))
    assert 0.01 < models.init_score_head(CONFIG, jax.random.key(0))["kernel"].std() < 0.03


@pytest.mark.parametrize("tied", [False, True])
def test_lm_logits_are_hidden_states_times_the_head_kernel(tied):
    config = dataclasses.replace(CONFIG, tie_word_embeddings=tied)
    params = models.init_params(config, jax.random.key(0))
    output = apply(config, params, jnp.arange(6)[None])
    kernel = models.lm_head_kernel(config, params)
    assert kernel.shape == (config.hidden_size, config.vocab_size)
    np.testing.assert_allclose(models.lm_logits(config, params, output.hidden[0, 3:]), output.logits[0, 3:], atol=1e-6)
    np.testing.assert_allclose(output.hidden @ kernel, output.logits, atol=1e-6)


def test_apply_without_a_head_names_it():
    params = models.init_params(CONFIG, jax.random.key(0), head="score")
    with pytest.raises(ModelError, match="lm_head: expected among the parameters, got trunk, score"):
        models.apply(CONFIG, params, jnp.arange(3)[None])
    assert apply(CONFIG, params, jnp.arange(3)[None], logits=False).logits is None


def test_apply_checks_the_shapes():
    params = models.init_params(CONFIG, jax.random.key(0))
    ids = jnp.arange(4)[None]
    with pytest.raises(ValueError, match=r"attention_mask: expected shape \(1, 4\), got \(1, 5\)"):
        apply(CONFIG, params, ids, attention_mask=jnp.ones((1, 5), bool))
    with pytest.raises(ValueError, match=r"attention_mask: expected shape \(1, 6\), got \(1, 4\)"):
        cache = models.init_cache(CONFIG, 1, 6)
        apply(CONFIG, params, ids, attention_mask=jnp.ones((1, 4), bool), cache=cache)
    with pytest.raises(ValueError, match="cache: expected at least 4 slots"):
        apply(CONFIG, params, ids, cache=models.init_cache(CONFIG, 1, 3))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "llama"),
        ("hidden_act", "softplus"),
        ("hidden_act", ["gelu"]),
        ("vocab_size", 0),
        ("hidden_size", 32.0),
        ("num_hidden_layers", -1),
        ("num_attention_heads", 5),
        ("intermediate_size", None),
        ("max_position_embeddings", "2048"),
        ("rotary_pct", 1.5),
        ("rotary_pct", -0.25),
        ("rotary_pct", "0.25"),
        ("rope_theta", 0),
        ("layer_norm_eps", float("nan")),
        ("initializer_range", -0.1),
        ("use_parallel_residual", "false"),
        ("attention_bias", 1),
        ("eos_token_id", 61),
        ("pad_token_id", -1),
        ("bos_token_id", [0, 1]),
    ],
)
def test_model_config_names_a_bad_field(field, value):
    with pytest.raises(ModelError, match=f"^{field}: expected .*, got "):
        ModelConfig(**(SIZES | {field: value}))
