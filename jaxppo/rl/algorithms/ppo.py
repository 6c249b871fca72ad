"""PPO: token rewards with the KL penalty, GAE against a learned value function, whitened advantages per token.

Source: Schulman et al. 2017; the reward per token of Ziegler et al. 2019; TRL `PPOTrainer`.
"""

import jax.numpy as jnp

from jaxppo.config import TrainConfig
from jaxppo.rl import advantages, ops
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
    """Estimate one advantage and one return per token."""
    del has_score  # the mask has no token of a completion without a score
    assert outputs.values is not None
    rl = config.rl
    mask = sequences.completion_mask
    # The state after the last token may have a value, too, where the score is added to it.
    value_mask = advantages.value_mask(mask, rl.score_position, config.sampling.response_length)
    # Values of padding are whatever the model says of it: 0, as GAE reads beyond the last token.
    values = jnp.where(value_mask, outputs.values, 0.0)
    estimates = advantages.whitened_gae(
        advantages.token_rewards(scores, kl, mask, kl_coef, value_mask),
        values,
        mask,
        value_mask,
        gamma=rl.gamma,
        lam=rl.lam,
        whiten_rewards=rl.whiten_rewards,
        axis_name=axis_name,
    )
    stats = _value_stats(values, estimates.returns, value_mask, axis_name)
    stats["policy/advantages_mean"] = estimates.mean
    trajectories = Trajectories(
        sequences=sequences,
        logprobs=outputs.logprobs,
        rewards=estimates.rewards,
        advantages=estimates.advantages,
        values=values,
        returns=estimates.returns,
        value_mask=value_mask,
    )
    return trajectories, stats


def _value_stats(values: Array, returns: Array, mask: Array, axis_name: Axes) -> Stats:
    """Describe old values and returns; the explained variance is 1 - var(R - V) / var(R)."""
    error_var = ops.masked_var(returns - values, mask, axis_name)
    returns_var = ops.masked_var(returns, mask, axis_name)
    return {
        "value/explained_variance": 1.0 - error_var / jnp.maximum(returns_var, 1e-8),
        "value/mean": ops.masked_mean(values, mask, axis_name),
        "value/var": ops.masked_var(values, mask, axis_name),
        "value/returns_mean": ops.masked_mean(returns, mask, axis_name),
        "value/returns_var": returns_var,
    }
