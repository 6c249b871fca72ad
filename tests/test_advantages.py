"""Token rewards and generalised advantage estimation against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import advantages

gae, token_rewards = jax.jit(advantages.gae), jax.jit(advantages.token_rewards)
whitened_gae = jax.jit(advantages.whitened_gae, static_argnames="whiten_rewards")

LENGTHS = np.array([6, 1, 3, 4])
MASK = np.arange(6)[None, :] < LENGTHS[:, None]
REWARDS, VALUES = np.random.default_rng(2).normal(size=(2, 4, 6)).astype(np.float32)


def loop_gae(rewards, values, lengths, gamma, lam):
    """Row by row, from the last token to the first, in float64."""
    advantage, returns = np.zeros(rewards.shape), np.zeros(rewards.shape)
    for row, length in enumerate(lengths):
        following = 0.0
        for t in reversed(range(length)):
            next_value = values[row, t + 1] if t + 1 < length else 0.0
            delta = rewards[row, t] + gamma * next_value - values[row, t]
            following = delta + gamma * lam * following
            advantage[row, t], returns[row, t] = following, following + values[row, t]
    return advantage, returns


def test_gae_on_hand_numbers():
    mask = jnp.ones((1, 3), bool)
    result = gae(jnp.array([[0.0, 0.0, 1.0]]), jnp.array([[0.5, 0.25, 0.5]]), mask, 0.5, 0.5)
    # deltas: 0.125 - 0.5, 0.25 - 0.25, 1 - 0.5; from the back: 0.5, 0 + 0.5 / 4, -0.375 + 0.125 / 4
    np.testing.assert_allclose(result.advantages, [[-0.34375, 0.125, 0.5]])
    np.testing.assert_allclose(result.returns, [[0.15625, 0.375, 1.0]])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])
def test_gae_equals_a_loop_on_ragged_rows(gamma, lam):
    result = gae(REWARDS, VALUES, MASK, gamma, lam)
    for ours, expected in zip(result, loop_gae(REWARDS, VALUES, LENGTHS, gamma, lam), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)
        assert not np.any(ours[~MASK])


def test_gae_with_gamma_and_lam_1_gives_the_sum_of_rewards_to_come():
    result = gae(REWARDS, VALUES, MASK, 1.0, 1.0)
    to_come = np.cumsum(np.where(MASK, REWARDS, 0)[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_allclose(result.returns, np.where(MASK, to_come, 0), atol=1e-5)


@pytest.mark.parametrize("padding", [0.0, 50.0, np.nan])
def test_gae_is_exactly_the_same_with_more_right_padding(padding):
    wide = [np.pad(array, ((0, 0), (0, 5)), constant_values=padding) for array in (REWARDS, VALUES)]
    short = gae(REWARDS, VALUES, MASK, 0.9, 0.8)
    long = gae(*wide, np.pad(MASK, ((0, 0), (0, 5))), 0.9, 0.8)
    for a, b in zip(short, long, strict=True):
        np.testing.assert_array_equal(b[:, :6], a)
        assert not np.any(b[:, 6:])


def test_token_rewards_put_the_score_on_the_last_real_token():
    scores, kl = jnp.array([0.37, 1.9, -0.6, 2.99]), jnp.asarray(VALUES)
    rewards = token_rewards(scores, kl, MASK, 0.1)
    expected = np.where(MASK, -0.1 * kl, 0.0)
    for row, (score, last) in enumerate(zip([0.37, 1.9, -0.6, 2.99], [5, 0, 2, 3], strict=True)):
        expected[row, last] += score
    np.testing.assert_allclose(rewards, expected, atol=1e-6)


@pytest.mark.parametrize("length", [1, 3])
def test_token_rewards_keep_fractional_scores(length):
    mask = np.arange(3)[None, :] < np.array([[length], [length]])
    rewards = token_rewards(jnp.array([0.37, 1.9]), jnp.zeros((2, 3), jnp.int32), mask, 0.05)
    assert rewards.dtype == jnp.float32
    np.testing.assert_array_equal(rewards[:, length - 1], np.array([0.37, 1.9], np.float32))


def test_token_rewards_of_an_empty_completion_are_0_everywhere():
    rewards = token_rewards(jnp.array([5.0]), jnp.ones((1, 3)), np.zeros((1, 3), bool), 1.0)
    np.testing.assert_array_equal(rewards, np.zeros((1, 3)))


def test_penalise_missing_eos_touches_only_rows_that_did_not_end():
    scores, ended = jnp.array([0.37, 0.37, -1.0]), jnp.array([True, False, False])
    np.testing.assert_allclose(advantages.penalise_missing_eos(scores, ended, 0.5), [0.37, -0.13, -1.5], rtol=1e-6)
    np.testing.assert_array_equal(advantages.penalise_missing_eos(scores, ended, None), scores)


@pytest.mark.parametrize("whiten_rewards", [True, False])
def test_whitened_gae_has_mean_0_and_variance_1_over_the_mask(whiten_rewards):
    result = whitened_gae(100 + 7 * REWARDS, VALUES, MASK, gamma=1.0, lam=0.95, whiten_rewards=whiten_rewards)
    real = np.asarray(result.advantages, np.float64)[MASK]
    np.testing.assert_allclose([real.mean(), real.var(ddof=1)], [0.0, 1.0], atol=1e-5)
    assert not np.any(result.advantages[~MASK])


def test_whitened_gae_leaves_the_returns_as_they_are():
    whitened = whitened_gae(REWARDS, VALUES, MASK, gamma=0.9, lam=0.8)
    np.testing.assert_array_equal(whitened.returns, gae(REWARDS, VALUES, MASK, 0.9, 0.8).returns)


def test_whitened_gae_scales_rewards_and_keeps_their_mean():
    # With gamma 0 and values 0 the returns are the rewards that GAE saw.
    result = whitened_gae(3 + 7 * REWARDS, np.zeros_like(VALUES), MASK, gamma=0.0, lam=0.0, whiten_rewards=True)
    before, after = (3 + 7 * REWARDS.astype(np.float64))[MASK], np.asarray(result.returns, np.float64)[MASK]
    np.testing.assert_allclose(after.mean(), before.mean(), rtol=1e-5)
    np.testing.assert_allclose(after.var(ddof=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(after, (before - before.mean()) / before.std(ddof=1) + before.mean(), atol=1e-4)
