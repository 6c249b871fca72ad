"""Print the table "Four domains" of docs/results.md from the folder of runs/planning_multi.sh."""

import json
import sys
from pathlib import Path

from table import cell

SPLITS = ("test", "test_longer", "test_larger")


def rows(model: str, results: dict) -> list[str]:
    """A line for all domains and one for each."""
    lines = []
    for name in ("all", *results[SPLITS[0]]["domains"]):
        parts = [results[split] if name == "all" else results[split]["domains"][name] for split in SPLITS]
        lines.append(f"| {model} | {name} | {' | '.join(map(cell, parts))} |")
    return lines


def main(folder: Path) -> None:
    """Print the warm start, then every run of PPO and RLOO."""
    print("| model | domain | `test` | `test_longer` | `test_larger` |", "|---|---|---|---|---|", sep="\n")
    runs = sorted([*folder.glob("ppo-?"), *folder.glob("rloo-?")])
    evaluations = {run.name: json.loads((run / "eval.json").read_text(encoding="utf-8")) for run in runs}
    print(*rows("warm start", next(iter(evaluations.values()))["before"]), sep="\n")
    for name, evaluation in evaluations.items():
        algorithm, _, seed = name.rpartition("-")
        print(*rows(f"{algorithm.upper()}, seed {seed}", evaluation["after"]), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
