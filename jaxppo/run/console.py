"""Show a run on the terminal.

Model text is hostile to viewers: it passes through `sanitize` before a terminal sees it, and is never read as markup.
"""

import contextlib
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO, TypeVar

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxppo.run import preemption
from jaxppo.run.activity import Activity
from jaxppo.run.progress import Hint, Progress, format_time, format_value

ActivityT = TypeVar("ActivityT", bound=Activity)

PLAIN_WIDTH = 120
"""Columns of a table where the output is a file or a pipe."""
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
        self._activities: list[Activity] = []  # each within the one before
        self._printed_at = time.perf_counter()  # of the latest line
        stream = sys.stdout if file is None else file
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._rich = _RichConsole(
            file=stream,
            force_terminal=self.is_terminal,
            width=None if self.is_terminal else PLAIN_WIDTH,
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
        """Print a warning, also when quiet."""
        warning = self.text(f"warning: {text}", style="yellow")
        self._rich.print(warning, soft_wrap=not self.is_terminal)

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
            cells = [sanitize(format_value(row.get(column)), limit=400) for column in columns]
            table.add_row(*map(self.text, cells))
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

    def progress(
        self,
        total: int,
        description: str,
        start: int = 0,
        unit: str = "update",
        header: str = "",
        hint: Hint | None = None,
    ) -> AbstractContextManager[Progress]:
        """Show a loop while the block runs; it calls `update(step, **fields)` after every update.

        Output printed meanwhile, by anything in this process, appears above the display of a terminal.

        Args:
            total: number of updates of the loop, those done before included.
            description: what is being done, such as "PPO".
            start: updates already done by an earlier run.
            unit: what is counted.
            header: the run in one line.
            hint: what to do about a number.
        """
        return self.shown(Progress(self, description, total, start, unit, header, hint))

    @contextmanager
    def shown(self, activity: ActivityT) -> Iterator[ActivityT]:
        """Show what the block does, should it take long: as a bar, or as a line now and then.

        Args:
            activity: the block keeps its `done` up to date.
        """
        # The outermost one has a display, which shows those within it, too.
        is_outermost = not self._activities
        self._activities.append(activity)
        try:
            if self.quiet or not is_outermost:
                yield activity
            elif self.is_terminal and isinstance(activity, Progress):
                # At once, and the last frame stays.
                with self._live(transient=False):
                    yield activity
            else:
                with self._signs_of_life():
                    yield activity
        finally:
            self._activities.remove(activity)

    @contextmanager
    def _signs_of_life(self) -> Iterator[None]:
        """Let a thread show what goes on while the block runs."""
        is_over = threading.Event()
        show = self._show_bar if self.is_terminal else self._print_signs
        thread = threading.Thread(target=show, args=(is_over,), name="signs of life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    # rich's own progress bars were tried in place of the methods below. Off a terminal they print
    # nothing before the end, so a log needs lines of its own anyway; and their time left is unknown
    # before the second update and does not count down between updates, which may be minutes apart.

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
                self._show(self.text(self._going_on()))
                silence_s = NEXT_SIGN_S

    def _show_bar(self, is_over: threading.Event) -> None:
        """Show a bar that vanishes at the end."""
        if is_over.wait(BAR_S):
            return
        with self._live(transient=True):
            is_over.wait()

    def _live(self, transient: bool) -> Live:
        return Live(
            get_renderable=self._frame,
            console=self._rich,
            refresh_per_second=2,
            transient=transient,
            vertical_overflow="crop",
            redirect_stdout=self._rich.file is sys.stdout,
            redirect_stderr=sys.stderr.isatty(),  # errors that go to a file stay there
        )

    def _frame(self) -> rich.console.Group:
        """Return what goes on as a line, with a bar where it is counted, and the numbers of a loop."""
        bar = Table.grid(padding=(0, 1))
        line = self.text(preemption.notice() or self._going_on())
        # A copy of the list: the main thread may end an activity meanwhile.
        with_total = [activity for activity in tuple(self._activities) if activity.total]
        if with_total:
            outermost = with_total[0]
            bar.add_row(ProgressBar(outermost.total, outermost.done, width=20), line)
        else:
            bar.add_row(line)
        loop = self._loop()
        if loop is None:
            return rich.console.Group(bar)
        return rich.console.Group(self.text(loop.header, "bold"), bar, loop.numbers())

    def _loop(self) -> Progress | None:
        loops = [activity for activity in self._activities if isinstance(activity, Progress)]
        return loops[0] if loops else None

    def _going_on(self) -> str:
        """Return what is going on, the innermost activity last."""
        parts = []
        for activity in tuple(self._activities):
            part = activity.title
            if activity.total is not None:
                part += f" {activity.done} of {activity.total} {activity.unit}"
            part += f", {format_time(activity.elapsed_s)} elapsed"
            if activity.left_s is not None:
                part += f", {format_time(activity.left_s)} left"
            parts.append(part)
        return ": ".join(parts)

    def stop_noted(self) -> None:
        """Confirm Ctrl-C on a terminal, where the display of no loop does."""
        notice = preemption.notice()
        if self._loop() is None and notice is not None and sys.stderr.isatty():
            # Past all buffers: this is within the handler of
            # a signal, which may have interrupted a print.
            os.write(2, f"\n{notice}\n".encode())

    def _show(self, text: Text) -> None:
        self._printed_at = time.perf_counter()
        if not self.quiet:
            self._rich.print(text, soft_wrap=not self.is_terminal)
