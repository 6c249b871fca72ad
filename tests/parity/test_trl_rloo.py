"""RLOO against TRL 1.12's `RLOOTrainer`: advantages, gradient norms and parameters after two optimizer steps."""

import numpy as np
import pytest

from tests import quick_first

from .conftest import LENGTH
from .groups import ROWS, assert_equal_stats, run_both
from .ours import assert_equal_changes

BASE = {
    "num_generations": 4,
    "beta": 0.05,
    "num_iterations": 2,
    "temperature": 0.8,
    "max_completion_length": LENGTH,
    "learning_rate": 1e-4,
    "adam_epsilon": 1e-5,
    "max_grad_norm": 1.0,
}
CASES = {
    "plain": {},
    "llama, pairs": {"num_generations": 2, "temperature": 1.3, "reward_clip_range": (-0.2, 0.8)},
    "qwen3, masked": {"mask_truncated_completions": True},
    "normalised": {"normalize_advantages": True, "beta": 0.0},
    "asymmetric": {"epsilon": 0.01, "epsilon_high": 0.03, "learning_rate": 1e-3, "num_iterations": 3},
}


@pytest.fixture(scope="module", params=quick_first(1, CASES))
def both(request, saved_by_name, tmp_path_factory):
    saved = saved_by_name.get(request.param.split(",")[0], saved_by_name["gpt_neox"])
    return run_both("rloo", BASE | CASES[request.param], saved, tmp_path_factory.mktemp("ours"))


def test_advantages(both):
    mask = both.trl.completion_mask.astype(bool)
    np.testing.assert_allclose(both.trajectories.advantages, both.trl.advantages, atol=1e-5)
    np.testing.assert_array_equal(both.trajectories.sequences.completion_mask, mask)
    np.testing.assert_allclose((both.trajectories.logprobs * mask).sum(1), both.trl.old_logps, atol=1e-4)


def test_parameters_after_all_steps(both):
    assert_equal_changes(both.weights, both.trl.policy_before, both.trl.policy_after)


def test_metrics(both):
    expected = {
        "loss/policy_avg": np.mean(both.trl.losses),
        "policy/clipfrac_avg": np.mean([step["clip_ratio/region_mean"] for step in both.trl.metrics]),
    }
    if both.options.get("mask_truncated_completions"):
        assert both.stats["objective/kl"] != 0.0  # measured on all completions, while TRL leaves out the masked ones
    elif both.options["beta"]:  # TRL's is a mean per token, ours a sum per completion
        tokens = both.trl.completion_mask.sum()
        expected["objective/kl"] = both.trl.metrics[0]["kl"] * tokens / ROWS
    else:
        assert "objective/kl" not in both.stats
    assert_equal_stats(both, expected)
