"""Rows of a stream, made in advance by another process.

It writes row after row to its standard output, one a line. The pipe is the queue: once it is full, the process waits
until somebody reads. A row does not depend on the process that makes it. A process whose parent is gone cannot write
any more, and ends.
"""

import contextlib
import json
import os
import subprocess
import sys
import weakref
from dataclasses import asdict
from itertools import count
from typing import Any

from jaxppo.errors import DataError, PddlError
from jaxppo.planning.datasets.rows import Row
from jaxppo.planning.datasets.stream import Stream, stream_row
from jaxppo.planning.subprocesses import python_environment

# What learning needs of a row; only this is sent.
_COLUMNS = ("id", "domain", "prompt", "completion")


class StreamAhead:
    """Batches of a stream: `batch(step)` depends on nothing but the stream and the step.

    Args:
        stream: a checked one.
        batch_size: rows of a batch.
    """

    def __init__(self, stream: Stream, batch_size: int):
        self._stream = stream
        self._batch_size = batch_size
        self._process: subprocess.Popen[str] | None = None
        self._next_step = 0
        self._finalizer: weakref.finalize | None = None

    def batch(self, step: int) -> list[Row]:
        """Return rows `step * batch_size ...` with the columns that learning needs.

        Raises:
            DataError: the stream gives none, or the process died.
        """
        process = self._process
        # The process is started again for a step out of order, as after a resume.
        if process is None or step != self._next_step:
            process = self._start(step)
        self._next_step = step + 1
        return [_read_row(process) for _ in range(self._batch_size)]

    def close(self) -> None:
        """End the process."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = None

    def _start(self, step: int) -> subprocess.Popen[str]:
        self.close()
        task = (asdict(self._stream), step * self._batch_size)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(task)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=python_environment(),
            text=True,
            encoding="utf-8",
            # A session of its own: Ctrl-C stops a run after its step, which still needs rows.
            start_new_session=True,
        )
        self._process = process
        # The process ends with this object, also where nobody
        # closes it; `_end` must not hold a reference to it.
        self._finalizer = weakref.finalize(self, _end, process)
        return process


def _read_row(process: subprocess.Popen[str]) -> Row:
    assert process.stdout is not None
    line = process.stdout.readline()
    # A line without its end is what a process that died has left.
    if line.endswith("\n"):
        row = json.loads(line)
    else:
        row = {"error": f"a process that ended with {process.wait()}"}
    if "error" in row:
        raise DataError(f"train_split: expected rows of the stream, got {row['error']}")
    return row


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    assert process.stdout is not None
    process.stdout.close()
    process.wait()


def _serve(settings: dict[str, Any], first: int) -> None:
    """Write rows `first`, `first + 1`, ... until nobody can read them."""
    stream = Stream(**settings)
    for number in count(first):
        try:
            row = stream_row(stream, number)
        except (DataError, PddlError) as error:
            # The reader raises it, in the process of the run.
            print(json.dumps({"error": str(error)}), flush=True)
            return
        print(json.dumps({name: row[name] for name in _COLUMNS}), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        _serve(*json.loads(sys.argv[1]))
    # Without the last flush of a normal exit, which nobody would read.
    os._exit(0)
