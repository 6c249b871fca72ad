"""Learning-rate schedules and AdamW's steps, on hand-worked numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxppo.config import OptimizerConfig
from jaxppo.parallel import stacks
from jaxppo.rl import optimizer
from jaxppo.types import TrainState


def rates_of(config, num_updates=10, peak=1.0):
    schedule = optimizer.make_schedule(config, num_updates, peak)
    return [float(schedule(jnp.int32(step))) for step in range(num_updates + 1)]


STEPS = np.arange(11)
SHAPES = {
    "linear": 1 - STEPS / 10,
    "cosine": 0.5 * (1 + np.cos(np.pi * STEPS / 10)),
    "constant": np.ones(11),
}


@pytest.mark.parametrize("decay", SHAPES)
def test_make_schedule_warms_up_to_the_peak_and_then_decays_over_the_rest(decay):
    plain = OptimizerConfig(lr_scheduler_type=decay)
    np.testing.assert_allclose(rates_of(plain, peak=2.0), 2 * SHAPES[decay], atol=1e-6)
    values = rates_of(OptimizerConfig(lr_scheduler_type=decay, warmup_steps=4))
    np.testing.assert_allclose(values[:5], [0.25, 0.5, 0.75, 1.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(values[4:], rates_of(plain, num_updates=6), atol=1e-6)


def test_make_learning_rates_gives_the_value_model_its_own_peak():
    both = optimizer.make_learning_rates(OptimizerConfig(learning_rate=0.5), 4)
    assert (both.policy(1), both.value(1)) == (0.375, 0.375)
    both = optimizer.make_learning_rates(OptimizerConfig(learning_rate=0.5, value_learning_rate=2.0), 4)
    assert (both.policy(1), both.value(1)) == (0.375, 1.5)
    # 0 is a choice, not a missing value.
    frozen = OptimizerConfig(learning_rate=0.5, value_learning_rate=0.0)
    assert optimizer.make_learning_rates(frozen, 4).value(1) == 0.0


def one_step(config, grads, params=None, step=0, num_updates=4):
    """The change of parameters that start at 1 (unless given) by one step."""
    params = jax.tree.map(jnp.ones_like, grads) if params is None else params
    transformation = optimizer.make_optimizer(config)
    state = TrainState(params, transformation.init(params), jnp.int32(step))
    rates = optimizer.make_learning_rates(config, num_updates)
    after = optimizer.apply_gradients(state, grads, transformation, rates, optax.tree.norm(grads), True)
    assert after.step == step
    return jax.tree.map(lambda new, old: np.asarray(new - old), after.params, params)


def test_apply_gradients_takes_adams_first_step_at_the_rates_of_both_models():
    # Adam's first direction is g / (|g| + epsilon).
    config = OptimizerConfig(learning_rate=0.5, value_learning_rate=0.25, adam_epsilon=1.0, max_grad_norm=None)
    grads = {"policy": {"w": jnp.array([3.0, -1.0])}, "value": {"w": jnp.array([1.0])}}
    change = one_step(config, grads)
    np.testing.assert_allclose(change["policy"]["w"], [-0.375, 0.25], rtol=1e-5)
    np.testing.assert_allclose(change["value"]["w"], [-0.125], rtol=1e-5)
    later = one_step(config, grads, step=2)  # half of the linear decay over 4 updates
    np.testing.assert_allclose(later["policy"]["w"], [-0.1875, 0.125], rtol=1e-5)


def test_apply_gradients_clips_the_norm_over_both_models():
    config = OptimizerConfig(learning_rate=1.0, lr_scheduler_type="constant", adam_epsilon=1.0, max_grad_norm=1.0)
    change = one_step(config, {"policy": jnp.array([3.0]), "value": jnp.array([4.0])})  # norm 5: 0.6 and 0.8
    np.testing.assert_allclose([change["policy"][0], change["value"][0]], [-0.6 / 1.6, -0.8 / 1.8], rtol=1e-5)
    small = one_step(config, {"policy": jnp.array([0.3]), "value": jnp.array([0.4])})
    np.testing.assert_allclose([small["policy"][0], small["value"][0]], [-0.3 / 1.3, -0.4 / 1.4], rtol=1e-5)


def test_apply_gradients_decays_weights_apart_from_adam():
    config = OptimizerConfig(learning_rate=0.5, lr_scheduler_type="constant", weight_decay=0.1)
    change = one_step(config, {"policy": jnp.array([[0.0]])}, {"policy": jnp.array([[2.0]])})
    np.testing.assert_allclose(change["policy"], [[-0.5 * 0.1 * 2.0]], rtol=1e-6)
    bias_or_norm = one_step(config, {"policy": jnp.array([0.0])}, {"policy": jnp.array([2.0])})
    assert bias_or_norm["policy"] == 0.0
    for shape, decay in (((2, 1), 0.0), ((2, 1, 1), -0.1)):  # biases and matrices of two layers in one array
        stacked = {"policy": {stacks.ALL: jnp.full(shape, 2.0)}}
        change = one_step(config, jax.tree.map(jnp.zeros_like, stacked), stacked)
        np.testing.assert_allclose(change["policy"][stacks.ALL], np.full(shape, decay), rtol=1e-6)
    still = one_step(OptimizerConfig(learning_rate=0.0, weight_decay=0.1), {"policy": jnp.array([3.0])})
    assert still["policy"] == 0.0


@pytest.mark.parametrize(
    ("parameters", "supervised", "use_peft", "usual", "high"),
    [
        (12_000_000, False, False, 1e-4, 6e-4),  # PPO
        (135_000_000, True, False, 1e-3, 3e-3),  # SmolLM2-135M, and the rate for tiny models
        (1_700_000_000, True, False, 3e-4, 1e-3),
        (7_000_000_000, True, False, 5e-5, 2e-4),
        (7_000_000_000, True, True, 5e-4, 1e-3),
        (135_000_000, True, True, 1e-3, 3e-3),
        (7_000_000_000, False, True, 5e-4, 3e-3),
    ],
)
def test_rates_are_high_for_the_size_and_kind_of_what_is_trained(parameters, supervised, use_peft, usual, high):
    kind = {"supervised": supervised, "use_peft": use_peft}
    assert optimizer.high_rates(OptimizerConfig(learning_rate=usual), parameters, **kind) is None
    assert optimizer.high_rates(OptimizerConfig(learning_rate=high), 1_000_000, **kind) is None
    warning = optimizer.high_rates(OptimizerConfig(learning_rate=high), parameters, **kind)
    assert f"learning_rate {high:g}" in warning and f"{parameters:,}" in warning
    both = optimizer.high_rates(OptimizerConfig(learning_rate=usual, value_learning_rate=high), parameters, **kind)
    assert both.startswith("value_learning_rate")


def test_a_warmup_longer_than_the_run_tells_the_rate_that_the_run_ends_with():
    config = OptimizerConfig(learning_rate=3e-3, warmup_steps=50)
    assert optimizer.warnings(config, 50, None, supervised=True) == []
    (warning,) = optimizer.warnings(config, 8, None, supervised=True)
    last = float(optimizer.make_schedule(config, 8, 3e-3)(7))
    assert last == pytest.approx(4.8e-4) and "warmup_steps 50" in warning and f"{last:.3g}" in warning
