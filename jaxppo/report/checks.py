"""Find what looks wrong in a run, and what to do about it: for the box at the top of its report.

The healthy ranges and the advice are rows of `run/metrics.toml`.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from jaxppo.report.charts import short
from jaxppo.report.run_data import RunData
from jaxppo.run.metrics import Band, Metric, find, side_of_band
from jaxppo.run.trends import direction, last_part

_FEWEST_UPDATES = 20  # before that, a reward that does not rise yet is nothing unusual


class Concern(NamedTuple):
    """Something that looks wrong."""

    finding: str
    advice: str


def concerns(run: RunData) -> list[Concern]:
    """Return all that looks wrong in a run, what matters most first; empty where nothing does, or nothing is known."""
    # First what broke single updates, then the result
    # itself; the course of a metric may only explain these.
    alarms = []
    courses = []
    for name in run.metric_names:
        metric = find(name)
        values = run.values(name)
        if metric is None or not values:
            continue
        if metric.alarm:
            alarms += _alarms(metric, values)
        else:
            courses += _course(name, metric, values, run.band(metric.name))
    return [*alarms, *_result(run), *_flat_reward(run), *courses]


def band_text(band: Band) -> str:
    """Return a range in words: `0 to 30`, `at least -1`."""
    low, high = band
    if low is None:
        return f"at most {short(high or 0.0)}"
    if high is None:
        return f"at least {short(low)}"
    return short(low) if low == high else f"{short(low)} to {short(high)}"


def _alarms(metric: Metric, values: Sequence[float]) -> Iterator[Concern]:
    """Find updates that left a range in which every single one must lie."""
    sides = [side for value in values if (side := side_of_band(value, metric.band))]
    if sides:
        worst = min(values) if sides[0].startswith("below") else max(values)
        updates = "1 update" if len(sides) == 1 else f"{len(sides)} updates"
        yield Concern(
            f"`{metric.name}` was {sides[0]} in {updates} ({short(worst)}).",
            _sentence(metric.advice(sides[0])),
        )


def _course(
    name: str, metric: Metric, values: Sequence[float], band: Band | None
) -> Iterator[Concern]:
    """Find a metric that ends above its range, is below it on the whole, or shows a pattern it is watched for."""
    end = fmean(last_part(values))
    # On the whole: with the learning rate, sizes of updates fall to 0 at the end of every run.
    mean = fmean(values)
    above = side_of_band(end, band)
    below = side_of_band(mean, band)
    if metric.too_high and above.startswith("above"):
        yield Concern(f"`{name}` ends at {short(end)}, {above}.", _sentence(metric.too_high))
    if metric.too_low and below.startswith("below"):
        yield Concern(
            f"`{name}` is {short(mean)} on the whole, {below}.", _sentence(metric.too_low)
        )
    if metric.watch is not None and (pattern := metric.watch.trend(values)):
        finding = f"`{name}` is {pattern}: {short(values[0])} at first, {short(end)} at last."
        yield Concern(finding, _sentence(metric.watch.advice))


def _sentence(advice: str | None) -> str:
    return f"{advice[0].upper()}{advice[1:]}." if advice else ""


def _result(run: RunData) -> Iterator[Concern]:
    """Find an evaluation after training that is worse than the one before."""
    before_training, after_training = run.headline_results
    # A loss is better where it is lower, and has no interval.
    if (
        run.headline == "loss"
        or not isinstance(before_training, dict)
        or not isinstance(after_training, dict)
    ):
        return
    # Of a single row there is no interval.
    if before_training["low"] is None or after_training["high"] is None:
        return
    if after_training["high"] < before_training["low"]:
        yield Concern(
            f"After training `{run.headline_split}` is worse than before, beyond chance.",
            "Take an earlier checkpoint (`python -m jaxppo.export --step`), or train again with a lower "
            "`learning_rate` or a higher `kl_coef`.",
        )


def _flat_reward(run: RunData) -> Iterator[Concern]:
    """Find a reward that has not risen, which only a longer run tells."""
    scores = run.values("objective/scores")
    if len(scores) >= _FEWEST_UPDATES and direction(scores) == 0:
        yield Concern(
            f"The reward is flat: {short(scores[0])} at first, {short(fmean(last_part(scores)))} at last.",
            "See that completions of a batch earn different scores (`objective/scores_std`), then raise "
            "`learning_rate` or train longer.",
        )
