"""What a run leaves behind and shows: JSON-lines logs, the terminal view and the picture of the curves.

Model text is hostile to viewers: it passes through `sanitize` before a terminal sees it, and is never read as markup.
"""

import json
import math
import os
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import rich.console
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from jaxppo.errors import DataError

PLAIN_WIDTH = 120  # columns of a table when the output is a file or a pipe
PLAIN_LINES_PER_BAR = 20  # a progress bar that is not on a terminal prints about this many lines

# ---------------------------------------------------------------------------------------------------------------- logs


class JsonlLog:
    """Appends JSON objects, one per line, to a file that others may read while it grows.

    A record has left the process when `append` returns, so a kill loses at most the line being written; opening the log
    again drops such a half-written line. NaN and infinities are written as `null` (JSON has no word for them), and
    all text as ASCII escapes, so that showing the file sends no control codes to a terminal.

    Args:
        path: the file; its folder is made, existing records are kept.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            os.truncate(self.path, len(_complete_part(self.path.read_bytes())))
        self._file = self._open()

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one record; values may be scalars and arrays of numpy or jax, lists, mappings and strings."""
        self._file.write(json.dumps(_plain(record), allow_nan=False) + "\n")

    def truncate_after(self, step: int) -> None:
        """Cuts the log back to the records with `record["step"] <= step`, as a resumed run needs.

        The new file replaces the old one in one move: a kill leaves either of them whole.

        Raises:
            DataError: a line is not a JSON object with a `step`.
        """
        self._file.close()
        try:
            kept = [line for line, record in _read(self.path) if _step(record, self.path) <= step]
            shorter = self.path.with_name(self.path.name + ".tmp")
            shorter.write_text("".join(kept), encoding="utf-8", newline="\n")
            os.replace(shorter, self.path)
        finally:
            self._file = self._open()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> "JsonlLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> TextIO:
        return self.path.open("a", encoding="utf-8", buffering=1, newline="\n")


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the records of a `metrics.jsonl` or `samples.jsonl`; a half-written last line is left out.

    Raises:
        DataError: the file is missing, or a line is not a JSON object.
    """
    return [record for _, record in _read(Path(path))]


def _complete_part(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (line with its newline, record) of every complete line."""
    try:
        text = _complete_part(path.read_bytes()).decode("utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: expected a file of JSON lines, found nothing; check the run folder") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8 text, got {error.reason} at byte {error.start}") from None
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: expected a JSON object, got a syntax error: {error.msg}") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, got {type(record).__name__}")
        yield line + "\n", record


def _step(record: dict[str, Any], path: Path) -> int:
    step = record.get("step")
    if not isinstance(step, int):
        raise DataError(f"{path}: expected an integer `step` in every record, got {step!r}")
    return step


def _plain(value: Any) -> Any:
    """Turns a value into what `json.dumps` writes: arrays into numbers and lists, NaN and infinities into None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # scalars and arrays of numpy and jax
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# ---------------------------------------------------------------------------------------------------------------- text

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

    @contextmanager
    def progress(self, total: int, description: str, start: int = 0) -> Iterator[ProgressView]:
        """Shows "update k of n" with fields and the time left while the block runs.

        Args:
            total: number of updates of the whole loop.
            description: what is being done, such as "PPO".
            start: updates already done by an earlier run.

        Yields:
            an object whose `update(step, **fields)` is called after every update.
        """
        if self.quiet or not self._rich.is_terminal:
            yield _PlainProgress(self, total, description, start)
            return
        view = _LiveProgress(self, total, description, start)
        with Live(view.renderable, console=self._rich, refresh_per_second=2):
            yield view

    def _show(self, text: Text) -> None:
        if not self.quiet:
            self._rich.print(text, soft_wrap=True)


def _fields_line(fields: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {sanitize(_format(value), limit=80)}" for name, value in fields.items())


class _PlainProgress:
    """Prints a line for the first update, the last one and about `PLAIN_LINES_PER_BAR` between them."""

    def __init__(self, console: Console, total: int, description: str, start: int):
        self._console, self._total, self._description, self._start = console, total, description, start
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
        line = f"{self._description}  update {step} of {self._total}  {_fields_line(fields)}  {left}"
        self._console.print(line)


class _StepColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"update {int(task.completed)} of {int(task.total or 0)}")


class _LiveProgress:
    """A bar with the step and the time left, and the latest fields on the line below."""

    def __init__(self, console: Console, total: int, description: str, start: int):
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            _StepColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console._rich,
        )
        self._task = self._bar.add_task(console.text(description).plain, total=total, completed=start)
        self._fields = Text(style="dim")
        self.renderable = Group(self._bar, self._fields)

    def update(self, step: int, **fields: Any) -> None:
        self._bar.update(self._task, completed=step)
        self._fields.plain = self._console.text(_fields_line(fields)).plain


# ------------------------------------------------------------------------------------------------------------- picture

# Okabe and Ito's palette, told apart under every common form of colour blindness.
_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#8A8F98"
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "axes.edgecolor": _GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.constrained_layout.h_pad": 0.15,
    "figure.constrained_layout.w_pad": 0.15,
    "grid.color": "#E4E6EA",
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class _Panel:
    """One panel of curves: `curves` maps a metric's key to its label and colour."""

    title: str
    unit: str
    curves: Mapping[str, tuple[str, str]]
    bounds: tuple[float, float] | None = None  # limits of the axis where the unit has them


