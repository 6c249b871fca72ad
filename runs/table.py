"""Print the rows of a table of docs/experiments from a script's runs: `python runs/table.py FOLDER`."""

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
    ("grpo", "GRPO, `grpo`"),
    ("dapo", "GRPO, `dapo`"),
    ("dr-grpo", "GRPO, `dr_grpo`, no deviation"),
    ("grpo-step", "GRPO, `dapo`, step by step"),
    ("ppo-binary", "PPO, valid or not alone"),
    ("ppo-goal", "PPO, `partial goal`"),
    ("ppo-prefix", "PPO, `partial prefix`"),
    ("ppo-step", "PPO, step by step"),
    ("ppo-step-lam1", "PPO, step by step, `lam` 1, values first"),
    ("ppo-nll", "PPO, `positive_nll` 0.1"),
    ("ppo-nll3", "PPO, `positive_nll` 0.3"),
    ("ppo-nll10", "PPO, `positive_nll` 1.0"),
    ("rloo-nll10", "RLOO, `positive_nll` 1.0"),
    ("dr-grpo-nll10", "GRPO, `dr_grpo`, `positive_nll` 1.0"),
    ("long-ppo", "ten times the plans: PPO"),
    ("long-ppo-nll10", "the same, `positive_nll` 1.0"),
    ("long-dr-grpo", "the same, GRPO, `dr_grpo`"),
    ("long-selftrain", "the same, self-training in 13 rounds"),
    ("selftrain", "self-training"),
    ("sft-train", "SFT on `train`"),
    ("sft-gentle", "SFT on `train`, learning rate 1e-4"),
    ("sft-rl", "SFT on `rl`"),
)


def cell(result: dict) -> str:
    """Validity of one split with its Wilson 95 % interval."""
    validity = result["validity"]
    return f"{validity['rate']:.1%} [{validity['low']:.1%}, {validity['high']:.1%}]"


def row(name: str, seed: str, splits: dict, seconds: str) -> str:
    """One line of the table."""
    return (
        f"| {name} | {seed} | {cell(splits['test'])} | {cell(splits['test_longer'])} | {seconds} |"
    )


def seconds_of(run: Path) -> str:
    """Processor time of a run, of the user and the system, where the script has written it down."""
    times = run.with_name(run.name + ".time")
    return f"{sum(map(float, times.read_text().split()[-2:])):.0f}" if times.exists() else "-"


def main(folder: Path) -> None:
    """Print the rows of PPO, RLOO and the controls, seed by seed."""
    print(
        "| model | seed | `test` (4-5 blocks, n = 440) | `test_longer` (6 blocks, n = 1024) | processor s |"
    )
    print("|---|---|---|---|---|")
    runs = sorted(folder.glob("ppo-[0-9]*"))
    print(
        row(
            "start: `blocksworld-sft`",
            "-",
            json.loads((runs[0] / "eval.json").read_text())["before"],
            "-",
        )
    )
    for kind, name in KINDS:
        for run in sorted(filter(Path.is_dir, folder.glob(f"{kind}-[0-9]*"))):
            results = json.loads((run / "eval.json").read_text())
            if "before" in results and "after" not in results:
                continue  # it is still going on
            print(
                row(
                    name,
                    run.name.rpartition("-")[2],
                    results.get("after", results),
                    seconds_of(run),
                )
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
