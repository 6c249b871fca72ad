"""The update program: every PPO epoch and mini-batch of one rollout, for the rows of one device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxppo import advantages, losses, ops, rollout
from jaxppo.config import OptimizerConfig, PPOConfig
from jaxppo.models import ModelConfig
from jaxppo.types import Array, Params, Rollout, Scored, Sequences, TrainState, Trajectories

Stats = dict[str, Array]
Schedule = Callable[[Any], Any]


class LearningRates(NamedTuple):
    """Learning rates as functions of the number of updates done."""

    policy: Schedule
    value: Schedule


def make_schedule(config: OptimizerConfig, num_updates: int, peak: float) -> Schedule:
    """Linear warm-up to `peak`, then constant, linear or cosine decay to 0 at `num_updates`.

    The rate is constant within an update, as in TRL, whose scheduler steps once per rollout batch.
    """
    decay_steps = max(1, num_updates - config.warmup_steps)
    decays = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, 0.0, decay_steps),
        "cosine": optax.cosine_decay_schedule(peak, decay_steps),
    }
    warmup = lambda step: peak * (step + 1) / config.warmup_steps  # noqa: E731
    decay = decays[config.lr_scheduler_type]
    return decay if config.warmup_steps == 0 else optax.join_schedules([warmup, decay], [config.warmup_steps])


def make_learning_rates(config: OptimizerConfig, num_updates: int) -> LearningRates:
    """The schedules of the policy and of the value model."""
    peak = config.learning_rate
    value_peak = peak if config.value_learning_rate is None else config.value_learning_rate
    return LearningRates(make_schedule(config, num_updates, peak), make_schedule(config, num_updates, value_peak))


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Global-norm clipping, then AdamW's direction; the learning rate is applied by `apply_gradients`."""
    clip = optax.identity() if config.max_grad_norm is None else optax.clip_by_global_norm(config.max_grad_norm)
    adam = optax.scale_by_adam(config.adam_beta1, config.adam_beta2, config.adam_epsilon)
    return optax.chain(clip, adam, optax.add_decayed_weights(config.weight_decay))


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first update."""
    return TrainState(params, optimizer.init(params), jnp.int32(0))


def apply_gradients(
    state: TrainState, grads: Params, optimizer: optax.GradientTransformation, rates: LearningRates
) -> TrainState:
    """One optimizer step at the learning rates of `state.step`, which stays as it is."""
    directions: Any
    directions, opt_state = optimizer.update(grads, state.opt_state, state.params)
    rate_of = {"policy": rates.policy(state.step), "value": rates.value(state.step)}
    params = {
        model: jax.tree.map(lambda p, d, rate=rate_of[model]: p - rate * d, state.params[model], directions[model])
        for model in state.params
    }
    return state._replace(params=params, opt_state=opt_state)


def make_trajectories(
    scored: Scored,
    rollout: Rollout,
    sequences: Sequences,
    scores: Array,
    *,
    ppo: PPOConfig,
    axis_name: str | None = None,
) -> tuple[Trajectories, Stats]:
    """Token rewards, advantages and returns of a scored rollout, and what they look like.

    Args:
        scored: what the models say.
        rollout: the sampled completions.
        sequences: the same, packed.
        scores: [B] fp32, the host's rewards.
        ppo: coefficients.
        axis_name: mapped device axis.
    """
    mask = sequences.completion_mask
    kl = losses.kl_estimate(scored.logprobs, scored.ref_logprobs, ppo.kl_estimator)
    penalised = advantages.penalise_missing_eos(scores, rollout.ended, ppo.missing_eos_penalty)
    rewards = advantages.token_rewards(penalised, kl, mask, ppo.kl_coef)
    estimates = advantages.whitened_gae(
        rewards,
        scored.values,
        mask,
        gamma=ppo.gamma,
        lam=ppo.lam,
        whiten_rewards=ppo.whiten_rewards,
        axis_name=axis_name,
    )
    stats = _rollout_stats(scored, penalised, kl, mask, ppo.kl_coef, axis_name)
    stats |= _value_stats(scored.values, estimates.returns, mask, axis_name)
    return Trajectories(sequences, scored.logprobs, scored.values, *estimates), stats


def _rollout_stats(
    scored: Scored, scores: Array, kl: Array, mask: Array, kl_coef: float, axis_name: str | None
) -> Stats:
    """Sums over tokens, averaged over completions; TRL's names."""
    everyone = jnp.ones(scores.shape, bool)
    per_row = lambda x: ops.masked_mean(jnp.sum(jnp.where(mask, x, 0.0), axis=1), everyone, axis_name)  # noqa: E731
    mean_score = ops.masked_mean(scores, everyone, axis_name)
    mean_kl = per_row(kl)
    lengths = jnp.sum(mask, axis=1, dtype=jnp.float32)
    return {
        "objective/scores": mean_score,
        "objective/kl": mean_kl,
        "objective/non_score_reward": -kl_coef * mean_kl,
        "objective/rlhf_reward": mean_score - kl_coef * mean_kl,
        "objective/entropy": per_row(-scored.logprobs),
        "completions/mean_length": ops.masked_mean(lengths, everyone, axis_name),
    }


