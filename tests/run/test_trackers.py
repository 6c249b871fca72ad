"""What trackers are given arrives with its value and step; one that fails is told of once and left out."""

import importlib.util
import json
import math
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxppo.config import LoopConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import parse_cli, read_yaml, replace, write_yaml
from jaxppo.errors import ConfigError
from jaxppo.parallel import processes
from jaxppo.run import folder as run_folder
from jaxppo.run import trackers
from jaxppo.run.preemption import Preempted
from jaxppo.run.trackers import Trackers
from tests.event_files import read_events, scalars, shown_by_tensorboard, texts

SAMPLE = {"step": 1, "id": "a", "prompt": "<b>p</b> | q", "completion": "\x1b[2J`x` \ud800\n*y*", "score": 0.5}


def open_trackers(folder, *report_to, warn=pytest.fail, **settings):
    config = replace(TrainConfig(), output_dir=str(folder), **settings)
    return Trackers(report_to, folder, config, warn)


def test_tensorboard_gets_every_finite_number_at_its_step(tmp_path):
    with open_trackers(tmp_path, "tensorboard") as opened:
        opened.log(0, {"eval/test/validity": 0.25})
        opened.begin(0)
        record = {"step": 1, "a/b": 0.5, "np": np.float32(1.5), "array": np.array(2), "nan": math.nan}
        opened.log(1, record | {"inf": math.inf, "none": None, "text": "x", "many": np.zeros(2)})
        opened.log(2, {"step": 2, "a/b": -3})
    events = read_events(tmp_path)
    expected = [(0, "eval/test/validity", 0.25), (1, "a/b", 0.5), (1, "np", 1.5), (1, "array", 2.0), (2, "a/b", -3.0)]
    assert scalars(events) == expected


def test_tensorboard_gets_the_configuration_without_secrets_and_samples_as_text(tmp_path):
    url = "https://me:hunter2@example.org"
    settings = {"reward_funcs": ("server",), "reward_server_url": url, "kl_coef": 0.125}
    with open_trackers(tmp_path, "tensorboard", **settings) as opened:
        opened.begin(0)
        opened.samples(3, [SAMPLE] * 20)
    (config_step, config_tag, config), (step, tag, table) = texts(read_events(tmp_path))
    assert (config_step, config_tag) == (0, "config/text_summary")
    assert "    kl_coef: 0.125\n" in config and "hunter2" not in config
    assert (step, tag) == (3, "samples/text_summary")
    lines = table.splitlines()
    assert lines[:2] == ["| id | prompt | completion | score |", "| --- | --- | --- | --- |"]
    assert lines[2] == (
        "| a | &#60;b&#62;p&#60;&#47;b&#62; &#124; q | &#92;x1b&#91;2J&#96;x&#96; &#92;ud800&#92;n&#42;y&#42; | 0.5 |"
    )
    assert len(lines) == 2 + trackers.SAMPLES_SHOWN


def test_a_resumed_run_has_every_point_once(tmp_path):
    for start, updates in ((0, (1, 2, 3)), (2, (3, 4))):
        with open_trackers(tmp_path, "tensorboard") as opened:
            opened.log(0, {"eval": 0.25})
            opened.begin(start)
            for step in updates:
                opened.log(step, {"a": float(start + step)})
    points = shown_by_tensorboard(read_events(tmp_path))
    assert points == [(0, "eval", 0.25), (1, "a", 1.0), (2, "a", 2.0), (3, "a", 5.0), (4, "a", 6.0)]


def test_a_run_that_starts_over_has_its_first_points_once(tmp_path):
    for _ in range(2):
        with open_trackers(tmp_path, "tensorboard") as opened:
            opened.log(0, {"eval": 0.25})
            opened.begin(0)
            opened.log(1, {"a": 1.0})
    assert shown_by_tensorboard(read_events(tmp_path)) == [(0, "eval", 0.25), (1, "a", 1.0)]


def test_none_and_other_processes_write_nothing(tmp_path, monkeypatch):
    for report_to, first in ((["none"], True), (["tensorboard"], False)):
        monkeypatch.setattr(processes, "is_first", lambda first=first: first)
        with open_trackers(tmp_path, *report_to) as opened:
            opened.begin(0)
            opened.log(1, {"a": 1.0})
            opened.samples(1, [SAMPLE])
    assert list(tmp_path.iterdir()) == []


