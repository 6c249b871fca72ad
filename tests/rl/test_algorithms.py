"""The table of algorithms, and that a new one is a file and a row."""

import sys

import jax
import numpy as np
import pytest

from jaxppo import data, models
from jaxppo.config import ALGORITHMS, Algorithm, RLConfig, TrainConfig
from jaxppo.config.sources import flatten, parse_cli, replace
from jaxppo.errors import ConfigError
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import algorithms
from jaxppo.rl.learner import PPO
from tests.device_modes import EOS, MODEL, PAD

FILE = '''
"""REINFORCE: the mean score of the batch is the baseline, one advantage per completion."""

from jaxppo.rl import ops
from jaxppo.types import Trajectories


def make_trajectories(outputs, sequences, scores, has_score, *, kl, kl_coef, config, axis_name):
    mean = ops.masked_mean(scores, has_score, axis_name)
    advantages = has_score * (scores - mean)
    trajectories = Trajectories(sequences, outputs.logprobs, scores, advantages)
    return trajectories, {"policy/advantages_mean": ops.mean(advantages, axis_name)}
'''
ROW = Algorithm(needs_values=False, ratio="completion", num_generations=2)
SETTINGS = {"batch_size": 8, "total_episodes": 80, "response_length": 6, "learning_rate": 0.01, "kl_coef": 0.0}
SETTINGS |= {"missing_eos_penalty": None}
SCORES = np.array([0.0, 1.0, 0.5, np.nan, 0.25, 0.0, 1.0, 0.25], np.float32)


@pytest.fixture
def reinforce(tmp_path, monkeypatch):
    """A new algorithm: its file and its row."""
    (tmp_path / "reinforce.py").write_text(FILE)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    monkeypatch.setitem(ALGORITHMS, "reinforce", ROW)
    yield
    del sys.modules["jaxppo.rl.algorithms.reinforce"]


def test_a_new_algorithm_is_a_file_and_a_row(reinforce, tmp_path):
    config = replace(parse_cli(TrainConfig, "train", ["--algorithm", "reinforce"]), **SETTINGS)
    assert (flatten(config)["algorithm"], config.rl.group_size, config.num_prompts) == ("reinforce", 2, 4)
    ppo = PPO(config, MODEL, EOS, PAD, DataParallel(devices=jax.devices()[:1]))
    policy = models.init_params(MODEL, jax.random.key(0))
    state, prompts = ppo.init_state(policy), data.pad_left([[5, 6], [7], [3, 4], [9]], 4, PAD)
    assert set(state.params) == {"policy"}
    rollout = ppo.rollout_of([[5, 6], [7, EOS], [3, 4, 8], [9]] * 2)
    sequences = ppo.pack(prompts, rollout)
    scored = ppo.score(state, ppo.reference(state, policy), sequences, rollout)
    state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, SCORES)
    expected = np.nan_to_num(SCORES - np.nanmean(SCORES))
    np.testing.assert_allclose(trajectories.advantages, expected, atol=1e-6)
    state, update_stats = ppo.update(state, trajectories, 0)
    assert float(update_stats["val/ratio_first"]) == pytest.approx(1.0, abs=1e-5)
    assert "objective/scores" in stats
    assert "loss/value_avg" not in update_stats
    moved = jax.tree.map(lambda new, old: np.abs(new - old).max() > 0, state.params["policy"], policy)
    assert all(jax.tree.leaves(moved))


def test_an_algorithm_without_a_row_is_an_error_that_names_the_rows():
    with pytest.raises(ConfigError, match=r"^algorithm: .*ppo, rloo, grpo"):
        parse_cli(TrainConfig, "train", ["--algorithm", "reinforce"])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_has_a_file_and_names_settings(name):
    formulas = algorithms.formulas_of(name)
    assert callable(formulas.make_trajectories)
    assert set(ALGORITHMS[name].unused) <= set(flatten(RLConfig()))
