"""One process at a time works on a run folder: a lock that ends with whoever holds it."""

import datetime
import os
import socket
from pathlib import Path
from typing import TextIO

from jaxppo.errors import ConfigError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

LOCK_FILE = ".lock"
"""Name of the file in a run folder; it stays there, only its lock comes and goes."""


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
        self._file = self._path.open("a+", encoding="utf-8")
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self.release()
            raise ConfigError(
                f"output_dir: expected a run that nobody works on, got {self._path.parent}, on which {holder} works; "
                "wait for its end, or stop it"
            ) from None
        except OSError:
            return  # a file system without locks
        self._file.truncate(0)
        started = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        self._file.write(f"process {os.getpid()} on {socket.gethostname()} since {started}\n")
        self._file.flush()

    def release(self) -> None:
        """Give the lock back; nothing where it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "FolderLock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
