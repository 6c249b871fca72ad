"""Start commands with a number of devices of their own, and read what must be equal in equal runs."""

import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jaxppo.run import cli
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.metrics import MAY_DIFFER
from tests import ROOT
from tests.fork_server import Process


def environment(num_devices: int = 1) -> dict[str, str]:
    """That of the tests, with another number of devices."""
    count = "--xla_force_host_platform_device_count="
    flags = re.sub(rf"{count}\d+", f"{count}{num_devices}", os.environ["XLA_FLAGS"])
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": paths}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(*words: object, num_devices: int = 1, merged: bool = False) -> Process:
    """Start `python WORDS...`.

    Args:
        words: `-m MODULE ...`, `-c CODE ...` or a script and its arguments.
        num_devices: of the process.
        merged: whether standard error goes to standard output.
    """
    return Process(list(map(str, words)), environment(num_devices), merged=merged)


@contextmanager
def started(commands: Sequence[Sequence[object]], num_devices: int) -> Iterator[list[Process]]:
    """Python commands that run side by side; what is left of them at the end of the block is killed."""
    processes = [start(*command, num_devices=num_devices, merged=True) for command in commands]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def outputs_of(processes: Sequence[Process], timeout_s: float = 900) -> list[str]:
    """What they print, waiting for their ends."""
    return [process.communicate(timeout=timeout_s)[0] for process in processes]


def start_command(name: str, *args: object) -> Process:
    """Start `python -m jaxppo.<name>` on one device; standard output and standard error apart."""
    return start("-m", f"jaxppo.{name}", *args)


def run_command(name: str, *args: object, timeout_s: float = 600) -> tuple[int, str, str]:
    """Run `python -m jaxppo.<name>` on one device: status, standard output, standard error."""
    return _finished(start_command(name, *args), timeout_s)


def run_code(code: str, *args: object, num_devices: int = 1, timeout_s: float = 600) -> tuple[int, str, str]:
    """Run `python -c CODE ...`: status, standard output, standard error."""
    return _finished(start("-c", code, *args, num_devices=num_devices), timeout_s)


def _finished(process: Process, timeout_s: float) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()  # where it has run out of time
    return process.wait(), out, err


def refusal_of(command: Callable[[], object], capture: pytest.CaptureFixture[str]) -> str:
    """Carry out a command in this process, which saves the imports; return the one line with which it refuses.

    Args:
        command: what `python -m jaxppo.<name>` would carry out.
        capture: pytest's `capsys` or `capfd`.
    """
    capture.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(command)
    return one_line(stop.value.code, capture.readouterr().err)


def one_line(status: object, err: str) -> str:
    """The line with which a command refused: status 2 and nothing else on standard error."""
    assert status == 2, err
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n"), err
    return err


def snapshot(folder: Path) -> dict[Path, int]:
    """The files of a folder and when each was written."""
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def comparable(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, an update each, without times and what else may differ between equal runs."""
    return [
        {name: value for name, value in record.items() if not name.startswith(MAY_DIFFER)}
        for record in read_metrics(folder / "metrics.jsonl")
    ]
