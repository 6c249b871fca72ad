"""Reward functions with a time limit: a completion that takes too long is given up, and the run goes on.

An `async` function is called here, once per completion; any other runs in separate processes that can be killed.
`python -m jaxppo.reward_functions.isolated module:function HANDLE` is such a process. It is not forked, since forking
a process that runs JAX's threads may deadlock, and not started by `multiprocessing`, which would import the command
(and with it JAX) again and forbid the function to start processes. What it starts is killed with it.
"""

import asyncio
import atexit
import importlib
import inspect
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxppo.errors import ConfigError
from jaxppo.planning import connection_of, kill_group, start_module, wait_for_any
from jaxppo.rewards import (
    FAILURES,
    Completions,
    Reports,
    RewardFunction,
    Scores,
    build_arguments,
    call_row,
    describe_error,
    failed_row,
    function_name,
    join_scores,
    run_to_end,
)

START_TIMEOUT_S = 120.0
"""Seconds for a process to start and import the function."""


def import_function(path: str) -> Callable[..., Any]:
    """Import the function that `module:function` names; modules of the working directory are found too.

    Raises:
        ConfigError: there is no such function.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"reward_funcs: expected module:function, got {path!r}")
    # As with `python -m`; the path of an installed command begins with the folder of the command.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except FAILURES as error:
        # A module may fail in any way while it is imported: one without a main guard may be a script.
        fix = "modules are looked for in the working directory, PYTHONPATH and what is installed"
        if "/" in module or module.endswith(".py"):
            fix = f"a module, not a path: {_as_module(module, name)}"
        raise ConfigError(
            f"reward_funcs: expected a function at {path}, got {describe_error(error)}; {fix}"
        ) from error
    if not callable(function):
        raise ConfigError(
            f"reward_funcs: expected a function at {path}, got {type(function).__name__}"
        )
    return function


def _as_module(path: str, name: str) -> str:
    """Say how a function in a file is named: by a module of the working directory, or of a folder in PYTHONPATH."""
    file = Path(os.path.abspath(path.removesuffix(".py")))
    if file.is_relative_to(Path.cwd()):
        return f"{'.'.join(file.relative_to(Path.cwd()).parts)}:{name}"
    return f"{file.name}:{name} with PYTHONPATH={file.parent}"


def is_async(function: RewardFunction) -> bool:
    """Return whether calling a function gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


def score_concurrently(
    name: str, function: RewardFunction, timeout_s: float, completions: Completions
) -> Scores:
    """Score completions by an `async` function, each by itself and all at the same time.

    Args:
        name: for messages.
        function: the reward function.
        timeout_s: seconds for one completion.
        completions: to score.

    Returns:
        The scores, with `Failed` where the function raised or took too long.
    """

    async def score_row(row: Completions) -> Scores:
        reports = Reports(name, 1)
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                values = await function(**build_arguments(function, row, reports.arguments))
            return reports.with_scores(values)
        except FAILURES as error:
            if limit.expired():
                scores = failed_row("timeouts", _no_answer(timeout_s))
            else:
                # Also for a TimeoutError of the function's own.
                scores = failed_row("errors", describe_error(error))
            return scores._replace(metrics=reports.metrics, extras=reports.extras)

    async def score_rows() -> list[Scores]:
        return await asyncio.gather(*map(score_row, completions.single_rows()))

    return join_scores(run_to_end(score_rows()))


def _no_answer(timeout_s: float) -> str:
    return f"no answer within {timeout_s:g} s"


class Workers:
    """Scores completions one by one in several processes; one that takes too long is killed.

    Args:
        path: `module:function`.
        count: how many processes.
        timeout_s: seconds for one completion.
    """

    def __init__(self, path: str, count: int, timeout_s: float):
        self._path = path
        self._count = count
        self._timeout_s = timeout_s
        self._idle: list[_RewardProcess] = []
        # A program that ends without `close` leaves no processes.
        atexit.register(self.close)

    def __call__(self, completions: Completions) -> Scores:
        """Score completions, with `Failed` where the function raised, took too long, or ended its process."""
        # One row at a time for each process, so that a row that hangs costs no other.
        waiting = deque(enumerate(completions.single_rows()))
        num_rows = len(waiting)
        row_scores: dict[int, Scores] = {}
        busy: dict[_RewardProcess, int] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < self._count:
                    number, row = waiting.popleft()
                    busy[self._begin(row)] = number
                for worker in wait_for_any(list(busy)):
                    row_scores[busy.pop(worker)] = worker.receive(self._timeout_s)
                    if worker.is_alive:
                        self._idle.append(worker)
        finally:
            # After an exception or Ctrl-C their answers would be taken for those of later rows.
            for worker in busy:
                worker.kill()
        return join_scores([row_scores[number] for number in range(num_rows)])

    def _begin(self, row: Completions) -> "_RewardProcess":
        """Give a row to an idle process, or to a new one where no idle process is still alive."""
        while self._idle:
            worker = self._idle.pop()
            try:
                worker.send(row, self._timeout_s)
            except OSError:
                # It has ended while it was idle.
                worker.kill()
            else:
                return worker
        worker = _RewardProcess(self._path)
        worker.send(row, self._timeout_s)
        return worker

    def close(self) -> None:
        """Kill the processes."""
        while self._idle:
            self._idle.pop().kill()


class _RewardProcess:
    """One process, with one completion at a time."""

    def __init__(self, path: str):
        self._process, self.connection = start_module(__name__, path)
        self.is_alive = True
        self.deadline = 0.0
        try:
            greeting = (
                self.connection.recv() if self.connection.poll(START_TIMEOUT_S) else "no answer"
            )
        except (EOFError, OSError):
            greeting = "one that ended"
        if greeting != "ready":
            self.kill()
            raise ConfigError(
                f"reward_funcs: expected a process that imports {path}, got {greeting}"
            )

    def send(self, row: Completions, timeout_s: float) -> None:
        self.deadline = time.monotonic() + timeout_s
        self.connection.send(row)

    def receive(self, timeout_s: float) -> Scores:
        """Return the scores if they have arrived; kill the process if they have not."""
        try:
            if self.connection.poll(0):
                return self.connection.recv()
        except (EOFError, OSError):
            # Killed before its status is read: it may have closed the connection alone.
            self.kill()
            return failed_row("errors", f"its process ended with {self._process.returncode}")
        self.kill()
        return failed_row("timeouts", _no_answer(timeout_s))

    def kill(self) -> None:
        self.is_alive = False
        self.connection.close()
        kill_group(self._process)
        self._process.wait()


def _serve(path: str, handle: str) -> None:
    """Score one completion after the other until the connection ends."""
    with connection_of(handle) as connection:
        try:
            function = import_function(path)
        except ConfigError as error:
            connection.send(str(error))
            return
        # Tells a slow import from a slow function: the time limit is the function's alone.
        connection.send("ready")
        while True:
            try:
                row = connection.recv()
            except EOFError:
                return
            connection.send(call_row(function_name(function), function, row))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
