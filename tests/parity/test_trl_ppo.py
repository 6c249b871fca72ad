"""One PPO update, step for step against TRL 1.12's `PPOTrainer`: same weights, completions, scores and mini-batches."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from jaxppo import data, hf
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import ops, update
from jaxppo.rl.ppo import PPO
from jaxppo.types import Scored, Trajectories
from tests import quick_first

from .conftest import EOS, LENGTH, PAD, make_rows
from .trl_ppo import TrlPPOCase, TrlPPOResult, run_trl_ppo

ROWS = 16
PENALTY = 0.5
SCORES = np.linspace(-1.3, 1.7, ROWS).astype(np.float32)
CASES = [("gpt_neox", kl, whiten) for kl in ("k1", "k3") for whiten in (False, True)]
CASES[1:1] = [("qwen3", "k1", False), ("llama", "k3", True)]
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


class Ours(NamedTuple):
    scored: Scored
    trajectories: Trajectories
    stats: dict
    policy: dict[str, np.ndarray]  # after the update, by torch's names
    value: dict[str, np.ndarray]


class Both(NamedTuple):
    ours: Ours
    trl: TrlPPOResult


def make_config(kl_estimator: str, whiten_rewards: bool) -> TrainConfig:
    return replace(
        TrainConfig(),
        **SHARED,
        kl_estimator=kl_estimator,
        whiten_rewards=whiten_rewards,
        score_position="after",
        max_grad_norm=None,
        lr_scheduler_type="constant",
        batch_size=ROWS,
        total_episodes=ROWS,
    )


def state_dict(folder, kind) -> dict[str, np.ndarray]:
    """Weights by the names they have in memory, which differ from those on disk."""
    weights = kind.from_pretrained(folder, dtype=torch.float32).state_dict()
    return {name: tensor.numpy() for name, tensor in weights.items()}


def run_ours(config: TrainConfig, saved, folder) -> Ours:
    prompts, completions = make_rows(ROWS)
    ppo = PPO(config, saved.config, EOS, PAD, DataParallel(devices=jax.devices()[:1]))
    policy, reference, value = (hf.load_pretrained(f)[1] for f in (saved.policy, saved.reference, saved.value))
    state = ppo.init_state(policy, value)
    rollout = ppo.rollout_of(completions)
    batch = data.pad_left(prompts, 8, PAD)
    sequences = ppo.pack(batch, rollout)
    scored = ppo.score(state, reference, sequences, rollout)
    state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, SCORES)
    state, update_stats = ppo.update(state, trajectories, 0)
    hf.save_pretrained(folder / "policy", saved.config, jax.device_get(state.params["policy"]), saved.tokenizer)
    hf.save_pretrained(folder / "value", saved.config, jax.device_get(state.params["value"]), saved.tokenizer)
    return Ours(
        *jax.device_get((scored, trajectories, stats | update_stats)),
        state_dict(folder / "policy", AutoModelForCausalLM),
        state_dict(folder / "value", AutoModelForSequenceClassification),
    )


def run_trl(kl_estimator: str, whiten_rewards: bool, saved) -> TrlPPOResult:
    prompts, completions = make_rows(ROWS)
    rows = update.mini_batch_rows(ops.purpose_key(42, ops.Purpose.MINI_BATCHES, 0), ROWS, 2, 2)
    options = SHARED | {"kl_estimator": kl_estimator, "whiten_rewards": whiten_rewards, "stop_token": "eos"}
    return run_trl_ppo(
        TrlPPOCase(
            policy_folder=saved.policy,
            reference_folder=saved.reference,
            value_folder=saved.value,
            tokenizer=saved.tokenizer,
            prompts=prompts,
            completions=completions,
            scores=SCORES,
            permutations=np.asarray(rows).reshape(2, ROWS),
            options=options,
        )
    )


@pytest.fixture(
    scope="module",
    params=quick_first(2, [(case,) for case in CASES]),
    ids=lambda case: f"{case[0]}-{case[1]}-{'whiten' if case[2] else 'plain'}",
)
def both(request, saved_by_name, tmp_path_factory) -> Both:
    name, *options = request.param
    saved = saved_by_name[name]
    return Both(run_ours(make_config(*options), saved, tmp_path_factory.mktemp("ours")), run_trl(*options, saved))


def test_log_probabilities_and_values(both):
    ours, trl = both
    real, real_p1 = ~trl.padding_mask, ~trl.padding_mask_p1
    np.testing.assert_array_equal(ours.trajectories.sequences.completion_mask, real)
    np.testing.assert_array_equal(ours.trajectories.value_mask, real_p1)
    np.testing.assert_allclose(ours.scored.logprobs[real], trl.logprobs[real], atol=1e-5)
    np.testing.assert_allclose(ours.scored.ref_logprobs[real], trl.ref_logprobs[real], atol=1e-5)
    np.testing.assert_allclose(ours.trajectories.values, trl.values, atol=1e-5)


def test_rewards_advantages_and_returns(both):
    ours, trl = both
    np.testing.assert_allclose(ours.trajectories.rewards, trl.rewards, atol=1e-5)
    np.testing.assert_allclose(ours.trajectories.advantages, trl.advantages, atol=1e-5)
    np.testing.assert_allclose(ours.trajectories.returns, trl.returns, atol=1e-5)


@pytest.mark.parametrize("model", ["policy", "value"])
def test_parameters_after_two_epochs_of_two_mini_batches(both, model):
    """Per tensor, our change and TRL's differ by at most 1 % of TRL's largest change."""
    ours, trl = both
    after = getattr(ours, model)
    before, trl_after = getattr(trl, f"{model}_before"), getattr(trl, f"{model}_after")
    assert after.keys() == before.keys()
    for name in before:
        change = trl_after[name] - before[name]
        assert np.abs(change).max() > 1e-4, f"{name} did not move"
        difference = np.abs(after[name] - before[name] - change).max() / np.abs(change).max()
        assert difference < 0.01, f"{name}: {difference:.2%} of the largest change"


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


def masked(step, values) -> float:
    """Mean over the real tokens of a mini-batch."""
    return float(values[~step["padding_mask"]].mean())


CORRECTED_METRICS = {
    "policy/approxkl_avg": lambda step: 0.5 * masked(step, step["logprobs_diff"] ** 2),
    "policy/entropy_avg": lambda step: masked(step, step["entropy"]),
    "val/ratio": lambda step: masked(step, step["ratio"]),
}
"""Those that TRL averages over padding too, from what it computed before averaging."""


def test_metrics_that_trl_dilutes_by_padding_equal_their_masked_means(both):
    for name, of_step in CORRECTED_METRICS.items():
        expected = np.mean([of_step(step) for step in both.trl.steps])
        np.testing.assert_allclose(both.ours.stats[name], expected, atol=1e-4, rtol=1e-4, err_msg=name)
        assert abs(expected - both.trl.metrics[name]) > 1e-6, f"TRL computes {name} rightly by now"
    ratios = [masked(step, step["ratio"]) for step in both.trl.steps]
    np.testing.assert_allclose(both.ours.stats["val/ratio_var"], np.var(ratios, ddof=1), atol=1e-6, rtol=1e-2)


def test_the_missing_eos_penalty_is_in_the_scores(both):
    cut = np.array([row[-1] != EOS for row in make_rows(ROWS)[1]])
    np.testing.assert_allclose(both.trl.scores, SCORES - PENALTY * cut, atol=1e-6)
    assert 0 < cut.sum() < ROWS
