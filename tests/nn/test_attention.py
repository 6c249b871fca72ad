"""All forms of attention compute what `plain` does: results and gradients."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models
from jaxppo.nn import Computation, attention, kernels
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.parallel import platform
from jaxppo.parallel.platform import Platform
from tests.torch_models import random_params

RNG = np.random.default_rng(0)
SLOTS = jnp.arange(21)[None]


def arrays(b=2, h=4, g=2, t=21, k=8, dtype=jnp.float32):
    draw = lambda heads: jnp.asarray(RNG.normal(size=(b, heads, t, k)), dtype)  # noqa: E731
    return draw(h), draw(g), draw(g)


def plain(q, k, v, queries, mask, scale, window=None):
    return attention.attend(q, k, v, attention.causal_bias(queries, k.shape[2], mask, window), scale)


def masks(t):
    """All real, left padding, right padding."""
    lengths = np.array([t, t // 2])[:, None]
    return [np.ones((2, t), bool), np.arange(t) >= t - lengths, np.arange(t) < lengths]


@partial(jax.jit, static_argnums=0)
def value_and_gradients(form, q, k, v, mask=None, real=None):
    """Of a sum in which every result, or that of every real token, has a weight of its own.

    `form` takes queries, keys, values and the mask.
    """
    weights = jnp.cos(jnp.arange(q.size, dtype=jnp.float32)).reshape(q.shape)
    if real is not None:
        weights = weights * real[:, None, :, None]
    total = lambda *x: jnp.sum(form(*x, mask).astype(jnp.float32) * weights)  # noqa: E731
    return jax.value_and_grad(total, (0, 1, 2))(q, k, v)


def assert_close(found, expected, tolerance):
    largest = lambda x: float(jnp.max(jnp.abs(x.astype(jnp.float32))))  # noqa: E731
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        difference = a.astype(jnp.float32) - b.astype(jnp.float32)
        assert largest(difference) <= tolerance * max(1.0, largest(b))


@pytest.fixture(scope="module")
def reference():
    """Window -> `plain`: compiled once for all blocks."""
    return {window: lambda *x, w=window: plain(*x[:3], SLOTS, x[3], 0.3, window=w) for window in (None, 5)}


@pytest.mark.parametrize(("block", "window"), [(1, 5), (4, None), (8, 5), (8, None), (21, 5)])
def test_blocks_are_plain(block, window, reference):
    drawn = arrays()
    blocks = lambda *x: attention.attend_in_blocks(*x[:3], SLOTS, x[3], 0.3, window=window, block=block)  # noqa: E731
    expected = [value_and_gradients(reference[window], *drawn, mask) for mask in masks(21)]
    for mask, plainly in zip(masks(21), expected, strict=True):
        assert_close(value_and_gradients(blocks, *drawn, mask), plainly, 1e-5)
    if block == 8:
        assert_close(value_and_gradients(blocks, *drawn), expected[0], 1e-5)  # no mask: all are real


@pytest.mark.parametrize("window", [None, 5])
def test_plain_leaves_out_keys_that_no_query_of_a_block_sees(window, reference, monkeypatch):
    monkeypatch.setattr(attention, "CAUSAL_BLOCK", 8)
    q, k, v = arrays()

    def in_blocks(q, k, v, mask):
        attended, _ = attention.attend_cached(q, k, v, attention.AttentionContext(mask=mask), scale=0.3, window=window)
        return attended.reshape(2, 21, 4, 8).transpose(0, 2, 1, 3)

    for mask in masks(21):
        expected = value_and_gradients(reference[window], q, k, v, mask, mask)
        assert_close(value_and_gradients(in_blocks, q, k, v, mask, mask), expected, 1e-5)
    assert "42x21xf32" not in jax.jit(in_blocks).lower(q, k, v, mask).as_text()  # 21 queries of 2 heads, all keys


def test_blocks_of_queries_at_slots_of_their_own():
    q, k, v = arrays()
    read = jnp.array([[3, 20, 4, 4, 7], [0, 1, 19, 2, 11]])
    results = []
    for form in (plain, partial(attention.attend_in_blocks, block=2)):
        at_slots = lambda *x, f=form: f(*x[:3], read, masks(21)[1], 0.3)  # noqa: E731
        results.append(value_and_gradients(at_slots, q[:, :, :5], k, v))
    assert_close(results[1], results[0], 1e-5)


def test_the_number_of_queries_at_once_follows_from_the_scores_allowed(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_SCORES", 2 * 4 * 100 * 25)
    q, k, v = arrays(t=100)
    program = jax.jit(lambda *x: attention.attend_in_blocks(*x, jnp.arange(100)[None], None, 0.3))
    text = program.lower(q, k, v).as_text()
    assert "tensor<2x2x50x100xf32>" in text  # 25 queries of each of the 2 heads that share keys
    assert "100x100xf32" not in text and "200x100xf32" not in text


@pytest.mark.parametrize(("name", "window"), [("triton", None), ("splash", None), ("splash", 9)])
def test_kernels_are_plain(name, window):
    options = {} if name == "triton" else {"window": window}
    drawn = arrays(h=2, g=1, t=70, k=16)
    slots = jnp.arange(70)[None]
    run = partial(getattr(kernels, name), scale=0.3, interpret=True, **options)
    kernel = lambda *x: run(*x[:3], mask=x[3])  # noqa: E731
    reference = lambda *x: plain(*x[:3], slots, x[3], 0.3, window=window)  # noqa: E731
    if window is None:
        for mask in masks(70)[1:]:
            found, expected = (value_and_gradients(form, *drawn, mask, mask) for form in (kernel, reference))
            assert_close(found, expected, 1e-4)
    if window is not None or name == "triton":
        found, expected = (value_and_gradients(form, *drawn) for form in (kernel, reference))
        assert_close(found, expected, 1e-4)


@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("mask", [None, *masks(565)[1:]], ids=["no mask", "left padding", "right padding"])
def test_the_kernel_of_this_device_is_plain(mask, head_size):
    form = models.with_dtype(NEOX, "bfloat16").computation.attention
    if form == "plain":
        pytest.skip("no GPU or TPU, see tests/conftest.py")
    halves = arrays(h=4, g=2, t=565, k=head_size, dtype=jnp.bfloat16)
    in_float32 = [x.astype(jnp.float32) for x in halves]
    slots, scale = jnp.arange(565)[None], head_size**-0.5
    kernel = lambda *x: kernels.attend(form, *x, scale, None)  # noqa: E731
    _, gradients = value_and_gradients(kernel, *halves, mask, mask)
    _, expected = value_and_gradients(lambda *x: plain(*x[:3], slots, x[3], scale), *in_float32, mask, mask)
    assert_close(gradients, expected, 0.02)
    real = jnp.ones((2, 1, 565, 1)) if mask is None else jnp.asarray(mask)[:, None, :, None]
    assert_close(kernel(*halves, mask) * real, plain(*in_float32, slots, mask, scale) * real, 0.02)


def test_the_platform_chooses_the_form_and_kernels_are_for_bfloat16_and_without_a_window_for_triton():
    half, whole = arrays(dtype=jnp.bfloat16), arrays()
    assert kernels.attend("triton", *whole, None, 0.3, None) is None
    assert kernels.attend("splash", *whole, None, 0.3, None) is None
    assert kernels.attend("triton", *half, None, 0.3, window=5) is None
    forms = {}
    for name in ("cpu", "gpu", "tpu"):
        with platform.compiling_for(Platform(name, None)):
            forms[name] = models.with_dtype(NEOX, "bfloat16").computation.attention
            assert models.with_dtype(NEOX, "bfloat16", "blocks").computation.attention == "blocks"
    assert forms == {"cpu": "plain", "gpu": "triton", "tpu": "splash"}


NEOX = GPTNeoXConfig(
    vocab_size=24,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
)
MISTRAL = LlamaConfig(
    model_type="mistral",
    vocab_size=24,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    intermediate_size=32,
    sliding_window=5,
    window_layers=(0, 1),
)


@pytest.mark.parametrize("form", ["triton", "splash"], ids=["one by one", "loop"])
@pytest.mark.parametrize("config", [NEOX, MISTRAL], ids=["neox", "mistral"])
def test_models_are_the_same_by_blocks_and_in_a_loop(config, form):
    params = random_params(config)
    ids, read = RNG.integers(0, 24, (3, 12)), np.array([[3, 4, 11], [0, 5, 6], [9, 10, 11]])

    def loss(params, config):
        out = models.apply(config, params, ids, read=read)
        return jnp.sum(jnp.cos(jnp.arange(24.0)) * out.logits)

    accelerated = dataclasses.replace(config, computation=Computation(accelerated=True, attention=form))
    assert accelerated.scans_layers == (form == "splash")
    found, expected = (jax.value_and_grad(loss)(params, each) for each in (accelerated, config))
    assert_close(found, expected, 1e-5)


def test_the_gradient_of_layers_one_by_one_does_not_call_the_kernel_again(monkeypatch):
    monkeypatch.setattr(kernels, "triton", partial(kernels.triton, interpret=True))
    params, ids = random_params(NEOX), RNG.integers(0, 24, (2, 64))

    def loss(params, config):
        return jnp.mean(jnp.cos(jnp.arange(24.0)) * models.apply(config, params, ids).logits)

    computation = Computation(dtype="bfloat16", accelerated=True, attention="triton")
    one_by_one = dataclasses.replace(NEOX, computation=computation)
    assert not one_by_one.scans_layers
    found, expected = (jax.value_and_grad(loss)(params, each) for each in (one_by_one, NEOX))
    assert_close(found, expected, 0.05)
    # Forward, and two kernels of the gradient.
    num_layers = NEOX.num_hidden_layers
    assert kernel_calls(jax.make_jaxpr(jax.grad(loss), static_argnums=1)(params, one_by_one)) == 3 * num_layers
    monkeypatch.setattr("jaxppo.nn.config.SCAN_FROM_ON_GPU", 1)
    assert one_by_one.scans_layers
    assert_close(jax.value_and_grad(loss)(params, one_by_one), found, 0.01)


def kernel_calls(jaxpr):
    """How often a traced program calls a kernel, functions that it calls included."""
    count = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            count += 1
            continue
        for callee in map(equation.params.get, ("jaxpr", "call_jaxpr")):
            if callee is not None:
                count += kernel_calls(getattr(callee, "jaxpr", callee))
    return count


@pytest.mark.parametrize("form", ["blocks", "triton"])
def test_a_prompt_and_tokens_after_it_are_the_same_by_blocks(form):
    params, blocks = random_params(MISTRAL), dataclasses.replace(MISTRAL, computation=Computation(attention=form))
    ids, mask = RNG.integers(0, 24, (2, 9)), masks(9)[1]
    slots = np.pad(mask, ((0, 0), (0, 1)), constant_values=True)
    results = []
    for config in (MISTRAL, blocks):
        cache = models.init_cache(config, 2, 10)
        first = models.apply(config, params, ids, attention_mask=slots, cache=cache)
        step = models.apply(
            config, params, ids[:, :1], attention_mask=slots, cache=first.cache, cache_index=jnp.int32(9)
        )
        results.append((jnp.where(mask[..., None], first.logits, 0.0), step.logits))
    assert_close(results[1], results[0], 1e-5)
