"""Draw validity by plan length, before and after, a panel for each domain: `python runs/length_figure.py RUN PICTURE`.

The run is one of `python -m jaxppo.train`; its `length_edges` say which lengths are drawn as one point.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib

from jaxppo.evaluate.intervals import wilson

MOMENTS = (("before", "#8A8F98"), ("after", "#0072B2"))


def points(splits: dict[str, Any], domain: str) -> dict[str, dict[str, float]]:
    """Return label of the lengths to rate and interval over the rows of all splits, shorter plans first."""
    valid: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for result in splits.values():
        for label, bin_ in result["domains"][domain]["bins"].items():
            valid[label] += round(bin_["validity"]["rate"] * bin_["validity"]["n"])
            rows[label] += bin_["validity"]["n"]
    known = sorted(
        (label for label in rows if rows[label]),
        key=lambda label: int(label.partition("-")[0].rstrip("+")),
    )
    return {label: wilson(valid[label], rows[label]) for label in known}


def main(run: Path, picture: Path) -> None:
    """Draw two rows of panels."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    evaluation = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    domains = sorted(next(iter(evaluation["after"].values()))["domains"])
    figure, panels = plt.subplots(2, (len(domains) + 1) // 2, figsize=(12.8, 7), sharey=True)
    for axes, domain in zip(panels.flat, domains, strict=False):
        axes.set(title=domain, ylim=(0, 100))
        axes.spines[["top", "right"]].set_visible(False)
        for moment, colour in MOMENTS:
            bands = points(evaluation[moment], domain)
            rates, low, high = (
                [100 * band[name] for band in bands.values()] for name in ("rate", "low", "high")
            )
            axes.plot([*bands], rates, "o-", color=colour, label=moment)
            axes.fill_between([*bands], low, high, color=colour, alpha=0.2, linewidth=0)
    panels.flat[0].legend(frameon=False)
    figure.supxlabel("steps of a shortest plan")
    figure.supylabel("valid greedy plans (%), 95 % intervals")
    figure.tight_layout()
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
