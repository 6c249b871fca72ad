"""A trace of some updates, for Perfetto, and a table of the operations that take most of their time.

`--profile N` writes to `<output_dir>/profile/`: `perfetto_trace.json.gz` (open it at https://ui.perfetto.dev),
`top_ops.txt`, and under `plugins/` what TensorBoard and XProf read.
"""

import gzip
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax

from jaxppo.errors import ConfigError
from jaxppo.profiling.compilation import WARM_UP
from jaxppo.run.console import Console, sanitize

PROFILE_FOLDER = "profile"
"""In a run folder."""

TOP = 10
"""Operations in the table."""

MOST_EVENTS = 1_000_000
"""XLA leaves the rest out of a trace's JSON. Source: xla/tsl/profiler/convert/trace_container.h."""


class Op(NamedTuple):
    """All calls of one operation of a compiled program."""

    name: str  # program/operation
    calls: int
    total_ms: float  # without the operations within it, summed over devices or threads
    share: float  # of the time of all operations


def check_updates(wanted: int, left: int) -> None:
    """Raise a `ConfigError` where a run has too few updates left for a profile.

    Args:
        wanted: updates to be traced.
        left: updates that this process will carry out.
    """
    most = max(0, left - WARM_UP)
    if wanted > most:
        updates = f"at most {most} ({left} updates are left, and the first {WARM_UP} compile)"
        raise ConfigError(f"profile: expected {updates}, got {wanted}")


class Profile:
    """Traces updates of a run: those after the first `WARM_UP` of this process.

    A context manager: leaving it ends a trace that is still going on.

    Args:
        updates: how many to trace; 0 for none.
        start: updates done before.
        last: updates of the whole run.
        folder: run folder.
        console: for the table.

    Raises:
        ConfigError: too few updates are left.
    """

    def __init__(self, updates: int, start: int, last: int, folder: Path, console: Console):
        check_updates(updates, last - start)
        self._first = start + WARM_UP
        self._end = self._first + updates
        self._folder, self._console = folder / PROFILE_FOLDER, console
        self._tracing = False

    def __enter__(self) -> "Profile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._tracing:
            jax.profiler.stop_trace()

    def begin(self, step: int) -> None:
        """Update `step` (from 0) begins."""
        if step == self._first < self._end:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # frames of Python would crowd the operations out
            jax.profiler.start_trace(
                self._folder, create_perfetto_trace=True, profiler_options=options
            )
            self._tracing = True

    def end(self, step: int) -> None:
        """Update `step` has ended; after the last one that is traced, write and print what was found."""
        if not self._tracing or step + 1 < self._end:
            return
        jax.profiler.stop_trace()
        self._tracing = False
        trace = self._folder / "perfetto_trace.json.gz"
        written = self._folder.glob("plugins/profile/*/perfetto_trace.json.gz")
        os.replace(max(written, key=lambda path: path.stat().st_mtime), trace)
        first = self._first + 1
        updates = f"update {first}" if first == self._end else f"updates {first} to {self._end}"
        table = table_of(read_trace(trace), updates)
        (self._folder / "top_ops.txt").write_text(table, encoding="utf-8")
        self._console.print(f"{table}trace of {updates} in {trace}, for https://ui.perfetto.dev")


def read_trace(path: Path) -> dict[str, Any]:
    """Read a trace in Chrome's JSON format."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def table_of(trace: dict[str, Any], updates: str) -> str:
    """Write the most expensive operations of a trace, one a line.

    Args:
        trace: in Chrome's JSON format, as JAX writes it.
        updates: what was traced, for the title.
    """
    ops = ops_of(trace)
    rows = [("operation", "calls", "total ms", "share")]
    rows += [
        (op.name, f"{op.calls:,}", f"{op.total_ms:,.1f}", f"{op.share:.1%}") for op in ops[:TOP]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"most expensive of {len(ops)} operations in {updates} (time of all devices or threads together)"
    ]
    for name, *numbers in rows:
        lines.append("  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]))
    if len(trace["traceEvents"]) >= MOST_EVENTS:
        lines.append(
            f"the trace holds its first {MOST_EVENTS:,} events only: profile fewer updates for exact numbers"
        )
    return "".join(f"{line}\n" for line in lines)


def ops_of(trace: dict[str, Any]) -> list[Op]:
    """Return all operations of a trace, the most expensive first.

    Args:
        trace: in Chrome's JSON format, as JAX writes it.
    """
    calls: dict[str, int] = defaultdict(int)
    total_us: dict[str, float] = defaultdict(float)
    for line in _lines(trace):
        for event, self_us in _self_times(line):
            name = _name(event)
            calls[name] += 1
            total_us[name] += self_us
    sum_us = sum(total_us.values()) or 1.0
    order = sorted(total_us, key=lambda name: (-total_us[name], name))
    return [Op(name, calls[name], total_us[name] / 1e3, total_us[name] / sum_us) for name in order]


def _lines(trace: dict[str, Any]) -> Iterable[list[dict[str, Any]]]:
    """Collect the operations of each device's line or host's thread; of devices alone where there are any.

    Beside its other lines a device may have a line "XLA Ops": then that one counts.
    """
    events = trace["traceEvents"]
    # In Chrome's format, events of phase "M" name processes and threads, and those of phase "X"
    # last a while.
    device_pids: set[int] = set()
    op_lines: set[tuple[int, int]] = set()
    for event in events:
        if event.get("ph") != "M":
            continue
        if event["name"] == "process_name" and event["args"]["name"].startswith("/device:"):
            device_pids.add(event["pid"])
        if event["name"] == "thread_name" and event["args"]["name"] == "XLA Ops":
            op_lines.add((event["pid"], event["tid"]))
    lines: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            key = event["pid"], event["tid"]
            if key in op_lines or "hlo_op" in event.get("args", {}):
                lines[key].append(event)
    # The host's threads also show operations while a device runs them: they would be counted twice.
    devices_alone = any(pid in device_pids for pid, _ in lines)
    pids_with_op_line = {pid for pid, _ in op_lines}
    for (pid, tid), line in lines.items():
        if devices_alone and pid not in device_pids:
            continue
        if (pid, tid) in op_lines or pid not in pids_with_op_line:
            yield line


def _self_times(line: list[dict[str, Any]]) -> Iterable[tuple[dict[str, Any], float]]:
    """Yield each event of a line with its microseconds, less those of the events directly within it."""
    # Of events that begin together the longest comes first: it encloses the others.
    line = sorted(line, key=lambda event: (event["ts"], -event["dur"]))
    self_us = [event["dur"] for event in line]
    # Numbers of the events that enclose the present one, the innermost last
    open_events: list[int] = []
    for number, event in enumerate(line):
        while (
            open_events
            and line[open_events[-1]]["ts"] + line[open_events[-1]]["dur"] <= event["ts"]
        ):
            open_events.pop()
        if open_events:
            self_us[open_events[-1]] -= event["dur"]
        open_events.append(number)
    return zip(line, self_us, strict=True)


def _name(event: dict[str, Any]) -> str:
    """Return `program/operation`; the program's name without its fingerprint in brackets."""
    name = event["name"]
    program = event.get("args", {}).get("hlo_module", "")
    if program:
        name = f"{re.sub(r'[(].*[)]$', '', program)}/{name}"
    return sanitize(name, limit=80)
