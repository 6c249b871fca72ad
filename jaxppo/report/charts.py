"""Compute the charts over the updates of a run: curves with their healthy range, and stacked bars.

Here are the numbers and the scale; `templates/charts.html` draws them as SVG.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from statistics import fmean
from typing import Any, NamedTuple

from jaxppo.run.metrics import Band

NUM_COLOURS = 6
NUM_DASHES = 4
"""Classes `c0` to `c5` and `d0` to `d3` of the style sheet."""

# Of the curves in the picture: on the left numbers have their place, below them the updates.
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 340, 10, 162

_MAX_BUCKETS = 200  # of a curve that is thinned: closer than the eye tells
_MAX_BARS = 72
_SMOOTHED_SHARE = 1 / 15  # of a curve, that its moving mean looks back on


class Curve(NamedTuple):
    """Values over x, None where there is none; with a spread, `low` and `high` belong to the values."""

    xs: Sequence[float]
    ys: Sequence[float | None]
    label: str = ""
    style: str = "c0 d0"  # classes, from `style_classes`
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    means: Sequence[float | None] = ()  # moving mean, which `line_chart` computes


class Scale(NamedTuple):
    """Maps values to places in the picture; values beyond an axis lie at its edge."""

    x0: float
    x1: float
    low: float
    high: float

    size = (348, 196)
    box = (_LEFT, _RIGHT, _TOP, _BOTTOM)

    def x(self, value: float) -> float:
        """Return the place of a value of the horizontal axis."""
        # A run of one update has no width: its point lies in the middle.
        if self.x1 == self.x0:
            return (_LEFT + _RIGHT) / 2
        share = (value - self.x0) / (self.x1 - self.x0)
        return _LEFT + share * (_RIGHT - _LEFT)

    def y(self, value: float) -> float:
        """Return the place of a value of the vertical axis."""
        clipped = min(max(value, self.low), self.high)
        share = (clipped - self.low) / (self.high - self.low)
        # SVG counts downwards.
        return _BOTTOM - share * (_BOTTOM - _TOP)

    def points(self, xs: Iterable[float], ys: Iterable[float]) -> str:
        """Return the corners of a line as SVG has them: `x,y x,y`."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True))

    def lines(self, xs: Sequence[float], ys: Sequence[float | None]) -> list[str]:
        """Return the corners of each stretch without a gap."""
        lines = []
        pairs = zip(xs, ys, strict=True)
        for is_gap, stretch in groupby(pairs, key=lambda pair: pair[1] is None):
            if is_gap:
                continue
            corners = self.points(*zip(*stretch, strict=True))
            # A line from a point to itself is a dot, as its
            # ends are round; a single corner is nothing.
            lines.append(corners if " " in corners else f"{corners} {corners}")
        return lines

    def x_ticks(self) -> list[float]:
        """Return round numbers of the horizontal axis; updates are whole, so that no tick lies between two of them."""
        if self.x1 == self.x0:
            return [self.x0]
        return [x for x in ticks(self.x0, self.x1) if x == int(x)]

    def y_ticks(self) -> list[float]:
        """Return round numbers of the vertical axis."""
        return ticks(self.low, self.high)


class LineChart(NamedTuple):
    """Curves over the updates with their healthy range."""

    curves: list[Curve]  # their points as they are drawn
    scale: Scale
    band: tuple[float, float] | None  # places of its top and bottom
    x_label: str
    beyond: int  # values outside the axis, drawn at its edge

    @property
    def data(self) -> dict[str, Any]:
        """Return what the page's script shows under the pointer: a point is [x, value, moving mean]."""
        curves = []
        for curve in self.curves:
            triples = zip(curve.xs, curve.ys, curve.means, strict=True)
            points = [list(map(_rounded, triple)) for triple in triples]
            curves.append({"label": curve.label, "style": curve.style, "points": points})
        return {
            "x": [self.scale.x0, self.scale.x1],
            "y": [self.scale.low, self.scale.high],
            "box": self.scale.box,
            "x_label": self.x_label,
            "curves": curves,
        }


class Part(NamedTuple):
    """One part of every bar."""

    label: str
    values: Sequence[float]
    style: str


class Bar(NamedTuple):
    """A bar of the updates from `first` to `last`: the mean of each part."""

    first: float
    last: float
    heights: list[float]


class BarChart(NamedTuple):
    """Stacked bars over the updates."""

    parts: Sequence[Part]
    bars: list[Bar]
    scale: Scale
    beyond: int  # bars higher than the axis, cut at its top


# ------------------------------------------------------------------------------------------------------------- numbers


def style_classes(colour: int, dashes: int) -> str:
    """Return the classes of a line in the style sheet."""
    return f"c{colour % NUM_COLOURS} d{dashes % NUM_DASHES}"


def drop_missing(values: Iterable[float | None]) -> list[float]:
    """Return the values that are there."""
    return [value for value in values if value is not None]


def moving_mean(values: Sequence[float | None]) -> list[float | None]:
    """Compute the exponential moving mean over about a fifteenth of the values, without bias at the start.

    m_t = (1 - a) sum_{i <= t} a^(t - i) v_i / (1 - a^(t + 1)) with a = 1 - 2 / (span + 1); None is passed over.
    """
    span = max(1.0, len(values) * _SMOOTHED_SHARE)
    decay = 1.0 - 2.0 / (span + 1.0)
    total = 0.0
    weight = 0.0
    means = []
    for value in values:
        if value is None:
            means.append(None)
            continue
        total = decay * total + (1.0 - decay) * value
        # The weights so far add up to less than 1; without
        # this the first means would be drawn to 0.
        weight = decay * weight + (1.0 - decay)
        means.append(total / weight)
    return means


