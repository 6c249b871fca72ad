"""Masked statistics, packing, and random numbers."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.parallel.devices import DATA, DataParallel
from jaxppo.rl import ops

masked_mean, masked_var = jax.jit(ops.masked_mean), jax.jit(ops.masked_var)
masked_whiten = jax.jit(ops.masked_whiten, static_argnames="shift_mean")
pack = jax.jit(ops.pack, static_argnames="length")
row_uniforms = jax.jit(ops.row_uniforms, static_argnums=(1, 2))

LENGTHS = np.array([5, 1, 3, 0, 4, 2, 5, 1])
RAGGED = np.arange(5)[None, :] < LENGTHS[:, None]
# Every row has a level and a scale of its own, so that statistics of a few rows are far from those of all.
X = (np.random.default_rng(0).normal(size=(8, 5)) * np.arange(1, 9)[:, None] + 3.0 * np.arange(8)[:, None]).astype(
    np.float32
)


def numpy_whiten(x, mask, shift_mean=True):
    """Loop over the real numbers only."""
    real = [x[i, j] for i, j in product(*map(range, x.shape)) if mask[i, j]]
    mean = sum(real) / len(real)
    var = sum((value - mean) ** 2 for value in real) / (len(real) - 1)
    out = np.zeros_like(x)
    for i, j in product(*map(range, x.shape)):
        if mask[i, j]:
            out[i, j] = (x[i, j] - mean) / np.sqrt(var + 1e-8) + (0.0 if shift_mean else mean)
    return out


def test_masked_mean_and_var_on_hand_numbers():
    x, mask = jnp.array([[1.0, 2.0, 99.0], [6.0, -99.0, 0.0]]), jnp.array([[True, True, False], [True, False, False]])
    assert masked_mean(x, mask) == 3.0
    assert masked_var(x, mask) == 7.0  # (4 + 1 + 9) / 2


def test_masked_mean_and_var_equal_numpy_on_ragged_rows():
    real = X[RAGGED].astype(np.float64)
    np.testing.assert_allclose(masked_mean(X, RAGGED), real.mean(), rtol=1e-6)
    np.testing.assert_allclose(masked_var(X, RAGGED), real.var(ddof=1), rtol=1e-6)


@pytest.mark.parametrize("hidden", [np.nan, np.inf, 1e30])
def test_masked_statistics_ignore_whatever_lies_outside_the_mask(hidden):
    dirty = np.where(RAGGED, X, np.float32(hidden))
    for statistic in (masked_mean, masked_var, masked_whiten):
        np.testing.assert_array_equal(statistic(dirty, RAGGED), statistic(np.where(RAGGED, X, 0), RAGGED))


@pytest.mark.parametrize("count", [0, 1])
def test_masked_statistics_of_no_or_one_element_are_finite(count):
    mask = np.zeros((2, 3), bool)
    mask[0, :count] = True
    x = np.full((2, 3), 7.0, np.float32)
    assert masked_mean(x, mask) == 7.0 * count
    assert masked_var(x, mask) == 0.0
    np.testing.assert_array_equal(masked_whiten(x, mask), np.zeros((2, 3)))


@pytest.mark.parametrize("shift_mean", [True, False])
def test_masked_whiten_equals_numpy_on_ragged_rows(shift_mean):
    whitened = masked_whiten(jnp.asarray(X), jnp.asarray(RAGGED), shift_mean=shift_mean)
    np.testing.assert_allclose(whitened, numpy_whiten(X, RAGGED, shift_mean), rtol=1e-5, atol=1e-6)
    assert not np.any(whitened[~RAGGED])


@pytest.mark.parametrize("mode", ["shard_map", "pmap"])
@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_masked_whiten_is_global_over_devices(mode, num_devices):
    parallel = DataParallel(mode, jax.local_devices()[:num_devices])
    whiten = parallel.map(partial(ops.masked_whiten, axis_name=DATA), row_axes=(0, 0), out_axes=0)
    whitened = whiten(*parallel.put((jnp.asarray(X), jnp.asarray(RAGGED)), 0))
    expected = numpy_whiten(X, RAGGED)
    np.testing.assert_allclose(whitened, expected, atol=1e-6)
    halves = np.concatenate([numpy_whiten(X[:4], RAGGED[:4]), numpy_whiten(X[4:], RAGGED[4:])])
    assert np.abs(halves - expected).max() > 0.5  # the data would show statistics per device


def test_masked_mean_weighs_tokens_and_not_devices():
    parallel = DataParallel(devices=jax.local_devices()[:2])
    mean = parallel.map(partial(ops.masked_mean, axis_name=DATA), row_axes=(0, 0), out_axes=None)
    x = jnp.array([[8.0, 0.0, 0.0], [1.0, 2.0, 1.0]])
    mask = jnp.array([[True, False, False], [True, True, True]])
    assert mean(*parallel.put((x, mask), 0)) == 3.0  # 12 / 4; the mean of the devices' means is 4.67


# --- means as weighted sums


def test_mean_weights_on_hand_numbers():
    mask = jnp.array([[True, True, False], [True, False, False]])
    np.testing.assert_allclose(ops.mean_weights(mask, (0, 1)), np.array([[1, 1, 0], [1, 0, 0]]) / 3, rtol=1e-6)
    np.testing.assert_array_equal(ops.mean_weights(mask, 1), [[0.5, 0.5, 0], [1, 0, 0]])
    assert ops.mean_weights(mask, 1).dtype == jnp.float32


def test_mean_weights_of_nothing_are_0():
    np.testing.assert_array_equal(ops.mean_weights(np.zeros((2, 3), bool), (0, 1)), np.zeros((2, 3)))


def test_mean_weights_belong_to_each_mini_batch_alone():
    mask = np.stack([RAGGED, RAGGED[::-1] & (np.arange(5) < 2), np.zeros_like(RAGGED)])
    both = ops.mean_weights(mask, (-2, -1))
    for weights, alone in zip(both, mask, strict=True):
        np.testing.assert_array_equal(weights, ops.mean_weights(alone, (0, 1)))
    np.testing.assert_allclose(np.sum(both, axis=(1, 2)), [1, 1, 0], rtol=1e-6)


def test_weighted_sum_with_mean_weights_is_the_mean_over_the_mask():
    expected = X[RAGGED].astype(np.float64).mean()
    np.testing.assert_allclose(ops.weighted_sum(X, ops.mean_weights(RAGGED, (0, 1))), expected, rtol=1e-6)


@pytest.mark.parametrize("parts", [[8], [4, 4], [1] * 8, [1, 2, 5], [3, 1, 4]])
def test_weighted_sum_over_any_parts_of_the_rows_adds_up_to_the_same_mean(parts):
    weights, ends = ops.mean_weights(RAGGED, (0, 1)), np.cumsum(parts)
    rows = [slice(end - size, end) for end, size in zip(ends, parts, strict=True)]
    total = sum(float(ops.weighted_sum(X[part], weights[part])) for part in rows)
    expected = X[RAGGED].astype(np.float64).mean()
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    if len(parts) > 1:  # the data would show a mean of means
        assert abs(np.mean([float(masked_mean(X[part], RAGGED[part])) for part in rows]) - expected) > 0.3


@pytest.mark.parametrize("hidden", [np.nan, np.inf, -np.inf])
def test_weighted_sum_and_its_gradient_ignore_what_has_no_weight(hidden):
    weights = ops.mean_weights(RAGGED, (0, 1))
    dirty = np.where(RAGGED, X, np.float32(hidden))
    value, gradient = jax.value_and_grad(ops.weighted_sum)(dirty, weights)
    assert value == ops.weighted_sum(np.where(RAGGED, X, 0), weights)
    np.testing.assert_array_equal(gradient, weights)


def test_weighted_sum_shows_what_is_not_finite_among_the_real():
    assert np.isnan(ops.weighted_sum(jnp.array([1.0, jnp.nan]), jnp.array([0.5, 0.5])))


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_statistics_of_all_elements_are_global_over_devices(num_devices):
    parallel = DataParallel(devices=jax.local_devices()[:num_devices])
    x = np.array([3.0, 1.0, 9.0, 2.0, 4.0, 8.0, -5.0, 0.0], np.float32)  # the extremes are not on the first device
    for statistic, expected in ((ops.mean, x.mean()), (ops.std, x.std(ddof=1)), (ops.global_max, 9.0)):
        program = parallel.map(partial(statistic, axis_name=DATA), row_axes=(0,), out_axes=None)
        np.testing.assert_allclose(program(parallel.put(x, 0)), expected, rtol=1e-6)
        np.testing.assert_allclose(statistic(jnp.asarray(x)), expected, rtol=1e-6)


# --- packing


def random_prompts(num_rows=6, prompt_length=7, completion_length=5):
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, prompt_length + 1, num_rows)
    mask = np.arange(prompt_length)[None, :] >= prompt_length - lengths[:, None]
    ids = rng.integers(1, 30, (num_rows, prompt_length))
    return ids.astype(np.int32), mask, rng.integers(1, 30, (num_rows, completion_length)).astype(np.int32)


@pytest.mark.parametrize("length", [12, 20])
def test_pack_equals_a_loop(length):
    prompt_ids, mask, completion_ids = random_prompts()
    expected = np.zeros((6, length), np.int32)
    for row in range(6):
        both = [*prompt_ids[row][mask[row]], *completion_ids[row]]
        expected[row, : len(both)] = both
    np.testing.assert_array_equal(pack(prompt_ids, mask, completion_ids, length), expected)


def test_pack_may_cut_what_lies_past_the_completions():
    prompt_ids, mask, completion_ids = random_prompts()
    whole = pack(prompt_ids, mask, completion_ids, 12)
    np.testing.assert_array_equal(pack(prompt_ids, mask, completion_ids, 9), whole[:, :9])


def test_each_token_is_predicted_in_the_column_before_it():
    columns = ops.prediction_columns(jnp.array([3, 1]), 3, 4)
    np.testing.assert_array_equal(columns, [[2, 3, 3], [0, 1, 2]])  # past the end: the last column


# --- random numbers


def test_row_uniforms_of_a_row_do_not_depend_on_the_number_of_rows():
    key = ops.purpose_key(0, ops.Purpose.ROLLOUT, 3)
    many = row_uniforms(key, 8, 5)
    for num_rows in (1, 3):
        np.testing.assert_array_equal(row_uniforms(key, num_rows, 5), many[:num_rows])
    assert len(np.unique(many)) == many.size
    assert np.all((many >= 0) & (many < 1))


def test_purpose_key_differs_for_every_seed_purpose_and_step():
    cases = list(product((0, 1, 42), ops.Purpose, range(4)))
    keys = [jax.random.key_data(ops.purpose_key(*case)).tobytes() for case in cases]
    assert len(set(keys)) == len(cases) == 3 * 7 * 4
    assert jax.random.key_data(ops.purpose_key(*cases[-1])).tobytes() == keys[-1]
