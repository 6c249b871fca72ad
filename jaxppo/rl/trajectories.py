"""From a scored rollout and the host's scores to what the update learns from.

Final scores, KL and statistics are the same for all algorithms; what they become is the algorithm's (`rl/algorithms`).
"""

import jax.numpy as jnp

from jaxppo.config import RLConfig, TrainConfig
from jaxppo.rl import advantages, losses, ops
from jaxppo.rl.algorithms import Rewarded, formulas_of
from jaxppo.types import Array, Axes, Controls, Rollout, Scored, Sequences, Stats, Trajectories


def initial_controls(rl: RLConfig) -> Controls:
    """Return the controls before the first update."""
    return Controls(kl_coef=jnp.float32(rl.kl_coef), moments=advantages.initial_moments(), bad_updates=jnp.int32(0))


POSITIVE_SCORE = 1.0
"""Score of the host from which `positive_nll` raises the likelihood of a completion: that of a valid plan."""


def make_trajectories(
    controls: Controls,
    scored: Scored,
    rollout: Rollout,
    sequences: Sequences,
    scores: Array,
    token_scores: Array | None = None,
    *,
    config: TrainConfig,
    axis_name: Axes = None,
) -> tuple[Controls, Trajectories, Stats]:
    """Compute rewards, advantages and returns of a scored rollout, and their statistics.

    Args:
        controls: KL coefficient in force and moments of earlier scores.
        scored: what the models say.
        rollout: the sampled completions.
        sequences: the same, packed.
        scores: [B] fp32, the host's rewards; NaN for a completion without one, which is left out of everything that
            is learned.
        token_scores: [B, C] fp32, parts of the scores at their tokens, NaN at others; None: scores are of the whole.
        config: coefficients.
        axis_name: mapped device axis.

    Returns:
        The controls for the next update, the trajectories, and statistics.
    """
    rl, mask = config.rl, sequences.completion_mask
    counted = ~jnp.isnan(scores)
    positive = counted & (scores >= POSITIVE_SCORE)
    scores = jnp.where(counted, scores, 0.0)
    has_scores = ops.global_sum(counted.astype(jnp.int32), axis_name) > 0
    bad_updates = controls.bad_updates + ~has_scores
    moments = advantages.add_scores(controls.moments, scores, counted, axis_name)
    scores = _final_scores(scores, moments, rollout.ended, rl)
    stats = _score_stats(scores, counted, has_scores, axis_name) | _length_stats(rollout, sequences, axis_name)
    stats |= {"objective/entropy": _mean_row_sum(-scored.logprobs, mask, axis_name)}
    if rl.group_size > 1:
        stats |= _group_stats(scores, counted, rl.group_size, axis_name)
    kl, kl_stats, next_kl_coef = _kl(controls, scored, mask, config, axis_name)
    learned = counted & rollout.ended if rl.mask_truncated_completions else counted
    sequences = sequences._replace(completion_mask=mask & learned[:, None])
    rewarded = Rewarded(scored, sequences, scores, counted, kl, controls.kl_coef)
    if token_scores is not None:
        rewarded = _with_parts(rewarded, token_scores, moments, config)
    trajectories, estimate_stats = formulas_of(rl.algorithm).make_trajectories(rewarded, config, axis_name)
    stats |= kl_stats | estimate_stats
    if config.logprobs == "recompute" and rollout.logprobs is not None:
        log_ratio = jnp.where(mask, scored.logprobs - rollout.logprobs, 0.0)
        stats |= _mismatch_stats(log_ratio, mask, axis_name)
    if scored.entropy is not None:
        trajectories = _of_high_entropy(trajectories, scored.entropy, rl.top_entropy_quantile, axis_name)
    if rl.positive_nll:
        trajectories = trajectories._replace(positive=positive)
    non_score_reward = stats.get("objective/non_score_reward", 0.0)
    stats["objective/rlhf_reward"] = stats["objective/scores"] + non_score_reward
    controls = controls._replace(kl_coef=next_kl_coef, moments=moments, bad_updates=bad_updates)
    return controls, trajectories, stats


def _of_high_entropy(trajectories: Trajectories, entropy: Array, share: float, axis_name: Axes) -> Trajectories:
    """Set advantages to 0 but for the share of the batch's real tokens with the highest entropy.

    TRL takes the threshold anew in every micro-batch from the policy in training; here it is the same however a batch
    is cut, from the policy before the update.

    Source: Wang et al. 2025, "Beyond the 80/20 rule"; TRL `GRPOTrainer`, `top_entropy_quantile`.
    """
    mask = trajectories.sequences.completion_mask
    lowest = ops.masked_quantile(entropy, mask, 1.0 - share, axis_name)
    return trajectories._replace(advantages=jnp.where(entropy >= lowest, trajectories.advantages, 0.0))


def _final_scores(scores: Array, moments: advantages.ScoreMoments, ended: Array, rl: RLConfig) -> Array:
    """Scale, clip, then penalise, so that neither scale nor clip range changes the penalty."""
    if rl.use_score_scaling:
        scores = advantages.scale_scores(scores, moments, subtract_mean=rl.use_score_norm)
    if rl.reward_clip_range is not None:
        scores = jnp.clip(scores, *rl.reward_clip_range)
    return advantages.penalize_missing_eos(scores, ended, rl.missing_eos_penalty)


