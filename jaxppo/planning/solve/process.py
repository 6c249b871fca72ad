"""A planner in a separate process, which is killed, with all that it started, when it takes too long.

The process is started afresh and not forked, as JAX has threads. Requests and answers are lines of JSON on its
standard input and output; what the planner itself prints goes nowhere, but for the last words of one that dies. A
process whose parent is gone ends itself and its children.
"""

import contextlib
import importlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from jaxppo.errors import ConfigError
from jaxppo.planning.solve.engines import Engine, PlannerAnswer
from jaxppo.planning.subprocesses import kill_group

if sys.platform == "linux":
    import resource

_START_S = 120.0
"""Seconds for a process to start and import its planner."""
_END_S = 2.0
"""Seconds for a process that has no more to say to end."""
_MIB = 1 << 20


class PlannerProcess:
    """One process, with one problem at a time.

    Args:
        engine: `module:class` of what makes the engine; modules on the caller's `sys.path` are found.
        arguments: what the class is called with; plain JSON values.
        memory_mib: address space of each process of it (Linux only).

    Raises:
        ConfigError: the engine cannot be imported or made.
    """

    def __init__(self, engine: str, arguments: Sequence[Any] = (), memory_mib: int | None = None):
        self._folder = tempfile.TemporaryDirectory(
            prefix="jaxppo-planner-", ignore_cleanup_errors=True
        )
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 # it lives as long as the process
        self._killed = False
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jaxppo.planning.solve.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=self._folder.name,
            env=_environment(self._folder.name),
            text=True,
            encoding="utf-8",
            start_new_session=True,  # what it starts is killed with it
        )
        self.is_alive = True
        # Imports of a planner take seconds, which count for no problem.
        setup = {
            "engine": engine,
            "arguments": arguments,
            "memory_mib": memory_mib,
            "folder": self._folder.name,
        }
        ready = self._exchange(setup, _START_S)
        if "ready" not in ready:
            reason = ready.get("reason") or f"no answer within {_START_S:g} s"
            self.close()
            raise ConfigError(f"planner: expected a process that makes {engine}, got {reason}")

    def ask(
        self, domain_pddl: str, problem_pddl: str, timeout_s: float
    ) -> tuple[PlannerAnswer, float]:
        """Have a problem solved; the process is gone afterwards where it took too long or died.

        Returns:
            The answer, and the seconds that the planner took.
        """
        start = time.monotonic()
        reply = self._exchange({"domain": domain_pddl, "problem": problem_pddl}, timeout_s)
        seconds = reply.get("seconds", time.monotonic() - start)
        plan = reply.get("plan")
        if plan is not None:
            return PlannerAnswer(tuple(map(tuple, plan)), reply.get("reason")), seconds
        # The reply of a process that was killed says only that it has ended.
        return PlannerAnswer(None, "timeout" if self._killed else reply.get("reason")), seconds

    def _exchange(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a line and wait for one; what comes instead of it is a reason."""
        # Reading a pipe has no time limit of its own: killing the writer ends it.
        killer = threading.Timer(limit_s, self.kill)
        killer.daemon = True
        killer.start()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (OSError, ValueError):  # it has ended
            self.is_alive = False
            return {"reason": self._end_reason()}
        finally:
            # Joined: whether it has killed the process must be settled before the next line.
            killer.cancel()
            killer.join()
            self.is_alive = self.is_alive and not self._killed

    def _end_reason(self) -> str:
        """Say how the process ended: by which signal or status, and with which last line of its standard error."""
        _let_end(self._process.pid)
        with self._lock:
            kill_group(self._process)  # its children
            code = self._process.wait()
        reason = "crash: the planner's process ended with "
        reason += f"signal {-code}" if code < 0 else f"status {code}"
        self._stderr.seek(max(0, os.fstat(self._stderr.fileno()).st_size - 4096))
        lines = self._stderr.read().decode("utf-8", "replace").split("\n")
        for line in reversed(lines):
            if line.strip():
                return f"{reason} ({line.strip()[:200]})"
        return reason

    def kill(self) -> None:
        """End the process and all that it started, now; any thread may do it."""
        with self._lock:
            self._killed = True
            kill_group(self._process)

    def close(self) -> None:
        """End the process and clean up after it."""
        self.kill()
        self.is_alive = False
        with contextlib.suppress(OSError):
            self._process.communicate()
        self._stderr.close()
        self._folder.cleanup()


def _environment(folder: str) -> dict[str, str]:
    """Let the caller's modules be found, planners walk over sets in one order, and files end up in the folder."""
    environment = dict(os.environ)
    for name in ("TMPDIR", "TEMP", "TMP"):
        environment[name] = folder
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(map(os.path.abspath, sys.path)))
    # The order of a set of texts would be another one in each process, and with it a planner's
    # plan.
    environment["PYTHONHASHSEED"] = "0"
    environment["PYTHONIOENCODING"] = "utf-8"
    return environment


def _let_end(pid: int) -> None:
    """Give a process that has closed its output a moment to end by itself; its number stays taken."""
    # Its status says more than the signal of whoever kills it first, and its last words are then
    # complete.
    deadline = time.monotonic() + _END_S
    while hasattr(os, "waitid") and time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return
        time.sleep(0.01)


# ---------------------------------------------------------------------------------------------------- in the process


def _serve() -> None:
    requests = _Requests()
    # The real output is kept for replies; whatever prints finds another one in its place.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        _redirect(os.devnull, 1)  # answers only, whatever a planner prints

        def send(**reply: Any) -> None:
            print(json.dumps(reply), file=out, flush=True)

        setup = requests.next()
        requests.folder = setup["folder"]
        _limit_memory(setup["memory_mib"])
        # Any error, as engines are others' code; the parent turns it into one of the settings.
        try:
            engine = _make(setup["engine"], setup["arguments"])
        except Exception as error:
            send(reason=_reason(error))
            return
        send(ready=True)
        while True:
            request = requests.next()
            start = time.monotonic()
            answer = _call(engine, request["domain"], request["problem"])
            send(plan=answer.plan, reason=answer.reason, seconds=round(time.monotonic() - start, 3))


class _Requests:
    """The lines of the standard input, which planners do not get to see; its end is the end of this process.

    Attributes:
        folder: what goes with it.
    """

    def __init__(self):
        self.folder: str | None = None
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._input = os.fdopen(os.dup(0), encoding="utf-8")
        _redirect(os.devnull, 0)
        # A thread of its own, so that the end of the input is noticed while a planner works.
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any]:
        return json.loads(self._waiting.get())

    def _read(self) -> None:
        for line in self._input:
            self._waiting.put(line)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if hasattr(os, "killpg"):
            # The planner's children, too: nobody waits for them any more
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _redirect(path: str, descriptor: int) -> None:
    target = os.open(path, os.O_RDWR)
    os.dup2(target, descriptor)
    os.close(target)


def _limit_memory(memory_mib: int | None) -> None:
    if memory_mib is not None and sys.platform == "linux":
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory_mib * _MIB
        # The system refuses a limit above the hard one.
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))


def _make(engine: str, arguments: Sequence[Any]) -> Engine:
    module, _, name = engine.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)


def _call(engine: Engine, domain_pddl: str, problem_pddl: str) -> PlannerAnswer:
    try:
        return engine(domain_pddl, problem_pddl)
    except MemoryError:
        return PlannerAnswer(None, "memory")
    except Exception as error:
        return PlannerAnswer(None, f"crash: {_reason(error)}")


def _reason(error: Exception) -> str:
    line = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {line[:300]}" if line else type(error).__name__


if __name__ == "__main__":
    _serve()
