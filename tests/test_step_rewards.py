"""Rewards in parts in a run: each at its token, in step with the scores; async, resumed, in several processes."""

import json
import math

import numpy as np
import pytest

from jaxppo import train
from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.rl.ppo import PPO
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.metrics import find
from tests.commands import comparable
from tests.rewards_for_runs import by_words
from tests.small_runs import ASYNC, CHANGING, ROWS, assert_same_run, carry_out, config_of, two_processes

# The shipped model, which writes plans: some whole, some broken, some cut. One update.
PLANS = ["--preset", "tiny", "--response_length", "40", "--total_episodes", str(ROWS), "--num_ppo_epochs", "1"]
PLANS += ["--sizes", "test=4:4", "--eval_splits", "test", "--headline_split", "test", "--num_sample_generations", "4"]
PLANS += ["--audit_rate", "0", "--quiet", "True"]


@pytest.fixture
def learned_from(monkeypatch):
    """What `make_trajectories` is given in each update of a run: scores, token scores and mask."""
    seen = []
    original = PPO.make_trajectories

    def spy(self, state, scored, rollout, sequences, scores, token_scores=None):
        seen.append((scores, token_scores, np.array(rollout.completion_mask)))
        return original(self, state, scored, rollout, sequences, scores, token_scores)

    monkeypatch.setattr(PPO, "make_trajectories", spy)
    return seen


def test_parts_reach_their_tokens(tmp_path, learned_from):
    """One token per word: what a word earns is at its token, what belongs to no word at the last one."""
    texts = []

    def noted(completions):
        if len(completions) == ROWS:
            texts.append(completions)
        return by_words(completions)

    carry_out(tmp_path / "run", "--total_episodes", 2 * ROWS, reward=noted)
    assert len(learned_from) == 2
    for (scores, token_scores, mask), completions in zip(learned_from, texts[-2:], strict=True):
        for row, text in enumerate(completions):
            words, length = text.split(), mask[row].sum()
            expected = np.full(mask.shape[1], np.nan)  # there is no part
            expected[: len(words)] = [len(word) / 100 for word in words]
            expected[length - 1] = np.nan_to_num(expected[length - 1]) + 0.5
            np.testing.assert_allclose(token_scores[row], expected, atol=1e-6)
            assert scores[row] == pytest.approx(np.nansum(expected), abs=1e-6)


@pytest.mark.full
def test_steps_of_plans_change_who_earns_and_not_how_much(tmp_path, learned_from, monkeypatch):
    monkeypatch.setattr(train, "plot_run", lambda *_: None)
    for level in ("outcome", "step"):
        flags = ["--reward_level", level, "--output_dir", str(tmp_path / level)]
        train.train(parse_cli(TrainConfig, "train", [*PLANS, *flags]))
    (plain,), (record,) = (read_metrics(tmp_path / level / "metrics.jsonl") for level in ("outcome", "step"))
    (plain_scores, none, _), (scores, token_scores, mask) = learned_from
    assert none is None
    np.testing.assert_array_equal(plain_scores, scores)  # the batch is the same
    token_scores = np.nan_to_num(token_scores)
    np.testing.assert_allclose(token_scores.sum(axis=1), scores, atol=1e-6)
    assert not token_scores[~mask].any() and token_scores.min() < -0.05
    assert np.count_nonzero(token_scores, axis=1).max() > 3
    assert plain["objective/scores"] == pytest.approx(record["objective/scores"], abs=1e-6)
    assert plain["policy/advantages_mean"] != pytest.approx(record["policy/advantages_mean"], abs=1e-3)
    assert record["reward/breaking_step"] >= 1 and 0.2 < record["reward/progress_steps"] <= 1
    assert {find(name).name for name in record if name.endswith("_step")} == {"reward/breaking_step"}
    assert "reward/breaking_step" not in plain
    samples = [json.loads(line) for line in (tmp_path / "step" / "samples.jsonl").read_text().splitlines()]
    assert samples and all(math.fsum(part[2] for part in each["step_rewards"]) == each["score"] for each in samples)
    for sample in samples:
        pieces = [sample["completion"][start:end] for start, end, _ in sample["step_rewards"]]
        assert sample["completion"].startswith(" ; ".join(filter(None, pieces)))


@pytest.mark.full
def test_a_run_with_parts_goes_on_exactly(tmp_path, monkeypatch):
    """Also with a batch that was sampled ahead."""
    flags = [*CHANGING, *ASYNC, "--save_total_limit", "9", "--total_episodes", 3 * ROWS]
    whole = carry_out(tmp_path / "whole", *flags, reward=by_words)
    original, calls = PPO.make_trajectories, []

    def struck(self, *args):
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PPO, "make_trajectories", struck)
        carry_out(tmp_path / "run", *flags, reward=by_words)
    assert len(comparable(tmp_path / "run")) == 1
    assert_same_run(carry_out(tmp_path / "run", *flags, "--resume", reward=by_words), whole, updates=3)


@pytest.mark.full
def test_two_processes_learn_from_parts_as_one_does(tmp_path):
    flags = ["--total_episodes", str(2 * ROWS), "--reward_funcs", "tests.rewards_for_runs:by_words"]
    train.train(config_of(tmp_path / "one", *flags))
    two_processes(tmp_path / "two", *flags)
    one, two = comparable(tmp_path / "one"), comparable(tmp_path / "two")
    assert len(one) == len(two) == 2 and one[0]["rewards/by_words/mean"] > 0.5
    for name in ("objective/scores", "value/returns_var", "rewards/by_words/mean"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-4, abs=1e-6), name
