"""Intervals and tests against scipy, by hand, and by simulated coverage."""

import math

import numpy as np
import pytest
from scipy import stats  # comes with jax

from jaxppo.evaluate import intervals
from jaxppo.evaluate.intervals import Z95, bootstrap_mean, clustered_wilson, mcnemar, mean_interval, paired_z, wilson


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 10), (640, 1024)])
def test_wilson_equals_scipy(successes, n):
    expected = stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
    interval = wilson(successes, n)
    assert interval["rate"] == successes / n and interval["n"] == n
    np.testing.assert_allclose([interval["low"], interval["high"]], expected, atol=1e-6)


def test_intervals_of_little_or_nothing_are_open():
    assert wilson(0, 0) == {"rate": 0.0, "low": 0.0, "high": 1.0, "n": 0}
    assert mean_interval([]) == {"mean": None, "low": None, "high": None, "n": 0}
    assert mean_interval([0.3]) == {"mean": 0.3, "low": None, "high": None, "n": 1}
    assert mean_interval([0.0, 1.0], (0.0, 1.0)) == {"mean": 0.5, "low": 0.0, "high": 1.0, "n": 2}
    assert bootstrap_mean([0.5] * 4) == {"mean": 0.5, "low": 0.5, "high": 0.5, "n": 4}
    assert bootstrap_mean([])["mean"] is None


def test_clustered_wilson_by_hand():
    for size in (1, 2, 5):  # equal samples count problems
        alike = clustered_wilson([size, 0, size, 0, size], [size] * 5)
        assert alike == wilson(3, 5) | ({"samples": 5 * size} if size > 1 else {})
    # Rates 1/2, 1, 1/2, 0, 1: mean 0.6, variance of the mean = 0.7 / 4 / 5 = 0.035, n* = 0.24 / 0.035 = 6.857.
    interval = clustered_wilson([1, 2, 1, 0, 2], [2] * 5)
    p, n, z = 0.6, 0.24 / 0.035, Z95
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert interval["rate"] == pytest.approx(0.6)
    assert interval["low"] == pytest.approx((centre - spread) / (1 + z * z / n))
    assert interval["high"] == pytest.approx((centre + spread) / (1 + z * z / n))
    # Less variance than independent samples have (n* would be 15): n* stays at 8.
    interval, whole = clustered_wilson([1, 1, 1, 0], [2] * 4), wilson(3, 8)
    assert (interval["low"], interval["high"]) == (whole["low"], whole["high"])
    # Without variance it counts problems.
    for successes in ([3], [1, 1, 1], [4, 4]):
        n, interval = len(successes), clustered_wilson(successes, [4] * len(successes))
        whole = wilson(sum(successes) / 4, n)
        assert (interval["low"], interval["high"]) == pytest.approx((whole["low"], whole["high"]))


def test_mean_interval_is_students():
    for freedom in range(1, 300):
        assert intervals._t95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=2e-4)
    rng = np.random.default_rng(0)
    for n in (2, 3, 5, 10, 11, 30, 400):
        values = rng.normal(size=n)
        low, high = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
        interval = mean_interval(values.tolist())
        assert (interval["mean"], interval["n"]) == (pytest.approx(values.mean()), n)
        np.testing.assert_allclose([interval["low"], interval["high"]], [low, high], atol=2e-3 / math.sqrt(n))


def test_mcnemar_equals_the_binomial_test():
    for only_a in range(12):
        for only_b in range(12):
            if only_a + only_b:
                expected = stats.binomtest(only_a, only_a + only_b).pvalue
                assert mcnemar(only_a, only_b) == pytest.approx(expected, rel=1e-12)
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(480, 640) == pytest.approx(stats.binomtest(480, 1120).pvalue, rel=1e-9)
    assert mcnemar(0, 5000) == 0.0 or mcnemar(0, 5000) < 1e-300


def test_paired_z_equals_the_normal_tail():
    rng = np.random.default_rng(0)
    for n in (2, 10, 500):
        differences = rng.choice([-1, -0.5, 0, 0.25, 1], n, p=[0.1, 0.1, 0.3, 0.2, 0.3])
        z = differences.mean() / (differences.std(ddof=1) / math.sqrt(n))
        assert paired_z(differences.tolist()) == pytest.approx(max(2 * stats.norm.sf(abs(z)), 2.0 ** (1 - n)))
    assert paired_z([]) == paired_z([0.5]) == paired_z([0.0] * 5) == paired_z([0.5, -0.5]) == 1.0
    assert [paired_z([0.5] * n) for n in (2, 5)] == [0.5, 0.0625]  # as signs would have it
    assert paired_z([0.5, 0.5, 0.5, 0.6]) == 0.125


def test_bootstrap_mean_equals_scipys_and_does_not_depend_on_the_size_of_a_draw(monkeypatch):
    values = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], 120, p=[0.1, 0.6, 0.3])
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    interval = bootstrap_mean(values.tolist())
    assert (interval["mean"], interval["n"]) == (pytest.approx(values.mean()), 120)
    assert (interval["low"], interval["high"]) == (expected.low, expected.high)
    monkeypatch.setattr(intervals, "_CHUNK", 10_000)  # several draws instead of one
    assert bootstrap_mean(values.tolist()) == interval
