"""Show a loop live on a terminal: progress, numbers with their history, warnings and samples."""

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"
MAX_WARNINGS = 3
WARNING_LINES = 3
"""Lines that a warning may take in the view."""
TEXT_LINES = 2
"""Lines that a text of a sample may take in the view."""
MAX_CHARACTERS = 1000
"""Characters of a text that are looked at: more than `TEXT_LINES` of any terminal hold."""


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


def sparkline(values: Sequence[float | None], width: int, blocks: str = BLOCKS) -> str:
    """Draw some numbers as one line of blocks, from the lowest to the highest of them.

    Args:
        values: None or a number that is not finite leaves a gap.
        width: number of characters at most; with more values each character shows the mean of a few.
        blocks: characters by height.
    """
    count = min(width, len(values))
    if count <= 0:
        return ""
    # With more values than characters, groups of nearly equal size.
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [_mean(values[start:end]) for start, end in itertools.pairwise(edges)]
    finite = [mean for mean in means if mean is not None]
    # Halves, as the difference of two floats may be more than the largest float.
    low = min(finite, default=0.0) / 2
    high = max(finite, default=0.0) / 2
    line = ""
    for mean in means:
        if mean is None:
            line += " "
            continue
        height = (mean / 2 - low) / (high - low) if high > low else 0.5
        line += blocks[min(int(height * len(blocks)), len(blocks) - 1)]
    return line


