"""RLOO against TRL 1.12's `RLOOTrainer`: advantages, gradient norms and parameters after two optimizer steps."""

import numpy as np
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from tests import quick_first

from .conftest import LENGTH, make_rows
from .groups import SCORES, changes_like, run_ours
from .trl_groups import TrlGroupsCase
from .trl_groups import run_trl as run_groups

ROWS = 8
OURS_OF_TRL = {
    "num_generations": "num_generations",
    "beta": "kl_coef",
    "num_iterations": "num_ppo_epochs",
    "epsilon": "cliprange",
    "epsilon_high": "cliprange_high",
    "max_completion_length": "response_length",
}
"""TRL's RLOO fields whose names are not ours."""
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
    "qwen3": {},
    "llama": {},
    "pairs": {"num_generations": 2, "temperature": 1.3},
    "no-reference": {"beta": 0.0},
    "normalised": {"normalize_advantages": True},
    "clipped-rewards": {"reward_clip_range": (-0.2, 0.8)},
    "masked-truncated": {"mask_truncated_completions": True},
    "asymmetric": {"epsilon": 0.01, "epsilon_high": 0.03, "learning_rate": 1e-3, "num_iterations": 3},
}


def make_config(options: dict) -> TrainConfig:
    ours = {OURS_OF_TRL.get(name, name): value for name, value in options.items()}
    return replace(
        TrainConfig(),
        algorithm="rloo",
        lr_scheduler_type="constant",
        batch_size=ROWS,
        total_episodes=ROWS,
        **ours,
    )


def run_trl(options: dict, saved):
    prompts, completions = make_rows(ROWS, options["num_generations"])
    return run_groups(
        TrlGroupsCase(
            algorithm="rloo",
            policy_folder=saved.policy,
            reference_folder=saved.reference,
            tokenizer=saved.tokenizer,
            prompts=prompts,
            completions=completions,
            scores=SCORES,
            options=options,
        )
    )


@pytest.fixture(scope="module", params=quick_first(2, CASES))
def case(request, saved_by_name, tmp_path_factory):
    options, saved = BASE | CASES[request.param], saved_by_name.get(request.param, saved_by_name["gpt_neox"])
    return run_ours(make_config(options), saved, tmp_path_factory.mktemp("ours")), run_trl(options, saved), options


def test_advantages(case):
    ((trajectories, _), _), trl, _ = case
    np.testing.assert_allclose(trajectories.advantages, trl.advantages, atol=1e-5)
    mask = trl.completion_mask.astype(bool)
    np.testing.assert_array_equal(trajectories.sequences.completion_mask, mask)
    np.testing.assert_allclose((trajectories.logprobs * mask).sum(1), trl.old_logps, atol=1e-4)


def test_parameters_after_all_steps(case):
    """Per tensor, our change and TRL's differ by at most 1 % of TRL's largest change."""
    (_, after), trl, _ = case
    changes_like(after, trl)


def test_metrics(case):
    ((_, stats), _), trl, options = case
    per_step = {name: [step[name] for step in trl.metrics] for name in ("entropy", "clip_ratio/region_mean")}
    expected = {
        "loss/policy_avg": np.mean(trl.losses),
        "grad_norm": np.mean(trl.grad_norms),
        "policy/entropy_avg": np.mean(per_step["entropy"]),
        "policy/clipfrac_avg": np.mean(per_step["clip_ratio/region_mean"]),
        "completions/mean_length": trl.metrics[0]["completions/mean_length"],
        "completions/min_length": trl.metrics[0]["completions/min_length"],
        "completions/max_length": trl.metrics[0]["completions/max_length"],
        "completions/clipped_ratio": trl.metrics[0]["completions/clipped_ratio"],
    }
    if options.get("mask_truncated_completions"):
        assert stats["objective/kl"] != 0.0  # measured on all completions, while TRL leaves out the masked ones
    elif options["beta"]:  # TRL's is a mean per token, ours a sum per completion
        tokens = trl.completion_mask.sum()
        expected["objective/kl"] = trl.metrics[0]["kl"] * tokens / ROWS
    else:
        assert "objective/kl" not in stats
    for name, value in expected.items():
        np.testing.assert_allclose(stats[name], value, atol=1e-4, rtol=1e-4, err_msg=name)
