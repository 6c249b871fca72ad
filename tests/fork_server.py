"""Processes that begin with JAX and what the commands use imported, which would take each 5 s: forks of one server.

They are what `python WORDS...` is, but for the time: a fresh interpreter state, an environment, a working directory and
devices of their own. What is imported at the fork has computed nothing, so no backend of JAX exists yet.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOADED = [
    "jaxppo.data",
    "jaxppo.evaluate.evaluator",
    "jaxppo.hf",
    "jaxppo.planning",
    "jaxppo.report",
    "jaxppo.report.run_page",
    "jaxppo.reward_functions.plan",
    "jaxppo.rl.learner",
    "jaxppo.run.checkpoints",
    "jaxppo.run.loop",
    "tensorboardX",
    "transformers.tokenization_utils_tokenizers",
]
"""Not the commands themselves: Python warns of a module that is imported already when it is run."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(PRELOADED)


class Process:
    """A Python process, with the part of `subprocess.Popen` that tests use.

    Args:
        words: what stands after `python`: `-m MODULE ...`, `-c CODE ...` or a script.
        environment: all of it.
        merged: whether standard error goes to standard output.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], *, merged: bool = False):
        self._folder = tempfile.TemporaryDirectory(prefix="jaxppo-process-")
        self._out = Path(self._folder.name) / "out"
        self._err = self._out if merged else Path(self._folder.name) / "err"
        for path in (self._out, self._err):
            path.touch()
        arguments = (list(words), dict(environment), os.getcwd(), str(self._out), str(self._err))
        self._process = _CONTEXT.Process(target=_run, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status.

        Raises:
            subprocess.TimeoutExpired: it runs for longer than `timeout` seconds.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return standard output and standard error (empty where merged)."""
        self.wait(timeout)
        out = self._out.read_text(errors="replace")
        return out, "" if self._err == self._out else self._err.read_text(errors="replace")

    def send_signal(self, signum: int) -> None:
        """Send a signal to a process that still runs."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(words: list[str], environment: dict[str, str], folder: str, out: str, err: str) -> None:
    """Be `python WORDS...` in a forked process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    # As a new interpreter would take it from the environment.
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    finally:
        # multiprocessing ends its processes without them.
        atexit._run_exitfuncs()
