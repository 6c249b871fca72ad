"""Valid plans by domain, of a start and after runs from it: python runs/domain_table.py RUN RUN ...

The first run is of `train` or `self_train`, whose results have the start's beside them; others may be of `sft`, too.
"""

import json
import sys
from pathlib import Path

from table import cell


def main(runs: list[Path]) -> None:
    """Print a line for the start and one for each run, split by split."""
    results = {
        run.name: json.loads((run / "eval.json").read_text(encoding="utf-8")) for run in runs
    }
    models = {"start": next(iter(results.values()))["before"]} | {
        name: result.get("after", result) for name, result in results.items()
    }
    for split, first in models["start"].items():
        domains = sorted(first["domains"])
        print(
            f"| `{split}` | all | {' | '.join(domains)} |",
            f"|---{'|---' * (1 + len(domains))}|",
            sep="\n",
        )
        for name, splits in models.items():
            of_domains = [splits[split]["domains"][domain] for domain in domains]
            print(f"| {name} | {' | '.join(map(cell, (splits[split], *of_domains)))} |")
        print()


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
