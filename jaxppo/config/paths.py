"""The folder of all caches, and files that are never seen half-written."""

import os
import threading
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """Return the private folder of all caches: $JAXPPO_CACHE, or the user's cache folder."""
    return Path(
        os.environ.get("JAXPPO_CACHE") or platformdirs.user_cache_dir("jaxppo")
    ).expanduser()


def write_atomically(path: Path | str, content: str | bytes) -> None:
    """Write a file, and its folder, that appears complete or not at all, also where several processes write it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, as a rename is atomic within one
    # file system alone; each writer has a file of its own.
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def is_partial(path: Path, name: str) -> bool:
    """Return whether a path is what a process left that was killed while it wrote a file of this name."""
    return path.name.startswith(".") and path.name.lstrip(".").startswith(f"{name}.")
