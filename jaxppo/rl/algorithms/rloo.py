"""RLOO: one reward per completion with the KL in it, against the mean reward of the other completions of its prompt.

Source: Ahmadian et al. 2024; TRL `RLOOTrainer`, whose unbiased advantages are neither whitened nor clipped.
"""

import jax.numpy as jnp

from jaxppo.config import TrainConfig
from jaxppo.rl import advantages, ops
from jaxppo.rl.algorithms import Rewarded
from jaxppo.types import Axes, Stats, Trajectories, Weights


def make_trajectories(rewarded: Rewarded, config: TrainConfig, axis_name: Axes) -> tuple[Trajectories, Stats]:
    """Estimate one advantage per completion."""
    sequences, scores, counted, group_size = rewarded.sequences, rewarded.scores, rewarded.counted, config.rl.group_size
    penalty = jnp.sum(jnp.where(sequences.completion_mask, rewarded.kl, 0.0), axis=1)
    rewards = scores - rewarded.kl_coef * penalty
    estimates = advantages.leave_one_out(rewards, group_size, counted)
    groups, has_score = (x.reshape(-1, group_size) for x in (scores, counted))
    highest = jnp.max(groups, axis=1, initial=-jnp.inf, where=has_score)
    flat = highest - jnp.min(groups, axis=1, initial=jnp.inf, where=has_score) < 1e-6
    stats = {
        "rloo/reward_zero_std": ops.mean(flat.astype(jnp.float32), axis_name),
        "rloo/advantages_std": jnp.sqrt(ops.masked_var(estimates, counted, axis_name)),
        "policy/advantages_mean": ops.masked_mean(estimates, counted, axis_name),
    }
    if config.rl.normalize_advantages:
        estimates = advantages.normalize(estimates, counted, axis_name)
    return Trajectories(sequences, rewarded.scored.logprobs, rewards, estimates), stats


def loss_weights(trajectories: Trajectories) -> Weights:
    """Weigh all completions the same, also those that `mask_truncated_completions` leaves without a token."""
    tokens = ops.mean_weights(trajectories.sequences.completion_mask, (-2, -1))
    return Weights(tokens, ops.mean_weights(jnp.ones(trajectories.advantages.shape, bool), -1))
