"""Every metric of a training record, defined once: unit, meaning, healthy range, what to do outside of it, where shown.

The live view, the warnings of a run and its report read their limits and advice from here: a new metric is one row of
metrics.toml.
`python -m jaxppo.metrics` prints the table as a page.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxppo.run import trends
from jaxppo.run.trends import Trend

Band = tuple[float | None, float | None]
"""Lowest and highest healthy value; None: no limit on that side."""


COUNTERS = ("step", "episode", "epoch")
"""Counters of a record, beside its metrics."""

MAY_DIFFER = ("time/", "throughput/", "memory/", "compile/", "cache/")
"""Prefixes of the metrics in which a resumed run, or the same run elsewhere, may differ from another."""


class Watch(NamedTuple):
    """A pattern in the values of a metric that is not healthy, and what to do about it."""

    trend: Trend
    advice: str


class Headline(NamedTuple):
    """A metric's place among the five numbers of the live view: of those with one place, the lowest rank is shown."""

    label: str
    place: int  # 1 to 5
    rank: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of `metrics.jsonl`.

    Args:
        name: as logged, in TRL 1.x's spelling where TRL has it; `<...>` stands for one path segment.
        unit: what the number counts.
        meaning: one or two sentences, with the formula where it is short, and over what the mean is taken.
        healthy: the range of a healthy run, or what to look for.
        band: lowest and highest value of `healthy` where it is one range for all runs; None: no limit on that side.
        too_low: what to do below the band; None: nothing, the limit is only shown.
        too_high: what to do above the band.
        alarm: warn as soon as one update leaves the band, the first time or always.
        watch: what else to look for in the values so far.
        headline: where the live view shows it.
        chart: the report shows its curve unfolded: 1 with what counts, 2 the policy, 3 the updates, 4 the optimizer.
        old_name: TRL 0.11's name where it differs.
    """

    name: str
    unit: str
    meaning: str
    healthy: str
    band: Band | None = None
    too_low: str | None = None
    too_high: str | None = None
    alarm: Literal["once", "always"] | None = None
    watch: Watch | None = None
    headline: Headline | None = None
    chart: int | None = None
    old_name: str | None = None

    def advice(self, side: str) -> str | None:
        """Return what to do about a value `outside` its band."""
        return {"below": self.too_low, "above": self.too_high}.get(side.partition(" ")[0])


def side_of_band(value: float, band: Band | None) -> str:
    """Return "below 0.5" or "above 0.95"; nothing for a value within the band."""
    low, high = band or (None, None)
    if low is not None and value < low:
        return f"below {low:g}"
    if high is not None and value > high:
        return f"above {high:g}"
    return ""


def without_backticks(advice: str) -> str:
    """Return a text without the backticks of Markdown, for the terminal."""
    return advice.replace("`", "")


def _metric(row: dict[str, Any]) -> Metric:
    """Build a metric from its row in metrics.toml, where `low` and `high` stand for the band."""
    band = (row.pop("low", None), row.pop("high", None))
    # TOML has only names of functions: `trend` is one of trends.py.
    if "watch" in row:
        row["watch"] = Watch(getattr(trends, row["watch"]["trend"]), row["watch"]["advice"])
    if "headline" in row:
        row["headline"] = Headline(**row["headline"])
    return Metric(**row, band=None if band == (None, None) else band)


# A table of data: docs/metrics.md, warnings, live view and report are made of the same rows.
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

METRICS: tuple[Metric, ...] = tuple(map(_metric, _TABLE["metric"]))

SUPERVISED: tuple[Metric, ...] = tuple(map(_metric, _TABLE["supervised"]))
"""Headline numbers that only `sft` and `reward_model` log; the page explains those of `train`."""

GROUPS = {
    "": "Progress, learning rates, gradient",
    "objective": "Objective",
    "policy": "The policy in the update",
    "loss": "Losses",
    "val": "Ratio and clipping",
    "value": "Values and returns; PPO only",
    "completions": "Completions",
    "tokens": "Prompts",
    "self_train": "Rounds of self-training; `self_train` only",
    "reward": "Parts of the reward",
    "rewards": "Each reward function",
    "cache": "Caches",
    "eval": "Evaluation during training",
    "time": "Time",
    "throughput": "Throughput",
    "memory": "Memory",
    "compile": "Compilation",
}
"""Title of each prefix of the names, in the order of the documentation."""

_BY_NAME = {metric.name: metric for metric in METRICS}


def find(name: str) -> Metric | None:
    """Return the definition of a logged name: the metric of that very name, else the family that covers it."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((metric for metric in METRICS if _covers(metric.name, name)), None)


_COUNTED_BY_RUN = (
    "reward/errors",
    "reward/timeouts",
    "reward/not_scorable",
    "reward/zero_variance_groups",
)


def may_report(name: Any) -> bool:
    """Return whether a reward function may report under a name: it is a part of the reward, or no metric of a run."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
        return False
    # A function may measure its own reward and its cache;
    # another metric of the run would be overwritten.
    if name == "cache/reward_hits" or (prefix_of(name) == "reward" and name not in _COUNTED_BY_RUN):
        return True
    return name not in COUNTERS and find(name) is None


def prefix_of(name: str) -> str:
    """Return the part before the first slash; nothing where there is none."""
    return name.partition("/")[0] if "/" in name else ""


def _covers(family: str, name: str) -> bool:
    """Return whether a name with `<...>` segments stands for this name."""
    return re.fullmatch(re.sub("<[^>]*>", "[^/]+", family), name) is not None
