"""Log-probabilities, entropies and exact KL in blocks, against the whole array of logits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.nn import head_logprobs
from jaxppo.nn.head_logprobs import Block

token_logprobs = jax.jit(head_logprobs.token_logprobs, static_argnames=("temperature", "vocab", "block"))
token_kl = jax.jit(head_logprobs.token_kl, static_argnames=("temperature", "vocab", "block"))


@partial(jax.jit, static_argnames="temperature")
def naive_logprobs(hidden, kernel, ids, temperature=1.0):
    """Log-softmax of the whole logits array."""
    log_p = jax.nn.log_softmax(jnp.einsum("btd,dv->btv", hidden, kernel) / temperature, axis=-1)
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    return jnp.take_along_axis(log_p, ids[..., None], axis=-1)[..., 0], entropy


def head_inputs(rows=3, length=7, width=4, vocabulary=11):
    rng = np.random.default_rng(2)
    hidden = rng.normal(size=(rows, length, width)).astype(np.float32)
    kernel = (rng.normal(size=(width, vocabulary)) / width**0.5).astype(np.float32)
    return jnp.asarray(hidden), jnp.asarray(kernel), jnp.asarray(rng.integers(0, vocabulary, (rows, length)))


def test_token_logprobs_and_kl_on_hand_numbers():
    hidden, kernel = jnp.ones((1, 1)), jnp.log(jnp.array([[1.0, 2.0, 5.0]]))
    head_logprobs, entropy = token_logprobs(hidden, kernel, jnp.array([2]))
    np.testing.assert_allclose(head_logprobs, [np.log(5 / 8)], rtol=1e-6)
    np.testing.assert_allclose(entropy, [-sum(p * np.log(p) for p in (1 / 8, 2 / 8, 5 / 8))], rtol=1e-6)
    cold, _ = token_logprobs(hidden, kernel, jnp.array([2]), temperature=0.5)
    np.testing.assert_allclose(cold, [np.log(25 / 30)], rtol=1e-6)
    p, q = (jnp.log(jnp.array([weights])) for weights in ([2.0, 1.0, 1.0], [1.0, 1.0, 2.0]))
    # 1/2 ln(2) + 1/4 ln(1) - 1/4 ln(2)
    np.testing.assert_allclose(token_kl(hidden, p, hidden, q), [0.25 * np.log(2)], rtol=1e-6)
    one_sided = jnp.log(jnp.array([[1.0, 1.0, 1.0]]))
    np.testing.assert_allclose(token_kl(hidden, p, hidden, one_sided), [np.log(3) - 1.5 * np.log(2)], rtol=1e-5)
    np.testing.assert_allclose(token_kl(hidden, one_sided, hidden, p), [5 / 3 * np.log(2) - np.log(3)], rtol=1e-5)


# 21 rows: 4 and 20 leave a remainder, 1 and 7 divide, 21 and 100 are one block; so for 11 columns 4, 1, 11 and 100.
BLOCKS = [None, Block(1, 1), Block(4, 4), Block(7, 11), Block(20, 4), Block(21, 100), Block(100, 10)]
TEMPERATURES = [1.0, 0.7, 0.7, 1.0, 0.7, 0.7, 1.0]


@partial(jax.jit, static_argnames=("temperature", "function"))
def with_gradients(function, hidden, kernel, ids, temperature):
    """(log-probabilities, entropies), and the gradients of a sum in which each of them has a weight of its own."""
    weights = jnp.asarray(np.random.default_rng(3).normal(size=(2, *ids.shape)), jnp.float32)

    def loss(hidden, kernel):
        outputs = function(hidden, kernel, ids, temperature=temperature)
        return sum(jnp.sum(w * x) for w, x in zip(weights, outputs, strict=True)), outputs

    (_, outputs), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(hidden, kernel)
    return outputs, gradients


@pytest.mark.parametrize(("block", "temperature"), zip(BLOCKS, TEMPERATURES, strict=True))
def test_token_logprobs_equal_the_naive_form(block, temperature):
    """So do the gradients; columns of a padded vocabulary do not count, though the largest logits would be theirs.

    An embedding, which is [V, D], gives the same as the head that it is the transposed of.
    """
    hidden, kernel, ids = head_inputs(vocabulary=11)
    padded = jnp.concatenate([kernel, 50 * kernel[:, :5]], axis=1)
    function = partial(head_logprobs.token_logprobs, vocab=11, block=block)
    ours, (of_hidden, of_kernel) = with_gradients(function, hidden, padded, ids, temperature)
    expected, gradients = with_gradients(naive_logprobs, hidden, kernel, ids, temperature)
    for our, naive in zip(ours, expected, strict=True):
        assert our.shape == ids.shape
        np.testing.assert_allclose(our, naive, atol=1e-5)
    np.testing.assert_allclose(of_hidden, gradients[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_kernel[:, :11], gradients[1], rtol=1e-5, atol=1e-5)
    assert not np.any(of_kernel[:, 11:])
    tied, of_tied = with_gradients(partial(function, transposed=True), hidden, padded.T, ids, temperature)
    for of_embedding, of_head in ((tied[0], ours[0]), (of_tied[0], of_hidden), (of_tied[1].T, of_kernel)):
        np.testing.assert_allclose(of_embedding, of_head, rtol=1e-5, atol=1e-5)
    (outside, _), _ = with_gradients(function, hidden, padded, ids.at[0, 3].set(11).at[2, 1].set(-1), temperature)
    assert np.argwhere(np.isnan(outside)).tolist() == [[0, 3], [2, 1]]


def array_sizes(jaxpr):
    """Sizes of all intermediate results, those of loops and nested functions included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from array_sizes(inner)


