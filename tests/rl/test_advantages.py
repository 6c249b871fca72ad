"""Score scaling, token rewards, generalised advantage estimation and baselines, mostly on hand numbers.

On ragged rows, whitened, and on several devices: `test_trajectories.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.rl import advantages

gae, token_rewards = jax.jit(advantages.gae), jax.jit(advantages.token_rewards)
add_scores = jax.jit(advantages.add_scores)
scale_scores = jax.jit(advantages.scale_scores, static_argnames="subtract_mean")


@pytest.mark.parametrize("dtype", [bool, np.int32])
def test_token_rewards_on_hand_numbers(dtype):
    """The score stands at the last token, a fraction whatever the dtype of the mask; without a token nowhere."""
    mask = np.array([[1, 1, 0], [0, 0, 0]], dtype)
    rewards = token_rewards(jnp.array([0.37, 5.0]), jnp.ones((2, 3)), mask, 0.1)
    np.testing.assert_allclose(rewards, [[-0.1, 0.27, 0.0], [0.0, 0.0, 0.0]], rtol=1e-6)
    assert rewards.dtype == jnp.float32


def test_gae_on_hand_numbers():
    mask = jnp.ones((1, 3), bool)
    advantage, returns = gae(jnp.array([[0.0, 0.0, 1.0]]), jnp.array([[0.5, 0.25, 0.5]]), mask, 0.5, 0.5)
    # deltas: 0.125 - 0.5, 0.25 - 0.25, 1 - 0.5; from the back: 0.5, 0 + 0.5 / 4, -0.375 + 0.125 / 4
    np.testing.assert_allclose(advantage, [[-0.34375, 0.125, 0.5]])
    np.testing.assert_allclose(returns, [[0.15625, 0.375, 1.0]])


BATCHES = [np.random.default_rng(4).normal(3.0, 2.0, size).astype(np.float32) for size in (5, 1, 8, 2, 16)]


def moments_of(batches, moments=None):
    moments = advantages.initial_moments() if moments is None else moments
    for scores in batches:
        moments = add_scores(moments, scores, np.ones(scores.shape, bool))
    return moments


def test_add_scores_gives_the_moments_of_all_scores_however_they_are_batched():
    for count in range(1, 6):
        moments, everything = moments_of(BATCHES[:count]), np.concatenate(BATCHES[:count]).astype(np.float64)
        assert moments.seen == len(everything)
        np.testing.assert_allclose(moments.mean, everything.mean(), rtol=1e-6)
        np.testing.assert_allclose(moments.m2 / (len(everything) - 1), everything.var(ddof=1), rtol=1e-5)
    for batches in (BATCHES[::-1], np.split(np.concatenate(BATCHES), 8)):
        np.testing.assert_allclose(np.array(moments_of(batches)), np.array(moments), rtol=1e-5)
    # Far from 0 a sum of squares would lose its digits: 1000^2 has no room for 0.01^2 in fp32.
    near = [1000 + scores / 100 for scores in BATCHES]
    everything = np.concatenate(near).astype(np.float64)
    moments = moments_of(near)
    np.testing.assert_allclose(moments.m2 / (len(everything) - 1), everything.var(ddof=1), rtol=1e-2)


@pytest.mark.parametrize(
    "scores",
    [[1.0, np.nan, 2.0], [1.0, np.inf, 2.0], [1.0, -np.inf, 2.0], [1e30, -1e30, 0.0]],  # the last: squares overflow
    ids=str,
)
def test_add_scores_leaves_the_moments_alone_where_they_would_not_be_finite(scores):
    before = moments_of(BATCHES[:2])
    after = moments_of([np.array(scores, np.float32)], before)
    np.testing.assert_array_equal(np.array(after), np.array(before))
    later = np.array(moments_of(BATCHES[2:], after))
    np.testing.assert_array_equal(later, np.array(moments_of(BATCHES)))


@pytest.mark.parametrize("subtract_mean", [True, False])
def test_scale_scores_divides_by_the_standard_deviation_of_all_scores(subtract_mean):
    everything = np.concatenate(BATCHES).astype(np.float64)
    centre = everything.mean() if subtract_mean else 0.0
    scaled = scale_scores(BATCHES[0], moments_of(BATCHES), subtract_mean=subtract_mean)
    np.testing.assert_allclose(scaled, (BATCHES[0] - centre) / everything.std(ddof=1), rtol=1e-5)
    by_hand = moments_of([jnp.array([1.0, 3.0]), jnp.array([5.0])])  # mean 3, deviation 2
    scaled = scale_scores(jnp.array([5.0, 2.0]), by_hand, subtract_mean=subtract_mean)
    np.testing.assert_allclose(scaled, [1, -0.5] if subtract_mean else [2.5, 1], rtol=1e-6)


# Sums of 0.1 or 1/3 are rounded: the deviation of equal scores is hardly ever exactly 0.
@pytest.mark.parametrize("num_rows", [1, 7, 64])
@pytest.mark.parametrize("subtract_mean", [True, False])
def test_scale_scores_only_centres_scores_that_were_all_the_same(num_rows, subtract_mean):
    for score in (1.0, 0.1, 1 / 3, -0.9, 100.7, 0.0):
        scores = np.full(num_rows, score, np.float32)
        scaled = scale_scores(scores, moments_of([scores] * 5), subtract_mean=subtract_mean)
        np.testing.assert_allclose(scaled, 0.0 if subtract_mean else scores, rtol=1e-6, atol=abs(score) * 1e-5)
    # Differences of a thousandth of the mean are a scale, unlike those that rounding makes.
    scores = np.array([0.999, 1.0, 1.001], np.float32)
    scaled = scale_scores(scores, moments_of([scores]), subtract_mean=subtract_mean)
    np.testing.assert_allclose(np.diff(scaled), [1.0, 1.0], atol=1e-3)


def test_leave_one_out_and_normalise_on_hand_numbers_leave_completions_without_a_reward_out():
    rewards = jnp.array([1.0, 0.0, 0.0, 0.5, 2.0, 2.0, 2.0, 2.0])
    result = advantages.leave_one_out(rewards, 4, jnp.ones(8, bool))
    np.testing.assert_allclose(result, [1 - 0.5 / 3, -0.5, -0.5, 0.5 - 1 / 3, 0, 0, 0, 0], atol=1e-6)
    counted = jnp.array([True, False, True, True, True, False, False, False])
    result = advantages.leave_one_out(jnp.where(counted, rewards, 9.0), 4, counted)
    np.testing.assert_allclose(result, [1 - 0.5 / 2, 0, 0 - 1.5 / 2, 0.5 - 1 / 2, 0, 0, 0, 0], atol=1e-6)
    values, counted = jnp.array([1.0, 3.0, 99.0, 5.0]), jnp.array([True, True, False, True])
    result = advantages.normalize(values, counted)  # mean 3, deviation 2
    np.testing.assert_allclose(result, [-2 / 2.0001, 0.0, 0.0, 2 / 2.0001], rtol=1e-6)
    np.testing.assert_array_equal(advantages.normalize(jnp.full(4, 0.5), jnp.ones(4, bool)), np.zeros(4))
