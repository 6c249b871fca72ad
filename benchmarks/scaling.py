"""How the time of an update grows with batch, response length, layers and vocabulary, each doubled twice.

    python benchmarks/scaling.py --updates 5 --plot docs/scaling.png

The base is a small GPT-NeoX; for each quantity there are three contestants (the base is one of them), which take turns
(turns.py). One JSON line per quantity: medians, and what two doublings multiply the time by beside what they multiply
the matrix products by. A larger step may cost more than its products say where a cache overflows, and less where the
parts that do not grow weigh much.
"""

import argparse
import dataclasses
import json
import statistics
import sys
from pathlib import Path

from ppo_update import HERE, WARM_UP
from turns import take_turns
from workloads import Workload, flops

BASE = Workload(layers=2, hidden=128, heads=4, vocab=4096, batch=16, prompt=32, response=32)
QUANTITIES = ("batch", "response", "layers", "vocab")
FACTORS = (1, 2, 4)


def sizes_of(quantity: str) -> dict[str, Workload]:
    """The base with the quantity as it is, doubled, and doubled twice."""
    base = getattr(BASE, quantity)
    return {
        str(base * factor): dataclasses.replace(BASE, **{quantity: base * factor})
        for factor in FACTORS
    }


def measure(quantity: str, updates: int) -> dict[str, object]:
    """The JSON line of one quantity."""
    sizes = sizes_of(quantity)
    script = str(HERE / "ppo_update.py")
    commands = {
        name: [sys.executable, script, "--contestant", "jaxppo", "--sizes", work.to_json()]
        for name, work in sizes.items()
    }
    results = take_turns(commands, updates, WARM_UP)
    seconds = [statistics.median(turn["seconds"] for turn in turns) for turns in results.values()]
    gflop = [flops(work) / 1e9 for work in sizes.values()]
    return {
        "quantity": quantity,
        "sizes": [int(name) for name in sizes],
        "s_per_update": [round(value, 4) for value in seconds],
        "gflop": [round(value, 2) for value in gflop],
        "maxrss_mib": [
            int(max(turn["maxrss_mib"] for turn in turns)) for turns in results.values()
        ],
        "time_factor": round(seconds[-1] / seconds[0], 2),
        "gflop_factor": round(gflop[-1] / gflop[0], 2),
    }


def plot(lines: list[dict], path: Path) -> None:
    """One panel per quantity: seconds, and the time of the base times the growth of its products."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(lines), figsize=(3.2 * len(lines), 3.2), sharey=True)
    for panel, line in zip(panels, lines, strict=True):
        growth = [line["s_per_update"][0] * value / line["gflop"][0] for value in line["gflop"]]
        panel.plot(line["sizes"], line["s_per_update"], "o-", label="measured")
        panel.plot(line["sizes"], growth, "--", color="grey", label="as the matrix products grow")
        panel.set(xlabel=line["quantity"], xscale="log", yscale="log", xticks=line["sizes"])
        panel.set_xticks([], minor=True)
        panel.set_xticklabels(line["sizes"])
    panels[0].set_ylabel("seconds per update")
    panels[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=5, help="updates that count, of each size")
    parser.add_argument("--plot", type=Path, help="where to write a PNG file")
    args = parser.parse_args()
    lines = []
    for quantity in QUANTITIES:
        lines.append(measure(quantity, args.updates))
        print(json.dumps(lines[-1]), flush=True)
    if args.plot is not None:
        plot(lines, args.plot)


if __name__ == "__main__":
    main()
