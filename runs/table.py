"""Print a table of docs/results.md from the runs of a script in this folder: `python runs/table.py FOLDER`."""

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
    ("grpo", "GRPO (`dapo`, by the group's deviation)"),
    ("dr-grpo", "GRPO, `dr_grpo`, no deviation"),
    ("grpo-dynamic", "GRPO, dynamic sampling"),
    ("grpo-step", "GRPO, step by step"),
    ("ppo-step", "PPO, step by step"),
    ("ppo-step-lam1", "PPO, step by step, `lam` 1, values first"),
    ("ppo-lam1", "PPO, `lam` 1, values first"),
    ("ppo-warm", "PPO, `lam_value` 1, values first"),
    ("ppo-nll", "PPO, `positive_nll` 0.1"),
    ("ppo-nll3", "PPO, `positive_nll` 0.3"),
    ("ppo-nll10", "PPO, `positive_nll` 1.0"),
    ("ppo-binary", "PPO, valid or not alone"),
    ("ppo-goal", "PPO, `partial goal`"),
    ("ppo-prefix", "PPO, `partial prefix`"),
    ("ppo-curriculum", "PPO, curriculum"),
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
    runs = sorted(folder.glob("ppo-[0-9]*"))
    print(row("start: `blocksworld-sft`", "-", json.loads((runs[0] / "eval.json").read_text())["before"]))
    for kind, name in KINDS:
        for run in sorted(folder.glob(f"{kind}-[0-9]*")):
            results = json.loads((run / "eval.json").read_text())
            print(row(name, run.name.rpartition("-")[2], results.get("after", results)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
