"""Show a run on the terminal.

Model text is hostile to viewers: it passes through `sanitize` before a terminal sees it, and is never read as markup.
"""

import contextlib
import logging
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxppo.run import preemption
from jaxppo.run.activity import Activity
from jaxppo.run.live_view import LiveView, Loop, Pace, format_time, format_value

PLAIN_WIDTH = 120  # columns of a table when the output is a file or a pipe
PLAIN_LINES_PER_BAR = 20  # a progress bar that is not on a terminal prints about this many lines
FIRST_SIGN_S, NEXT_SIGN_S = 4.0, 25.0
"""Seconds after which a log gets a line about what goes on, and seconds without a line after which it gets another."""
BAR_S = 1.0
"""Seconds after which a terminal shows what goes on: most of it is done by then."""

# Control, format (bidi overrides and isolates, zero-width characters), surrogate, private and unassigned characters,
# and the two line separators.
_HOSTILE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def sanitize(text: str, limit: int | None = 2000) -> str:
    r"""Make text safe to show on one line: whatever could steer or deceive a viewer becomes a visible escape.

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


# ------------------------------------------------------------------------------------------------------------ terminal


class _RichConsole(rich.console.Console):
    """Go quiet when the reader has gone, such as a `head`, or a `tee` that got the same Ctrl-C: the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):  # no file, in a test or a notebook
            os.dup2(2, self.file.fileno())  # where errors still arrive


