"""Draw validity by plan length, before and after, a panel for each domain.

`python runs/length_figure.py FOLDER PICTURE`: the folder is that of `python -m jaxppo.evaluate --model AFTER
--compare_with BEFORE`, whose samples tell the length of the reference plan.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

from jaxppo.evaluate.intervals import wilson
from jaxppo.run.jsonl import iter_records

EDGES = ((1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (12, 13), (14, 15), (16, 17), (18, 20))
"""Shortest and longest plans of a point."""
MOMENTS = (("samples_compared.jsonl", "before", "#8A8F98"), ("samples.jsonl", "after", "#0072B2"))


def by_domain(path: Path) -> dict[str, list[tuple[int, bool]]]:
    """Return domain to length of the reference plan and whether the plan is valid."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for record in iter_records(path):
        found.setdefault(record["domain"], []).append((record["reference_length"], record["valid"]))
    return found


def points(answers: list[tuple[int, bool]]) -> list[Mapping[str, Any]]:
    """Return middle of the lengths, rate and interval for every band that has plans."""
    bands = []
    for low, high in EDGES:
        valid = [is_valid for length, is_valid in answers if low <= length <= high]
        if valid:
            bands.append(wilson(sum(valid), len(valid)) | {"middle": (low + high) / 2})
    return bands


def main(folder: Path, picture: Path) -> None:
    """Draw two rows of panels."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    moments = [(by_domain(folder / file), label, colour) for file, label, colour in MOMENTS]
    domains = list(moments[0][0])
    figure, panels = plt.subplots(2, (len(domains) + 1) // 2, figsize=(12.8, 7), sharex=True, sharey=True)
    for axes, domain in zip(panels.flat, domains, strict=False):
        axes.set(title=domain, ylim=(0, 100))
        for answers, label, colour in moments:
            bands = points(answers[domain])
            middles = [band["middle"] for band in bands]
            axes.plot(middles, [100 * band["rate"] for band in bands], "o-", color=colour, label=label)
            low, high = ([100 * band[end] for band in bands] for end in ("low", "high"))
            axes.fill_between(middles, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.axvline(11, color="#8A8F98", linestyle=":", linewidth=1)
        axes.spines[["top", "right"]].set_visible(False)
    panels.flat[0].legend(frameon=False)
    figure.supxlabel("steps of a shortest plan")
    figure.supylabel("valid greedy plans (%), 95 % intervals")
    figure.tight_layout()
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
