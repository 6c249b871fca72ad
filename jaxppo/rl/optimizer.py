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
"""Models with fewer parameters are taken to be trained from scratch; the smallest Pythia has 14 million."""

HIGHEST_SUPERVISED_RATES = (
    (500_000_000, 1e-3),
    (3_000_000_000, 3e-4),
    (float("inf"), 5e-5),
)
"""(parameters up to, highest usual rate) of supervised training of all weights.

Source: SmolLM2's recipes of the alignment handbook, 1e-3 for 135M and 360M, 3e-4 for 1.7B; beyond, the default of
transformers' `TrainingArguments`, which is above the 2e-5 of Alpaca and Zephyr.
"""
HIGHEST_RL_RATE = 1e-4
"""Ten times what pretrained models are trained with in TRL's examples of PPO, RLOO and GRPO, 1e-6 to 1e-5."""
ADAPTER_FACTOR = 10
"""Adapters take about ten times the rate of all weights. Source: LoRA Without Regret (Schulman et al. 2025)."""
HIGHEST_ADAPTER_RATE = 1e-3
"""Adapters of small models take no more than this, twice the highest rate of LoRA's appendix D (arXiv:2106.09685)."""


def high_rates(
    config: OptimizerConfig, parameters: int, *, supervised: bool, use_peft: bool = False
) -> str | None:
    """Return a warning where a pretrained model would learn at an unusually high rate, or None.

    The highest usual rate of all weights is, in supervised training, that of the model's size in
    `HIGHEST_SUPERVISED_RATES`, and elsewhere `HIGHEST_RL_RATE`. Adapters take `ADAPTER_FACTOR` times as much, at most
    `HIGHEST_ADAPTER_RATE`.

    Args:
        config: of the run.
        parameters: of the model, those under adapters included; below `PRETRAINED_SIZE` there is no warning.
        supervised: whether a loss of given texts is learned, as in `sft` and `reward_model`.
        use_peft: whether adapters are trained.
    """
    highest = HIGHEST_RL_RATE
    if supervised:
        highest = next(rate for size, rate in HIGHEST_SUPERVISED_RATES if parameters <= size)
    if use_peft:
        highest = min(ADAPTER_FACTOR * highest, HIGHEST_ADAPTER_RATE)
    rates = {
        "learning_rate": config.learning_rate,
        "value_learning_rate": config.value_learning_rate,
    }
    high = [
        f"{name} {rate:g}" for name, rate in rates.items() if rate is not None and rate > highest
    ]
    if parameters < PRETRAINED_SIZE or not high:
        return None
    verb = "are" if len(high) > 1 else "is"
    adapters = "adapters on " if use_peft else ""
    kind = "supervised training" if supervised else "reinforcement learning"
    return (
        f"{' and '.join(high)} {verb} high for {adapters}{parameters:,} parameters: {kind} of pretrained models of "
        f"that size takes at most {highest:g}"
    )


def warnings(
    config: OptimizerConfig,
    num_updates: int,
    parameters: int | None,
    *,
    supervised: bool,
    use_peft: bool = False,
) -> list[str]:
    """Return what is unusual about the learning rates of a run.

    Args:
        config: of the run.
        num_updates: of the schedule.
        parameters: of a model that was read; None for a fresh one, which may take any rate.
        supervised: see `high_rates`.
        use_peft: see `high_rates`.
    """
    found = []
    if parameters is not None:
        high = high_rates(config, parameters, supervised=supervised, use_peft=use_peft)
        if high is not None:
            found.append(high)
    if config.warmup_steps > num_updates:
        share = num_updates / config.warmup_steps
        found.append(
            f"warmup_steps {config.warmup_steps} is more than the {num_updates} updates of the run, which ends with a "
            f"learning rate of {share * config.learning_rate:.3g}, {share:.0%} of learning_rate "
            f"{config.learning_rate:g}"
        )
    return found


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
    decay = decays[config.lr_scheduler_type]
    if config.warmup_steps == 0:
        return decay

    def warmup(step: Any) -> Any:
        return peak * (step + 1) / config.warmup_steps

    return optax.join_schedules([warmup, decay], [config.warmup_steps])


def make_learning_rates(config: OptimizerConfig, num_updates: int) -> LearningRates:
    """Make the schedules of the policy and of the value model.

    Args:
        config: settings.
        num_updates: of the whole run.
    """
    peak = config.learning_rate
    value_peak = peak if config.value_learning_rate is None else config.value_learning_rate
    return LearningRates(
        make_schedule(config, num_updates, peak), make_schedule(config, num_updates, value_peak)
    )


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Clip by the global norm, then take AdamW's direction; the learning rate is applied by `apply_gradients`."""
    clip = optax.identity() if config.max_grad_norm is None else clip_by_norm(config.max_grad_norm)
    return optax.chain(
        clip, scale_by_adam(config), optax.add_decayed_weights(config.weight_decay, mask=_is_matrix)
    )


