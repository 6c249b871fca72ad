"""PPO's clipped losses and the KL estimators: one function per equation, arrays and plain scalars in."""

from typing import NamedTuple

import jax.numpy as jnp

from jaxppo.ops import masked_mean
from jaxppo.types import Array


class PolicyLoss(NamedTuple):
    """Clipped policy loss and its diagnostics, all [] fp32."""

    loss: Array
    clipfrac: Array  # fraction of tokens whose clipped term is the larger
    approxkl: Array  # 0.5 mean (new - old)^2 of log-probabilities
    ratio: Array  # mean of new / old probabilities


class ValueLoss(NamedTuple):
    """Clipped value loss and the fraction of tokens where the clipped term is the larger, both [] fp32."""

    loss: Array
    clipfrac: Array


def kl_estimate(logprobs: Array, ref_logprobs: Array, estimator: str) -> Array:
    """Per-token estimate of KL(policy || reference) from samples of the policy, in nats.

    With r = ref_logprobs - logprobs: k1 = -r (unbiased, signed), k3 = exp(r) - 1 - r (unbiased, never negative).

    Args:
        logprobs: [...] fp32.
        ref_logprobs: [...] fp32.
        estimator: "k1" or "k3".

    Raises:
        ValueError: another estimator.
    Source: Schulman 2020, "Approximating KL divergence".
    """
    log_ratio = ref_logprobs - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k3":
        return jnp.expm1(log_ratio) - log_ratio
    raise ValueError(f"estimator: expected k1 or k3, got {estimator!r}")


def policy_loss(
    logprobs: Array, old_logprobs: Array, advantages: Array, mask: Array, cliprange: float, axis_name: str | None = None
) -> PolicyLoss:
    """Clipped surrogate: mean over real tokens of max(-A rho, -A clip(rho, 1 - c, 1 + c)), rho = exp(new - old).

    Args:
        logprobs: [B, C] fp32, of the policy being trained.
        old_logprobs: [B, C] fp32, of the policy that sampled.
        advantages: [B, C] fp32.
        mask: [B, C] bool.
        cliprange: c.
        axis_name: mapped device axis; the mean is over all devices.

    Source: Schulman et al. 2017, eq. 7.
    """
    log_ratio = jnp.where(mask, logprobs - old_logprobs, 0.0)
    ratio = jnp.exp(log_ratio)
    plain = -advantages * ratio
    clipped = -advantages * jnp.clip(ratio, 1.0 - cliprange, 1.0 + cliprange)
    return PolicyLoss(
        loss=masked_mean(jnp.maximum(plain, clipped), mask, axis_name),
        clipfrac=masked_mean((clipped > plain).astype(jnp.float32), mask, axis_name),
        approxkl=0.5 * masked_mean(log_ratio**2, mask, axis_name),
        ratio=masked_mean(ratio, mask, axis_name),
    )


def value_loss(
    values: Array, old_values: Array, returns: Array, mask: Array, cliprange_value: float, axis_name: str | None = None
) -> ValueLoss:
    """0.5 mean max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) over real tokens of all devices.

    Args:
        values: [B, C] fp32, new.
        old_values: [B, C] fp32.
        returns: [B, C] fp32.
        mask: [B, C] bool.
        cliprange_value: c.
        axis_name: mapped device axis.

    Source: OpenAI baselines `ppo2`; TRL `PPOTrainer`.
    """
    clipped_values = jnp.clip(values, old_values - cliprange_value, old_values + cliprange_value)
    plain, clipped = (values - returns) ** 2, (clipped_values - returns) ** 2
    return ValueLoss(
        loss=0.5 * masked_mean(jnp.maximum(plain, clipped), mask, axis_name),
        clipfrac=masked_mean((clipped > plain).astype(jnp.float32), mask, axis_name),
    )