def _mean(values: Iterable[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    # Divided first: the sum of a few large floats may be more than the largest float.
    return sum(value / len(finite) for value in finite) if finite else None


class Pace:
    """Estimate the time left of a loop, from all updates but the first one, which compiles.

    Args:
        total: updates of the loop.
        start: updates done before.
    """

    def __init__(self, total: int, start: int):
        self._total = total
        # (updates done, time) of the start, of the first update and of the latest.
        self._marks = [(start, time.monotonic())]

    def update(self, step: int) -> None:
        """Record that `step` updates are done."""
        self._marks = [*self._marks[:2], (step, time.monotonic())]

    @property
    def left_s(self) -> float:
        """Return the seconds from the latest update to the end of the loop."""
        (from_step, from_time), (step, step_time) = self._marks[-2:]
        return (step_time - from_time) / max(step - from_step, 1) * (self._total - step)

    def describe(self) -> str:
        """Return the time since the start, and the time left at this moment."""
        time_now = time.monotonic()
        _, start_time = self._marks[0]
        elapsed = f"{format_time(time_now - start_time)} elapsed"
        if len(self._marks) == 1:
            return elapsed
        # Counts down between updates, which may be minutes apart.
        _, latest_time = self._marks[-1]
        left_s = max(0.0, self.left_s - (time_now - latest_time))
        return f"{elapsed}, {format_time(left_s)} left"


class Loop(NamedTuple):
    """What a view shows about its loop.

    Attributes:
        total: updates of the loop, those done before included.
        title: what is being done, such as "PPO".
        start: updates done before.
        unit: what is counted.
        header: the run in one line.
        stages: names of the stages of the run, `title` among them; may be empty.
        hint: (label of a field, its values so far) -> what to do about the latest value; "" where it is healthy, None
            where that is unknown.
    """

    total: int
    title: str
    start: int = 0
    unit: str = "update"
    header: str = ""
    stages: Sequence[str] = ()
    hint: Callable[[str, Sequence[Any]], str | None] | None = None


class LiveView:
    """A renderable that fits the terminal: what does not fit is cut from below, samples first.

    Args:
        loop: what is shown.
        text: (text, style) -> lines that are safe to show.
        ascii_only: the terminal shows ASCII only.
        notice: returns a message of this moment, such as that the run is being stopped; or None.
        going_on: returns the work that takes long at this moment; "" where there is none.
    """

    def __init__(
        self,
        loop: Loop,
        text: Callable[[str, str], Text],
        ascii_only: bool,
        notice: Callable[[], str | None],
        going_on: Callable[[], str] = lambda: "",
    ):
        self._loop = loop
        self._text = text
        self._notice = notice
        self._going_on = going_on
        self._blocks = ASCII_BLOCKS if ascii_only else BLOCKS
        self._step = loop.start
        self._doing = ""
        self._pace = Pace(loop.total, loop.start)
        self._latest: dict[str, Any] = {}
        self._histories: dict[str, list[float | None]] = {}
        self._warnings: deque[str] = deque(maxlen=MAX_WARNINGS)
        # Title and rows in one tuple: a thread of rich may draw between two assignments.
        self._samples: tuple[str, Sequence[Mapping[str, Any]]] = ("", ())

    # --- called by the loop, in the main thread

    def recall(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Begin the histories with the fields of earlier updates."""
        for fields in records:
            self._record(fields)

    def update(self, step: int, **fields: Any) -> None:
        """Show that `step` updates are done, and their numbers."""
        self._record(fields)
        self._pace.update(step)
        self._step = step
        self._doing = ""

    def doing(self, title: str) -> None:
        """Show what keeps the loop busy, until the next update."""
        self._doing = title

    def samples(
        self, title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
    ) -> None:
        """Show these samples: the first two columns are texts, the others verdicts and scores."""
        shown_rows = []
        for row in rows:
            shown_rows.append({name: row.get(name) for name in columns})
        self._samples = (title, shown_rows)

    def warn(self, text: str) -> None:
        """Keep a warning in view."""
        self._warnings.append(text)

    def _record(self, fields: Mapping[str, Any]) -> None:
        for label, value in fields.items():
            history = self._histories.setdefault(label, [])
            if value is None:  # a gap
                history.append(None)
            elif _is_number(value):
                history.append(float(value))
        self._latest = dict(fields)

    # --- called by a thread of rich

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = max(1, console.size.height - 1)
        # rich draws a view with the options of what is printed above it: use fixed ones.
        fixed = options.update(height=None, no_wrap=False, overflow="fold", justify="left")
        lines: list[list[Segment]] = []
        # The most important parts come first: what the terminal has no room for is cut at the end.
        for part, max_lines in self._parts(options.max_width):
            lines += console.render_lines(part, fixed, pad=False)[:max_lines]
        for line in lines[:height]:
            yield from line
            yield Segment.line()

    def _parts(self, width: int) -> Iterable[tuple[RenderableType, int | None]]:
        """Yield everything in order of importance, with the number of lines that it may take at most."""
        loop = self._loop
        if loop.header:
            yield self._text(loop.header, "bold"), 2
        if loop.stages:
            yield self._stages(), 1
        yield self._bar(width), 2
        if (notice := self._notice()) is not None:
            yield self._text(notice, "bold yellow"), 2
        if self._latest:
            yield self._numbers(width), None
        for warning in tuple(self._warnings):
            yield self._text(f"! {warning}", "yellow"), WARNING_LINES
        title, rows = self._samples
        if rows:
            yield self._text(title, "bold"), 1
        for row in rows:
            verdict, *texts = self._sample(row)
            yield verdict, TEXT_LINES
            for text in texts:
                yield Padding.indent(text, 2), TEXT_LINES

    def _stages(self) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for number, stage in enumerate(self._loop.stages):
            if number > 0:
                line.append(" > ", "dim")
            style = "bold cyan" if stage == self._loop.title else "dim"
            line.append_text(self._text(stage, style))
        return line

    def _bar(self, width: int) -> Table:
        loop = self._loop
        line = f"{loop.unit} {self._step} of {loop.total}, {self._pace.describe()}"
        if not loop.stages:  # else the title is one of them
            line = f"{loop.title}  {line}"
        doing = ": ".join(filter(None, (self._doing, self._going_on())))
        if doing:
            line += f", {doing}"
        bar = ProgressBar(max(loop.total, 1), self._step, width=max(1, min(30, width // 4)))
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, self._text(line, ""))
        return row

    def _numbers(self, width: int) -> Table:
        table = Table.grid(padding=(0, 2))
        line_width = max(1, min(40, width // 4))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, width=line_width)
        table.add_column()
        for label, value in self._latest.items():
            history = self._histories.get(label, [])
            table.add_row(
                self._text(label, ""),
                self._text(format_value(value), "bold"),
                Text(sparkline(history, line_width, self._blocks), "cyan"),
                self._hint(label, history),
            )
        return table

    def _hint(self, label: str, history: Sequence[float | None]) -> Text:
        if self._loop.hint is None:
            return Text()
        hint = self._loop.hint(label, history)
        if hint is None:
            return Text()
        if hint == "":
            return Text("ok", "green")
        return self._text(hint, "yellow")

    def _sample(self, row: Mapping[str, Any]) -> list[Text]:
        """Return the verdict and scores of a sample in a line, then its two texts."""
        prompt, completion, *scores = row
        results = [f"{name} {format_value(row[name])}" for name in scores if row[name] is not None]
        lines = [self._text("  ".join(results), "cyan")]
        for name, style in ((prompt, "dim"), (completion, "")):
            text = format_value(row[name])[:MAX_CHARACTERS].replace("\n", "\\n")
            lines.append(self._text(f"{name}: {text}", style))
        return lines


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (
        hasattr(value, "item") and getattr(value, "ndim", 1) == 0
    )
