"""RLOO: one reward per completion with the KL in it, against the mean reward of the other completions of its prompt.

Source: Ahmadian et al. 2024; TRL `RLOOTrainer`, whose unbiased advantages are neither whitened nor clipped.
"""

import jax.numpy as jnp

from jaxppo.config import TrainConfig
from jaxppo.rl import advantages
from jaxppo.rl.algorithms import Rewarded
from jaxppo.types import Axes, Stats, Trajectories


def make_trajectories(rewarded: Rewarded, config: TrainConfig, axis_name: Axes) -> tuple[Trajectories, Stats]:
    """Estimate one advantage per completion."""
    sequences, counted = rewarded.sequences, rewarded.counted
    penalty = jnp.sum(jnp.where(sequences.completion_mask, rewarded.kl, 0.0), axis=1)
    rewards = rewarded.scores - rewarded.kl_coef * penalty
    estimates = advantages.leave_one_out(rewards, config.rl.group_size, counted)
    stats = advantages.describe(estimates, counted, axis_name)
    if config.rl.normalize_advantages:
        estimates = advantages.normalize(estimates, counted, axis_name)
    return Trajectories(sequences, rewarded.scored.logprobs, rewards, estimates), stats
