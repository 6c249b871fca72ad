"""The update program: every epoch, mini-batch and micro-batch of one rollout, for the rows of one device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxppo import losses, ops, rollout
from jaxppo.config import PPOConfig
from jaxppo.models import ModelConfig
from jaxppo.optimizer import LearningRates, apply_gradients
from jaxppo.types import Array, Controls, Params, TrainState, Trajectories, Weights

Stats = dict[str, Array]
Loss = Callable[[Params, Any, Any], tuple[Array, Stats]]
"""(params, micro-batch, weights) -> (loss, statistics), all weighted sums over the rows of this device."""


class Guards(NamedTuple):
    """When an optimizer step is left out, apart from a loss or gradient that is not finite."""

    ratio_threshold: float | None = None  # mean ratio of a mini-batch above which it is left out
    max_policykl: float | None = None  # mean(old - new) in nats per token that ends the update


NO_GUARDS = Guards()


def init_state(params: Params, optimizer: optax.GradientTransformation, controls: Controls | None = None) -> TrainState:
    """The state before the first update."""
    return TrainState(params, optimizer.init(params), jnp.int32(0), controls)


def mini_batch_rows(key: Array, batch_size: int, num_epochs: int, num_mini_batches: int) -> Array:
    """Row numbers of every mini-batch: a fresh global permutation per epoch, cut into equal parts.

    Returns:
        [S, B / num_mini_batches] int32 with S = num_epochs * num_mini_batches.
    """
    epoch_keys = jax.random.split(key, num_epochs)
    rows = jax.vmap(lambda epoch_key: jax.random.permutation(epoch_key, batch_size))(epoch_keys)
    return rows.reshape(num_epochs * num_mini_batches, batch_size // num_mini_batches)


def policy_gradient_loss(
    params: Params,
    batch: Trajectories,
    weights: Weights,
    *,
    model: ModelConfig,
    ppo: PPOConfig,
    temperature: float,
) -> tuple[Array, Stats]:
    """This device's share of: clipped policy loss - entropy_coef * entropy + vf_coef * clipped value loss.

    PPO takes the ratio per token, RLOO per completion: the product over its tokens.
    """
    mask = batch.sequences.completion_mask
    hidden = rollout.completion_hidden(params["policy"], batch.sequences, model)
    logprobs, entropy = rollout.logprobs_of_hidden(
        params["policy"], hidden, batch.sequences, model=model, temperature=temperature
    )
    log_ratio = jnp.where(mask, logprobs - batch.logprobs, 0.0)
    policy = losses.policy_loss(
        jnp.sum(log_ratio, axis=1) if ppo.algorithm == "rloo" else log_ratio,
        batch.advantages,
        weights.policy,
        ppo.cliprange,
        ppo.cliprange_high,
    )
    mean_entropy = ops.weighted_sum(entropy, weights.tokens)
    loss = policy.loss - ppo.entropy_coef * mean_entropy
    stats = {
        "loss/policy_avg": policy.loss,
        "policy/approxkl_avg": 0.5 * ops.weighted_sum(log_ratio**2, weights.tokens),
        "policy/policykl_avg": -ops.weighted_sum(log_ratio, weights.tokens),
        "policy/clipfrac_avg": policy.clipfrac,
        "policy/entropy_avg": mean_entropy,
        "val/ratio": policy.ratio,
    }
    if weights.values is not None:
        value = _value_loss(params, batch, hidden, weights.values, model, ppo)
        loss += ppo.vf_coef * value.loss
        stats |= {
            "loss/value_avg": value.loss,
            "val/clipfrac_avg": value.clipfrac,
            "value/error": value.error,
            "value/prediction": value.prediction,
        }
    return loss, stats | {"loss/total_avg": loss}


def _value_loss(
    params: Params, batch: Trajectories, policy_hidden: Array, weights: Array, model: ModelConfig, ppo: PPOConfig
) -> losses.ValueLoss:
    if "trunk" in params["value"]:
        values = rollout.completion_values(params, batch.sequences, model=model)
    else:
        values = rollout.values_of_hidden(params, policy_hidden)
    assert batch.values is not None and batch.returns is not None
    return losses.value_loss(values, batch.values, batch.returns, weights, ppo.cliprange_value)


def gradients(
    loss: Loss, params: Params, micro_batches: tuple[Any, Any], axis_name: str | None
) -> tuple[Params, Stats]:
    """Gradients and statistics of a mini-batch: sums over its micro-batches [M, ...] and over all devices.

    Every term is a weighted sum whose weights know the whole mini-batch, so any partition of the rows gives the same.
    """

    def of_one(micro_batch: tuple[Any, Any]) -> tuple[Params, Stats]:
        (_, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, *micro_batch)
        return grads, stats

    def add(total: Any, micro_batch: tuple[Any, Any]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, of_one(micro_batch)), None

    first, rest = (jax.tree.map(lambda x, part=part: x[part], micro_batches) for part in (0, slice(1, None)))
    total = of_one(first)
    if jax.tree.leaves(rest)[0].shape[0]:
        total, _ = jax.lax.scan(add, total, rest)
    return total if axis_name is None else jax.lax.psum(total, axis_name)


def norms(grads: Params) -> Stats:
    """Global norm of the gradient before clipping, of everything and of each model."""
    return {"grad_norm": optax.tree.norm(grads)} | {
        f"{name}/grad_norm": optax.tree.norm(grad) for name, grad in grads.items()
    }


def update(
    state: TrainState,
    mini_batches: tuple[Any, Any],
    *,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    rates: LearningRates,
    guards: Guards = NO_GUARDS,
    axis_name: str | None = None,
) -> tuple[TrainState, Stats]:
    """One optimizer step per mini-batch, in order.

    A step is left out where the loss or the gradient is not finite, where the mean ratio is above the guard's
    threshold, and from the first mini-batch on whose policykl is above the guard's (all later ones are left out too).

    Args:
        state: before the update.
        mini_batches: (rows, weights): arrays [S, M, rows of a micro-batch on this device, ...].
        loss: see `Loss`.
        optimizer: gradient transformation.
        rates: learning rates.
        guards: when to leave out steps.
        axis_name: mapped device axis.

    Returns:
        The state after the update, and each statistic averaged over the optimizer steps that were finite and came
        before an early stop, plus those of the first step under `<name>_first` where a first step has a known value
        (ratio 1, approximate KL 0).
    """

    def step(carry: tuple[TrainState, Array], batch: tuple[Any, Any]) -> tuple[tuple[TrainState, Array], Stats]:
        state, stopped = carry
        grads, stats = gradients(loss, state.params, batch, axis_name)
        stats |= norms(grads)
        finite = jnp.isfinite(stats["grad_norm"]) & jnp.isfinite(stats.get("loss/total_avg", 0.0))
        reached, allowed = _guarded(stats, stopped, guards)
        learn = lambda s: apply_gradients(s, grads, optimizer, rates)  # noqa: E731
        state = jax.lax.cond(finite & allowed, learn, lambda s: s, state)
        flags = {"counts": finite & ~stopped, "finite": finite, "allowed": allowed}
        return (state, reached), stats | flags

    (after, _), stats = jax.lax.scan(step, (state, jnp.bool_(False)), mini_batches)
    counts, finite, allowed = (stats.pop(name) for name in ("counts", "finite", "allowed"))
    averages = {name: ops.masked_mean(values, counts) for name, values in stats.items()}
    first = {f"{name}_first": stats[name][0] for name in ("val/ratio", "policy/approxkl_avg") if name in stats}
    if "val/ratio" in stats:
        averages["val/ratio_var"] = ops.masked_var(stats["val/ratio"], counts)
    nonfinite = jnp.sum(~finite, dtype=jnp.int32)
    left_out = {
        "policy/nonfinite_steps": nonfinite,
        "policy/skipped_steps": jnp.sum(finite & ~allowed, dtype=jnp.int32),
    }
    controls = after.controls
    if controls is not None:
        controls = controls._replace(bad_updates=jnp.where(nonfinite > 0, controls.bad_updates + 1, 0))
        left_out["policy/bad_updates"] = controls.bad_updates
    return after._replace(step=state.step + 1, controls=controls), averages | first | left_out | _lr(state, rates)


def _guarded(stats: Stats, stopped: Array, guards: Guards) -> tuple[Array, Array]:
    """Whether the update has ended early, and whether this step may be taken."""
    if guards.max_policykl is not None:
        stopped = stopped | (stats["policy/policykl_avg"] > guards.max_policykl)
    allowed = ~stopped
    if guards.ratio_threshold is not None:
        allowed = allowed & ~(stats["val/ratio"] > guards.ratio_threshold)
    return stopped, allowed


def _lr(state: TrainState, rates: LearningRates) -> Stats:
    lr = {"lr": rates.policy(state.step)}
    return lr | {"lr_value": rates.value(state.step)} if "value" in state.params else lr
