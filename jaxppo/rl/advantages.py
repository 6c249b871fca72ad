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


def add_scores(moments: ScoreMoments, scores: Array, counted: Array, axis_name: Axes = None) -> ScoreMoments:
    """Update running moments with a batch of scores of all devices.

    With delta = mean_batch - mean: mean += delta n_batch / n;  m2 += m2_batch + delta^2 n_old n_batch / n. Where the
    result would not be finite, the moments stay as they are.

    Args:
        moments: of everything before.
        scores: [B] fp32.
        counted: [B] bool, the scores that there are.
        axis_name: mapped device axis.

    Source: Chan et al. 1979; TRL 0.11 `RunningMoments`.
    """
    batch_count = global_sum(counted.astype(jnp.float32), axis_name)
    batch_mean = masked_mean(scores, counted, axis_name)
    batch_m2 = global_sum(jnp.where(counted, (scores - batch_mean) ** 2, 0.0), axis_name)
    count, delta = moments.seen + batch_count, batch_mean - moments.mean
    added = ScoreMoments(
        seen=count,
        mean=moments.mean + delta * batch_count / count,
        m2=moments.m2 + batch_m2 + delta**2 * moments.seen * batch_count / count,
    )
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
    """Mark where values count: at real tokens, and with score position `after` at the state behind the last too.

    Args:
        mask: [B, C] bool, real tokens, contiguous from column 0.
        score_position: "last" or "after".
        response_length: a completion of that many tokens has no room behind it (however wide the arrays are).

    Source: `padding_mask_p1` of TRL's `PPOTrainer`.
    """
    if score_position == "last":
        return mask
    columns = jnp.arange(mask.shape[1])[None, :]
    return (columns <= _lengths(mask)) & (columns < response_length) & (_lengths(mask) > 0)


def _lengths(mask: Array) -> Array:
    return jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.int32)


def complete_token_scores(token_scores: Array, scores: Array, mask: Array) -> Array:
    """Add what the parts of each score leave over of it at the last position: s[t] + (score - sum_u s[u]) [t = last].

    Args:
        token_scores: [B, C] fp32, the parts.
        scores: [B] fp32, one per completion.
        mask: [B, C] bool, `value_mask`; a row without a position gets nothing.

    Returns:
        [B, C] fp32, 0 outside the mask, whose rows add up to the scores.
    """
    parts = jnp.where(mask, token_scores, 0.0)
    at_last = jnp.arange(mask.shape[1])[None, :] == _lengths(mask) - 1
    return parts + jnp.where(at_last, scores[:, None] - jnp.sum(parts, axis=1, keepdims=True), 0.0)


def token_rewards(
    scores: Array,
    kl: Array,
    mask: Array,
    kl_coef: Array | float,
    reward_mask: Array | None = None,
    token_scores: Array | None = None,
) -> Array:
    """Compute the reward of each token: r[t] = -kl_coef kl[t], plus the score at the last position of `reward_mask`.

    Args:
        scores: [B] fp32, one per completion.
        kl: [B, C] fp32, per-token KL estimate to the reference.
        mask: [B, C] bool, real tokens, contiguous from column 0.
        kl_coef: weight of the penalty.
        reward_mask: [B, C] bool, `value_mask`; default: mask. The score goes to its last position: the last token, or
            the place behind it.
        token_scores: [B, C] fp32, added in place of the scores; default: these alone.

    Returns:
        [B, C] fp32, 0 outside the masks. The dtype is always fp32: an integer buffer would cut 0.37 to 0.

    Source: Ziegler et al. 2019, eq. 2; score on the last token as in TRL 0.11, behind it as in TRL 1's `PPOTrainer`.
    """
    penalty = jnp.where(mask, -kl_coef * kl, 0.0)
    if token_scores is not None:
        return penalty + token_scores
    last = _lengths(mask if reward_mask is None else reward_mask) - 1
    at_last = jnp.arange(mask.shape[1])[None, :] == last
    return penalty + jnp.where(at_last, scores.astype(jnp.float32)[:, None], 0.0)


def gae(rewards: Array, values: Array, mask: Array, gamma: float, lam: Array | float) -> tuple[Array, Array]:
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
    rewards, values = jnp.where(mask, rewards, 0.0), jnp.where(mask, values, 0.0)
    next_values = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
    deltas = rewards + gamma * next_values - values

    def backwards(advantage: Array, delta: Array) -> tuple[Array, Array]:
        advantage = delta + gamma * lam * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(backwards, jnp.zeros_like(deltas[:, 0]), deltas.T, reverse=True)
    return advantages.T, jnp.where(mask, advantages.T + values, 0.0)


