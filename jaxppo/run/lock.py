"""One process at a time works on a run folder: a lock that ends with the process that holds it."""

import contextlib
import datetime
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from jaxppo.errors import ConfigError

LOCK_FILE = ".lock"
"""Name of the file in a run folder, while a process works on it."""

_LOG = logging.getLogger(__name__)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the right to write into a run folder while the block runs.

    The operating system takes the lock back when its process ends, however it ends. On network file systems it holds
    across hosts where their servers carry locks (NFS since version 3, Lustre with `flock`); where a file system has no
    locks, nothing is locked.

    Args:
        folder: an existing folder.

    Raises:
        ConfigError: another process holds it; the message names host, process and start.
    """
    path = folder / LOCK_FILE
    with held(path, partial(_refuse, path)):
        started = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        path.write_text(
            f"process {os.getpid()} on {socket.gethostname()} since {started}\n", encoding="utf-8"
        )
        yield


def _refuse(path: Path) -> None:
    holder = "another process"
    with contextlib.suppress(FileNotFoundError):  # it has just ended
        holder = path.read_text(encoding="utf-8").strip() or holder
    raise ConfigError(
        f"output_dir: expected a run that nobody works on, got {path.parent}, on which {holder} works; wait for its "
        "end, or stop it"
    )


@contextmanager
def held(path: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Hold a lock while the block runs, and remove its file.

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
    try:
        yield
    finally:
        # Removed while it is held: whoever waits for the
        # file finds that it is gone, and locks a new one.
        with contextlib.suppress(OSError):  # Windows removes no file that is open
            os.unlink(path)
        lock.release()
