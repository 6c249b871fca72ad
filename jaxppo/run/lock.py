"""One process at a time works on a run folder: a lock that ends with the process that holds it."""

import contextlib
import datetime
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from jaxppo.errors import ConfigError

LOCK_FILE = ".lock"
"""Name of the file in a run folder, while a process works on it."""

_LOG = logging.getLogger(__name__)


class FolderLock:
    """The right to write into a run folder.

    The operating system takes the lock back when its process ends, however it ends. On network file systems it holds
    across hosts where their servers carry locks (NFS since version 3, Lustre with `flock`); where a file system has no
    locks, nothing is locked.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: Path):
        self._path = folder / LOCK_FILE
        self._lock: FileLock | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ConfigError: another process holds it; the message names host, process and start.
        """
        self._lock = acquire(self._path, self._refuse)
        started = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        self._path.write_text(
            f"process {os.getpid()} on {socket.gethostname()} since {started}\n", encoding="utf-8"
        )

    def _refuse(self) -> None:
        holder = "another process"
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            holder = self._path.read_text(encoding="utf-8").strip() or holder
        raise ConfigError(
            f"output_dir: expected a run that nobody works on, got {self._path.parent}, on which {holder} works; wait "
            "for its end, or stop it"
        )

    def release(self) -> None:
        """Give the lock back, and remove its file; nothing where it is not held."""
        if self._lock is not None:
            release(self._lock)
            self._lock = None

    def __enter__(self) -> "FolderLock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire(path: Path, busy: Callable[[], None]) -> FileLock:
    """Return a held lock, for `release`.

    Args:
        path: of its file, which is created where it is missing.
        busy: called where another process holds the lock; it raises, or the lock is waited for.
    """
    # filelock would fall back to a marker file where there are no locks,
    # but that of a process which was killed on another host stays for
    # good: no lock is better there than a run that cannot be resumed.
    lock = FileLock(path, fallback_to_soft=False)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            busy()
            lock.acquire()
    except OSError as error:
        # A folder that cannot be written to is found by
        # whoever writes into it next, who says what to do.
        _LOG.info("%s: not locked: %s", path, error)
    return lock


def release(lock: FileLock) -> None:
    """Give a lock back and remove its file."""
    # Removed while it is held: whoever waits for the
    # file finds that it is gone, and locks a new one.
    with contextlib.suppress(OSError):  # Windows removes no file that is open
        os.unlink(lock.lock_file)
    lock.release()
