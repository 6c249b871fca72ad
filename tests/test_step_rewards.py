"""Rewards in parts in a run: each at its token, in step with the scores; async, resumed, in several processes."""

import numpy as np
import pytest

from jaxppo import train
from jaxppo.rl.ppo import PPO
from tests.commands import comparable
from tests.rewards_for_runs import by_words
from tests.small_runs import ASYNC, CHANGING, ROWS, assert_same_run, carry_out, config_of, two_processes

# The shipped model, which writes plans: some whole, some broken, some cut. One update.


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
