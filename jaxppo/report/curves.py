"""Arrange the curves of a report: every metric of one run, or of several runs over each other."""

from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import fmean, stdev
from typing import NamedTuple

from jaxppo.report.charts import (
    NUM_COLOURS,
    NUM_DASHES,
    Curve,
    LineChart,
    drop_missing,
    line_chart,
    short,
    style_classes,
)
from jaxppo.report.checks import band_text
from jaxppo.report.run_data import Run
from jaxppo.run.metrics import GROUPS, Metric, find, outside, prefix_of
from jaxppo.run.trends import last_part

_OTHERS = "others"
_SCHEDULES = ("lr", "lr_value", "objective/kl_coef")  # not noisy: shown as they are


class Line(NamedTuple):
    """One colour: a run, or runs that differ in nothing but their seed, as mean and standard deviation."""

    label: str
    runs: Sequence[Run]


class Panel(NamedTuple):
    """One chart: a metric, or a family of them such as one for each split."""

    title: str
    names: list[str]
    metric: Metric | None

    @property
    def prefix(self) -> str:
        """Return the prefix of its metrics."""
        return prefix_of(self.title)

    @property
    def rank(self) -> int:
        """Return the rank among the unfolded charts, from the metric's row; 0: folded."""
        return (self.metric.chart or 0) if self.metric else 0


class Figure(NamedTuple):
    """The chart of a panel with what is written around it."""

    number: int  # of its data
    panel: Panel
    group: str  # a key of `Curves.groups`
    chart: LineChart
    band: str  # the healthy range in words; empty where there is none
    outside: list[str]  # how curves end outside of it
    end: str  # where a single curve ends
    members: list[tuple[str, str]]  # names of a family's metrics, and their styles


class Curves(NamedTuple):
    """The curves of a page: the essential ones, then the others folded by prefix; constant metrics take one line."""

    lines: Sequence[Line]
    legend: list[tuple[str, str]]  # lines and their styles, where there are several
    figures: list[Figure]
    essential: list[Figure]
    constants: list[tuple[str, float]]
    groups: dict[str, str] = GROUPS | {_OTHERS: "Others"}


def panels(runs: Iterable[Run]) -> list[Panel]:
    """Make a panel for every metric of the runs; names of one family share one, except parts of rewards."""
    panels_by_title: dict[str, Panel] = {}
    for name in dict.fromkeys(chain.from_iterable(run.metric_names for run in runs)):
        metric = find(name)
        is_member = metric is not None and "<" in metric.name and metric.name != "reward/<part>"
        title = metric.name if is_member else name
        panel = panels_by_title.setdefault(title, Panel(title, [], metric))
        panel.names.append(name)
    return list(panels_by_title.values())


def arrange_curves(lines: Sequence[Line], x: str = "step") -> Curves:
    """Draw the charts of a page.

    Args:
        lines: one for each colour, drawn over each other.
        x: `step`, or `episode` where batches are not of one size.
    """
    figures: list[Figure] = []
    constants = []
    for panel in panels(chain.from_iterable(line.runs for line in lines)):
        curves = _curves(panel, lines, x)
        values = set(drop_missing(chain.from_iterable(curve.ys for curve in curves)))
        if len(values) == 1 and not panel.rank and any(len(curve.ys) > 1 for curve in curves):
            constants.append((panel.title, values.pop()))
        elif values:
            figures.append(_figure(len(figures), panel, curves, lines, x))
    essential = sorted((figure for figure in figures if figure.panel.rank), key=lambda figure: figure.panel.rank)
    if not any(figure.panel.prefix == "objective" for figure in essential):  # of sft and of reward models
        essential = [figure for figure in figures if figure.panel.prefix in ("", "eval")]
    legend = [(line.label, _style(i, 0, lines)) for i, line in enumerate(lines)] if len(lines) > 1 else []
    return Curves(lines, legend, figures, essential, constants)


def _figure(number: int, panel: Panel, curves: Sequence[Curve], lines: Sequence[Line], x: str) -> Figure:
    # Settings may ask for something else than the usual range: it is shown where all runs have the same one.
    runs = chain.from_iterable(line.runs for line in lines)
    bands = {run.band(panel.names[0]) for run in runs}
    band = bands.pop() if len(bands) == 1 else None
    ends = [fmean(last_part(drop_missing(curve.ys))) for curve in curves]
    members = []
    if len(panel.names) > 1:
        for place, name in enumerate(panel.names):
            style = _style(0, place, lines) if len(lines) == 1 else f"d{place % NUM_DASHES}"
            members.append((_member_label(name, panel), style))
    return Figure(
        number=number,
        panel=panel,
        group=panel.prefix if panel.prefix in GROUPS else _OTHERS,
        chart=line_chart(curves, band, "update" if x == "step" else "episode", panel.title not in _SCHEDULES),
        band=band_text(band) if band is not None else "",
        outside=sorted({outside(end, band) for end in ends} - {""}),
        end=short(ends[0]) if len(ends) == 1 else "",
        members=members,
    )


def _style(line: int, member: int, lines: Sequence[Line]) -> str:
    """Return the classes of a curve: a colour per line, dashes per member; with one line a colour per member."""
    colour = member if len(lines) == 1 else line
    # When the colours are used up, dashes tell those of the next round apart.
    dashes = colour // NUM_COLOURS + (0 if len(lines) == 1 else member)
    return style_classes(colour, dashes)


def _curves(panel: Panel, lines: Sequence[Line], x: str) -> list[Curve]:
    """Return the curves of a panel that have a value: for each line those of the family's metrics."""
    curves = []
    for number, line in enumerate(lines):
        for place, name in enumerate(panel.names):
            line_label = line.label if len(lines) > 1 else ""
            member_label = _member_label(name, panel) if len(panel.names) > 1 else ""
            curve = _curve(line.runs, name, x)._replace(
                label=f"{line_label} {member_label}".strip(), style=_style(number, place, lines)
            )
            if any(y is not None for y in curve.ys):
                curves.append(curve)
    return curves


def _curve(runs: Sequence[Run], name: str, x: str) -> Curve:
    """Return the curve of a metric: of one run, or the mean of several with their spread."""
    if len(runs) == 1:
        points = runs[0].curve(name, x)
        return Curve([place for place, _ in points], [value for _, value in points])
    values_by_x: dict[float, list[float]] = {}
    for place, value in chain.from_iterable(run.curve(name, x) for run in runs):
        if value is not None:
            values_by_x.setdefault(place, []).append(value)
    xs = sorted(values_by_x)
    means = [fmean(values_by_x[place]) for place in xs]
    # Where one run alone got so far there is no spread.
    spreads = [stdev(values_by_x[place]) if len(values_by_x[place]) > 1 else 0.0 for place in xs]
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    return Curve(xs, means, low=low, high=high)


def _member_label(name: str, panel: Panel) -> str:
    """Return what stands for the `<...>` of a family: `test` for `eval/test/validity`."""
    segments = zip(panel.title.split("/"), name.split("/"), strict=True)
    return " ".join(segment for family, segment in segments if family.startswith("<"))
