"""From completions with their scores to what the update learns from.

Final scores, KL and statistics are the same for all algorithms; what they become is the algorithm's (`rl/algorithms`).
"""

import jax.numpy as jnp

from jaxppo.config import RLConfig, TrainConfig
from jaxppo.rl import advantages, losses, ops
from jaxppo.rl.algorithms import formulas_of
from jaxppo.types import (
    Array,
    Axes,
    Controls,
    ModelOutputs,
    Rollout,
    Sequences,
    Stats,
    Trajectories,
)


def initial_controls(rl: RLConfig) -> Controls:
    """Return the controls before the first update."""
    return Controls(
        kl_coef=jnp.float32(rl.kl_coef),
        moments=advantages.initial_moments(),
        bad_updates=jnp.int32(0),
    )


POSITIVE_SCORE = 1.0
"""The score from which on `positive_nll` raises the likelihood of a completion: that of a valid plan."""


def make_trajectories(
    controls: Controls,
    outputs: ModelOutputs,
    rollout: Rollout,
    sequences: Sequences,
    scores: Array,
    *,
    config: TrainConfig,
    axis_name: Axes = None,
) -> tuple[Controls, Trajectories, Stats]:
    """Compute rewards, advantages and returns of a batch, and their statistics.

    Args:
        controls: KL coefficient in force and moments of earlier scores.
        outputs: log-probabilities and values of the completions.
        rollout: the sampled completions.
        sequences: the same, packed.
        scores: [B] fp32, the host's rewards; NaN for a completion without one, which is left out of everything that
            is learned.
        config: coefficients.
        axis_name: mapped device axis.

    Returns:
        The controls for the next update, the trajectories, and statistics.
    """
    rl = config.rl
    mask = sequences.completion_mask
    has_score = ~jnp.isnan(scores)
    # Before scaling and clipping: what counts as solved is the reward function's word.
    positive = has_score & (scores >= POSITIVE_SCORE)
    # NaN times 0 is NaN, so missing scores must be gone before any weighted sum.
    scores = jnp.where(has_score, scores, 0.0)
    any_score = ops.global_sum(has_score.astype(jnp.int32), axis_name) > 0
    # `update` resets the count after a good step; an update without any score takes none.
    bad_updates = controls.bad_updates + ~any_score
    moments = advantages.add_scores(controls.moments, scores, has_score, axis_name)
    scores = _final_scores(scores, moments, rollout.ended, rl)
    stats = _score_stats(scores, has_score, any_score, axis_name)
    stats |= _length_stats(rollout, sequences, axis_name)
    stats["objective/entropy"] = _mean_row_sum(-outputs.logprobs, mask, axis_name)
    if rl.group_size > 1:
        stats |= _group_stats(scores, has_score, rl.group_size, axis_name)
    kl, kl_stats, next_kl_coef = _kl(controls, outputs, mask, config, axis_name)
    # The mask of what is learned, from here on: statistics above are of all completions.
    is_learned = has_score & rollout.ended if rl.mask_truncated_completions else has_score
    trajectories, estimate_stats = formulas_of(rl.algorithm).make_trajectories(
        outputs,
        sequences._replace(completion_mask=mask & is_learned[:, None]),
        scores,
        has_score,
        kl=kl,
        kl_coef=controls.kl_coef,
        config=config,
        axis_name=axis_name,
    )
    stats |= kl_stats | estimate_stats
    if config.logprobs == "recompute" and rollout.logprobs is not None:
        log_ratio = jnp.where(mask, outputs.logprobs - rollout.logprobs, 0.0)
        stats |= _mismatch_stats(log_ratio, mask, axis_name)
    if outputs.entropy is not None:
        # After the estimates: baselines are those of all
        # tokens, only what is learned from is chosen.
        trajectories = _of_high_entropy(
            trajectories, outputs.entropy, rl.top_entropy_quantile, axis_name
        )
    if rl.positive_nll:
        trajectories = trajectories._replace(positive=positive)
    non_score_reward = stats.get("objective/non_score_reward", 0.0)
    stats["objective/rlhf_reward"] = stats["objective/scores"] + non_score_reward
    controls = controls._replace(kl_coef=next_kl_coef, moments=moments, bad_updates=bad_updates)
    return controls, trajectories, stats


def _of_high_entropy(
    trajectories: Trajectories, entropy: Array, share: float, axis_name: Axes
) -> Trajectories:
    """Set advantages to 0 but for the share of the batch's real tokens with the highest entropy.

    TRL takes the threshold anew in every micro-batch from the policy in training; here it is the same however a batch
    is cut, from the policy before the update.

    Source: Wang et al. 2025, "Beyond the 80/20 rule"; TRL `GRPOTrainer`, `top_entropy_quantile`.
    """
    mask = trajectories.sequences.completion_mask
    threshold = ops.masked_quantile(entropy, mask, 1.0 - share, axis_name)
    return trajectories._replace(
        advantages=jnp.where(entropy >= threshold, trajectories.advantages, 0.0)
    )


