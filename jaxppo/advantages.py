"""From scores to advantages: token rewards with the KL penalty, and generalised advantage estimation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.ops import masked_whiten
from jaxppo.types import Array


class Advantages(NamedTuple):
    """Advantages and value targets, 0 outside the mask."""

    advantages: Array  # [B, C] fp32
    returns: Array  # [B, C] fp32


def penalise_missing_eos(scores: Array, ended: Array, penalty: float | None) -> Array:
    """Take `penalty` off the score of every completion that did not end: [B] fp32."""
    return scores if penalty is None else scores - penalty * ~ended


def token_rewards(scores: Array, kl: Array, mask: Array, kl_coef: float) -> Array:
    """Reward of each token: r[t] = -kl_coef kl[t], plus the score at the last real token.

    Args:
        scores: [B] fp32, one per completion.
        kl: [B, C] fp32, per-token KL estimate to the reference.
        mask: [B, C] bool, real tokens, contiguous from column 0.
        kl_coef: weight of the penalty.

    Returns:
        [B, C] fp32, 0 outside the mask. The dtype is always fp32: an integer buffer would cut 0.37 to 0.

    Source: Ziegler et al. 2019, eq. 2; score on the last token as in TRL 0.11.
    """
    last = jnp.sum(mask, axis=1) - 1
    at_last = jnp.arange(mask.shape[1])[None, :] == last[:, None]
    rewards = -kl_coef * kl + jnp.where(at_last, scores.astype(jnp.float32)[:, None], 0.0)
    return jnp.where(mask, rewards, 0.0)


def gae(rewards: Array, values: Array, mask: Array, gamma: float, lam: float) -> Advantages:
    """Generalised advantage estimation over completion tokens.

    For t = n - 1 .. 0 of a completion with n real tokens, with V[n] = A[n] = 0:
    delta[t] = r[t] + gamma V[t + 1] - V[t];  A[t] = delta[t] + gamma lam A[t + 1];  R[t] = A[t] + V[t].
    Padding has reward, value and advantage 0, so more of it on the right changes nothing.

    Args:
        rewards: [B, C] fp32.
        values: [B, C] fp32, value of the state before each token.
        mask: [B, C] bool.
        gamma: discount in [0, 1].
        lam: lambda in [0, 1].

    Source: Schulman et al. 2016, eq. 16.
    """
    rewards, values = jnp.where(mask, rewards, 0.0), jnp.where(mask, values, 0.0)
    next_values = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
    deltas = rewards + gamma * next_values - values

    def backwards(advantage: Array, delta: Array) -> tuple[Array, Array]:
        advantage = delta + gamma * lam * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(backwards, jnp.zeros_like(deltas[:, 0]), deltas.T, reverse=True)
    return Advantages(advantages.T, jnp.where(mask, advantages.T + values, 0.0))


def whitened_gae(
    rewards: Array,
    values: Array,
    mask: Array,
    *,
    gamma: float,
    lam: float,
    whiten_rewards: bool = False,
    axis_name: str | None = None,
) -> Advantages:
    """`gae` with advantages whitened over all real tokens of all devices, and optionally rewards scaled before.

    Source: TRL `PPOTrainer` (whitening of advantages always on; rewards keep their mean).
    """
    if whiten_rewards:
        rewards = masked_whiten(rewards, mask, shift_mean=False, axis_name=axis_name)
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    return Advantages(masked_whiten(advantages, mask, axis_name=axis_name), returns)
