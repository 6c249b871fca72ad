"""The five numbers of a run that the live view shows, and what to do where one of them does not look healthy.

Which they are, their limits and the advice are rows of `metrics.toml`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.run.metrics import METRICS, SUPERVISED, side_of_band, without_backticks

_HEADLINES = sorted(
    (
        (metric.headline, metric)
        for metric in (*METRICS, *SUPERVISED)
        if metric.headline is not None
    ),
    key=lambda pair: (pair[0].place, pair[0].rank),
)
"""By place in the view, and of those for one place the first choice first."""

_BY_LABEL = {headline.label: metric for headline, metric in _HEADLINES}


def numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers to show of a record, {label: value}: for each place the first metric that the record has."""
    # By place, as the first metric of a place that the record has hides the others.
    shown: dict[int, tuple[str, Any]] = {}
    for headline, metric in _HEADLINES:
        if metric.name in record:
            shown.setdefault(headline.place, (headline.label, record[metric.name]))
    return dict(shown.values())


def hint(label: str, values: Sequence[float | None]) -> str | None:
    """Return what is odd about the latest value of a number, and what to do.

    Args:
        label: of `numbers`.
        values: all so far, the latest last; None and what is not finite stand for "no number".

    Returns:
        Nothing ("") for a healthy number; None for one that is neither healthy nor odd, such as a speed.
    """
    if not values:
        return None
    if values[-1] is None or not math.isfinite(values[-1]):
        return (
            "not a number: see the warnings; where they name none, a lower learning_rate may help"
        )
    metric = _BY_LABEL.get(label)
    if metric is None or (metric.watch, metric.too_low, metric.too_high) == (None, None, None):
        return None
    finite = [float(value) for value in values if value is not None and math.isfinite(value)]
    side = side_of_band(finite[-1], metric.band)
    advice = metric.advice(side)
    if advice is not None:
        return f"{side}: {without_backticks(advice)}"
    # Within the band, or beyond a limit that has no advice: the course so far may still be odd.
    if metric.watch is not None and (trend := metric.watch.trend(finite)):
        return f"{trend}: {without_backticks(metric.watch.advice)}"
    return ""
