"""Masked statistics, packing, and random numbers."""

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


def test_masked_mean_and_var_on_hand_numbers_and_ragged_rows():
    x, mask = jnp.array([[1.0, 2.0, 99.0], [6.0, -99.0, 0.0]]), jnp.array([[True, True, False], [True, False, False]])
    assert masked_mean(x, mask) == 3.0
    assert masked_var(x, mask) == 7.0  # (4 + 1 + 9) / 2
    real = X[RAGGED].astype(np.float64)
    np.testing.assert_allclose(masked_mean(X, RAGGED), real.mean(), rtol=1e-6)
    np.testing.assert_allclose(masked_var(X, RAGGED), real.var(ddof=1), rtol=1e-6)


@pytest.mark.parametrize("hidden", [np.nan, 1e30])
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


@pytest.mark.parametrize(("mode", "num_devices"), [("shard_map", 4), ("pmap", 2)])
def test_statistics_are_global_over_devices(mode, num_devices):
    def program(x, mask):
        masked = ops.masked_whiten(x, mask, axis_name=DATA), ops.masked_mean(x, mask, axis_name=DATA)
        return *masked, ops.mean(x, DATA), ops.std(x, DATA), ops.global_max(x, DATA), -ops.global_max(-x, DATA)

    parallel = DataParallel(mode, jax.local_devices()[:num_devices])
    mapped = parallel.map(program, row_axes=(0, 0), out_axes=(0, None, None, None, None, None))
    # The largest number is on the first device, the least on another: whichever is looked at lacks one of them.
    whitened, *scalars = mapped(*parallel.put((X[::-1], RAGGED[::-1]), 0))
    expected = numpy_whiten(X[::-1], RAGGED[::-1])
    np.testing.assert_allclose(whitened, expected, atol=1e-6)
    numbers = [X[RAGGED].astype(np.float64).mean(), X.mean(), X.std(ddof=1), X.max(), X.min()]
    np.testing.assert_allclose(scalars, numbers, rtol=1e-5)
    np.testing.assert_allclose([ops.mean(X), ops.std(X), ops.global_max(X)], numbers[1:-1], rtol=1e-5)
    halves = np.concatenate([numpy_whiten(X[:4], RAGGED[:4]), numpy_whiten(X[4:], RAGGED[4:])])
    assert np.abs(halves[::-1] - expected).max() > 0.5  # the data would show statistics per device


def test_mean_weights_on_hand_numbers():
    mask = jnp.array([[True, True, False], [True, False, False]])
    np.testing.assert_allclose(ops.mean_weights(mask, (0, 1)), np.array([[1, 1, 0], [1, 0, 0]]) / 3, rtol=1e-6)
    np.testing.assert_array_equal(ops.mean_weights(mask, 1), [[0.5, 0.5, 0], [1, 0, 0]])
    assert ops.mean_weights(mask, 1).dtype == jnp.float32
    np.testing.assert_allclose(ops.weighted_sum(X, ops.mean_weights(RAGGED, (0, 1))), X[RAGGED].mean(), rtol=1e-6)


@pytest.mark.parametrize("hidden", [np.nan, -np.inf])
def test_weighted_sum_and_its_gradient_ignore_what_has_no_weight(hidden):
    weights = ops.mean_weights(RAGGED, (0, 1))
    dirty = np.where(RAGGED, X, np.float32(hidden))
    value, gradient = jax.value_and_grad(ops.weighted_sum)(dirty, weights)
    assert value == ops.weighted_sum(np.where(RAGGED, X, 0), weights)
    np.testing.assert_array_equal(gradient, weights)
    assert np.isnan(ops.weighted_sum(jnp.array([1.0, jnp.nan]), jnp.array([0.5, 0.5])))  # among the real it shows


def random_prompts(num_rows=6, prompt_length=7, completion_length=5):
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, prompt_length + 1, num_rows)
    mask = np.arange(prompt_length)[None, :] >= prompt_length - lengths[:, None]
    ids = rng.integers(1, 30, (num_rows, prompt_length))
    return ids.astype(np.int32), mask, rng.integers(1, 30, (num_rows, completion_length)).astype(np.int32)


@pytest.mark.parametrize("length", [9, 12, 20])
def test_pack_equals_a_loop(length):
    """Also where what lies past the completions is cut."""
    prompt_ids, mask, completion_ids = random_prompts()
    expected = np.zeros((6, 20), np.int32)
    for row in range(6):
        both = [*prompt_ids[row][mask[row]], *completion_ids[row]]
        expected[row, : len(both)] = both
    np.testing.assert_array_equal(pack(prompt_ids, mask, completion_ids, length), expected[:, :length])


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
