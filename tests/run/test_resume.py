"""Runs that are killed, stopped or moved to other devices go on as if nothing had happened."""

import json
import os
import signal

import jax
import pytest

from jaxppo import data, sft
from jaxppo.config import LoopConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError
from jaxppo.evaluate import evaluator
from jaxppo.parallel.devices import DataParallel
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.preemption import Preempted
from tests.commands import comparable, run_code, run_command
from tests.event_files import read_events, shown_by_tensorboard
from tests.run.states import assert_equal_bits, make_state, no_warning, restored
from tests.run.struck import TINY, UPDATES, run_struck


def steps_of(folder):
    return sorted(int(entry.name) for entry in (folder / "checkpoints").iterdir() if entry.name.isdecimal())


def assert_all_in_tensorboard(folder, evals):
    """Every number of every update once, and the evaluations before and after."""
    points = shown_by_tensorboard(read_events(folder))
    validity = [(step, value) for step, name, value in points if name == "eval/test/validity"]
    rates = [evals[moment]["test"]["validity"]["rate"] for moment in ("before", "after")]
    assert validity == [(0, pytest.approx(rates[0])), (UPDATES, pytest.approx(rates[1]))]
    for record in read_metrics(folder / "metrics.jsonl"):
        here = [(name, value) for step, name, value in points if step == record["step"] and name[:5] != "eval/"]
        finite = {name: value for name, value in record.items() if name != "step" and value is not None}
        assert len(here) == len(finite) and dict(here) == pytest.approx(finite, rel=1e-6)


def damage(checkpoint):
    """Flip a bit in the middle of the largest file of parameters."""
    files = (checkpoint / "params" / "ocdbt.process_0" / "d").iterdir()
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


@pytest.mark.full
def test_a_run_that_is_killed_and_stopped_in_every_stage_equals_the_uninterrupted_one(tmp_path):
    """Each time in the process that resumes from the kill before; checkpoints are due after updates 2 and 4."""
    reference, folder = tmp_path / "reference", tmp_path / "run"
    code, _, err = run_command("train", *TINY, "--output_dir", reference)
    assert (code, err) == (0, "")
    whole = comparable(reference)
    assert len(whole) == UPDATES

    # Before there is a checkpoint; while the first one is written; when the log is ahead of it.
    for stage, update, done in (("rollout", 1, (1,)), ("save", 1, (2, 3)), ("update", 3, (3,))):
        flags = ["--resume"] if stage != "rollout" else []
        code, _, err = run_struck(folder, stage, update, signal.SIGKILL, delay_s=0.01, flags=flags)
        assert code == -signal.SIGKILL, (stage, err)
        assert len(comparable(folder)) in done
        assert comparable(folder) == whole[: len(comparable(folder))]

    # SIGTERM is noticed between the stages of update 4, and update 3 is saved.
    code, out, err = run_struck(folder, "reward", 3, signal.SIGTERM, checks=True, flags=["--resume"])
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].endswith(f": python -m jaxppo.train --resume --output_dir {folder}")
    assert steps_of(folder) == [2, 3] and len(comparable(folder)) == 3
    assert not (folder / "policy").exists()
    assert "3 of 4 updates" in (folder / "report.html").read_text()

    damage(folder / "checkpoints" / "3")
    code, out, err = run_command("train", "--output_dir", folder, "--resume")
    assert (code, err) == (0, "")
    (warning,) = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert str(folder / "checkpoints") in warning and " 3 (params/ocdbt.process_0/d/" in warning
    assert warning.endswith("using 2")

    assert comparable(folder) == whole
    assert (folder / "samples.jsonl").read_text() == (reference / "samples.jsonl").read_text()
    evals = json.loads((folder / "eval.json").read_text())
    assert evals == json.loads((reference / "eval.json").read_text())
    assert_all_in_tensorboard(folder, evals)
    assert steps_of(folder) == steps_of(reference) == [2, 4]
    assert "finished after 4 updates" in (folder / "report.html").read_text()

    params, meta, step = Checkpoints(folder / "checkpoints", 1).restore_params(None, no_warning)
    assert set(params) == {"policy", "value"}
    assert step == meta["step"] == UPDATES and meta["episode"] == UPDATES * 16 and meta["seed"] == 42
    assert meta["config"]["kl_target"] == 6 and meta["config"]["total_episodes"] == 64
    assert meta["metrics"] == read_metrics(folder / "metrics.jsonl")[-1]


def sft_config(folder, **changes):
    sizes = {"sizes": ("train=3:50", "test=4:4"), "eval_splits": ("test",), "response_length": 8}
    model = {"hidden_size": 16, "num_hidden_layers": 1, "batch_size": 16, "total_episodes": 96, "warmup_steps": 0}
    run = {"output_dir": str(folder), "quiet": True, "save_steps": 50, "save_total_limit": 1}
    return replace(SFTConfig(), **sizes, **model, **run, **changes)


def run_sft(folder, monkeypatch, owner, name, is_time, **changes):
    """A run that gets SIGTERM in a method, once it is time: called with the arguments of the method."""
    method = getattr(owner, name)

    def strike(*args):
        if is_time(*args):
            os.kill(os.getpid(), signal.SIGTERM)
        return method(*args)

    with monkeypatch.context() as patch, pytest.raises(Preempted) as stop:
        patch.setattr(owner, name, strike)
        sft.sft(sft_config(folder, **changes))
    assert stop.value.exit_status == 0


