"""Reward functions in processes of their own: a completion that takes too long costs its process, not the run.

`python -m jaxppo.reward_functions.isolated module:function` is such a process. It is started afresh and not forked, for
JAX has threads; it may start processes itself, and they are stopped with it.
"""

import atexit
import importlib
import os
import secrets
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from jaxppo.errors import ConfigError
from jaxppo.planning import kill_group
from jaxppo.rewards import Completions, Failed, Scores, call, joined, name_of, reason_of

_START_S = 120.0
"""Seconds for a process to start and import the function."""


def import_function(path: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules of the working directory are found too.

    Raises:
        ConfigError: there is none.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"reward_funcs: expected module:function, got {path!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as error:  # a module may fail in any way while it is imported
        fix = "modules are looked for in the working directory, PYTHONPATH and what is installed"
        if "/" in module or module.endswith(".py"):
            fix = f"a module and no path: {module.removesuffix('.py').strip('./').replace('/', '.')}:{name}"
        raise ConfigError(f"reward_funcs: expected a function at {path}, got {reason_of(error)}; {fix}") from error
    if not callable(function):
        raise ConfigError(f"reward_funcs: expected a function at {path}, got {type(function).__name__}")
    return function


class Workers:
    """Scores completions one by one in several processes; a process is killed where a completion takes too long.

    Args:
        path: `module:function`.
        count: how many processes.
        timeout_s: seconds for one completion.
    """

    def __init__(self, path: str, count: int, timeout_s: float):
        self._path, self._timeout_s = path, timeout_s
        self._idle: list[_Worker] = []
        self._count = count
        atexit.register(self.close)

    def __call__(self, completions: Completions) -> Scores:
        """Scores with `Failed` where the function raised, took too long, or ended its process."""
        waiting = deque(range(len(completions.texts)))
        done: dict[int, Scores] = {}
        busy: dict[_Worker, int] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < self._count:
                    row = waiting.popleft()
                    busy[self._begin(completions.rows([row]))] = row
                for worker in _ready(list(busy)):
                    scores = worker.receive(self._timeout_s)
                    done[busy.pop(worker)] = scores
                    if worker.is_alive:
                        self._idle.append(worker)
        finally:
            for worker in busy:
                worker.kill()
        return joined([done[row] for row in range(len(completions.texts))])

    def _begin(self, row: Completions) -> "_Worker":
        """A process that works on a row: an idle one, or a new one where none has outlived its idle time."""
        while self._idle:
            worker = self._idle.pop()
            try:
                worker.send(row, self._timeout_s)
            except OSError:  # it has ended
                worker.kill()
            else:
                return worker
        worker = _Worker(self._path)
        worker.send(row, self._timeout_s)
        return worker

    def close(self) -> None:
        """Stop the processes."""
        while self._idle:
            self._idle.pop().kill()


class _Worker:
    """One process, with one completion at a time."""

    def __init__(self, path: str):
        key = secrets.token_bytes(32)
        with Listener(None, authkey=key) as listener:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jaxppo.reward_functions.isolated", path, str(listener.address)],
                stdin=subprocess.PIPE,
                start_new_session=True,  # what it starts is killed with it
            )
            self._hand_over(key)
            self.connection = self._accepted(listener, path)
        self.is_alive = True
        self.deadline = 0.0
        try:
            ready = self.connection.recv() if self.connection.poll(_START_S) else "no answer"
        except EOFError:
            ready = "one that ended"
        if ready != "ready":
            self.kill()
            raise ConfigError(f"reward_funcs: expected a process that imports {path}, got {ready}")

    def _hand_over(self, key: bytes) -> None:
        """Through the standard input: nobody else can read it there."""
        assert self._process.stdin is not None
        self._process.stdin.write(key)
        self._process.stdin.close()

    def _accepted(self, listener: Listener, path: str) -> Connection:
        # The process may end before it connects; `accept` alone would wait for ever.
        socket = getattr(listener._listener, "_socket", None)  # type: ignore[attr-defined]
        if socket is not None:
            socket.settimeout(_START_S)
        try:
            return listener.accept()
        except (OSError, EOFError) as error:
            self._process.kill()
            raise ConfigError(f"reward_funcs: expected a process for {path} to start, got {error}") from error

    def send(self, row: Completions, timeout_s: float) -> None:
        self.deadline = time.monotonic() + timeout_s
        self.connection.send(row)

    def receive(self, timeout_s: float) -> Scores:
        """The answer, if there is one by now."""
        try:
            if self.connection.poll(0):
                return self.connection.recv()
        except (EOFError, OSError):
            self.kill()
            return Scores([Failed("errors", f"its process ended with {self._process.wait()}")], {}, {})
        self.kill()
        return Scores([Failed("timeouts", f"no answer within {timeout_s:g} s")], {}, {})

    def kill(self) -> None:
        self.is_alive = False
        self.connection.close()
        kill_group(self._process)
        self._process.wait()


def _ready(busy: list[_Worker]) -> list[_Worker]:
    """Those that have an answer, have ended, or have no time left; waits for the first."""
    left = min(worker.deadline for worker in busy) - time.monotonic()
    answered = wait([worker.connection for worker in busy], timeout=max(0.0, left))
    now = time.monotonic()
    return [worker for worker in busy if worker.connection in answered or worker.deadline <= now]


def _serve(path: str, address: str) -> None:
    """Answer one completion after the other until the connection ends."""
    with Client(address, authkey=sys.stdin.buffer.read()) as connection:
        try:
            function = import_function(path)
        except ConfigError as error:
            connection.send(str(error))
            return
        connection.send("ready")
        while True:
            try:
                row = connection.recv()
            except EOFError:
                return
            connection.send(_answer(function, row))


def _answer(function: Callable[..., Any], row: Completions) -> Scores:
    try:
        return call(name_of(function), function, row)
    except Exception as error:
        return Scores([Failed("errors", reason_of(error))], {}, {})


if __name__ == "__main__":
    _serve(*sys.argv[1:])
