"""The table of docs/accelerator_table.md: published models on absent targets, by `--dry_run --target`.

    python runs/accelerator_table.py                                  # all rows, hours
    python runs/accelerator_table.py --models Pythia-160M --targets tpu-v5e-4 gpu-h100x1
    python runs/accelerator_table.py --targets tpu-v6e-8 --flags "--parallel fsdp --mesh fsdp=2,tensor=4"

Prompts of 512 tokens, 53 to sample, 64 rows, bfloat16. Each row is a run of the command with a limit of time; finished
rows are kept in a JSON file (--rows), so that it can be stopped and goes on. Nothing is downloaded or allocated.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from scaling_table import ASSETS, MODELS, write_shapes  # the shapes, in one place

PROMPT = 512
METHODS = {
    "PPO": "",
    "RLOO": "--algorithm rloo --num_generations 4",
    "PPO, LoRA": "--use_peft",
    "RLOO, LoRA": "--use_peft --algorithm rloo --num_generations 4",
}
TARGETS = ("tpu-v5e-4", "tpu-v5e-16", "tpu-v6e-8", "gpu-h100x1", "gpu-h100x8")
NAMES = (
    "Pythia-160M",
    "Pythia-410M",
    "Pythia-1B",
    "Pythia-6.9B",
    "Qwen3-0.6B",
    "Llama-3.2-1B",
    "Qwen2-7B",
)
SPLIT_FROM = 900_000_000
"""Models with at least so many parameters are split over the devices of a target that has several."""
COMMON = (
    "--dtype bfloat16 --batch_size 64 --num_mini_batches 1 --response_length 53 --total_episodes 6400 "
    "--max_prompt_length 512 --reward_funcs plan"
)
GIB = 2**30


def parameters(name: str) -> int:
    """About as many as the model has."""
    hidden, layers, _, inner, vocabulary, *llama = MODELS[name]
    tied = bool(llama) and llama[1]
    return vocabulary * hidden * (1 if tied else 2) + layers * hidden * (
        4 * hidden + (3 if llama else 2) * inner
    )


def write_data(folder: Path) -> None:
    """Rows of the shipped data set whose prompts have about `PROMPT` tokens of the shipped tokenizer."""
    from jaxppo import data, hf
    from jaxppo.config import DataConfig

    tokenizer = hf.load_tokenizer(ASSETS)

    rows = data.load_split(DataConfig(dataset="blocksworld"), "rl")[:8]
    folder.mkdir()
    for split in ("rl", "test", "test_longer"):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for row in rows:
                prompt = row["prompt"]
                while len(tokenizer(f"{prompt} {row['prompt']}")["input_ids"]) <= PROMPT:
                    prompt = f"{prompt} {row['prompt']}"
                file.write(json.dumps(row | {"prompt": prompt, "split": split}) + "\n")


def flags_of(name: str, method: str, target: str, extra: str | None) -> str:
    """Return the flags of a row; `extra` takes the place of the choice by the size of the model."""
    if extra is None:
        is_split = parameters(name) >= SPLIT_FROM and not target.endswith("x1")
        extra = "--parallel fsdp" if is_split else ""
    return f"{METHODS[method]} {extra}".strip()


def measure(name: str, method: str, target: str, flags: str, limit_s: int) -> dict[str, Any]:
    """One row: the JSON of the command, or why there is none."""
    with tempfile.TemporaryDirectory() as scratch:
        model, rows = Path(scratch, "model"), Path(scratch, "data")
        write_shapes(model, name)
        write_data(rows)
        command = f"-m jaxppo.train --dry_run --preset tiny --sft_model_path {model} --dataset {rows} {COMMON} {flags}"
        began = time.monotonic()
        about: dict[str, Any] = {
            "model": name,
            "method": method,
            "target": target,
            "flags": flags,
        }
        try:
            done = subprocess.run(
                [sys.executable, *command.split(), "--target", target, "--quiet", "True"],
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
                capture_output=True,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return about | {"failed": f"not compiled in {limit_s} s"}
    about["seconds"] = round(time.monotonic() - began, 1)
    if done.returncode:
        # What a compiler says stands before the places in the program, or the stacks of its threads.
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no word"]
        said = [line for line in lines if "Check failed" in line or "Error: " in line]
        return about | {"failed": f"status {done.returncode}: {[*said, lines[-1]][0][:200]}"}
    return about | json.loads(done.stdout.splitlines()[-1])


def line(row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    cells = [
        row["model"],
        row["method"],
        row["target"],
        f"`{row['flags']}`" if row["flags"] else "",
    ]
    if "failed" in row:
        return f"| {' | '.join([*cells, row['failed'], '', '', ''])} |"
    programs = row["programs"]
    fullest = max(programs, key=lambda name: programs[name]["device_bytes"])
    peak = f"{programs[fullest]['device_bytes'] / GIB:.1f} of {row['memory_bytes'] / GIB:.1f} ({fullest})"
    compile_s = " + ".join(f"{program['compile_s']:.0f}" for program in programs.values())
    estimate = f"{row['estimate']['seconds']:.2g} s, {row['estimate']['binds']}"
    return (
        f"| {' | '.join([*cells, 'yes' if row['fits'] else '**no**', peak, compile_s, estimate])} |"
    )


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=NAMES, choices=NAMES)
    parser.add_argument("--methods", nargs="*", default=tuple(METHODS), choices=tuple(METHODS))
    parser.add_argument("--targets", nargs="*", default=TARGETS)
    parser.add_argument("--flags", help="in place of `--parallel fsdp` or nothing")
    parser.add_argument(
        "--rows", type=Path, default=Path("accelerator_rows.json"), help="finished rows"
    )
    parser.add_argument("--limit_s", type=int, default=1800, help="seconds that a row may take")
    arguments = parser.parse_args()
    rows = json.loads(arguments.rows.read_text(encoding="utf-8")) if arguments.rows.exists() else {}
    print(
        "| model | method | target | flags | fits | peak of a device, GiB | compile s | estimate of an update |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.models:
        for method in arguments.methods:
            for target in arguments.targets:
                flags = flags_of(name, method, target, arguments.flags)
                key = f"{name} | {method} | {target} | {flags}"
                if key not in rows:
                    rows[key] = measure(name, method, target, flags, arguments.limit_s)
                    arguments.rows.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
                print(line(rows[key]), flush=True)


if __name__ == "__main__":
    main()
