"""GRPO: the score of a completion against the mean of its group, over a standard deviation, at each of its tokens.

Source: Shao et al. 2024 (DeepSeekMath), section 4.1; TRL `GRPOTrainer`. The KL is a term of the loss.
"""

import jax.numpy as jnp

from jaxppo.config import TrainConfig
from jaxppo.rl import advantages
from jaxppo.rl.algorithms import Rewarded
from jaxppo.types import Axes, Stats, Trajectories


def make_trajectories(rewarded: Rewarded, config: TrainConfig, axis_name: Axes) -> tuple[Trajectories, Stats]:
    """Estimate one advantage per completion, and give it to all of its tokens."""
    sequences, scores, counted, rl = rewarded.sequences, rewarded.scores, rewarded.counted, config.rl
    estimates = advantages.group_relative(scores, rl.group_size, counted, rl.scale_rewards, axis_name)
    trajectories = Trajectories(
        sequences=sequences,
        logprobs=rewarded.scored.logprobs,
        rewards=scores,
        advantages=jnp.where(sequences.completion_mask, estimates[:, None], 0.0),
        ref_logprobs=rewarded.scored.ref_logprobs,
    )
    return trajectories, advantages.describe(estimates, counted, axis_name)
