import io
import json
import math
import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jaxppo.errors import DataError
from jaxppo.metrics import Console, JsonlLog, plot_curves, read_metrics, sanitize

# ------------------------------------------------------------------------------------------------------------- JsonlLog


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def write_steps(path, steps):
    with JsonlLog(path) as log:
        for step in steps:
            log.append({"step": step, "loss": step / 2})


def test_append_is_on_file_at_once_and_reads_back(path):
    with JsonlLog(path) as log:
        log.append({"step": 1, "loss": 0.5, "plan": "(a b)\n"})
        assert read_metrics(path) == [{"step": 1, "loss": 0.5, "plan": "(a b)\n"}]
        log.append({"step": 2})
        assert [record["step"] for record in read_metrics(path)] == [1, 2]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, None),
        (math.inf, None),
        (np.float32("-inf"), None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (jnp.float32(0.25), 0.25),
        (jnp.asarray([1.0, jnp.nan]), [1.0, None]),
        ({"a": (1, math.nan)}, {"a": [1, None]}),
        (None, None),
        (0, 0),
        (False, False),
    ],
)
def test_append_writes_plain_json(path, value, written):
    with JsonlLog(path) as log:
        log.append({"value": value})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"value": written}


def test_append_refuses_what_json_has_no_form_for_and_writes_nothing(path):
    with JsonlLog(path) as log, pytest.raises(TypeError):
        log.append({"step": 1, "bad": object()})
    assert path.read_text() == ""


def test_append_keeps_hostile_text_as_ascii_escapes(path):
    text = "\x1b[2J\u202e\ud800 é\n"
    with JsonlLog(path) as log:
        log.append({"step": 1, "completion": text})
    content = path.read_bytes()
    assert all(32 <= byte < 127 for byte in content[:-1])
    assert content.endswith(b"}\n")
    assert read_metrics(path)[0]["completion"] == text


def test_open_keeps_records_and_drops_a_half_written_line(path):
    write_steps(path, [1, 2])
    with path.open("a") as file:
        file.write('{"step": 3, "lo')
    write_steps(path, [3])
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3]


@pytest.mark.parametrize("tail", ["", '{"step": 3, "lo', '{"step": 2, "loss": 1.0}'])
def test_truncate_after_keeps_steps_up_to_the_checkpoint_and_goes_on_appending(path, tail):
    write_steps(path, [1, 1, 2, 3, 4])
    before = path.read_text().splitlines(keepends=True)
    with path.open("a") as file:
        file.write(tail)
    with JsonlLog(path) as log:
        log.truncate_after(2)
        assert path.read_text() == "".join(before[:3])
        log.append({"step": 3})
    assert [record["step"] for record in read_metrics(path)] == [1, 1, 2, 3]
    assert [file.name for file in path.parent.iterdir()] == ["metrics.jsonl"]


def test_truncate_after_an_empty_log_or_beyond_its_end_changes_nothing(path):
    with JsonlLog(path) as log:
        log.truncate_after(0)
        assert read_metrics(path) == []
        log.append({"step": 1})
        log.truncate_after(5)
    assert read_metrics(path) == [{"step": 1}]


@pytest.mark.parametrize("record", ['{"loss": 1.0}', '{"step": null}', '{"step": "1"}'])
def test_truncate_after_names_a_record_without_a_step_and_leaves_the_file(path, record):
    path.parent.mkdir()
    path.write_text(record + "\n")
    with JsonlLog(path) as log, pytest.raises(DataError, match=r"metrics\.jsonl: expected an integer `step`"):
        log.truncate_after(1)
    assert path.read_text() == record + "\n"


@pytest.mark.parametrize("content", ['{"step": 1}\n{"step": 2, \n', '{"step": 1}\n[1]\n', '{"step": 1}\n\n'])
def test_read_metrics_names_a_malformed_line(path, content):
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: expected a JSON object"):
        read_metrics(path)


def test_read_metrics_leaves_a_half_written_last_line_out(path):
    path.parent.mkdir()
    path.write_bytes(b'{"step": 1}\n{"text": "\xc3')  # killed within a character
    assert read_metrics(path) == [{"step": 1}]


