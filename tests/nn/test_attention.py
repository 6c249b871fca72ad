"""All forms of attention compute what `plain` does: results and gradients."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models
from jaxppo.nn import attention, kernels
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.parallel import platform
from jaxppo.parallel.platform import Platform

RNG = np.random.default_rng(0)


def arrays(b=2, h=4, g=2, t=21, k=8, dtype=jnp.float32):
    draw = lambda heads: jnp.asarray(RNG.normal(size=(b, heads, t, k)), dtype)  # noqa: E731
    return draw(h), draw(g), draw(g)


def plain(q, k, v, queries, mask, scale, window=None):
    return attention.attend(q, k, v, attention.Seen(queries, mask, window).bias(queries, k.shape[2]), scale)


def masks(t):
    """No mask, left padding, right padding."""
    lengths = np.array([t, t // 2])[:, None]
    return [None, np.arange(t) >= t - lengths, np.arange(t) < lengths]


def value_and_gradients(form, q, k, v, real=None):
    """Of a sum in which every result of a real token has a weight of its own."""
    weights = jnp.cos(jnp.arange(q.size, dtype=jnp.float32)).reshape(q.shape)
    if real is not None:
        weights = weights * real[:, None, :, None]
    total = lambda *x: jnp.sum(form(*x).astype(jnp.float32) * weights)  # noqa: E731
    return jax.jit(jax.value_and_grad(total, (0, 1, 2)))(q, k, v)


def assert_close(found, expected, tolerance):
    largest = lambda x: float(jnp.max(jnp.abs(x.astype(jnp.float32))))  # noqa: E731
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        difference = a.astype(jnp.float32) - b.astype(jnp.float32)
        assert largest(difference) <= tolerance * max(1.0, largest(b))


@pytest.mark.parametrize("block", [1, 4, 8, 21])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("mask", masks(21), ids=["all real", "left padding", "right padding"])
def test_blocks_are_plain(block, window, mask):
    drawn, blocks = arrays(), partial(attention.attend_in_blocks, block=block)
    found, expected = (
        value_and_gradients(lambda *x, f=form: f(*x, jnp.arange(21)[None], mask, 0.3, window=window), *drawn)
        for form in (blocks, plain)
    )
    assert_close(found, expected, 1e-5)


def test_blocks_of_queries_at_slots_of_their_own():
    q, k, v = arrays()
    read = jnp.array([[3, 20, 4, 4, 7], [0, 1, 19, 2, 11]])
    q = q[:, :, :5]
    blocks = partial(attention.attend_in_blocks, block=2)
    results = [value_and_gradients(lambda *x, f=f: f(*x, read, masks(21)[1], 0.3), q, k, v) for f in (plain, blocks)]
    assert_close(results[1], results[0], 1e-5)


def test_the_number_of_queries_at_once_follows_from_the_scores_allowed(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_SCORES", 2 * 4 * 100 * 25)
    q, k, v = arrays(t=100)
    program = jax.jit(lambda *x: attention.attend_in_blocks(*x, jnp.arange(100)[None], None, 0.3))
    text = program.lower(q, k, v).as_text()
    assert "tensor<2x2x50x100xf32>" in text  # 25 queries of each of the 2 heads that share keys
    assert "100x100xf32" not in text and "200x100xf32" not in text


@pytest.mark.parametrize("mask", masks(70), ids=["all real", "left padding", "right padding"])
@pytest.mark.parametrize("name", ["triton", "splash"])
def test_kernels_are_plain(name, mask):
    kernel = partial(kernels.KERNELS[name], mask=mask, scale=0.3, interpret=True)
    q, k, v = arrays(h=2, g=1, t=70, k=16)
    real = np.ones((2, 70)) if mask is None else mask
    reference = value_and_gradients(lambda *x: plain(*x, jnp.arange(70)[None], mask, 0.3), q, k, v, real)
    assert_close(value_and_gradients(kernel, q, k, v, real), reference, 1e-4)


@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("mask", masks(565), ids=["all real", "left padding", "right padding"])
def test_the_kernel_of_this_device_is_plain(mask, head_size):
    form = models.computing_in(NEOX, "bfloat16").attention
    if form == "plain":
        pytest.skip("no GPU or TPU, see tests/conftest.py")
    arguments = arrays(h=4, g=2, t=565, k=head_size, dtype=jnp.bfloat16)
    in_float32 = [x.astype(jnp.float32) for x in arguments]
    real = np.ones((2, 565)) if mask is None else mask
    scale = head_size**-0.5
    kernel = lambda *x: kernels.attend(form, *x, mask, scale, None)  # noqa: E731
    reference = value_and_gradients(lambda *x: plain(*x, jnp.arange(565)[None], mask, scale), *in_float32, real)
    _, gradients = value_and_gradients(kernel, *arguments, real)
    assert_close(gradients, reference[1], 0.02)
    attended = kernel(*arguments) * jnp.asarray(real, jnp.bfloat16)[:, None, :, None]
    expected = plain(*in_float32, jnp.arange(565)[None], mask, scale) * jnp.asarray(real)[:, None, :, None]
    assert_close(attended, expected, 0.02)


def test_splash_attention_has_windows():
    q, k, v = arrays(h=2, g=1, t=70, k=16)
    reference = value_and_gradients(lambda *x: plain(*x, jnp.arange(70)[None], None, 0.3, window=9), q, k, v)
    kernel = partial(kernels.splash, mask=None, scale=0.3, window=9, interpret=True)
    assert_close(value_and_gradients(kernel, q, k, v), reference, 1e-4)


def test_kernels_are_for_bfloat16_and_triton_has_no_window():
    half, whole = arrays(dtype=jnp.bfloat16), arrays()
    assert kernels.attend("triton", *whole, None, 0.3, None) is None
    assert kernels.attend("splash", *whole, None, 0.3, None) is None
    assert kernels.attend("triton", *half, None, 0.3, window=5) is None


def test_the_platform_chooses_the_form():
    forms = {}
    for name in ("cpu", "gpu", "tpu"):
        with platform.compiling_for(Platform(name, None)):
            forms[name] = models.computing_in(NEOX, "bfloat16").attention
            assert models.computing_in(NEOX, "bfloat16", "blocks").attention == "blocks"
    assert forms == {"cpu": "plain", "gpu": "triton", "tpu": "splash"}


NEOX = GPTNeoXConfig(
    vocab_size=24,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=0.3,
)
MISTRAL = LlamaConfig(
    model_type="mistral",
    vocab_size=24,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=32,
    sliding_window=5,
    window_layers=(0, 1, 2),
    initializer_range=0.3,
)


@pytest.mark.parametrize("config", [NEOX, MISTRAL], ids=["neox", "mistral"])
def test_models_are_the_same_by_blocks_and_in_a_loop(config):
    params = models.init_params(config, jax.random.key(0))
    ids, read = RNG.integers(0, 24, (3, 12)), np.array([[3, 4, 11], [0, 5, 6], [9, 10, 11]])

    def loss(params, config):
        out = models.apply(config, params, ids, read=read)
        return jnp.sum(jnp.cos(jnp.arange(24.0)) * out.logits)

    accelerated = dataclasses.replace(config, accelerated=True, attention="triton")
    expected = jax.jit(jax.value_and_grad(partial(loss, config=config)))(params)
    found = jax.jit(jax.value_and_grad(partial(loss, config=accelerated)))(params)
    assert_close(found, expected, 1e-5)


def test_a_prompt_and_tokens_after_it_are_the_same_by_blocks():
    params, blocks = models.init_params(MISTRAL, jax.random.key(0)), dataclasses.replace(MISTRAL, attention="blocks")
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
