"""Results of planners in a file of JSON lines that only grows, so that a build can be taken up again."""

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from jaxppo.errors import ConfigError
from jaxppo.planning.language.plans import Action, format_action, parse_action

_LOG = logging.getLogger(__name__)


class Record(NamedTuple):
    """What came of a planner's work on a problem.

    Attributes:
        plan: its plan, or None.
        reason: why there is none.
        seconds: how long it took.
        timeout_s: how long it might have taken.
    """

    plan: tuple[Action, ...] | None
    reason: str | None
    seconds: float
    timeout_s: float

    def is_final(self, timeout_s: float) -> bool:
        """Return whether asking again, with this time limit, would be in vain; a crash may have a passing reason."""
        # A longer limit may find a plan; an equal or shorter one will not.
        if self.reason == "timeout":
            return self.timeout_s >= timeout_s
        return self.reason is None or not self.reason.startswith(("crash", "memory"))


class PlanCache:
    """A file of records; each is written at once, and damaged lines are left out when read.

    Args:
        path: the file, made at the first record; None: nothing is kept.

    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._records: dict[str, Record] = {}
        try:
            content = path.read_bytes() if path is not None and path.exists() else b""
        except OSError as error:
            raise ConfigError(f"cache: expected a file of results, got {error}") from error
        n_damaged = 0
        for line in content.split(b"\n"):
            if not line.strip():
                continue
            entry = _read(line)
            if entry is None:
                n_damaged += 1
            else:
                key, record = entry
                self._records[key] = record  # the last one counts
        if n_damaged:
            _LOG.warning("%s: %d damaged line(s) are left out", path, n_damaged)
        # A process that was killed while it wrote has left half a line, to which none must be
        # appended.
        self._is_torn = content != b"" and not content.endswith(b"\n")

    def get(self, key: str, timeout_s: float) -> Record | None:
        """Return the record of a key, if it still holds under this time limit."""
        record = self._records.get(key)
        return record if record is not None and record.is_final(timeout_s) else None

    def add(self, key: str, record: Record, **notes: Any) -> None:
        """Put down a record, with notes for human readers."""
        if self._path is None:
            return
        plan = None if record.plan is None else list(map(format_action, record.plan))
        line = json.dumps({"key": key, **notes, **record._asdict(), "plan": plan}).encode() + b"\n"
        # Threads share this file, other processes may have it open too.
        with self._lock:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab", buffering=0)
                line = b"\n" + line if self._is_torn else line
            os.write(self._file.fileno(), line)  # one call: other processes may append, too

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _read(line: bytes) -> tuple[str, Record] | None:
    # Whatever the line holds: an edited or half-written one is left out, and its problem solved
    # again.
    try:
        data = json.loads(line)
        plan = None if data["plan"] is None else tuple(map(parse_action, data["plan"]))
        record = Record(plan, data["reason"], float(data["seconds"]), float(data["timeout_s"]))
        key = data["key"]
    except (ValueError, TypeError, KeyError):
        return None
    # A plan, or the reason why there is none.
    has_right_reason = isinstance(record.reason, str) if plan is None else record.reason is None
    return (key, record) if isinstance(key, str) and has_right_reason else None
