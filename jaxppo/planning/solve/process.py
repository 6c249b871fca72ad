"""A planner in a separate process, which is killed, with all that it started, when it takes too long.

The process is started afresh and not forked, for JAX has threads. Requests and answers are lines of JSON on its
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
from typing import Any, NamedTuple

from jaxppo.errors import ConfigError
from jaxppo.planning.solve.engines import Answer, Engine
from jaxppo.planning.subprocesses import kill_group

if sys.platform == "linux":
    import resource

_START_S = 120.0
"""Seconds for a process to start and import its planner."""
_END_S = 2.0
"""Seconds for a process that has no more to say to end."""
_MIB = 1 << 20


class TimedAnswer(NamedTuple):
    """An answer and the seconds that the planner took."""

    answer: Answer
    seconds: float


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
        self._folder = tempfile.TemporaryDirectory(prefix="jaxppo-planner-", ignore_cleanup_errors=True)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 # it lives as long as the process
        self._killed = False
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jaxppo.planning.solve.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            cwd=self._folder.name,
            env=_environment(self._folder.name),
            text=True,
            encoding="utf-8",
            start_new_session=True,  # what it starts is killed with it
        )
        self.is_alive = True
        setup = {"engine": engine, "arguments": arguments, "memory_mib": memory_mib, "folder": self._folder.name}
        ready = self._exchange(setup, _START_S)
        if "ready" not in ready:
            reason = ready.get("reason") or f"no answer within {_START_S:g} s"
            self.close()
            raise ConfigError(f"planner: expected a process that makes {engine}, got {reason}")

    def ask(self, domain_pddl: str, problem_pddl: str, timeout_s: float) -> TimedAnswer:
        """Have a problem solved; the process is gone afterwards where it took too long or died."""
        began = time.monotonic()
        reply = self._exchange({"domain": domain_pddl, "problem": problem_pddl}, timeout_s)
        plan, reason = reply.get("plan"), reply.get("reason")
        if self._killed and plan is None:
            reason = "timeout"
        answer = Answer(None if plan is None else tuple(map(tuple, plan)), reason)
        return TimedAnswer(answer, reply.get("seconds", time.monotonic() - began))

    def _exchange(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a line and wait for one; what comes instead of it is a reason."""
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
            return {"reason": self._how_it_ended()}
        finally:
            killer.cancel()
            killer.join()
            self.is_alive = self.is_alive and not self._killed

    def _how_it_ended(self) -> str:
        _let_end(self._process.pid)
        with self._lock:
            kill_group(self._process)  # its children
            code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"status {code}"
        self._words.seek(max(0, os.fstat(self._words.fileno()).st_size - 4096))
        words = self._words.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(words) if line.strip()), "")
        return f"crash: the planner's process ended with {how}" + (f" ({last[:200]})" if last else "")

    def kill(self) -> None:
        """End the process and all that it started, now; any thread may do it."""
        with self._lock:
            self._killed = True
            kill_group(self._process)

    def close(self) -> None:
        """End the process and clean up behind it."""
        self.kill()
        self.is_alive = False
        with contextlib.suppress(OSError):
            self._process.communicate()
        self._words.close()
        self._folder.cleanup()


def _environment(folder: str) -> dict[str, str]:
    """Let the caller's modules be found, planners walk over sets in one order, and files end up in the folder."""
    paths = os.pathsep.join(dict.fromkeys(map(os.path.abspath, sys.path)))
    folders = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder)
    return {**os.environ, **folders, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8"}


def _let_end(pid: int) -> None:
    """Give a process that has closed its output a moment to end by itself; its number stays taken."""
    deadline = time.monotonic() + _END_S
    while hasattr(os, "waitid") and time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return
        time.sleep(0.01)


# ---------------------------------------------------------------------------------------------------- in the process


def _serve() -> None:
    requests = _Requests()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        _redirect(os.devnull, 1)  # answers only, whatever a planner prints

        def send(**reply: Any) -> None:
            print(json.dumps(reply), file=out, flush=True)

        first = requests.next()
        requests.folder = first["folder"]
        _limit_memory(first["memory_mib"])
        try:
            engine = _make(first["engine"], first["arguments"])
        except Exception as error:
            send(reason=_reason(error))
            return
        send(ready=True)
        while True:
            request = requests.next()
            began = time.monotonic()
            answer = _call(engine, request["domain"], request["problem"])
            send(plan=answer.plan, reason=answer.reason, seconds=round(time.monotonic() - began, 3))


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
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any]:
        return json.loads(self._waiting.get())

    def _read(self) -> None:
        for line in self._input:
            self._waiting.put(line)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)  # the planner's children, too: nobody waits for them any more
        os._exit(1)


def _redirect(path: str, descriptor: int) -> None:
    opened = os.open(path, os.O_RDWR)
    os.dup2(opened, descriptor)
    os.close(opened)


def _limit_memory(memory_mib: int | None) -> None:
    if memory_mib is not None and sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = memory_mib * _MIB if most == resource.RLIM_INFINITY else min(memory_mib * _MIB, most)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


def _make(engine: str, arguments: Sequence[Any]) -> Engine:
    module, _, name = engine.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)


def _call(engine: Engine, domain_pddl: str, problem_pddl: str) -> Answer:
    try:
        return engine(domain_pddl, problem_pddl)
    except MemoryError:
        return Answer(None, "memory")
    except Exception as error:
        return Answer(None, f"crash: {_reason(error)}")


def _reason(error: Exception) -> str:
    words = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__


if __name__ == "__main__":
    _serve()
