"""The table of docs/recipes/index.md: python runs/recipe_table.py FOLDER with the runs of runs/all_recipes.sh."""

import json
import sys
from pathlib import Path

from jaxppo.evaluate.intervals import interval_text
from jaxppo.run.jsonl import read_metrics

TIMES = ("time/rollout_s", "time/reward_s", "time/update_s")


def cell(result: dict) -> str:
    """Validity or mean reward with its interval."""
    return interval_text(result["validity" if "validity" in result else "reward"])


def line(run: Path) -> str:
    """A run: measure, n, before, after, KL, seconds of its updates."""
    evals = json.loads((run / "eval.json").read_text())
    split, records = evals["headline_split"], read_metrics(run / "metrics.jsonl")
    before, after = evals["before"][split], evals["after"][split]
    measure = "validity" if "validity" in after else "reward"
    name, _, seed = run.name.rpartition("-")
    seconds = sum(record[time] for record in records for time in TIMES)
    cells = [name, seed, f"{measure}, `{split}`", after[measure]["n"], cell(before), cell(after)]
    return " | ".join(
        ["", *map(str, cells), f"{records[-1]['objective/kl']:.1f}", f"{seconds:.0f} s", ""]
    ).strip()


if __name__ == "__main__":
    print(
        "| recipe | seed | measure | n | before | after | KL at the end | updates |\n|---|---|---|---|---|---|---|---|"
    )
    for folder in sorted(path.parent for path in Path(sys.argv[1]).glob("*/eval.json")):
        print(line(folder))
