"""Draw numbers over the updates of a run as SVG: curves with their healthy range, and stacked bars."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxppo.report.html import NUM_COLOURS, NUM_DASHES, shown, svg
from jaxppo.run.metrics import Band

_WIDTH, _HEIGHT = 348, 196
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 340, 10, 162
_MOST_BUCKETS = 200  # of a curve that is thinned: closer than the eye tells
_MOST_BARS = 72
_MOST_DOTS = 12  # a curve of so few values, such as evaluations, shows each
_SMOOTHED_SHARE = 1 / 15  # of a curve, that its moving mean looks back on


class Curve(NamedTuple):
    """Values over x, None where there is none; with a spread, `low` and `high` belong to the values."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    colour: int = 0
    dashes: int = 0
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None

    @property
    def classes(self) -> str:
        """Return its classes in the style sheet."""
        return f"c{self.colour % NUM_COLOURS} d{self.dashes % NUM_DASHES}"


class Chart(NamedTuple):
    """A chart, and the data from which the page's script shows values."""

    svg: str
    data: dict[str, Any]
    beyond: int  # values outside the axis, drawn at its edge


# ------------------------------------------------------------------------------------------------------------- numbers


def moving_mean(values: Sequence[float | None]) -> list[float | None]:
    """Compute the exponential moving mean over about a fifteenth of the values, without bias at the start.

    m_t = (1 - a) sum_{i <= t} a^(t - i) v_i / (1 - a^(t + 1)) with a = 1 - 2 / (span + 1); None is passed over.
    """
    keep = 1.0 - 2.0 / (max(1.0, len(values) * _SMOOTHED_SHARE) + 1.0)
    total, weight, means = 0.0, 0.0, []
    for value in values:
        if value is not None:
            total, weight = keep * total + (1.0 - keep) * value, keep * weight + (1.0 - keep)
        means.append(None if value is None else total / weight)
    return means


