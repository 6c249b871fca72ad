"""Results of planners in a file of JSON lines that only grows, so that a build can be taken up again."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.planning.language.plans import Action, format_action, parse_action


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
    """A file of records, each of which is written at once.

    Args:
        path: the file, made at the first record; None: nothing is kept.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._records: dict[str, Record] = {}
        self._separator = ""  # ends half a line that the file may end with
        if path is None or not path.exists():
            return
        lines = path.read_bytes().split(b"\n")
        if lines[-1]:
            self._separator = "\n"
        for line in lines:
            # A process that was killed while it wrote has
            # left half a line: that problem is solved again.
            try:
                entry = json.loads(line)
                actions = entry["plan"]
                plan = None if actions is None else tuple(map(parse_action, actions))
                values = (entry["reason"], entry["seconds"], entry["timeout_s"])
                self._records[entry["key"]] = Record(plan, *values)  # the last one counts
            except (ValueError, TypeError, KeyError):
                continue

    def get(self, key: str, timeout_s: float) -> Record | None:
        """Return the record of a key, if it still holds under this time limit."""
        record = self._records.get(key)
        return record if record is not None and record.is_final(timeout_s) else None

    def add(self, key: str, record: Record, **notes: Any) -> None:
        """Put down a record, with notes for human readers."""
        if self._path is None:
            return
        plan = None if record.plan is None else list(map(format_action, record.plan))
        line = json.dumps({"key": key, **notes, **record._asdict(), "plan": plan})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            # One call: other processes may append, too.
            file.write(f"{self._separator}{line}\n".encode())
        self._separator = ""
