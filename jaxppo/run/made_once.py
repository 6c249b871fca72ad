"""Folders of the cache that are made on first use: whole or not at all, by one process."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxppo.run.lock import locked


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder, which is made where it is missing; it gets its name when it is complete.

    Of several processes that ask for it one makes it and the others wait, where the file system has locks; elsewhere
    each may make it, and the first one stays.

    Args:
        folder: in the cache; its name says what it is made from.
        make: called with a path at which it makes the folder, in a folder of its own.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _held(folder):
        if not folder.exists():  # now also of another process's making
            _make(folder, make)
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    workshop = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(workshop, ignore_errors=True)  # of a killed process of that number
    workshop.mkdir()
    try:
        make(workshop / "made")
        if not folder.exists():  # it may, where the file system has no locks
            (workshop / "made").rename(folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder while the block runs; its file is gone afterwards."""
    path = folder.with_name(f".{folder.name}.lock")
    told = f"waiting for another process that makes {folder}"
    file = locked(path, lambda _: print(told, file=sys.stderr, flush=True))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()
