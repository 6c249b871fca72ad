"""Start Python so that it finds the caller's modules, and end a process together with all that it started."""

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any


def python_environment() -> dict[str, str]:
    """Return the environment in which a new Python finds the modules that this one finds."""
    paths = dict.fromkeys(map(os.path.abspath, sys.path))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


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
