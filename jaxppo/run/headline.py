"""The five numbers of a run that the live view shows, and what to do where one of them does not look healthy.

Which they are, their limits and the advice are rows of `metrics.toml`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.run.metrics import Metric, headlines, outside, plain

_PLACES = headlines()
_BY_LABEL = {metric.headline.label: metric for place in _PLACES for metric in place if metric.headline is not None}


def numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers to show of a record, {label: value}: for each place the first metric that the record has."""
    shown = (next((metric for metric in place if metric.name in record), None) for place in _PLACES)
    return {metric.headline.label: record[metric.name] for metric in shown if metric and metric.headline}


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
    finite = [float(value) for value in values if value is not None and math.isfinite(value)]
    if values[-1] is None or not math.isfinite(values[-1]):
        return "not a number: see the warnings; where they name none, a lower learning_rate may help"
    metric = _BY_LABEL.get(label)
    if metric is None or (metric.watch, metric.too_low, metric.too_high) == (None, None, None):
        return None
    return _judged(metric, finite)


def _judged(metric: Metric, values: Sequence[float]) -> str:
    side = outside(values[-1], metric.band)
    if (advice := metric.advice(side)) is not None:
        return f"{side}: {plain(advice)}"
    odd = metric.watch and metric.watch.trend(values)
    return f"{odd}: {plain(metric.watch.advice)}" if metric.watch and odd else ""
