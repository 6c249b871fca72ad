"""The picture of a run: its curves, and what it is measured by before and after."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Okabe and Ito's palette, told apart under every common form of colour blindness.
_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#8A8F98"
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "axes.edgecolor": _GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.constrained_layout.h_pad": 0.15,
    "figure.constrained_layout.w_pad": 0.15,
    "grid.color": "#E4E6EA",
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class _Panel:
    """One panel of curves: `curves` maps a metric's key to its label and colour."""

    title: str
    unit: str
    curves: Mapping[str, tuple[str, str]]
    bounds: tuple[float, float] | None = None  # limits of the axis where the unit has them


_REWARD = _Panel(
    "Reward and plan validity in training",
    "mean over the batch",
    {"objective/scores": ("reward", _BLUE), "reward/plan_valid": ("fraction of valid plans", _ORANGE)},
)
_KL = _Panel("Distance from the reference policy", "KL (nats per completion)", {"objective/kl": ("KL", _GREEN)})
_HEALTH = _Panel(
    "Health of the updates",
    "fraction",
    {
        "value/explained_variance": ("explained variance of the values", _PURPLE),
        "policy/clipfrac_avg": ("clipped policy ratios", _BLUE),
    },
    bounds=(-1.0, 1.0),  # early values can explain far less than nothing and would flatten the rest
)
_LENGTH = _Panel("Length of the completions", "tokens", {"completions/mean_length": ("mean length", _PURPLE)})


def plot_curves(metrics: Sequence[Mapping[str, Any]], evals: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Draws the curves of a run and its validity before and after as one picture of 1280 x 840 pixels.

    Args:
        metrics: records of `metrics.jsonl`; keys a record lacks, and nulls, leave gaps.
        evals: content of `eval.json`: `{"before": {SPLIT: {"validity": {"rate", "low", "high", "n"}}}, "after": ...}`,
            with `headline_split` where there is one; either side may be missing. Splits whose plans are not judged
            have `"reward": {"mean", "low", "high", "n"}` instead.
        path: the PNG to write.
    """
    import matplotlib

    # The object interface instead of pyplot: always the Agg backend, no window, no global state.
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(12.8, 8.4), dpi=100, layout="constrained")
        (reward, kl), (health, evaluation) = figure.subplots(2, 2)
        _draw_curves(reward, _REWARD, metrics)
        _draw_curves(kl, _KL, metrics)
        has_health = any(record.get(key) is not None for record in metrics for key in _HEALTH.curves)
        _draw_curves(health, _HEALTH if has_health else _LENGTH, metrics)
        _draw_evaluation(evaluation, evals)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")


def _draw_curves(axes: Any, panel: _Panel, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Draws each curve twice: the raw points lightly, their moving mean strongly."""
    from matplotlib.ticker import MaxNLocator

    axes.set(title=panel.title, xlabel="update", ylabel=panel.unit)
    drawn = 0
    for key, (label, colour) in panel.curves.items():
        points = [(record["step"], record[key]) for record in metrics if record.get(key) is not None]
        if not points:
            continue
        steps, values = np.asarray(points, float).T
        marker = "o" if len(points) == 1 else None
        axes.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
        axes.plot(steps, _smooth(values), color=colour, linewidth=2.2, label=label, marker=marker)
        drawn += 1
    if not drawn:
        _say_empty(axes)
        return
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if panel.bounds is not None:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, panel.bounds[0]), min(high, panel.bounds[1]))
    if drawn > 1:
        axes.legend()


def _smooth(values: np.ndarray) -> np.ndarray:
    """Centred moving mean over about a tenth of the curve; at the ends over the points that exist."""
    half = len(values) // 20
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def _draw_evaluation(axes: Any, evals: Mapping[str, Any]) -> None:
    """Draws validity, or else the mean reward, per split before and after as bars with their 95 % intervals."""
    sides = [(side, evals[side], colour) for side, colour in (("before", _GREY), ("after", _BLUE)) if evals.get(side)]
    splits = list(dict.fromkeys(split for _, scores, _ in sides for split in scores))
    measures = [measure for _, scores, _ in sides for result in scores.values() for measure in result]
    if "validity" in measures or not measures:
        axes.set(title="Valid plans on held-out problems, 95 % intervals", ylabel="valid plans (%)", ylim=(0, 122))
        axes.set_yticks(range(0, 101, 20))
    else:
        axes.set(title="Mean reward on held-out prompts, 95 % intervals", ylabel="reward")
        axes.margins(y=0.2)
    if not splits:
        _say_empty(axes)
        return
    width = 0.76 / len(sides)
    for number, (side, scores, colour) in enumerate(sides):
        offset = (number - (len(sides) - 1) / 2) * width
        for place, split in enumerate(splits):
            if split in scores:
                _draw_bar(axes, place + offset, width * 0.92, scores[split], colour)
        axes.bar(0, 0, color=colour, label=side)  # for the legend
    axes.set_xticks(range(len(splits)), [_split_label(split, sides, evals) for split in splits])
    axes.set_xlim(-0.6, len(splits) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper right", ncols=len(sides), borderaxespad=0)


def _draw_bar(axes: Any, place: float, width: float, scores: Mapping[str, Any], colour: str) -> None:
    if "validity" in scores:
        rate, low, high = (100 * scores["validity"][name] for name in ("rate", "low", "high"))
    else:
        rate, low, high = (scores["reward"][name] for name in ("mean", "low", "high"))
    axes.bar(place, rate, width, color=colour)
    axes.errorbar(place, rate, [[max(rate - low, 0)], [max(high - rate, 0)]], color="#30343B", capsize=4, linewidth=1.3)
    axes.annotate(
        f"{rate:.1f}" if "validity" in scores else f"{rate:.2f}",
        (place, max(high, rate)),
        (0, 4),
        textcoords="offset points",
        ha="center",
        fontsize=10,
    )


def _split_label(split: str, sides: Sequence[tuple[str, Mapping[str, Any], str]], evals: Mapping[str, Any]) -> str:
    result = next(scores[split] for _, scores, _ in sides if split in scores)
    count = result["validity" if "validity" in result else "reward"]["n"]
    headline = " (headline)" if split == evals.get("headline_split") else ""
    return f"{split}{headline}\nn = {count}"


def _say_empty(axes: Any) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=_GREY)
