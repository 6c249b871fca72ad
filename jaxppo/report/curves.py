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
from jaxppo.report.run_data import RunData
from jaxppo.run.metrics import (
    GROUPS,
    Metric,
    find,
    prefix_of,
    side_of_band,
)
from jaxppo.run.trends import last_part

_OTHERS = "others"
_SCHEDULES = ("lr", "lr_value", "objective/kl_coef")  # not noisy: shown as they are


class Line(NamedTuple):
    """One colour: a run, or runs that differ in nothing but their seed, as mean and standard deviation."""

    label: str
    runs: Sequence[RunData]


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


def panels(runs: Iterable[RunData]) -> list[Panel]:
    """Make a panel for every metric of the runs; names of one family share one, except parts of rewards."""
    panels_by_title: dict[str, Panel] = {}
    # A dictionary, unlike a set, keeps the order of the documentation.
    for name in dict.fromkeys(chain.from_iterable(run.metric_names for run in runs)):
        metric = find(name)
        title = name
        # Parts of rewards have units of their own, and would flatten each other in one chart.
        if metric is not None and "<" in metric.name and metric.name != "reward/<part>":
            title = metric.name
        panel = panels_by_title.setdefault(title, Panel(title, [], metric))
        panel.names.append(name)
    return list(panels_by_title.values())


def arrange_curves(lines: Sequence[Line], x: str = "step") -> Curves:
    """Draw the charts of a page.

    Args:
        lines: one for each colour, drawn over each other.
        x: `step`, or `episode` where batches are not of one size.
    """
    # With one run, each member of a family has a colour. With several, each run has one: who
    # compares runs looks for a run in every chart, so that its colour must be the same everywhere,
    # and dashes are left for the members.
    figures: list[Figure] = []
    constants = []
    for panel in panels(chain.from_iterable(line.runs for line in lines)):
        curves = _curves(panel, lines, x)
        values = set(drop_missing(chain.from_iterable(curve.ys for curve in curves)))
        # A flat line says nothing that a number does not.
        # An essential chart is kept: readers look for it.
        has_course = any(len(curve.ys) > 1 for curve in curves)
        if len(values) == 1 and has_course and not panel.rank:
            constants.append((panel.title, values.pop()))
        elif values:
            figures.append(_figure(len(figures), panel, curves, lines, x))
    ranked = [figure for figure in figures if figure.panel.rank]
    essential = sorted(ranked, key=lambda figure: figure.panel.rank)
    # `sft` and `reward_model` have no objective: what they log at all is what matters.
    if not any(figure.panel.prefix == "objective" for figure in essential):
        essential = [figure for figure in figures if figure.panel.prefix in ("", "eval")]
    legend = []
    if len(lines) > 1:
        legend = [(line.label, _style(i, 0, lines)) for i, line in enumerate(lines)]
    return Curves(lines, legend, figures, essential, constants)


def _figure(
    number: int,
    panel: Panel,
    curves: Sequence[Curve],
    lines: Sequence[Line],
    x: str,
) -> Figure:
    # Settings may ask for something else than the usual
    # range: it is shown where all runs have the same one.
    runs = chain.from_iterable(line.runs for line in lines)
    bands = {run.band(panel.names[0]) for run in runs}
    band = bands.pop() if len(bands) == 1 else None
    chart = line_chart(
        curves,
        band,
        x_label="update" if x == "step" else "episode",
        smooth=panel.title not in _SCHEDULES,
    )
    ends = [fmean(last_part(drop_missing(curve.ys))) for curve in curves]
    members = []
    if len(panel.names) > 1:
        for place, name in enumerate(panel.names):
            style = _style(0, place, lines) if len(lines) == 1 else f"d{place % NUM_DASHES}"
            members.append((_member_label(name, panel), style))
    return Figure(
        number=number,
        panel=panel,
        # Names of a user's own reward function may have any prefix.
        group=panel.prefix if panel.prefix in GROUPS else _OTHERS,
        chart=chart,
        band=band_text(band) if band is not None else "",
        outside=sorted({side_of_band(end, band) for end in ends} - {""}),
        end=short(ends[0]) if len(ends) == 1 else "",
        members=members,
    )


def _style(line: int, member: int, lines: Sequence[Line]) -> str:
    """Return the classes of a curve: a colour per line, dashes per member; with one line a colour per member."""
    # When the colours are used up, dashes tell those of the next round apart.
    if len(lines) == 1:
        return style_classes(member, member // NUM_COLOURS)
    return style_classes(line, member + line // NUM_COLOURS)


def _curves(panel: Panel, lines: Sequence[Line], x: str) -> list[Curve]:
    """Return the curves of a panel that have a value: for each line those of the family's metrics."""
    curves = []
    for number, line in enumerate(lines):
        for place, name in enumerate(panel.names):
            curve = _curve(line.runs, name, x)
            if not drop_missing(curve.ys):
                continue
            labels = []
            if len(lines) > 1:
                labels.append(line.label)
            if len(panel.names) > 1:
                labels.append(_member_label(name, panel))
            curves.append(
                curve._replace(label=" ".join(labels), style=_style(number, place, lines))
            )
    return curves


def _curve(runs: Sequence[RunData], name: str, x: str) -> Curve:
    """Return the curve of a metric: of one run, or the mean of several with their spread."""
    if len(runs) == 1:
        points = runs[0].curve(name, x)
        return Curve([place for place, _ in points], [value for _, value in points])
    # Seeds stop at different updates, and some log a metric more
    # rarely: each x has the values of those that are there.
    values_by_x: dict[float, list[float]] = {}
    for place, value in chain.from_iterable(run.curve(name, x) for run in runs):
        if value is not None:
            values_by_x.setdefault(place, []).append(value)
    xs = sorted(values_by_x)
    means = []
    low = []
    high = []
    for place in xs:
        values = values_by_x[place]
        mean = fmean(values)
        # Where one run alone got so far there is no spread.
        spread = stdev(values) if len(values) > 1 else 0.0
        means.append(mean)
        low.append(mean - spread)
        high.append(mean + spread)
    return Curve(xs, means, low=low, high=high)


def _member_label(name: str, panel: Panel) -> str:
    """Return what stands for the `<...>` of a family: `test` for `eval/test/validity`."""
    segments = zip(panel.title.split("/"), name.split("/"), strict=True)
    return " ".join(segment for family, segment in segments if family.startswith("<"))