def thinned(values: Sequence[float | None]) -> list[int]:
    """Return the indices of the values to draw: all of a few hundred, else minimum and maximum of many buckets."""
    n = len(values)
    if n <= 2 * _MOST_BUCKETS:
        return list(range(n))
    kept: list[int] = []
    for bucket in range(_MOST_BUCKETS):
        indices = range(bucket * n // _MOST_BUCKETS, (bucket + 1) * n // _MOST_BUCKETS)
        known = [i for i in indices if values[i] is not None] or list(indices[:1])
        size = lambda i: 0.0 if values[i] is None else values[i]  # noqa: E731
        kept += sorted({min(known, key=size), max(known, key=size)})
    return sorted({*kept, n - 1})


def limits(values: Sequence[float], band: Band | None = None) -> tuple[float, float]:
    """Return the lowest and highest value of the axis.

    A few extreme values do not flatten the rest: where the full range is more than three times that of 98 % of the
    values, the axis shows these. The nearest limit of the band is shown if that costs at most half the height.
    """
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    inner_low, inner_high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
    if high - low > 3 * (inner_high - inner_low) > 0:
        low, high = inner_low, inner_high
    floor = 0.0 if low >= 0.0 else -math.inf
    span = high - low
    if span <= 1e-12 * max(abs(low), abs(high)):
        span = 0.2 * abs(high) or 1.0
        low, high = low - span / 2, high + span / 2
    for edge in band or ():
        if edge is not None and low - span <= edge <= high + span:
            low, high = min(low, edge - 0.08 * span), max(high, edge + 0.08 * span)
    margin = 0.04 * (high - low)
    return max(floor, low - margin), high + margin


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers within a range, at most about `most`: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Write a number in a few characters: `0.125`, `12k`, `5.5e-4`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 10_000:
        return f"{value / 1e6:.4g}M" if abs(value) >= 1e6 else f"{value / 1e3:.4g}k"
    if abs(value) < 1e-3:
        digits, exponent = f"{value:.1e}".split("e")
        plain = f"{value:.2g}"
        return plain if len(plain) <= 6 else f"{float(digits):g}e{int(exponent)}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.4g}"


# -------------------------------------------------------------------------------------------------------------- curves


class _Scale(NamedTuple):
    """Maps values to places in the picture; values beyond an axis lie at its edge."""

    x0: float
    x1: float
    low: float
    high: float

    def x(self, value: float) -> float:
        share = 0.5 if self.x1 == self.x0 else (value - self.x0) / (self.x1 - self.x0)
        return _LEFT + share * (_RIGHT - _LEFT)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return _BOTTOM - share * (_BOTTOM - _TOP)


def line_chart(
    title: str, curves: Sequence[Curve], band: Band | None = None, x_label: str = "update", smooth: bool = True
) -> Chart | None:
    """Draw curves over the updates, each one faintly as it is and strongly as its moving mean.

    Args:
        title: for screen readers.
        curves: what is drawn.
        band: shaded.
        x_label: what the horizontal axis counts.
        smooth: draw moving means; without, the values themselves.

    Returns:
        The chart; None where no curve has a value.
    """
    values = [value for curve in curves for value in curve.ys if value is not None]
    if not values:
        return None
    xs = [x for curve in curves for x in curve.xs]
    spread = [value for curve in curves for value in (*(curve.low or ()), *(curve.high or ())) if value is not None]
    scale = _Scale(min(xs), max(xs), *limits(values + spread, band))
    parts = [_shaded(band, scale), _axes(scale, x_label)]
    described = []
    for curve in curves:
        drawn, points = _drawn(curve, scale, smooth)
        parts.append(drawn)
        described.append({"label": curve.label, "colour": curve.colour % NUM_COLOURS, "points": points})
    beyond = sum(not scale.low <= value <= scale.high for value in values)
    frame = {"x": [scale.x0, scale.x1], "y": [scale.low, scale.high], "box": [_LEFT, _RIGHT, _TOP, _BOTTOM]}
    parts.append('<g class="cursor" aria-hidden="true"></g>')
    data = frame | {"of": x_label, "curves": described}
    return Chart(svg(title, (_WIDTH, _HEIGHT), parts), data, beyond)


def _shaded(band: Band | None, scale: _Scale) -> str:
    if band is None:
        return ""
    low, high = (scale.y(edge if value is None else value) for edge, value in zip(scale[2:], band, strict=True))
    if low <= high:
        return ""
    return f'<rect class="band" x="{_LEFT}" y="{high:.1f}" width="{_RIGHT - _LEFT}" height="{low - high:.1f}"/>'


def _axes(scale: _Scale, x_label: str) -> str:
    parts = [_level(scale.y(value), short(value)) for value in ticks(scale.low, scale.high)]
    steps = [x for x in ticks(scale.x0, scale.x1) if x == int(x)] if scale.x1 > scale.x0 else [scale.x0]
    parts += [_tick(scale.x(x), short(x)) for x in steps]
    parts.append(f'<text class="axis" x="{_RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{shown(x_label)}</text>')
    return "".join(parts)


def _level(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _tick(x: float, label: str) -> str:
    return f'<text class="axis" x="{x:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{label}</text>'


def _drawn(curve: Curve, scale: _Scale, smooth: bool) -> tuple[str, list[list[float | None]]]:
    """Return the curve, and the points [x, value, moving mean] for the script."""
    means = moving_mean(curve.ys) if smooth else list(curve.ys)
    kept = thinned(curve.ys)
    parts = []
    if curve.low is not None and curve.high is not None:
        parts.append(_area(curve, scale, kept))
    elif means != list(curve.ys):
        parts.append(_polylines([(curve.xs[i], curve.ys[i]) for i in kept], scale, f"line raw {curve.classes}"))
    parts.append(_polylines([(curve.xs[i], means[i]) for i in kept], scale, f"line {curve.classes}"))
    if len(kept) <= _MOST_DOTS:
        parts += [_dot(scale, curve.xs[i], value, curve.classes) for i in kept if (value := curve.ys[i]) is not None]
    points = [[_rounded(number) for number in (curve.xs[i], curve.ys[i], means[i])] for i in kept]
    return "".join(parts), points


def _dot(scale: _Scale, x: float, value: float, classes: str) -> str:
    return f'<circle class="dot {classes}" cx="{scale.x(x):.1f}" cy="{scale.y(value):.1f}" r="2.5"/>'


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _polylines(points: Sequence[tuple[float, float | None]], scale: _Scale, classes: str) -> str:
    """Draw a line through the points, broken where a value is missing; round caps make a dot of a single one."""
    runs: list[list[str]] = [[]]
    for x, value in points:
        if value is not None:
            runs[-1].append(f"{scale.x(x):.1f},{scale.y(value):.1f}")
        elif runs[-1]:
            runs.append([])
    parts = []
    for run in filter(None, runs):
        corners = run * 2 if len(run) == 1 else run
        parts.append(f'<polyline class="{classes}" points="{" ".join(corners)}"/>')
    return "".join(parts)


def _area(curve: Curve, scale: _Scale, kept: Sequence[int]) -> str:
    lows, highs = curve.low or (), curve.high or ()
    sides = [(curve.xs[i], low, high) for i in kept if (low := lows[i]) is not None and (high := highs[i]) is not None]
    there = [f"{scale.x(x):.1f},{scale.y(high):.1f}" for x, _, high in sides]
    back = [f"{scale.x(x):.1f},{scale.y(low):.1f}" for x, low, _ in reversed(sides)]
    return f'<polygon class="area {curve.classes}" points="{" ".join(there + back)}"/>'


# ---------------------------------------------------------------------------------------------------------------- bars


class Part(NamedTuple):
    """One part of every bar."""

    label: str
    values: Sequence[float]
    colour: int


def stacked_bars(title: str, xs: Sequence[float], parts: Sequence[Part], unit: str, x_label: str = "update") -> Chart:
    """Draw bars of several parts over the updates; with many updates a bar is the mean of several.

    Args:
        title: for screen readers.
        xs: of the bars.
        parts: each with as many values as there are bars.
        unit: of the values, for the tooltip.
        x_label: what the horizontal axis counts.
    """
    n = len(xs)
    groups = [range(i * n // _MOST_BARS, (i + 1) * n // _MOST_BARS) for i in range(_MOST_BARS)]
    groups = [range(i, i + 1) for i in range(n)] if n <= _MOST_BARS else groups
    heights = [[math.fsum(part.values[i] for i in group) / len(group) for part in parts] for group in groups]
    totals = sorted(map(math.fsum, heights))
    # The first update compiles: it is cut, instead of flattening the others.
    typical = totals[int(0.9 * (len(totals) - 1))]
    top = min(totals[-1], 1.5 * typical) or 1.0
    scale = _Scale(0, len(groups), 0.0, top)
    drawn = [_level(scale.y(value), short(value)) for value in ticks(0.0, top)]
    width = (_RIGHT - _LEFT) / len(groups)
    every = math.ceil(len(groups) / 6)
    for place, (group, values) in enumerate(zip(groups, heights, strict=True)):
        first, last = short(xs[group[0]]), short(xs[group[-1]])
        where = f"{x_label} {first}" if first == last else f"{x_label}s {first} to {last}"
        values_text = ", ".join(f"{part.label} {short(value)}" for part, value in zip(parts, values, strict=True))
        drawn.append(f"<g><title>{shown(f'{where}: {values_text} {unit}')}</title>")
        below = 0.0
        for part, value in zip(parts, values, strict=True):
            y, base = scale.y(below + value), scale.y(below)
            x, wide = _LEFT + place * width, max(0.8 * width, width - 2)
            colour = f"bar c{part.colour % NUM_COLOURS}"
            drawn.append(f'<rect class="{colour}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{base - y:.1f}"/>')
            below += value
        drawn.append("</g>")
        if place % every == 0:
            drawn.append(_tick(_LEFT + (place + 0.5) * width, first))
    drawn.append(f'<text class="axis" x="{_RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{shown(x_label)}</text>')
    return Chart(svg(title, (_WIDTH, _HEIGHT), drawn), {}, sum(total > top for total in totals))
