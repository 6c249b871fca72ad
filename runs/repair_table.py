"""The table of `runs/repair.sh`: `python runs/repair_table.py FOLDER`."""

import json
import sys
from pathlib import Path

from jaxppo.evaluate.intervals import interval_text

MODELS = {
    "policy": "the default run",
    "plain": "plain rows",
    "told": "repair turns, no reason",
    "repair": "repair turns",
}
METHODS = {
    "reason": "what is wrong",
    "sampled": "what is wrong; samples from round 1 on",
    "plan": "that it is not valid",
    "greedy": "nothing: greedy, then samples",
    "six": "nothing: greedy, then samples",
    "samples": "nothing: samples",
}
SHOWN = (0, 1, 2, 3, 6)


def cells(path: Path) -> list[str]:
    """Validity by round, and what it cost: tokens for a problem, and those of them that were sampled."""
    rounds = json.loads(path.read_text())["test_longer"]["repair"]
    valid = [interval_text(rounds[n]["validity"], n in (0, 3)) if n < len(rounds) else "" for n in SHOWN]
    sampled = sum(one["completion_tokens"] for one in rounds) / rounds[0]["asked"]
    return [*valid, f"{rounds[-1]['mean_tokens']:.0f}", f"{sampled:.0f}"]


def main(folder: Path) -> None:
    """Print a row for each evaluation that is there."""
    head = ["learned", "is told", "seed", *(f"round {number}" for number in SHOWN), "tokens", "sampled"]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for model, name in MODELS.items():
        for method, how in METHODS.items():
            for seed in (1, 2, 3):
                path = folder / f"{model}-{method}-{seed}" / "eval.json"
                if path.is_file():
                    print(f"| {' | '.join([name, how, str(seed), *cells(path)])} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
