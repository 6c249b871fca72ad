"""`--async_rollouts 1` in runs: what is sampled when, from what, and across any stop."""

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
from jaxppo.rl.learner import PPO
from jaxppo.run import folder as run_folder
from jaxppo.run.console import Console
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.preemption import Preempted
from tests.commands import comparable
from tests.small_runs import (
    ASYNC,
    CHANGING,
    ROWS,
    SAVED,
    UPDATES,
    assert_drawn_in_order,
    assert_same_run,
    carry_out,
    config_of,
    cut_back,
    score,
    two_processes,
)

FLAGS = [*CHANGING, *ASYNC, *SAVED]


class WatchedRun(NamedTuple):
    """An uninterrupted run, and in which order and threads its stages began."""

    folder: Path
    events: list[str]
    reward_threads: list[threading.Thread]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Rewards of this run take until the sampling of the next batch has begun."""
    begun = [threading.Event() for _ in range(UPDATES)]
    run = WatchedRun(tmp_path_factory.mktemp("async") / "whole", [], [])
    generate, update = PPO.generate, PPO.update

    def sample(self, state, prompts, step):
        run.events.append(f"sample {step}")
        begun[step].set()
        return generate(self, state, prompts, step)

    def learn(self, state, batch, step):
        run.events.append(f"learn {step}")
        return update(self, state, batch, step)

    def slow_score(completion_ids, **_):
        in_training = len(completion_ids) == ROWS and run.events
        if in_training:
            step = len(run.reward_threads)
            assert step + 1 == UPDATES or begun[step + 1].wait(120)
            run.events.append(f"reward {step}")
            run.reward_threads.append(threading.current_thread())
        return score(completion_ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PPO, "generate", sample)
        patch.setattr(PPO, "update", learn)
        carry_out(run.folder, *FLAGS, reward=slow_score)
    return run


@pytest.fixture(scope="module")
def whole(watched):
    """The folder of the uninterrupted run."""
    return watched.folder


@pytest.fixture
def stopped(whole, tmp_path):
    """The whole run as it was after two updates."""
    return cut_back(shutil.copytree(whole, tmp_path / "run"), 2)


def test_sampling_of_the_next_batch_does_not_wait_for_the_rewards_and_is_in_checkpoints(watched):
    expected = ["sample 0"]
    for step in range(UPDATES - 1):
        expected += [f"sample {step + 1}", f"reward {step}", f"learn {step}"]
    assert watched.events == [*expected, f"reward {UPDATES - 1}", f"learn {UPDATES - 1}"]
    assert set(watched.reward_threads) == {threading.main_thread()}  # where `signal.alarm` works
    records = read_metrics(watched.folder / "metrics.jsonl")
    assert ["time/overlap_s" in record for record in records] == [True] * (UPDATES - 1) + [False]
    for record in records:
        stages = sum(record[f"time/{name}_s"] for name in ("rollout", "reward", "update"))
        assert record.get("time/overlap_s", 0.0) <= min(record["time/rollout_s"], record["time/reward_s"])
        assert stages - record.get("time/overlap_s", 0.0) > 0
    held = {entry.name: (entry / "ahead").is_dir() for entry in (watched.folder / "checkpoints").iterdir()}
    assert held == {"1": True, "2": True, "3": True, "4": False}  # after the last update comes no other
    # Prompts follow from the seed and past scores.
    assert_drawn_in_order(watched.folder, config_of(watched.folder, *FLAGS))


class Sampled(NamedTuple):
    """What is learned from in an update."""

    rollout: object
    sequences: object
    scored: object


def by_hand(folder, *flags):
    """The same run as a loop of its own: two batches of the first policy, then each of the one before the last."""
    run = run_folder.Run(command="train", config=config_of(folder, *flags), folder=folder, console=Console(quiet=True))
    setup, first = train.set_up(run)
    ppo = setup.learner
    state = ppo.init_state(*first)
    reference = ppo.reference(state, first.policy)

    def sample(step):
        prompts = setup.prompts.batch(step).prompts
        rollout = ppo.generate(state, prompts, step)
        sequences = ppo.pack(prompts, rollout)
        return jax.block_until_ready(Sampled(rollout, sequences, ppo.score(state, reference, sequences, rollout)))

    batches = [sample(0)]
    records = []
    for step in range(UPDATES):
        if step + 1 < UPDATES:
            batches.append(sample(step + 1))
        rollout, sequences, scored = batches[step]
        rows = zip(np.array(rollout.completion_ids), np.array(rollout.completion_mask), strict=True)
        scores = score([ids[mask] for ids, mask in rows])
        state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, scores)
        state, update_stats = ppo.update(state, trajectories, step)
        records.append({name: float(value) for name, value in jax.device_get(stats | update_stats).items()})
    return records, jax.device_get(state.params)


@pytest.mark.full
@pytest.mark.parametrize(
    "flags",
    [["--num_ppo_epochs", "1", "--dtype", "bfloat16"], ["--algorithm", "rloo", "--use_peft", "--lora_r", "4"]],
    ids=["ppo bf16", "rloo lora"],
)
def test_the_run_is_that_of_a_loop_one_step_off_policy(tmp_path, monkeypatch, flags):
    states = []
    train_step = train.train_step

    def spy(*args):
        step = train_step(*args)
        states.append(jax.device_get(step.state.params))
        return step

    monkeypatch.setattr(train, "train_step", spy)
    logged = comparable(carry_out(tmp_path / "run", *CHANGING, *flags, *ASYNC))
    expected, params = by_hand(tmp_path / "oracle", *CHANGING, *flags, *ASYNC)
    assert len(expected[0]) > 20
    for record, by_name in zip(logged, expected, strict=True):
        assert {name: record[name] for name in by_name} == by_name
    jax.tree.map(np.testing.assert_array_equal, states[-1], params)
    # The second batch is of the first policy, which the first update has left: ratios show it.
    kl = [abs(record["objective/kl"]) for record in logged]
    moved = [record["policy/approxkl_avg_first"] for record in logged]
    assert max(kl[:2]) < 1e-4 < min(kl[2:]) and moved[0] < min(moved[1:]) / 2


@pytest.mark.full
def test_sampling_after_rewards_that_need_the_devices_gives_the_same_run(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(train.registry, "need_devices", lambda _: True)
    folder = carry_out(tmp_path / "run", *FLAGS)
    assert_same_run(folder, whole)
    assert [record.get("time/overlap_s") for record in read_metrics(folder / "metrics.jsonl")] == [0.0, 0.0, 0.0, None]


def sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def failure():
    raise ValueError("the judge is away")


@pytest.mark.parametrize(
    "stops",
    [
        [(sigterm, 2, Preempted)],
        pytest.param(
            [(sigterm, 0, Preempted), (failure, 2, DataError), (sigterm, UPDATES - 1, Preempted)],
            marks=pytest.mark.full,
        ),
    ],
    ids=["once", "several times"],
)
def test_a_run_that_ends_within_its_rewards_goes_on_exactly(whole, tmp_path, stops):
    folder = tmp_path / "run"
    done = 0
    for strike, update, error in stops:
        batches = []

        def struck(completion_ids, strike=strike, last=update - done, batches=batches, **_):
            if len(completion_ids) == ROWS:
                batches.append(completion_ids)
                if len(batches) == last + 1:
                    strike()
            return score(completion_ids)

        with pytest.raises(error):
            carry_out(folder, *FLAGS, *(["--resume"] if folder.exists() else []), reward=struck)
        assert len(comparable(folder)) == update
        assert update == 0 or (folder / "checkpoints" / str(update) / "ahead").is_dir()
        done = update
    carry_out(folder, *FLAGS, "--resume")
    assert_same_run(folder, whole)


@pytest.mark.full
def test_settings_of_the_loop_may_change_and_a_damaged_batch_is_noticed(whole, stopped, capsys):
    largest = max((stopped / "checkpoints" / "2" / "ahead").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    changes = ["--save_steps", "2", "--allow_changes", "save_steps"]
    assert_same_run(carry_out(stopped, *FLAGS, *changes, "--resume"), whole)
    out = capsys.readouterr().out
    assert "damaged checkpoints: 2 (ahead/" in out and "(save_steps)" not in out


@pytest.mark.full
def test_a_run_on_policy_goes_on_from_a_batch_that_was_sampled_ahead(whole, stopped, capsys):
    """The batch is of the policy before: it is sampled anew."""
    flags = [*FLAGS, "--async_rollouts", "0", "--resume"]
    with pytest.raises(ConfigError, match="async_rollouts"):
        carry_out(stopped, *flags)
    carry_out(stopped, *flags, "--allow_changes", "async_rollouts")
    assert "(async_rollouts)" in capsys.readouterr().out
    records = comparable(stopped)
    assert records[:2] == comparable(whole)[:2]
    assert abs(records[2]["policy/approxkl_avg_first"]) < 1e-6 < comparable(whole)[2]["policy/approxkl_avg_first"]


@pytest.mark.full
def test_a_run_that_was_on_policy_can_go_on_one_step_off_and_in_other_batches(tmp_path, capsys):
    folder = carry_out(tmp_path / "run", *SAVED, "--total_episodes", str(2 * ROWS))
    cut_back(folder, 2)
    changes = [*ASYNC, "--allow_changes", "total_episodes", "async_rollouts", "--resume"]
    records = comparable(carry_out(folder, *SAVED, *changes))
    moved = [record["policy/approxkl_avg_first"] > 1e-6 for record in records]
    assert moved == [False, False, False, True]
    cut_back(folder, 3)
    names = ["batch_size", "missing_eos_penalty"]
    other = ["--batch_size", "8", "--missing_eos_penalty", "0.2", "--allow_changes", *names, "--resume"]
    again = comparable(carry_out(folder, *SAVED, *ASYNC, *other))
    assert f"({', '.join(names)})" in capsys.readouterr().out
    assert again[:3] == records[:3] and again[3]["policy/approxkl_avg_first"] < 1e-6


@pytest.mark.full
def test_two_processes_do_what_one_does_and_resume_exactly(tmp_path):
    flags = [*ASYNC, *SAVED]
    both, alone = tmp_path / "both", tmp_path / "alone"
    two_processes(both, *flags)
    again = cut_back(shutil.copytree(both, tmp_path / "again"), 2)
    two_processes(again, *flags, "--resume")
    assert comparable(again) == comparable(both)
    train.train(config_of(alone, *flags))
    assert (alone / "samples.jsonl").read_text() == (both / "samples.jsonl").read_text()
    for record, expected in zip(comparable(both), comparable(alone), strict=True):
        assert record == pytest.approx(expected, rel=1e-3, abs=1e-4)
