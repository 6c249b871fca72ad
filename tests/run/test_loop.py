"""What a run does around its steps, with steps that only count: settings, logs and signals across a resume."""

import json
import os
import shutil
import signal

import jax.numpy as jnp
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError
from jaxppo.run import folder as run_folder
from jaxppo.run import preemption
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.loop import StepOutput, Steps, TrainingLoop
from jaxppo.run.preemption import Preempted
from jaxppo.types import TrainState

TOTAL = 6


def configured(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "save_steps": 2,
        "save_total_limit": 9,
        "report_to": ("none",),
        "quiet": True,
    }
    return replace(TrainConfig(), **settings | changes)


def state_at(step):
    return TrainState(
        params={"policy": {"w": jnp.full(3, step, jnp.float32)}},
        opt_state={"count": jnp.int32(step)},
        step=jnp.int32(step),
    )


def count(config, stop_at=None, evaluate=None):
    """A run whose update n logs n squared; returns its folder."""
    run = run_folder.begin("train", config)

    def step(state, number):
        if number == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        record = {"step": number + 1, "objective/scores": float((number + 1) ** 2)}
        return StepOutput(state_at(number + 1), record)

    steps = Steps(
        total=TOTAL,
        step=step,
        evaluate=lambda state: {},
        meta=run.meta(config, {}),
        title="counting",
        header="counting",
    )
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


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(folder, capsys):
    assert logged(resume(folder)) == [(n, float(n * n)) for n in range(1, 7)]
    assert capsys.readouterr().out == ""


# ------------------------------------------------------------------------------------------------------------ settings


def test_a_checkpoint_is_not_resumed_under_an_edited_configuration(folder):
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("kl_coef: 0.05", "kl_coef: 0.5"))
    with pytest.raises(ConfigError) as refused:
        resume(folder, kl_coef=0.5)
    assert str(refused.value) == (
        f"config: expected that of checkpoint 5 in {folder}, got kl_coef 0.5 (was 0.05); leave these settings as they "
        "were, or name a new output_dir, or these in --allow_changes"
    )
    assert logged(folder)[-1][0] == 5


def test_a_refused_resume_leaves_the_settings_as_they_were(folder):
    """Else the next one, which changes nothing, would be refused for what this one was to change."""
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("kl_coef: 0.05", "kl_coef: 0.5"))
    before = path.read_text()
    with pytest.raises(ConfigError, match=r"got kl_coef 0.5 \(was 0.05\); "):
        resume(folder, kl_coef=0.5, save_steps=3, allow_changes=("save_steps",))
    assert path.read_text() == before


def test_a_checkpoint_is_not_resumed_under_a_part_of_its_configuration(tmp_path):
    """The settings that were cut off would silently be the defaults."""
    folder = tmp_path / "run"
    with pytest.raises(Preempted):
        count(configured(folder, seed=7), stop_at=2)
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("seed: 7\n", ""))
    with pytest.raises(ConfigError, match=r"expected that of checkpoint 3 in .*, got seed 42 \(was 7\); "):
        resume(folder)


def test_settings_may_change_that_are_named(folder):
    changes = {"kl_coef": 0.5, "save_steps": 3}
    with pytest.raises(ConfigError, match=r"got save_steps 3.0 \(was 2.0\); "):
        resume(folder, allow_changes=("kl_coef",), **changes)
    resume(folder, allow_changes=("kl_coef", "save_steps"), **changes)
    assert logged(folder)[-1] == (6, 36.0)
    assert "kl_coef: 0.5\n" in (folder / "config.yaml").read_text()
    count(configured(folder, resume=True, **changes))  # the last checkpoint has them


def test_a_setting_that_is_none_cannot_change(folder):
    with pytest.raises(
        ConfigError, match=r"allow_changes: expected names of settings, got 'kl_coeff', did you mean 'kl_coef'"
    ):
        resume(folder, allow_changes=("kl_coeff",))