def _final_scores(
    scores: Array, moments: advantages.ScoreMoments, ended: Array, rl: RLConfig
) -> Array:
    """Scale, clip, then penalise, so that neither scale nor clip range changes the penalty."""
    # By moments that include this batch, as TRL 0.11 does.
    if rl.score_scaling != "none":
        scores = advantages.scale_scores(scores, moments, subtract_mean=rl.score_scaling == "norm")
    if rl.reward_clip_range is not None:
        scores = jnp.clip(scores, *rl.reward_clip_range)
    return advantages.penalize_missing_eos(scores, ended, rl.missing_eos_penalty)


def _kl(
    controls: Controls, outputs: ModelOutputs, mask: Array, config: TrainConfig, axis_name: Axes
) -> tuple[Array, Stats, Array]:
    """Compute per-token KL, its statistics, and the KL coefficient of the next update. No reference: no KL."""
    rl = config.rl
    if outputs.ref_logprobs is None:
        return jnp.zeros_like(outputs.logprobs), {}, controls.kl_coef
    kl_k1 = losses.kl_estimate(outputs.logprobs, outputs.ref_logprobs, "k1")
    kl_k3 = losses.kl_estimate(outputs.logprobs, outputs.ref_logprobs, "k3")
    if outputs.full_kl is not None:
        kl = outputs.full_kl
    else:
        kl = losses.kl_estimate(outputs.logprobs, outputs.ref_logprobs, rl.kl_estimator)
    mean_kl = _mean_row_sum(kl, mask, axis_name)
    mean_kl_k1 = _mean_row_sum(kl_k1, mask, axis_name)
    stats = {
        "objective/kl": mean_kl,
        "objective/kl_k1": mean_kl_k1,
        "objective/kl_k3": _mean_row_sum(kl_k3, mask, axis_name),
        "objective/kl_coef": controls.kl_coef,
    }
    if rl.spec.kl == "reward":
        stats["objective/non_score_reward"] = -controls.kl_coef * mean_kl
    if rl.kl_target is None:
        return kl, stats, controls.kl_coef
    # Steered by the KL itself, whatever the reward uses: abs and k2 are no estimates of it.
    unbiased = mean_kl_k1 if outputs.full_kl is None else mean_kl
    next_kl_coef = losses.adapted_kl_coef(
        controls.kl_coef, unbiased, rl.kl_target, rl.kl_horizon, config.batch_size
    )
    return kl, stats, next_kl_coef


# ----------------------------------------------------------------------------------------------------------- statistics


def _mean_row_sum(x: Array, mask: Array, axis_name: Axes) -> Array:
    """Sum up over the real tokens of each completion, mean over completions."""
    row_sums = jnp.sum(jnp.where(mask, x, 0.0), axis=1)
    return ops.mean(row_sums, axis_name)


def _score_stats(scores: Array, has_score: Array, any_score: Array, axis_name: Axes) -> Stats:
    """Describe the scores of the completions that have one; NaN where none has."""
    mean = ops.masked_mean(scores, has_score, axis_name)
    std = jnp.sqrt(ops.masked_var(scores, has_score, axis_name))
    return {
        "objective/scores": jnp.where(any_score, mean, jnp.nan),
        "objective/scores_std": jnp.where(any_score, std, jnp.nan),
    }


def _mismatch_stats(log_ratio: Array, mask: Array, axis_name: Axes) -> Stats:
    """Describe how far recomputed probabilities of the sampled tokens are from those that they were drawn with."""
    gap = jnp.abs(log_ratio)
    ratio = jnp.exp(log_ratio)
    is_outside = (jnp.abs(ratio - 1.0) > 0.1).astype(jnp.float32)
    return {
        "policy/sampler_gap_avg": ops.masked_mean(gap, mask, axis_name),
        "policy/sampler_gap_max": ops.global_max(gap, axis_name),
        "policy/sampler_outside": ops.masked_mean(is_outside, mask, axis_name),
    }


def _group_stats(scores: Array, has_score: Array, num_generations: int, axis_name: Axes) -> Stats:
    """Return the fraction of groups whose scores are all equal: nothing is learned from them."""
    group_scores = scores.reshape(-1, num_generations)
    group_mask = has_score.reshape(-1, num_generations)
    highest = jnp.max(group_scores, axis=1, initial=-jnp.inf, where=group_mask)
    lowest = jnp.min(group_scores, axis=1, initial=jnp.inf, where=group_mask)
    is_flat = highest - lowest < 1e-6
    return {"reward/zero_variance_groups": ops.mean(is_flat.astype(jnp.float32), axis_name)}


def _length_stats(rollout: Rollout, sequences: Sequences, axis_name: Axes) -> Stats:
    """Describe lengths in tokens of completions and prompts, and the fraction of completions that did not end."""
    lengths = jnp.sum(sequences.completion_mask, axis=1, dtype=jnp.float32)
    prompt_lengths = sequences.prompt_lengths.astype(jnp.float32)
    return {
        "completions/mean_length": ops.mean(lengths, axis_name),
        "completions/length_std": ops.std(lengths, axis_name),
        "completions/min_length": -ops.global_max(-lengths, axis_name),
        "completions/max_length": ops.global_max(lengths, axis_name),
        "completions/clipped_ratio": ops.mean(1.0 - rollout.ended, axis_name),
        "tokens/queries_len_mean": ops.mean(prompt_lengths, axis_name),
        "tokens/queries_len_std": ops.std(prompt_lengths, axis_name),
        "val/num_eos_tokens": ops.global_sum(rollout.ended.astype(jnp.int32), axis_name),
    }
