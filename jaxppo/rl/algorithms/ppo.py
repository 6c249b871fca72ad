"""PPO: token rewards with the KL penalty, GAE against a learned value function, whitened advantages per token.

Source: Schulman et al. 2017; the reward per token of Ziegler et al. 2019; TRL `PPOTrainer`.
"""

import jax.numpy as jnp

from jaxppo.config import TrainConfig
from jaxppo.rl import advantages, ops
from jaxppo.rl.algorithms import Rewarded
from jaxppo.types import Array, Axes, Stats, Trajectories


def make_trajectories(rewarded: Rewarded, config: TrainConfig, axis_name: Axes) -> tuple[Trajectories, Stats]:
    """Estimate one advantage and one return per token."""
    rl, sequences, values = config.rl, rewarded.sequences, rewarded.scored.values
    assert values is not None
    mask = sequences.completion_mask
    values_mask = advantages.value_mask(mask, rl.score_position, config.sampling.response_length)
    values = jnp.where(values_mask, values, 0.0)
    rewards = advantages.token_rewards(
        rewarded.scores, rewarded.kl, mask, rewarded.kl_coef, values_mask, rewarded.token_scores
    )
    estimates = advantages.whitened_gae(
        rewards,
        values,
        mask,
        values_mask,
        gamma=rl.gamma,
        lam=rl.lam,
        whiten_rewards=rl.whiten_rewards,
        axis_name=axis_name,
    )
    stats = _value_stats(values, estimates.returns, values_mask, axis_name)
    stats["policy/advantages_mean"] = estimates.mean
    trajectories = Trajectories(
        sequences=sequences,
        logprobs=rewarded.scored.logprobs,
        rewards=estimates.rewards,
        advantages=estimates.advantages,
        values=values,
        returns=estimates.returns,
        value_mask=values_mask,
    )
    return trajectories, stats


def _value_stats(values: Array, returns: Array, mask: Array, axis_name: Axes) -> Stats:
    """Describe old values and returns; the explained variance is 1 - var(R - V) / var(R)."""
    error_var, returns_var = (ops.masked_var(x, mask, axis_name) for x in (returns - values, returns))
    return {
        "value/explained_variance": 1.0 - error_var / jnp.maximum(returns_var, 1e-8),
        "value/mean": ops.masked_mean(values, mask, axis_name),
        "value/var": ops.masked_var(values, mask, axis_name),
        "value/returns_mean": ops.masked_mean(returns, mask, axis_name),
        "value/returns_var": returns_var,
    }
