"""Rewards in parts in a run: each at its token, in step with the scores; async, resumed, in several processes."""

import json
import math
import re

import numpy as np
import pytest

from jaxppo import train
from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.rl.ppo import PPO
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.metrics import find
from tests.commands import outputs_of, started
from tests.parallel.test_processes import commands
from tests.test_async_rollouts import ASYNC, CHANGING, ROWS, UPDATES, comparable, config_of

# The shipped model, which writes plans: some whole, some broken, some cut.
PLANS = [
    "--preset",
    "tiny",
    "--response_length",
    "40",
    "--total_episodes",
    "48",
    "--num_ppo_epochs",
    "1",
    "--test_sizes",
]
PLANS += [
    "4:4",
    "--eval_splits",
    "test",
    "--headline_split",
    "test",
    "--num_sample_generations",
    "4",
    "--audit_rate",
    "0",
]
STEP = ["--reward_level", "step"]


def run_plans(folder, *flags):
    train.train(parse_cli(TrainConfig, "train", [*PLANS, "--quiet", "True", *flags, "--output_dir", str(folder)]))
    return folder


def by_words(completions):
    """The length of each word, where it stands; and something for the whole."""
    return [
        [(found.start(), found.end(), len(found[0]) / 100) for found in re.finditer(r"\S+", text)] + [(0, 0, 0.5)]
        for text in completions
    ]


@pytest.fixture
def given(monkeypatch):
    """What `make_trajectories` is given in each update of a run: scores, token scores, ids and mask."""
    seen = []
    original = PPO.make_trajectories

    def spy(self, state, scored, rollout, sequences, scores, token_scores=None):
        seen.append((scores, token_scores, np.array(rollout.completion_ids), np.array(rollout.completion_mask)))
        return original(self, state, scored, rollout, sequences, scores, token_scores)

    monkeypatch.setattr(PPO, "make_trajectories", spy)
    return seen


def test_parts_reach_their_tokens(tmp_path, monkeypatch, given):
    """One token per word: what a word earns is at its token, what belongs to no word at the last one."""
    texts = []

    def reward(completions):
        if len(completions) == ROWS:
            texts.append(completions)
        return by_words(completions)

    monkeypatch.setattr(train.registry, "make_plan_reward", lambda *_, **__: reward)
    train.train(config_of(tmp_path / "run"))
    assert len(given) == UPDATES
    written = [completions for completions in texts if len(completions) == ROWS][-UPDATES:]
    for (scores, token_scores, _, mask), completions in zip(given, written, strict=True):
        for row, text in enumerate(completions):
            words, length = text.split(), mask[row].sum()
            expected = np.full(mask.shape[1], np.nan)  # there is no part
            expected[: len(words)] = [len(word) / 100 for word in words]
            expected[length - 1] = np.nan_to_num(expected[length - 1]) + 0.5
            np.testing.assert_allclose(token_scores[row], expected, atol=1e-6)
            assert scores[row] == pytest.approx(np.nansum(expected), abs=1e-6)


@pytest.mark.full
def test_steps_of_plans_change_who_earns_and_not_how_much(tmp_path, given):
    plain, records = (
        read_metrics(run_plans(tmp_path / level, "--reward_level", level) / "metrics.jsonl")
        for level in ("outcome", "step")
    )
    outcome, step = given[:3], given[3:]
    assert all(token_scores is None for _, token_scores, *_ in outcome)
    np.testing.assert_array_equal(outcome[0][0], step[0][0])  # the first batch is the same
    for scores, token_scores, _, mask in step:
        token_scores = np.nan_to_num(token_scores)
        np.testing.assert_allclose(token_scores.sum(axis=1), scores, atol=1e-6)
        earning = np.count_nonzero(token_scores, axis=1)
        assert not token_scores[~mask].any() and token_scores.min() < -0.05 and max(earning) > 3
    assert plain[0]["objective/scores"] == pytest.approx(records[0]["objective/scores"], abs=1e-6)
    assert plain[0]["policy/advantages_mean"] != pytest.approx(records[0]["policy/advantages_mean"], abs=1e-3)
    for record in records:
        assert record["reward/breaking_step"] >= 1 and 0.2 < record["reward/progress_steps"] <= 1
        assert {find(name).name for name in record if name.endswith("_step")} == {"reward/breaking_step"}
    assert "reward/breaking_step" not in plain[0]
    samples = [json.loads(line) for line in (tmp_path / "step" / "samples.jsonl").read_text().splitlines()]
    assert samples and all(math.fsum(part[2] for part in each["step_rewards"]) == each["score"] for each in samples)
    for sample in samples:
        pieces = [sample["completion"][start:end] for start, end, _ in sample["step_rewards"]]
        assert sample["completion"].startswith(" ; ".join(filter(None, pieces)))


@pytest.mark.full
@pytest.mark.parametrize("flags", [ASYNC, []], ids=["async", "sync"])
def test_a_run_with_steps_goes_on_exactly(tmp_path, monkeypatch, flags):
    flags = [*CHANGING, *STEP, *flags, "--save_total_limit", "9"]
    whole = run_plans(tmp_path / "whole", *flags)
    original, calls = PPO.make_trajectories, []

    def struck(self, *args):
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PPO, "make_trajectories", struck)
        run_plans(tmp_path / "run", *flags)
    assert len(comparable(tmp_path / "run")) == 1
    run = run_plans(tmp_path / "run", *flags, "--resume")
    assert comparable(run) == comparable(whole) and len(comparable(run)) == 3
    assert (run / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()


@pytest.mark.full
def test_two_processes_learn_from_the_steps_as_one_does(tmp_path):
    flags = [*PLANS, *STEP, "--total_episodes", "32"]
    one = comparable(run_plans(tmp_path / "one", *STEP, "--total_episodes", "32"))
    shipped = commands(tmp_path / "two", *flags)
    for command in shipped:
        command[command.index("--sft_model_path") + 1] = "blocksworld-sft"
    with started(shipped, num_devices=2) as both:
        outputs = outputs_of(both)
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)[-4000:]
    two = comparable(tmp_path / "two")
    assert len(one) == len(two) == 2 and one[0]["reward/progress_steps"] > 0.2
    for name in ("objective/scores", "value/returns_var", "reward/mean", "reward/progress_steps"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-4, abs=1e-6), name