def test_token_logprobs_and_kl_never_hold_the_logits_of_all_tokens():
    hidden, kernel, ids = head_inputs(vocabulary=64)  # 21 tokens x 64 = 1344 logits

    def largest(function):
        gradient = jax.grad(lambda h, k: jnp.sum(function(h, k, ids)[0]), argnums=(0, 1))
        return max(array_sizes(jax.make_jaxpr(gradient)(hidden, kernel).jaxpr))

    assert largest(naive_logprobs) >= 1344
    # A block; the kernel has 256 numbers.
    assert largest(partial(head_logprobs.token_logprobs, block=Block(11, 32))) == 11 * 32
    kl = partial(head_logprobs.token_kl, block=Block(11, 32))
    assert max(array_sizes(jax.make_jaxpr(kl)(hidden, kernel, hidden, kernel).jaxpr)) == 2 * 11 * 32  # of p and of q


@pytest.mark.parametrize(("block", "temperature"), zip(BLOCKS, TEMPERATURES, strict=True))
def test_token_kl_equals_numpy(block, temperature):
    """Also of a padded vocabulary; to itself it is exactly 0."""
    hidden, kernel, _ = head_inputs(vocabulary=11)
    rng = np.random.default_rng(4)
    ref_hidden = jnp.asarray(rng.normal(size=hidden.shape), jnp.float32)
    ref_kernel = jnp.asarray(rng.normal(size=kernel.shape), jnp.float32)

    def softmax(hidden, kernel):
        exponentials = np.exp(np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64) / temperature)
        return exponentials / exponentials.sum(-1, keepdims=True)

    p, q = softmax(hidden, kernel), softmax(ref_hidden, ref_kernel)
    padded = jnp.concatenate([kernel, 50 * kernel[:, :5]], axis=1)
    ref_padded = jnp.concatenate([ref_kernel, 90 * ref_kernel[:, :5]], axis=1)
    run = partial(token_kl, hidden, padded, temperature=temperature, vocab=11, block=block)
    kl = run(ref_hidden, ref_padded)
    assert (kl.shape, kl.dtype) == ((3, 7), jnp.float32)
    np.testing.assert_allclose(kl, np.sum(p * np.log(p / q), axis=-1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(run(hidden, padded), np.zeros((3, 7)))


def test_token_logprobs_stay_exact_far_from_zero():
    """Logits of some hundreds, as an untrained or broken head gives them, in several blocks that rise and fall."""
    hidden, kernel, ids = head_inputs(vocabulary=37)
    kernel = kernel * 200.0  # without `vocab` all columns count
    block = Block(5, 8)
    both = token_logprobs(hidden, kernel, ids, block=block), naive_logprobs(hidden, kernel, ids)
    for ours, naive in zip(*both, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, naive, atol=2e-4, rtol=1e-5)
    # What is not a number is passed on.
    broken = hidden.at[1, 2, 0].set(jnp.nan)
    for values in token_logprobs(broken, kernel, ids, block=block):
        assert np.isnan(values[1, 2])
        assert np.isnan(values).sum() == 1


def test_token_logprobs_of_bfloat16_add_up_in_float32():
    hidden, kernel, ids = (head_inputs(width=64, vocabulary=300)[i] for i in range(3))
    hidden, kernel = hidden.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)

    def loss(function, hidden, kernel):
        return jnp.sum(function(hidden, kernel, ids)[0] * jnp.cos(jnp.arange(21.0).reshape(3, 7)))

    ours = jax.grad(partial(loss, partial(head_logprobs.token_logprobs, block=Block(4, 128))), argnums=(0, 1))
    naive = jax.grad(partial(loss, naive_logprobs), argnums=(0, 1))
    both = ours(hidden, kernel), naive(hidden.astype(jnp.float32), kernel.astype(jnp.float32))
    for our, expected in zip(*both, strict=True):
        assert our.dtype == jnp.bfloat16
        np.testing.assert_allclose(our.astype(jnp.float32), expected, rtol=0.02, atol=0.02)


def test_a_frozen_head_costs_no_gradient():
    hidden, kernel, ids = head_inputs(rows=8, length=16, width=64, vocabulary=512)

    def flops(argnums):
        gradient = jax.grad(lambda h, k: jnp.sum(head_logprobs.token_logprobs(h, k, ids)[0]), argnums=argnums)
        return jax.jit(gradient).lower(hidden, kernel).compile().cost_analysis()["flops"]

    product = 2 * 128 * 64 * 512
    assert flops((0, 1)) - flops(0) > 0.9 * product