def test_read_metrics_names_a_missing_file_and_bytes_that_are_no_text(path):
    with pytest.raises(DataError, match="found nothing"):
        read_metrics(path)
    path.parent.mkdir()
    path.write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="expected UTF-8"):
        read_metrics(path)


# ------------------------------------------------------------------------------------------------------------- sanitize

HOSTILE = [
    ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
    ("\x1b]8;;file:///x\x07link", r"\x1b]8;;file:///x\x07link"),
    ("\x9b2J", r"\x9b2J"),
    ("a\rb\nc\td\0", r"a\rb\nc\td\x00"),
    ("\x7f\b", r"\x7f\x08"),
    ("\u202a\u202b\u202c\u202d\u202e", r"\u202a\u202b\u202c\u202d\u202e"),
    ("\u2066\u2067\u2068\u2069", r"\u2066\u2067\u2068\u2069"),
    ("\u200b\u200c\u200d\u2060\ufeff\u00ad", r"\u200b\u200c\u200d\u2060\ufeff\xad"),
    ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
    ("\ud800x\udfff", r"\ud800x\udfff"),
    ("\U000e0041\U0010ffff\ue000", r"\U000e0041\U0010ffff\ue000"),
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_sanitize_shows_hostile_characters_escaped(text, shown):
    assert sanitize(text) == shown


@pytest.mark.parametrize("text", ["", "(stack a b)", "é 日本 ß 😀", r"C:\x1b", "[red]x[/red] :smile:"])
def test_sanitize_leaves_readable_text_alone(text):
    assert sanitize(text) == text


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("abcd", 4, "abcd"),
        ("abcde", 4, "abcd… [+1 characters]"),
        ("ab\x1bde", 4, "ab… [+3 characters]"),  # never half an escape
        ("abc", 0, "… [+3 characters]"),
        ("a" * 3000, None, "a" * 3000),
    ],
)
def test_sanitize_counts_what_it_cuts(text, limit, shown):
    assert sanitize(text, limit=limit) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_sanitize_of_any_text_is_printable_and_stable(text):
    shown = sanitize(text)
    assert "\n" not in shown and all(char.isprintable() or char.isspace() for char in shown)
    assert sanitize(shown) == shown
    shown.encode("utf-8")


# -------------------------------------------------------------------------------------------------------------- Console

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
MARKUP = "[red]x[/red] [link=file:///x]y[/link] :smile: [/"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drive(console, text):
    """Calls everything that shows text, with `text` wherever a model's text could come."""
    console.stage(text)
    console.print(text)
    console.warn(text)
    with console.progress(2, "PPO") as progress:
        progress.update(1, sample=text, reward=0.5)
        progress.update(2, sample=text, reward=0.75)
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
    assert output.count(f"sample {sanitize(text)}") == 2
    assert sanitize(text) in output.split("samples", 1)[1]


def test_console_on_terminal_interprets_neither_markup_nor_codes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    out = Terminal()
    drive(Console(file=out), MARKUP + "\x1b[2J\x1b]0;title\x07")
    output = out.getvalue()
    assert "\x1b[2J" not in output and "\x1b]" not in output
    for where in (f"== {MARKUP}", f"warning: {MARKUP}", f"sample {MARKUP}", f"│ {MARKUP}"):
        assert where in output


