"""Runs that are killed, stopped or moved to other devices go on as if nothing had happened: the real commands."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest

from jaxppo import data, sft
from jaxppo.config import LoopConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError
from jaxppo.evaluate import evaluator
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.preemption import Preempted
from tests import ROOT
from tests.commands import comparable, environment
from tests.event_files import read_events, shown_by_tensorboard
from tests.one_layer import ONE_LAYER

# Whatever an update hands to the next one beside the models changes in these runs: KL coefficient, score moments.
TINY = ["--preset", "tiny", "--adap_kl_ctrl", "--kl_target", "6", "--kl_horizon", "100"]
TINY += ["--use_score_scaling", "--use_score_norm", "--num_sample_generations", "4"]
TINY += ["--test_sizes", "4:4", "--test_longer_sizes", "5:4", "--save_steps", "1", "--save_total_limit", "1"]
TINY += ["--metric_for_best_model", "objective/entropy"]
TINY += ["--sft_model_path", ONE_LAYER]
TINY += ["--response_length", "16"]  # so short that all sequences have one length, for which programs are compiled
UPDATES = 4

RUN = """
import json, os, signal, sys, threading
from jaxppo.run import checkpoints as checkpoint, cli, preemption
from jaxppo import config, rewards, train
from jaxppo.config import sources as config_sources
from jaxppo.rl import ppo

stage, update, signum, delay_s, checks = json.loads(sys.argv.pop(1))
current = []

def strike():
    os.kill(os.getpid(), signum)

def in_update(stage_function):
    def patched(*args, **kwargs):
        if current != [update]:
            return stage_function(*args, **kwargs)
        if signum == signal.SIGKILL:
            threading.Timer(delay_s, strike).start()
        result = stage_function(*args, **kwargs)
        strike()
        if checks:
            preemption.check()
        return result
    return patched

def save(self, step, *args, **kwargs):
    begin_to_save(self, step, *args, **kwargs)
    if step == update + 1:
        threading.Timer(delay_s, strike).start()

def train_step(setup, state, reference, step):
    current[:] = [step]
    done = one_step(setup, state, reference, step)
    current.clear()
    return done

one_step, train.train_step = train.train_step, train_step
if stage == "save":
    begin_to_save, checkpoint.Checkpoints.save = checkpoint.Checkpoints.save, save
if stage == "rollout":
    ppo.PPO.generate = in_update(ppo.PPO.generate)
if stage == "reward":
    rewards.Rewards.__call__ = in_update(rewards.Rewards.__call__)
if stage == "update":
    ppo.PPO.update = in_update(ppo.PPO.update)
