"""Draw the curves of a report: every metric of one run, or of several runs over each other."""

import re
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from jaxppo.report import html
from jaxppo.report.checks import band_text, known_end
from jaxppo.report.html import shown
from jaxppo.report.line_charts import Curve, line_chart, short
from jaxppo.report.plan_charts import line_sample
from jaxppo.report.run_data import Run
from jaxppo.run.metrics import GROUPS, Band, find, outside, prefix_of

_SCHEDULES = ("lr", "lr_value", "objective/kl_coef")  # not noisy: shown as they are


class Line(NamedTuple):
    """One colour: a run, or runs that differ in nothing but their seed, as mean and standard deviation."""

    label: str
    runs: Sequence[Run]


class Panel(NamedTuple):
    """One chart: a metric, or a family of them such as one for each split."""

    title: str
    names: list[str]

    @property
    def prefix(self) -> str:
        """Return the prefix of its metrics."""
        return prefix_of(self.title)

    @property
    def rank(self) -> int:
        """Return the rank among the unfolded charts, from the metric's row; 0: folded."""
        metric = find(self.title)
        return (metric.chart or 0) if metric else 0


def panels(runs: Iterable[Run]) -> list[Panel]:
    """Make a panel for every metric of the runs; names of one family share one, except parts of rewards."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.metric_names):
        metric = find(name)
        joined = metric is not None and "<" in metric.name and metric.name != "reward/<part>"
        found.setdefault(metric.name if metric is not None and joined else name, []).append(name)
    return [Panel(title, names) for title, names in found.items()]


class Curves:
    """Draw the charts of a page, and collect the data of its script.

    Args:
        lines: one for each colour, drawn over each other.
        x: `step`, or `episode` where batches are not of one size.
    """

    def __init__(self, lines: Sequence[Line], x: str = "step"):
        self._lines, self._x = lines, x
        self.data: list[dict[str, Any]] = []
        self._constant: list[str] = []

    def section(self) -> str:
        """Return all curves: the essential ones, then the others folded by prefix; constant metrics take one line."""
        every = panels(run for line in self._lines for run in line.runs)
        if not any(run.records for line in self._lines for run in line.runs):
            return '<h2 id="curves">Curves</h2><p class="soft">No update is logged yet.</p>'
        essential = sorted((panel for panel in every if panel.rank), key=lambda panel: panel.rank)
        if not any(panel.prefix == "objective" for panel in essential):  # of sft and of reward models
            essential = [panel for panel in every if panel.prefix in ("", "eval")]
        parts = [
            '<h2 id="curves">Curves</h2>',
            f'<p class="soft">{self._how()}</p>',
            self._legend(),
            self.grid(essential),
        ]
        for prefix, title in GROUPS.items():
            rest = [panel for panel in every if panel.prefix == prefix and panel not in essential]
            parts.append(self._folded(prefix, title, rest))
        parts.append(self._folded("", "Others", [panel for panel in every if panel.prefix not in GROUPS]))
        if self._constant:
            parts.append(f'<p class="soft">The same in every update: {", ".join(self._constant)}.</p>')
        return "".join(parts)

    def grid(self, wanted: Iterable[Panel]) -> str:
        """Return the charts of some panels side by side."""
        figures = [figure for panel in wanted if (figure := self._figure(panel))]
        return f'<div class="charts">{"".join(figures)}</div>' if figures else ""

    def island(self) -> str:
        """Return the data for the page's script, once all charts are drawn."""
        return html.data("curves-data", self.data)

    def _how(self) -> str:
        spread = any(len(line.runs) > 1 for line in self._lines)
        what = "Shaded around a line: standard deviation over seeds." if spread else "Faint: every update."
        smooth = "Strong: exponential moving mean over about a fifteenth of the run. Green: the healthy range."
        return f"{what} {smooth} Point at a curve to see its values."

    def _legend(self) -> str:
        if len(self._lines) == 1:
            return ""
        labels = (line.label for line in self._lines)
        items = (f"<li>{line_sample(*self._style(i, 0)[::-1])}{shown(label)}</li>" for i, label in enumerate(labels))
        return f'<ul class="legend">{"".join(items)}</ul>'

    def _folded(self, prefix: str, title: str, wanted: Sequence[Panel]) -> str:
        charts = self.grid(wanted)
        if not charts:
            return ""
        name = f" <code>{prefix}/</code>" if prefix else ""
        return f'<details class="group"><summary>{shown(title)}{name}</summary>{charts}</details>'

    def _figure(self, panel: Panel) -> str:
        curves = [
            self._curve(line, name, self._style(i, place), len(panel.names) > 1)
            for i, line in enumerate(self._lines)
            for place, name in enumerate(panel.names)
        ]
        curves = [curve for curve in curves if any(y is not None for y in curve.ys)]
        values = {y for curve in curves for y in curve.ys if y is not None}
        if len(values) == 1 and max(len(curve.ys) for curve in curves) > 1 and not panel.rank:
            self._constant.append(f"<code>{shown(panel.title)}</code> {short(values.pop())}")
            return ""
        metric = find(panel.names[0])
        bands = {run.band(panel.names[0]) for line in self._lines for run in line.runs}
        band = bands.pop() if len(bands) == 1 else None
        x_label, smooth = "update" if self._x == "step" else "episode", panel.title not in _SCHEDULES
        chart = line_chart(f"{panel.title} over the {x_label}s", curves, band, x_label, smooth)
        if chart is None:
            return ""
        self.data.append(chart.data)
        ends = [fmean(known_end(curve.ys)) for curve in curves]
        notes = [f"healthy {band_text(band)}"] if band is not None else []
        notes += _verdict(ends, band) if band is not None else []
        notes += [f"{chart.beyond} beyond the axis"] if chart.beyond else []
        unit = "" if metric is None else metric.unit
        now = short(ends[0]) if len(ends) == 1 else ""
        return (
            f'<figure class="curve" data-chart="{len(self.data) - 1}"><figcaption><code>{shown(panel.title)}</code>'
            f'<strong title="mean of the last tenth">{now}</strong></figcaption>'
            f'<p class="soft unit">{marked(unit)}</p>{chart.svg}'
            f'<p class="soft told">{" · ".join(notes)}</p>{self._members(panel)}{_about(panel.names[0])}</figure>'
        )

    def _members(self, panel: Panel) -> str:
        """Return the legend of a family's members: colours in one run, dashes with several."""
        if len(panel.names) == 1:
            return ""
        colours = [place if len(self._lines) == 1 else None for place in range(len(panel.names))]
        samples = (line_sample(self._style(0, place)[1], colour) for place, colour in enumerate(colours))
        items = (f"<li>{sample}{shown(_member(name))}</li>" for sample, name in zip(samples, panel.names, strict=True))
        return f'<ul class="legend">{"".join(items)}</ul>'

    def _style(self, of_line: int, place: int) -> tuple[int, int]:
        """Return colour and dashes: a colour per line, dashes per member; with one line a colour per member."""
        if len(self._lines) == 1:
            return place, place // html.NUM_COLOURS
        return of_line, place + of_line // html.NUM_COLOURS

    def _curve(self, line: Line, name: str, style: tuple[int, int], is_member: bool) -> Curve:
        """Make the curve of a metric: of one run, or the mean of several with their spread."""
        names = [line.label] * (len(self._lines) > 1) + [_member(name)] * is_member
        label, (colour, dashes) = " ".join(names), style
        if len(line.runs) == 1:
            points = line.runs[0].curve(name, self._x)
            return Curve(label, [x for x, _ in points], [y for _, y in points], colour, dashes)
        by_x: dict[float, list[float]] = {}
        for run in line.runs:
            for x, value in run.curve(name, self._x):
                if value is not None:
                    by_x.setdefault(x, []).append(value)
        xs = sorted(by_x)
        means = [fmean(by_x[x]) for x in xs]
        spreads = [stdev(by_x[x]) if len(by_x[x]) > 1 else 0.0 for x in xs]
        low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        return Curve(label, xs, means, colour, dashes, low, high)


def _member(name: str) -> str:
    """Return what replaces the `<...>` of a family: `test` for `eval/test/validity`."""
    metric = find(name)
    segments = zip((name if metric is None else metric.name).split("/"), name.split("/"), strict=True)
    return " ".join(given for family, given in segments if family.startswith("<")) or name


def _verdict(ends: Sequence[float], band: Band) -> list[str]:
    sides = {side for end in ends if (side := outside(end, band))}
    if sides:
        return [f'<span class="mark out">ends {" and ".join(sorted(sides))}</span>']
    return ['<span class="mark in">in range</span>']


def _about(name: str) -> str:
    metric = find(name)
    if metric is None:
        return ""
    return (
        f"<details><summary>What it means</summary><p>{marked(metric.meaning)}</p>"
        f"<p><b>Healthy:</b> {marked(metric.healthy)}</p></details>"
    )


def marked(text: str) -> str:
    """Return the HTML of a text, with code for backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", shown(text))
