"""Find what looks wrong in a run, and what to do about it: for the box at the top of its report.

The healthy ranges and the advice are rows of `run/metrics.toml`.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from jaxppo.report.line_charts import short
from jaxppo.report.run_data import Run
from jaxppo.run.metrics import Band, Metric, find, outside
from jaxppo.run.trends import direction, last_part

_FEWEST_UPDATES = 20  # before that, a reward that does not rise yet is nothing unusual


class Concern(NamedTuple):
    """Something that looks wrong."""

    what: str
    advice: str


def concerns(run: Run) -> list[Concern]:
    """Return all that looks wrong in a run, what matters most first; empty where nothing does, or nothing is known."""
    known = ((find(name), [value for value in run.values(name) if value is not None]) for name in run.metric_names)
    measured = [(metric, values) for metric, values in known if metric is not None and values]
    return [
        *(concern for metric, values in measured for concern in _alarms(metric, values)),
        *_result(run),
        *_flat_reward(run),
        *(concern for metric, values in measured for concern in _course(metric, values, run.band(metric.name))),
    ]


def band_text(band: Band) -> str:
    """Return a range in words: `0 to 30`, `at least -1`."""
    low, high = band
    if low is None or high is None:
        return f"at most {short(high or 0.0)}" if low is None else f"at least {short(low)}"
    return short(low) if low == high else f"{short(low)} to {short(high)}"


def known_end(values: Sequence[float | None]) -> list[float]:
    """Return what is known of the last part of the values."""
    return list(last_part([value for value in values if value is not None]))


def _alarms(metric: Metric, values: Sequence[float]) -> Iterator[Concern]:
    """Find updates that left a range in which every single one must lie."""
    sides = [outside(value, metric.band) for value in values]
    count = sum(map(bool, sides))
    if metric.alarm and count:
        side = next(filter(None, sides))
        worst = (min if side.startswith("below") else max)(values)
        where = f"{side} in {count} update{'s' * (count != 1)} ({short(worst)})"
        yield Concern(f"`{metric.name}` was {where}.", _sentence(metric.advice(side)))


def _course(metric: Metric, values: Sequence[float], band: Band | None) -> Iterator[Concern]:
    """Find a metric that ends above its range, is below it on the whole, or shows the pattern that it is watched for.

    Below "on the whole": with the learning rate, sizes of updates fall to 0 at the end.
    """
    end, mean = fmean(last_part(values)), fmean(values)
    above, below = outside(end, band), outside(mean, band)
    if metric.alarm:
        return
    if metric.too_high and above.startswith("above"):
        yield Concern(f"`{metric.name}` ends at {short(end)}, {above}.", _sentence(metric.too_high))
    if metric.too_low and below.startswith("below"):
        yield Concern(f"`{metric.name}` is {short(mean)} on the whole, {below}.", _sentence(metric.too_low))
    if metric.watch is not None and (odd := metric.watch.trend(values)):
        what = f"`{metric.name}` is {odd}: {short(values[0])} at first, {short(end)} at last."
        yield Concern(what, _sentence(metric.watch.advice))


def _sentence(advice: str | None) -> str:
    return f"{advice[0].upper()}{advice[1:]}." if advice else ""


def _result(run: Run) -> Iterator[Concern]:
    """Find an evaluation after training that is worse than the one before."""
    split, measure = run.headline_split, run.headline
    before, after = (results.get(split or "", {}).get(measure or "") for results in (run.before, run.after))
    if not isinstance(before, dict) or not isinstance(after, dict) or measure == "loss":
        return
    if None not in (before["low"], after["high"]) and after["high"] < before["low"]:
        yield Concern(
            f"After training `{split}` is worse than before, beyond chance.",
            "Take an earlier checkpoint (`python -m jaxppo.export --step`), or train again with a lower "
            "`learning_rate` or a higher `kl_coef`.",
        )


def _flat_reward(run: Run) -> Iterator[Concern]:
    """Find a reward that has not risen, which only a longer run tells."""
    scores = [value for value in run.values("objective/scores") if value is not None]
    if len(scores) >= _FEWEST_UPDATES and direction(scores) == 0:
        yield Concern(
            f"The reward is flat: {short(scores[0])} at first, {short(fmean(last_part(scores)))} at last.",
            "See that completions of a batch earn different scores (`objective/scores_std`), then raise "
            "`learning_rate` or train longer.",
        )
