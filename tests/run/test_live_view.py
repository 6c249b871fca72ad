"""The live view: a frame for every size of a terminal, whatever the numbers and texts are."""

import io
import math

import numpy as np
import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from jaxppo.run.console import Console
from jaxppo.run.live_view import ASCII_BLOCKS, BLOCKS, LiveView, Loop, format_time, sparkline

HOSTILE = "[red]x[/red] \x1b[2J\x1b]0;t\x07 [/ \u202e\n\ud800 日本 😀" + "word " * 200
COLUMNS = ["prompt", "completion", "verdict", "reward_plan", "reward_mine", "score"]


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([0.0, 1.0], 8, "▁█"),
        (range(8), 8, BLOCKS),
        ([0, 0, 1, 1, 2, 2, 3, 3], 4, "▁▃▆█"),  # means of two
        ([0.0, None, math.nan, math.inf, 1.0], 8, "▁   █"),
        ([2.5, 2.5, 2.5], 8, "▅▅▅"),
        ([-1e308, 1e308], 8, "▁█"),
        ([None, math.nan], 8, "  "),
        ([1.0, 2.0], 0, ""),
    ],
)
def test_sparkline_draws_the_course(values, width, line):
    assert sparkline(values, width) == line
    assert sparkline(values, width, ASCII_BLOCKS) == line.translate(str.maketrans(BLOCKS, ASCII_BLOCKS))


@given(st.lists(st.none() | st.floats()), st.integers(-1, 20))
def test_sparkline_takes_any_numbers(values, width):
    assert len(sparkline(values, width)) == max(0, min(width, len(values)))


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.9, "1:01"), (3599, "59:59"), (3661, "1:01:01")])
def test_format_time(seconds, text):
    assert format_time(seconds) == text


def make_view(text="x", notice=None, ascii_only=False):
    """A view in the middle of a run, with everything there is to show."""
    loop = Loop(
        total=40,
        title="PPO",
        start=10,
        header=f"PPO of model on blocksworld {text}",
        stages=("evaluation before", "PPO", "saving"),
        hint=lambda label, _: {"kl": "raise kl_coef", "valid": ""}.get(label),
    )
    view = LiveView(loop, Console(file=io.StringIO()).text, ascii_only, lambda: notice)
    view.recall([{"reward": value, "kl": 0.0} for value in range(10)])
    numbers = {"reward": np.float32(12.5), "valid": math.nan, "kl": 31.0, "value fit": None, "samples/s": 1234567.0}
    view.update(12, **numbers, **({} if text == "x" else {text: text}))
    view.doing("evaluation")
    view.warn(f"update 3: low KL {text}")
    row = {"prompt": f"goal {text}", "completion": f"stack a b {text}", "verdict": text, "reward_plan": 0.25}
    view.samples("Samples of update 11", [row | {"reward_mine": None, "score": "0.25"}, {"prompt": "p"}], COLUMNS)
    return view


def test_long_texts_are_seen_from_their_beginning_and_of_many_warnings_the_latest():
    view = make_view()
    view.samples("Samples", [{"prompt": "p", "completion": "\n\nstack-a-b\n" + "x" * 100_000}], COLUMNS)
    (line,) = [line for line in frame(view, 80) if "stack-a-b" in line]
    assert line.strip().startswith(r"\n\nstack-a-b\nxxx")
    view = make_view()
    for number in range(5):
        view.warn(f"warning {number} " + "long " * 200)
    lines = frame(view, 80)
    assert [line[:11] for line in lines if line.startswith("!")] == ["! warning 2", "! warning 3", "! warning 4"]
    assert "Samples of update 11" in {line.rstrip() for line in lines}  # long ones leave room


def frame(view, width, height=50, encoding="utf-8", soft_wrap=False):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    console = rich.console.Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(view, soft_wrap=soft_wrap)
    out.flush()
    return raw.getvalue().decode(encoding).splitlines()


def test_a_frame_shows_the_run_its_numbers_warnings_and_samples():
    lines = frame(make_view(), 80)
    assert lines[0].rstrip() == "PPO of model on blocksworld x"
    assert lines[1].rstrip() == "evaluation before > PPO > saving"
    assert "update 12 of 40, 0:00 elapsed, 0:00 left, evaluation" in lines[2]
    numbers = {line.split("  ")[0]: line for line in lines[3:8]}
    assert list(numbers) == ["reward", "valid", "kl", "value fit", "samples/s"]
    assert "12.5" in numbers["reward"] and "▁▁▂▂▃▄▄▅▆▆█" in numbers["reward"]
    assert numbers["kl"].rstrip().endswith("raise kl_coef")
    assert numbers["valid"].split() == ["valid", "nan", "ok"]
    assert numbers["samples/s"].split() == ["samples/s", "1.23e+06", "▅"]
    assert frame(make_view(notice="stopping"), 80)[3].rstrip() == "stopping"
    assert [line.rstrip() for line in lines[8:13]] == [
        "! update 3: low KL x",
        "Samples of update 11",
        "verdict x  reward_plan 0.25  score 0.25",
        "  prompt: goal x",
        "  completion: stack a b x",
    ]


@pytest.mark.parametrize("text", ["x", HOSTILE])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (2, 3), (20, 10), (79, 24), (300, 100)])
def test_a_frame_fits_any_terminal_and_holds_no_control_codes(text, width, height):
    lines = frame(make_view(text, notice="stopping"), width, height)
    assert 1 <= len(lines) <= max(1, height - 1)
    assert all(cell_len(line) <= width for line in lines) or width == 1  # wide characters need 2
    assert all(char.isprintable() for line in lines for char in line)
    # Rich draws a view with the options of what is printed above it.
    assert frame(make_view(text, notice="stopping"), width, height, soft_wrap=True) == lines


def test_a_view_before_the_first_update_shows_where_it_stands_and_one_without_unicode_is_ascii():
    view = LiveView(Loop(0, "SFT", unit="row"), Console(file=io.StringIO()).text, False, lambda: None)
    assert "SFT  row 0 of 0, 0:00 elapsed" in frame(view, 80)[0]
    lines = frame(make_view(ascii_only=True), 80, encoding="ascii")
    assert "_..-==+++@" in "\n".join(lines).replace("*", "+")
