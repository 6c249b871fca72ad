"""Processes that answer over a connection: started, waited for, and ended together with all that they started."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

# `multiprocessing` itself is imported by the functions
# that need it, as `import jaxppo.planning` is instant.
if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class Asked(Protocol):
    """A process that was asked something, with the time by which it has to answer, by `time.monotonic`."""

    connection: "Connection"
    deadline: float


AskedT = TypeVar("AskedT", bound=Asked)


def python_environment() -> dict[str, str]:
    """Return the environment in which a new Python finds the modules that this one finds."""
    paths = dict.fromkeys(map(os.path.abspath, sys.path))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def start_module(
    module: str, *arguments: str, **options: Any
) -> "tuple[subprocess.Popen[Any], Connection]":
    """Start `python -m module ARGUMENT ... HANDLE` in a session of its own; return it and the connection to it.

    In the process, `connection_of(HANDLE)` is the other end. The end of the process is the end of the connection.

    Args:
        module: its name.
        arguments: of its command line, before the handle.
        options: of `subprocess.Popen`.
    """
    from multiprocessing.connection import Pipe

    connection, child_connection = Pipe()
    handle = child_connection.fileno()
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments, str(handle)],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # what it starts is killed with it
        close_fds=sys.platform != "win32",
        pass_fds=() if sys.platform == "win32" else (handle,),
        **options,
    )
    child_connection.close()
    return process, connection


def connection_of(handle: str) -> "Connection":
    """Return the connection to the process that has started this one by `start_module`."""
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection as Connection
    else:
        from multiprocessing.connection import Connection
    return Connection(int(handle))


def wait_for_any(processes: Sequence[AskedT]) -> list[AskedT]:
    """Wait for the first process that has answered, ended or run out of time; return all such processes."""
    from multiprocessing.connection import wait

    timeout_s = min(process.deadline for process in processes) - time.monotonic()
    answered = wait([process.connection for process in processes], max(0.0, timeout_s))
    return [
        process
        for process in processes
        if process.connection in answered or process.deadline <= time.monotonic()
    ]


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session, and all that it started.

    Nothing happens once somebody has waited for the process.
    """
    # The system may have given its number to another process by then.
    if process.returncode is not None:
        return
    if sys.platform == "win32":
        process.kill()
    else:
        # The group has ended already; macOS reports that as a missing permission.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
