"""Folders of the cache that are built on first use: complete or not at all, by one process."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from jaxppo.run import lock


def get_or_build(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return a folder, which is built where it is missing; it gets its name when it is complete.

    Of several processes that ask for it one builds it and the others wait, where the file system has locks; elsewhere
    each may build it, and the first one stays.

    Args:
        folder: in the cache; its name says what it is built from.
        build: called with a path at which it builds the folder, in a folder of its own.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    waiting = f"waiting for another process that builds {folder}"
    path = folder.with_name(f".{folder.name}.lock")
    with lock.held(path, busy=lambda: print(waiting, file=sys.stderr, flush=True)):
        if not folder.exists():  # the process that held the lock may have built it
            _build(folder, build)
    return folder


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    # Beside the folder, as a rename moves nothing between file systems.
    workshop = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(workshop, ignore_errors=True)  # of a killed process of that number
    workshop.mkdir()
    try:
        build(workshop / "built")
        if not folder.exists():  # it may, where the file system has no locks
            (workshop / "built").rename(folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
