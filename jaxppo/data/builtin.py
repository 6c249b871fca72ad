"""The built-in data set: its splits are shipped, or built once and kept in the cache."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jaxppo import planning
from jaxppo.config import DataConfig, parse_sizes
from jaxppo.config.paths import cache_dir
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.run.made_once import made_once

Row = dict[str, Any]

SHIPPED_DATA, REQUESTS_FILE = Path(__file__).parent / "shipped", "requests.json"
"""The splits of the default run, ready made; `runs/shipped_data.py` writes them."""

SPLITS = ("train", "rl", "test", "test_longer")
"""Splits of the built-in domain."""


def read_split(config: DataConfig, split: str) -> list[Row]:
    """Read a split from what is shipped or cached, or build it."""
    request = built_in_request(config, split)
    if request == _shipped_requests().get(split):
        return dataset_files.read_split(SHIPPED_DATA, split)
    return cached_rows("blocksworld", split, request, lambda: build_request(request))


def cached_rows(data: str, split: str, request: Mapping[str, Any], make: Callable[[], Sequence[Row]]) -> list[Row]:
    """Read a split from the cache, or make it: what a request makes changes with the code of `planning` alone."""
    folder = cache_dir() / "datasets" / f"{data}-{split}-{_digest(request)}"
    made_once(folder, lambda made: dataset_files.write_jsonl(make(), made / f"{split}.jsonl"))
    return dataset_files.read_jsonl(folder / f"{split}.jsonl")


def built_in_request(config: DataConfig, split: str) -> dict[str, Any]:
    """Return everything that decides the rows of a split of the built-in data set, as JSON keeps it."""
    return {
        "split": split,
        "sizes": getattr(config, f"{split}_sizes"),
        "seed": config.data_seed,
        "prompt_style": config.prompt_style,
        "unique": split != "train",
    }


def build_request(request: Mapping[str, Any]) -> list[Row]:
    """Draw and solve the problems of a request."""
    return datasets.build_split(**{**request, "sizes": parse_sizes(request["sizes"])})


@cache
def _shipped_requests() -> dict[str, dict[str, Any]]:
    """Read from which request each shipped split was built."""
    return json.loads((SHIPPED_DATA / REQUESTS_FILE).read_text(encoding="utf-8"))


def _digest(request: Mapping[str, Any]) -> str:
    """Return the name of a cached split, which changes with the request and with the code that builds it."""
    folder = Path(planning.__file__).parent
    sources = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    code = b"".join(path.read_bytes() for path in sources)
    text = json.dumps(request, sort_keys=True).encode()
    return hashlib.sha256(text + code).hexdigest()[:16]
