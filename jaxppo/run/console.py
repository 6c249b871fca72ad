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

PLAIN_WIDTH = 120
"""Columns of a table where the output is a file or a pipe."""
PLAIN_LINES_PER_BAR = 20
"""About so many lines a loop prints where the output is no terminal."""
FIRST_SIGN_S = 4.0
"""Seconds after which a log gets a line about the work that goes on."""
NEXT_SIGN_S = 25.0
"""Seconds without a line after which it gets another."""
BAR_S = 1.0
"""Seconds after which a terminal shows the work that goes on: most is done by then."""

# Control, format (bidi overrides and isolates, zero-width characters), surrogate, private and
# unassigned characters, and the two line separators.
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
    parts = []
    length = 0
    for index, char in enumerate(text):
        visible = char
        if unicodedata.category(char) in _HOSTILE_CATEGORIES:
            visible = char.encode("unicode_escape", "surrogatepass").decode("ascii")
        length += len(visible)
        if limit is not None and length > limit:
            # Before the character: half an escape would be worse than none.
            parts.append(f"… [+{len(text) - index} characters]")
            break
        parts.append(visible)
    return "".join(parts)


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
        self._activities: list[Activity] = []  # each within the one before
        self._printed_at = time.perf_counter()  # of the latest line
        stream = sys.stdout if file is None else file
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._rich = _RichConsole(
            file=stream,
            force_terminal=is_terminal,
            width=None if is_terminal else PLAIN_WIDTH,
            highlight=False,
            markup=False,
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
        self._printed_at = time.perf_counter()

    def warn(self, text: str) -> None:
        """Print a warning, also when quiet; a live view keeps it in sight."""
        if self._view is not None:
            self._view.warn(text)
        self._rich.print(
            self.text(f"warning: {text}", style="yellow"), soft_wrap=not self._rich.is_terminal
        )

    def text(self, text: str, style: str = "") -> Text:
        """Make a rich text that shows these very characters, line by line, within the output's encoding."""
        lines = "\n".join(sanitize(line, limit=None) for line in text.split("\n"))
        return Text(
            lines.encode(self._encoding, "backslashreplace").decode(self._encoding), style=style
        )

    def sample_table(
        self, title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
    ) -> None:
        """Print a table of samples, for instance plans with their verdicts.

        Args:
            title: heading of the table.
            rows: one mapping per sample; a column that a row lacks stays empty.
            columns: the keys to show, also used as the header.
        """
        # Titles and cells are made by `text`: rich would read markup in plain strings.
        table = Table(title=self.text(title), title_justify="left", show_lines=True)
        for column in columns:
            table.add_column(self.text(column), overflow="fold")
        for row in rows:
            table.add_row(
                *(
                    self.text(sanitize(format_value(row.get(column)), limit=400))
                    for column in columns
                )
            )
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
        lines = [list(columns)]
        for row in rows:
            lines.append([sanitize(format_value(row.get(column)), limit=80) for column in columns])
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        self.result(f"\n{sanitize(title)}")
        for line in lines:
            padded = []
            for index, (text, width) in enumerate(zip(line, widths, strict=True)):
                padded.append(text.ljust(width) if index < names else text.rjust(width))
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
            A view; the block calls its `update(step, **fields)` after every update.
        """
        loop = Loop(total, description, start, unit, **about)
        if self.quiet or not self._rich.is_terminal:
            with self.activity(description, total, f"{unit}s") as activity:
                activity.done = start
                yield PlainProgress(self, loop, activity)
            return
        # Without Unicode the blocks of the histories could not be shown.
        is_ascii = not self._encoding.lower().startswith("utf")
        # A loop on a terminal is redrawn by a thread of rich; elsewhere lines are printed as the
        # updates come.
        self._view = LiveView(loop, self.text, is_ascii, preemption.notice, self._going_on)
        try:
            live = Live(
                self._view,
                console=self._rich,
                refresh_per_second=2,
                vertical_overflow="crop",
                **self._redirection(),
            )
            with live, _loggers_redirected():
                yield self._view
        finally:
            self._view = None

    @contextmanager
    def activity(
        self, title: str, total: int | None = None, unit: str = "rows"
    ) -> Iterator[Activity]:
        """Show what the block does, should it take long: in the live view, as a bar, or as a line now and then.

        Args:
            title: see `Activity`.
            total: see `Activity`.
            unit: see `Activity`.

        Yields:
            The activity; the block keeps its `done` up to date.
        """
        activity = Activity(title, total, unit)
        # The outermost one has a display, which shows those within it, too; a live view shows all
        # of them itself.
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
        """Let a thread show what goes on while the block runs."""
        is_over = threading.Event()
        show = self._show_bar if self._rich.is_terminal else self._print_signs
        thread = threading.Thread(target=show, args=(is_over,), name="signs of life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    # rich's own progress bars were tried in place of the two methods below. Off a terminal they
    # print nothing before the end, so a log needs lines of its own anyway; and their time left is
    # unknown before the second update and does not count down between updates, which may be minutes
    # apart.

    def _print_signs(self, is_over: threading.Event) -> None:
        """Print a line soon, and whenever none has been printed for a while."""
        start = time.perf_counter()
        silence_s = FIRST_SIGN_S
        while True:
            due = max(start, self._printed_at) + silence_s
            if is_over.wait(max(0.0, due - time.perf_counter())):
                return
            # Another line may have been printed while this thread waited: then it waits again.
            if max(start, self._printed_at) + silence_s <= time.perf_counter():
                self._show(self.text(self._going_on(0.0)))
                silence_s = NEXT_SIGN_S

    def _show_bar(self, is_over: threading.Event) -> None:
        """Show a bar that vanishes at the end."""
        if is_over.wait(BAR_S):
            return
        with Live(
            get_renderable=self._bar,
            console=self._rich,
            refresh_per_second=2,
            transient=True,
            **self._redirection(),
        ):
            is_over.wait()

    def _bar(self) -> Table:
        """Return what goes on as a line, with a bar where it is counted."""
        row = Table.grid(padding=(0, 1))
        # A copy of the list: the main thread may end an activity meanwhile.
        line = self.text(preemption.notice() or self._going_on(0.0))
        with_total = [activity for activity in tuple(self._activities) if activity.total]
        if with_total:
            innermost = with_total[-1]
            row.add_row(ProgressBar(innermost.total, innermost.done, width=20), line)
        else:
            row.add_row(line)
        return row

    def _redirection(self) -> dict[str, Any]:
        """Return which streams a live display takes over, so that what others print appears above it."""
        # Errors that go to a file stay there.
        return {
            "redirect_stdout": self._rich.file is sys.stdout,
            "redirect_stderr": sys.stderr.isatty(),
        }

    def _going_on(self, min_s: float = 2.0) -> str:
        """Return what has been going on for some seconds, the innermost activity last."""
        parts = []
        for activity in tuple(self._activities):
            if activity.elapsed_s < min_s:
                break
            part = activity.title
            if activity.total is not None:
                part += f" {activity.done} of {activity.total} {activity.unit}"
            part += f", {format_time(activity.elapsed_s)} elapsed"
            if activity.left_s is not None:
                part += f", {format_time(activity.left_s)} left"
            parts.append(part)
        return ": ".join(parts)

    def stop_noted(self) -> None:
        """Confirm Ctrl-C on a terminal, where no live view does."""
        notice = preemption.notice()
        if self._view is None and notice is not None and sys.stderr.isatty():
            # Past all buffers: this is within the handler of a signal, which may have interrupted a
            # print.
            os.write(2, f"\n{notice}\n".encode())

    def _show(self, text: Text) -> None:
        self._printed_at = time.perf_counter()
        if not self.quiet:
            self._rich.print(text, soft_wrap=not self._rich.is_terminal)


@contextmanager
def _loggers_redirected() -> Iterator[None]:
    """Let loggers that write to a stream which a live view has taken over write above the view while the block runs."""
    proxies = {}  # id of the stream -> rich's replacement of it
    for stream in (sys.stdout, sys.stderr):
        proxied_file = getattr(stream, "rich_proxied_file", None)
        if proxied_file is not None:
            proxies[id(proxied_file)] = stream
    original_streams = {}
    for logger in (logging.getLogger(), *logging.Logger.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):  # a placeholder in the hierarchy has none
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in proxies:
                original_streams[handler] = handler.stream
                handler.setStream(proxies[id(handler.stream)])
    try:
        yield
    finally:
        for handler, stream in original_streams.items():
            handler.setStream(stream)


class PlainProgress:
    """Print a line for the first update, the last one and about `PLAIN_LINES_PER_BAR` between them."""

    def __init__(self, console: Console, loop: Loop, activity: Activity):
        self._console = console
        self._loop = loop
        self._pace = Pace(loop.total, loop.start)
        self._activity = activity
        self._last_slot: int | None = None  # the part of the loop that has its line

    def update(self, step: int, **fields: Any) -> None:
        """Print a line if it is time for one."""
        self._pace.update(step)
        self._activity.done = step
        loop = self._loop
        slot = step * PLAIN_LINES_PER_BAR // max(loop.total, 1)
        if slot == self._last_slot and step < loop.total:
            return
        self._last_slot = slot
        line = f"{loop.title}  {loop.unit} {step} of {loop.total}"
        for name, value in fields.items():
            line += f"  {name} {sanitize(format_value(value), limit=80)}"
        self._console.print(f"{line}  {format_time(self._pace.left_s)} left")

    def recall(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Do nothing: a line shows no history."""

    def doing(self, title: str) -> None:
        """Do nothing: a line is printed when an update is done."""

    def samples(
        self, title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
    ) -> None:
        """Print a table of samples."""
        self._console.sample_table(title, rows, columns)


ProgressView = LiveView | PlainProgress
"""What `Console.progress` yields to the loop."""
