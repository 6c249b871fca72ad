"""Clipped losses, KL estimators and the KL controller: one function per equation, arrays and plain scalars in.

Means are written as weighted sums (`ops.mean_weights`), so that micro-batches and devices may add up their shares.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxppo.rl.ops import weighted_sum
from jaxppo.types import Array


class PolicyLoss(NamedTuple):
    """Clipped policy loss and its diagnostics, all [] fp32."""

    loss: Array
    clipfrac: Array  # weight of the entries whose clipped term is the larger
    ratio: Array  # mean of new / old probabilities


class ValueLoss(NamedTuple):
    """Clipped value loss and its diagnostics, all [] fp32."""

    loss: Array
    clipfrac: Array  # weight of the tokens whose clipped term is the larger
    error: Array  # mean (v - R)^2, unclipped
    prediction: Array  # mean v


def kl_estimate(logprobs: Array, ref_logprobs: Array, estimator: str) -> Array:
    """Estimate per token KL(policy || reference) from samples of the policy, in nats.

    With r = ref_logprobs - logprobs: k1 = -r (unbiased, signed), k2 = mse = r^2 / 2 (biased, never negative),
    k3 = exp(r) - 1 - r (unbiased, never negative), abs = |r| (not an estimate of the KL; TRL 0.11 offers it).

    Args:
        logprobs: [...] fp32.
        ref_logprobs: [...] fp32.
        estimator: "k1", "k2", "k3", "abs" or "mse"; the exact KL needs distributions, see `logprobs.token_kl`.

    Raises:
        ValueError: another estimator.
    Source: Schulman 2020, "Approximating KL divergence"; TRL 0.11 `_kl_penalty`.
    """
    log_ratio = ref_logprobs - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator in ("k2", "mse"):
        return 0.5 * log_ratio**2
    if estimator == "k3":
        return jnp.expm1(log_ratio) - log_ratio
    if estimator == "abs":
        return jnp.abs(log_ratio)
    raise ValueError(f"estimator: expected k1, k2, k3, abs or mse, got {estimator!r}")


def adapted_kl_coef(kl_coef: Array, kl: Array, target: float, horizon: float, num_rows: int) -> Array:
    """Compute the next KL coefficient: kl_coef (1 + clip(kl / target - 1, -0.2, 0.2) num_rows / horizon).

    Args:
        kl_coef: [] fp32, the coefficient in force.
        kl: [] fp32, mean KL per completion under it, in nats; where it is not finite the coefficient stays.
        target: KL to steer to, in nats per completion.
        horizon: completions over which a full correction takes place.
        num_rows: completions of this update.

    Source: Ziegler et al. 2019, section 2.2.
    """
    error = jnp.clip(kl / target - 1.0, -0.2, 0.2)
    return jnp.where(jnp.isfinite(kl), kl_coef * (1.0 + error * num_rows / horizon), kl_coef)


def policy_loss(
    log_ratio: Array, advantages: Array, weights: Array, cliprange: float, cliprange_high: float | None = None
) -> PolicyLoss:
    """Compute the clipped surrogate: weighted sum of max(-A rho, -A clip(rho, 1 - c, 1 + c')), rho = exp(log_ratio).

    Args:
        log_ratio: log-probability under the policy being trained, minus that under the policy that sampled: [B, C] per
            token (PPO), or [B] summed over each completion (RLOO).
        advantages: A, of the same shape.
        weights: of the same shape; 0 where an entry does not count, else its share in the mean.
        cliprange: c.
        cliprange_high: c'; default: c.

    Source: Schulman et al. 2017, eq. 7; for whole completions Ahmadian et al. 2024 and TRL `RLOOTrainer`.
    """
    ratio = jnp.exp(jnp.where(weights > 0, log_ratio, 0.0))
    high = cliprange if cliprange_high is None else cliprange_high
    plain = -advantages * ratio
    clipped = -advantages * jnp.clip(ratio, 1.0 - cliprange, 1.0 + high)
    return PolicyLoss(
        loss=weighted_sum(jnp.maximum(plain, clipped), weights),
        clipfrac=weighted_sum((clipped > plain).astype(jnp.float32), weights),
        ratio=weighted_sum(ratio, weights),
    )


def value_loss(values: Array, old_values: Array, returns: Array, weights: Array, cliprange_value: float) -> ValueLoss:
    """Compute 0.5 times the weighted sum of max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2).

    Args:
        values: [B, C] fp32, new.
        old_values: [B, C] fp32.
        returns: [B, C] fp32.
        weights: [B, C] fp32, 0 where a token does not count, else its share in the mean.
        cliprange_value: c.

    Source: OpenAI baselines `ppo2`; TRL `PPOTrainer`.
    """
    clipped_values = jnp.clip(values, old_values - cliprange_value, old_values + cliprange_value)
    plain, clipped = (values - returns) ** 2, (clipped_values - returns) ** 2
    return ValueLoss(
        loss=0.5 * weighted_sum(jnp.maximum(plain, clipped), weights),
        clipfrac=weighted_sum((clipped > plain).astype(jnp.float32), weights),
        error=weighted_sum(plain, weights),
        prediction=weighted_sum(values, weights),
    )