def test_settings_may_change_on_a_resume_alone():
    with pytest.raises(ConfigError, match=r"allow_changes: expected --resume with it, got \('kl_coef',\)"):
        replace(TrainConfig(), allow_changes=("kl_coef",))


# ---------------------------------------------------------------------------------------------------------------- logs


@pytest.mark.parametrize(("kept", "filled"), [((), 3), ((1, 2), 2), ((2, 3, 5), 1)])
def test_records_that_the_log_has_lost_come_from_the_checkpoints(folder, capsys, kept, filled):
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[step - 1] for step in kept))
    resume(folder)
    assert logged(folder) == [(n, float(n * n)) for n in sorted({*kept, 2, 4, 5, 6})]
    missing = sorted({1, 2, 3, 4, 5} - {*kept})
    assert capsys.readouterr().out == (
        f"warning: {path}: expected the records of updates 1 to 5, {len(missing)} are missing, the first that of "
        f"update {missing[0]}; {filled} are filled in from checkpoints, the others are lost\n"
    )


def test_a_log_that_is_gone_is_filled_from_the_checkpoints(folder, capsys):
    (folder / "metrics.jsonl").unlink()
    assert logged(resume(folder)) == [(n, float(n * n)) for n in (2, 4, 5, 6)]
    assert "5 are missing, the first that of update 1; 3 are filled in" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------------- evaluations


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1]",
        '{"before": 3}',
        '{"before": {"test": 1}}',
        '{"before": {"test": {}}}',
        '{"before": {"test": {"validity": 1, "mean_reward": 1}}}',
    ],
)
def test_results_of_a_wrong_shape_are_set_aside(folder, capsys, content):
    (folder / "eval.json").write_text(content)
    (folder / "eval_samples.json").write_text("{}")
    run = run_folder.begin("train", configured(folder, resume=True))
    assert run.evals == {}
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"warning: {folder / 'eval.json'}: expected ") and "it is now eval.json.damaged" in line
    assert (folder / "eval.json.damaged").read_text() == content
    assert sorted(path.name for path in folder.glob("eval*")) == ["eval.json.damaged", "eval_samples.json"]


@pytest.mark.parametrize("content", ['{"before": {"te', '{"before": 3}', '{"before": {"test": {}}}'])
def test_damaged_samples_of_an_evaluation_are_set_aside_before_training(folder, capsys, content):
    (folder / "eval_samples.json").write_text(content)
    evals = {"headline_split": "test", "before": {"test": {"mean_reward": 0.5}}}
    (folder / "eval.json").write_text(json.dumps(evals))
    run = run_folder.begin("train", configured(folder, resume=True))
    assert run.evals == evals
    assert "eval_samples.json: expected " in capsys.readouterr().out
    assert not (folder / "eval_samples.json").exists()


# ------------------------------------------------------------------------------------------------- lock and signals


def test_a_run_is_worked_on_by_one_process_at_a_time(folder):
    run = run_folder.begin("train", configured(folder, resume=True))
    with run.claimed():
        before = (folder / "metrics.jsonl").read_bytes()
        with pytest.raises(ConfigError, match=rf"output_dir: expected a run that nobody .* process {os.getpid()} on "):
            resume(folder)
        assert (folder / "metrics.jsonl").read_bytes() == before
        resumed = run_folder.begin("train", configured(folder, resume=True, dry_run=True))
        assert resumed.folder == folder
    resume(folder)


def test_a_signal_in_an_evaluation_stops_with_the_same_words(folder):
    def evaluate():
        os.kill(os.getpid(), signal.SIGTERM)
        preemption.check()

    with pytest.raises(Preempted, match="stopped by SIGTERM; to go on from the last checkpoint: python"):
        count(configured(folder, resume=True), evaluate=evaluate)
    assert logged(folder)[-1][0] == 5
    resume(folder)