ADAM_BETA1 = 0.9
"""Decay of the first moment; no run or paper of these algorithms has had another."""


def scale_by_adam(config: OptimizerConfig) -> optax.GradientTransformation:
    """Take Adam's direction, mu / (1 - b1^t) / (sqrt(nu / (1 - b2^t)) + epsilon), at new moments mu and nu.

    Where the scalar `is_taken`, which is given to `update`, is false, the state stays as it was, and the direction
    means nothing.

    Source: optax.scale_by_adam, whose state it has.
    """
    b1 = ADAM_BETA1
    b2 = config.adam_beta2

    def update(updates: Any, state: Any, params: Any = None, **options: Any) -> tuple[Any, Any]:
        del params
        new = optax.ScaleByAdamState(
            count=optax.safe_increment(state.count),
            mu=optax.tree.update_moment(updates, state.mu, b1, 1),
            nu=optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2),
        )
        new = where_taken(options["is_taken"], new, state)
        # The direction is computed from the moments as they are stored: otherwise XLA computes them
        # twice, and copies the old ones first, as the new ones are written over them.
        new = jax.tree.map(jax.lax.optimization_barrier, new)
        mu = optax.tree.bias_correction(new.mu, b1, new.count)
        nu = optax.tree.bias_correction(new.nu, b2, new.count)

        def direction(m: Array, v: Array) -> Array:
            return m / (jnp.sqrt(v) + config.adam_epsilon)

        return jax.tree.map(direction, mu, nu), new

    return optax.GradientTransformationExtraArgs(optax.scale_by_adam().init, update)


def where_taken(is_taken: Array | bool, new: Any, old: Any) -> Any:
    """Return a tree's new arrays where a step is taken, else the old ones.

    Number by number: a branch of the program would hold both trees at once.
    """
    return jax.tree.map(lambda new, old: jnp.where(is_taken, new, old), new, old)


def clip_by_norm(max_norm: float) -> optax.GradientTransformation:
    """Clip by the global norm, g min(1, max_norm / norm); `norm` is given to `update`, as devices may hold shards.

    Source: optax.clip_by_global_norm, which computes the norm of what it is given.
    """

    def clip(updates: Any, state: Any, params: Any = None, **options: Any) -> tuple[Any, Any]:
        del params
        # The norm comes from outside: over the shards of one device it would be that of a part.
        norm = options["norm"]

        def clip_one(g: Array) -> Array:
            # Divided first, as optax does: the product could overflow.
            clipped = g / norm.astype(g.dtype) * max_norm
            return jnp.where(norm < max_norm, g, clipped)

        return jax.tree.map(clip_one, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, clip)


def _is_matrix(params: Params) -> Params:
    """Mark where weights decay: not in biases and norms, as in Hugging Face's Trainer."""

    def is_matrix(keys: Any, param: Array) -> bool:
        # A stacked array has one axis more, that of the layers.
        in_stack = stacks.ALL in partition.path_of(keys).split("/")
        return param.ndim > (2 if in_stack else 1)

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def apply_gradients(
    state: TrainState,
    grads: Params,
    optimizer: optax.GradientTransformationExtraArgs,
    rates: LearningRates,
    norm: Array,
    is_taken: Array | bool,
) -> TrainState:
    """Take one optimizer step at the learning rates of `state.step`, which stays as it is.

    Args:
        state: before the step.
        grads: of its parameters.
        optimizer: from `make_optimizer`.
        rates: learning rates.
        norm: global norm of the gradients, [] fp32.
        is_taken: [] bool, whether the step is taken; if not, the state stays as it is.
    """
    # The rate is applied here and not by optax, as policy
    # and value model have rates of their own on one norm.
    directions: Any
    directions, opt_state = optimizer.update(
        grads, state.opt_state, state.params, norm=norm, is_taken=is_taken
    )
    rate_by_model = {"policy": rates.policy(state.step), "value": rates.value(state.step)}
    params = {}
    for model, old in state.params.items():
        rate = rate_by_model[model]
        params[model] = jax.tree.map(lambda p, d, rate=rate: p - rate * d, old, directions[model])
    return state._replace(params=where_taken(is_taken, params, state.params), opt_state=opt_state)
