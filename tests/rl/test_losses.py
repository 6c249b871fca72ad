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


def test_kl_estimate_k3_keeps_its_digits_for_tiny_differences():
    kl = losses.kl_estimate(jnp.float32(0.0), jnp.float32(1e-3), "k3")
    np.testing.assert_allclose(kl, 1e-6 / 2 + 1e-9 / 6, rtol=1e-3)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_estimate_is_unbiased(estimator):
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    estimates = losses.kl_estimate(jnp.log(jnp.asarray(p)), jnp.log(jnp.asarray(q)), estimator)
    np.testing.assert_allclose(np.sum(p * estimates), np.sum(p * np.log(p / q)), rtol=1e-5)


@pytest.mark.parametrize("estimator", ["full", "kl", ""])
def test_kl_estimate_names_an_unknown_estimator(estimator):
    with pytest.raises(ValueError, match=f"k1, k2, k3, abs or mse, got '{estimator}'"):
        losses.kl_estimate(jnp.zeros(1), jnp.zeros(1), estimator)


# --- the KL controller


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (6.0, 1.0),  # at the target
        (6.6, 1 + 0.1 * 0.064),  # 10 % above it, 64 of 1000 completions
        (5.4, 1 - 0.1 * 0.064),
        (7.2, 1 + 0.2 * 0.064),
        (60.0, 1 + 0.2 * 0.064),  # never more than 20 %
        (0.0, 1 - 0.2 * 0.064),
        (-5.0, 1 - 0.2 * 0.064),  # k1 may be negative
    ],
)
def test_adapted_kl_coef_on_hand_numbers(kl, factor):
    coef = losses.adapted_kl_coef(jnp.float32(0.3), jnp.float32(kl), 6.0, 1000, 64)
    np.testing.assert_allclose(coef, 0.3 * factor, rtol=1e-6)


@pytest.mark.parametrize(("horizon", "num_rows", "factor"), [(100, 100, 1.2), (100, 50, 1.1), (400, 100, 1.05)])
def test_adapted_kl_coef_moves_by_the_share_of_the_horizon(horizon, num_rows, factor):
    coef = losses.adapted_kl_coef(jnp.float32(0.5), jnp.float32(100.0), 6.0, horizon, num_rows)
    np.testing.assert_allclose(coef, 0.5 * factor, rtol=1e-6)


def test_adapted_kl_coef_steers_a_kl_to_its_target():
    """Where a larger coefficient means a smaller KL, they come to rest with the KL at its target."""
    coef = jnp.float32(0.01)
    for _ in range(200):
        coef = losses.adapted_kl_coef(coef, 1.0 / coef, 4.0, 100, 50)
    np.testing.assert_allclose(coef, 0.25, rtol=1e-3)


@pytest.mark.parametrize("kl", [np.nan, np.inf, -np.inf])
def test_adapted_kl_coef_stays_where_the_kl_is_not_finite(kl):
    assert losses.adapted_kl_coef(jnp.float32(0.3), jnp.float32(kl), 6.0, 1000, 64) == jnp.float32(0.3)


# --- the policy loss

# ratio, advantage, loss at cliprange 0.2, whether the clipped term decides
POLICY_CASES = [
    (1.5, 2.0, -2.4, True),  # good action, already much more likely: no more to gain above 1.2
    (1.5, -2.0, 3.0, False),  # bad action, more likely: the full loss
    (0.5, 2.0, -1.0, False),  # good action, less likely: the full loss
    (0.5, -2.0, 1.6, True),  # bad action, already less likely: no more to gain below 0.8
    (1.1, 2.0, -2.2, False),
    (0.9, -2.0, 1.8, False),
]
ONE = jnp.ones((1, 1))


def cell(x):
    return jnp.array([[x]], jnp.float32)


@pytest.mark.parametrize(("ratio", "advantage", "loss", "clipped"), POLICY_CASES)
def test_policy_loss_of_one_token_on_hand_numbers(ratio, advantage, loss, clipped):
    result = policy_loss(cell(np.log(ratio)), cell(advantage), ONE, 0.2)
    np.testing.assert_allclose(result.loss, loss, rtol=1e-6)
    assert result.clipfrac == float(clipped)
    np.testing.assert_allclose(result.ratio, ratio, rtol=1e-6)


@pytest.mark.parametrize(("ratio", "advantage", "loss", "clipped"), POLICY_CASES)
def test_policy_loss_has_no_gradient_where_it_is_clipped(ratio, advantage, loss, clipped):
    gradient = policy_gradient(cell(np.log(ratio)), cell(advantage), ONE, 0.2)
    np.testing.assert_allclose(gradient[0, 0], 0.0 if clipped else -advantage * ratio, rtol=1e-5)


# ratio, advantage, loss at cliprange 0.2 below and 0.5 above, whether the clipped term decides
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.4, 2.0, -2.8, False),  # would be clipped to 1.2 by a symmetric range
        (1.6, 2.0, -3.0, True),
        (1.6, -2.0, 3.2, False),
        (0.7, -2.0, 1.6, True),  # below, the range is still 0.2
        (0.7, 2.0, -1.4, False),
    ],
)
def test_policy_loss_may_clip_higher_above_than_below(ratio, advantage, loss, clipped):
    result = policy_loss(cell(np.log(ratio)), cell(advantage), ONE, 0.2, 0.5)
    np.testing.assert_allclose(result.loss, loss, rtol=1e-6)
    assert result.clipfrac == float(clipped)


