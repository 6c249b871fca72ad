"""What `models.apply` computes whatever the family: padding, positions, caches, dtypes, heads; torch is the oracle.

The families against transformers one by one: `nn/test_families.py`.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models
from jaxppo.nn import Computation, ModelSource, lora
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel import platform
from tests.peft_models import random_adapter
from tests.torch_models import (
    CONFIGS,
    LENGTHS,
    RAW,
    assert_equal_trees,
    from_torch,
    ragged_batch,
    random_params,
    refused,
    torch,
    torch_logits,
    torch_model,
    transformers,
)

NEOX = CONFIGS["gpt_neox"]
apply = models.apply  # not one program: the layers are, and most tests share theirs
close = partial(np.testing.assert_allclose, atol=1e-4, rtol=0)


@pytest.fixture(scope="module", params=list(RAW))
def default_model(request, tmp_path_factory):
    """(transformers model, config, parameters) with the default options; two layers, as one has another before it."""
    raw = RAW[request.param]
    model = torch_model(raw)
    return model, *from_torch(model, tmp_path_factory.mktemp("model"), raw)


def masked(config, params, ids, mask, **more):
    return apply(config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask), **more).logits


def test_without_a_mask_all_tokens_are_real(default_model):
    """Of rows padded on the right the real ones need no mask; none is made up from the ids."""
    model, config, params = default_model
    ids, mask = ragged_batch("right")
    ids[:, 0] = ids[0, 3:5] = config.pad_token_id
    output = apply(config, params, jnp.asarray(ids))
    close(output.logits[mask], torch_logits(model, ids, mask)[mask])
    close(output.logits[1], torch_logits(model, ids, np.ones_like(mask))[1])
    assert output.logits.dtype == jnp.float32
    assert output.cache is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(default_model, side):
    model, config, params = default_model
    ids, mask = ragged_batch(side)
    logits = masked(config, params, ids, mask)
    close(logits[mask], torch_logits(model, ids, mask)[mask])
    others = masked(config, params, np.where(mask, ids, (ids + 1) % config.vocab_size), mask)
    np.testing.assert_array_equal(logits[mask], others[mask])
    assert np.isfinite(logits).all()
    assert (logits[~mask] != others[~mask]).any()
    # Each row moved to the other end.
    moved = np.array([np.roll(row, LENGTHS.max() - length) for row, length in zip(ids, LENGTHS, strict=True)])
    if side == "right":
        close(masked(config, params, moved, mask[:, ::-1])[mask[:, ::-1]], logits[mask], atol=1e-5)


def test_positions_count_real_tokens(default_model):
    """The classic defect of left padding: GPT-2 with the positions of padded columns computes something else.

    Rotary attention is relative, so only a gap inside a row shows there how positions are counted.
    """
    model, config, params = default_model
    ids, mask = ragged_batch("left")
    run = partial(masked, config, params, ids)
    columns = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    difference = np.abs(run(mask) - run(mask, positions=columns))[mask].max()
    assert difference > 1 if config.model_type == "gpt2" else difference < 1e-4

    gaps = np.tile(np.array([[1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1], [1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0]], bool), (2, 1))
    expected = torch_logits(model, ids, gaps)
    logits = run(gaps)
    close(logits[gaps], expected[gaps])
    cached = run(gaps, cache=models.init_cache(config, *ids.shape))
    close(cached[gaps], expected[gaps])
    compact = torch_logits(model, ids[:1, gaps[0]], np.ones((1, gaps[0].sum()), bool))
    close(logits[0, gaps[0]], compact[0])

    given = np.sort(np.random.default_rng(1).integers(0, 40, ids.shape), axis=1)
    with torch.no_grad():
        expected = model(torch.tensor(ids), position_ids=torch.tensor(given)).logits.numpy()
    real = np.ones_like(mask)
    logits = run(real, positions=jnp.asarray(given))
    close(logits, expected)
    assert np.abs(logits - run(real)).max() > 1e-2


@pytest.mark.full
@pytest.mark.parametrize("cached", [False, True])
def test_right_padding_may_reach_past_the_positions_of_gpt2(cached):
    """Without a mask every column counts; rows of real tokens that fit must not notice."""
    config = dataclasses.replace(CONFIGS["gpt2"], max_position_embeddings=11)
    params = random_params(config)
    ids, mask = ragged_batch("right")
    wide = jnp.asarray(np.pad(ids, ((0, 0), (0, 20)), constant_values=5))
    cache = models.init_cache(config, *wide.shape) if cached else None
    logits = apply(config, params, wide, cache=cache).logits
    assert np.isfinite(logits).all()
    close(logits[:, :11][mask], apply(config, params, jnp.asarray(ids)).logits[mask], atol=1e-5)

    def loss(params):
        return jnp.where(mask[..., None], jnp.square(apply(config, params, wide).logits[:, :11]), 0).mean()

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.grad(loss)(params)))


def test_check_length_warns_once_of_rows_that_the_model_was_not_made_for_and_refuses_what_it_cannot_read(caplog):
    models._warned_limits.clear()
    config = dataclasses.replace(CONFIGS["llama"], max_position_embeddings=100)
    models.check_length(config, 100, "prompt", model_max_length=10**30)
    assert not caplog.records
    for tokens in (101, 102):
        models.check_length(config, tokens, "prompt", model_max_length=10**30)
    assert len(caplog.records) == 1
    assert "101 tokens" in caplog.text and "100 (max_position_embeddings)" in caplog.text
    assert str(models.made_for(config, 80.0)) == "(80, 'model_max_length')"
    models.check_length(config, 90, "prompt", model_max_length=80)
    assert "90 tokens" in caplog.text and "80 (model_max_length)" in caplog.text
    for family in ("gpt_neox", "llama"):  # rotary positions have no end
        assert CONFIGS[family].max_length is None
        models.check_length(CONFIGS[family], 10**6, "prompt")
    models.check_length(CONFIGS["gpt2"], 128, "prompt")
    refused("^prompt: .*128.*129", models.check_length, CONFIGS["gpt2"], 129, "prompt")


def test_a_cache_without_a_mask_is_all_that_was_written_to_it(default_model):
    """And nothing of what its unused slots hold."""
    model, config, params = default_model
    ids, _ = ragged_batch("right")
    expected = torch_logits(model, ids, np.ones_like(ids, bool))
    for fill in (0, 9):
        cache = jax.tree.map(lambda x, fill=fill: jnp.full_like(x, fill), models.init_cache(config, len(ids), 15))
        output = apply(config, params, jnp.asarray(ids[:, :8]), cache=cache)
        logits = [output.logits]
        for i in range(8, ids.shape[1]):
            output = apply(config, params, jnp.asarray(ids[:, i : i + 1]), cache=output.cache, cache_index=i)
            logits.append(output.logits)
        close(np.concatenate(logits, axis=1), expected)


SOME = LoraConfig(
    r=3, target_modules=("query_key_value", "dense_4h_to_h", "c_attn", "mlp.c_proj", "k_proj", "down_proj")
)
"""One layer of the attention and one of the MLP in each block of a model."""


def adapted(config, params):
    return lora.attach(params, random_adapter(config, SOME), 2.0)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((family, None) for family in CONFIGS), pytest.param("llama", "bfloat16", marks=pytest.mark.full)],
)
def test_apply_reads_any_tokens_as_if_it_had_read_all(family, dtype):
    config = dataclasses.replace(CONFIGS[family], computation=Computation(dtype=dtype))
    params = adapted(config, random_params(config))
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

    run = jax.value_and_grad(of_read, has_aux=True)
    (_, (hidden, new_cache)), grads = run(params, False)
    (_, (whole, whole_cache)), whole_grads = run(params, True)
    near = partial(np.testing.assert_allclose, **({"atol": 1e-4} if dtype is None else {"atol": 0.1}))
    jax.tree.map(near, (hidden, new_cache), (whole, whole_cache))
    scale = max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(whole_grads))
    jax.tree.map(lambda a, b: near(a / scale, b / scale), grads, whole_grads)


def test_apply_checks_the_shapes():
    params, ids = random_params(NEOX), jnp.arange(4)[None]
    for name, arguments in (
        (r"attention_mask: .*\(1, 4\).*\(1, 5\)", {"attention_mask": jnp.ones((1, 5), bool)}),
        (
            r"attention_mask: .*\(1, 6\).*\(1, 4\)",
            {"attention_mask": jnp.ones((1, 4), bool), "cache": models.init_cache(NEOX, 1, 6)},
        ),
        ("cache: .*4", {"cache": models.init_cache(NEOX, 1, 3)}),
    ):
        with pytest.raises(ValueError, match=name):
            apply(NEOX, params, ids, **arguments)


@pytest.mark.parametrize(
    ("name", "head", "order"), [("tpu", 64, "2, 3, 1, 0"), ("tpu", 128, "3, 2, 1, 0"), ("gpu", 64, None)]
)
def test_densely_laid_is_about_tpus(name, head, order):
    cache = tuple((jnp.ones((2, 3, 5, head)), jnp.zeros((2, 3, 5, head))) for _ in range(2))
    with platform.compiling_for(platform.Platform(name, None)):
        lowered = jax.jit(lambda cache: models.dense_layout(cache)).lower(cache)
    text = lowered.as_text()
    assert text.count("LayoutConstraint") == (0 if order is None else 4)
    assert text.count(f"result_layouts = [dense<[{order}]>") == (0 if order is None else 4)
    assert_equal_trees(lowered.compile()(cache), cache)


def cast(params, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), params)


def test_compute_dtype_is_that_of_parameters_cast_by_hand(default_model):
    _, config, params = default_model
    half_config, half = (
        dataclasses.replace(config, computation=Computation(dtype="bfloat16")),
        cast(params, jnp.bfloat16),
    )
    ids, mask = ragged_batch("left")
    run = partial(apply, input_ids=jnp.asarray(ids), attention_mask=jnp.asarray(mask))
    cache = models.init_cache(half_config, *ids.shape)
    output = run(half_config, params, cache=cache)
    assert output.hidden.dtype == output.cache[0][0].dtype == jnp.bfloat16
    assert output.logits.dtype == jnp.float32
    by_hand = run(config, half, cache=cache)
    assert by_hand.hidden.dtype == jnp.bfloat16
    assert_equal_trees(output, by_hand)
    ready = models.for_decoding(half_config, params | {"value_head": {"kernel": jnp.ones((32, 1))}})
    assert {leaf.dtype for leaf in jax.tree.leaves(ready["trunk"])} == {jnp.dtype("bfloat16")}
    assert ready["value_head"]["kernel"].dtype == jnp.float32
    assert_equal_trees(output, run(half_config, ready, cache=cache))

    expected = run(config, params).logits[mask]
    assert 0 < np.abs(output.logits[mask] - expected).mean() < 0.05 * np.abs(expected).mean()
    above = run(dataclasses.replace(config, computation=Computation(dtype="float32")), half)
    assert above.hidden.dtype == jnp.float32
    close(above.logits, run(config, cast(half, jnp.float32)).logits, atol=1e-5)


@pytest.mark.full
def test_compute_dtype_leaves_gradients_in_the_dtype_of_the_parameters():
    params = random_params(NEOX)
    ids = jnp.asarray(ragged_batch("right")[0])

    @partial(jax.grad, argnums=1)
    def gradients(config, params):
        logprobs = jax.nn.log_softmax(apply(config, params, ids[:, :-1]).logits)
        return -jnp.take_along_axis(logprobs, ids[:, 1:, None], axis=-1).mean()

    half, full = (
        gradients(dataclasses.replace(NEOX, computation=Computation(dtype=dtype)), params)
        for dtype in ("bfloat16", None)
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(half)} == {jnp.dtype("float32")}
    both = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (half, full)]
    assert np.linalg.norm(both[0] - both[1]) < 0.1 * np.linalg.norm(both[1])


def test_for_decoding_merges_the_adapters_that_apply_adds(default_model):
    _, config, params = default_model
    same = models.for_decoding(config, params)
    assert same["trunk"]["embed_in"]["embedding"] is params["trunk"]["embed_in"]["embedding"]
    with_adapters = adapted(config, params)
    merged = models.for_decoding(config, with_adapters)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    first, second, plain = (masked(config, tree, *ragged_batch("left")) for tree in (with_adapters, merged, params))
    close(first, second)
    assert np.abs(first - plain).max() > 1


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


def test_init_params_depends_on_the_key_alone_and_has_the_head_asked_for():
    init = partial(models.init_params, NEOX)
    first, again, other = (init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert_equal_trees(first, again)
    assert not np.array_equal(first["lm_head"]["kernel"], other["lm_head"]["kernel"])
    assert not np.array_equal(first["trunk"]["embed_in"]["embedding"], other["trunk"]["embed_in"]["embedding"])
    assert set(first) == {"trunk", "lm_head"}
    tied = models.init_params(dataclasses.replace(NEOX, tie_word_embeddings=True), jax.random.key(0))
    assert set(tied) == set(init(jax.random.key(0), head=None)) == {"trunk"}
    assert jax.tree.map(jnp.shape, init(jax.random.key(0), head="score")["score"]) == {"kernel": (32, 1)}
    refused("^head: .*value", init, jax.random.key(0), head="value")
    head = models.init_score_head(NEOX, jax.random.key(0), scale=0.0, use_bias=True)
    assert jax.tree.map(jnp.shape, head) == {"kernel": (32, 1), "bias": (1,)}
    assert not any(leaf.any() for leaf in jax.tree.leaves(head))
    assert 0.01 < models.init_score_head(NEOX, jax.random.key(0))["kernel"].std() < 0.03


@pytest.mark.parametrize("tied", [False, True])
def test_heads_are_products_with_hidden_states(tied):
    config = dataclasses.replace(NEOX, tie_word_embeddings=tied)
    params = random_params(config)
    output = apply(config, params, jnp.arange(6)[None])
    kernel = models.lm_head_kernel(config, params)
    assert kernel.shape == (config.hidden_size, config.vocab_size)
    close(output.hidden @ kernel, output.logits, atol=1e-5)
    close(models.lm_logits(config, params, output.hidden[0, 3:]), output.logits[0, 3:], atol=1e-5)
    head = {"kernel": jnp.cos(jnp.arange(32.0))[:, None], "bias": jnp.array([3.0])}
    values = models.scores(params | {"score": head}, output.hidden)
    np.testing.assert_allclose(values, (output.hidden @ head["kernel"])[..., 0] + 3.0, rtol=1e-5)
    assert models.apply(config, {"trunk": params["trunk"]}, jnp.arange(6)[None], logits=False).logits is None
    refused(
        "^lm_head: .*trunk, score", models.apply, NEOX, {"trunk": params["trunk"], "score": head}, jnp.arange(6)[None]
    )


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("gpt_neox", "vocab_size", 0),
        ("gpt_neox", "hidden_size", 32.0),
        ("gpt_neox", "num_hidden_layers", 257),
        ("gpt_neox", "num_attention_heads", 5),
        ("gpt_neox", "layer_norm_eps", float("nan")),
        ("gpt_neox", "initializer_range", -0.1),
        ("gpt_neox", "tie_word_embeddings", None),
        ("gpt_neox", "eos_token_id", 61),
        ("gpt_neox", "eos_token_id", ()),
        ("gpt_neox", "bos_token_id", [0, 1]),
        ("gpt_neox", "hidden_act", "softplus"),
        ("gpt_neox", "model_type", "gpt2"),
        ("gpt_neox", "rotary_pct", 1.5),
        ("gpt_neox", "use_parallel_residual", "false"),
        ("gpt2", "model_type", "gpt_neox"),
        ("gpt2", "scale_attn_weights", 1),
        ("llama", "model_type", "bert"),
        ("llama", "mlp_bias", 1),
    ],
)
def test_model_config_names_a_bad_field(family, field, value):
    refused(f"^{field}: ", dataclasses.replace, CONFIGS[family], **{field: value})


@pytest.mark.parametrize(("field", "value"), [("dtype", "float16"), ("attention", "flash"), ("accelerated", 1)])
def test_computation_names_a_bad_field(field, value):
    refused(f"^{field}: ", Computation, **{field: value})


def test_tokens_of_the_source_are_of_the_vocabulary():
    for field, value in (("num_tokens", 62), ("end_ids", (61,))):
        refused(f"^{field}: ", dataclasses.replace, NEOX, source=ModelSource(**{field: value}))
