"""The progress of a loop: the time left, and its numbers with their history, whatever they are."""

import io
import math

import numpy as np
import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from jaxppo.run.console import Console
from jaxppo.run.progress import Progress, format_time, sparkline


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([0.0, 1.0], 8, "▁█"),
        (range(8), 8, "▁▂▃▄▅▆▇█"),
        ([0, 0, 1, 1, 2, 2, 3, 3], 4, "▁▃▆█"),  # means of two
        ([0.0, None, math.nan, math.inf, 1.0], 8, "▁   █"),
        ([2.5, 2.5, 2.5], 8, "▅▅▅"),
        ([None, math.nan], 8, "  "),
        ([], 8, ""),
    ],
)
def test_sparkline_draws_the_course(values, width, line):
    assert sparkline(values, width) == line


@given(st.lists(st.none() | st.floats(-1e100, 1e100)), st.integers(1, 20))
def test_sparkline_takes_any_numbers(values, width):
    assert len(sparkline(values, width)) == min(width, len(values))


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.9, "1:01"), (3599, "59:59"), (3661, "1:01:01")])
def test_format_time(seconds, text):
    assert format_time(seconds) == text


def frame(progress, width):
    out = io.StringIO()
    console = rich.console.Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print(progress.numbers())
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [2, 20, 80])
def test_numbers_are_shown_with_their_history_and_what_to_do(width):
    hints = {"kl": "raise kl_coef", "valid": ""}
    console = Console(file=io.StringIO())
    progress = Progress(console, "PPO", 40, 10, "update", "", lambda label, _: hints.get(label))
    for step in range(11, 21):
        numbers = {"reward": np.float32(step), "valid": math.nan, "kl": 31.0, "value fit": None}
        progress.update(step, **numbers, **{"rows [red]\x1b[2J": "3/4"})
    lines = frame(progress, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "\x1b[2J" not in "\n".join(lines)
    if width == 80:
        assert [line.split() for line in lines] == [
            ["reward", "20", "▁▁▂▃▄▅▆▇██"],
            ["valid", "nan", "ok"],
            ["kl", "31", "▅" * 10, "raise", "kl_coef"],
            ["value", "fit"],
            ["rows", r"[red]\x1b[2J", "3/4"],
        ]


@pytest.mark.parametrize(
    ("start", "seconds", "left"),
    [
        (90, [10.0], [90.0]),
        (0, [60.0, 62.0, 64.0], [540.0, 16.0, 14.0]),
    ],
    ids=["of this process's updates", "without the first update, which compiles"],
)
def test_the_time_left_is_that_of_the_updates_to_come(monkeypatch, start, seconds, left):
    clock = [0.0]
    monkeypatch.setattr(Progress, "elapsed_s", property(lambda self: clock[0]))
    total = 100 if start else 10
    progress = Progress(Console(file=io.StringIO()), "PPO", total, start, "update", "", None)
    assert progress.left_s is None
    for step, (clock[0], expected) in enumerate(zip(seconds, left, strict=True), start + 1):
        progress.update(step)
        assert progress.left_s == expected
    clock[0] += 1.0
    assert progress.left_s == left[-1] - 1.0
