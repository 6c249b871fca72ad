"""Splits drawn from their settings alone: shipped, or made once and kept in the cache. Among them the built-in data."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.config import SPLITS, DataConfig, parse_sizes
from jaxppo.config.paths import cache_dir
from jaxppo.errors import DataError
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.run.made_once import made_once

Row = dict[str, Any]

SHIPPED_DATA, REQUESTS_FILE = Path(__file__).parent / "shipped", "requests.json"
"""A folder for the splits of each preset that has them ready made; `runs/shipped_data.py` writes them."""


class Drawn(NamedTuple):
    """A split that its settings and the version of the generators decide.

    Attributes:
        data: what it is of, `blocksworld` or `stream`.
        split: its name.
        request: everything that decides the rows, as JSON keeps it.
        make: draws and solves the problems.
    """

    data: str
    split: str
    request: Mapping[str, Any]
    make: Callable[[], Sequence[Row]]

    def read(self) -> list[Row]:
        """Read the rows from what is shipped or cached, or make them."""
        for folder, requests in _shipped().items():
            if self.request == requests.get(self.split):
                return dataset_files.read_split(folder, self.split)
        return dataset_files.read_jsonl(self._made() / f"{self.split}.jsonl")

    def make_ready(self) -> None:
        """Make the rows, unless they are shipped or cached."""
        if not any(self.request == requests.get(self.split) for requests in _shipped().values()):
            self._made()

    def _made(self) -> Path:
        folder = cache_dir() / "datasets" / f"{self.data}-{self.split}-{_digest(self.request)}"
        return made_once(folder, lambda made: dataset_files.write_jsonl(self.make(), made / f"{self.split}.jsonl"))


def built_in(config: DataConfig, split: str) -> Drawn:
    """Return a split of the built-in data set.

    Raises:
        DataError: it has no such split, or no such configuration.
    """
    if split not in SPLITS:
        expected = f"one of {', '.join(SPLITS)} for blocksworld"
        raise DataError(f"train_split, eval_splits: expected {expected}, got {split!r}")
    if config.dataset_config is not None:
        raise DataError(f"dataset_config: expected none for blocksworld, got {config.dataset_config!r}")
    request = {
        "split": split,
        "sizes": config.part("sizes", split),
        "seed": config.data_seed,
        "prompt_style": config.prompt_style,
        "unique": split != "train",
    }
    return Drawn("blocksworld", split, request, partial(_build, request))


def _build(request: Mapping[str, Any]) -> list[Row]:
    return datasets.build_split(**{**request, "sizes": parse_sizes(request["sizes"])})


@cache
def _shipped() -> dict[Path, dict[str, dict[str, Any]]]:
    """Read from which requests the shipped splits were made."""
    files = sorted(SHIPPED_DATA.glob(f"*/{REQUESTS_FILE}"))
    return {file.parent: json.loads(file.read_text(encoding="utf-8")) for file in files}


def _digest(request: Mapping[str, Any]) -> str:
    """Return what names a cached split: a digest of what its rows depend on."""
    text = json.dumps({"generator_version": datasets.GENERATOR_VERSION, "request": request}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
