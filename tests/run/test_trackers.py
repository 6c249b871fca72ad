"""What trackers are given arrives with its value and step; one that fails is warned of once and left out."""

import importlib.util
import math
import subprocess
import sys
from unittest.mock import Mock, call

import numpy as np
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.errors import ConfigError
from jaxppo.parallel import processes
from jaxppo.run import trackers
from jaxppo.run.preemption import Preempted
from jaxppo.run.trackers import Trackers
from tests.event_files import read_events, scalars, shown_by_tensorboard, texts

SAMPLE = {"step": 1, "id": "a", "prompt": "<b>p</b> | q", "completion": "\x1b[2J`x` \ud800\n*y*", "score": 0.5}


def open_trackers(folder, *report_to, warn=pytest.fail, **settings):
    config = replace(TrainConfig(), output_dir=str(folder), **settings)
    return Trackers(report_to, folder, config, warn)


def test_tensorboard_gets_numbers_and_the_configuration_without_secrets(tmp_path):
    url = "https://me:hunter2@example.org"
    settings = {"reward_funcs": (url,), "kl_coef": 0.125}
    with open_trackers(tmp_path, "tensorboard", **settings) as opened:
        opened.begin(0)
        opened.log(0, {"eval/test/validity": 0.25})
        record = {"step": 1, "a/b": 0.5, "np": np.float32(1.5), "array": np.array(2), "nan": math.nan}
        opened.log(1, record | {"inf": math.inf, "none": None, "text": "x", "many": np.zeros(2)})
        opened.log(2, {"step": 2, "a/b": -3})
    events = read_events(tmp_path)
    expected = [(0, "eval/test/validity", 0.25), (1, "a/b", 0.5), (1, "np", 1.5), (1, "array", 2.0), (2, "a/b", -3.0)]
    assert scalars(events) == expected
    ((config_step, config_tag, config),) = texts(events)
    assert (config_step, config_tag) == (0, "config/text_summary")
    assert "    kl_coef: 0.125\n" in config and "hunter2" not in config


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        (2, [(0, "eval", 0.25), (1, "a", 1.0), (2, "a", 2.0), (3, "a", 5.0), (4, "a", 6.0)]),
        (0, [(0, "eval", 0.25), (3, "a", 3.0), (4, "a", 4.0)]),
    ],
    ids=["resumed", "started over"],
)
def test_a_run_of_several_starts_has_every_point_once(tmp_path, start, shown):
    for at, updates in ((0, (1, 2, 3)), (start, (3, 4))):
        with open_trackers(tmp_path, "tensorboard") as opened:
            opened.begin(at)
            if not at:
                opened.log(0, {"eval": 0.25})
            for step in updates:
                opened.log(step, {"a": float(at + step)})
    assert shown_by_tensorboard(read_events(tmp_path)) == shown


def test_none_and_other_processes_write_nothing(tmp_path, monkeypatch):
    for report_to, first in ((["none"], True), (["tensorboard"], False)):
        monkeypatch.setattr(processes, "is_first", lambda first=first: first)
        with open_trackers(tmp_path, *report_to) as opened:
            opened.begin(0)
            opened.log(1, {"a": 1.0})
            opened.samples(1, [SAMPLE])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["open", "begin", "log", "samples", "close"])
def test_a_tracker_that_fails_is_warned_of_once_and_the_others_go_on(tmp_path, monkeypatch, where):
    warnings, tracker = [], Mock()
    make = Mock(return_value=tracker)
    failing = make if where == "open" else getattr(tracker, where)
    failing.side_effect = OSError("disk\x1b[2J\nfull")
    monkeypatch.setitem(trackers.TRACKERS, "wandb", trackers.TRACKERS["wandb"]._replace(open=make))
    with open_trackers(tmp_path, "wandb", "tensorboard", warn=warnings.append) as opened:
        opened.begin(0)
        for step in (1, 2):
            opened.log(step, {"a": float(step)})
            opened.samples(step, [SAMPLE])
    assert failing.call_count == 1 and [name for name, _, _ in tracker.mock_calls[-1:]] in ([where], [])
    (warning,) = warnings
    assert "wandb" in warning and "OSError: disk\\x1b[2J full" in warning
    assert "metrics.jsonl" in warning and "wandb sync" in warning
    assert scalars(read_events(tmp_path)) == [(1, "a", 1.0), (2, "a", 2.0)]


