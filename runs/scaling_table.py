"""The table of docs/scaling.md: memory per device of published sizes on several machines, by `--dry_run`.

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

NAMES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)
LLAMAS = ("num_key_value_heads", "tie_word_embeddings", "model_type", "architectures")
MODELS = {  # what `NAMES`, or `NAMES` and `LLAMAS`, are in their config.json
    "Pythia-160M": (768, 12, 12, 3072, 50304),
    "Pythia-410M": (1024, 24, 16, 4096, 50304),
    "Pythia-1B": (2048, 16, 8, 8192, 50304),
    "Pythia-1.4B": (2048, 24, 16, 8192, 50304),
    "Pythia-2.8B": (2560, 32, 32, 10240, 50304),
    "Pythia-6.9B": (4096, 32, 32, 16384, 50432),
    "Qwen3-0.6B": (1024, 28, 16, 3072, 151936, 8, True, "qwen3", ["Qwen3ForCausalLM"]),
    "Llama-3.2-1B": (2048, 16, 32, 8192, 128256, 8, True, "llama", ["LlamaForCausalLM"]),
    "Qwen2.5-1.5B": (1536, 28, 12, 8960, 151936, 2, True, "qwen2", ["Qwen2ForCausalLM"]),
    "Qwen2-7B": (3584, 28, 28, 18944, 152064, 4, False, "qwen2", ["Qwen2ForCausalLM"]),
}
ROWS = [  # model, devices, flags
    ("Pythia-160M", 1, ""),
    ("Pythia-410M", 1, ""),
    ("Pythia-1B", 1, ""),
    ("Pythia-1B", 1, "--use_peft"),
    ("Pythia-1B", 8, ""),
    ("Pythia-1B", 8, "--parallel fsdp"),
    ("Pythia-1.4B", 8, "--parallel fsdp"),
    ("Pythia-2.8B", 8, "--parallel fsdp"),
    ("Pythia-6.9B", 1, "--use_peft"),
    ("Pythia-6.9B", 1, "--use_peft --gradient_checkpointing"),
    ("Pythia-6.9B", 8, "--parallel fsdp"),
    ("Pythia-6.9B", 8, "--parallel fsdp --mesh fsdp=4,tensor=2"),
    ("Pythia-6.9B", 8, "--parallel fsdp --algorithm rloo --num_generations 4"),
    ("Pythia-6.9B", 8, "--parallel fsdp --use_peft"),
    ("Qwen3-0.6B", 1, ""),
    ("Qwen3-0.6B", 1, "--use_peft"),
    ("Llama-3.2-1B", 1, ""),
    ("Qwen2.5-1.5B", 1, "--use_peft"),
    ("Qwen2.5-1.5B", 8, "--parallel fsdp"),
    ("Qwen2-7B", 1, "--use_peft --gradient_checkpointing"),
    ("Qwen2-7B", 8, "--parallel fsdp"),
    ("Qwen2-7B", 8, "--parallel fsdp --algorithm rloo --num_generations 2"),
]
COMMON = "--dtype bfloat16 --batch_size 64 --num_mini_batches 1 --gradient_accumulation_steps 4 --response_length 53"


def write_shapes(folder: Path, name: str) -> None:
    """A model folder without weights."""
    shutil.copytree(ASSETS, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    path, sizes = folder / "config.json", MODELS[name]
    names = NAMES if len(sizes) == len(NAMES) else (*NAMES, *LLAMAS)
    config = json.loads(path.read_text(encoding="utf-8")) | dict(zip(names, sizes, strict=True))
    path.write_text(json.dumps(config), encoding="utf-8")


def memory_of(folder: Path, devices: int, flags: str) -> dict[str, float]:
    """GiB per device, by what it is for."""
    command = f"-m jaxppo.train --dry_run --preset tiny --sft_model_path {folder} {COMMON} {flags}"
    output = folder.parent / "run"
    done = subprocess.run(
        [sys.executable, *command.split(), "--output_dir", str(output)],
        env=os.environ
        | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAX_PLATFORMS": "cpu",
        },
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
    print(
        "| model | devices | flags | throughout | sampling adds | learning adds | peak, GiB per device |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, devices, flags in ROWS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / name
            write_shapes(folder, name)
            gib = memory_of(folder, devices, flags)
        cells = " | ".join(
            f"{gib[column]:.1f}" for column in ("throughout", "sampling", "learning", "peak")
        )
        print(f"| {name} | {devices} | {f'`{flags}`' if flags else ''} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
