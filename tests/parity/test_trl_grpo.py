"""GRPO against TRL 1.12's `GRPOTrainer`: advantages, gradient norms and parameters after all optimizer steps."""

import itertools

import jax
import numpy as np
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from tests import quick_first

from .conftest import LENGTH, make_rows
from .groups import SCORES, changes_like, run_ours
from .trl_groups import TrlGroupsCase, run_trl

ROWS = 8
OURS_OF_TRL = {
    "beta": "kl_coef",
    "num_iterations": "num_ppo_epochs",
    "epsilon": "cliprange",
    "epsilon_high": "cliprange_high",
    "max_completion_length": "response_length",
}
"""TRL's GRPO fields whose names are not ours."""
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
LOSS_TYPES, SCALES, LEVELS = (
    ("grpo", "bnpo", "dr_grpo", "dapo", "cispo"),
    ("group", "batch", "none"),
    ("token", "sequence"),
)
GRID = {
    f"{loss}-{scale}-{level}-{steps}-{beta}": {
        "loss_type": loss,
        "scale_rewards": scale,
        "importance_sampling_level": level,
        "num_iterations": steps,
        "beta": beta,
    }
    | ({"epsilon_high": 1.01} if loss == "cispo" else {})
    for loss, level, steps, beta, scale in itertools.product(LOSS_TYPES, LEVELS, (1, 3), (0.0, 0.3), SCALES)
}
QUICK = ["dapo-group-token-3-0.3", "dr_grpo-none-sequence-3-0.0"]
OTHER_SCALES = {name for i, name in enumerate(GRID) if i % len(SCALES) != i // len(SCALES) % len(SCALES)}
"""A scale acts on the advantages alone: of each combination of the rest one is a full test, with the scales in turn;
the other two are slow tests."""
CASES = {
    **GRID,
    "plain-kl": {"beta": 0.3, "use_bias_correction_kl": False, "num_iterations": 2},
    "two-sided": {"delta": 1.035, "num_iterations": 4, "learning_rate": 3e-3},
    "masked-truncated": {"mask_truncated_completions": True, "loss_type": "dapo", "beta": 0.3},
    "pairs": {"num_generations": 2},
    "llama": {"num_iterations": 2, "beta": 0.3},
    "qwen3": {"num_iterations": 2, "beta": 0.3},
}


def in_order():
    """The quick cases first, and what is slow."""
    rest = [name for name in CASES if name not in QUICK]
    return [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) if name in OTHER_SCALES else name for name in rest)]


@pytest.fixture(scope="module", params=quick_first(len(QUICK), in_order()))
def case(request, saved_by_name, tmp_path_factory):
    options, saved = BASE | CASES[request.param], saved_by_name.get(request.param, saved_by_name["gpt_neox"])
    names = {OURS_OF_TRL.get(name, name): value for name, value in options.items()}
    config = replace(
        TrainConfig(),
        algorithm="grpo",
        lr_scheduler_type="constant",
        batch_size=ROWS,
        total_episodes=ROWS,
        **names,
    )
    prompts, completions = make_rows(ROWS, options["num_generations"])
    trl = run_trl(
        TrlGroupsCase(
            algorithm="grpo",
            policy_folder=saved.policy,
            reference_folder=saved.reference,
            tokenizer=saved.tokenizer,
            prompts=prompts,
            completions=completions,
            scores=SCORES,
            options=options,
        )
    )
    return run_ours(config, saved, tmp_path_factory.mktemp("ours")), trl, options


def test_advantages(case):
    ((trajectories, _), _), trl, _ = case
    mask = trl.completion_mask.astype(bool)
    np.testing.assert_array_equal(trajectories.sequences.completion_mask, mask)
    np.testing.assert_allclose(trajectories.advantages, trl.advantages[:, None] * mask, atol=1e-5)


def test_parameters_after_all_steps(case):
    """Per tensor, our change and TRL's differ by at most 1 % of TRL's largest change."""
    (_, after), trl, _ = case
    changes_like(after, trl)


def test_metrics(case):
    ((_, stats), _), trl, options = case
    over_steps = lambda name: np.mean([step[name] for step in trl.metrics])  # noqa: E731
    clipped = "cispo_clip_ratio" if options["loss_type"] == "cispo" else "clip_ratio/region_mean"
    loss = np.mean(trl.losses)
    expected = {
        "loss/total_avg": loss,
        "grad_norm": np.mean(trl.grad_norms),
        "policy/entropy_avg": over_steps("entropy"),
        "policy/clipfrac_avg": over_steps(clipped),
        "completions/mean_length": trl.metrics[0]["completions/mean_length"],
        "completions/clipped_ratio": trl.metrics[0]["completions/clipped_ratio"],
        "reward/zero_variance_groups": trl.metrics[0]["frac_reward_zero_std"],
        "objective/scores": trl.metrics[0]["reward"],
    }
    if options["beta"] and options["loss_type"] == "bnpo":  # TRL logs the mean over tokens, ours is that of the loss
        expected["loss/kl_avg"] = over_steps("kl")
    if not options["beta"]:
        assert "loss/kl_avg" not in stats
    for name, value in expected.items():
        np.testing.assert_allclose(stats[name], value, atol=1e-4, rtol=1e-4, err_msg=name)


def test_the_clip_and_the_kl_act_where_the_cases_ask_for_them(case):
    """Or the parameters above would agree for want of anything to disagree about."""
    ((_, stats), _), _, options = case
    if options["num_iterations"] > 1:
        assert stats["policy/clipfrac_avg"] > 0
    if options["beta"]:
        assert stats["loss/kl_avg"] > 1e-3
    jax.tree.map(np.testing.assert_array_equal, np.isfinite(stats["loss/total_avg"]), True)
