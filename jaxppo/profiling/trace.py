"""A trace of some updates, for Perfetto, and a table of the operations that take most of their time.

`--profile N` writes to `<output_dir>/profile/`: `perfetto_trace.json.gz` (open it at https://ui.perfetto.dev),
`top_ops.txt`, and under `plugins/` what TensorBoard and XProf read.
"""

import gzip
import json
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax

from jaxppo.errors import ConfigError
from jaxppo.profiling.compilation import WARM_UP
from jaxppo.run.console import Console, sanitize

TOP = 10
"""Operations in the table."""

MOST_EVENTS = 1_000_000
"""XLA leaves the rest out of a trace's JSON. Source: xla/tsl/profiler/convert/trace_container.h."""


def check_updates(updates: int, remaining: int) -> None:
    """Raise a `ConfigError` where a run has too few updates left for a profile.

    Args:
        updates: to be traced.
        remaining: updates that this process will carry out.
    """
    limit = max(0, remaining - WARM_UP)
    if updates > limit:
        raise ConfigError(
            f"profile: expected at most {limit} ({remaining} updates are left, and the first {WARM_UP} compile), "
            f"got {updates}"
        )


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
        self._folder = folder / "profile"
        self._console = console
        self._tracing = False

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *exception: object) -> None:
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
        # JAX has a folder for each trace, named by its time.
        written = self._folder.glob("plugins/profile/*/perfetto_trace.json.gz")
        os.replace(max(written, key=lambda path: path.stat().st_mtime), trace)
        updates = f"updates {self._first + 1} to {self._end}"
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
    durations = _durations(trace)
    total_ms = {name: sum(calls) for name, calls in durations.items()}
    sum_ms = sum(total_ms.values()) or 1.0
    rows = [("operation", "calls", "total ms", "share")]
    for name in sorted(total_ms, key=lambda name: (-total_ms[name], name))[:TOP]:
        share = total_ms[name] / sum_ms
        rows.append((name, f"{len(durations[name]):,}", f"{total_ms[name]:,.1f}", f"{share:.1%}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"most expensive of {len(durations)} operations in {updates} (time of all devices or threads together)"
    ]
    for name, *numbers in rows:
        lines.append("  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]))
    if len(trace["traceEvents"]) >= MOST_EVENTS:
        lines.append(
            f"the trace holds its first {MOST_EVENTS:,} events only: profile fewer updates for exact numbers"
        )
    return "".join(f"{line}\n" for line in lines)


def _durations(trace: dict[str, Any]) -> dict[str, list[float]]:
    """Return the milliseconds of every call of each operation, by `program/operation`."""
    durations: dict[str, list[float]] = defaultdict(list)
    for line in _lines(trace):
        # Of events that begin together the longest comes first: it encloses the others.
        line.sort(key=lambda event: (event["ts"], -event["dur"]))
        for event, following in zip(line, [*line[1:], None], strict=True):
            # A loop or a call encloses operations, which have its time.
            encloses = following is not None and (
                following["ts"] < _end(event) and _end(following) <= _end(event)
            )
            if not encloses:
                durations[_name(event)].append(event["dur"] / 1e3)
    return durations


def _end(event: dict[str, Any]) -> float:
    return event["ts"] + event["dur"]


def _lines(trace: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Collect the operations of each line of a device, or of each thread of the host where no device has any.

    A TPU has a line "XLA Ops" beside lines of whole programs; of a GPU every stream is a line.
    """
    events = trace["traceEvents"]
    device_pids: set[int] = set()
    op_lines: set[tuple[int, int]] = set()
    # In Chrome's format, events of phase "M" name processes
    # and threads, and those of phase "X" last a while.
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
    of_devices = [line for (pid, _), line in lines.items() if pid in device_pids]
    return [lines[key] for key in op_lines] or of_devices or list(lines.values())


def _name(event: dict[str, Any]) -> str:
    """Return `program/operation`; the program's name without its fingerprint in brackets."""
    program = re.sub(r"[(].*[)]$", "", event.get("args", {}).get("hlo_module", ""))
    return sanitize(f"{program}/{event['name']}".removeprefix("/"), limit=80)
