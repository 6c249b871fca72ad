import io
import os
import re
import signal
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxppo.run import activity
from jaxppo.run import console as console_module
from jaxppo.run.activity import Activity
from jaxppo.run.console import Console, sanitize
from jaxppo.run.preemption import Preempted, Preemption

HOSTILE = [
    ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
    ("\x1b]8;;file:///x\x07link", r"\x1b]8;;file:///x\x07link"),
    ("\x9b2J", r"\x9b2J"),
    ("a\rb\nc\td\0", r"a\rb\nc\td\x00"),
    ("\u202a\u202e\u2066\u2069", r"\u202a\u202e\u2066\u2069"),
    ("\u200b\u200c\u200d\u2060\ufeff\u00ad", r"\u200b\u200c\u200d\u2060\ufeff\xad"),
    ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
    ("\ud800x\udfff", r"\ud800x\udfff"),
    ("\U000e0041\U0010ffff\ue000", r"\U000e0041\U0010ffff\ue000"),
]


READABLE = r"(stack a b) é 日本 ß 😀 C:\x1b [red]x[/red] :smile:"


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        *((text, None, shown) for text, shown in HOSTILE),
        (READABLE, None, READABLE),
        ("abcd", 4, "abcd"),
        ("abcde", 4, "abcd… [+1 characters]"),
        ("ab\x1bde", 4, "ab… [+3 characters]"),  # never half an escape
        ("abc", 0, "… [+3 characters]"),
        ("a" * 3000, None, "a" * 3000),
    ],
)
def test_sanitize_shows_hostile_characters_escaped_and_counts_what_it_cuts(text, limit, shown):
    assert sanitize(text, limit=limit) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_sanitize_of_any_text_is_printable_and_stable(text):
    shown = sanitize(text)
    assert "\n" not in shown and all(char.isprintable() or char.isspace() for char in shown)
    assert sanitize(shown) == shown
    shown.encode("utf-8")


SAMPLE = ["prompt", "completion", "verdict", "score"]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
CODES = re.compile(r"\x1b\[[0-9;]*m")
MARKUP = "[red]x[/red] [link=file:///x]y[/link] :smile: [/"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drive(console, text):
    """Calls everything that shows text, with `text` wherever a model's text could come."""
    console.stage(text)
    console.print(text)
    console.warn(text)
    with console.progress(2, "PPO", header=text, hint=lambda *_: text) as progress:
        progress.update(1, reward=0.5)
        console.sample_table(text, [{"prompt": text, "completion": text, "verdict": text, "score": 0.5}], SAMPLE)
        console.warn(text)
        progress.update(2, reward=0.75)
    console.sample_table("samples", [{"plan": text, "verdict": text}, {"plan": None}], ["plan", "verdict"])


