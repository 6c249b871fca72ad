"""Draw the charts of an evaluation as SVG; the page's style sheet has the colours."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxppo.evaluate.intervals import interval_text
from jaxppo.report.html import NUM_COLOURS, NUM_DASHES, shown, svg

_WIDTH, _HEIGHT = 420, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 410, 14, 200
_MOST_LABEL = 32  # characters of 12 px that fit in front of the intervals


class Series(NamedTuple):
    """Rates by bin: {bin: {"rate", "low", "high", "n"}}, drawn in the colour and with the dashes of a number."""

    label: str
    rates: Mapping[str, Mapping[str, Any]]
    colour: int = 0
    dashes: int = 0


def rate_chart(title: str, bins: Sequence[str], series: Sequence[Series]) -> str:
    """Draw rates with their intervals over bins; each series is a line through its bins.

    Args:
        title: for screen readers.
        bins: labels of the horizontal axis, in order.
        series: what is drawn.
    """
    places = {label: _LEFT + (_RIGHT - _LEFT) * (i + 0.5) / max(1, len(bins)) for i, label in enumerate(bins)}
    step = (_RIGHT - _LEFT) / max(1, len(bins))
    parts = [_grid(), *(_tick(x, label) for label, x in places.items())]
    for number, one in enumerate(series):
        shift = (number - (len(series) - 1) / 2) * min(9.0, 0.7 * step / len(series))
        parts.append(_line(one, [(places[label] + shift, label) for label in bins if label in one.rates]))
    middle = (_LEFT + _RIGHT) / 2
    parts.append(
        f'<text class="axis" x="{middle:g}" y="{_HEIGHT - 8}" text-anchor="middle">reference length (steps)</text>'
    )
    return svg(title, (_WIDTH, _HEIGHT), parts)


def _y(rate: float) -> float:
    return _BOTTOM - rate * (_BOTTOM - _TOP)


def _grid() -> str:
    lines = []
    for rate in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(rate)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{rate:.0%}</text>')
    return "".join(lines)


def _tick(x: float, label: str) -> str:
    return f'<text class="axis" x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{shown(label)}</text>'


def _line(series: Series, points: Sequence[tuple[float, str]]) -> str:
    colour = f"c{series.colour % NUM_COLOURS}"
    corners = " ".join(f"{x:.1f},{_y(series.rates[label]['rate']):.1f}" for x, label in points)
    dashes = f"d{series.dashes % NUM_DASHES}"
    parts = [f'<polyline class="line {colour} {dashes}" points="{corners}"/>']
    for x, label in points:
        rate = series.rates[label]
        y, low, high = (_y(rate[name]) for name in ("rate", "low", "high"))
        told = f"{series.label}, {label} steps: {interval_text(rate)}, n = {rate['n']}"
        parts.append(
            f'<g class="point {colour}"><title>{shown(told)}</title>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
            f'<line x1="{x - 4:.1f}" x2="{x + 4:.1f}" y1="{low:.1f}" y2="{low:.1f}"/>'
            f'<line x1="{x - 4:.1f}" x2="{x + 4:.1f}" y1="{high:.1f}" y2="{high:.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"/></g>'
        )
    return "".join(parts)


def interval_chart(title: str, rates: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw rates with their intervals, one below the other.

    Args:
        title: for screen readers.
        rates: {label: {"rate", "low", "high", "n"}}.
    """
    left, right, height = _WIDTH * 0.55, _WIDTH - 22.0, 18 * len(rates) + 26
    x = lambda rate: left + rate * (right - left)  # noqa: E731
    parts = []
    for rate in (0.0, 0.5, 1.0):
        parts.append(f'<line class="grid" x1="{x(rate):.1f}" x2="{x(rate):.1f}" y1="4" y2="{height - 20}"/>')
        middle = f'x="{x(rate):.1f}" y="{height - 6}" text-anchor="middle"'
        parts.append(f'<text class="axis" {middle}>{rate:.0%}</text>')
    for place, (label, rate) in enumerate(rates.items()):
        y, low, high = 13 + 18 * place, x(rate["low"]), x(rate["high"])
        told = f"{label}: {interval_text(rate)}, n = {rate['n']}"
        name = label if len(label) <= _MOST_LABEL else f"{label[: _MOST_LABEL - 1]}…"
        parts.append(
            f'<g class="point c0"><title>{shown(told)}</title>'
            f'<text class="axis" x="{left - 8:.1f}" y="{y + 4}" text-anchor="end">{shown(name)}</text>'
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'
            f'<circle cx="{x(rate["rate"]):.1f}" cy="{y}" r="4"/></g>'
        )
    return svg(title, (_WIDTH, height), parts)


def line_sample(dashes: int, colour: int | None = None) -> str:
    """Draw a short line with these dashes for a legend; without a colour in that of the text."""
    painted = "" if colour is None else f" c{colour % NUM_COLOURS}"
    line = f'<polyline class="line d{dashes % NUM_DASHES}{painted}" points="0,6 36,6"/>'
    return f'<svg class="sample" viewBox="0 0 36 12" aria-hidden="true">{line}</svg>'


def share_bar(title: str, counts: Mapping[str, int]) -> str:
    """Draw one bar, divided in proportion to counts; a part has the class `e-NAME`.

    Args:
        title: for screen readers.
        counts: {name: number}; names are words, zeros are left out.
    """
    total, x, parts = max(1, sum(counts.values())), 0.0, []
    for name, count in counts.items():
        width = _WIDTH * count / total
        if count:
            words = name.replace("_", " ")
            parts.append(
                f"<g><title>{shown(f'{words}: {count} of {total} ({count / total:.1%})')}</title>"
                f'<rect class="e-{shown(name)}" x="{x:.2f}" y="0" width="{width:.2f}" height="18"/></g>'
            )
        x += width
    return svg(title, (_WIDTH, 18), parts, stretched=True)
