"""What a run does around its steps, with steps that only count: settings, logs and signals across a resume."""

import os
import shutil
import signal
from unittest.mock import Mock, call

import jax.numpy as jnp
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError, DataError
from jaxppo.run import folder as run_folder
from jaxppo.run import preemption, trackers
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.run.loop import LoopSteps, StepOutput, TrainingLoop
from jaxppo.run.preemption import Preempted
from jaxppo.types import TrainState

TOTAL = 6


def configured(folder, **changes):
    settings = {"output_dir": str(folder), "save_steps": 2, "save_total_limit": 9}
    settings |= {"report_to": ("none",), "quiet": True}
    return replace(TrainConfig(), **settings | changes)


def state_at(step):
    params = {"policy": {"w": jnp.full(3, step, jnp.float32)}}
    return TrainState(params=params, opt_state={"count": jnp.int32(step)}, step=jnp.int32(step))


def count(config, stop_at=None, evaluate=None, between_stages=False, **more):
    """A run whose update n logs n squared; returns its folder.

    Args:
        config: of the run.
        stop_at: number, from 0, of the update in which it gets SIGTERM.
        evaluate: called before the updates.
        between_stages: whether that update is asked if it has to stop.
        more: fields of `LoopSteps`.
    """
    run = run_folder.begin("train", config)

    def step(state, host, number):
        if number == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
            if between_stages:
                preemption.check()
        score = float((number + 1) ** 2)
        record = {"step": number + 1, "objective/scores": score, "loss": score}
        return StepOutput(state_at(number + 1), record)

    meta = run.meta(config, {})
    steps = LoopSteps(TOTAL, step, evaluate=lambda state: {}, meta=meta, title="counting", header="counting", **more)
    with run.claimed(), run.trackers:
        if evaluate is not None:
            evaluate()
        TrainingLoop(run, config.loop, steps, state_at(0)).run()
    return run.folder


def logged(folder):
    return [(record["step"], record["objective/scores"]) for record in read_metrics(folder / "metrics.jsonl")]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that SIGTERM stopped in its fifth update, with checkpoints 2, 4 and 5."""
    folder = tmp_path_factory.mktemp("loop") / "run"
    with pytest.raises(Preempted):
        count(configured(folder), stop_at=4)
    assert logged(folder) == [(n, float(n * n)) for n in range(1, 6)]
    return folder


@pytest.fixture
def folder(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def resume(folder, **changes):
    return count(configured(folder, resume=True, **changes))


def steps_of(folder):
    return Checkpoints(folder / "checkpoints", 9).steps


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(folder, capsys):
    assert steps_of(folder) == [2, 4, 5]
    with JsonlLog(folder / "metrics.jsonl") as log:
        log.append({"step": 6, "objective/scores": -1.0})  # of an update that no checkpoint has
    assert logged(resume(folder)) == [(n, float(n * n)) for n in range(1, 7)]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("before", [{}, {"eval/test/validity": 0.5}])
def test_trackers_get_an_evaluation_before_the_first_step_where_there_is_one(tmp_path, monkeypatch, before):
    tracker = Mock()
    mine = trackers.TrackerType(Mock(return_value=tracker), None, None, "none")
    monkeypatch.setitem(trackers.TRACKERS, "mine", mine)
    count(configured(tmp_path / "run", report_to=("mine",)), before=before)
    assert [arguments[0] for _, arguments, _ in tracker.log.mock_calls] == [
        *([0] if before else []),
        *range(1, TOTAL + 1),
    ]
    assert not before or tracker.log.mock_calls[0] == call(0, before)


@pytest.mark.parametrize(("stop_at", "kept"), [(0, []), (3, [2, 3])])
def test_a_run_that_is_stopped_between_the_stages_of_an_update_saves_the_one_before(tmp_path, stop_at, kept):
    with pytest.raises(Preempted):
        count(configured(tmp_path / "run"), stop_at=stop_at, between_stages=True)
    assert steps_of(tmp_path / "run") == kept
    assert [step for step, _ in logged(tmp_path / "run")] == list(range(1, stop_at + 1))
    assert len(logged(resume(tmp_path / "run"))) == TOTAL


def test_the_checkpoint_of_the_best_record_is_kept_beside_the_latest_ones(tmp_path):
    best = {"metric_for_best_model": "loss", "save_total_limit": 1}
    assert steps_of(count(configured(tmp_path / "run", **best))) == [2, 6]


def test_a_checkpoint_is_not_resumed_under_an_edited_configuration(folder):
    """And the resume leaves the settings: else the next one would be refused for what this one was to change."""
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("kl_coef: 0.05", "kl_coef: 0.5"))
    before = path.read_text()
    with pytest.raises(ConfigError, match=rf"checkpoint 5 in {folder}, got kl_coef 0\.5 \(was 0\.05\); "):
        resume(folder, kl_coef=0.5, save_steps=3, allow_changes=("save_steps",))
    assert path.read_text() == before
    assert logged(folder)[-1][0] == 5


def test_settings_may_change_that_are_named(folder):
    changes = {"kl_coef": 0.5, "save_steps": 3}
    with pytest.raises(ConfigError, match=r"got save_steps 3.0 \(was 2.0\); "):
        resume(folder, allow_changes=("kl_coef",), **changes)
    with pytest.raises(ConfigError, match=r"^allow_changes: .*'kl_coeff'.*'kl_coef'"):
        resume(folder, allow_changes=("kl_coeff",))
    resume(folder, allow_changes=("kl_coef", "save_steps"), **changes)
    assert logged(folder)[-1] == (6, 36.0)
    assert "kl_coef: 0.5\n" in (folder / "config.yaml").read_text()
    count(configured(folder, resume=True, **changes))  # the last checkpoint has them


def test_results_that_are_no_json_are_refused_and_stay_as_they_are(folder):
    (folder / "eval.json").write_text('{"before": {"te')
    with pytest.raises(DataError, match=rf"^{folder / 'eval.json'}: "):
        run_folder.begin("train", configured(folder, resume=True))
    assert (folder / "eval.json").read_text() == '{"before": {"te'


def test_a_run_is_worked_on_by_one_process_at_a_time(folder):
    run = run_folder.begin("train", configured(folder, resume=True))
    with run.claimed():
        before = (folder / "metrics.jsonl").read_bytes()
        with pytest.raises(ConfigError, match=rf"^output_dir: .* process {os.getpid()} on "):
            resume(folder)
        assert (folder / "metrics.jsonl").read_bytes() == before
        resumed = run_folder.begin("train", configured(folder, resume=True, dry_run=True))
        assert resumed.folder == folder
    resume(folder)


def test_a_signal_in_an_evaluation_stops_with_the_same_words(folder):
    def evaluate():
        os.kill(os.getpid(), signal.SIGTERM)
        preemption.check()

    with pytest.raises(Preempted, match=r"SIGTERM.*: python -m jaxppo\.train --resume"):
        count(configured(folder, resume=True), evaluate=evaluate)
    assert logged(folder)[-1][0] == 5
    resume(folder)