_REWARD = _Panel(
    "Reward and plan validity in training",
    "mean over the batch",
    {"objective/scores": ("reward", _BLUE), "reward/plan_valid": ("fraction of valid plans", _ORANGE)},
)
_KL = _Panel("Distance from the reference policy", "KL (nats per completion)", {"objective/kl": ("KL", _GREEN)})
_HEALTH = _Panel(
    "Health of the updates",
    "fraction",
    {
        "value/explained_variance": ("explained variance of the values", _PURPLE),
        "policy/clipfrac_avg": ("clipped policy ratios", _BLUE),
    },
    bounds=(-1.0, 1.0),  # early values can explain far less than nothing and would flatten the rest
)
_LENGTH = _Panel("Length of the completions", "tokens", {"completions/mean_length": ("mean length", _PURPLE)})


def plot_curves(metrics: Sequence[Mapping[str, Any]], evals: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Draws the curves of a run and its validity before and after as one picture of 1280 x 840 pixels.

    Args:
        metrics: records of `metrics.jsonl`; keys a record lacks, and nulls, leave gaps.
        evals: content of `eval.json`: `{"before": {SPLIT: {"validity": {"rate", "low", "high", "n"}}}, "after": ...}`,
            with `headline_split` where there is one; either side may be missing.
        path: the PNG to write.
    """
    import matplotlib

    # The object interface instead of pyplot: always the Agg backend, no window, no global state.
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(12.8, 8.4), dpi=100, layout="constrained")
        (reward, kl), (health, validity) = figure.subplots(2, 2)
        _draw_curves(reward, _REWARD, metrics)
        _draw_curves(kl, _KL, metrics)
        has_health = any(record.get(key) is not None for record in metrics for key in _HEALTH.curves)
        _draw_curves(health, _HEALTH if has_health else _LENGTH, metrics)
        _draw_validity(validity, evals)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")


def _draw_curves(axes: Any, panel: _Panel, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Draws each curve twice: the raw points lightly, their moving mean strongly."""
    from matplotlib.ticker import MaxNLocator

    axes.set(title=panel.title, xlabel="update", ylabel=panel.unit)
    drawn = 0
    for key, (label, colour) in panel.curves.items():
        points = [(record["step"], record[key]) for record in metrics if record.get(key) is not None]
        if not points:
            continue
        steps, values = np.asarray(points, float).T
        marker = "o" if len(points) == 1 else None
        axes.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
        axes.plot(steps, _smooth(values), color=colour, linewidth=2.2, label=label, marker=marker)
        drawn += 1
    if not drawn:
        _say_empty(axes)
        return
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if panel.bounds is not None:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, panel.bounds[0]), min(high, panel.bounds[1]))
    if drawn > 1:
        axes.legend()


def _smooth(values: np.ndarray) -> np.ndarray:
    """Centred moving mean over about a tenth of the curve; at the ends over the points that exist."""
    half = len(values) // 20
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def _draw_validity(axes: Any, evals: Mapping[str, Any]) -> None:
    """Draws validity per split before and after as bars with their 95 % intervals."""
    sides = [(side, evals[side], colour) for side, colour in (("before", _GREY), ("after", _BLUE)) if evals.get(side)]
    splits = list(dict.fromkeys(split for _, scores, _ in sides for split in scores))
    axes.set(title="Valid plans on held-out problems, 95 % intervals", ylabel="valid plans (%)", ylim=(0, 122))
    axes.set_yticks(range(0, 101, 20))
    if not splits:
        _say_empty(axes)
        return
    width = 0.76 / len(sides)
    for number, (side, scores, colour) in enumerate(sides):
        offset = (number - (len(sides) - 1) / 2) * width
        for place, split in enumerate(splits):
            if split in scores:
                _draw_bar(axes, place + offset, width * 0.92, scores[split]["validity"], colour)
        axes.bar(0, 0, color=colour, label=side)  # for the legend
    axes.set_xticks(range(len(splits)), [_split_label(split, sides, evals) for split in splits])
    axes.set_xlim(-0.6, len(splits) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper right", ncols=len(sides), borderaxespad=0)


def _draw_bar(axes: Any, place: float, width: float, score: Mapping[str, float], colour: str) -> None:
    rate, low, high = (100 * score[name] for name in ("rate", "low", "high"))
    axes.bar(place, rate, width, color=colour)
    axes.errorbar(place, rate, [[max(rate - low, 0)], [max(high - rate, 0)]], color="#30343B", capsize=4, linewidth=1.3)
    axes.annotate(f"{rate:.1f}", (place, max(high, rate)), (0, 4), textcoords="offset points", ha="center", fontsize=10)


def _split_label(split: str, sides: Sequence[tuple[str, Mapping[str, Any], str]], evals: Mapping[str, Any]) -> str:
    count = next(scores[split]["validity"]["n"] for _, scores, _ in sides if split in scores)
    headline = " (headline)" if split == evals.get("headline_split") else ""
    return f"{split}{headline}\nn = {count}"


def _say_empty(axes: Any) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=_GREY)
