"""Rows of a stream, made ahead in processes of their own.

Each process writes every n-th batch to its standard output, one row a line, and waits there when nobody reads: the pipe
is the queue. Which process makes a row does not matter to what it is. A process whose parent is gone cannot write any
more, and ends.
"""

import contextlib
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

from jaxppo.errors import DataError, PddlError
from jaxppo.planning.datasets.rows import Row
from jaxppo.planning.datasets.stream import Stream, stream_row

_COLUMNS = ("id", "domain", "prompt", "completion")
"""What of a row is sent."""


class StreamAhead:
    """Batches of a stream: `batch(step)` depends on nothing but the stream and the step.

    Args:
        stream: a checked one.
        batch_size: rows of a batch.
        workers: processes.
    """

    def __init__(self, stream: Stream, batch_size: int, workers: int):
        self.stream, self.batch_size, self._n_workers = stream, batch_size, workers
        self._processes: list[subprocess.Popen[str]] = []
        self._first = self._next = 0
        self._end = lambda: None

    def batch(self, step: int) -> list[Row]:
        """Return rows `step * batch_size ...` with the columns that learning needs.

        Raises:
            DataError: the stream gives none, or a process died.
        """
        if not self._processes or step != self._next:
            self._start(step)
        process = self._processes[(step - self._first) % self._n_workers]
        self._next = step + 1
        assert process.stdout is not None
        return [self._row(process, process.stdout.readline()) for _ in range(self.batch_size)]

    def close(self) -> None:
        """End the processes."""
        self._end()
        self._processes = []

    def _start(self, step: int) -> None:
        self.close()
        self._first = step
        for worker in range(self._n_workers):
            task = (asdict(self.stream), step + worker, self._n_workers, self.batch_size)
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", __name__, json.dumps(task)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,  # Ctrl-C stops a run after its step, which still needs rows
                )
            )
        self._end = weakref.finalize(self, _end, tuple(self._processes))

    def _row(self, process: subprocess.Popen[str], line: str) -> Row:
        row = json.loads(line) if line.endswith("\n") else {"error": f"a process that ended with {process.wait()}"}
        if "error" in row:
            raise DataError(f"train_split: expected rows of the stream, got {row['error']}")
        return row


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        assert process.stdout is not None
        process.stdout.close()
        process.wait()


def _serve(settings: dict[str, Any], first: int, stride: int, batch_size: int) -> None:
    """Write batches `first`, `first + stride`, ... until nobody can read them."""
    stream = Stream(**settings)
    for step in count(first, stride):
        for number in range(step * batch_size, (step + 1) * batch_size):
            try:
                row = stream_row(stream, number)
            except (DataError, PddlError) as error:
                print(json.dumps({"error": str(error)}), flush=True)
                return
            print(json.dumps({name: row[name] for name in _COLUMNS}))
        sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        _serve(*json.loads(sys.argv[1]))
    os._exit(0)  # without a last flush, which could not go anywhere
