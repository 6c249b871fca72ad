"""Score scaling, token rewards, generalised advantage estimation and leave-one-out baselines against plain loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.parallel.devices import DATA, DataParallel
from jaxppo.rl import advantages

gae, token_rewards = jax.jit(advantages.gae), jax.jit(advantages.token_rewards)
whitened_gae = jax.jit(advantages.whitened_gae, static_argnames="whiten_rewards")
add_scores = jax.jit(advantages.add_scores)
scale_scores = jax.jit(advantages.scale_scores, static_argnames="subtract_mean")

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


# --- generalised advantage estimation


def test_gae_on_hand_numbers():
    mask = jnp.ones((1, 3), bool)
    advantage, returns = gae(jnp.array([[0.0, 0.0, 1.0]]), jnp.array([[0.5, 0.25, 0.5]]), mask, 0.5, 0.5)
    # deltas: 0.125 - 0.5, 0.25 - 0.25, 1 - 0.5; from the back: 0.5, 0 + 0.5 / 4, -0.375 + 0.125 / 4
    np.testing.assert_allclose(advantage, [[-0.34375, 0.125, 0.5]])
    np.testing.assert_allclose(returns, [[0.15625, 0.375, 1.0]])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])
def test_gae_equals_a_loop_on_ragged_rows(gamma, lam):
    result = gae(REWARDS, VALUES, MASK, gamma, lam)
    for ours, expected in zip(result, loop_gae(REWARDS, VALUES, LENGTHS, gamma, lam), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)
        assert not np.any(ours[~MASK])


def test_gae_with_gamma_and_lam_1_gives_the_sum_of_rewards_to_come():
    _, returns = gae(REWARDS, VALUES, MASK, 1.0, 1.0)
    to_come = np.cumsum(np.where(MASK, REWARDS, 0)[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_allclose(returns, np.where(MASK, to_come, 0), atol=1e-5)


@pytest.mark.parametrize("padding", [0.0, 50.0, np.nan])
def test_gae_is_exactly_the_same_with_more_right_padding(padding):
    wide = [np.pad(array, ((0, 0), (0, 5)), constant_values=padding) for array in (REWARDS, VALUES)]
    short = gae(REWARDS, VALUES, MASK, 0.9, 0.8)
    long = gae(*wide, np.pad(MASK, ((0, 0), (0, 5))), 0.9, 0.8)
    for a, b in zip(short, long, strict=True):
        np.testing.assert_array_equal(b[:, :6], a)
        assert not np.any(b[:, 6:])


# --- scores

BATCHES = [np.random.default_rng(4).normal(3.0, 2.0, size).astype(np.float32) for size in (5, 1, 8, 2, 16)]


def moments_of(batches, moments=None):
    moments = advantages.initial_moments() if moments is None else moments
    for scores in batches:
        moments = add_scores(moments, scores, np.ones(scores.shape, bool))
    return moments


@pytest.mark.parametrize("count", range(1, 6))
def test_add_scores_gives_the_moments_of_all_scores_so_far(count):
    moments, everything = moments_of(BATCHES[:count]), np.concatenate(BATCHES[:count]).astype(np.float64)
    assert moments.seen == len(everything)
    np.testing.assert_allclose(moments.mean, everything.mean(), rtol=1e-6)
    np.testing.assert_allclose(moments.m2 / (len(everything) - 1), everything.var(ddof=1), rtol=1e-5)


def test_add_scores_does_not_depend_on_how_scores_are_batched():
    whole = moments_of([np.concatenate(BATCHES)])
    for batches in (BATCHES, BATCHES[::-1], np.split(np.concatenate(BATCHES), 8)):
        np.testing.assert_allclose(np.array(moments_of(batches)), np.array(whole), rtol=1e-5)


def test_add_scores_keeps_its_digits_far_from_0():
    """A sum of squares would lose them: 1000^2 has no room for 0.01^2 in fp32."""
    near = [1000 + scores / 100 for scores in BATCHES]
    everything = np.concatenate(near).astype(np.float64)
    moments = moments_of(near)
    np.testing.assert_allclose(moments.m2 / (len(everything) - 1), everything.var(ddof=1), rtol=1e-2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_add_scores_leaves_the_moments_alone_for_a_score_that_is_not_finite(bad):
    before = moments_of(BATCHES[:2])
    after = moments_of([np.array([1.0, bad, 2.0], np.float32)], before)
    np.testing.assert_array_equal(np.array(after), np.array(before))
    later = np.array(moments_of(BATCHES[2:], after))
    np.testing.assert_array_equal(later, np.array(moments_of(BATCHES)))


def test_add_scores_leaves_the_moments_alone_where_squares_overflow():
    before = moments_of(BATCHES[:2])
    after = moments_of([np.array([1e30, -1e30, 0.0], np.float32)], before)  # their mean is finite
    np.testing.assert_array_equal(np.array(after), np.array(before))


@pytest.mark.parametrize("subtract_mean", [True, False])
def test_scale_scores_divides_by_the_standard_deviation_of_all_scores(subtract_mean):
    everything = np.concatenate(BATCHES).astype(np.float64)
    centre = everything.mean() if subtract_mean else 0.0
    scaled = scale_scores(BATCHES[0], moments_of(BATCHES), subtract_mean=subtract_mean)
    np.testing.assert_allclose(scaled, (BATCHES[0] - centre) / everything.std(ddof=1), rtol=1e-5)


def test_scale_scores_on_hand_numbers():
    moments = moments_of([jnp.array([1.0, 3.0]), jnp.array([5.0])])  # mean 3, deviation 2
    np.testing.assert_allclose(scale_scores(jnp.array([5.0, 2.0]), moments, subtract_mean=True), [1, -0.5], rtol=1e-6)
    np.testing.assert_allclose(scale_scores(jnp.array([5.0, 2.0]), moments, subtract_mean=False), [2.5, 1], rtol=1e-6)


# Sums of 0.1 or 1/3 are rounded: the deviation of equal scores is hardly ever exactly 0.
@pytest.mark.parametrize("score", [1.0, 0.1, 1 / 3, 0.37, -0.9, 100.7, 0.0])
@pytest.mark.parametrize("num_rows", [1, 7, 64])
@pytest.mark.parametrize("subtract_mean", [True, False])
def test_scale_scores_only_centres_scores_that_were_all_the_same(score, num_rows, subtract_mean):
    scores = np.full(num_rows, score, np.float32)
    scaled = scale_scores(scores, moments_of([scores] * 5), subtract_mean=subtract_mean)
    np.testing.assert_allclose(scaled, 0.0 if subtract_mean else scores, rtol=1e-6, atol=abs(score) * 1e-5)


def test_scale_scores_scales_small_differences():
    """Differences of a thousandth of the mean are a scale, unlike those that rounding makes."""
    scores = np.array([0.999, 1.0, 1.001], np.float32)
    scaled = scale_scores(scores, moments_of([scores]), subtract_mean=True)
    np.testing.assert_allclose(scaled, [-1.0, 0.0, 1.0], atol=1e-3)


def test_penalize_missing_eos_touches_only_rows_that_did_not_end():
    scores, ended = jnp.array([0.37, 0.37, -1.0]), jnp.array([True, False, False])
    np.testing.assert_allclose(advantages.penalize_missing_eos(scores, ended, 0.5), [0.37, -0.13, -1.5], rtol=1e-6)
    np.testing.assert_array_equal(advantages.penalize_missing_eos(scores, ended, None), scores)


# --- token rewards


def test_value_mask_at_the_last_token_is_the_mask_itself():
    np.testing.assert_array_equal(advantages.value_mask(MASK, "last", 6), MASK)


@pytest.mark.parametrize("padding", [0, 4])
def test_value_mask_behind_the_last_token_has_one_place_more_where_there_is_room(padding):
    """Rows of 6, 1, 3, 4 and no tokens: a full one has no room, however wide the arrays, an empty one no state."""
    mask = np.pad(np.concatenate([MASK, np.zeros((1, 6), bool)]), ((0, 0), (0, padding)))
    counts = np.sum(advantages.value_mask(mask, "after", 6), axis=1)
    np.testing.assert_array_equal(counts, [6, 2, 4, 5, 0])
    # A row that was cut at a limit of its own has room.
    np.testing.assert_array_equal(np.sum(advantages.value_mask(MASK[2:], "after", 5), axis=1), [4, 5])
    contiguous = np.arange(6 + padding)[None, :] < counts[:, None]
    np.testing.assert_array_equal(advantages.value_mask(mask, "after", 6), contiguous)


def test_token_rewards_put_the_score_on_the_last_real_token():
    scores, kl = jnp.array([0.37, 1.9, -0.6, 2.99]), jnp.asarray(VALUES)
    rewards = token_rewards(scores, kl, MASK, 0.1)
    expected = np.where(MASK, -0.1 * kl, 0.0)
    for row, (score, last) in enumerate(zip([0.37, 1.9, -0.6, 2.99], [5, 0, 2, 3], strict=True)):
        expected[row, last] += score
    np.testing.assert_allclose(rewards, expected, atol=1e-6)


@pytest.mark.parametrize("position", ["last", "after"])
@pytest.mark.parametrize("padding", [0, 3])
def test_token_rewards_put_the_score_on_the_last_place_of_the_reward_mask(position, padding):
    """After a full row there is no place, so that its last token gets the score."""
    mask = np.pad(MASK, ((0, 0), (0, padding)))
    kl = np.pad(VALUES, ((0, 0), (0, padding)), constant_values=9.0)
    scores = np.array([0.37, 1.9, -0.6, 2.99], np.float32)
    rewards = token_rewards(scores, kl, mask, 0.1, advantages.value_mask(mask, position, 6))
    expected = np.where(mask, -0.1 * kl, 0.0)
    for row, at in enumerate([5, 0, 2, 3] if position == "last" else [5, 1, 3, 4]):
        expected[row, at] += scores[row]
    np.testing.assert_allclose(rewards, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [bool, np.int32, np.int8])
@pytest.mark.parametrize("length", [1, 3])
def test_token_rewards_keep_fractional_scores(length, dtype):
    """Whatever the dtype of the buffers around them: an integer one would make 0 of 0.37."""
    mask = (np.arange(3)[None, :] < np.array([[length], [length]])).astype(dtype)
    rewards = token_rewards(jnp.array([0.37, 1.9]), jnp.zeros((2, 3), jnp.int32), mask, 0.05)
    assert rewards.dtype == jnp.float32
    np.testing.assert_array_equal(rewards[:, length - 1], np.array([0.37, 1.9], np.float32))


@pytest.mark.parametrize("position", ["last", "after"])
def test_token_rewards_of_an_empty_completion_are_0_everywhere(position):
    """Its last place is not the last column, which is where an index of -1 would lead."""
    mask = np.zeros((1, 3), bool)
    for reward_mask in (None, advantages.value_mask(mask, position, 3)):
        rewards = token_rewards(jnp.array([5.0]), jnp.ones((1, 3)), mask, 1.0, reward_mask)
        np.testing.assert_array_equal(rewards, np.zeros((1, 3)))


# --- whitened advantages


@pytest.mark.parametrize("whiten_rewards", [True, False])
def test_whitened_gae_has_mean_0_and_variance_1_over_the_mask(whiten_rewards):
    result = whitened_gae(100 + 7 * REWARDS, VALUES, MASK, MASK, gamma=1.0, lam=0.95, whiten_rewards=whiten_rewards)
    real = np.asarray(result.advantages, np.float64)[MASK]
    np.testing.assert_allclose([real.mean(), real.var(ddof=1)], [0.0, 1.0], atol=1e-5)
    assert not np.any(result.advantages[~MASK])


@pytest.mark.parametrize("lam_value", [None, 1.0])
def test_whitened_gae_tells_the_mean_of_the_plain_estimates(lam_value):
    result = whitened_gae(REWARDS, VALUES, MASK, MASK, gamma=0.9, lam=0.5, lam_value=lam_value)
    plain = np.asarray(gae(REWARDS, VALUES, MASK, 0.9, 0.5)[0])[MASK]
    np.testing.assert_allclose(result.mean, plain.mean(), rtol=1e-5)


def test_whitened_gae_leaves_rewards_and_returns_as_they_are():
    whitened = whitened_gae(REWARDS, VALUES, MASK, MASK, gamma=0.9, lam=0.8)
    np.testing.assert_array_equal(whitened.returns, gae(REWARDS, VALUES, MASK, 0.9, 0.8)[1])
    np.testing.assert_array_equal(whitened.rewards, REWARDS)


def test_whitened_gae_scales_rewards_and_keeps_their_mean():
    # With gamma 0 and values 0 the returns are the rewards that GAE saw.
    result = whitened_gae(3 + 7 * REWARDS, np.zeros_like(VALUES), MASK, MASK, gamma=0.0, lam=0.0, whiten_rewards=True)
    before, after = (3 + 7 * REWARDS.astype(np.float64))[MASK], np.asarray(result.returns, np.float64)[MASK]
    np.testing.assert_allclose(after.mean(), before.mean(), rtol=1e-5)
    np.testing.assert_allclose(after.var(ddof=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(after, (before - before.mean()) / before.std(ddof=1) + before.mean(), atol=1e-4)
    np.testing.assert_array_equal(result.rewards, result.returns)
    assert not np.any(result.rewards[~MASK])


@pytest.mark.parametrize("whiten_rewards", [True, False])
def test_whitened_gae_reaches_back_from_the_state_behind_the_last_token(whiten_rewards):
    """Rewards and values count at one state more than there are tokens; advantages are whitened over tokens alone."""
    values_mask = advantages.value_mask(MASK, "after", 6)
    options = {"gamma": 0.9, "lam": 0.8, "whiten_rewards": whiten_rewards}
    result = whitened_gae(REWARDS, VALUES, MASK, values_mask, **options)
    rewards, real = REWARDS.astype(np.float64), REWARDS.astype(np.float64)[values_mask]
    if whiten_rewards:
        rewards = (rewards - real.mean()) / real.std(ddof=1) + real.mean()
    raw, returns = loop_gae(rewards, VALUES, [6, 2, 4, 5], 0.9, 0.8)
    tokens = raw[MASK]
    np.testing.assert_allclose(result.returns, returns, atol=1e-5)
    whitened = np.where(MASK, (raw - tokens.mean()) / tokens.std(ddof=1), 0)
    np.testing.assert_allclose(result.advantages, whitened, atol=1e-5)


# --- leave-one-out


@pytest.mark.parametrize("num_generations", [2, 4])
def test_leave_one_out_equals_a_double_loop(num_generations):
    rewards = np.random.default_rng(5).normal(3.0, 2.0, 8).astype(np.float32)
    expected = []
    for i, reward in enumerate(rewards):
        prompt = i // num_generations
        others = [rewards[j] for j in range(8) if j // num_generations == prompt and j != i]
        expected.append(reward - sum(map(float, others)) / (num_generations - 1))
    result = advantages.leave_one_out(jnp.asarray(rewards), num_generations, jnp.ones(8, bool))
    np.testing.assert_allclose(result, expected, atol=1e-5)
    np.testing.assert_allclose(np.reshape(result, (-1, num_generations)).sum(1), 0.0, atol=1e-5)


def test_leave_one_out_on_hand_numbers():
    rewards = jnp.array([1.0, 0.0, 0.0, 0.5, 2.0, 2.0, 2.0, 2.0])
    result = advantages.leave_one_out(rewards, 4, jnp.ones(8, bool))
    np.testing.assert_allclose(result, [1 - 0.5 / 3, -0.5, -0.5, 0.5 - 1 / 3, 0, 0, 0, 0], atol=1e-6)


def test_leave_one_out_leaves_completions_without_a_reward_out():
    rewards = jnp.array([1.0, 9.0, 0.0, 0.5, 2.0, 9.0, 9.0, 9.0])
    counted = jnp.array([True, False, True, True, True, False, False, False])
    result = advantages.leave_one_out(rewards, 4, counted)
    np.testing.assert_allclose(result, [1 - 0.5 / 2, 0, 0 - 1.5 / 2, 0.5 - 1 / 2, 0, 0, 0, 0], atol=1e-6)


def test_normalise_on_hand_numbers():
    values, counted = jnp.array([1.0, 3.0, 99.0, 5.0]), jnp.array([True, True, False, True])
    result = advantages.normalize(values, counted)  # mean 3, deviation 2
    np.testing.assert_allclose(result, [-2 / 2.0001, 0.0, 0.0, 2 / 2.0001], rtol=1e-6)


def test_normalise_of_equal_advantages_is_0():
    np.testing.assert_array_equal(advantages.normalize(jnp.full(4, 0.5), jnp.ones(4, bool)), np.zeros(4))


# --- several devices

# Each row has a level of its own, so that statistics of a few rows are far from those of all.
LEVELS = (10.0 * np.arange(8)).astype(np.float32)
COUNTED = np.ones(8, bool)


def of_devices(num_devices, mode, function, out_axes, *rows):
    """A function of row arrays, over all of these devices."""
    parallel = DataParallel(mode, jax.local_devices()[:num_devices])
    mapped = parallel.map(partial(function, axis_name=DATA), row_axes=(0,) * len(rows), out_axes=out_axes)
    return mapped(*parallel.put(rows, 0))


DEVICES = pytest.mark.parametrize(("mode", "num_devices"), [("shard_map", 2), ("shard_map", 4), ("pmap", 2)])


@DEVICES
def test_add_scores_counts_the_scores_of_all_devices(mode, num_devices):
    scores = LEVELS + np.random.default_rng(6).normal(size=8).astype(np.float32)
    before = moments_of(BATCHES[:2])
    several = of_devices(num_devices, mode, partial(advantages.add_scores, before), None, scores, COUNTED)
    everything = np.concatenate([*BATCHES[:2], scores]).astype(np.float64)
    moments = [14, everything.mean(), everything.var() * 14]
    np.testing.assert_allclose(np.array(several), moments, rtol=1e-5)


@DEVICES
def test_add_scores_leaves_the_moments_alone_whichever_device_has_the_bad_score(mode, num_devices):
    before = moments_of(BATCHES[:2])
    scores = np.array([*LEVELS[:7], np.nan], np.float32)
    several = of_devices(num_devices, mode, partial(advantages.add_scores, before), None, scores, COUNTED)
    np.testing.assert_array_equal(np.array(several), np.array(before))


@DEVICES
def test_normalise_is_global_over_devices(mode, num_devices):
    result = of_devices(num_devices, mode, advantages.normalize, 0, LEVELS, COUNTED)
    np.testing.assert_allclose(result, (LEVELS - LEVELS.mean()) / (LEVELS.std(ddof=1) + 1e-4), rtol=1e-5)


@DEVICES
def test_whitened_gae_is_global_over_devices(mode, num_devices):
    rewards, values, mask = (np.concatenate([x, x[::-1]]) for x in (REWARDS, VALUES, MASK))
    rows = (rewards + LEVELS[:, None], values, mask, advantages.value_mask(mask, "after", 6))
    program = lambda *rows, **on: tuple(  # noqa: E731
        advantages.whitened_gae(*rows, **on, gamma=0.9, lam=0.8, whiten_rewards=True)
    )
    several = of_devices(num_devices, mode, program, (0, 0, 0, None), *rows)
    for ours, expected in zip(several, whitened_gae(*rows, gamma=0.9, lam=0.8, whiten_rewards=True), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