def test_policy_loss_of_whole_completions_on_hand_numbers():
    """RLOO: one ratio per completion, the product over its tokens; losses -2.4, 1.6 and 3.0."""
    log_ratio = jnp.array([np.log(1.25) + np.log(1.2), np.log(0.5), np.log(1.5)], jnp.float32)
    result = policy_loss(log_ratio, jnp.array([2.0, -2.0, -2.0]), jnp.full(3, 1 / 3), 0.2)
    np.testing.assert_allclose(result.loss, 2.2 / 3, rtol=1e-6)
    np.testing.assert_allclose(result.clipfrac, 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(result.ratio, 3.5 / 3, rtol=1e-6)


def batch(columns=4):
    """Log ratios, advantages, values, old values, returns and a ragged mask of 3 rows."""
    rng = np.random.default_rng(1)
    new, old, *arrays = [rng.normal(size=(3, columns)).astype(np.float32) for _ in range(6)]
    return [new - old, *arrays], np.arange(columns)[None, :] < np.array([4, 1, 2])[:, None]


def mean_weights(mask):
    return ops.mean_weights(mask, (0, 1))


def test_policy_loss_is_the_mean_over_tokens_of_all_rows():
    (log_ratio, advantages, *_), mask = batch()
    terms, clipped, ratios = [], [], []
    for i, j in zip(*np.nonzero(mask), strict=True):
        ratios.append(np.exp(np.float64(log_ratio[i, j])))
        pair = -advantages[i, j] * ratios[-1], -advantages[i, j] * min(max(ratios[-1], 0.8), 1.2)
        terms.append(max(pair))
        clipped.append(pair[1] > pair[0])
    result = policy_loss(log_ratio, advantages, mean_weights(mask), 0.2)
    np.testing.assert_allclose(result.loss, np.mean(terms), rtol=1e-5)
    np.testing.assert_allclose(result.clipfrac, np.mean(clipped), rtol=1e-6)
    np.testing.assert_allclose(result.ratio, np.mean(ratios), rtol=1e-5)
    assert 0 < result.clipfrac < 1


def test_policy_loss_at_equal_logprobs_has_ratio_1():
    (_, advantages, *_), mask = batch()
    result = policy_loss(np.zeros_like(advantages), advantages, mean_weights(mask), 0.2)
    np.testing.assert_allclose(result.ratio, 1.0, rtol=1e-6)
    assert result.clipfrac == 0.0
    np.testing.assert_allclose(result.loss, -advantages[mask].mean(), rtol=1e-6)


# --- the value loss

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


def test_value_loss_is_the_mean_over_tokens_of_all_rows():
    (*_, values, old, returns), mask = batch()
    terms, clips = [], []
    for i, j in zip(*np.nonzero(mask), strict=True):
        clipped = min(max(values[i, j], old[i, j] - 0.2), old[i, j] + 0.2)
        pair = (values[i, j] - returns[i, j]) ** 2, (clipped - returns[i, j]) ** 2
        terms.append(max(pair))
        clips.append(pair[1] > pair[0])
    result = value_loss(values, old, returns, mean_weights(mask), 0.2)
    np.testing.assert_allclose(result.loss, 0.5 * np.mean(terms), rtol=1e-5)
    np.testing.assert_allclose(result.clipfrac, np.mean(clips), rtol=1e-6)
    np.testing.assert_allclose(result.error, np.mean((values - returns)[mask] ** 2), rtol=1e-5)
    np.testing.assert_allclose(result.prediction, values[mask].mean(), rtol=1e-5)
    assert 0 < result.clipfrac < 1


# --- both


@pytest.mark.parametrize("padding", [0.0, 100.0, np.nan])
def test_losses_do_not_change_with_right_padding(padding):
    arrays, mask = batch()
    wide = [np.pad(array, ((0, 0), (0, 3)), constant_values=padding) for array in arrays]
    weights, wide_weights = mean_weights(mask), mean_weights(np.pad(mask, ((0, 0), (0, 3))))
    # Exact zeros more in a sum may still be added in another order, hence the last digits.
    for short, long in (
        (policy_loss(*arrays[:2], weights, 0.2), policy_loss(*wide[:2], wide_weights, 0.2)),
        (value_loss(*arrays[2:], weights, 0.2), value_loss(*wide[2:], wide_weights, 0.2)),
    ):
        np.testing.assert_allclose(np.array(long), np.array(short), rtol=1e-6)


@pytest.mark.parametrize("parts", [[1, 2], [2, 1], [1, 1, 1]])
def test_losses_of_parts_of_the_rows_add_up_to_the_loss_of_all(parts):
    arrays, mask = batch()
    weights = mean_weights(mask)
    whole = [policy_loss(*arrays[:2], weights, 0.2), value_loss(*arrays[2:], weights, 0.2)]
    total, start = [0.0, 0.0], 0
    for size in parts:
        part = [array[start : start + size] for array in (*arrays, weights)]
        total[0] += np.array(policy_loss(*part[:2], part[-1], 0.2))
        total[1] += np.array(value_loss(*part[2:], 0.2))
        start += size
    for ours, expected in zip(total, whole, strict=True):
        np.testing.assert_allclose(ours, np.array(expected), rtol=1e-5)


@pytest.mark.parametrize("hidden", [np.inf, -np.inf, np.nan, 1000.0])
def test_losses_and_their_gradients_ignore_infinite_log_ratios_outside_the_mask(hidden):
    (log_ratio, advantages, *_), mask = batch()
    weights = mean_weights(mask)
    dirty, clean = (np.where(mask, log_ratio, np.float32(fill)) for fill in (hidden, 0.0))
    gradient = policy_gradient(dirty, advantages, weights, 0.2)
    np.testing.assert_array_equal(gradient, policy_gradient(clean, advantages, weights, 0.2))
    assert not np.any(gradient[~mask])
    assert np.any(gradient[mask])
    both = (policy_loss(x, advantages, weights, 0.2) for x in (dirty, clean))
    np.testing.assert_array_equal(*map(np.array, both))