def test_console_takes_a_dumb_terminal_for_a_file(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    drive(Console(file=out), "x")
    assert not CONTROL.search(out.getvalue())


def test_console_quiet_shows_warnings_only():
    out = io.StringIO()
    drive(Console(quiet=True, file=out), "x")
    assert out.getvalue() == "warning: x\n"


def test_console_escapes_what_the_output_cannot_encode():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    drive(Console(file=out), "é 日")
    out.flush()
    assert rb"\xe9 \u65e5" in raw.getvalue()


def test_console_print_neither_wraps_nor_breaks_long_lines():
    out = io.StringIO()
    Console(file=out).print("word " * 100 + "\nend")
    assert out.getvalue() == "word " * 100 + "\nend\n"


def test_console_writes_to_standard_output_by_default():
    code = "from jaxppo.metrics import Console; Console().stage('one')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "== one ==\n"


def test_progress_off_terminal_prints_first_last_and_few_between():
    out = io.StringIO()
    with Console(file=out).progress(1000, "SFT") as progress:
        for step in range(1, 1001):
            progress.update(step, loss=1 / step, **{"samples/s": 12345.678})
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("SFT  update 1 of 1000  loss 1  samples/s 1.23e+04  ")
    assert lines[-1].startswith("SFT  update 1000 of 1000  loss 0.001  ") and lines[-1].endswith("0:00 left")
    assert 10 <= len(lines) <= 25


def test_progress_time_left_counts_only_the_updates_of_this_process(monkeypatch):
    now = iter([100.0, 110.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    out = io.StringIO()
    with Console(file=out).progress(100, "PPO", start=90) as progress:
        progress.update(91, reward=np.float32(0.5))
    assert out.getvalue() == "PPO  update 91 of 100  reward 0.5  1:30 left\n"


def test_progress_on_terminal_shows_step_and_fields(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    with Console(file=out).progress(40, "PPO", start=10) as progress:
        progress.update(12, reward=0.5, validity="31 %")
    assert "update 12 of 40" in out.getvalue()
    assert "reward 0.5  validity 31 %" in out.getvalue()


# ---------------------------------------------------------------------------------------------------------- plot_curves


def scores(rate, n=1024):
    return {"validity": {"rate": rate, "low": max(rate - 0.03, 0.0), "high": min(rate + 0.03, 1.0), "n": n}}


FULL = [
    {
        "step": step,
        "objective/scores": 1 - 1 / step,
        "reward/plan_valid": 0.5,
        "objective/kl": 0.1 * step,
        "policy/clipfrac_avg": 0.1,
        "value/explained_variance": None if step == 1 else 1 - 3 / step,
        "completions/mean_length": 20.0,
    }
    for step in range(1, 41)
]
BOTH = {
    "headline_split": "longer",
    "before": {"test": scores(0.9), "longer": scores(0.5)},
    "after": {"test": scores(0.92), "longer": scores(0.75)},
}


def picture(folder, metrics, evals):
    path = folder / "run" / "curves.png"
    plot_curves(metrics, evals, path)
    with Image.open(path) as image:
        assert image.format == "PNG" and image.size == (1280, 840)
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize(
    ("metrics", "evals"),
    [
        (FULL, BOTH),
        (FULL, {"before": BOTH["before"]}),
        (FULL[:1], {"before": {}, "after": {"test": scores(0.0, n=16)}}),
        ([{"step": 1}, {"step": 2, "objective/kl": None}], {}),
        ([], {}),
    ],
)
def test_plot_curves_draws_what_there_is(tmp_path, metrics, evals):
    assert picture(tmp_path, metrics, evals).std() > 5


def test_plot_curves_shows_each_curve_and_bar(tmp_path):
    whole = picture(tmp_path, FULL, BOTH)
    keys = [key for key in FULL[0] if key not in ("step", "completions/mean_length")]
    for missing in keys:
        fewer = [{key: value for key, value in record.items() if key != missing} for record in FULL]
        assert (picture(tmp_path, fewer, BOTH) != whole).any(), missing
    for side in ("before", "after"):
        assert (picture(tmp_path, FULL, {**BOTH, side: {}}) != whole).any(), side


def test_plot_curves_shows_completion_length_where_the_update_reports_no_health(tmp_path):
    plain = [{"step": record["step"]} for record in FULL]
    length = [{"step": record["step"], "completions/mean_length": 20.0} for record in FULL]
    assert (picture(tmp_path, plain, {}) != picture(tmp_path, length, {})).any()


def test_plot_curves_leaves_pyplot_alone():
    code = "import sys, os; from jaxppo.metrics import plot_curves; plot_curves([], {}, os.devnull)"
    code += "; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