def _with_parts(
    rewarded: Rewarded, token_scores: Array, moments: advantages.ScoreMoments, config: TrainConfig
) -> Rewarded:
    """Scale parts as scores; what else was done to a score counts where the completion ends.

    It is a step there, unless it is the rounding of the sum alone (below 1e-6 of what is added, or of 1); a score as a
    whole is one, be it 0.
    """
    rl, has_part = config.rl, ~jnp.isnan(token_scores)
    parts = jnp.where(has_part, token_scores, 0.0)
    if rl.use_score_scaling:
        parts = advantages.scale_scores(parts, moments, subtract_mean=False)
    mask = rewarded.sequences.completion_mask
    places = advantages.value_mask(mask, rl.score_position, config.sampling.response_length)
    complete = advantages.complete_token_scores(parts, rewarded.scores, places)
    at_last = places & ~jnp.pad(places[:, 1:], ((0, 0), (0, 1)))
    whole = ~jnp.any(has_part & places, axis=1, keepdims=True)
    added = jnp.sum(jnp.abs(parts), axis=1, keepdims=True) + jnp.abs(rewarded.scores)[:, None]
    is_left_over = jnp.abs(complete - parts) > 1e-6 * jnp.maximum(1.0, added)
    steps = places & (has_part | (at_last & whole) | is_left_over)
    return rewarded._replace(token_scores=complete, steps=steps)


def _kl(
    controls: Controls, scored: Scored, mask: Array, config: TrainConfig, axis_name: Axes
) -> tuple[Array, Stats, Array]:
    """Compute per-token KL, its statistics, and the KL coefficient of the next update. No reference: no KL."""
    rl = config.rl
    if scored.ref_logprobs is None:
        return jnp.zeros_like(scored.logprobs), {}, controls.kl_coef
    of = {name: losses.kl_estimate(scored.logprobs, scored.ref_logprobs, name) for name in ("k1", "k3")}
    if scored.full_kl is not None:
        kl = scored.full_kl
    else:
        kl = losses.kl_estimate(scored.logprobs, scored.ref_logprobs, rl.kl_estimator)
    mean = lambda x: _mean_row_sum(x, mask, axis_name)  # noqa: E731
    mean_kl, mean_k1 = mean(kl), mean(of["k1"])
    stats = {
        "objective/kl": mean_kl,
        "objective/kl_k1": mean_k1,
        "objective/kl_k3": mean(of["k3"]),
        "objective/kl_coef": controls.kl_coef,
    }
    if rl.row.kl == "reward":
        stats["objective/non_score_reward"] = -controls.kl_coef * mean_kl
    next_kl_coef = controls.kl_coef
    if rl.kl_target is not None:
        # Steered by the KL itself, whatever the reward uses: abs and k2 are no estimates of it.
        unbiased = mean_k1 if scored.full_kl is None else mean_kl
        next_kl_coef = losses.adapted_kl_coef(
            controls.kl_coef, unbiased, rl.kl_target, rl.kl_horizon, config.batch_size
        )
    return kl, stats, next_kl_coef


# ----------------------------------------------------------------------------------------------------------- statistics


def _mean_row_sum(x: Array, mask: Array, axis_name: Axes) -> Array:
    """Sum up over the real tokens of each completion, mean over completions."""
    return ops.mean(jnp.sum(jnp.where(mask, x, 0.0), axis=1), axis_name)


def _score_stats(scores: Array, counted: Array, has_scores: Array, axis_name: Axes) -> Stats:
    """Describe the scores that there are; NaN where there are none."""
    mean = ops.masked_mean(scores, counted, axis_name)
    std = jnp.sqrt(ops.masked_var(scores, counted, axis_name))
    return {
        "objective/scores": jnp.where(has_scores, mean, jnp.nan),
        "objective/scores_std": jnp.where(has_scores, std, jnp.nan),
    }


def _mismatch_stats(log_ratio: Array, mask: Array, axis_name: Axes) -> Stats:
    """Describe how far recomputed probabilities of the sampled tokens are from those that they were drawn with."""
    ratio = jnp.exp(log_ratio)
    outside = jnp.abs(ratio - 1.0) > 0.1
    return {
        "policy/sampler_gap_avg": ops.masked_mean(jnp.abs(log_ratio), mask, axis_name),
        "policy/sampler_gap_max": ops.global_max(jnp.abs(log_ratio), axis_name),
        "policy/sampler_outside": ops.masked_mean(outside.astype(jnp.float32), mask, axis_name),
    }


def _group_stats(scores: Array, counted: Array, num_generations: int, axis_name: Axes) -> Stats:
    """Return the fraction of groups whose scores are all equal."""
    groups, has_score = (x.reshape(-1, num_generations) for x in (scores, counted))
    highest = jnp.max(groups, axis=1, initial=-jnp.inf, where=has_score)
    flat = highest - jnp.min(groups, axis=1, initial=jnp.inf, where=has_score) < 1e-6
    return {"reward/zero_variance_groups": ops.mean(flat.astype(jnp.float32), axis_name)}


def _length_stats(rollout: Rollout, sequences: Sequences, axis_name: Axes) -> Stats:
    """Describe lengths in tokens of completions and prompts, and the fraction of completions that did not end."""
    lengths = jnp.sum(sequences.completion_mask, axis=1, dtype=jnp.float32)
    prompts = sequences.prompt_lengths.astype(jnp.float32)
    return {
        "completions/mean_length": ops.mean(lengths, axis_name),
        "completions/length_std": ops.std(lengths, axis_name),
        "completions/min_length": -ops.global_max(-lengths, axis_name),
        "completions/max_length": ops.global_max(lengths, axis_name),
        "completions/clipped_ratio": ops.mean(1.0 - rollout.ended, axis_name),
        "tokens/queries_len_mean": ops.mean(prompts, axis_name),
        "tokens/queries_len_std": ops.std(prompts, axis_name),
        "val/num_eos_tokens": ops.global_sum(rollout.ended.astype(jnp.int32), axis_name),
    }