cli.main(lambda: train.train(config_sources.parse_cli(config.TrainConfig, "train")))
"""
"""`python -m jaxppo.train` that sends itself a signal in a stage of an update; for `save`: while it is written."""


def run(*command):
    """Run Python on one device; returns (status, standard output, standard error)."""
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=500)
    return done.returncode, done.stdout, done.stderr


def run_struck(folder, stage, update, signum, delay_s=0.0, checks=False, flags=()):
    spec = json.dumps([stage, update, int(signum), delay_s, checks])
    return run("-c", RUN, spec, *TINY, *flags, "--output_dir", folder)


def resume(folder):
    code, out, err = run("-m", "jaxppo.train", "--output_dir", folder, "--resume")
    assert (code, err) == (0, "")
    return out


def assert_same_run(folder, reference):
    assert comparable(folder) == comparable(reference)
    assert (folder / "samples.jsonl").read_text() == (reference / "samples.jsonl").read_text()
    evals = json.loads((folder / "eval.json").read_text())
    assert evals == json.loads((reference / "eval.json").read_text())
    assert_all_in_tensorboard(folder, evals)


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


def steps_of(folder):
    return sorted(int(entry.name) for entry in (folder / "checkpoints").iterdir() if entry.name.isdecimal())


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs") / "reference"
    code, _, err = run("-m", "jaxppo.train", *TINY, "--output_dir", folder)
    assert (code, err) == (0, "")
    assert len(comparable(folder)) == UPDATES
    return folder


@pytest.mark.full
def test_a_run_keeps_the_best_checkpoint_beside_the_latest(reference):
    entropies = [record["objective/entropy"] for record in comparable(reference)]
    best = 1 + entropies.index(max(entropies))
    assert best != UPDATES  # or it would be kept anyhow
    assert steps_of(reference) == [best, UPDATES]


@pytest.mark.full
def test_a_checkpoint_says_what_it_is_of(reference):
    checkpoints = Checkpoints(reference / "checkpoints", 1)
    params, meta, step = checkpoints.restore_params(None, pytest.fail)
    assert step == meta["step"] == UPDATES and meta["episode"] == UPDATES * 16 and meta["seed"] == 42
    assert meta["config"]["kl_target"] == 6 and meta["config"]["total_episodes"] == 64
    record = read_metrics(reference / "metrics.jsonl")[-1]
    assert meta["metrics"] == record
    assert set(params) == {"policy", "value"}


def kill_points(seed):
    """(stage, update, seconds), the updates in order; each stage once, and one more."""
    rng, stages = random.Random(seed), ["rollout", "reward", "update", "save"]
    stages.append(rng.choice(stages))
    rng.shuffle(stages)
    updates = sorted(rng.randrange(UPDATES) for _ in stages)
    return [(stage, update, rng.uniform(0, 0.05)) for stage, update in zip(stages, updates, strict=True)]


@pytest.mark.full
def test_a_run_that_is_killed_five_times_equals_the_uninterrupted_one(reference, tmp_path):
    """Each time by SIGKILL in the process that resumes from the kill before."""
    folder, points = tmp_path / "run", kill_points(seed=3)
    assert {stage for stage, _, _ in points} == {"rollout", "reward", "update", "save"}
    for number, (stage, update, delay_s) in enumerate(points):
        flags = ["--resume"] if number else []
        code, _, err = run_struck(folder, stage, update, signal.SIGKILL, delay_s, flags=flags)
        assert code == -signal.SIGKILL, (stage, update, err)
        done = len(comparable(folder))
        assert done == update or (stage == "save" and done in (update + 1, update + 2))
        assert comparable(folder) == comparable(reference)[:done]
    resume(folder)
    assert_same_run(folder, reference)
    assert steps_of(folder) == steps_of(reference)


@pytest.mark.full
def test_sigterm_saves_the_update_that_it_interrupts(reference, tmp_path):
    folder = tmp_path / "run"
    code, out, err = run_struck(folder, "update", 1, signal.SIGTERM, flags=["--save_steps", "50"])
    assert (code, err) == (0, "")
    command = f"python -m jaxppo.train --resume --output_dir {folder}"
    message = f"stopped by SIGTERM; to go on from the last checkpoint: {command}"
    assert out.splitlines()[-1] == message and out.count("stopped by") == 1
    assert steps_of(folder) == [2] and len(comparable(folder)) == 2
    assert not (folder / "policy").exists()
    assert "not finished: 2 of 4 updates" in (folder / "report.html").read_text()
    resume(folder)
    assert "finished after 4 updates" in (folder / "report.html").read_text()
    assert_same_run(folder, reference)


@pytest.mark.full
def test_sigterm_between_two_stages_saves_the_update_before_and_a_damaged_checkpoint_is_passed_over(
    reference, tmp_path
):
    folder = tmp_path / "run"
    code, out, err = run_struck(folder, "reward", 2, signal.SIGTERM, checks=True, flags=["--save_total_limit", "2"])
    assert (code, err) == (0, "")
    assert steps_of(folder)[-2:] == [1, 2] and len(comparable(folder)) == 2
    files = (folder / "checkpoints" / "2" / "params" / "ocdbt.process_0" / "d").iterdir()
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    out = resume(folder)
    (line,) = [line for line in out.splitlines() if "damaged" in line]
    assert line.startswith(f"warning: {folder / 'checkpoints'} holds damaged checkpoints: 2 (params/ocdbt.process_0/d/")
    assert line.endswith("is not as it was written); check the disk; using 1")
    assert_same_run(folder, reference)


@pytest.mark.full
def test_ctrl_c_in_the_first_update_ends_with_status_130(tmp_path):
    folder = tmp_path / "run"
    code, out, err = run_struck(folder, "reward", 0, signal.SIGINT, checks=True)
    assert (code, err) == (130, "")
    assert out.splitlines()[-1].startswith("stopped by Ctrl-C; to go on from the last checkpoint: python -m jaxppo.")
    assert not (folder / "checkpoints").exists() and comparable(folder) == []


# ------------------------------------------------------------------------------------------------------------------ sft


def sft_config(folder, **changes):
    sizes = {"train_sizes": "3:50", "test_sizes": "4:4", "eval_splits": ("test",), "response_length": 8}
    model = {"hidden_size": 16, "num_hidden_layers": 1, "batch_size": 16, "total_episodes": 96, "warmup_steps": 0}
    run = {"output_dir": str(folder), "quiet": True, "save_steps": 50, "metric_for_best_model": "loss"}
    return replace(SFTConfig(), **sizes, **model, **run, greater_is_better=False, **changes)


@pytest.mark.full
def test_sigterm_in_supervised_training_saves_the_step_and_the_resumed_run_is_the_same(tmp_path, monkeypatch):
    sft.sft(sft_config(tmp_path / "whole"))
    batch = data.SupervisedData.batch

    def strike(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(self, step)

    with monkeypatch.context() as patch, pytest.raises(Preempted) as stop:
        patch.setattr(data.SupervisedData, "batch", strike)
        sft.sft(sft_config(tmp_path / "stopped"))
    assert stop.value.exit_status == 0
    assert steps_of(tmp_path / "stopped") == [3]
    assert "not finished: 3 of 6 updates" in (tmp_path / "stopped" / "report.html").read_text()
    sft.sft(sft_config(tmp_path / "stopped", resume=True))
    assert len(comparable(tmp_path / "whole")) == 6
    assert comparable(tmp_path / "stopped") == comparable(tmp_path / "whole")
    evals = [(tmp_path / name / "eval.json").read_text() for name in ("whole", "stopped")]
    assert evals[0] == evals[1]


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": "stream:blocksworld,ferry", "stream_test_rows": 2, "stream_workers": 2},
        {"augment": "names,order"},
    ],
    ids=["stream", "augment"],
)
def test_rows_made_when_their_step_comes_are_the_same_after_a_resume(changes, tmp_path, monkeypatch):
    sft.sft(sft_config(tmp_path / "whole", **changes))
    batch = data.FreshData.batch

    def strike(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(self, step)

    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(data.FreshData, "batch", strike)
        sft.sft(sft_config(tmp_path / "stopped", **changes))
    assert steps_of(tmp_path / "stopped") == [3]
    sft.sft(sft_config(tmp_path / "stopped", resume=True, **changes))
    assert comparable(tmp_path / "stopped") == comparable(tmp_path / "whole")
    weights = [(tmp_path / name / "policy" / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert weights[0] == weights[1]


@pytest.mark.full
def test_sigterm_in_the_evaluation_after_training_stops_in_order(tmp_path, monkeypatch):
    complete = evaluator.Evaluator.complete

    def strike(self, *args):
        os.kill(os.getpid(), signal.SIGTERM)
        return complete(self, *args)

    with monkeypatch.context() as patch, pytest.raises(Preempted, match="stopped by SIGTERM; to go on from the last"):
        patch.setattr(evaluator.Evaluator, "complete", strike)
        sft.sft(sft_config(tmp_path / "run"))
    assert "not finished: 6 of 6 updates" in (tmp_path / "run" / "report.html").read_text()
    assert not (tmp_path / "run" / "policy").exists()
    sft.sft(sft_config(tmp_path / "run", resume=True))
    assert (tmp_path / "run" / "policy").exists() and len(comparable(tmp_path / "run")) == 6


@pytest.mark.full
@pytest.mark.parametrize(("best", "kept"), [(None, [2, 6]), ("none", [6])])
def test_the_best_checkpoint_by_validity_is_kept_across_a_resume(best, kept, tmp_path, monkeypatch):
    # Too little training for a valid plan: the first of the two evaluations is as good as the second.
    settings = {"metric_for_best_model": best, "greater_is_better": True, "eval_steps": 2, "eval_rows": 2}
    settings |= {"save_total_limit": 1}
    sft.sft(replace(sft_config(tmp_path / "whole"), **settings))
    batch = data.SupervisedData.batch

    def strike(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(self, step)

    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(data.SupervisedData, "batch", strike)
        sft.sft(replace(sft_config(tmp_path / "stopped"), **settings))
    sft.sft(replace(sft_config(tmp_path / "stopped", resume=True), **settings))
    assert steps_of(tmp_path / "stopped") == steps_of(tmp_path / "whole") == kept
    assert comparable(tmp_path / "stopped") == comparable(tmp_path / "whole")
    names = [name for record in comparable(tmp_path / "whole") for name in record if name == "eval/test/validity"]
    assert len(names) == 2  # behind the last step comes the evaluation at the end
    assert json.loads((tmp_path / "whole" / "eval.json").read_text())["test"]["rows"] == 4


# ----------------------------------------------------------------------------------------------------------- settings


def test_an_evaluation_that_may_be_the_best_is_saved():
    settings = {"save_steps": 5, "eval_steps": 2, "metric_for_best_model": "eval/test/validity"}
    loop = LoopConfig(**settings)
    assert [step for step in range(1, 10) if loop.saves_at(step, 9)] == [2, 4, 5, 6, 8, 9]
    plain = LoopConfig(**settings | {"metric_for_best_model": "objective/scores"})
    assert [step for step in range(1, 10) if plain.saves_at(step, 9)] == [5, 9]


def test_the_metric_for_the_best_model_must_be_one_that_is_logged():
    with pytest.raises(ConfigError, match=r"eval_steps: expected a number with metric_for_best_model eval/\.\.\."):
        LoopConfig(metric_for_best_model="eval/test/validity")
    with pytest.raises(ConfigError, match="greater_is_better: expected True without metric_for_best_model, got False"):
        LoopConfig(greater_is_better=False)
    with pytest.raises(ConfigError, match="greater_is_better: expected True without metric_for_best_model, got False"):
        LoopConfig(eval_steps=2, metric_for_best_model="none", greater_is_better=False)
    loop = LoopConfig(eval_steps=2, metric_for_best_model="eval/tset/validity")
    loop.check_record({"step": 1}, 8)
    loop.check_record({"step": 8}, 8)
    with pytest.raises(ConfigError, match="metric_for_best_model: expected a metric that this run logs, got 'eval/tse"):
        loop.check_record({"step": 2, "eval/test/validity": 0.5}, 8)
    loop = LoopConfig(metric_for_best_model="los")
    with pytest.raises(ConfigError, match="got 'los'"):
        loop.check_record({"step": 1, "loss": 0.5}, 8)
    LoopConfig().check_record({"step": 1}, 8)


# ------------------------------------------------------------------------------------------------------------ devices

OTHER_DEVICES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests.run import test_checkpoints as here
import jax
from jaxppo.run import cli
from pathlib import Path
cli.set_up_jax()
folder, step, num_devices = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
parallel = here.DataParallel()
assert parallel.num_devices == num_devices
state, expected = parallel.put(here.make_state(99)), here.make_state(1)
with here.Checkpoints(folder, 9) as checkpoints:
    if step == 0:
        state = parallel.put(expected)
    else:
        state = checkpoints.restore(state, here.no_warning)
        params, _, _ = checkpoints.restore_params(None, here.no_warning)
        here.assert_equal_bits(params, expected.params)
    here.assert_equal_bits(state, expected)
    for array in jax.tree.leaves(state):
        assert array.devices() == set(parallel.devices)
    checkpoints.save(step + 1, state, {})
"""


