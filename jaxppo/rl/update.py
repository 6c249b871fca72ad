"""The update program: every epoch, mini-batch and micro-batch of one rollout, for the rows of one device."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxppo.config import RLConfig
from jaxppo.nn import ModelConfig
from jaxppo.parallel import partition, platform
from jaxppo.rl import losses, ops, padding, rollout
from jaxppo.rl.optimizer import LearningRates, apply_gradients
from jaxppo.types import Array, Axes, Controls, Params, Stats, TrainState, Trajectories, Weights

Loss = Callable[[Params, Any, Any], tuple[Array, Stats]]
"""(params, micro-batch, weights) -> (loss, statistics), all weighted sums over the rows of this device."""


def init_state(
    params: Params, optimizer: optax.GradientTransformation, controls: Controls | None = None
) -> TrainState:
    """Return the state before the first update."""
    return TrainState(params, optimizer.init(params), jnp.int32(0), controls)


def mini_batch_rows(key: Array, batch_size: int, num_epochs: int, num_mini_batches: int) -> Array:
    """Draw the row numbers of every mini-batch: a fresh global permutation per epoch, cut into equal parts.

    Returns:
        [S, B / num_mini_batches] int32 with S = num_epochs * num_mini_batches.
    """
    # Global row numbers, so that mini-batches have the same rows on any number of devices.
    epoch_keys = jax.random.split(key, num_epochs)

    def permutation(epoch_key: Array) -> Array:
        return jax.random.permutation(epoch_key, batch_size)

    rows = jax.vmap(permutation)(epoch_keys)
    return rows.reshape(num_epochs * num_mini_batches, batch_size // num_mini_batches)


def policy_gradient_loss(
    params: Params,
    batch: Trajectories,
    weights: Weights,
    *,
    model: ModelConfig,
    value_model: ModelConfig,
    rl: RLConfig,
    temperature: float,
) -> tuple[Array, Stats]:
    """Compute this device's share of the sum of all terms of the loss.

    policy loss - entropy_coef * entropy + vf_coef * value loss + kl_coef * KL + positive_nll * NLL, the last three
    where the batch has what they need. The settings say at what level the ratio is taken.
    """
    mask = batch.sequences.completion_mask
    hidden = rollout.completion_hidden(params["policy"], batch.sequences, model)
    logprobs, entropy = rollout.logprobs_of_hidden(
        params["policy"], hidden, batch.sequences, model=model, temperature=temperature
    )
    # 0 outside of the mask before anything is exponentiated: exp of what padding holds may be inf.
    log_ratio = jnp.where(mask, logprobs - batch.logprobs, 0.0)
    level_log_ratio = losses.log_ratio_at(rl.ratio_level, log_ratio, mask)
    policy = _policy_loss(level_log_ratio, logprobs, batch.advantages, weights, rl)
    mean_entropy = ops.weighted_sum(entropy, weights.tokens)
    loss = policy.loss
    # Not added with a coefficient of 0: the entropy of 50k logits is not free to differentiate.
    if rl.entropy_coef:
        loss -= rl.entropy_coef * mean_entropy
    # Approximate KL by half the squared log-ratio (never below
    # 0), and the signed mean that early stopping watches.
    stats = {
        "loss/policy_avg": policy.loss,
        "policy/approxkl_avg": 0.5 * ops.weighted_sum(log_ratio**2, weights.tokens),
        "policy/policykl_avg": -ops.weighted_sum(log_ratio, weights.tokens),
        "policy/clipfrac_avg": policy.clipfrac,
        "policy/entropy_avg": mean_entropy,
        "val/ratio": policy.ratio,
    }
    if batch.ref_logprobs is not None:
        # KL in the loss, as in GRPO; KL in the reward is
        # in the advantages already (`trajectories.py`).
        kl = losses.kl_estimate(logprobs, batch.ref_logprobs, "k3")
        # Completions come from the old policy: weighted by the
        # ratio the estimate, and its gradient, is the new one's.
        if rl.use_bias_correction_kl:
            kl *= jnp.exp(level_log_ratio)
        kl_loss = ops.weighted_sum(kl, weights.policy)
        loss += rl.kl_coef * kl_loss
        stats["loss/kl_avg"] = kl_loss
    if weights.positive is not None:  # source: VAPO (Yue et al. 2025), eq. 14
        nll = -ops.weighted_sum(logprobs, weights.positive)
        loss += rl.positive_nll * nll
        stats["loss/positive_nll_avg"] = nll
    if weights.values is not None:
        assert batch.values is not None and batch.returns is not None
        # A head on the policy's trunk reads what the policy's loss
        # has computed; its gradient goes through the same trunk.
        values = rollout.completion_values(
            params, batch.sequences, model=model, value_model=value_model, policy_hidden=hidden
        )
        value = losses.value_loss(
            values, batch.values, batch.returns, weights.values, rl.cliprange_value
        )
        loss += rl.vf_coef * value.loss
        stats |= {
            "loss/value_avg": value.loss,
            "val/clipfrac_avg": value.clipfrac,
            "value/error": value.error,
            "value/prediction": value.prediction,
        }
    return loss, stats | {"loss/total_avg": loss}


def _policy_loss(
    log_ratio: Array, logprobs: Array, advantages: Array, weights: Weights, rl: RLConfig
) -> losses.PolicyLoss:
    if rl.mean_of_losses == "cispo":
        assert rl.cliprange_high is not None
        return losses.capped_policy_loss(
            log_ratio, logprobs, advantages, weights.policy, rl.cliprange_high, weights.ratios
        )
    return losses.policy_loss(
        log_ratio,
        advantages,
        weights.policy,
        rl.cliprange,
        rl.cliprange_high,
        rl.delta,
        weights.ratios,
    )


class MiniBatchSums(NamedTuple):
    """Loss, gradients and statistics of a mini-batch, summed over its micro-batches and all devices."""

    loss: Array  # []
    grads: Params
    stats: Stats
    tokens: Array  # [] sum of the token weights: 1, or 0 where no token counts


def gradients(
    loss: Loss,
    params: Params,
    micro_batches: tuple[Any, Any],
    axis_name: Axes,
    length_gaps: Sequence[int] = (),
) -> MiniBatchSums:
    """Compute gradients and statistics of a mini-batch: sums over its micro-batches [M, ...] and over all devices.

    Every term is a weighted sum whose weights know the whole mini-batch, so any partition of the rows gives the same.
    Several micro-batches are cut to the lengths that `length_gaps` allows, see `padding.cut_to_longest`.
    """

    @jax.jit  # traced once, for the shapes of its results and for the loop
    def sums_of(micro_batch: tuple[Any, Any]) -> MiniBatchSums:
        rows, weights = micro_batch
        loss_and_gradient = jax.value_and_grad(loss, has_aux=True)
        (value, stats), grads = loss_and_gradient(params, rows, weights)
        # Of `Weights` the first array is that of tokens; supervised losses have one array alone.
        token_weights = jax.tree.leaves(weights)[0]
        return MiniBatchSums(value, grads, stats, jnp.sum(token_weights))

    def add(total_and_micro_batch: tuple[MiniBatchSums, tuple[Any, Any]]) -> MiniBatchSums:
        # Within the branch that `cut_to_longest` takes, so that each gradient is added as soon as
        # it is computed: otherwise those of a whole micro-batch stand in memory beside the sum.
        total, micro_batch = total_and_micro_batch
        return jax.tree.map(jnp.add, total, sums_of(micro_batch))

    def add_cut(total: MiniBatchSums, micro_batch: tuple[Any, Any]) -> tuple[MiniBatchSums, None]:
        return padding.cut_to_longest(add, (total, micro_batch), length_gaps), None

    first = jax.tree.map(lambda x: x[0], micro_batches)
    # A loop of one round would hold a sum of zeros beside the gradient.
    if jax.tree.leaves(micro_batches)[0].shape[0] == 1:
        total = sums_of(first)
    else:
        total, _ = jax.lax.scan(add_cut, _zeros(sums_of, first), micro_batches)
    return partition.total(total, axis_name)


def _zeros(function: Callable[..., MiniBatchSums], *args: Any) -> MiniBatchSums:
    """Return zeros in the shapes of what `function` returns."""
    shapes = jax.eval_shape(function, *args)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def norms(grads: Params, axis_name: Axes = None) -> Stats:
    """Compute the global norm of the gradient before clipping, of everything and of each model."""
    stats = {"grad_norm": partition.norm(grads, axis_name)}
    for model, grad in grads.items():
        stats[f"{model}/grad_norm"] = partition.norm({model: grad}, axis_name)
    return stats


def compiler_options(models: Sequence[ModelConfig]) -> dict[str, Any] | None:
    """Return the options of XLA for the program that learns these models, None where its own are best.

    On a CPU XLA orders operations so that many could run at once, and holds more arrays for it. Those of wide models
    keep all cores busy one by one: in the order that holds least an update of 135M parameters takes 600 MiB less.
    """
    if platform.current().name == "cpu" and any(model.wide for model in models):
        return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    return None


def update(
    state: TrainState,
    mini_batches: tuple[Any, Any],
    *,
    loss: Loss,
    optimizer: optax.GradientTransformationExtraArgs,
    rates: LearningRates,
    ratio_threshold: float | None = None,
    max_policykl: float | None = None,
    axis_name: Axes = None,
    length_gaps: Sequence[int] = (),
) -> tuple[TrainState, Stats]:
    """Take one optimizer step per mini-batch, in order.

    A step is left out where the loss or the gradient is not finite, where no token of the mini-batch counts, where the
    mean ratio is above the threshold, and from the first mini-batch on whose policykl is too large (all later ones are
    left out too, and not computed).

    Args:
        state: before the update.
        mini_batches: (rows, weights): arrays [S, M, rows of a micro-batch on this device, ...].
        loss: see `Loss`.
        optimizer: gradient transformation.
        rates: learning rates.
        ratio_threshold: mean ratio of a mini-batch above which it is left out; None: never.
        max_policykl: mean(old - new) in nats per token that ends the update; None: nothing does.
        axis_name: mapped device axis.
        length_gaps: see `gradients`.

    Returns:
        The state after the update, and each statistic averaged over the mini-batches that were finite, had a token and
        did not come after an early stop, plus those of the first mini-batch under `<name>_first` where these have a
        known value (ratio 1, approximate KL 0).
    """

    def compute(params: Params, batch: tuple[Any, Any]) -> MiniBatchSums:
        return gradients(loss, params, batch, axis_name, length_gaps)

    def compute_nothing(params: Params, batch: tuple[Any, Any]) -> MiniBatchSums:
        return _zeros(compute, params, batch)

    def step(
        carry: tuple[TrainState, Array], batch: tuple[Any, Any]
    ) -> tuple[tuple[TrainState, Array], _StepOutcome]:
        state, has_stopped = carry
        if max_policykl is None:
            sums = compute(state.params, batch)
        else:
            # After an early stop the passes of the remaining mini-batches are not computed.
            sums = jax.lax.cond(has_stopped, compute_nothing, compute, state.params, batch)
        # Norms before clipping: they are what a user
        # watches, and what says whether the step is finite.
        stats = sums.stats | norms(sums.grads, axis_name)
        is_finite = jnp.isfinite(stats["grad_norm"]) & jnp.isfinite(sums.loss)
        stops, is_allowed = _apply_skip_rules(stats, has_stopped, ratio_threshold, max_policykl)
        has_tokens = sums.tokens > 0
        is_taken = is_finite & is_allowed & has_tokens
        # Every condition is on numbers that are summed over
        # devices, so all devices take the step, or none does.
        state = apply_gradients(state, sums.grads, optimizer, rates, stats["grad_norm"], is_taken)
        outcome = _StepOutcome(
            stats,
            has_tokens=has_tokens,
            counts=is_finite & ~has_stopped & has_tokens,
            is_bad=is_allowed & ~is_finite,
            is_skipped=~is_allowed,
        )
        return (state, stops), outcome

    # A scan and no Python loop: the program is as large for
    # sixteen steps as for one, and nothing waits for the host.
    start = (state, jnp.bool_(False))
    (new_state, _), outcomes = jax.lax.scan(step, start, mini_batches)
    stats = _averages(outcomes) | _lr(state, rates)
    stats["policy/nonfinite_steps"] = jnp.sum(outcomes.is_bad, dtype=jnp.int32)
    stats["policy/skipped_steps"] = jnp.sum(outcomes.is_skipped, dtype=jnp.int32)
    controls = new_state.controls
    if controls is not None:
        # Where no token counted, the batch had no score, and
        # `make_trajectories` has counted it as bad already.
        any_bad = jnp.any(outcomes.is_bad)
        any_tokens = jnp.any(outcomes.has_tokens)
        if_not_bad = jnp.where(any_tokens, 0, controls.bad_updates)
        bad_updates = jnp.where(any_bad, controls.bad_updates + 1, if_not_bad)
        controls = controls._replace(bad_updates=bad_updates)
        stats["policy/bad_updates"] = bad_updates
    return new_state._replace(step=state.step + 1, controls=controls), stats


class _StepOutcome(NamedTuple):
    """What became of a mini-batch."""

    stats: Stats
    has_tokens: Array  # [] bool, whether a token counted
    counts: Array  # [] bool, whether the statistics mean something
    is_bad: Array  # [] bool, left out as loss or gradient were not finite
    is_skipped: Array  # [] bool, left out by a rule


def _averages(outcomes: _StepOutcome) -> Stats:
    """Average over the mini-batches that count, [S] -> []; NaN where none does."""
    counts = outcomes.counts
    any_counts = jnp.any(counts)
    averages: Stats = {}
    for name, values in outcomes.stats.items():
        mean = ops.masked_mean(values, counts)
        averages[name] = jnp.where(any_counts, mean, jnp.nan)
    if "val/ratio" not in averages:
        return averages
    # The first mini-batch has the weights that sampled: a ratio
    # of 1 and an approximate KL of 0, or something is wrong.
    for name in ("val/ratio", "policy/approxkl_avg"):
        first = outcomes.stats[name][0]
        averages[f"{name}_first"] = jnp.where(counts[0], first, jnp.nan)
    averages["val/ratio_var"] = ops.masked_var(outcomes.stats["val/ratio"], counts)
    return averages


def _apply_skip_rules(
    stats: Stats, has_stopped: Array, ratio_threshold: float | None, max_policykl: float | None
) -> tuple[Array, Array]:
    """Return whether the update ends early, and whether this step may be taken."""
    if max_policykl is not None:
        has_stopped = has_stopped | (stats["policy/policykl_avg"] > max_policykl)
    is_allowed = ~has_stopped
    if ratio_threshold is not None:
        # Written as "not above", so that a ratio of NaN is allowed here and counted as not finite.
        is_allowed = is_allowed & ~(stats["val/ratio"] > ratio_threshold)
    return has_stopped, is_allowed


def _lr(state: TrainState, rates: LearningRates) -> Stats:
    stats = {"lr": rates.policy(state.step)}
    if "value" in state.params:
        stats["lr_value"] = rates.value(state.step)
    return stats
