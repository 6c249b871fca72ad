"""Schedules, optimizer steps and mini-batches; the same numbers on any number of devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import ops, update
from jaxppo.config import OptimizerConfig, PPOConfig
from jaxppo.parallel import DATA, DataParallel
from jaxppo.types import Rollout, Scored, Sequences

# --- schedules


def rates(config, num_updates=10, peak=1.0):
    schedule = update.make_schedule(config, num_updates, peak)
    return [float(schedule(jnp.int32(step))) for step in range(num_updates + 1)]


def test_make_schedule_decays_linearly_to_0_at_the_end():
    linear = rates(OptimizerConfig(lr_scheduler_type="linear"), peak=2.0)
    np.testing.assert_allclose(linear, [2 * (1 - step / 10) for step in range(11)], atol=1e-6)


def test_make_schedule_decays_as_a_cosine_to_0_at_the_end():
    cosine = rates(OptimizerConfig(lr_scheduler_type="cosine"))
    np.testing.assert_allclose(cosine, [0.5 * (1 + np.cos(np.pi * step / 10)) for step in range(11)], atol=1e-6)


def test_make_schedule_can_stay_constant():
    assert rates(OptimizerConfig(lr_scheduler_type="constant"), peak=0.5) == [0.5] * 11


@pytest.mark.parametrize("decay", ["linear", "cosine", "constant"])
def test_make_schedule_warms_up_to_the_peak_and_then_decays_over_the_rest(decay):
    values = rates(OptimizerConfig(lr_scheduler_type=decay, warmup_steps=4))
    np.testing.assert_allclose(values[:5], [0.25, 0.5, 0.75, 1.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(values[4:], rates(OptimizerConfig(lr_scheduler_type=decay), num_updates=6), atol=1e-6)


def test_make_learning_rates_gives_the_value_model_its_own_peak():
    both = update.make_learning_rates(OptimizerConfig(learning_rate=0.5), 4)
    assert (both.policy(1), both.value(1)) == (0.375, 0.375)
    both = update.make_learning_rates(OptimizerConfig(learning_rate=0.5, value_learning_rate=2.0), 4)
    assert (both.policy(1), both.value(1)) == (0.375, 1.5)
    # 0 is a choice, not a missing value.
    assert update.make_learning_rates(OptimizerConfig(learning_rate=0.5, value_learning_rate=0.0), 4).value(1) == 0.0


# --- optimizer steps


def one_step(config, grads, params=None, step=0, num_updates=4):
    """The change of parameters that start at 1 (unless given) by one step."""
    params = jax.tree.map(jnp.ones_like, grads) if params is None else params
    optimizer = update.make_optimizer(config)
    state = update.init_state(params, optimizer)._replace(step=jnp.int32(step))
    after = update.apply_gradients(state, grads, optimizer, update.make_learning_rates(config, num_updates))
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
    change = one_step(config, {"policy": jnp.array([0.0])}, {"policy": jnp.array([2.0])})
    np.testing.assert_allclose(change["policy"], [-0.5 * 0.1 * 2.0], rtol=1e-6)


def test_apply_gradients_at_rate_0_changes_nothing():
    change = one_step(OptimizerConfig(learning_rate=0.0, weight_decay=0.1), {"policy": jnp.array([3.0])})
    assert change["policy"] == 0.0


# --- mini-batches


@pytest.mark.parametrize(("epochs", "parts"), [(1, 1), (3, 4), (4, 2)])
def test_mini_batch_rows_hold_every_row_once_per_epoch(epochs, parts):
    rows = np.asarray(update.mini_batch_rows(jax.random.key(0), 8, epochs, parts))
    assert rows.shape == (epochs * parts, 8 // parts)
    for epoch in rows.reshape(epochs, 8):
        assert sorted(epoch) == list(range(8))


def test_mini_batch_rows_differ_between_epochs_and_updates():
    orders = [
        tuple(epoch)
        for step in range(3)
        for epoch in np.asarray(
            update.mini_batch_rows(ops.purpose_key(0, ops.Purpose.MINI_BATCHES, step), 16, 4, 2)
        ).reshape(4, 16)
    ]
    assert len(set(orders)) == 12
    assert tuple(range(16)) not in orders


# --- update


def regression_loss(params, batch, axis_name=None):
    """A masked mean over ragged tokens, like the real losses."""
    error = (batch["x"] @ params["policy"] - batch["y"]) ** 2
    loss = ops.masked_mean(error, batch["mask"], axis_name)
    return loss, {"loss": loss}


def regression_batches(steps=3, rows=8, columns=5):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps, rows, columns, 2)).astype(np.float32)
    # The first rows have other targets and more tokens than the last: a mean of means over devices would differ.
    y = (x.sum(-1) + 5 * np.arange(rows)[None, :, None]).astype(np.float32)
    lengths = np.array([5, 5, 5, 4, 1, 2, 1, 1])
    mask = np.broadcast_to(np.arange(columns) < lengths[:, None], (steps, rows, columns))
    return {"x": x, "y": y, "mask": mask}


CONFIG = OptimizerConfig(learning_rate=0.1, adam_epsilon=1.0)


def run_update(mode, num_devices, batches):
    parallel = DataParallel(mode, jax.local_devices()[:num_devices])
    optimizer = update.make_optimizer(CONFIG)
    program = partial(
        update.update,
        loss=partial(regression_loss, axis_name=DATA),
        optimizer=optimizer,
        rates=update.make_learning_rates(CONFIG, 10),
        axis_name=DATA,
    )
    mapped = parallel.map(program, row_axes=(None, 1), out_axes=(None, None))
    state = update.init_state({"policy": jnp.zeros(2)}, optimizer)
    return mapped(parallel.put(state), parallel.put(batches, 1))


def loop_update(batches):
    """Step by step on the whole mini-batch, in float64: gradient, clipping to norm 1, Adam (0.9, 0.999)."""
    w, first, second = np.zeros(2), np.zeros(2), np.zeros(2)
    losses, norms = [], []
    for t, (x, y, mask) in enumerate(zip(batches["x"], batches["y"], batches["mask"], strict=True), 1):
        x, y = x[mask].astype(np.float64), y[mask].astype(np.float64)
        losses.append(np.mean((x @ w - y) ** 2))
        gradient = np.mean(2 * (x @ w - y)[:, None] * x, axis=0)
        norms.append(np.linalg.norm(gradient))
        gradient = gradient * min(1.0, 1.0 / norms[-1])
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        w = w - 0.1 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1.0)
    return w, losses, norms


@pytest.mark.parametrize(("mode", "num_devices"), [("shard_map", 1), ("shard_map", 4), ("pmap", 2)])
def test_update_equals_a_loop_on_any_number_of_devices(mode, num_devices):
    batches = regression_batches()
    state, stats = run_update(mode, num_devices, batches)
    w, losses, norms = loop_update(batches)
    np.testing.assert_allclose(state.params["policy"], w, atol=1e-5)
    # Averages over all steps, not over a part of a larger array.
    np.testing.assert_allclose(stats["loss"], np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(stats["policy/grad_norm"], np.mean(norms), rtol=1e-5)  # before clipping
    np.testing.assert_allclose(stats["lr"], 0.1, rtol=1e-6)
    assert state.step == 1


def test_update_with_more_epochs_learns_more():
    batches = regression_batches(steps=1)
    repeated = jax.tree.map(lambda x: np.repeat(x, 4, axis=0), batches)
    once, four_times = (run_update("shard_map", 1, b)[0].params["policy"] for b in (batches, repeated))
    assert np.linalg.norm(four_times) > 2 * np.linalg.norm(once)


# --- make_trajectories

LENGTHS = np.array([4, 1, 3, 2])
MASK = np.arange(4)[None, :] < LENGTHS[:, None]
ENDED = np.array([False, True, True, False])
SCORES = np.array([0.37, 1.0, 0.25, -0.5], np.float32)
PPO = PPOConfig(kl_coef=0.1, gamma=0.9, lam=0.8, missing_eos_penalty=0.5)


def scored_rollout(padding=0):
    """Scored, Rollout and Sequences of 4 ragged rows."""
    rng = np.random.default_rng(3)
    mask = np.pad(MASK, ((0, 0), (0, padding)))
    logprobs, reference, values = (
        np.pad(np.where(MASK, x, 0), ((0, 0), (0, padding))) for x in rng.normal(size=(3, 4, 4)).astype(np.float32)
    )
    ids = np.zeros(mask.shape, np.int32)
    rollout = Rollout(ids, mask, logprobs, ENDED)
    sequences = Sequences(np.zeros((4, 9 + padding), np.int32), np.full(4, 5, np.int32), ids, mask)
    return Scored(logprobs, reference, values), rollout, sequences


def loop_trajectories(scored, ppo):
    """Advantages, returns and the statistics, token by token in float64."""
    advantages, returns, kls = np.zeros((4, 4)), np.zeros((4, 4)), np.zeros((4, 4))
    scores = SCORES.astype(np.float64) - np.where(ENDED, 0.0, ppo.missing_eos_penalty or 0.0)
    for row, n in enumerate(LENGTHS):
        difference = scored.logprobs[row].astype(np.float64) - scored.ref_logprobs[row]
        kls[row, :n] = (difference if ppo.kl_estimator == "k1" else np.exp(-difference) - 1 + difference)[:n]
        values, following = scored.values[row].astype(np.float64), 0.0
        for t in reversed(range(n)):
            reward = -ppo.kl_coef * kls[row, t] + (scores[row] if t == n - 1 else 0.0)
            delta = reward + (ppo.gamma * values[t + 1] if t + 1 < n else 0.0) - values[t]
            following = delta + ppo.gamma * ppo.lam * following
            advantages[row, t], returns[row, t] = following, following + values[t]
    real = advantages[MASK]
    whitened = np.where(MASK, (advantages - real.mean()) / real.std(ddof=1), 0)
    stats = {
        "objective/scores": scores.mean(),
        "objective/kl": kls.sum(1).mean(),
        "objective/non_score_reward": -ppo.kl_coef * kls.sum(1).mean(),
        "objective/rlhf_reward": scores.mean() - ppo.kl_coef * kls.sum(1).mean(),
        "objective/entropy": -scored.logprobs.astype(np.float64).sum(1).mean(),
        "completions/mean_length": 2.5,
        "value/explained_variance": 1 - (returns - scored.values)[MASK].var(ddof=1) / returns[MASK].var(ddof=1),
        "value/mean": scored.values[MASK].mean(),
    }
    return whitened, returns, stats


def mapped_trajectories(num_devices=1, mode="shard_map", padding=0, ppo=PPO):
    parallel = DataParallel(mode, jax.local_devices()[:num_devices])
    program = partial(update.make_trajectories, ppo=ppo, axis_name=DATA)
    mapped = parallel.map(program, row_axes=(0, 0, 0, 0), out_axes=(0, None))
    return mapped(*parallel.put((*scored_rollout(padding), SCORES), 0))


@pytest.mark.parametrize("changes", [{}, {"kl_estimator": "k3", "missing_eos_penalty": None, "gamma": 1.0}])
def test_make_trajectories_equals_a_loop(changes):
    ppo = PPOConfig(**{"kl_coef": 0.1, "gamma": 0.9, "lam": 0.8, "missing_eos_penalty": 0.5} | changes)
    trajectories, stats = mapped_trajectories(ppo=ppo)
    whitened, returns, expected = loop_trajectories(scored_rollout()[0], ppo)
    np.testing.assert_allclose(trajectories.advantages, whitened, atol=1e-5)
    np.testing.assert_allclose(trajectories.returns, returns, atol=1e-5)
    assert set(stats) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(stats[name], value, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("mode", "num_devices"), [("shard_map", 4), ("pmap", 2)])
def test_make_trajectories_is_the_same_on_several_devices(mode, num_devices):
    for one, several in zip(
        jax.tree.leaves(mapped_trajectories()), jax.tree.leaves(mapped_trajectories(num_devices, mode)), strict=True
    ):
        np.testing.assert_allclose(several, one, atol=1e-5)


def test_make_trajectories_does_not_change_with_right_padding():
    (short, short_stats), (long, long_stats) = mapped_trajectories(), mapped_trajectories(padding=5)
    for name in ("logprobs", "values", "advantages", "returns"):
        np.testing.assert_allclose(getattr(long, name)[:, :4], getattr(short, name), atol=1e-6)
        assert not np.any(getattr(long, name)[:, 4:])
    for name in short_stats:
        np.testing.assert_allclose(long_stats[name], short_stats[name], atol=1e-6, err_msg=name)