class Console:
    """The view of a run: live on a terminal, plain lines without control codes anywhere else.

    Text is taken literally: no rich markup, no control codes, and characters that the output cannot encode are escaped.
    A terminal's lines break between words; elsewhere lines are as long as they are.

    Args:
        quiet: show results and warnings only.
        file: where to write; None is standard output.
    """

    def __init__(self, quiet: bool = False, file: TextIO | None = None):
        self.quiet = quiet
        self._view: LiveView | None = None  # while a loop is shown
        self._activities: list[Activity] = []  # what goes on, each within the one before
        self._spoke_at = time.perf_counter()  # when the latest line was printed
        stream = sys.stdout if file is None else file
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._rich = _RichConsole(
            file=stream, force_terminal=terminal, width=None if terminal else PLAIN_WIDTH, highlight=False, markup=False
        )

    def stage(self, title: str) -> None:
        """Announce a stage of the run."""
        self._show(self.text(f"== {sanitize(title)} ==", style="bold cyan"))

    def print(self, text: str = "") -> None:
        """Print text; its newlines are kept, everything else goes through `sanitize`."""
        self._show(self.text(text))

    def result(self, text: str) -> None:
        """Print text also when quiet."""
        self._rich.print(self.text(text), soft_wrap=True)
        self._spoke_at = time.perf_counter()

    def warn(self, text: str) -> None:
        """Print a warning, also when quiet; a live view keeps it in sight."""
        if self._view is not None:
            self._view.warn(text)
        self._rich.print(self.text(f"warning: {text}", style="yellow"), soft_wrap=not self._rich.is_terminal)

    def text(self, text: str, style: str = "") -> Text:
        """Make a rich text that shows these very characters, line by line, within the output's encoding."""
        lines = "\n".join(sanitize(line, limit=None) for line in text.split("\n"))
        return Text(lines.encode(self._encoding, "backslashreplace").decode(self._encoding), style=style)

    def sample_table(self, title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Print a table of samples, for instance plans with their verdicts.

        Args:
            title: heading of the table.
            rows: one mapping per sample; a column that a row lacks stays empty.
            columns: the keys to show, also used as the header.
        """
        table = Table(title=self.text(title), title_justify="left", show_lines=True)
        for column in columns:
            table.add_column(self.text(column), overflow="fold")
        for row in rows:
            table.add_row(*(self.text(sanitize(format_value(row.get(column)), limit=400)) for column in columns))
        if not self.quiet:
            self._rich.print(table)

    def result_table(
        self, title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], names: int = 1
    ) -> None:
        """Print a table of results, also when quiet: one line per row, as wide as needed.

        Args:
            title: heading of the table.
            rows: one mapping per row; a column that a row lacks stays empty.
            columns: the keys to show, also used as the header.
            names: how many columns on the left hold names; the others hold numbers.
        """
        cells = [[sanitize(format_value(row.get(column)), limit=80) for column in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        self.result(f"\n{sanitize(title)}")
        for line in (columns, *cells):
            named = zip(line[:names], widths[:names], strict=True)
            numbers = zip(line[names:], widths[names:], strict=True)
            padded = [text.ljust(width) for text, width in named] + [text.rjust(width) for text, width in numbers]
            self.result("  ".join(padded).rstrip())

    @contextmanager
    def progress(
        self, total: int, description: str, start: int = 0, unit: str = "update", **about: Any
    ) -> Iterator["ProgressView"]:
        """Show a loop while the block runs: "update k of n" with fields and the time left.

        Output printed meanwhile, by anything in this process, appears above the view.

        Args:
            total: number of updates of the loop, those done before included.
            description: what is being done, such as "PPO".
            start: updates already done by an earlier run.
            unit: what is counted.
            about: `header`, `stages` and `hint` of `live_view.Loop`.

        Yields:
            A view, whose `update(step, **fields)` is to be called after every update.
        """
        loop = Loop(total, description, start, unit, **about)
        if self.quiet or not self._rich.is_terminal:
            with self.activity(description, total, f"{unit}s") as activity:
                activity.done = start
                yield PlainProgress(self, loop, activity)
            return
        is_ascii = not self._encoding.lower().startswith("utf")
        self._view = LiveView(loop, self.text, is_ascii, preemption.notice, self._going_on)
        try:
            live = Live(
                self._view,
                console=self._rich,
                refresh_per_second=2,
                vertical_overflow="crop",
                redirect_stdout=self._rich.file is sys.stdout,
                redirect_stderr=sys.stderr.isatty(),  # else errors go to a file, where they belong
            )
            with live, _loggers_redirected():
                yield self._view
        finally:
            self._view = None

    @contextmanager
    def activity(self, title: str, total: int | None = None, unit: str = "rows") -> Iterator[Activity]:
        """Show what the block does, should it take long: in the live view, as a bar, or as a line now and then.

        Args:
            title: see `Activity`.
            total: see `Activity`.
            unit: see `Activity`.

        Yields:
            The activity, whose `done` is to be kept up to date.
        """
        activity = Activity(title, total, unit)
        is_outermost = not self._activities
        self._activities.append(activity)
        try:
            if is_outermost and not self.quiet and self._view is None:
                with self._signs_of_life():
                    yield activity
            else:
                yield activity
        finally:
            self._activities.remove(activity)

    @contextmanager
    def _signs_of_life(self) -> Iterator[None]:
        """Let a thread say what goes on while the block runs."""
        is_over = threading.Event()
        sign = self._show_bar if self._rich.is_terminal else self._print_signs
        thread = threading.Thread(target=sign, args=(is_over,), name="signs of life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _print_signs(self, is_over: threading.Event) -> None:
        """Print a line soon, and whenever none has been printed for a while."""
        began, silence_s = time.perf_counter(), FIRST_SIGN_S
        while True:
            due = max(began, self._spoke_at) + silence_s
            if is_over.wait(max(0.0, due - time.perf_counter())):
                return
            if max(began, self._spoke_at) + silence_s <= time.perf_counter():
                self._show(self.text(self._going_on(0.0)))
                silence_s = NEXT_SIGN_S

    def _show_bar(self, is_over: threading.Event) -> None:
        """Show a bar that is gone when all is done."""
        if is_over.wait(BAR_S):
            return
        redirect = {"redirect_stdout": self._rich.file is sys.stdout, "redirect_stderr": sys.stderr.isatty()}
        with Live(_Bar(self), console=self._rich, refresh_per_second=2, transient=True, **redirect):
            is_over.wait()

    def bar(self) -> Table:
        """Return what goes on as a line with a bar, where it is counted."""
        row = Table.grid(padding=(0, 1))
        line = self.text(preemption.notice() or self._going_on(0.0))
        counted = [activity for activity in tuple(self._activities) if activity.total]
        if counted:
            row.add_row(ProgressBar(counted[-1].total, counted[-1].done, width=20), line)
        else:
            row.add_row(line)
        return row

    def _going_on(self, least_s: float = 2.0) -> str:
        """Return what goes on for longer than some seconds, the innermost last."""
        parts = []
        for activity in tuple(self._activities):
            if activity.elapsed_s < least_s:
                break
            count = "" if activity.total is None else f" {activity.done} of {activity.total} {activity.unit}"
            left = "" if activity.left_s is None else f", {format_time(activity.left_s)} left"
            parts.append(f"{activity.title}{count}, {format_time(activity.elapsed_s)} elapsed{left}")
        return ": ".join(parts)

    def stop_noted(self) -> None:
        """Confirm Ctrl-C on a terminal, where no live view does."""
        notice = preemption.notice()
        if self._view is None and notice is not None and sys.stderr.isatty():
            os.write(2, f"\n{notice}\n".encode())  # unbuffered: the signal may have interrupted a write

    def _show(self, text: Text) -> None:
        self._spoke_at = time.perf_counter()
        if not self.quiet:
            self._rich.print(text, soft_wrap=not self._rich.is_terminal)


class _Bar:
    """What goes on, in a line."""

    def __init__(self, console: Console):
        self._console = console

    def __rich__(self) -> Table:
        return self._console.bar()


@contextmanager
def _loggers_redirected() -> Iterator[None]:
    """Redirect loggers whose stream a live view has taken over to what has replaced it."""
    places = {id(taken): now for now in (sys.stdout, sys.stderr) if (taken := getattr(now, "rich_proxied_file", None))}
    loggers = [logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    handlers = [handler for logger in (logging.getLogger(), *loggers) for handler in logger.handlers]
    streams = {
        handler: handler.stream
        for handler in handlers
        if isinstance(handler, logging.StreamHandler) and id(handler.stream) in places
    }
    for handler, stream in streams.items():
        handler.setStream(places[id(stream)])
    try:
        yield
    finally:
        for handler, stream in streams.items():
            handler.setStream(stream)


def _fields_line(fields: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {sanitize(format_value(value), limit=80)}" for name, value in fields.items())


class PlainProgress:
    """Print a line for the first update, the last one and about `PLAIN_LINES_PER_BAR` between them."""

    def __init__(self, console: Console, loop: Loop, activity: Activity):
        self._console, self._loop, self._pace = console, loop, Pace(loop.total, loop.start)
        self._activity = activity
        self._printed: int | None = None

    def update(self, step: int, **fields: Any) -> None:
        """Print a line if it is time for one."""
        self._pace.update(step)
        self._activity.done = step
        loop, slot = self._loop, step * PLAIN_LINES_PER_BAR // max(self._loop.total, 1)
        if slot == self._printed and step < loop.total:
            return
        self._printed = slot
        said = f"{loop.title}  {loop.unit} {step} of {loop.total}  {_fields_line(fields)}"
        self._console.print(f"{said}  {format_time(self._pace.left_s)} left")

    def recall(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Do nothing: a line shows no history."""

    def doing(self, what: str) -> None:
        """Do nothing: a line is printed when an update is done."""

    def samples(self, title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Print a table of samples."""
        self._console.sample_table(title, rows, columns)


ProgressView = LiveView | PlainProgress
"""What `Console.progress` yields to the loop."""