def _value_stats(values: Array, returns: Array, mask: Array, axis_name: str | None) -> Stats:
    """How much of the variance of the returns the old values explain: 1 - var(R - V) / var(R)."""
    error_var = ops.masked_var(returns - values, mask, axis_name)
    return {
        "value/explained_variance": 1.0 - error_var / jnp.maximum(ops.masked_var(returns, mask, axis_name), 1e-8),
        "value/mean": ops.masked_mean(values, mask, axis_name),
    }


def mini_batch_rows(key: Array, batch_size: int, num_epochs: int, num_mini_batches: int) -> Array:
    """Row numbers of every mini-batch: a fresh global permutation per epoch, cut into equal parts.

    Returns:
        [S, B / num_mini_batches] int32 with S = num_epochs * num_mini_batches.
    """
    epoch_keys = jax.random.split(key, num_epochs)
    rows = jax.vmap(lambda epoch_key: jax.random.permutation(epoch_key, batch_size))(epoch_keys)
    return rows.reshape(num_epochs * num_mini_batches, batch_size // num_mini_batches)


def ppo_loss(
    params: Params,
    batch: Trajectories,
    *,
    model: ModelConfig,
    ppo: PPOConfig,
    temperature: float,
    axis_name: str | None = None,
) -> tuple[Array, Stats]:
    """Clipped policy loss + vf_coef * clipped value loss on one mini-batch, means over the tokens of all devices."""
    mask = batch.sequences.completion_mask
    hidden = rollout.completion_hidden(params["policy"], batch.sequences, model)
    logprobs, entropy = rollout.logprobs_of_hidden(
        params["policy"], hidden, batch.sequences, model=model, temperature=temperature
    )
    if "trunk" in params["value"]:
        values = rollout.completion_values(params, batch.sequences, model=model)
    else:
        values = rollout.values_of_hidden(params, hidden, batch.sequences)
    policy = losses.policy_loss(logprobs, batch.logprobs, batch.advantages, mask, ppo.cliprange, axis_name)
    value = losses.value_loss(values, batch.values, batch.returns, mask, ppo.cliprange_value, axis_name)
    stats = {
        "loss/policy_avg": policy.loss,
        "loss/value_avg": value.loss,
        "policy/approxkl_avg": policy.approxkl,
        "policy/clipfrac_avg": policy.clipfrac,
        "policy/entropy_avg": ops.masked_mean(entropy, mask, axis_name),
        "val/clipfrac_avg": value.clipfrac,
        "val/ratio": policy.ratio,
    }
    return policy.loss + ppo.vf_coef * value.loss, stats


def gradients(
    loss: Callable[..., tuple[Array, Stats]], params: Params, batch: object, axis_name: str | None
) -> tuple[Params, Stats]:
    """Gradients of a loss that is already a mean over all devices.

    Such a loss has the same value on every device, so each device's gradient is the number of devices times its own
    share of the sum, and the mean over devices is the gradient.
    """
    (_, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
    if axis_name is not None:
        grads = jax.lax.pmean(grads, axis_name)
    return grads, stats | {"policy/grad_norm": optax.tree.norm(grads)}


def update(
    state: TrainState,
    mini_batches: Trajectories,
    *,
    loss: Callable[..., tuple[Array, Stats]],
    optimizer: optax.GradientTransformation,
    rates: LearningRates,
    axis_name: str | None = None,
) -> tuple[TrainState, Stats]:
    """One optimizer step per mini-batch, in order.

    Args:
        state: before the update.
        mini_batches: arrays [S, rows of a mini-batch on this device, ...].
        loss: (params, mini-batch) -> (loss, stats), means over the tokens of all devices.
        optimizer: gradient transformation.
        rates: learning rates.
        axis_name: mapped device axis.

    Returns:
        The state after the update, and each statistic averaged over the optimizer steps, plus those of the first step
        under `<name>_first` where a first step has a known value (ratio 1, approximate KL 0).
    """

    def step(state: TrainState, batch: Trajectories) -> tuple[TrainState, Stats]:
        grads, stats = gradients(loss, state.params, batch, axis_name)
        return apply_gradients(state, grads, optimizer, rates), stats

    learning_rate = rates.policy(state.step)
    state, stats = jax.lax.scan(step, state, mini_batches)
    averages = {name: jnp.mean(values) for name, values in stats.items()}
    first = {f"{name}_first": stats[name][0] for name in ("val/ratio", "policy/approxkl_avg") if name in stats}
    return state._replace(step=state.step + 1), averages | first | {"lr": learning_rate}
