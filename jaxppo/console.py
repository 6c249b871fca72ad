"""What a run shows on the terminal.

Model text is hostile to viewers: it passes through `sanitize` before a terminal sees it, and is never read as markup.
"""

import os
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

import rich.console
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 120  # columns of a table when the output is a file or a pipe
PLAIN_LINES_PER_BAR = 20  # a progress bar that is not on a terminal prints about this many lines

# Control, format (bidi overrides and isolates, zero-width characters), surrogate, private and unassigned characters,
# and the two line separators.
_HOSTILE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def sanitize(text: str, limit: int | None = 2000) -> str:
    r"""Makes text safe to show on one line: whatever could steer or deceive a viewer becomes a visible escape.

    Control characters (ANSI escapes, newlines and tabs among them), bidi and zero-width characters, lone surrogates,
    private and unassigned code points are shown as `\n`, `\x1b`, `\u202e`, `\U000e0041`. For display only: a
    backslash stays as it is, so the result cannot be turned back.

    Args:
        text: any string, for instance what a model wrote.
        limit: most characters to show; what is cut is counted at the end (`… [+12 characters]`). None shows all.

    Returns:
        Printable text without a newline.
    """
    shown, length = [], 0
    for index, char in enumerate(text):
        visible = char
        if unicodedata.category(char) in _HOSTILE_CATEGORIES:
            visible = char.encode("unicode_escape", "surrogatepass").decode("ascii")
        length += len(visible)
        if limit is not None and length > limit:
            shown.append(f"… [+{len(text) - index} characters]")
            break
        shown.append(visible)
    return "".join(shown)


def _format(value: Any) -> str:
    """Shows a field: floats with three digits, None as nothing, everything else as its text."""
    if value is None:
        return ""
    if hasattr(value, "item"):
        value = value.item()
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------------------------ terminal


class ProgressView(Protocol):
    """What `Console.progress` hands to the loop."""

    def update(self, step: int, **fields: Any) -> None:
        """Says that `step` updates are done; `fields` are shown as `name value`."""
        ...


class Console:
    """The view of a run: live on a terminal, plain lines without control codes anywhere else.

    Text is taken literally: no rich markup, no control codes, and characters that the output cannot encode are escaped.

    Args:
        quiet: show results and warnings only.
        file: where to write; None is standard output.
    """

    def __init__(self, quiet: bool = False, file: TextIO | None = None):
        self.quiet = quiet
        stream = sys.stdout if file is None else file
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._rich = rich.console.Console(
            file=stream, force_terminal=terminal, width=None if terminal else PLAIN_WIDTH, highlight=False, markup=False
        )

    def stage(self, title: str) -> None:
        """Announces a stage of the run."""
        self._show(self.text(f"== {sanitize(title)} ==", style="bold cyan"))

    def print(self, text: str = "") -> None:
        """Prints text; its newlines are kept, everything else goes through `sanitize`."""
        self._show(self.text(text))

    def result(self, text: str) -> None:
        """Prints text also when quiet."""
        self._rich.print(self.text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Prints a warning, also when quiet."""
        self._rich.print(self.text(f"warning: {text}", style="yellow"), soft_wrap=True)

    def text(self, text: str, style: str = "") -> Text:
        """Makes a rich text that shows these very characters, line by line, within the output's encoding."""
        lines = "\n".join(sanitize(line, limit=None) for line in text.split("\n"))
        return Text(lines.encode(self._encoding, "backslashreplace").decode(self._encoding), style=style)

    def sample_table(self, title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Prints a table of samples, for instance plans with their verdicts.

        Args:
            title: heading of the table.
            rows: one mapping per sample; a column that a row lacks stays empty.
            columns: the keys to show, also used as the header.
        """
        table = Table(title=self.text(title), title_justify="left", show_lines=True)
        for column in columns:
            table.add_column(self.text(column), overflow="fold")
        for row in rows:
            table.add_row(*(self.text(sanitize(_format(row.get(column)), limit=400)) for column in columns))
        if not self.quiet:
            self._rich.print(table)

    def result_table(
        self, title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], names: int = 1
    ) -> None:
        """Prints a table of results, also when quiet: a line a row, as wide as it has to be.

        Args:
            title: heading of the table.
            rows: one mapping per row; a column that a row lacks stays empty.
            columns: the keys to show, also used as the header.
            names: how many columns stand on the left and hold names; the others hold numbers.
        """
        cells = [[sanitize(_format(row.get(column)), limit=80) for column in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        self.result(f"\n{sanitize(title)}")
        for line in (columns, *cells):
            named = zip(line[:names], widths[:names], strict=True)
            numbers = zip(line[names:], widths[names:], strict=True)
            padded = [text.ljust(width) for text, width in named] + [text.rjust(width) for text, width in numbers]
            self.result("  ".join(padded).rstrip())

    @contextmanager
    def progress(self, total: int, description: str, start: int = 0, unit: str = "update") -> Iterator[ProgressView]:
        """Shows "update k of n" with fields and the time left while the block runs.

        Args:
            total: number of updates of the whole loop.
            description: what is being done, such as "PPO".
            start: updates already done by an earlier run.
            unit: what is counted.

        Yields:
            an object whose `update(step, **fields)` is called after every update.
        """
        if self.quiet or not self._rich.is_terminal:
            yield _PlainProgress(self, total, description, start, unit)
            return
        view = _LiveProgress(self, total, description, start, unit)
        with Live(view.renderable, console=self._rich, refresh_per_second=2):
            yield view

    def _show(self, text: Text) -> None:
        if not self.quiet:
            self._rich.print(text, soft_wrap=True)


def _fields_line(fields: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {sanitize(_format(value), limit=80)}" for name, value in fields.items())


class _PlainProgress:
    """Prints a line for the first update, the last one and about `PLAIN_LINES_PER_BAR` between them."""

    def __init__(self, console: Console, total: int, description: str, start: int, unit: str):
        self._console, self._total, self._description, self._start = console, total, description, start
        self._unit = unit
        self._began = time.monotonic()
        self._printed: int | None = None

    def update(self, step: int, **fields: Any) -> None:
        slot = step * PLAIN_LINES_PER_BAR // max(self._total, 1)
        if slot == self._printed and step < self._total:
            return
        self._printed = slot
        elapsed_s = time.monotonic() - self._began
        left_s = elapsed_s / max(step - self._start, 1) * (self._total - step)
        left = f"{int(left_s) // 60}:{int(left_s) % 60:02d} left"
        line = f"{self._description}  {self._unit} {step} of {self._total}  {_fields_line(fields)}  {left}"
        self._console.print(line)


class _StepColumn(ProgressColumn):
    def __init__(self, unit: str):
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{self._unit} {int(task.completed)} of {int(task.total or 0)}")


class _LiveProgress:
    """A bar with the step and the time left, and the latest fields on the line below."""

    def __init__(self, console: Console, total: int, description: str, start: int, unit: str):
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            _StepColumn(unit),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console._rich,
        )
        self._task = self._bar.add_task(console.text(description).plain, total=total, completed=start)
        self._fields = Text(style="dim")
        self.renderable = Group(self._bar, self._fields)

    def update(self, step: int, **fields: Any) -> None:
        self._bar.update(self._task, completed=step)
        self._fields.plain = self._console.text(_fields_line(fields)).plain
