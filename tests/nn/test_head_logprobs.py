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


def test_token_logprobs_on_hand_numbers():
    hidden, kernel = jnp.ones((1, 1)), jnp.log(jnp.array([[1.0, 2.0, 5.0]]))
    head_logprobs, entropy = token_logprobs(hidden, kernel, jnp.array([2]))
    np.testing.assert_allclose(head_logprobs, [np.log(5 / 8)], rtol=1e-6)
    np.testing.assert_allclose(entropy, [-sum(p * np.log(p) for p in (1 / 8, 2 / 8, 5 / 8))], rtol=1e-6)
    cold, _ = token_logprobs(hidden, kernel, jnp.array([2]), temperature=0.5)
    np.testing.assert_allclose(cold, [np.log(25 / 30)], rtol=1e-6)


# 21 rows: 4 and 20 leave a remainder, 1 and 7 divide, 21 and 100 are one block; so for 11 columns 4, 1, 11 and 100.
BLOCKS = [None, Block(1, 1), Block(4, 4), Block(7, 11), Block(20, 4), Block(21, 100), Block(100, 10)]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs_equal_the_naive_form(block, temperature):
    hidden, kernel, ids = head_inputs()
    actual = token_logprobs(hidden, kernel, ids, temperature=temperature, block=block)
    for ours, naive in zip(actual, naive_logprobs(hidden, kernel, ids, temperature), strict=True):
        assert ours.shape == ids.shape
        np.testing.assert_allclose(ours, naive, atol=1e-5)


@pytest.mark.parametrize("block", BLOCKS)
def test_token_logprobs_gradients_equal_the_naive_form(block):
    hidden, kernel, ids = head_inputs()
    weights = jnp.asarray(np.random.default_rng(3).normal(size=(2, *ids.shape)), jnp.float32)

    def loss(function, hidden, kernel):
        head_logprobs, entropy = function(hidden, kernel, ids, temperature=0.7)
        return jnp.sum(weights[0] * head_logprobs + weights[1] * entropy)

    ours = jax.jit(jax.grad(partial(loss, partial(head_logprobs.token_logprobs, block=block)), argnums=(0, 1)))(
        hidden, kernel
    )
    naive = jax.jit(jax.grad(partial(loss, naive_logprobs), argnums=(0, 1)))(hidden, kernel)
    for our, expected in zip(ours, naive, strict=True):
        np.testing.assert_allclose(our, expected, rtol=1e-5, atol=1e-5)


