"""`--async_rollouts 1`: the next batch is sampled while rewards are computed, and a run goes on as if never stopped."""

import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxppo import train
from jaxppo.errors import ConfigError, DataError
from jaxppo.rl.ppo import PPO
from jaxppo.run import folder as run_folder
from jaxppo.run.console import Console
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.preemption import Preempted
from tests.commands import comparable, free_port, outputs_of, started
from tests.run.test_resume import run_struck
from tests.small_runs import ASYNC, CHANGING, ROWS, SMALL, UPDATES, assert_same_run, carry_out, config_of, score

# ----------------------------------------------------------------------------------------------------------- semantics


class Made(NamedTuple):
    """What is learned from in an update."""

    rollout: object
    sequences: object
    scored: object


def by_hand(folder, *flags):
    """The same run as a loop of its own: two batches of the first policy, then each of the one before the last."""
    run = run_folder.Run(command="train", config=config_of(folder, *flags), folder=folder, console=Console(quiet=True))
    setup, first = train.set_up(run)
    ppo, state = setup.ppo, setup.ppo.init_state(*first)
    reference = ppo.reference(state, first.policy)

    def make(step):
        prompts = setup.prompts.batch(step).prompts
        rollout = ppo.generate(state, prompts, step)
        sequences = ppo.pack(prompts, rollout)
        return jax.block_until_ready(Made(rollout, sequences, ppo.score(state, reference, sequences, rollout)))

    made, records = [make(0)], []
    for step in range(UPDATES):
        if step + 1 < UPDATES:
            made.append(make(step + 1))
        rollout, sequences, scored = made[step]
        rows = zip(np.array(rollout.completion_ids), np.array(rollout.completion_mask), strict=True)
        ids = [row[real] for row, real in rows]
        state, batch, stats = ppo.make_trajectories(state, scored, rollout, sequences, score(ids))
        state, update_stats = ppo.update(state, batch, step)
        records.append({name: float(value) for name, value in jax.device_get(stats | update_stats).items()})
    return records, jax.device_get(state.params)


@pytest.mark.full
@pytest.mark.parametrize(
    "flags",
    [["--num_ppo_epochs", "1"], ["--algorithm", "rloo"], ["--dtype", "bfloat16"], ["--use_peft", "--lora_r", "4"]],
    ids=["ppo", "rloo", "bf16", "lora"],
)
def test_the_run_is_that_of_a_loop_one_step_off_policy(tmp_path, monkeypatch, flags):
    states = []
    train_step = train.train_step

    def spy(*args):
        step = train_step(*args)
        states.append(jax.device_get(step.state.params))
        return step

    monkeypatch.setattr(train, "train_step", spy)
    run = carry_out(tmp_path / "run", *CHANGING, *flags, *ASYNC)
    expected, params = by_hand(tmp_path / "oracle", *CHANGING, *flags, *ASYNC)
    logged = comparable(run)
    assert len(expected[0]) > 20
    for record, by_name in zip(logged, expected, strict=True):
        assert {name: record[name] for name in by_name} == by_name
    jax.tree.map(np.testing.assert_array_equal, states[-1], params)
    # The second batch is of the first policy, which the first update has left: ratios show it.
    kl = [abs(record["objective/kl"]) for record in logged]
    moved = [record["policy/approxkl_avg_first"] for record in logged]
    assert max(kl[:2]) < 1e-4 < min(kl[2:]) and moved[0] < min(moved[1:]) / 2


