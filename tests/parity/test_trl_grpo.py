"""GRPO against TRL 1.12's `GRPOTrainer`: advantages, gradient norms and parameters after all optimizer steps."""

import itertools

import numpy as np
import pytest

from tests import quick_first

from .conftest import LENGTH
from .groups import assert_equal_stats, run_both
from .ours import assert_equal_changes

BASE = {
    "num_generations": 4,
    "beta": 0.0,
    "num_iterations": 1,
    "temperature": 0.8,
    "max_completion_length": LENGTH,
    "learning_rate": 1e-3,
    "adam_epsilon": 1e-5,
    "max_grad_norm": 1.0,
    "epsilon": 0.02,
    "epsilon_high": 0.03,
    "loss_type": "grpo",
    "scale_rewards": "group",
    "importance_sampling_level": "token",
}
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo")
LEVELS = ("token", "sequence")
SCALES = ("group", "batch", "none")
GRID = {
    f"{loss}-{scale}-{level}-{steps}-{beta}": {
        "loss_type": loss,
        "scale_rewards": scale,
        "importance_sampling_level": level,
        "num_iterations": steps,
        "beta": beta,
    }
    | ({"epsilon_high": 1.01} if loss == "cispo" else {})
    for loss, level, steps, beta, scale in itertools.product(LOSSES, LEVELS, (1, 3), (0.0, 0.3), SCALES)
}
"""All of them are slow tests: for releases."""
QUICK = ["dapo-group-token-3-0.3", "dr_grpo-none-sequence-3-0.0"]
PAIRS = [
    "grpo-group-token-1-0.3",
    "grpo-batch-sequence-3-0.0",
    "bnpo-batch-token-1-0.3",
    "bnpo-none-sequence-3-0.0",
    "dr_grpo-batch-token-3-0.3",
    "dapo-none-sequence-1-0.0",
    "cispo-none-token-3-0.3",
    "cispo-group-sequence-3-0.0",
]
"""With the quick ones each loss with both levels, with and without KL, and every pair of the other options."""
CASES = {
    **GRID,
    "plain-kl": {"beta": 0.3, "use_bias_correction_kl": False, "num_iterations": 2},
    "two-sided": {"delta": 1.035, "num_iterations": 4, "learning_rate": 3e-3},
    "qwen3, masked": {"mask_truncated_completions": True, "loss_type": "dapo", "beta": 0.3},
    "llama, pairs": {"num_iterations": 2, "beta": 0.3, "num_generations": 2},
}


def in_order():
    """The quick cases first, and what is slow."""
    rest = [name for name in CASES if name not in QUICK]
    slow = GRID.keys() - {*PAIRS}
    return [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in rest)]


@pytest.fixture(scope="module", params=quick_first(len(QUICK), in_order()))
def both(request, saved_by_name, tmp_path_factory):
    saved = saved_by_name.get(request.param.split(",")[0], saved_by_name["gpt_neox"])
    return run_both("grpo", BASE | CASES[request.param], saved, tmp_path_factory.mktemp("ours"))


def test_advantages(both):
    mask = both.trl.completion_mask.astype(bool)
    np.testing.assert_array_equal(both.trajectories.sequences.completion_mask, mask)
    np.testing.assert_allclose(both.trajectories.advantages, both.trl.advantages[:, None] * mask, atol=1e-5)


def test_parameters_after_all_steps(both):
    assert_equal_changes(both.weights, both.trl.policy_before, both.trl.policy_after)
    # Clip and KL act where the cases ask for them, or all would agree for want of anything to disagree about.
    assert np.isfinite(both.stats["loss/total_avg"])
    assert both.options["num_iterations"] == 1 or both.stats["policy/clipfrac_avg"] > 0
    assert not both.options["beta"] or both.stats["loss/kl_avg"] > 1e-3


def test_metrics(both):
    steps, options = both.trl.metrics, both.options
    clipped = "cispo_clip_ratio" if options["loss_type"] == "cispo" else "clip_ratio/region_mean"
    expected = {
        "loss/total_avg": np.mean(both.trl.losses),
        "policy/clipfrac_avg": np.mean([step[clipped] for step in steps]),
        "reward/zero_variance_groups": steps[0]["frac_reward_zero_std"],
        "objective/scores": steps[0]["reward"],
    }
    if options["beta"] and options["loss_type"] == "bnpo":  # TRL logs the mean over tokens, ours is that of the loss
        expected["loss/kl_avg"] = np.mean([step["kl"] for step in steps])
    if not options["beta"]:
        assert "loss/kl_avg" not in both.stats
    assert_equal_stats(both, expected)
