"""The clipped losses and the KL estimators, on hand-worked numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import losses

policy_loss, value_loss = jax.jit(losses.policy_loss), jax.jit(losses.value_loss)
policy_gradient = jax.jit(jax.grad(lambda *args: losses.policy_loss(*args).loss))


def test_kl_estimate_k1_and_k3_on_hand_numbers():
    logprobs, reference = jnp.log(jnp.array([0.5, 0.25, 0.4])), jnp.log(jnp.array([0.25, 0.5, 0.4]))
    ln2 = np.log(2.0)
    np.testing.assert_allclose(losses.kl_estimate(logprobs, reference, "k1"), [ln2, -ln2, 0.0], rtol=1e-6)
    # k3 = ref / p - 1 - log(ref / p)
    expected = [0.5 - 1 + ln2, 2 - 1 - ln2, 0.0]
    np.testing.assert_allclose(losses.kl_estimate(logprobs, reference, "k3"), expected, rtol=1e-6)


def test_kl_estimate_k3_keeps_its_digits_for_tiny_differences():
    kl = losses.kl_estimate(jnp.float32(0.0), jnp.float32(1e-3), "k3")
    np.testing.assert_allclose(kl, 1e-6 / 2 + 1e-9 / 6, rtol=1e-2)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_estimate_is_unbiased(estimator):
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    estimates = losses.kl_estimate(jnp.log(jnp.asarray(p)), jnp.log(jnp.asarray(q)), estimator)
    np.testing.assert_allclose(np.sum(p * estimates), np.sum(p * np.log(p / q)), rtol=1e-5)


def test_kl_estimate_names_an_unknown_estimator():
    with pytest.raises(ValueError, match="k1 or k3, got 'k2'"):
        losses.kl_estimate(jnp.zeros(1), jnp.zeros(1), "k2")


# ratio, advantage, loss at cliprange 0.2, whether the clipped term decides
POLICY_CASES = [
    (1.5, 2.0, -2.4, True),  # good action, already much more likely: no more to gain above 1.2
    (1.5, -2.0, 3.0, False),  # bad action, more likely: the full loss
    (0.5, 2.0, -1.0, False),  # good action, less likely: the full loss
    (0.5, -2.0, 1.6, True),  # bad action, already less likely: no more to gain below 0.8
    (1.1, 2.0, -2.2, False),
    (0.9, -2.0, 1.8, False),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "clipped"), POLICY_CASES)
def test_policy_loss_of_one_token_on_hand_numbers(ratio, advantage, loss, clipped):
    new, old = jnp.log(jnp.array([[0.25 * ratio]])), jnp.log(jnp.array([[0.25]]))
    result = policy_loss(new, old, jnp.array([[advantage]]), jnp.ones((1, 1), bool), 0.2)
    np.testing.assert_allclose(result.loss, loss, rtol=1e-6)
    assert result.clipfrac == float(clipped)
    np.testing.assert_allclose(result.ratio, ratio, rtol=1e-6)
    np.testing.assert_allclose(result.approxkl, 0.5 * np.log(ratio) ** 2, rtol=1e-5)


@pytest.mark.parametrize(("ratio", "advantage", "loss", "clipped"), POLICY_CASES)
def test_policy_loss_has_no_gradient_where_it_is_clipped(ratio, advantage, loss, clipped):
    old, mask = jnp.log(jnp.array([[0.25]])), jnp.ones((1, 1), bool)
    gradient = policy_gradient(jnp.log(jnp.array([[0.25 * ratio]])), old, jnp.array([[advantage]]), mask, 0.2)
    np.testing.assert_allclose(gradient[0, 0], 0.0 if clipped else -advantage * ratio, rtol=1e-5)


def batch(columns=4):
    """Logprobs, old logprobs, advantages, values, old values, returns and a ragged mask of 3 rows."""
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(3, columns)).astype(np.float32) for _ in range(6)]
    return arrays, np.arange(columns)[None, :] < np.array([4, 1, 2])[:, None]


def test_policy_loss_is_the_mean_over_tokens_of_all_rows():
    (new, old, advantages, *_), mask = batch()
    terms, clipped = [], []
    for i, j in zip(*np.nonzero(mask), strict=True):
        ratio = np.exp(new[i, j] - old[i, j])
        pair = -advantages[i, j] * ratio, -advantages[i, j] * min(max(ratio, 0.8), 1.2)
        terms.append(max(pair))
        clipped.append(pair[1] > pair[0])
    result = policy_loss(new, old, advantages, mask, 0.2)
    np.testing.assert_allclose(result.loss, np.mean(terms), rtol=1e-5)
    np.testing.assert_allclose(result.clipfrac, np.mean(clipped), rtol=1e-6)
    assert 0 < result.clipfrac < 1


def test_policy_loss_at_equal_logprobs_has_ratio_1_and_kl_0():
    (new, _, advantages, *_), mask = batch()
    result = policy_loss(new, new, advantages, mask, 0.2)
    assert (result.ratio, result.approxkl, result.clipfrac) == (1.0, 0.0, 0.0)
    np.testing.assert_allclose(result.loss, -advantages[mask].mean(), rtol=1e-6)


# Values, old values, return, loss term (half the square) at cliprange 0.2, whether the clipped term decides
VALUE_CASES = [
    (1.0, 0.0, 2.0, 0.5 * 1.8**2, True),  # towards the return, but clipped to 0.2
    (1.0, 0.0, 0.0, 0.5 * 1.0, False),  # away from the return: the full loss
    (-1.0, 0.0, -2.0, 0.5 * 1.8**2, True),
    (0.1, 0.0, 1.0, 0.5 * 0.9**2, False),
]


@pytest.mark.parametrize(("value", "old", "target", "loss", "clipped"), VALUE_CASES)
def test_value_loss_of_one_token_on_hand_numbers(value, old, target, loss, clipped):
    cell = lambda x: jnp.array([[x]])  # noqa: E731
    result = value_loss(cell(value), cell(old), cell(target), jnp.ones((1, 1), bool), 0.2)
    np.testing.assert_allclose(result.loss, loss, rtol=1e-6)
    assert result.clipfrac == float(clipped)


def test_value_loss_is_the_mean_over_tokens_of_all_rows():
    (*_, values, old, returns), mask = batch()
    terms = []
    for i, j in zip(*np.nonzero(mask), strict=True):
        clipped = min(max(values[i, j], old[i, j] - 0.2), old[i, j] + 0.2)
        terms.append(max((values[i, j] - returns[i, j]) ** 2, (clipped - returns[i, j]) ** 2))
    result = value_loss(values, old, returns, mask, 0.2)
    np.testing.assert_allclose(result.loss, 0.5 * np.mean(terms), rtol=1e-5)


@pytest.mark.parametrize("padding", [0.0, 100.0])
def test_losses_do_not_change_with_right_padding(padding):
    arrays, mask = batch()
    wide = [np.pad(array, ((0, 0), (0, 3)), constant_values=padding) for array in arrays]
    wide_mask = np.pad(mask, ((0, 0), (0, 3)))
    # Exact zeros more in a sum may still be added in another order, hence the last digits.
    for short, long in (
        (policy_loss(*arrays[:3], mask, 0.2), policy_loss(*wide[:3], wide_mask, 0.2)),
        (value_loss(*arrays[3:], mask, 0.2), value_loss(*wide[3:], wide_mask, 0.2)),
    ):
        np.testing.assert_allclose(np.array(long), np.array(short), rtol=1e-6)


def test_losses_and_their_gradients_ignore_infinite_logprobs_outside_the_mask():
    (new, old, advantages, *_), mask = batch()
    hidden = np.where(mask, old, -np.inf).astype(np.float32)
    dirty = policy_gradient(new, hidden, advantages, mask, 0.2)
    np.testing.assert_array_equal(dirty, policy_gradient(new, np.where(mask, old, 0), advantages, mask, 0.2))
    assert not np.any(dirty[~mask])
