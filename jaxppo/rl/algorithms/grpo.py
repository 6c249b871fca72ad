"""GRPO: the score of a completion against the mean of its group, over a standard deviation, at each of its tokens.

Scores in parts are compared part by part (process supervision). The KL is a term of the loss.

Source: Shao et al. 2024 (DeepSeekMath), section 4.1; TRL `GRPOTrainer`.
"""

import jax.numpy as jnp

from jaxppo.config import TrainConfig
from jaxppo.rl import advantages
from jaxppo.rl.algorithms import Rewarded
from jaxppo.types import Axes, Stats, Trajectories


def make_trajectories(rewarded: Rewarded, config: TrainConfig, axis_name: Axes) -> tuple[Trajectories, Stats]:
    """Estimate one advantage per completion and give it to all of its tokens, or one per token from parts of scores."""
    sequences, scores, counted, rl = rewarded.sequences, rewarded.scores, rewarded.counted, config.rl
    how = rl.group_size, rl.scale_rewards, axis_name
    if rewarded.token_scores is None or rewarded.steps is None:
        estimates = advantages.group_relative(scores, counted, *how)
        stats, at_tokens = advantages.describe(estimates, counted, axis_name), estimates[:, None]
    else:
        at_tokens = advantages.process_relative(rewarded.token_scores, rewarded.steps, *how)
        stats = advantages.describe(at_tokens, sequences.completion_mask, axis_name)
    trajectories = Trajectories(
        sequences=sequences,
        logprobs=rewarded.scored.logprobs,
        rewards=scores,
        advantages=jnp.where(sequences.completion_mask, at_tokens, 0.0),
        ref_logprobs=rewarded.scored.ref_logprobs,
    )
    return trajectories, stats
