"""One PPO update, step for step against TRL 1.12's `PPOTrainer`: same weights, completions, scores and mini-batches."""

from typing import NamedTuple

import numpy as np
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.rl import ops, update
from tests import quick_first

from .conftest import EOS, LENGTH, make_rows
from .ours import Ours, assert_equal_changes, run_ours
from .trl_ppo import TrlPPOResult, run_trl_ppo

ROWS = 16
PENALTY = 0.5
SCORES = np.linspace(-1.3, 1.7, ROWS).astype(np.float32)
CASES = [("gpt_neox", "k1", False), ("qwen3", "k3", False), ("llama", "k1", True), ("gpt_neox", "k3", True)]
"""The model, the KL estimator, and whether rewards are whitened."""
SHARED = {
    "response_length": LENGTH,
    "temperature": 0.8,
    "num_ppo_epochs": 2,
    "num_mini_batches": 2,
    "kl_coef": 0.07,
    "cliprange": 0.1,
    "cliprange_value": 0.15,
    "vf_coef": 0.3,
    "gamma": 0.98,
    "lam": 0.9,
    "missing_eos_penalty": PENALTY,
    "learning_rate": 1e-3,
    "adam_epsilon": 1e-5,
}


class Both(NamedTuple):
    ours: Ours
    trl: TrlPPOResult


@pytest.fixture(
    scope="module",
    params=quick_first(1, [(case,) for case in CASES]),
    ids=lambda case: f"{case[0]}-{case[1]}-{'whiten' if case[2] else 'plain'}",
)
def both(request, saved_by_name, tmp_path_factory) -> Both:
    name, kl_estimator, whiten_rewards = request.param
    options = SHARED | {"kl_estimator": kl_estimator, "whiten_rewards": whiten_rewards}
    config = replace(
        TrainConfig(),
        **options,
        score_position="after",
        max_grad_norm=None,
        lr_scheduler_type="constant",
        batch_size=ROWS,
        total_episodes=ROWS,
    )
    ours = run_ours(config, saved_by_name[name], SCORES, tmp_path_factory.mktemp("ours"))
    rows = update.mini_batch_rows(ops.purpose_key(42, ops.Purpose.MINI_BATCHES, 0), ROWS, 2, 2)
    orders = np.asarray(rows).reshape(2, ROWS)
    trl = run_trl_ppo(saved_by_name[name], *make_rows(ROWS), SCORES, orders, options | {"stop_token": "eos"})
    return Both(ours, trl)


def test_rollout_rewards_advantages_and_returns(both):
    scored, trajectories, trl = both.ours.scored, both.ours.trajectories, both.trl.rollout
    mask = ~trl["padding_mask"]
    np.testing.assert_array_equal(trajectories.sequences.completion_mask, mask)
    np.testing.assert_array_equal(trajectories.value_mask, ~trl["padding_mask_p1"])
    np.testing.assert_allclose(scored.logprobs[mask], trl["logprobs"][mask], atol=1e-5)
    np.testing.assert_allclose(scored.ref_logprobs[mask], trl["ref_logprobs"][mask], atol=1e-5)
    for name in ("values", "rewards", "advantages", "returns"):
        np.testing.assert_allclose(getattr(trajectories, name), trl[name], atol=1e-5, err_msg=name)
    cut = np.array([row[-1] != EOS for row in make_rows(ROWS)[1]])
    np.testing.assert_allclose(trl["scores"], SCORES - PENALTY * cut, atol=1e-6)
    assert 0 < cut.sum() < ROWS


def test_parameters_after_two_epochs_of_two_mini_batches(both):
    ours, trl = both
    assert_equal_changes(ours.policy, trl.policy_before, trl.policy_after, least=1e-4)
    assert_equal_changes(ours.value, trl.value_before, trl.value_after, least=1e-4)


SHARED_METRICS = (
    "objective/kl",
    "objective/entropy",
    "objective/non_score_reward",
    "objective/rlhf_reward",
    "objective/scores",
    "policy/clipfrac_avg",
    "loss/policy_avg",
    "loss/value_avg",
    "val/clipfrac_avg",
    "val/num_eos_tokens",
    "lr",
    "episode",
)
"""Those that TRL computes rightly: sums over rows, masked means, counts."""


def test_shared_metrics(both):
    stats = both.ours.stats | {"episode": ROWS}
    for name in SHARED_METRICS:
        np.testing.assert_allclose(stats[name], both.trl.metrics[name], atol=1e-4, rtol=1e-4, err_msg=name)


def test_metrics_that_trl_dilutes_by_padding_equal_their_masked_means(both):
    """Those that TRL averages over padding too, from what it computed before averaging."""
    masked_means = {"policy/approxkl_avg": [], "policy/entropy_avg": [], "val/ratio": []}
    for step in both.trl.steps:
        mask = ~step["padding_mask"]
        masked_means["policy/approxkl_avg"].append(0.5 * (step["logprobs_diff"][mask] ** 2).mean())
        masked_means["policy/entropy_avg"].append(step["entropy"][mask].mean())
        masked_means["val/ratio"].append(step["ratio"][mask].mean())
    for name, means in masked_means.items():
        np.testing.assert_allclose(both.ours.stats[name], np.mean(means), atol=1e-4, rtol=1e-4, err_msg=name)
        assert abs(np.mean(means) - both.trl.metrics[name]) > 1e-6, f"TRL computes {name} rightly by now"
    variance = np.var(masked_means["val/ratio"], ddof=1)
    np.testing.assert_allclose(both.ours.stats["val/ratio_var"], variance, atol=1e-6, rtol=1e-2)