def thinned(values: Sequence[float | None]) -> list[int]:
    """Return the indices of the values to draw: all of a few hundred, else minimum and maximum of many buckets.

    A mean of each bucket would look calmer than the run was, and every n-th value would miss the one update that
    matters: the extremes keep the outline of the whole curve.
    """
    n = len(values)
    if n <= 2 * _MAX_BUCKETS:
        return list(range(n))
    indices = {n - 1}
    for bucket in range(_MAX_BUCKETS):
        span = range(bucket * n // _MAX_BUCKETS, (bucket + 1) * n // _MAX_BUCKETS)
        measured = {i: value for i in span if (value := values[i]) is not None}
        # A bucket without a value keeps an index all the same: the line is broken there.
        if not measured:
            indices.add(span[0])
            continue
        indices.add(min(measured, key=measured.__getitem__))
        indices.add(max(measured, key=measured.__getitem__))
    return sorted(indices)


def limits(values: Sequence[float], band: Band | None = None) -> tuple[float, float]:
    """Return the lowest and highest value of the axis.

    A few extreme values do not flatten the others: where the full range is more than three times that of 98 % of the
    values, the axis shows these. The nearest limit of the band is shown if that costs at most half the height.
    """
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    outliers = len(ordered) // 100
    inner_low, inner_high = ordered[outliers], ordered[-1 - outliers]
    if high - low > 3 * (inner_high - inner_low) > 0:
        low, high = inner_low, inner_high
    # What is never negative, such as a fraction, gets no room below 0.
    floor = 0.0 if low >= 0.0 else -math.inf
    span = high - low
    # A constant has no range: it is drawn in the middle of one that fits its size.
    if span <= 1e-12 * max(abs(low), abs(high)):
        span = 0.2 * abs(high) or 1.0
        low -= span / 2
        high += span / 2
    for edge in band or ():
        if edge is not None and low - span <= edge <= high + span:
            low = min(low, edge - 0.08 * span)
            high = max(high, edge + 0.08 * span)
    margin = 0.04 * (high - low)
    return max(floor, low - margin), high + margin


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers within a range, at most about five: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    # Rounding of the logarithm and of the quotients must not cost a step or a tick at the edge.
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [step * i for i in range(first, last + 1)]


def short(value: float) -> str:
    """Write a number in a few characters: `0.125`, `12k`, `5.5e-4`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.4g}k"
    if abs(value) >= 100:
        return f"{value:.4g}"
    if abs(value) >= 1e-3:
        return f"{value:.3g}"
    plain = f"{value:.2g}"
    if len(plain) <= 6:
        return plain
    digits, exponent = f"{value:.1e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def duration(seconds: float) -> str:
    """Write a duration: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{short(seconds)} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _rounded(value: float | None) -> float | None:
    """Return six digits of a number: more than a reader sees, and a third of the page's bytes."""
    return None if value is None else float(f"{value:.6g}")


# -------------------------------------------------------------------------------------------------------------- charts


def line_chart(
    curves: Sequence[Curve],
    band: Band | None = None,
    x_label: str = "update",
    smooth: bool = True,
) -> LineChart:
    """Compute curves over the updates, each one as it is and as its moving mean.

    Args:
        curves: what is drawn, one value at least.
        band: the healthy range.
        x_label: what the horizontal axis counts.
        smooth: draw moving means; without, the values themselves.
    """
    values = drop_missing(chain.from_iterable(curve.ys for curve in curves))
    spread = chain.from_iterable((*curve.low, *curve.high) for curve in curves)
    low, high = limits([*values, *spread], band)
    xs = list(chain.from_iterable(curve.xs for curve in curves))
    scale = Scale(min(xs), max(xs), low, high)
    return LineChart(
        curves=[_thin(curve, smooth) for curve in curves],
        scale=scale,
        band=_band_places(band, scale),
        x_label=x_label,
        beyond=sum(not low <= value <= high for value in values),
    )


def _thin(curve: Curve, smooth: bool) -> Curve:
    """Return a curve of the points to draw."""
    # Means are of all values, so they are computed before points go.
    means = moving_mean(curve.ys) if smooth else curve.ys
    columns = curve._replace(means=means)._asdict()
    indices = thinned(curve.ys)
    for name in ("xs", "ys", "low", "high", "means"):
        if columns[name]:
            columns[name] = [columns[name][i] for i in indices]
    return Curve(**columns)


def _band_places(band: Band | None, scale: Scale) -> tuple[float, float] | None:
    """Return where a healthy range lies; None where nothing of it is in the picture."""
    if band is None:
        return None
    low, high = band
    bottom = _BOTTOM if low is None else scale.y(low)
    top = _TOP if high is None else scale.y(high)
    return (top, bottom) if top < bottom else None


def stacked_bars(xs: Sequence[float], parts: Sequence[Part]) -> BarChart:
    """Compute bars of several parts over the updates; with many updates a bar is the mean of several.

    Args:
        xs: of the bars.
        parts: each with as many values as there are bars.
    """
    n = len(xs)
    count = min(n, _MAX_BARS)
    bars = []
    for i in range(count):
        first = i * n // count
        end = (i + 1) * n // count
        heights = [fmean(part.values[first:end]) for part in parts]
        bars.append(Bar(xs[first], xs[end - 1], heights))
    totals = sorted(math.fsum(bar.heights) for bar in bars)
    # The first update compiles: its bar is cut, instead of flattening the others.
    typical = totals[int(0.9 * (count - 1))]
    top = min(totals[-1], 1.5 * typical) or 1.0
    return BarChart(
        parts=parts,
        bars=bars,
        scale=Scale(0, count, 0.0, top),
        beyond=sum(total > top for total in totals),
    )
