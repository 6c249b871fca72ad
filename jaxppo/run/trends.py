"""Patterns in the values of a metric that are not healthy: each says in words what is odd, or nothing."""

import itertools
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev

Trend = Callable[[Sequence[float]], str | None]
"""Finite values so far, the latest last -> what is odd about them, such as "falling"; None where nothing is."""

MIN_VALUES = 8
"""Fewest values that a trend is read from."""


def direction(values: Sequence[float]) -> int:
    """Return 1 if the last quarter lies above the first one by more than chance explains, -1 if below, else 0."""
    if len(values) < MIN_VALUES:
        return 0
    quarter = len(values) // 4
    change = fmean(values[-quarter:]) - fmean(values[:quarter])
    # Differences of neighbours hold the noise of two values and hardly any of the trend: their
    # deviation is sqrt(2) times that of one value, and so is that of the difference of two means.
    noise = stdev(b - a for a, b in itertools.pairwise(values)) / quarter**0.5
    if abs(change) <= 2 * noise:
        return 0
    return 1 if change > 0 else -1


def last_part(values: Sequence[float]) -> Sequence[float]:
    """Return the last tenth of the values, and the last five at least: where a metric has got to."""
    return values[-max(5, len(values) // 10) :]


def falling(values: Sequence[float]) -> str | None:
    """Find a fall over the run that is more than noise."""
    if direction(values) < 0:
        return "falling"
    return None


def rising(values: Sequence[float]) -> str | None:
    """Find a rise over the run that is more than noise."""
    if direction(values) > 0:
        return "rising"
    return None


def spiking(values: Sequence[float]) -> str | None:
    """Find a latest value of ten times the usual one."""
    # The median: one earlier spike does not hide the next.
    if len(values) >= MIN_VALUES and values[-1] > 10 * median(values):
        return "10 times the usual"
    return None


def collapsing(values: Sequence[float]) -> str | None:
    """Find a level below a tenth of the first one."""
    # Twice as many values as elsewhere, so that the first and the last ones do not overlap.
    if len(values) >= 2 * MIN_VALUES and fmean(last_part(values)) < 0.1 * fmean(values[:5]):
        return "below a tenth of its first value"
    return None


def near_zero(values: Sequence[float]) -> str | None:
    """Find a latest value that is 0 up to rounding."""
    if abs(values[-1]) < 1e-6:
        return "near 0"
    return None


def below_minus_1(values: Sequence[float]) -> str | None:
    """Find a latest value below -1, the threshold of TRL 0.11 for a KL estimate that cannot be noise."""
    if values[-1] < -1:
        return "below -1"
    return None


def long_negative(values: Sequence[float]) -> str | None:
    """Find many values in a row below 0."""
    if len(values) >= MIN_VALUES and max(values[-MIN_VALUES:]) < 0:
        return "below 0 for long"
    return None


def long_zero(values: Sequence[float]) -> str | None:
    """Find many values in a row that are 0."""
    if len(values) >= MIN_VALUES and not any(values[-MIN_VALUES:]):
        return "0 for long"
    return None
