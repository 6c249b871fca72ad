"""Draw curves of a run and its validity before and after, as in the README: `python runs/run_figure.py RUN PICTURE`.

The run is one of `python -m jaxppo.train` on planning problems. matplotlib is of the extra `docs`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from jaxppo.report.charts import moving_mean
from jaxppo.run.jsonl import read_metrics

# Okabe and Ito's palette, told apart under every common form of colour blindness.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#8A8F98"
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.constrained_layout.h_pad": 0.15,
    "figure.constrained_layout.w_pad": 0.15,
    "grid.color": "#E4E6EA",
    "legend.frameon": False,
}
# Title, name of the axis, and the curves by metric: label and colour.
PANELS = (
    (
        "Reward and plan validity in training",
        "mean over the batch",
        {
            "objective/scores": ("reward", BLUE),
            "reward/plan_valid": ("fraction of valid plans", ORANGE),
        },
    ),
    (
        "Distance from the reference policy",
        "KL (nats per completion)",
        {"objective/kl": ("KL", GREEN)},
    ),
    (
        "Health of the updates",
        "fraction",
        {
            "value/explained_variance": ("explained variance of the values", PURPLE),
            "policy/clipfrac_avg": ("clipped policy ratios", BLUE),
        },
    ),
)


def draw_curves(
    axes: Any, curves: Mapping[str, tuple[str, str]], metrics: Sequence[Mapping[str, Any]]
) -> None:
    """Draw each curve twice: the raw points lightly, their moving mean strongly."""
    for key, (label, colour) in curves.items():
        points = [
            (record["step"], record[key]) for record in metrics if record.get(key) is not None
        ]
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
        axes.plot(steps, moving_mean(values), color=colour, linewidth=2.2, label=label)
    if len(curves) > 1:  # one curve is named by the title
        axes.legend()


def draw_evaluation(axes: Any, evaluation: Mapping[str, Any]) -> None:
    """Draw validity per split as bars with their 95 % intervals."""
    splits = list(evaluation["after"])
    width = 0.38
    for moment, colour, offset in (("before", GREY, -width / 2), ("after", BLUE, width / 2)):
        rates = [evaluation[moment][split]["validity"] for split in splits]
        heights = [100 * rate["rate"] for rate in rates]
        # Rounding may put a rate of 0 or 1 outside of its interval, and matplotlib refuses a negative length.
        below = [max(100 * (rate["rate"] - rate["low"]), 0.0) for rate in rates]
        above = [max(100 * (rate["high"] - rate["rate"]), 0.0) for rate in rates]
        bars = axes.bar(
            [place + offset for place in range(len(splits))],
            heights,
            width * 0.92,
            yerr=(below, above),
            color=colour,
            label=moment,
            error_kw={"ecolor": "#30343B", "capsize": 4, "elinewidth": 1.3, "capthick": 1.3},
        )
        axes.bar_label(bars, [f"{height:.1f}" for height in heights], padding=4, fontsize=10)
    labels = []
    for split in splits:
        headline = " (headline)" if split == evaluation["headline_split"] else ""
        labels.append(f"{split}{headline}\nn = {evaluation['after'][split]['validity']['n']}")
    axes.set_xticks(range(len(splits)), labels)
    axes.set_xlim(-0.6, len(splits) - 0.4)
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylim(0, 122)
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper right", ncols=2, borderaxespad=0)


def main(run: Path, picture: Path) -> None:
    """Draw three panels of curves and one of bars: 1280 x 840 pixels."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    metrics = read_metrics(run / "metrics.jsonl")
    evaluation = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    with matplotlib.rc_context(STYLE):
        figure, panels = plt.subplots(2, 2, figsize=(12.8, 8.4), layout="constrained")
        *curve_axes, evaluation_axes = panels.flat
        for axes, (title, unit, curves) in zip(curve_axes, PANELS, strict=True):
            axes.set(title=title, xlabel="update", ylabel=unit)
            draw_curves(axes, curves, metrics)
        evaluation_axes.set(
            title="Valid plans on held-out problems, 95 % intervals", ylabel="valid plans (%)"
        )
        draw_evaluation(evaluation_axes, evaluation)
        figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