class Broken:
    """A tracker that fails in one of its methods."""

    def __init__(self, where):
        self.where, self.calls = where, []

    def __call__(self, folder, config):
        self._call("open")
        return self

    def _call(self, name):
        self.calls.append(name)
        if name == self.where:
            raise OSError("disk\x1b[2J\nfull")

    def begin(self, start):
        self._call("begin")

    def log(self, step, metrics):
        self._call("log")

    def samples(self, step, rows):
        self._call("samples")

    def close(self, failed):
        self._call("close")


@pytest.mark.parametrize("where", ["open", "begin", "log", "samples", "close"])
def test_a_tracker_that_fails_is_told_of_once_and_the_others_go_on(tmp_path, monkeypatch, where):
    warnings, broken = [], Broken(where)
    monkeypatch.setitem(trackers.TRACKERS, "wandb", trackers.TRACKERS["wandb"]._replace(make=broken))
    with open_trackers(tmp_path, "wandb", "tensorboard", warn=warnings.append) as opened:
        opened.begin(0)
        for step in (1, 2):
            opened.log(step, {"a": float(step)})
            opened.samples(step, [SAMPLE])
    assert broken.calls.count(where) == 1 and broken.calls[-1] == where
    (warning,) = warnings
    assert "wandb failed and gets nothing more of this run (OSError: disk\\x1b[2J full)" in warning
    assert "metrics.jsonl" in warning and "wandb sync" in warning
    assert scalars(read_events(tmp_path)) == [(1, "a", 1.0), (2, "a", 2.0)]


@pytest.mark.parametrize(("error", "failed"), [(KeyError("x"), True), (Preempted("resume", 15), False)])
def test_a_run_that_fails_is_closed_as_such_and_one_that_is_stopped_is_not(tmp_path, monkeypatch, error, failed):
    closed, broken = [], Broken("nowhere")
    monkeypatch.setitem(trackers.TRACKERS, "wandb", trackers.TRACKERS["wandb"]._replace(make=broken))
    monkeypatch.setattr(broken, "close", lambda failed: closed.append(failed))
    with pytest.raises(type(error)), open_trackers(tmp_path, "wandb") as opened:
        opened.begin(0)
        raise error
    assert closed == [failed]


def test_tensorboard_in_a_folder_that_cannot_be_written_to_is_told_and_the_run_goes_on(tmp_path):
    (tmp_path / "tensorboard").write_text("a file")
    warnings = []
    with open_trackers(tmp_path, "tensorboard", warn=warnings.append) as opened:
        opened.begin(0)
        opened.log(1, {"a": 1.0})
    (warning,) = warnings
    assert "tensorboard failed" in warning and "--resume" in warning


def test_wandb_that_is_not_installed_is_refused_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"report_to: expected the package wandb .*pip install 'jaxppo\[tracking\]'"):
        open_trackers(tmp_path, "tensorboard", "wandb")
    open_trackers(tmp_path, "tensorboard")


@pytest.mark.parametrize("value", [[], ["none", "wandb"], ["wandb", "wandb"], ["tensorboard", "wandb", "none"]])
def test_report_to_refuses_what_makes_no_sense(value):
    with pytest.raises(ConfigError, match="report_to"):
        LoopConfig(report_to=tuple(value))


def test_a_tracker_that_nobody_knows_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="report_to: expected tensorboard, wandb or none, got 'wandbb', did you mean"):
        open_trackers(tmp_path, "wandbb")
    assert list(tmp_path.iterdir()) == []


def test_a_new_tracker_is_a_class_and_a_row(tmp_path, monkeypatch):
    mine = Broken("nowhere")
    monkeypatch.setitem(trackers.TRACKERS, "mine", trackers.Kind(mine, None, None, "none"))
    report_to = parse_cli(TrainConfig, "train", ["--report_to", "mine"]).loop.report_to
    with open_trackers(tmp_path, *report_to) as opened:
        opened.begin(0)
        opened.log(1, {"a": 1.0})
    assert mine.calls == ["open", "begin", "log", "close"]


