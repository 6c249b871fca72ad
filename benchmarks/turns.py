"""Contestants that take turns: each is a process of its own which does its work once whenever it is told to.

A contestant prints READY, then for every line on its standard input does the work once and prints TURN and a JSON
object with `seconds` and `maxrss_mib`, its peak memory so far. Turn by turn all see the same machine, so
that the ratio of two of them means something on a noisy one.
"""

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

Turns = dict[str, list[dict[str, float]]]
"""Per contestant what it said of every turn that counts."""


class Clock:
    """The contestant's side of a turn: waits until it is told to begin, and reports when its work is done."""

    def ready(self) -> None:
        """Say so, and wait for the first turn; ends the process where there is none."""
        print("READY", flush=True)
        self._wait()

    def done(self) -> None:
        """Report the turn, and wait for the next; ends the process where there is none."""
        seconds = time.perf_counter() - self._began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print("TURN " + json.dumps({"seconds": seconds, "maxrss_mib": peak}), flush=True)
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


class Contestant:
    """The driver's side of one process."""

    def __init__(self, name: str, command: Sequence[str]):
        self.name = name
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def _read(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise SystemExit(
            f"{self.name} ended with status {self._process.wait()} before it said {word}"
        )

    def wait_until_ready(self) -> None:
        """Until its models are loaded."""
        self._read("READY")

    def turn(self) -> dict[str, float]:
        """Its work, once."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return json.loads(self._read("TURN"))

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