def whitened_gae(
    rewards: Array,
    values: Array,
    mask: Array,
    values_mask: Array,
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
        values_mask: [B, C] bool, `value_mask`: where rewards and values count.
        gamma: discount.
        lam: lambda.
        whiten_rewards: divide rewards by their standard deviation, keeping their mean.
        axis_name: mapped device axis.

    Source: TRL `PPOTrainer` (whitening of advantages always on; rewards keep their mean).
    """
    if whiten_rewards:
        rewards = masked_whiten(rewards, values_mask, shift_mean=False, axis_name=axis_name)
    advantages, returns = gae(rewards, values, values_mask, gamma, lam)
    mean = masked_mean(advantages, mask, axis_name)
    return Advantages(masked_whiten(advantages, mask, axis_name=axis_name), returns, rewards, mean)


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
    groups, counted = rewards.reshape(-1, num_generations), counted.reshape(-1, num_generations)
    siblings = jnp.sum(counted, axis=1, keepdims=True, dtype=jnp.float32) - 1
    others = (jnp.sum(groups, axis=1, keepdims=True, where=counted) - groups) / jnp.maximum(siblings, 1)
    return jnp.where(counted & (siblings > 0), groups - others, 0.0).reshape(-1)


def normalize(advantages: Array, counted: Array, axis_name: Axes = None, eps: float = 1e-4) -> Array:
    """Compute (A - mean) / (std + eps) over the counted completions of all devices, the deviation unbiased; others 0.

    Source: TRL `RLOOTrainer`, `normalize_advantages`.
    """
    deviation = jnp.sqrt(masked_var(advantages, counted, axis_name))
    return jnp.where(counted, (advantages - masked_mean(advantages, counted, axis_name)) / (deviation + eps), 0.0)


def group_relative(
    scores: Array, counted: Array, num_generations: int, scale: str, axis_name: Axes = None, eps: float = 1e-4
) -> Array:
    """Subtract from each entry the mean of its group, and divide by a standard deviation.

    A[i] = (R[i] - mean_j R[j]) / (std + eps), j over the entries of the completions of i's prompt that count, std the
    unbiased deviation of the R[j], or of all of the batch, or left out with eps. Entries that do not count have
    advantage 0; alone, one has no group, nor a deviation.

    Args:
        scores: [B, ...] fp32; the completions of a prompt are adjacent.
        counted: [B, ...] bool, the entries that there are.
        num_generations: completions per prompt, at least 2.
        scale: "group", "batch" or "none".
        axis_name: mapped device axis.
        eps: TRL's.

    Source: Shao et al. 2024, section 4.1.2; none: Liu et al. 2025 (Dr. GRPO); batch: Liu et al. 2025 (Lite PPO).
    """
    entries, there = (x.reshape(len(scores) // num_generations, -1) for x in (scores, counted))
    count = jnp.sum(there, axis=1, keepdims=True, dtype=jnp.float32)
    mean = jnp.sum(entries, axis=1, keepdims=True, where=there) / jnp.maximum(count, 1)
    centred = jnp.where(there, entries - mean, 0.0)
    if scale == "none":
        return centred.reshape(scores.shape)
    if scale == "batch":
        deviation = jnp.sqrt(masked_var(scores, counted, axis_name))
    else:
        deviation = jnp.sqrt(jnp.sum(centred**2, axis=1, keepdims=True) / jnp.maximum(count - 1, 1))
    return (centred / (deviation + eps)).reshape(scores.shape)


def process_relative(
    token_scores: Array, steps: Array, num_generations: int, scale: str, axis_name: Axes = None
) -> Array:
    """Compare parts of scores with those of the whole group, and give each token the sum of those still to come.

    A[i, t] = sum of r[i, u] over the steps u >= t of completion i, r from `group_relative` over all steps of the group.

    Args:
        token_scores: [B, C] fp32, the parts; the completions of a prompt are adjacent.
        steps: [B, C] bool, the tokens that have one.
        num_generations: see `group_relative`.
        scale: see `group_relative`.
        axis_name: mapped device axis.

    Returns:
        [B, C] fp32; 0 behind the last step.

    Source: Shao et al. 2024, section 4.1.3 (process supervision).
    """
    parts = group_relative(token_scores, steps, num_generations, scale, axis_name)
    return jnp.cumsum(parts[:, ::-1], axis=1)[:, ::-1]


def describe(estimates: Array, counted: Array, axis_name: Axes = None) -> Stats:
    """Describe advantages over those that count: of completions, [B], or of tokens, [B, C]."""
    return {
        "policy/advantages_mean": masked_mean(estimates, counted, axis_name),
        "policy/advantages_std": jnp.sqrt(masked_var(estimates, counted, axis_name)),
    }
