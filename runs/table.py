"""Print the table of docs/results.md from what default.sh or async_rollouts.sh made: `python runs/table.py FOLDER`."""

import json
import sys
from pathlib import Path

KINDS = (
    ("ppo", "PPO"),
    ("async", "PPO, one step off-policy"),
    ("half", "PPO, learning rate 3e-4"),
    ("asynchalf", "the same, one step off-policy"),
    ("rloo", "RLOO, 4 plans per problem"),
    ("rloo8", "RLOO, 8 plans per problem"),
    ("selftrain", "self-training"),
    ("sft-train", "SFT on `train`"),
    ("sft-gentle", "SFT on `train`, learning rate 1e-4"),
    ("sft-rl", "SFT on `rl`"),
)


def cell(result: dict) -> str:
    """Validity of one split with its Wilson 95 % interval."""
    validity = result["validity"]
    return f"{validity['rate']:.1%} [{validity['low']:.1%}, {validity['high']:.1%}]"


def row(name: str, seed: str, splits: dict) -> str:
    """One line of the table."""
    return f"| {name} | {seed} | {cell(splits['test'])} | {cell(splits['test_longer'])} |"


def main(folder: Path) -> None:
    """Print the rows of PPO, RLOO and the controls, seed by seed."""
    print("| model | seed | `test` (4-5 blocks, n = 440) | `test_longer` (6 blocks, n = 1024) |")
    print("|---|---|---|---|")
    runs = sorted(folder.glob("ppo-*"))
    print(row("start: `blocksworld-sft`", "-", json.loads((runs[0] / "eval.json").read_text())["before"]))
    for kind, name in KINDS:
        for run in sorted(folder.glob(f"{kind}-*")):
            results = json.loads((run / "eval.json").read_text())
            print(row(name, run.name.rpartition("-")[2], results.get("after", results)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