@pytest.mark.full
def test_a_checkpoint_is_restored_on_other_numbers_of_devices(tmp_path):
    for step, num_devices in enumerate([4, 1, 2, 4]):
        flags = environment(num_devices)["XLA_FLAGS"]
        code = f"import os\nos.environ['XLA_FLAGS'] = {flags!r}\n" + OTHER_DEVICES
        status, _, err = run("-c", code, str(ROOT), tmp_path, step, num_devices)
        assert (status, err) == (0, "")
    assert Checkpoints(tmp_path, 9).steps == [1, 2, 3, 4]


def best_metric(config, **settings):
    return replace(config, **settings).with_best_metric().loop.best_metric


def test_the_best_checkpoint_is_chosen_by_validity_unless_told_otherwise():
    train_config, sft_settings = TrainConfig(), SFTConfig()
    assert best_metric(train_config) is best_metric(sft_settings) is None  # nothing is evaluated in between
    assert best_metric(train_config, eval_steps=5) == "eval/test_longer/validity"
    other = {"eval_splits": ("rl", "test"), "headline_split": "rl"}
    assert best_metric(train_config, eval_steps=5, **other) == "eval/rl/validity"
    assert best_metric(sft_settings, eval_steps=5) == "eval/test/validity"
    assert best_metric(train_config, eval_steps=5, metric_for_best_model="none") is None
    assert best_metric(train_config, eval_steps=5, metric_for_best_model="loss") == "loss"
    assert best_metric(train_config, eval_steps=5, reward_funcs=("module:function",)) is None
    with pytest.raises(ConfigError, match="eval_splits: expected at least one split"):
        replace(sft_settings, eval_splits=())