def array_sizes(jaxpr):
    """Sizes of all intermediate results, those of loops and nested functions included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from array_sizes(inner)


def test_token_logprobs_never_holds_the_logits_of_all_tokens():
    hidden, kernel, ids = head_inputs(vocabulary=64)  # 21 tokens x 64 = 1344 logits

    def largest(function):
        gradient = jax.grad(lambda h, k: jnp.sum(function(h, k, ids)[0]), argnums=(0, 1))
        return max(array_sizes(jax.make_jaxpr(gradient)(hidden, kernel).jaxpr))

    assert largest(naive_logprobs) >= 1344
    assert (
        largest(partial(head_logprobs.token_logprobs, block=Block(11, 32))) == 11 * 32
    )  # a block; the kernel has 256 numbers


def test_token_kl_on_hand_numbers():
    hidden = jnp.ones((1, 1))
    p, q = (jnp.log(jnp.array([weights])) for weights in ([2.0, 1.0, 1.0], [1.0, 1.0, 2.0]))
    # 1/2 ln(2) + 1/4 ln(1) - 1/4 ln(2)
    np.testing.assert_allclose(token_kl(hidden, p, hidden, q), [0.25 * np.log(2)], rtol=1e-6)
    one_sided = jnp.log(jnp.array([[1.0, 1.0, 1.0]]))
    np.testing.assert_allclose(token_kl(hidden, p, hidden, one_sided), [np.log(3) - 1.5 * np.log(2)], rtol=1e-5)
    np.testing.assert_allclose(token_kl(hidden, one_sided, hidden, p), [5 / 3 * np.log(2) - np.log(3)], rtol=1e-5)


def kl_inputs():
    """Hidden states and kernels of two models, the second one narrower."""
    hidden, kernel, _ = head_inputs()
    rng = np.random.default_rng(4)
    return hidden, kernel, *(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, 7, 3), (3, 11)))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_kl_equals_numpy(block, temperature):
    inputs = kl_inputs()

    def softmax(hidden, kernel):
        exponentials = np.exp(np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64) / temperature)
        return exponentials / exponentials.sum(-1, keepdims=True)

    p, q = softmax(*inputs[:2]), softmax(*inputs[2:])
    kl = token_kl(*inputs, temperature=temperature, block=block)
    assert (kl.shape, kl.dtype) == ((3, 7), jnp.float32)
    np.testing.assert_allclose(kl, np.sum(p * np.log(p / q), axis=-1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", BLOCKS)
def test_token_kl_of_a_distribution_to_itself_is_exactly_0(block):
    hidden, kernel, _ = head_inputs()
    np.testing.assert_array_equal(token_kl(hidden, kernel, hidden, kernel, block=block), np.zeros((3, 7)))


def test_token_kl_never_holds_the_logits_of_all_tokens():
    hidden, kernel, _ = head_inputs(vocabulary=64)
    kl = partial(head_logprobs.token_kl, block=Block(11, 32))
    assert max(array_sizes(jax.make_jaxpr(kl)(hidden, kernel, hidden, kernel).jaxpr)) == 2 * 11 * 32  # of p and of q


def test_token_logprobs_stay_exact_far_from_zero():
    """Logits of some hundreds, as an untrained or broken head gives them, in several blocks that rise and fall."""
    hidden, kernel, ids = head_inputs(vocabulary=37)
    kernel = kernel * 200.0
    block = Block(5, 8)
    both = token_logprobs(hidden, kernel, ids, block=block), naive_logprobs(hidden, kernel, ids)
    for ours, naive in zip(*both, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, naive, atol=2e-4, rtol=1e-5)


def test_token_logprobs_pass_on_what_is_not_a_number():
    hidden, kernel, ids = head_inputs()
    broken = hidden.at[1, 2, 0].set(jnp.nan)
    for values in token_logprobs(broken, kernel, ids, block=Block(4, 4)):
        assert np.isnan(values[1, 2])
        assert np.isnan(values).sum() == 1


@pytest.mark.parametrize("block", [None, Block(4, 4)])
def test_token_logprobs_of_ids_outside_of_the_vocabulary_are_not_numbers(block):
    hidden, kernel, ids = head_inputs(vocabulary=11)
    broken, _ = token_logprobs(hidden, kernel, ids.at[0, 3].set(11).at[2, 1].set(-1), block=block)
    assert np.argwhere(np.isnan(broken)).tolist() == [[0, 3], [2, 1]]


@pytest.mark.parametrize("block", BLOCKS)
def test_columns_past_the_vocabulary_do_not_count(block):
    """Those of a padded vocabulary: the largest logits would be theirs. Their part of the gradient is 0."""
    hidden, kernel, ids = head_inputs(vocabulary=11)
    padded = jnp.concatenate([kernel, 50 * kernel[:, :5]], axis=1)
    of_both = lambda function, kernel: sum(x.sum() for x in function(hidden, kernel, ids))  # noqa: E731
    ours = jax.value_and_grad(partial(of_both, partial(token_logprobs, vocab=11, block=block)))(padded)
    naive = jax.value_and_grad(partial(of_both, naive_logprobs))(kernel)
    np.testing.assert_allclose(ours[0], naive[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1][:, :11], naive[1], atol=1e-5)
    assert not np.any(ours[1][:, 11:])
    assert not np.allclose(token_logprobs(hidden, padded, ids, block=block)[0], naive_logprobs(hidden, kernel, ids)[0])
    outside, _ = token_logprobs(hidden, padded, ids.at[0, 3].set(11), vocab=11, block=block)
    assert np.argwhere(np.isnan(outside)).tolist() == [[0, 3]]
    other = jnp.flip(kernel, axis=1)
    wider = jnp.concatenate([other, 90 * kernel[:, :5]], axis=1)
    expected = token_kl(hidden, kernel, hidden, other, block=Block(100, 100))
    np.testing.assert_allclose(token_kl(hidden, padded, hidden, wider, vocab=11, block=block), expected, atol=1e-5)


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
