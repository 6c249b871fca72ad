"""Clipped losses, KL estimators and the KL controller: one function per equation, arrays and plain scalars in.

Means are written as weighted sums (`ops.mean_weights`), so that micro-batches and devices may add up their shares.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.rl import ops
from jaxppo.rl.ops import weighted_sum
from jaxppo.types import Array, Trajectories, Weights


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
        estimator: "k1", "k2", "k3", "abs" or "mse"; the exact KL needs distributions, see `head_logprobs.token_kl`.

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


def adapted_kl_coef(
    kl_coef: Array, kl: Array, target: float, horizon: float, num_rows: int
) -> Array:
    """Compute the next KL coefficient: kl_coef (1 + clip(kl / target - 1, -0.2, 0.2) num_rows / horizon).

    Args:
        kl_coef: [] fp32, the coefficient in force.
        kl: [] fp32, mean KL per completion under it, in nats; where it is not finite the coefficient stays.
        target: KL to steer to, in nats per completion.
        horizon: completions over which a full correction takes place.
        num_rows: completions of this update.

    Source: Ziegler et al. 2019, section 2.2.
    """
    # Clipped, so that one odd batch moves the coefficient by a fifth of num_rows / horizon at most.
    error = jnp.clip(kl / target - 1.0, -0.2, 0.2)
    adapted = kl_coef * (1.0 + error * num_rows / horizon)
    return jnp.where(jnp.isfinite(kl), adapted, kl_coef)


def log_ratio_at(level: str, log_ratio: Array, mask: Array) -> Array:
    """Take log-ratios of tokens at a level, l[t] = log pi(t) - log pi_old(t).

    token: l[t]; completion: sum of l over a completion's tokens; sequence: their mean, the same at each of its tokens.

    Args:
        level: "token", "completion" or "sequence".
        log_ratio: l, [B, C] fp32, 0 outside the mask.
        mask: [B, C] bool.

    Returns:
        [B, C], or [B] for "completion".

    Source: completion: Ahmadian et al. 2024; sequence: Zheng et al. 2025 (GSPO), eq. 7.
    """
    if level == "token":
        return log_ratio
    if level == "completion":
        return jnp.sum(log_ratio, axis=1)
    # GSPO: the gradient of the mean reaches every token of the completion, in equal shares.
    mean = jnp.sum(log_ratio * ops.mean_weights(mask, 1), axis=1, keepdims=True)
    return jnp.broadcast_to(mean, mask.shape)


def policy_loss(
    log_ratio: Array,
    advantages: Array,
    weights: Array,
    cliprange: float,
    cliprange_high: float | None = None,
    delta: float | None = None,
    stats_weights: Array | None = None,
) -> PolicyLoss:
    """Compute the clipped surrogate: weighted sum of max(-A min(rho, d), -A clip(rho, 1 - c, 1 + c')).

    Args:
        log_ratio: log(rho), from `log_ratio_at`.
        advantages: A, of the same shape.
        weights: of the same shape; 0 where an entry does not count, else its share in the mean.
        cliprange: c.
        cliprange_high: c'; default: c.
        delta: d, above 1 + c'; default: no limit. It acts where A < 0, as a dual clip.
        stats_weights: shares in the means of the diagnostics; default: the same.

    Source: Schulman et al. 2017, eq. 7; for whole completions Ahmadian et al. 2024 and TRL `RLOOTrainer`; d: Ye et al.
    2020, eq. 6, and TRL's `delta`.
    """
    if stats_weights is None:
        stats_weights = weights
    if cliprange_high is None:
        cliprange_high = cliprange
    # Entries that do not count get a ratio of 1: exp of what
    # they hold could be infinite, and its gradient NaN.
    ratio = jnp.exp(jnp.where(weights > 0, log_ratio, 0.0))
    limited_ratio = ratio if delta is None else jnp.minimum(ratio, delta)
    unclipped = -advantages * limited_ratio
    clipped = -advantages * jnp.clip(ratio, 1.0 - cliprange, 1.0 + cliprange_high)
    return PolicyLoss(
        loss=weighted_sum(jnp.maximum(unclipped, clipped), weights),
        clipfrac=weighted_sum((clipped > unclipped).astype(jnp.float32), stats_weights),
        ratio=weighted_sum(ratio, stats_weights),
    )


def capped_policy_loss(
    log_ratio: Array,
    logprobs: Array,
    advantages: Array,
    weights: Array,
    max_ratio: float,
    stats_weights: Array,
) -> PolicyLoss:
    """Compute CISPO's surrogate: weighted sum of -A min(rho, m) log pi, without a gradient through min(rho, m).

    Args:
        log_ratio: log(rho), [B, C].
        logprobs: log pi under the policy being trained, [B, C] fp32.
        advantages: A, [B, C].
        weights: see `policy_loss`.
        max_ratio: m.
        stats_weights: see `policy_loss`.

    Source: MiniMax 2025 (M1), eq. 4; TRL `loss_type="cispo"`.
    """
    ratio = jnp.exp(jnp.where(weights > 0, log_ratio, 0.0))
    # The gradient goes through log pi alone, also above
    # the cap, so that no token is left out as by a clip.
    capped = jax.lax.stop_gradient(jnp.minimum(ratio, max_ratio))
    is_capped = (ratio > max_ratio) & (advantages > 0)
    return PolicyLoss(
        loss=weighted_sum(-advantages * capped * logprobs, weights),
        clipfrac=weighted_sum(is_capped.astype(jnp.float32), stats_weights),
        ratio=weighted_sum(ratio, stats_weights),
    )


def loss_weights(
    trajectories: Trajectories, level: str, loss_type: str, response_length: int
) -> Weights:
    """Compute the weights of entries in the means of mini-batches [S, b, ...].

    Let a mini-batch have b completions and N tokens, and a completion n tokens; N' is the mean of N over the
    mini-batches of the update. The weight of a token in the policy loss is

    grpo: 1 / (b n);  bnpo: 1 / N;  dapo, cispo: 1 / N';  dr_grpo: 1 / (b response_length)

    At level "completion" the weight of a completion is 1 / b, even if it has no token.

    Source: TRL `GRPOTrainer`, `loss_type`; grpo: Shao et al. 2024; dr_grpo: Liu et al. 2025; dapo: Yu et al. 2025.
    """
    mask = trajectories.sequences.completion_mask
    tokens = ops.mean_weights(mask, (-2, -1))
    values = None
    if trajectories.value_mask is not None:
        values = ops.mean_weights(trajectories.value_mask, (-2, -1))
    positive = None
    if trajectories.positive is not None:
        positive = ops.mean_weights(mask & trajectories.positive[..., None], (-2, -1))
    if level == "completion":
        completions = ops.mean_weights(jnp.ones(trajectories.advantages.shape, bool), -1)
        return Weights(tokens, completions, completions, values, positive)
    num_rows = mask.shape[-2]
    if loss_type == "grpo":
        # A short completion's tokens weigh more than a long one's.
        policy = ops.mean_weights(mask, -1) / num_rows
    elif loss_type == "bnpo":
        policy = tokens
    elif loss_type == "dr_grpo":
        # A constant divisor: the length of a completion
        # has no influence on the weight of its tokens.
        policy = mask / jnp.float32(num_rows * response_length)
    else:
        # By the tokens of all mini-batches of the update together,
        # so that one with few tokens does not weigh more.
        num_mini_batches = mask.shape[0]
        num_tokens = jnp.sum(mask, dtype=jnp.float32)
        policy = mask * (num_mini_batches / jnp.maximum(num_tokens, 1.0))
    if level == "token":
        ratios = tokens
    else:
        # The mean over completions of their one ratio; a completion without a token has none.
        has_tokens = jnp.any(mask, axis=-1)
        num_completions = jnp.sum(has_tokens, axis=-1, dtype=jnp.float32)[..., None, None]
        ratios = ops.mean_weights(mask, -1) / jnp.maximum(num_completions, 1.0)
    return Weights(tokens, policy, ratios, values, positive)


def value_loss(
    values: Array, old_values: Array, returns: Array, weights: Array, cliprange_value: float
) -> ValueLoss:
    """Compute 0.5 times the weighted sum of max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2).

    Args:
        values: [B, C] fp32, new.
        old_values: [B, C] fp32.
        returns: [B, C] fp32.
        weights: [B, C] fp32, 0 where a token does not count, else its share in the mean.
        cliprange_value: c.

    Source: OpenAI baselines `ppo2`; TRL `PPOTrainer`.
    """
    # The larger of both errors, as in the policy's loss: to
    # move away from the old value never pays beyond the range.
    clipped_values = jnp.clip(values, old_values - cliprange_value, old_values + cliprange_value)
    unclipped = (values - returns) ** 2
    clipped = (clipped_values - returns) ** 2
    return ValueLoss(
        loss=0.5 * weighted_sum(jnp.maximum(unclipped, clipped), weights),
        clipfrac=weighted_sum((clipped > unclipped).astype(jnp.float32), weights),
        error=weighted_sum(unclipped, weights),
        prediction=weighted_sum(values, weights),
    )
