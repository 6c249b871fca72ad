"""What rewards made of one start, over seeds: python runs/reward_table.py FOLDER, whose runs are ALGORITHM-REWARD-SEED.

Of `test_longer`: plans that are valid and that can be carried out, the length of valid ones over the reference, and
valid plans by domain. Of training: the share of groups whose samples all earn the same, where there are groups.
Below, how many more plans are valid than by "valid or not" with the same seeds, and its 95 % interval over them.
"""

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from jaxppo.evaluate.intervals import mean_interval

SPLIT = "test_longer"


def measures(run: Path, after: dict[str, Any]) -> dict[str, Any]:
    """The figures of one run, whose results at its end are `after`."""
    steps = [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    silent = [
        step["reward/zero_variance_groups"]
        for step in steps
        if "reward/zero_variance_groups" in step
    ]
    return {
        "valid": after["validity"]["rate"],
        "executable": after["executability"]["rate"],
        "length": after["length_ratio"]["mean"],
        "silent": fmean(silent) if silent else None,
        "domains": {
            name: domain["validity"]["rate"] for name, domain in sorted(after["domains"].items())
        },
    }


def main(folder: Path) -> None:
    """Print a line for each algorithm and reward."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for file in sorted(folder.glob("*/eval.json")):
        results = json.loads(file.read_text(encoding="utf-8"))
        if "after" in results:  # else it has not ended
            algorithm, reward, seed = file.parent.name.split("-")
            found.setdefault((algorithm, reward), {})[seed] = measures(
                file.parent, results["after"][SPLIT]
            )
    domains = sorted(
        {name for runs in found.values() for run in runs.values() for name in run["domains"]}
    )
    heads = (
        "algorithm",
        "reward",
        "valid by seed",
        "mean",
        "executable",
        "length",
        "groups without signal",
        *domains,
    )
    print(f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", sep="\n")
    percent = lambda values: f"{fmean(values):.1%}"  # noqa: E731
    for (algorithm, reward), by_seed in found.items():
        runs = list(by_seed.values())
        silent = [run["silent"] for run in runs if run["silent"] is not None]
        cells = [
            ", ".join(f"{run['valid']:.1%}" for run in runs),
            percent([run["valid"] for run in runs]),
            percent([run["executable"] for run in runs]),
            f"{fmean(run['length'] for run in runs):.2f}",
            percent(silent) if silent else "",
            *(percent([run["domains"][name] for run in runs]) for name in domains),
        ]
        print(f"| {algorithm} | {reward} | {' | '.join(cells)} |")
    for (algorithm, reward), runs in found.items():
        others = found.get((algorithm, "valid"), {})
        more = mean_interval(
            [run["valid"] - others[seed]["valid"] for seed, run in runs.items() if seed in others]
        )
        if reward != "valid" and more["low"] is not None:
            mean, low, high = (100 * more[name] for name in ("mean", "low", "high"))
            print(
                f"{algorithm}, {reward} against valid: {mean:+.1f} points [{low:+.1f}, {high:+.1f}], {more['n']} seeds"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
