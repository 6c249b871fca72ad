"""Splits that their settings alone decide: shipped, or generated once and cached. Among them the built-in data."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.config import SPLITS, DataConfig, parse_sizes
from jaxppo.config.paths import cache_dir
from jaxppo.data.forms import Row
from jaxppo.errors import DataError
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.run.cache_folder import get_or_build

SHIPPED_DATA = Path(__file__).parent / "shipped"
"""A folder for the splits of each preset that has them ready made; `runs/shipped_data.py` writes them."""
REQUESTS_FILE = "requests.json"
"""The file of such a folder that says from which settings its splits were generated."""


class GeneratedSplit(NamedTuple):
    """A split that its settings and the version of the generators decide.

    Attributes:
        data: what it is of, `blocksworld` or `stream`.
        split: its name.
        request: everything that decides the rows, as JSON keeps it.
        generate: draws and solves the problems.
    """

    data: str
    split: str
    request: Mapping[str, Any]
    generate: Callable[[], Sequence[Row]]

    def read(self) -> list[Row]:
        """Read the rows from what is shipped or cached, or generate them."""
        return dataset_files.read_split(self.folder(), self.split)

    def folder(self) -> Path:
        """Return the folder that holds the rows, which are generated unless they are shipped or cached."""
        # What is shipped is what would be generated, without the wait. The
        # whole request must be the same: another size or seed has other rows.
        for shipped_folder, requests in _shipped_requests().items():
            if self.request == requests.get(self.split):
                return shipped_folder
        # With the version, as a newer generator may give other rows for the same settings.
        key = {"generator_version": datasets.GENERATOR_VERSION, "request": self.request}
        text = json.dumps(key, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        folder = cache_dir() / "datasets" / f"{self.data}-{self.split}-{digest}"
        name = f"{self.split}.jsonl"
        return get_or_build(
            folder, lambda path: dataset_files.write_jsonl(self.generate(), path / name)
        )


def builtin_split(config: DataConfig, split: str) -> GeneratedSplit:
    """Return a split of the built-in data set.

    Raises:
        DataError: it has no such split, or no such configuration.
    """
    if split not in SPLITS:
        raise DataError(
            f"train_split, eval_splits: expected one of {', '.join(SPLITS)} for blocksworld, got {split!r}"
        )
    if config.dataset_config is not None:
        raise DataError(
            f"dataset_config: expected none for blocksworld, got {config.dataset_config!r}"
        )
    request = {
        "split": split,
        "sizes": config.part("sizes", split),
        "seed": config.data_seed,
        "prompt_style": config.prompt_style,
        # The split `train` alone may have a problem again under other names.
        "unique": split != "train",
    }

    def generate() -> list[Row]:
        return datasets.build_split(**{**request, "sizes": parse_sizes(request["sizes"])})

    return GeneratedSplit("blocksworld", split, request, generate)


@cache
def _shipped_requests() -> dict[Path, dict[str, dict[str, Any]]]:
    """Read from which requests the shipped splits were generated: of each folder, by split."""
    files = sorted(SHIPPED_DATA.glob(f"*/{REQUESTS_FILE}"))
    return {file.parent: json.loads(file.read_text(encoding="utf-8")) for file in files}
