"""A planner in a separate process, which is killed, with all that it started, when it takes too long.

The process is started afresh and not forked, as JAX has threads. What the planner prints goes nowhere, but for the last
words of one that dies. A process whose parent is gone ends itself and its children.
"""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxppo.errors import ConfigError
from jaxppo.planning.solve.engines import Engine, PlannerAnswer
from jaxppo.planning.subprocesses import connection_of, kill_group, python_environment, start_module

if sys.platform == "linux":
    import resource

_START_S = 120.0
"""Seconds for a process to start and import its planner."""
_MAX_MEMORY = 4 << 30
"""Bytes of address space of each process of a planner (Linux only)."""


class PlannerProcess:
    """One process, with one problem at a time.

    Args:
        make_engine: a class, of a module on the caller's `sys.path`.
        optimal: what it is called with.

    Attributes:
        connection: can be read when `receive` has something to return.
        deadline: when the process is to be killed, by `time.monotonic`.
        is_alive: whether it can be asked again.
    """

    def __init__(self, make_engine: Callable[[bool], Engine], optimal: bool):
        self._folder = tempfile.TemporaryDirectory(
            prefix="jaxppo-planner-", ignore_cleanup_errors=True
        )
        self._last_words = Path(self._folder.name, "stderr")
        with self._last_words.open("wb") as stderr:
            self._process, self.connection = start_module(
                __name__,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=self._folder.name,
                env=_environment(self._folder.name),
            )
        self.connection.send((make_engine, optimal, self._folder.name))
        self.is_alive = True
        self._is_ready = False

    def ask(self, domain_pddl: str, problem_pddl: str, timeout_s: float) -> None:
        """Have a problem solved; `receive` returns the answer."""
        self._timeout_s = timeout_s
        # Imports of a planner take seconds, which count for no problem.
        self.deadline = time.monotonic() + (timeout_s if self._is_ready else _START_S)
        with contextlib.suppress(OSError):  # it has ended, which `receive` finds out
            self.connection.send((domain_pddl, problem_pddl))

    def receive(self) -> tuple[PlannerAnswer, float] | None:
        """Return the answer, and the seconds that the planner took; None where it was only made ready.

        The process is gone afterwards where it took too long or died.

        Raises:
            ConfigError: the engine cannot be imported or made.
        """
        try:
            if not self.connection.poll():
                self.close()
                return PlannerAnswer(None, "timeout"), self._timeout_s
            message = self.connection.recv()
        except (EOFError, OSError):
            # Its status is settled by now; its children may still be there.
            kill_group(self._process)
            reason = _end_reason(self._process.wait(), self._last_words)
            self.close()
            return PlannerAnswer(None, reason), 0.0
        if isinstance(message, str):
            self.close()
            raise ConfigError(f"planner: expected one that can be started, got {message}")
        if message is None:
            self._is_ready = True
            self.deadline = time.monotonic() + self._timeout_s
        return message

    def close(self) -> None:
        """End the process and all that it started, and clean up after it."""
        self.is_alive = False
        self.connection.close()
        kill_group(self._process)
        self._process.wait()
        self._folder.cleanup()


def _environment(folder: str) -> dict[str, str]:
    """Let the caller's modules be found, planners walk over sets in one order, and files end up in the folder."""
    environment = python_environment()
    for name in ("TMPDIR", "TEMP", "TMP"):
        environment[name] = folder
    # The order of a set of texts would be another one
    # in each process, and with it a planner's plan.
    environment["PYTHONHASHSEED"] = "0"
    return environment


def _end_reason(code: int, last_words: Path) -> str:
    """Say how a process ended: by which signal or status, and with which last line of its standard error."""
    end = f"signal {-code}" if code < 0 else f"status {code}"
    words = last_words.read_text(encoding="utf-8", errors="replace").strip()
    last_line = words.rpartition("\n")[2][:200]
    return f"crash: the planner's process ended with {end} ({last_line or 'no message'})"


# ---------------------------------------------------------------------------------------------------- in the process


def _serve(handle: str) -> None:
    """Solve one problem after the other until the connection ends."""
    connection = connection_of(handle)
    make_engine, optimal, folder = connection.recv()
    requests: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    # A thread of its own, so that the end of the parent is noticed while a planner works.
    reader = threading.Thread(target=_read, args=(connection, folder, requests), daemon=True)
    reader.start()
    if sys.platform == "linux":
        # Where a lower limit holds already, the system refuses this one.
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    # Any error, as engines are others' code; the parent turns it into one of the settings.
    try:
        engine = make_engine(optimal)
    except Exception as error:
        connection.send(_describe(error))
        return
    connection.send(None)
    while True:
        problem = requests.get()
        start = time.monotonic()
        answer = _call(engine, *problem)
        connection.send((answer, round(time.monotonic() - start, 3)))


def _read(connection: Any, folder: str, requests: "queue.SimpleQueue[tuple[str, str]]") -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            requests.put(connection.recv())
    shutil.rmtree(folder, ignore_errors=True)
    if sys.platform != "win32":
        # The planner's children, too: nobody waits for them any more.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _call(engine: Engine, domain_pddl: str, problem_pddl: str) -> PlannerAnswer:
    try:
        return engine(domain_pddl, problem_pddl)
    except MemoryError:
        return PlannerAnswer(None, "memory")
    except Exception as error:
        return PlannerAnswer(None, f"crash: {_describe(error)}")


def _describe(error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line[:300]}"


if __name__ == "__main__":
    _serve(sys.argv[1])
