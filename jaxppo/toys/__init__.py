"""Small models and data sets that are made on first use, for the `-offline` recipes.

In: the name of a toy, wherever a model or a data set is named. Out: its folder in the cache. A command of jaxppo makes
it on the CPU, in a separate process; `python -m jaxppo.toys` lists all toys.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jaxppo
from jaxppo.config.paths import cache_dir
from jaxppo.config.sources import preset_values
from jaxppo.errors import ToyError
from jaxppo.run.cache_folder import get_or_build

LOG_FILE = "build.log"

TOYS_VERSION = 1
"""Part of a toy's folder name: raise it when texts, tokenizers or classifier come out differently."""


class Toy(NamedTuple):
    """How a toy is made.

    Attributes:
        command: of jaxppo; it takes the preset of the toy's name, `toys` the name itself.
        result: what is wanted of the folder that the command writes.
        about: one line for people.
    """

    command: str
    result: str
    about: str


TOYS = {
    "toy-reviews": Toy("toys", "", "data: film reviews, half of them favourable"),
    "toy-reviews-gpt2": Toy("sft", "policy", "model: a GPT-2 that writes such reviews"),
    "toy-reviews-classifier": Toy(
        "toys", "", "model: a DistilBERT that tells favourable reviews from others"
    ),
    "toy-tldr": Toy(
        "toys", "", "data: posts with summaries, good and bad, and preferences between them"
    ),
    "toy-tldr-sft": Toy(
        "sft", "policy", "model: a GPT-NeoX that summarises such posts, often badly"
    ),
    "toy-tldr-reward": Toy(
        "reward_model", "reward_model", "model: scores summaries, learned from the preferences"
    ),
    "toy-tldr-reward-lora": Toy(
        "reward_model", "adapters/reward_model", "adapter: the same for toy-tldr-sft"
    ),
    "toy-chat-words": Toy("toys", "", "tokenizer: the words of Blocksworld, with a chat template"),
    "toy-qwen2-plans": Toy(
        "sft", "policy", "model: a Qwen2 that plans in Blocksworld, with mistakes"
    ),
    "toy-qwen3-chat": Toy("sft", "policy", "model: a Qwen3 that answers chats with such plans"),
}


def find(name: str) -> Path | None:
    """Return the folder of a toy, which is made on first use; None for other names.

    Raises:
        ToyError: the command that makes it failed.
    """
    if name not in TOYS:
        return None
    folder = cache_dir() / "toys" / f"{name}-{_digest(name)}"
    get_or_build(folder, lambda temporary: _make(name, temporary, folder))
    return folder / TOYS[name].result


def command_of(name: str, folder: Path | str) -> list[str]:
    """Return the arguments of `python` that make a toy in a folder."""
    command = TOYS[name].command
    chosen = [name] if command == "toys" else ["--preset", name]
    return ["-m", f"jaxppo.{command}", *chosen, "--output_dir", str(folder)]


def _make(name: str, temporary: Path, folder: Path) -> None:
    """Run the command that makes a toy in a temporary folder; where it fails, its log is kept beside `folder`."""
    log = temporary.with_name(LOG_FILE)
    shown = " ".join(command_of(name, "..."))
    print(f"making {name}, once: python {shown}", file=sys.stderr, flush=True)
    with log.open("w", encoding="utf-8") as output:
        status = subprocess.run(
            [sys.executable, *command_of(name, temporary)],
            # A toy is small, and the run may hold the accelerator.
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if status != 0:
        saved_log = log.replace(folder.with_name(f".{folder.name}.failed.log"))
        raise ToyError(
            f"{name}: expected `python {shown}` to end with status 0, got {status}; see {saved_log}"
        )
    log.replace(temporary / LOG_FILE)


def _digest(name: str) -> str:
    """Return a digest of what a toy depends on: versions of package and toys, and all presets that take part."""
    parts = [jaxppo.__version__.encode(), str(TOYS_VERSION).encode(), *_presets(name)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _presets(name: str) -> list[bytes]:
    """Return the preset of a toy and of the toys that it is made from."""
    command = TOYS[name].command
    if command == "toys":
        return [name.encode()]
    values = preset_values(command, name)
    needed = [value for value in values.values() if isinstance(value, str) and value in TOYS]
    return [repr(values).encode(), *(part for toy in needed for part in _presets(toy))]
