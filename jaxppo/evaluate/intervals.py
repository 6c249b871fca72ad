"""Compute intervals of rates and means over problems, and test paired differences.

The unit is the problem: several samples of one problem, or several seeds, say less than as many problems do.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# scipy.stats has the Wilson interval, Student's t, the binomial test and the bootstrap, and the
# tests compare with it. It is not used here because importing it takes two seconds, more than
# judging a file of plans does, and because its Wilson bounds and p values differ from these in the
# last digits, which stand in the results of earlier evaluations.

Z95 = 1.959964
"""Two-sided 95 % quantile of the standard normal distribution."""

BOOTSTRAP_RESAMPLES = 10_000
_CHUNK = 2**22  # indices drawn at a time: 32 MiB


def wilson(successes: float, n: int) -> dict[str, float]:
    """Compute a rate with its 95 % Wilson score interval.

    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n), p = successes / n.

    Returns:
        {"rate", "low", "high", "n"}; the interval of n = 0 is [0, 1].

    Source: Wilson 1927; Brown, Cai and DasGupta 2001.
    """
    rate = 0.0
    low = 0.0
    high = 1.0
    if n > 0:
        rate = successes / n
        low, high = _wilson_bounds(rate, n)
    return {
        "rate": rate,
        "low": low,
        "high": high,
        "n": n,
    }


def _wilson_bounds(p: float, n: float) -> tuple[float, float]:
    z = Z95
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = (centre - spread) / scale
    high = (centre + spread) / scale
    # At rates of 0 and 1 rounding would put a bound just outside [0, 1].
    return max(0.0, low), min(1.0, high)


def clustered_wilson(successes: Sequence[int], samples: Sequence[int]) -> dict[str, float]:
    """Compute the mean over problems of their success rates, with a Wilson interval over problems.

    With one sample per problem this is `wilson`. With more, the variance v of the mean over the m problems is that of
    the problems' rates / m, and Wilson's formula is used with the effective size n* = p (1 - p) / v, at least m (all
    samples of a problem alike) and at most the number of samples (all independent); m where v or p (1 - p) is 0.

    Args:
        successes: [m] of each problem.
        samples: [m] of each problem, 1 or more.

    Returns:
        {"rate", "low", "high", "n"}, and "samples" where it is not n; n counts problems.

    Source: Franco, Little, Louis and Slud, Comparative study of confidence intervals for proportions in complex sample
    surveys, Journal of Survey Statistics and Methodology 7 (2019): Wilson with the effective sample size.
    """
    problems = len(samples)
    total = sum(samples)
    if total == problems:
        return wilson(sum(successes), problems)
    rates = np.asarray(successes, float) / np.asarray(samples, float)
    p = float(rates.mean())
    variance = float(rates.var(ddof=1)) / problems if problems > 1 else 0.0
    # Without variance there is no estimate of how much the
    # samples of a problem add, so only the problems count.
    effective = p * (1 - p) / variance if variance > 0 else problems
    # A noisy variance of few problems could claim more
    # independent samples than were drawn, or fewer than problems.
    low, high = _wilson_bounds(p, min(max(effective, problems), total))
    return {
        "rate": p,
        "low": low,
        "high": high,
        "n": problems,
        "samples": total,
    }


def mean_interval(
    values: Sequence[float],
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> dict[str, Any]:
    """Compute a mean with its 95 % interval by Student's t: mean -+ t s / sqrt(n), cut at the bounds that values have.

    Values are one per problem: the mean of its samples where there are several. Equal values give a width of 0: the
    interval is only as good as n is large.

    Returns:
        {"mean", "low", "high", "n"}; the interval of n = 1 is None, and the mean of n = 0, too.
    """
    n = len(values)
    result: dict[str, Any] = {
        "mean": None,
        "low": None,
        "high": None,
        "n": n,
    }
    if n > 0:
        # fsum rounds once, so the mean does not depend on the order of the rows.
        result["mean"] = mean = math.fsum(values) / n
        if n > 1:
            variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
            spread = _t95(n - 1) * math.sqrt(variance) / math.sqrt(n)
            result["low"] = max(bounds[0], mean - spread)
            result["high"] = min(bounds[1], mean + spread)
    return result


def interval_text(measured: Mapping[str, Any] | None, with_interval: bool = True) -> str:
    """Return `81.2% [74.0%, 86.9%]` for a rate, `0.812 [0.740, 0.869]` for a mean, `-` for what was not measured."""
    if measured is None:
        return "-"
    kind, number_format = ("rate", ".1%") if "rate" in measured else ("mean", ".3f")
    if measured[kind] is None:
        return "-"
    text = f"{measured[kind]:{number_format}}"
    low = measured["low"]
    high = measured["high"]
    if not with_interval or low is None or high is None:
        return text
    return f"{text} [{low:{number_format}}, {high:{number_format}}]"


_T95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


def _t95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t: a table up to 9 degrees of freedom, a series in 1 / f above.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5 (error below 1e-4 from 10 on).
    """
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = Z95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the two-sided p value of the exact McNemar test.

    Under the null hypothesis each of the n = only_a + only_b discordant pairs falls to either side with probability
    1/2: p = min(1, 2 sum_{i <= min} C(n, i) / 2^n). Nothing discordant gives 1.

    Source: McNemar 1947; exact form: Fagerland, Lydersen and Laake, BMC Medical Research Methodology 13:91 (2013).
    """
    n = only_a + only_b
    # Integers are exact for any n, where 2.0^n would overflow from n = 1024 on. Each C(n, i) comes
    # from the one before it: computing all of them anew would take quadratic time.
    tail = 0
    term = 1
    for i in range(min(only_a, only_b) + 1):
        tail += term
        term = term * (n - i) // (i + 1)
    return min(1.0, 2 * tail / 2**n)


def paired_z(differences: Sequence[float]) -> float:
    """Return the two-sided p value of mean = 0 for paired differences, by the normal distribution: for many pairs.

    z = mean / (s / sqrt(n)); p = erfc(|z| / sqrt(2)), but at least 2 / 2^n: with either sign equally likely, all n
    differences have one sign that often. Differences that are all 0, and fewer than two, give 1.
    """
    n = len(differences)
    mean = math.fsum(differences) / n if n else 0.0
    if n < 2 or mean == 0.0:
        return 1.0
    variance = math.fsum((value - mean) ** 2 for value in differences) / (n - 1)
    by_normal = 0.0
    if variance > 0.0:
        by_normal = math.erfc(abs(mean) / math.sqrt(2.0 * variance / n))
    # A few equal differences have a variance of 0, and
    # the normal distribution would be certain of them.
    return max(by_normal, 2.0 ** (1 - n))


def bootstrap_mean(values: Sequence[float]) -> dict[str, Any]:
    """Compute a mean with the percentile bootstrap's 95 % interval over its values, one per problem.

    Args:
        values: [n], for a paired difference the differences.

    Returns:
        {"mean", "low", "high", "n"}, always the same for the same values; None for what n = 0 does not have.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 13.3.
    """
    n = len(values)
    if n == 0:
        return {
            "mean": None,
            "low": None,
            "high": None,
            "n": 0,
        }
    data = np.asarray(values, float)
    rng = np.random.default_rng(0)
    # All indices at once would take 80 kB a value. The
    # generator's numbers do not depend on how the draws are cut.
    chunk = max(1, _CHUNK // n)
    means = []
    for start in range(0, BOOTSTRAP_RESAMPLES, chunk):
        size = min(chunk, BOOTSTRAP_RESAMPLES - start)
        indices = rng.integers(0, n, (size, n))
        means.append(data[indices].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return {
        "mean": float(data.mean()),
        "low": float(low),
        "high": float(high),
        "n": n,
    }
