"""RLOO: one reward per completion with the KL in it, against the mean reward of the other completions of its prompt.

Source: Ahmadian et al. 2024; TRL `RLOOTrainer`, whose unbiased advantages are neither whitened nor clipped.
"""

import jax.numpy as jnp

from jaxppo.config import TrainConfig
from jaxppo.rl import advantages
from jaxppo.types import Array, Axes, ModelOutputs, Sequences, Stats, Trajectories


def make_trajectories(
    outputs: ModelOutputs,
    sequences: Sequences,
    scores: Array,
    has_score: Array,
    *,
    kl: Array,
    kl_coef: Array,
    config: TrainConfig,
    axis_name: Axes,
) -> tuple[Trajectories, Stats]:
    """Estimate one advantage per completion."""
    # The KL is part of the reward before the baseline
    # is taken, so that it is compared within the group.
    token_kl = jnp.where(sequences.completion_mask, kl, 0.0)
    kl_of_completions = jnp.sum(token_kl, axis=1)
    rewards = scores - kl_coef * kl_of_completions
    estimates = advantages.leave_one_out(rewards, config.rl.group_size, has_score)
    stats = advantages.describe(estimates, has_score, axis_name)
    if config.rl.normalize_advantages:
        estimates = advantages.normalize(estimates, has_score, axis_name)
    return Trajectories(sequences, outputs.logprobs, rewards, estimates), stats
