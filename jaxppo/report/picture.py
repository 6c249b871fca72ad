"""Draw the picture of a run, `curves.png`: its curves, and its evaluation before and after.

The report draws SVG by itself (`charts`), for hover and small files; matplotlib is for this one PNG.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.report.charts import moving_mean
from jaxppo.run.folder import METRICS_FILE
from jaxppo.run.jsonl import read_metrics

CURVES_FILE = "curves.png"
"""In a run folder."""

# Okabe and Ito's palette, told apart under every common form of colour blindness.
_BLUE = "#0072B2"
_ORANGE = "#E69F00"
_GREEN = "#009E73"
_PURPLE = "#CC79A7"
_GREY = "#8A8F98"
_COLOURS = {"before": _GREY, "after": _BLUE}
_ERROR_BARS = {"ecolor": "#30343B", "capsize": 4, "elinewidth": 1.3, "capthick": 1.3}
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.edgecolor": _GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.constrained_layout.h_pad": 0.15,
    "figure.constrained_layout.w_pad": 0.15,
    "grid.color": "#E4E6EA",
    "legend.frameon": False,
}


class _Panel(NamedTuple):
    """One panel of curves."""

    title: str
    unit: str
    curves: Mapping[str, tuple[str, str]]  # metric -> label, colour
    bounds: tuple[float, float] | None = None  # widest limits of the axis


_REWARD = _Panel(
    "Reward and plan validity in training",
    "mean over the batch",
    {
        "objective/scores": ("reward", _BLUE),
        "reward/plan_valid": ("fraction of valid plans", _ORANGE),
    },
)
_KL = _Panel(
    "Distance from the reference policy",
    "KL (nats per completion)",
    {"objective/kl": ("KL", _GREEN)},
)
_UPDATES = _Panel(
    "Health of the updates",
    "fraction",
    {
        "value/explained_variance": ("explained variance of the values", _PURPLE),
        "policy/clipfrac_avg": ("clipped policy ratios", _BLUE),
    },
    bounds=(-1.0, 1.0),  # early values can explain far less than nothing and would flatten the rest
)


def plot_run(folder: Path, evals: Mapping[str, Any]) -> None:
    """Draw the curves of a run and its validity before and after as one picture of 1280 x 840 pixels, `curves.png`.

    Args:
        folder: run folder with its `metrics.jsonl`; keys a record lacks, and nulls, leave gaps.
        evals: content of `eval.json`: `{"before": {SPLIT: {"validity": {"rate", "low", "high", "n"}}}, "after": ...}`,
            with `headline_split` where there is one; "before" or "after" may be missing. Splits whose plans are not
            judged have `"reward": {"mean", "low", "high", "n"}` instead.
    """
    import matplotlib

    # The object interface instead of pyplot: always the Agg backend, no window, no global state.
    from matplotlib.figure import Figure

    metrics = read_metrics(folder / METRICS_FILE)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(12.8, 8.4), dpi=100, layout="constrained")
        *curve_axes, evaluation_axes = figure.subplots(2, 2).flat
        for axes, panel in zip(curve_axes, (_REWARD, _KL, _UPDATES), strict=True):
            _draw_curves(axes, panel, metrics)
        _draw_evaluation(evaluation_axes, evals)
        figure.savefig(folder / CURVES_FILE, format="png")


def _draw_curves(axes: Any, panel: _Panel, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Draw each curve twice: the raw points lightly, their moving mean strongly."""
    from matplotlib.ticker import MaxNLocator

    axes.set(title=panel.title, xlabel="update", ylabel=panel.unit)
    for key, (label, colour) in panel.curves.items():
        points = _points(metrics, key)
        if points:
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
            # A line through a single point cannot be seen.
            marker = "o" if len(points) == 1 else None
            axes.plot(
                steps, moving_mean(values), color=colour, linewidth=2.2, label=label, marker=marker
            )
    if not axes.lines:
        _draw_nothing(axes)
        return
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if panel.bounds is not None:
        low, high = axes.get_ylim()
        lowest, highest = panel.bounds
        axes.set_ylim(max(low, lowest), min(high, highest))
    # Two lines are one curve, which the title names.
    if len(axes.lines) > 2:
        axes.legend()


def _points(metrics: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(record["step"], record[key]) for record in metrics if record.get(key) is not None]


def _draw_evaluation(axes: Any, evals: Mapping[str, Any]) -> None:
    """Draw validity, or else the mean reward, per split before and after as bars with their 95 % intervals."""
    moments = [name for name in _COLOURS if evals.get(name)]
    splits = {}
    for name in moments:
        splits |= evals[name]
    if not splits or any("validity" in result for result in splits.values()):
        axes.set(
            title="Valid plans on held-out problems, 95 % intervals",
            ylabel="valid plans (%)",
            ylim=(0, 122),
        )
        axes.set_yticks(range(0, 101, 20))
    else:
        axes.set(title="Mean reward on held-out prompts, 95 % intervals", ylabel="reward")
        axes.margins(y=0.2)
    if not splits:
        _draw_nothing(axes)
        return
    # Bars of a split stand next to each other, with room between splits.
    width = 0.76 / len(moments)
    for number, name in enumerate(moments):
        offset = (number - (len(moments) - 1) / 2) * width
        places = []
        rows = []
        for place, split in enumerate(splits):
            row = _bar(evals[name][split]) if split in evals[name] else None
            if row is not None:
                places.append(place + offset)
                rows.append(row)
        if not rows:
            continue
        values, below, above, texts = zip(*rows, strict=True)
        bars = axes.bar(
            places,
            values,
            width * 0.92,
            yerr=(below, above),
            color=_COLOURS[name],
            label=name,
            error_kw=_ERROR_BARS,
        )
        axes.bar_label(bars, texts, padding=4, fontsize=10)
    labels = [_split_label(split, result, evals) for split, result in splits.items()]
    axes.set_xticks(range(len(splits)), labels)
    axes.set_xlim(-0.6, len(splits) - 0.4)
    axes.grid(axis="x", visible=False)
    # Without a bar there is nothing to name.
    if axes.patches:
        axes.legend(loc="upper right", ncols=len(moments), borderaxespad=0)


def _measured(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the validity of a split, or the mean reward of data that are no planning problems."""
    return result["validity" if "validity" in result else "reward"]


def _bar(result: Mapping[str, Any]) -> tuple[float, float, float, str] | None:
    """Return the height of a bar, how far its interval reaches below and above it, and its text.

    None where no completion has a score, or no row was judged.
    """
    measured = _measured(result)
    if measured["n"] == 0:
        return None
    if "validity" in result:
        value, low, high = (100 * measured[name] for name in ("rate", "low", "high"))
        text = f"{value:.1f}"
    else:
        value, low, high = (measured[name] for name in ("mean", "low", "high"))
        text = f"{value:.2f}"
    if low is None:  # of a single row there is no interval
        return value, 0.0, 0.0, text
    # Rounding may put a rate of 0 or 1 outside of its
    # interval, and matplotlib refuses a negative length.
    return value, max(value - low, 0.0), max(high - value, 0.0), text


def _split_label(split: str, result: Mapping[str, Any], evals: Mapping[str, Any]) -> str:
    count = _measured(result)["n"]
    headline = " (headline)" if split == evals.get("headline_split") else ""
    return f"{split}{headline}\nn = {count}"


def _draw_nothing(axes: Any) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(
        0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=_GREY
    )