def test_report_to_is_a_flag_and_not_kept_with_the_run(tmp_path):
    config = parse_cli(SFTConfig, "sft", ["--report_to", "tensorboard", "wandb"])
    assert config.loop.report_to == ("tensorboard", "wandb")
    assert parse_cli(TrainConfig, "train", ["--report_to", "none"]).loop.report_to == ("none",)
    assert parse_cli(TrainConfig, "train", []).loop.report_to == ("tensorboard",)
    write_yaml(config, tmp_path / "config.yaml")
    assert "report_to" not in read_yaml(tmp_path / "config.yaml")
    (tmp_path / "mine.yaml").write_text("report_to: [wandb]\n")
    assert parse_cli(SFTConfig, "sft", ["--config", str(tmp_path / "mine.yaml")]).loop.report_to == ("wandb",)


def test_resume_command_names_what_the_folder_does_not_keep(tmp_path):
    folder = tmp_path / "my run"
    config = replace(TrainConfig(), quiet=True, report_to=("wandb", "tensorboard"), profile=3, kl_coef=0.5)
    command = run_folder.resume_command("train", folder, config)
    assert command == (f"python -m jaxppo.train --resume --output_dir '{folder}' --quiet --report_to wandb tensorboard")


def loaded_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_tensorboard_brings_neither_torch_nor_wandb(tmp_path):
    """Tensorboard's package would import torch, for seconds, wherever that is installed."""
    code = f"""
from pathlib import Path
from jaxppo.config import TrainConfig
from jaxppo.run.trackers import Trackers
with Trackers(("tensorboard",), Path({str(tmp_path)!r}), TrainConfig(), print) as trackers:
    trackers.begin(0)"""
    loaded = loaded_after(code)
    assert "tensorboardX" in loaded
    assert not {"torch", "wandb"} & loaded
    assert importlib.util.find_spec("torch") is not None


def wandb_records(folder):
    """Everything that wandb has written for later, session by session."""
    from wandb.proto.wandb_internal_pb2 import Record

    paths = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    return [[Record.FromString(data) for data in leveldb_records(path.read_bytes())] for path in paths]


def finished_sessions(folder, count):
    """Those of `wandb_records`; wandb's own process may write the end a moment after `finish` has returned."""
    for _ in range(300):
        sessions = wandb_records(folder)
        if [session[-1].HasField("exit") for session in sessions if session] == [True] * count:
            return sessions
        time.sleep(0.1)
    pytest.fail("wandb did not finish")


def leveldb_records(data, at=7):
    """Records of a log in LevelDB's format, in blocks of 32 KiB; a record may span several parts."""
    record = b""
    while at < len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""


def history(records):
    """{step: {name: value}} of what was logged."""
    logged = {}
    for record in records:
        if record.HasField("history"):
            items = {"/".join(item.nested_key): item.value_json for item in record.history.item}
            values = {name: json.loads(value) for name, value in items.items()}
            logged.setdefault(record.history.step.num, {}).update(values)
    return logged


def test_wandb_offline_keeps_numbers_samples_and_configuration_for_later(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="Weights & Biases is an extra: pip install 'jaxppo[tracking]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "plans")
    monkeypatch.setattr(sys, "argv", ["train", "--api_key", "hunter2hunter2"])
    folder = tmp_path / "my-run"
    folder.mkdir()
    url = "https://me:hunter2@example.org"
    settings = {"reward_funcs": ("server",), "reward_server_url": url, "kl_coef": 0.125}
    for start in (0, 2):
        with open_trackers(folder, "wandb", **settings) as opened:
            opened.log(0, {"eval": 0.25})
            opened.begin(start)
            for step in (start + 1, start + 2):
                opened.log(step, {"step": step, "a": step / 2, "nan": math.nan})
            opened.samples(step, [SAMPLE])
    first, second = finished_sessions(folder, 2)
    logged = {
        step: {name: value for name, value in row.items() if name in ("a", "eval", "nan")}
        for step, row in (history(first) | history(second)).items()
    }
    assert logged == {0: {"eval": 0.25}, 1: {"a": 0.5}, 2: {"a": 1.0}, 3: {"a": 1.5}, 4: {"a": 2.0}}
    assert history(first)[2]["samples/nrows"] == 1
    runs = [next(record.run for record in records if record.HasField("run")) for records in (first, second)]
    assert [run.project for run in runs] == ["plans", "plans"]
    assert runs[0].run_id == runs[1].run_id == (folder / "wandb" / "run_id").read_text().strip()
    assert runs[0].display_name == "my-run"
    config = {update.key: update.value_json for update in runs[0].config.update}
    assert config["kl_coef"] == "0.125"
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"kl_coef" in written and b"hunter2" not in written
