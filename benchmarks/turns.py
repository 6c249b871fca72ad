"""Contestants that take turns: each is a process of its own which does its work once whenever it is told to.

A contestant prints READY and the time, then for every line on its standard input does the work once and prints TURN and
a JSON object with `seconds` and `maxrss_mib`, its peak memory so far. Turn by turn all see the same machine, so
that the ratio of two of them means something on a noisy one.
"""

import contextlib
import ctypes
import itertools
import json
import os
import re
import resource
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

Turns = dict[str, list[dict[str, Any]]]
"""Per contestant what it said of every turn that counts."""


class ContestantFailed(RuntimeError):
    """A contestant ended before its work was done."""


class OutOfTime(RuntimeError):
    """The deadline came before a contestant had done its work."""


class Clock:
    """The contestant's side of a turn: waits until it is told to begin, and reports when its work is done."""

    def ready(self) -> None:
        """Say so, and wait for the first turn; ends the process where there is none."""
        print(f"READY {time.time()}", flush=True)
        self._wait()

    def done(self, **figures: Any) -> None:
        """Report the turn and `figures` of it, and wait for the next; ends the process where there is none."""
        seconds = time.perf_counter() - self._began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        report = {"seconds": seconds, "maxrss_mib": peak} | figures
        print("TURN " + json.dumps(report), flush=True)
        self._wait()

    def _wait(self) -> None:
        if not sys.stdin.readline():
            sys.exit()
        self._began = time.perf_counter()


def serve(work: Callable[[int], None]) -> NoReturn:
    """A contestant that is a plain function: `work(turn)` for every turn."""
    clock = Clock()
    clock.ready()
    for turn in itertools.count():
        work(turn)
        clock.done()
    raise AssertionError("not reached")


def _end_with_driver() -> None:
    """Runs in a new process: Linux is to end it with the driver, even with one that is killed."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Contestant:
    """The driver's side of one process.

    Deadlines are in the seconds of `time.monotonic`; None: as long as it takes.

    Args:
        name: for messages.
        command: the process.
        log: file for its standard error, whose last error is the reason of a failure; None: where the driver's goes.
        folder: for its temporary files: a contestant is killed, and does not remove them.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path | None = None,
        folder: Path | None = None,
    ):
        self.name = name
        self.start_s: float | None = None  # from its start until it was ready
        self._log = log
        self._unread = b""
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if folder is not None:
            environment["TMPDIR"] = str(folder)
        pipe = subprocess.PIPE
        self._started_at = time.time()
        with contextlib.nullcontext() if log is None else log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=stderr,
                bufsize=0,
                env=environment,
                preexec_fn=_end_with_driver,
            )

    def _read(self, word: str, deadline: float | None) -> str:
        while (line := self._next_line(deadline)) is not None:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise ContestantFailed(self._last_words(word))

    def _next_line(self, deadline: float | None) -> str | None:
        """The next line of its output; None at the end."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
            can_read, _, _ = select.select([output], [], [], seconds)
            if not can_read:
                raise OutOfTime(f"{self.name} was not done in time")
            data = os.read(output, 65536)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _last_words(self, word: str) -> str:
        """One line that says how it ended."""
        # Its output has ended, so the process is about to, unless it hangs
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        message = f"{self.name} ended with status {self._process.poll()} before it said {word}"
        if self._log is None:
            return message
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        # Warnings can follow the error
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
        said = errors or [line for line in lines if line.strip()]
        return f"{said[-1][:300]} ({message})" if said else message

    def wait_until_ready(self, deadline: float | None = None) -> None:
        """Until its models are loaded."""
        self.start_s = float(self._read("READY", deadline)) - self._started_at

    def turn(self, deadline: float | None = None) -> dict[str, Any]:
        """Its work, once."""
        assert self._process.stdin is not None
        # One that has ended since its last turn says so at the end of its output
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"go\n")
        return json.loads(self._read("TURN", deadline))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def take_turns(commands: dict[str, Sequence[str]], turns: int, warm_up: int) -> Turns:
    """Run the contestants of these names and commands; the first `warm_up` turns, which compile, do not count."""
    contestants = [Contestant(name, command) for name, command in commands.items()]
    results: Turns = {name: [] for name in commands}
    try:
        for contestant in contestants:
            contestant.wait_until_ready()
        for turn in range(warm_up + turns):
            for contestant in contestants:
                result = contestant.turn()
                if turn >= warm_up:
                    results[contestant.name].append(result)
                print(
                    f"turn {turn} {contestant.name} {result['seconds']:.3f} s",
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        for contestant in contestants:
            contestant.close()
    return results


def compare(results: Turns, ours: str) -> dict[str, object]:
    """Medians and peaks of all, and every other contestant's time over ours: the median, least and largest by turn."""
    found: dict[str, object] = {}
    own = [turn["seconds"] for turn in results[ours]]
    for name, turns in results.items():
        seconds = [turn["seconds"] for turn in turns]
        found |= {
            f"{name}_s": round(statistics.median(seconds), 4),
            f"{name}_maxrss_mib": int(max(turn["maxrss_mib"] for turn in turns)),
        }
        if name != ours:
            ratios = [other / mine for other, mine in zip(seconds, own, strict=True)]
            found |= {
                f"{name}_over_{ours}": round(statistics.median(ratios), 3),
                f"{name}_over_{ours}_range": [round(min(ratios), 3), round(max(ratios), 3)],
            }
    return found
