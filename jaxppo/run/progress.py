"""The progress of a loop: its updates, the time left, and its numbers with their history."""

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.table import Table

from jaxppo.run.activity import Activity

if TYPE_CHECKING:
    from jaxppo.run.console import Console

LINES_PER_LOOP = 20
"""About so many lines a loop prints where the output is no terminal."""

Hint = Callable[[str, Sequence[float | None]], str | None]
"""(label of a number, its values so far) -> what to do about the latest one; "" where it is healthy, None where that is
unknown."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_HISTORY_WIDTH = 24


def format_value(value: Any) -> str:
    """Return the text of a value: floats with three digits, None as nothing."""
    if value is None:
        return ""
    if hasattr(value, "item"):  # of numpy or jax
        value = value.item()
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def format_time(seconds: float) -> str:
    """Return minutes and seconds, `m:ss`, from an hour on `h:mm:ss`."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw some numbers as one line of blocks, from the lowest to the highest of them.

    Args:
        values: None or a number that is not finite leaves a gap.
        width: number of characters at most; with more values each character shows the mean of a few.
    """
    count = min(width, len(values))
    # With more values than characters, groups of nearly equal size.
    edges = [round(i * len(values) / count) for i in range(count + 1)] if count else []
    means = [_mean(values[start:end]) for start, end in itertools.pairwise(edges)]
    finite = [mean for mean in means if mean is not None]
    low = min(finite, default=0.0)
    span = max(finite, default=0.0) - low
    line = ""
    for mean in means:
        if mean is None:
            line += " "
            continue
        height = (mean - low) / span if span else 0.5
        line += _BLOCKS[min(int(height * len(_BLOCKS)), len(_BLOCKS) - 1)]
    return line


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(finite) if finite else None


class Progress(Activity):
    """The updates of a loop: part of the display of a terminal, and lines elsewhere.

    Args:
        console: where it is shown.
        title: what is being done, such as "PPO".
        total: updates of the loop, those done before included.
        start: updates done before.
        unit: what is counted, in the singular.
        header: the run in one line.
        hint: what to do about a number.
    """

    def __init__(
        self,
        console: "Console",
        title: str,
        total: int,
        start: int,
        unit: str,
        header: str,
        hint: Hint | None,
    ):
        super().__init__(title, total, f"{unit}s")
        self.done = start
        self.header = header
        self._console = console
        self._unit = unit
        self._hint = hint
        # (updates done, seconds) of the start, of the first update and of the latest.
        self._marks = [(start, 0.0)]
        self._latest: dict[str, Any] = {}
        self._histories: dict[str, list[float | None]] = {}
        self._last_slot: int | None = None  # the part of the loop that has its line

    @property
    def left_s(self) -> float | None:
        """Return the seconds left at the speed of all updates but the first, which compiles."""
        if len(self._marks) == 1:
            return None
        (from_step, from_s), (step, step_s) = self._marks[-2:]
        at_update_s = (step_s - from_s) / max(step - from_step, 1) * ((self.total or 0) - step)
        # Counts down between updates, which may be minutes apart.
        return max(0.0, at_update_s - (self.elapsed_s - step_s))

    def update(self, step: int, **fields: Any) -> None:
        """Say that `step` updates are done, and show their numbers; off a terminal, if it is time for a line."""
        self.done = step
        self._marks = [*self._marks[:2], (step, self.elapsed_s)]
        for label, value in fields.items():
            if not isinstance(value, str):
                history = self._histories.setdefault(label, [])
                history.append(None if value is None else float(value))
        self._latest = fields
        if self._console.is_terminal:
            return
        total = self.total or 0
        slot = step * LINES_PER_LOOP // max(total, 1)
        if slot == self._last_slot and step < total:
            return
        self._last_slot = slot
        line = f"{self.title}  {self._unit} {step} of {total}"
        for name, value in fields.items():
            line += f"  {name} {format_value(value)}"
        self._console.print(f"{line}  {format_time(self.left_s or 0.0)} left")

    def numbers(self) -> Table:
        """Return the latest numbers, each with its history and what to do about it."""
        table = Table.grid(padding=(0, 2))
        for label, value in self._latest.items():
            history = self._histories.get(label, [])
            hint = None if self._hint is None else self._hint(label, history)
            style = "yellow" if hint else "green"
            table.add_row(
                self._console.text(label),
                self._console.text(format_value(value), "bold"),
                self._console.text(sparkline(history, _HISTORY_WIDTH), "cyan"),
                self._console.text("ok" if hint == "" else hint or "", style),
            )
        return table
