"""The built-in data set: its splits are shipped, or built once and kept in the cache."""

import hashlib
import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jaxppo import planning
from jaxppo.config import DataConfig, parse_sizes
from jaxppo.config.paths import cache_dir, write_atomically
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets

Row = dict[str, Any]

SHIPPED_DATA, REQUESTS_FILE = Path(__file__).parent / "shipped", "requests.json"
"""The splits of the default run, ready made; `runs/shipped_data.py` writes them."""

_CHECKSUM = ".sha256"
"""Ending of the file beside a cached split that tells a damaged one."""

_LOG = logging.getLogger(__name__)

SPLITS = ("train", "rl", "test", "test_longer")
"""Splits of the built-in domain."""


def read_split(config: DataConfig, split: str) -> list[Row]:
    """Read a split from what is shipped or cached, or build it."""
    request = built_in_request(config, split)
    if request == _shipped_requests().get(split):
        return dataset_files.read_split(SHIPPED_DATA, split)
    path = cache_dir() / "datasets" / f"blocksworld-{split}-{_digest(request)}.jsonl"
    if not _is_undamaged(path):
        dataset_files.write_jsonl(build_request(request), path)
        write_atomically(path.with_suffix(_CHECKSUM), _checksum(path))
    return dataset_files.read_jsonl(path)


def _is_undamaged(path: Path) -> bool:
    """Return whether a cached split is there as it was written; warn of one that is not."""
    checksum = path.with_suffix(_CHECKSUM)
    if not path.exists() or not checksum.exists():
        return False
    undamaged = checksum.read_bytes() == _checksum(path).encode()
    if not undamaged:
        _LOG.warning("%s: expected the rows that were written, got others; they are built again", path)
    return undamaged


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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


def _digest(request: dict[str, Any]) -> str:
    """Return the name of a cached split, which changes with the request and with the code that builds it."""
    folder = Path(planning.__file__).parent
    sources = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    code = b"".join(path.read_bytes() for path in sources)
    text = json.dumps(request, sort_keys=True).encode()
    return hashlib.sha256(text + code).hexdigest()[:16]
