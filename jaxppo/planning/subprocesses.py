"""Processes that are ended with everything they started."""

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session, and all that it started.

    Nothing happens once somebody has waited for the process: its number may belong to another one by then.
    """
    if process.returncode is not None:
        return
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