@pytest.mark.full
def test_supervised_training_that_is_stopped_in_a_step_and_in_its_evaluation_equals_the_uninterrupted_one(
    tmp_path, monkeypatch
):
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    # Too little training for a valid plan: the first of the two evaluations is as good as the second.
    settings = {"eval_steps": 2, "eval_rows": 2}
    sft.sft(sft_config(whole, **settings))

    run_sft(folder, monkeypatch, data.SupervisedData, "batch", lambda _, step: step == 2, **settings)
    assert steps_of(folder) == [2, 3]
    assert "3 of 6 updates" in (folder / "report.html").read_text()

    def after_training(*_):
        return len(comparable(folder)) == 6

    run_sft(folder, monkeypatch, evaluator.Evaluator, "complete", after_training, resume=True, **settings)
    assert "6 of 6 updates" in (folder / "report.html").read_text()
    assert not (folder / "policy").exists()

    sft.sft(sft_config(folder, resume=True, **settings))
    assert (folder / "policy").exists()
    assert steps_of(folder) == steps_of(whole) == [2, 6]  # the best by validity, and the latest
    assert comparable(folder) == comparable(whole) and len(comparable(whole)) == 6
    assert (folder / "eval.json").read_text() == (whole / "eval.json").read_text()
    names = [name for record in comparable(whole) for name in record if name == "eval/test/validity"]
    assert len(names) == 2  # after the last step comes the evaluation at the end
    assert json.loads((whole / "eval.json").read_text())["test"]["rows"] == 4


@pytest.mark.full
def test_rows_of_a_stream_are_the_same_after_a_resume(tmp_path, monkeypatch):
    changes = {"dataset": "stream:blocksworld,ferry", "stream_rows": ("test=2",)}
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    sft.sft(sft_config(whole, **changes))
    run_sft(folder, monkeypatch, data.FreshData, "batch", lambda _, step: step == 2, **changes)
    assert steps_of(folder) == [3]
    sft.sft(sft_config(folder, resume=True, **changes))
    assert comparable(folder) == comparable(whole)
    weights = [(path / "policy" / "model.safetensors").read_bytes() for path in (whole, folder)]
    assert weights[0] == weights[1]


def best_metric(config, **settings):
    return replace(config, **settings).with_best_metric().loop.best_metric


def test_the_best_checkpoint_is_chosen_by_a_metric_that_is_logged_and_is_saved_when_it_may_be_the_best():
    train_config, sft_settings = TrainConfig(), SFTConfig()
    assert best_metric(train_config) is best_metric(sft_settings) is None  # nothing is evaluated in between
    assert best_metric(train_config, eval_steps=5) == "eval/test_longer/validity"
    other = {"eval_splits": ("rl", "test")}
    assert best_metric(train_config, eval_steps=5, **other) == "eval/test/validity"
    assert best_metric(sft_settings, eval_steps=5) == "eval/test/validity"
    assert best_metric(train_config, eval_steps=5, metric_for_best_model="none") is None
    assert best_metric(train_config, eval_steps=5, metric_for_best_model="loss") == "loss"
    assert best_metric(train_config, eval_steps=5, reward_funcs=("module:function",)) is None
    loop = LoopConfig(eval_steps=2, metric_for_best_model="eval/tset/validity")
    loop.check_record({"step": 1}, 8)
    loop.check_record({"step": 8}, 8)
    with pytest.raises(ConfigError, match=r"^metric_for_best_model: .*eval/tset/validity"):
        loop.check_record({"step": 2, "eval/test/validity": 0.5}, 8)
    with pytest.raises(ConfigError, match=r"^metric_for_best_model: .*'los'"):
        LoopConfig(metric_for_best_model="los").check_record({"step": 1, "loss": 0.5}, 8)
    LoopConfig().check_record({"step": 1}, 8)
    settings = {"save_steps": 5, "eval_steps": 2, "metric_for_best_model": "eval/test/validity"}
    loop = LoopConfig(**settings)
    assert [step for step in range(1, 10) if loop.saves_at(step, 9)] == [2, 4, 5, 6, 8, 9]
    plain = LoopConfig(**settings | {"metric_for_best_model": "objective/scores"})
    assert [step for step in range(1, 10) if plain.saves_at(step, 9)] == [5, 9]


ONE_DEVICE = """
import sys
from pathlib import Path
from jaxppo.parallel.devices import DataParallel
from jaxppo.run import cli
from jaxppo.run.checkpoints import Checkpoints
from tests.run.states import assert_equal_bits, make_state, no_warning

cli.set_up_jax()
cli.quiet_orbax()
parallel, expected = DataParallel(), make_state(1)
assert parallel.num_devices == 1
with Checkpoints(Path(sys.argv[1]), 9) as checkpoints:
    state, _ = checkpoints.restore(parallel.put(make_state(99)), no_warning)
    assert_equal_bits(state, expected)
    assert_equal_bits(checkpoints.restore_params(None, no_warning)[0], expected.params)
    checkpoints.save(2, state, {})
"""


@pytest.mark.full
def test_a_checkpoint_is_restored_on_other_numbers_of_devices(tmp_path):
    """From four devices to one, in another process, and back."""
    four = DataParallel()
    assert four.num_devices == 4
    with Checkpoints(tmp_path, 9) as checkpoints:
        checkpoints.save(1, four.put(make_state(1)), {})
    status, _, err = run_code(ONE_DEVICE, tmp_path)
    assert (status, err) == (0, "")
    assert Checkpoints(tmp_path, 9).steps == [1, 2]
    state = restored(tmp_path, like=four.put(make_state(99)))
    assert_equal_bits(state, make_state(1))
    assert {len(array.devices()) for array in jax.tree.leaves(state)} == {4}
