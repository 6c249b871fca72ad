"""One process at a time works on a run folder: a lock that ends with whoever holds it."""

import datetime
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from jaxppo.errors import ConfigError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

LOCK_FILE = ".lock"
"""Name of the file in a run folder, while a process works on it."""

_LOG = logging.getLogger(__name__)


class FolderLock:
    """The right to write into a run folder.

    The operating system takes the lock back when its process ends, however it ends. On network file systems it holds
    across hosts where their servers carry locks (NFS since version 3, Lustre with `flock`); where a file system or the
    platform has no locks, nothing is locked.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: Path):
        self._path = folder / LOCK_FILE
        self._file: TextIO | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ConfigError: another process holds it; the message names host, process and start.
        """
        self._file = locked(self._path, self._refuse)
        self._file.truncate(0)
        started = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        self._file.write(f"process {os.getpid()} on {socket.gethostname()} since {started}\n")
        self._file.flush()

    def _refuse(self, file: TextIO) -> None:
        file.seek(0)
        holder = file.read().strip() or "another process"
        raise ConfigError(
            f"output_dir: expected a run that nobody works on, got {self._path.parent}, on which {holder} works; wait "
            "for its end, or stop it"
        )

    def release(self) -> None:
        """Give the lock back, and remove its file; nothing where it is not held."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def __enter__(self) -> "FolderLock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def locked(path: Path, busy: Callable[[TextIO], None]) -> TextIO:
    """Return an open and locked file at a path; whoever is done with it removes and closes it.

    Args:
        path: of the file, which is made where it is missing.
        busy: called with it where another process holds it; it raises, or the lock is waited for.
    """
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            _lock(file, busy)
        except OSError:
            _LOG.info("%s: this file system has no locks", path)
        except BaseException:
            file.close()
            raise
        if _is_at(path, file):
            return file
        file.close()  # its holder has removed it between the lines above


def _lock(file: TextIO, busy: Callable[[TextIO], None]) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        busy(file)
        fcntl.flock(file, fcntl.LOCK_EX)


def _is_at(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