@pytest.mark.parametrize("text", [MARKUP, *(text for text, _ in HOSTILE)])
def test_console_off_terminal_shows_text_literally_without_control_codes(text, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    drive(Console(file=out), text)
    output = out.getvalue()
    assert not CONTROL.search(output)
    literal = "\n".join(map(sanitize, text.split("\n")))
    assert output.startswith(f"== {sanitize(text)} ==\n{literal}\nwarning: {literal}\n")
    assert sanitize(text) in output.split("samples", 1)[1]


def test_console_on_terminal_interprets_neither_markup_nor_codes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    out = Terminal()
    drive(Console(file=out), MARKUP + "\x1b[2J\x1b]0;title\x07")
    output = out.getvalue()
    assert "\x1b[2J" not in output and "\x1b]" not in output
    shown = ("== ", "warning: ", "│ ")
    for where in (prefix + MARKUP for prefix in shown):
        assert where in output


def test_console_takes_a_dumb_terminal_for_a_file_and_shows_warnings_alone_when_quiet(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    for quiet in (False, True):
        out = Terminal()
        drive(Console(quiet=quiet, file=out), "x")
        assert not CONTROL.search(out.getvalue())
        assert (out.getvalue() == "warning: x\n" * 2) == quiet


def test_console_escapes_what_the_output_cannot_encode_and_wraps_no_lines(capsys):
    Console().print("word " * 100 + "\nend")
    assert capsys.readouterr().out == "word " * 100 + "\nend\n"
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    drive(Console(file=out), "é 日")
    out.flush()
    assert rb"\xe9 \u65e5" in raw.getvalue()


def test_off_a_terminal_tables_keep_their_rows_and_progress_prints_few_lines():
    out = io.StringIO()
    rows = [{"split": "test\x1b[2J", "n": 7}, {"split": "test_longer", "n": 1024, "valid": "9.7% [8.0, 11.6]"}]
    Console(quiet=True, file=out).result_table("Results", rows, ["split", "n", "valid"])
    assert out.getvalue().splitlines() == [
        "",
        "Results",
        "split           n             valid",
        "test\\x1b[2J     7",
        "test_longer  1024  9.7% [8.0, 11.6]",
    ]
    out = io.StringIO()
    with Console(file=out).progress(1000, "SFT") as progress:
        for step in range(1, 1001):
            progress.update(step, loss=1 / step, **{"samples/s": 12345.678})
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("SFT  update 1 of 1000  loss 1  samples/s 1.23e+04  ")
    assert lines[-1].startswith("SFT  update 1000 of 1000  loss 0.001  ") and "  0:00 " in lines[-1]
    assert 10 <= len(lines) <= 25


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    return Terminal()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_takes_long_is_said_and_nothing_of_what_does_not(terminal, monkeypatch, is_terminal):
    out = terminal if is_terminal else io.StringIO()
    with Console(file=out).shown(Activity("quick")):
        pass
    assert out.getvalue() == ""
    for name in ("FIRST_SIGN_S", "NEXT_SIGN_S", "BAR_S"):
        monkeypatch.setattr(console_module, name, 0.01)
    view = Console(file=out)
    with view.shown(Activity("evaluation of test")), view.shown(Activity("decoding", 4)) as decoding:
        decoding.done = 2
        while "evaluation of test, 0:00 elapsed: decoding 2 of 4 rows, 0:00 elapsed, 0:00 left" not in out.getvalue():
            time.sleep(0.01)
    with Console(quiet=True, file=out).shown(Activity("unseen")):
        time.sleep(0.05)
    assert "unseen" not in out.getvalue()


def test_work_that_compiles_says_so_the_first_time(monkeypatch):
    monkeypatch.setattr(activity, "_have_compiled", set())
    monkeypatch.setattr(activity, "_console", None)
    with pytest.raises(ValueError), activity.show("learning", compiles=True):
        raise ValueError
    titles = []
    for title in ("learning", "scoring", "learning"):
        with activity.show(title, compiles=True) as shown:
            titles.append(shown.title)
    assert titles == ["learning (compiling first)", "scoring (compiling first)", "learning"]


def test_what_is_printed_beside_a_live_view_is_neither_lost_nor_mixed_up_with_it(terminal, monkeypatch):
    """By whoever prints; standard error that goes to a file still goes there."""
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", err := io.StringIO())
    console = Console()
    with console.progress(40, "PPO", start=10) as progress:
        progress.update(12, reward=0.5)
        print("from a library \x1b[2J\x1b[1mbold")
        print("from its errors", file=sys.stderr)
        console.warn("raise kl_coef")
    shown = terminal.getvalue()
    assert "PPO 12 of 40 updates" in CODES.sub("", shown) and re.search(r"reward +0.5 ", CODES.sub("", shown))
    assert "from a library bold" in CODES.sub("", shown) and "\x1b[2J" not in shown
    assert shown.count("warning: raise kl_coef") == 1
    assert err.getvalue() == "from its errors\n"
    assert sys.stdout is terminal


def test_a_live_view_says_that_the_run_is_being_stopped(terminal):
    with pytest.raises(Preempted), Preemption("resume"), Console(file=terminal).progress(2, "PPO") as progress:
        progress.update(1)
        assert "stopping" not in terminal.getvalue()
        os.kill(os.getpid(), signal.SIGTERM)
    assert "stopping" in terminal.getvalue()
