"""Optimizer and learning-rate schedules: AdamW with one rate for the policy and one for the value model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxppo.config import OptimizerConfig
from jaxppo.parallel import partition, stacks
from jaxppo.types import Array, Params, TrainState

Schedule = Callable[[Any], Any]


class LearningRates(NamedTuple):
    """Learning rates as functions of the number of updates done."""

    policy: Schedule
    value: Schedule


PRETRAINED_SIZE = 10_000_000
"""Parameters that hardly a model from scratch has here; the smallest Pythia has 14 million."""
HIGHEST_RATE = 1e-4
"""Ten times what pretrained models are fine-tuned with, all weights trained."""


def high_rates(config: OptimizerConfig, parameters: int) -> str | None:
    """Return a warning where a model as large as a pretrained one would learn at the rate of a tiny one, or None."""
    rates = {"learning_rate": config.learning_rate, "value_learning_rate": config.value_learning_rate}
    high = [f"{name} {rate:g}" for name, rate in rates.items() if rate is not None and rate > HIGHEST_RATE]
    if parameters < PRETRAINED_SIZE or not high:
        return None
    verb = "are" if len(high) > 1 else "is"
    return f"{' and '.join(high)} {verb} high for {parameters:,} parameters, pretrained models take 1e-6 to 1e-5"


def make_schedule(config: OptimizerConfig, num_updates: int, peak: float) -> Schedule:
    """Make a schedule: linear warm-up to `peak`, then constant, linear or cosine decay to 0 at `num_updates`.

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


def make_learning_rates(config: OptimizerConfig, num_updates: int, value_alone: int = 0) -> LearningRates:
    """Make the schedules of the policy and of the value model.

    Args:
        config: settings.
        num_updates: of the whole run.
        value_alone: updates at the start in which the policy's rate is 0; its schedule begins behind them. Its
            gradients enter Adam's moments all the same, so that its first step is no larger than later ones.
    """
    peak = config.learning_rate
    value_peak = peak if config.value_learning_rate is None else config.value_learning_rate
    policy = make_schedule(config, num_updates - value_alone, peak)
    if value_alone:
        policy = optax.join_schedules([optax.constant_schedule(0.0), policy], [value_alone])
    return LearningRates(policy, make_schedule(config, num_updates, value_peak))


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Clip by the global norm, then take AdamW's direction; the learning rate is applied by `apply_gradients`."""
    clip = optax.identity() if config.max_grad_norm is None else clip_by_norm(config.max_grad_norm)
    adam = optax.scale_by_adam(config.adam_beta1, config.adam_beta2, config.adam_epsilon)
    return optax.chain(clip, adam, optax.add_decayed_weights(config.weight_decay, mask=_is_matrix))


def clip_by_norm(most: float) -> optax.GradientTransformation:
    """Clip by the global norm, g min(1, most / norm); `norm` is given to `update`, as devices may hold shards.

    Source: optax.clip_by_global_norm, which computes the norm of what it is given.
    """

    def clip(updates: Any, state: Any, params: Any = None, **told: Any) -> tuple[Any, Any]:
        del params
        norm = told["norm"]
        clipped = jax.tree.map(lambda g: jnp.where(norm < most, g, g / norm.astype(g.dtype) * most), updates)
        return clipped, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, clip)


def _is_matrix(params: Params) -> Params:
    """Mark where weights decay: not in biases and norms, as in Hugging Face's Trainer."""
    is_matrix = lambda keys, p: p.ndim > (2 if stacks.ALL in partition.path_of(keys).split("/") else 1)  # noqa: E731
    return jax.tree_util.tree_map_with_path(is_matrix, params)


def apply_gradients(
    state: TrainState,
    grads: Params,
    optimizer: optax.GradientTransformation,
    rates: LearningRates,
    norm: Array | None = None,
) -> TrainState:
    """Take one optimizer step at the learning rates of `state.step`, which stays as it is.

    Args:
        state: before the step.
        grads: of its parameters.
        optimizer: from `make_optimizer`.
        rates: learning rates.
        norm: global norm of the gradients, [] fp32; default: that of these arrays.
    """
    directions: Any
    norm = optax.tree.norm(grads) if norm is None else norm
    optimizer = optax.with_extra_args_support(optimizer)
    directions, opt_state = optimizer.update(grads, state.opt_state, state.params, norm=norm)
    rate_of = {"policy": rates.policy(state.step), "value": rates.value(state.step)}
    params = {
        model: jax.tree.map(lambda p, d, rate=rate_of[model]: p - rate * d, state.params[model], directions[model])
        for model in state.params
    }
    return state._replace(params=params, opt_state=opt_state)
