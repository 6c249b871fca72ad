import datetime
import decimal
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.errors import DataError
from jaxppo.run.jsonl import JsonlLog, read_metrics


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def write_steps(path, steps):
    with JsonlLog(path) as log:
        for step in steps:
            log.append({"step": step, "loss": step / 2})


def test_append_is_on_file_at_once_and_reads_back(path):
    with JsonlLog(path) as log:
        log.truncate_after(0)
        assert read_metrics(path) == []
        log.append({"step": 1, "loss": 0.5, "plan": "(a b)\n"})
        assert read_metrics(path) == [{"step": 1, "loss": 0.5, "plan": "(a b)\n"}]
        log.append({"step": 2})
        log.truncate_after(5)  # beyond its end
        assert [record["step"] for record in read_metrics(path)] == [1, 2]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, None),
        (np.float32("-inf"), None),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (jnp.asarray([1.0, jnp.nan]), [1.0, None]),
        ({"a": (1, math.nan)}, {"a": [1, None]}),
        ({"at": datetime.date(2026, 1, 2)}, {"at": "2026-01-02"}),
        ([decimal.Decimal("1.5"), datetime.timedelta(1), b"text", b"\xff"], ["1.5", "1 day, 0:00:00", "text", "ff"]),
    ],
)
def test_append_writes_plain_json(path, value, written):
    with JsonlLog(path) as log:
        log.append({"value": value})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"value": written}


def test_append_keeps_hostile_text_as_ascii_escapes_and_writes_nothing_of_what_json_has_no_form_for(path):
    text = "\x1b[2J\u202e\ud800 é\n"
    with JsonlLog(path) as log:
        log.append({"step": 1, "completion": text})
        with pytest.raises(TypeError):
            log.append({"step": 2, "bad": object()})
    content = path.read_bytes()
    assert all(32 <= byte < 127 for byte in content[:-1]) and content.endswith(b"}\n")
    assert read_metrics(path) == [{"step": 1, "completion": text}]


@pytest.mark.parametrize("tail", ["", '{"step": 3, "lo'])
def test_open_drops_half_a_line_and_truncate_after_goes_on_after_a_step(path, tail):
    write_steps(path, [1, 1, 2, 3, 4])
    before = path.read_text().splitlines(keepends=True)
    with path.open("a") as file:
        file.write(tail)
    with JsonlLog(path) as log:
        log.append({"step": 5})
        assert [record["step"] for record in read_metrics(path)] == [1, 1, 2, 3, 4, 5]
        log.truncate_after(2)
        assert path.read_text() == "".join(before[:3])
        log.append({"step": 3})
    assert [record["step"] for record in read_metrics(path)] == [1, 1, 2, 3]
    assert [file.name for file in path.parent.iterdir()] == ["metrics.jsonl"]


def test_truncate_after_names_a_record_without_a_step_and_leaves_the_file(path):
    path.parent.mkdir()
    for record in ('{"loss": 1.0}\n', '{"step": "1"}\n'):
        path.write_text(record)
        with JsonlLog(path) as log, pytest.raises(DataError, match=r"metrics\.jsonl: .*`step`"):
            log.truncate_after(1)
        assert path.read_text() == record


@pytest.mark.parametrize(
    "content",
    [b'{"step": 2, \n', b"[1]\n", b"\xff\n"],
    ids=["broken", "a list", "no text"],
)
def test_read_metrics_names_a_malformed_line(path, content):
    path.parent.mkdir()
    path.write_bytes(b'{"step": 1}\n' + content)
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: "):
        read_metrics(path)


def test_read_metrics_leaves_a_half_written_last_line_out_and_names_a_missing_file(path):
    with pytest.raises(DataError, match=r"metrics\.jsonl: "):
        read_metrics(path)
    path.parent.mkdir()
    path.write_bytes(b'{"step": 1}\n{"text": "\xc3')  # killed within a character
    assert read_metrics(path) == [{"step": 1}]