def test_sampling_of_the_next_batch_does_not_wait_for_the_rewards(tmp_path, monkeypatch):
    begun, threads, events = [threading.Event() for _ in range(UPDATES)], [], []
    generate, update = PPO.generate, PPO.update

    def sample(self, state, prompts, step):
        events.append(f"sample {step}")
        begun[step].set()
        return generate(self, state, prompts, step)

    def learn(self, state, batch, step):
        events.append(f"learn {step}")
        return update(self, state, batch, step)

    rewarded = []

    def slow(completion_ids, **_):
        if len(completion_ids) == ROWS and events:  # in training
            rewarded.append(len(rewarded))
            following = rewarded[-1] + 1
            assert following == UPDATES or begun[following].wait(120)
            events.append(f"reward {rewarded[-1]}")
            threads.append(threading.current_thread())
        return score(completion_ids)

    monkeypatch.setattr(PPO, "generate", sample)
    monkeypatch.setattr(PPO, "update", learn)
    run = carry_out(tmp_path / "run", *ASYNC, reward=slow)
    expected = ["sample 0"]
    for step in range(UPDATES - 1):
        expected += [f"sample {step + 1}", f"reward {step}", f"learn {step}"]
    assert events == [*expected, f"reward {UPDATES - 1}", f"learn {UPDATES - 1}"]
    assert set(threads) == {threading.main_thread()}  # where `signal.alarm` works
    records = read_metrics(run / "metrics.jsonl")
    assert ["time/overlap_s" in record for record in records] == [True] * (UPDATES - 1) + [False]
    for record in records:
        stages = sum(record[f"time/{name}_s"] for name in ("rollout", "reward", "update"))
        assert record.get("time/overlap_s", 0.0) <= min(record["time/rollout_s"], record["time/reward_s"])
        assert stages - record.get("time/overlap_s", 0.0) > 0


# -------------------------------------------------------------------------------------------------------------- resume


def sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def failure():
    raise ValueError("the judge is away")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run."""
    flags = [*CHANGING, *ASYNC, "--save_steps", "1", "--save_total_limit", "9"]
    return carry_out(tmp_path_factory.mktemp("async") / "whole", *flags)


@pytest.mark.parametrize(
    ("strike", "update", "error"),
    [
        (sigterm, 2, Preempted),
        pytest.param(sigterm, 0, Preempted, marks=pytest.mark.full),
        pytest.param(sigterm, UPDATES - 1, Preempted, marks=pytest.mark.full),
        pytest.param(failure, 2, DataError, marks=pytest.mark.full),
    ],
)
def test_a_run_that_ends_within_its_rewards_goes_on_exactly(whole, tmp_path, strike, update, error):
    calls = []

    def struck(completion_ids, **_):
        if len(completion_ids) == ROWS:
            calls.append(None)
            if len(calls) == update + 1:
                strike()
        return score(completion_ids)

    folder = tmp_path / "run"
    flags = [*CHANGING, *ASYNC, "--save_steps", "1", "--save_total_limit", "9"]
    with pytest.raises(error):
        carry_out(folder, *flags, reward=struck)
    assert len(comparable(folder)) == update
    if update:
        assert (folder / "checkpoints" / str(update) / "ahead").is_dir()
    carry_out(folder, *flags, "--resume")
    assert_same_run(folder, whole)


@pytest.mark.full
def test_sampling_behind_rewards_that_need_the_devices_gives_the_same_run(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(train.registry, "need_devices", lambda _: True)
    folder = carry_out(tmp_path / "run", *CHANGING, *ASYNC, "--save_steps", "1", "--save_total_limit", "9")
    assert_same_run(folder, whole)
    assert [record.get("time/overlap_s") for record in read_metrics(folder / "metrics.jsonl")] == [0.0, 0.0, 0.0, None]


def test_a_checkpoint_holds_the_batch_that_was_sampled_ahead(whole):
    held = {entry.name: (entry / "ahead").is_dir() for entry in (whole / "checkpoints").iterdir()}
    assert held == {"1": True, "2": True, "3": True, "4": False}  # behind the last update comes no other


@pytest.fixture
def stopped(whole, tmp_path):
    """The whole run as it was after two updates."""
    folder = shutil.copytree(whole, tmp_path / "run")
    for step in (3, 4):
        shutil.rmtree(folder / "checkpoints" / str(step))
    evals = json.loads((folder / "eval.json").read_text())
    (folder / "eval.json").write_text(json.dumps({name: evals[name] for name in evals if name != "after"}))
    return folder


FLAGS = [*CHANGING, "--save_total_limit", "9", "--resume"]


@pytest.mark.full
def test_settings_of_the_loop_may_change_and_the_batch_is_kept(whole, stopped, capsys):
    changes = ["--save_steps", "2", "--allow_changes", "save_steps"]
    assert_same_run(carry_out(stopped, *FLAGS, *ASYNC, *changes), whole)
    assert "sampled anew" not in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--async_rollouts", "0"], ["async_rollouts"]),
        ([*ASYNC, "--batch_size", "8", "--missing_eos_penalty", "0.2"], ["batch_size", "missing_eos_penalty"]),
    ],
)
def test_under_other_settings_the_batch_is_sampled_anew(whole, stopped, capsys, flags, names):
    flags = [*FLAGS, *flags, "--save_steps", "1"]
    with pytest.raises(ConfigError, match=names[0]):
        carry_out(stopped, *flags)
    carry_out(stopped, *flags, "--allow_changes", *names)
    listed = ", ".join(names)
    assert f"warning: the batch of update 3 was sampled under other settings ({listed})" in capsys.readouterr().out
    records = comparable(stopped)
    assert records[:2] == comparable(whole)[:2]
    assert abs(records[2]["policy/approxkl_avg_first"]) < 1e-6 < comparable(whole)[2]["policy/approxkl_avg_first"]


@pytest.mark.full
def test_a_run_that_was_on_policy_can_go_on_one_step_off(tmp_path):
    flags = ["--save_steps", "1", "--total_episodes", str(2 * ROWS)]
    folder = carry_out(tmp_path / "run", *flags)
    (folder / "eval.json").unlink()
    changes = ["--total_episodes", str(4 * ROWS), *ASYNC, "--allow_changes", "total_episodes", "async_rollouts"]
    records = comparable(carry_out(folder, *flags[:2], *changes, "--resume"))
    moved = [record["policy/approxkl_avg_first"] > 1e-6 for record in records]
    assert moved == [False, False, False, True]


@pytest.mark.full
def test_a_damaged_batch_is_noticed(whole, stopped, capsys):
    largest = max((stopped / "checkpoints" / "2" / "ahead").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert_same_run(carry_out(stopped, *FLAGS, *ASYNC, "--save_steps", "1"), whole)
    assert "holds damaged checkpoints: 2 (ahead/" in capsys.readouterr().out


@pytest.mark.full
def test_a_run_that_is_killed_in_every_stage_equals_the_uninterrupted_one(tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    code, _, err = run_struck(whole, "never", 0, signal.SIGKILL, flags=ASYNC)
    assert (code, err) == (0, "")
    for update, stage in enumerate(("reward", "rollout", "update", "save")):
        flags = [*ASYNC, *(["--resume"] if update else [])]
        code, _, err = run_struck(folder, stage, update, signal.SIGKILL, 0.01, flags=flags)
        assert code == -signal.SIGKILL, (stage, err)
    code, _, err = run_struck(folder, "never", 0, signal.SIGKILL, flags=[*ASYNC, "--resume"])
    assert (code, err) == (0, "")
    assert_same_run(folder, whole)


# ----------------------------------------------------------------------------------------------------------- processes


def two_processes(folder: Path, *flags: str) -> list[str]:
    address = f"127.0.0.1:{free_port()}"
    run = ["-m", "jaxppo.train", *SMALL, *ASYNC, *flags, "--output_dir", folder, "--num_processes", "2"]
    commands = [[*run, "--coordinator_address", address, "--process_id", number] for number in range(2)]
    with started(commands, num_devices=2) as both:
        outputs = outputs_of(both, timeout_s=600)
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)[-4000:]
    return outputs


@pytest.mark.full
def test_two_processes_do_what_one_does_and_resume_exactly(tmp_path):
    """Also which prompts they draw, which follows from the scores of both."""
    flags = ["--curriculum", "success", "--curriculum_success", "0.05", "--curriculum_threshold", "0.3"]
    flags += ["--save_steps", "1", "--save_total_limit", "9"]
    both, again, alone = (tmp_path / name for name in ("both", "again", "alone"))
    two_processes(both, *flags)
    shutil.copytree(both, again)
    (again / "eval.json").unlink()
    for step in (3, 4):
        shutil.rmtree(again / "checkpoints" / str(step))
    two_processes(again, *flags, "--resume")
    assert comparable(again) == comparable(both)
    with started([["-m", "jaxppo.train", *SMALL, *ASYNC, *flags, "--output_dir", alone]], num_devices=4) as one:
        outputs_of(one, timeout_s=600)
    assert (alone / "samples.jsonl").read_text() == (both / "samples.jsonl").read_text()
    for record, expected in zip(comparable(both), comparable(alone), strict=True):
        assert record == pytest.approx(expected, rel=1e-3, abs=1e-4)
