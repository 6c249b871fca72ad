"""The clipped losses, the KL estimators and the KL controller, on hand-worked numbers."""

from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.config import RLConfig
from jaxppo.rl import losses, ops

policy_loss, value_loss = jax.jit(losses.policy_loss), jax.jit(losses.value_loss)
policy_gradient = jax.jit(jax.grad(lambda *args: losses.policy_loss(*args).loss))


def test_kl_estimate_on_hand_numbers():
    logprobs, reference = jnp.log(jnp.array([0.5, 0.25, 0.4])), jnp.log(jnp.array([0.25, 0.5, 0.4]))
    ln2 = np.log(2.0)
    expected = {
        "k1": [ln2, -ln2, 0.0],
        "k2": [ln2**2 / 2, ln2**2 / 2, 0.0],
        "mse": [ln2**2 / 2, ln2**2 / 2, 0.0],
        "k3": [0.5 - 1 + ln2, 2 - 1 - ln2, 0.0],  # ref / p - 1 - log(ref / p)
        "abs": [ln2, ln2, 0.0],
    }
    for estimator, kl in expected.items():
        np.testing.assert_allclose(losses.kl_estimate(logprobs, reference, estimator), kl, rtol=1e-6, err_msg=estimator)
    # The one that is left needs whole distributions; the configuration offers the same names.
    assert {*expected, "full"} == set(get_args(get_type_hints(RLConfig)["kl_estimator"]))
    with pytest.raises(ValueError, match="estimator"):
        losses.kl_estimate(logprobs, reference, "full")
    # k3 keeps its digits for tiny differences.
    kl = losses.kl_estimate(jnp.float32(0.0), jnp.float32(1e-3), "k3")
    np.testing.assert_allclose(kl, 1e-6 / 2 + 1e-9 / 6, rtol=1e-3)


@pytest.mark.parametrize(
    ("kl", "horizon", "factor"),
    [
        (6.0, 1000, 1.0),  # at the target
        (6.6, 1000, 1 + 0.1 * 0.064),  # 10 % above it, 64 of 1000 completions
        (5.4, 1000, 1 - 0.1 * 0.064),
        (60.0, 1000, 1 + 0.2 * 0.064),  # never more than 20 %
        (-5.0, 1000, 1 - 0.2 * 0.064),  # k1 may be negative
        (100.0, 64, 1.2),
        (100.0, 128, 1.1),
        (np.nan, 1000, 1.0),
        (np.inf, 1000, 1.0),
        (-np.inf, 1000, 1.0),
    ],
)
def test_adapted_kl_coef_on_hand_numbers(kl, horizon, factor):
    """By the share of the horizon; it stays where the KL is not finite."""
    coef = losses.adapted_kl_coef(jnp.float32(0.3), jnp.float32(kl), 6.0, horizon, 64)
    np.testing.assert_allclose(coef, 0.3 * factor, rtol=1e-6)


# ratio, advantage, cliprange above (below it is 0.2), loss, whether the clipped term decides
POLICY_CASES = [
    (1.5, 2.0, 0.2, -2.4, True),  # good action, already much more likely: no more to gain above 1.2
    (1.5, -2.0, 0.2, 3.0, False),  # bad action, more likely: the full loss
    (0.5, 2.0, 0.2, -1.0, False),  # good action, less likely: the full loss
    (0.5, -2.0, 0.2, 1.6, True),  # bad action, already less likely: no more to gain below 0.8
    (1.1, 2.0, 0.2, -2.2, False),
    (0.9, -2.0, 0.2, 1.8, False),
    (1.4, 2.0, 0.5, -2.8, False),
    (1.6, 2.0, 0.5, -3.0, True),
    (1.6, -2.0, 0.5, 3.2, False),
    (0.7, -2.0, 0.5, 1.6, True),
]
ONE = jnp.ones((1, 1))


def cell(x):
    return jnp.array([[x]], jnp.float32)


@pytest.mark.parametrize(("ratio", "advantage", "high", "loss", "clipped"), POLICY_CASES)
def test_policy_loss_of_one_token_on_hand_numbers(ratio, advantage, high, loss, clipped):
    given = cell(np.log(ratio)), cell(advantage), ONE, 0.2, high
    result = policy_loss(*given)
    np.testing.assert_allclose(result.loss, loss, rtol=1e-6)
    assert result.clipfrac == float(clipped)
    np.testing.assert_allclose(result.ratio, ratio, rtol=1e-6)
    np.testing.assert_allclose(policy_gradient(*given)[0, 0], 0.0 if clipped else -advantage * ratio, rtol=1e-5)


def test_policy_loss_has_a_second_clip_where_the_advantage_is_negative():
    """A ratio of 6 counts as 3 at most, and gives no gradient; above, as below, the first clip is enough."""
    for advantage, loss, slope in ((-2.0, 6.0, 0.0), (2.0, -2.4, 0.0)):
        given = cell(np.log(6.0)), cell(advantage), ONE, 0.2, 0.2, 3.0
        np.testing.assert_allclose(policy_loss(*given).loss, loss, rtol=1e-6)
        assert policy_gradient(*given)[0, 0] == slope
    free = policy_gradient(cell(np.log(2.0)), cell(-2.0), ONE, 0.2, 0.2, 3.0)
    np.testing.assert_allclose(free[0, 0], 4.0, rtol=1e-6)


def batch():
    """Log ratios, advantages and a ragged mask of 3 rows."""
    return np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32), np.arange(4) < np.array([[4], [1], [2]])


def mean_weights(mask):
    return ops.mean_weights(mask, (0, 1))


@pytest.mark.parametrize("hidden", [np.inf, np.nan, 1000.0])
def test_policy_loss_and_its_gradient_ignore_infinite_log_ratios_outside_the_mask(hidden):
    (log_ratio, advantages), mask = batch()
    weights = mean_weights(mask)
    dirty, clean = (np.where(mask, log_ratio, np.float32(fill)) for fill in (hidden, 0.0))
    gradient = policy_gradient(dirty, advantages, weights, 0.2)
    np.testing.assert_array_equal(gradient, policy_gradient(clean, advantages, weights, 0.2))
    assert not np.any(gradient[~mask])
    assert np.any(gradient[mask])
    both = (policy_loss(x, advantages, weights, 0.2) for x in (dirty, clean))
    np.testing.assert_array_equal(*map(np.array, both))


# Values, old values, return, loss term (half the square) at cliprange 0.2, whether the clipped term decides
VALUE_CASES = [
    (1.0, 0.0, 2.0, 0.5 * 1.8**2, True),  # towards the return, but clipped to 0.2
    (1.0, 0.0, 0.0, 0.5 * 1.0, False),  # away from the return: the full loss
    (-1.0, 0.0, -2.0, 0.5 * 1.8**2, True),
    (0.1, 0.0, 1.0, 0.5 * 0.9**2, False),
]


@pytest.mark.parametrize(("value", "old", "target", "loss", "clipped"), VALUE_CASES)
def test_value_loss_of_one_token_on_hand_numbers(value, old, target, loss, clipped):
    result = value_loss(cell(value), cell(old), cell(target), ONE, 0.2)
    np.testing.assert_allclose(result.loss, loss, rtol=1e-6)
    assert result.clipfrac == float(clipped)
    np.testing.assert_allclose(result.error, (value - target) ** 2, rtol=1e-6)  # unclipped, and not halved
    np.testing.assert_allclose(result.prediction, value, rtol=1e-6)
