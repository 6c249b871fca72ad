"""The table of docs/scaling.md: memory per device of Pythia's sizes on several machines, by `--dry_run`.

    python runs/scaling_table.py

Nothing is downloaded and nothing is allocated: each row is a run of the `tldr`-like lengths with shapes alone, on as
many devices as `--xla_force_host_platform_device_count` pretends.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ASSETS = Path(__file__).parents[1] / "jaxppo" / "hf" / "assets" / "blocksworld-sft"

PYTHIA = {  # hidden size, layers, heads, intermediate size, vocabulary
    "160M": (768, 12, 12, 3072, 50304),
    "410M": (1024, 24, 16, 4096, 50304),
    "1B": (2048, 16, 8, 8192, 50304),
    "1.4B": (2048, 24, 16, 8192, 50304),
    "2.8B": (2560, 32, 32, 10240, 50304),
    "6.9B": (4096, 32, 32, 16384, 50432),
}
ROWS = [  # model, devices, flags
    ("160M", 1, ""),
    ("410M", 1, ""),
    ("1B", 1, ""),
    ("1B", 1, "--use_peft"),
    ("1B", 8, ""),
    ("1B", 8, "--parallel fsdp"),
    ("1.4B", 8, "--parallel fsdp"),
    ("2.8B", 8, "--parallel fsdp"),
    ("6.9B", 1, "--use_peft"),
    ("6.9B", 1, "--use_peft --gradient_checkpointing"),
    ("6.9B", 8, "--parallel fsdp"),
    ("6.9B", 8, "--parallel fsdp --mesh fsdp=4,tensor=2"),
    ("6.9B", 8, "--parallel fsdp --algorithm rloo --num_generations 4"),
    ("6.9B", 8, "--parallel fsdp --use_peft"),
]
COMMON = "--dtype bfloat16 --batch_size 64 --num_mini_batches 1 --gradient_accumulation_steps 4 --response_length 53"


def write_shapes(folder: Path, name: str) -> None:
    """A model folder without weights."""
    shutil.copytree(ASSETS, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | dict(zip(names, PYTHIA[name], strict=True))
    path.write_text(json.dumps(config), encoding="utf-8")


def memory_of(folder: Path, devices: int, flags: str) -> dict[str, float]:
    """GiB per device, by what it is for."""
    command = f"-m jaxppo.train --dry_run --preset tiny --sft_model_path {folder} {COMMON} {flags}"
    output = folder.parent / "run"
    done = subprocess.run(
        [sys.executable, *command.split(), "--output_dir", str(output)],
        env=os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("memory per device"))
    numbers = {
        "throughout": r"estimated: ([\d.,]+) throughout",
        "sampling": r"sampling adds ([\d.,]+)",
        "learning": r"learning adds ([\d.,]+)",
        "peak": r"([\d.,]+) at the peak",
    }
    found = {name: re.search(pattern, line) for name, pattern in numbers.items()}
    return {name: float(match[1].replace(",", "")) / 1024 for name, match in found.items() if match}


def main() -> None:
    """Print the table."""
    print("| model | devices | flags | throughout | sampling adds | learning adds | peak, GiB per device |")
    print("|---|---|---|---|---|---|---|")
    for name, devices, flags in ROWS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / name
            write_shapes(folder, name)
            gib = memory_of(folder, devices, flags)
        cells = " | ".join(f"{gib[column]:.1f}" for column in ("throughout", "sampling", "learning", "peak"))
        print(f"| {name} | {devices} | {f'`{flags}`' if flags else ''} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
