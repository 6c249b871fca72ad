"""From scores to advantages: score scaling, token rewards with the KL penalty, GAE, and the baselines of groups."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.rl.ops import global_sum, masked_mean, masked_var, masked_whiten
from jaxppo.types import Array, Axes, ScoreMoments, Stats


class Advantages(NamedTuple):
    """Advantages, value targets, and the token rewards they come from; 0 outside their masks."""

    advantages: Array  # [B, C] fp32
    returns: Array  # [B, C] fp32
    rewards: Array  # [B, C] fp32
    mean: Array  # [] fp32, of the advantages before whitening


# -------------------------------------------------------------------------------------------------------------- scores


def initial_moments() -> ScoreMoments:
    """Return the moments of no scores."""
    return ScoreMoments(seen=jnp.float32(0), mean=jnp.float32(0), m2=jnp.float32(0))


def add_scores(
    moments: ScoreMoments, scores: Array, counted: Array, axis_name: Axes = None
) -> ScoreMoments:
    """Update running moments with a batch of scores of all devices.

    With delta = mean_batch - mean: mean += delta n_batch / n;  m2 += m2_batch + delta^2 n_old n_batch / n. Where the
    result would not be finite, the moments stay as they are.

    Args:
        moments: of everything before.
        scores: [B] fp32.
        counted: [B] bool, the completions that have a score.
        axis_name: mapped device axis.

    Source: Chan et al. 1979; TRL 0.11 `RunningMoments`.
    """
    # Sums over all devices, not over this one: every device must end with the same moments.
    batch_count = global_sum(counted.astype(jnp.float32), axis_name)
    batch_mean = masked_mean(scores, counted, axis_name)
    squares = jnp.where(counted, (scores - batch_mean) ** 2, 0.0)
    batch_m2 = global_sum(squares, axis_name)
    count = moments.seen + batch_count
    delta = batch_mean - moments.mean
    added = ScoreMoments(
        seen=count,
        mean=moments.mean + delta * batch_count / count,
        m2=moments.m2 + batch_m2 + delta**2 * moments.seen * batch_count / count,
    )
    # One infinite score would otherwise spoil the scale of every later update.
    finite = jnp.isfinite(added.mean) & jnp.isfinite(added.m2)
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), added, moments)


def scale_scores(scores: Array, moments: ScoreMoments, *, subtract_mean: bool) -> Array:
    """Divide scores by the running standard deviation, after subtracting the running mean if `subtract_mean`.

    s / (std + eps) or (s - mean) / (std + eps), std = sqrt(m2 / (n - 1)), eps the fp32 machine epsilon. While every
    score so far was the same there is no scale to divide by: the scores are only centred, if at all.

    Source: TRL 0.11 `use_score_scaling`, `use_score_norm`.
    """
    deviation = jnp.sqrt(moments.m2 / jnp.maximum(moments.seen - 1, 1))
    centred = scores - moments.mean if subtract_mean else scores
    # Of equal scores rounding leaves a deviation of about 1e-7 of their mean.
    scaled = centred / (deviation + jnp.finfo(jnp.float32).eps)
    return jnp.where(deviation > 1e-5 * jnp.abs(moments.mean), scaled, centred)


def penalize_missing_eos(scores: Array, ended: Array, penalty: float | None) -> Array:
    """Take `penalty` off the score of every completion that did not end: [B] fp32."""
    return scores if penalty is None else scores - penalty * ~ended


# ----------------------------------------------------------------------------------------------------------------- PPO


def value_mask(mask: Array, score_position: str, response_length: int) -> Array:
    """Mark where values count: at real tokens, and with score position `after` at the state after the last, too.

    Args:
        mask: [B, C] bool, real tokens, contiguous from column 0.
        score_position: "last" or "after".
        response_length: a completion of that many tokens has no room after it (however wide the arrays are).

    Source: `padding_mask_p1` of TRL's `PPOTrainer`.
    """
    if score_position == "last":
        return mask
    lengths = _lengths(mask)
    columns = jnp.arange(mask.shape[1])[None, :]
    is_state = (columns <= lengths) & (columns < response_length)
    # A completion that is left out has no token, and so no state after the last one.
    return is_state & (lengths > 0)


def _lengths(mask: Array) -> Array:
    return jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.int32)


def token_rewards(
    scores: Array,
    kl: Array,
    mask: Array,
    kl_coef: Array | float,
    reward_mask: Array | None = None,
) -> Array:
    """Compute the reward of each token: r[t] = -kl_coef kl[t], plus the score at the last position of `reward_mask`.

    Args:
        scores: [B] fp32, one per completion.
        kl: [B, C] fp32, per-token KL estimate to the reference.
        mask: [B, C] bool, real tokens, contiguous from column 0.
        kl_coef: weight of the penalty.
        reward_mask: [B, C] bool, `value_mask`; default: mask. The score goes to its last position: the last token, or
            the place after it.

    Returns:
        [B, C] fp32, 0 outside the masks. The dtype is always fp32: an integer buffer would cut 0.37 to 0.

    Source: Ziegler et al. 2019, eq. 2; score on the last token as in TRL 0.11, after it as in TRL 1's `PPOTrainer`.
    """
    penalty = jnp.where(mask, -kl_coef * kl, 0.0)
    last = _lengths(mask if reward_mask is None else reward_mask) - 1
    is_last = jnp.arange(mask.shape[1])[None, :] == last
    score_column = scores.astype(jnp.float32)[:, None]
    return penalty + jnp.where(is_last, score_column, 0.0)


def gae(
    rewards: Array, values: Array, mask: Array, gamma: float, lam: Array | float
) -> tuple[Array, Array]:
    """Compute generalized advantage estimates over completion tokens.

    For t = n - 1 .. 0 of a completion with n states in the mask, with V[n] = A[n] = 0:
    delta[t] = r[t] + gamma V[t + 1] - V[t];  A[t] = delta[t] + gamma lam A[t + 1];  R[t] = A[t] + V[t].
    Padding has reward, value and advantage 0, so more of it on the right changes nothing.

    Args:
        rewards: [B, C] fp32.
        values: [B, C] fp32, value of the state before each token.
        mask: [B, C] bool, contiguous from column 0.
        gamma: discount in [0, 1].
        lam: lambda in [0, 1].

    Returns:
        Advantages and returns, [B, C] fp32, 0 outside the mask.

    Source: Schulman et al. 2016, eq. 16.
    """
    rewards = jnp.where(mask, rewards, 0.0)
    values = jnp.where(mask, values, 0.0)
    # The state after the last token is worth 0: a completion
    # that was cut is treated as one that has ended, as in TRL.
    next_values = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
    deltas = rewards + gamma * next_values - values

    def backwards(advantage: Array, delta: Array) -> tuple[Array, Array]:
        advantage = delta + gamma * lam * advantage
        return advantage, advantage

    # From the last token to the first, all rows at once: the
    # scan goes over columns, so rows are its second axis.
    after_last = jnp.zeros_like(deltas[:, 0])
    _, advantages_by_column = jax.lax.scan(backwards, after_last, deltas.T, reverse=True)
    advantages = advantages_by_column.T
    returns = jnp.where(mask, advantages + values, 0.0)
    return advantages, returns


def whitened_gae(
    rewards: Array,
    values: Array,
    mask: Array,
    value_mask: Array,
    *,
    gamma: float,
    lam: float,
    whiten_rewards: bool = False,
    axis_name: Axes = None,
) -> Advantages:
    """Compute `gae`, with advantages whitened over all real tokens of all devices, and rewards scaled before if asked.

    Args:
        rewards: [B, C] fp32.
        values: [B, C] fp32.
        mask: [B, C] bool, real tokens: where advantages are whitened and used.
        value_mask: [B, C] bool, from `value_mask`: where rewards and values count.
        gamma: discount.
        lam: lambda.
        whiten_rewards: divide rewards by their standard deviation, keeping their mean.
        axis_name: mapped device axis.

    Source: TRL `PPOTrainer` (whitening of advantages always on; rewards keep their mean).
    """
    if whiten_rewards:
        # The mean stays: to shift the reward of every token would be to pay for length.
        rewards = masked_whiten(rewards, value_mask, shift_mean=False, axis_name=axis_name)
    advantages, returns = gae(rewards, values, value_mask, gamma, lam)
    # Logged before whitening, after which it is 0 whatever happens.
    mean = masked_mean(advantages, mask, axis_name)
    whitened = masked_whiten(advantages, mask, axis_name=axis_name)
    return Advantages(advantages=whitened, returns=returns, rewards=rewards, mean=mean)


# -------------------------------------------------------------------------------------------------------------- groups


def leave_one_out(rewards: Array, num_generations: int, counted: Array) -> Array:
    """Subtract from each completion's reward the mean reward of the other completions for the same prompt.

    A[i] = R[i] - (sum_j R[j] - R[i]) / (k - 1), j over the k completions of i's prompt. Completions without a reward
    are left out of sum and k, and have advantage 0, as has one whose siblings all lack a reward.

    Args:
        rewards: [B] fp32; the k completions of a prompt are adjacent.
        num_generations: k, at least 2.
        counted: [B] bool, the completions that have a reward.

    Source: Ahmadian et al. 2024, eq. 8.
    """
    group_rewards = rewards.reshape(-1, num_generations)
    group_mask = counted.reshape(-1, num_generations)
    num_siblings = jnp.sum(group_mask, axis=1, keepdims=True, dtype=jnp.float32) - 1
    group_sum = jnp.sum(group_rewards, axis=1, keepdims=True, where=group_mask)
    baseline = (group_sum - group_rewards) / jnp.maximum(num_siblings, 1)
    has_baseline = group_mask & (num_siblings > 0)
    estimates = jnp.where(has_baseline, group_rewards - baseline, 0.0)
    return estimates.reshape(-1)


def normalize(
    advantages: Array, counted: Array, axis_name: Axes = None, eps: float = 1e-4
) -> Array:
    """Compute (A - mean) / (std + eps) over the counted completions of all devices, the deviation unbiased; others 0.

    Source: TRL `RLOOTrainer`, `normalize_advantages`.
    """
    mean = masked_mean(advantages, counted, axis_name)
    deviation = jnp.sqrt(masked_var(advantages, counted, axis_name))
    return jnp.where(counted, (advantages - mean) / (deviation + eps), 0.0)


def group_relative(
    scores: Array,
    counted: Array,
    num_generations: int,
    scale: str,
    axis_name: Axes = None,
    eps: float = 1e-4,
) -> Array:
    """Subtract from each score the mean of its group, and divide by a standard deviation.

    A[i] = (R[i] - mean_j R[j]) / (std + eps), j over the completions of i's prompt that have a score, std the unbiased
    deviation of the R[j], or of all of the batch, or left out with eps. A completion without a score has advantage 0,
    as has one whose siblings all lack a score.

    Args:
        scores: [B] fp32; the completions of a prompt are adjacent.
        counted: [B] bool, the completions that have a score.
        num_generations: completions per prompt, at least 2.
        scale: "group", "batch" or "none".
        axis_name: mapped device axis.
        eps: TRL's.

    Source: Shao et al. 2024, section 4.1.2; none: Liu et al. 2025 (Dr. GRPO); batch: Liu et al. 2025 (Lite PPO).
    """
    group_scores = scores.reshape(-1, num_generations)
    group_mask = counted.reshape(-1, num_generations)
    # A completion without a score is left out of its group, so that the mean is over what remains;
    # a group without any must not divide by 0.
    group_size = jnp.sum(group_mask, axis=1, keepdims=True, dtype=jnp.float32)
    group_sum = jnp.sum(group_scores, axis=1, keepdims=True, where=group_mask)
    group_mean = group_sum / jnp.maximum(group_size, 1)
    centred = jnp.where(group_mask, group_scores - group_mean, 0.0)
    if scale == "none":
        return centred.reshape(-1)
    if scale == "batch":
        deviation = jnp.sqrt(masked_var(scores, counted, axis_name))
    else:
        sum_of_squares = jnp.sum(centred**2, axis=1, keepdims=True)
        variance = sum_of_squares / jnp.maximum(group_size - 1, 1)
        deviation = jnp.sqrt(variance)
    return (centred / (deviation + eps)).reshape(-1)


def describe(estimates: Array, counted: Array, axis_name: Axes = None) -> Stats:
    """Describe the advantages of completions, [B], over those that have a score."""
    return {
        "policy/advantages_mean": masked_mean(estimates, counted, axis_name),
        "policy/advantages_std": jnp.sqrt(masked_var(estimates, counted, axis_name)),
    }
