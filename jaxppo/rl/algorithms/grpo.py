"""GRPO: the score of a completion against the mean of its group, over a standard deviation, at each of its tokens.

The KL is a term of the loss, so the one that comes here is not read.

Source: Shao et al. 2024 (DeepSeekMath), section 4.1; TRL `GRPOTrainer`.
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
    """Estimate one advantage per completion and give it to all of its tokens."""
    del kl, kl_coef
    estimates = advantages.group_relative(
        scores, has_score, config.rl.group_size, config.rl.scale_rewards, axis_name
    )
    trajectories = Trajectories(
        sequences=sequences,
        logprobs=outputs.logprobs,
        rewards=scores,
        advantages=jnp.where(sequences.completion_mask, estimates[:, None], 0.0),
        ref_logprobs=outputs.ref_logprobs,
    )
    return trajectories, advantages.describe(estimates, has_score, axis_name)