@pytest.mark.parametrize(("error", "failed"), [(KeyError("x"), True), (Preempted("resume", 15), False)])
def test_a_run_that_fails_is_closed_as_such_and_one_that_is_stopped_is_not(tmp_path, monkeypatch, error, failed):
    mine = Mock()
    # A new tracker is a class and an entry.
    monkeypatch.setitem(trackers.TRACKERS, "mine", trackers.TrackerType(Mock(return_value=mine), None, None, "none"))
    report_to = parse_cli(TrainConfig, "train", ["--report_to", "mine"]).loop.report_to
    with pytest.raises(type(error)), open_trackers(tmp_path, *report_to) as opened:
        opened.begin(0)
        opened.log(1, {"a": 1.0})
        raise error
    assert mine.mock_calls == [call.begin(0), call.log(1, {"a": 1.0}), call.close(failed=failed)]


def test_a_tracker_that_is_absent_or_unknown_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^report_to: .*pip install 'jaxppo\[tracking\]'"):
        open_trackers(tmp_path, "tensorboard", "wandb")
    with pytest.raises(ConfigError, match=r"^report_to: .*'wandbb'.*'wandb'"):
        open_trackers(tmp_path, "wandbb")
    assert list(tmp_path.iterdir()) == []
    open_trackers(tmp_path, "tensorboard")


def test_tensorboard_brings_neither_torch_nor_wandb(tmp_path):
    """Tensorboard's package would import torch, for seconds, wherever that is installed."""
    code = f"""
import sys
from pathlib import Path
from jaxppo.config import TrainConfig
from jaxppo.run.trackers import Trackers
with Trackers(("tensorboard",), Path({str(tmp_path)!r}), TrainConfig(), print) as trackers:
    trackers.begin(0)
print(*sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "tensorboardX" in loaded
    assert not {"torch", "wandb"} & loaded
    assert importlib.util.find_spec("torch") is not None


def test_wandb_offline_keeps_numbers_samples_and_configuration_for_later(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is an extra: pip install 'jaxppo[tracking]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "plans")
    monkeypatch.setattr(sys, "argv", ["train", "--api_key", "hunter2hunter2"])
    logged, runs, log = {}, [], wandb.Run.log

    def recorded(run, data, step):
        runs.append((run.project, run.name, run.id, run.config["kl_coef"]))
        logged.setdefault(step, {}).update(data)
        log(run, data, step=step)

    monkeypatch.setattr(wandb.Run, "log", recorded)
    folder = tmp_path / "my-run"
    folder.mkdir()
    url = "https://me:hunter2@example.org"
    settings = {"reward_funcs": (url,), "kl_coef": 0.125}
    for start in (0, 2):
        with open_trackers(folder, "wandb", **settings) as opened:
            opened.begin(start)
            if not start:
                opened.log(0, {"eval": 0.25})
            for step in (start + 1, start + 2):
                opened.log(step, {"step": step, "a": step / 2, "nan": math.nan})
            opened.samples(step, [SAMPLE])
    assert {tuple(logged[step].pop("samples").columns) for step in (2, 4)} == {("id", "prompt", "completion", "score")}
    assert logged == {0: {"eval": 0.25}, 1: {"a": 0.5}, 2: {"a": 1.0}, 3: {"a": 1.5}, 4: {"a": 2.0}}
    run_id = (folder / "wandb" / "run_id").read_text().strip()
    assert set(runs) == {("plans", "my-run", run_id, 0.125)}
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"kl_coef" in written and b"hunter2" not in written
