"""Mini-batches, optimizer steps, when they are skipped, and the losses of PPO and RLOO; the same on any devices."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models
from jaxppo.config import OptimizerConfig, RLConfig
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel.devices import DATA, DataParallel
from jaxppo.rl import losses, ops, optimizer, trajectories, update
from jaxppo.types import Sequences, Trajectories

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

CONFIG = OptimizerConfig(learning_rate=0.1, adam_epsilon=1.0)


def regression_loss(params, rows, weights):
    """A mean over ragged tokens, like the real losses, and statistics that are given with the rows."""
    error = (rows["x"] @ params["policy"] - rows["y"]) ** 2
    loss = ops.weighted_sum(error, weights) + jnp.sum(rows["offset"])
    mean = lambda name: ops.weighted_sum(jnp.broadcast_to(rows[name][:, None], weights.shape), weights)  # noqa: E731
    given = {"val/ratio": mean("ratio"), "policy/policykl_avg": mean("policykl")}
    return loss, {"loss/total_avg": loss, "policy/approxkl_avg": given["policy/policykl_avg"] ** 2} | given


def mini_batches(steps=4, rows=8, columns=5, **given):
    """{name: [S, b, ...]} and the mask; `given` names one number per step."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps, rows, columns, 2)).astype(np.float32)
    # The first rows have other targets and more tokens than the last: a mean of means over devices would differ.
    y = (x.sum(-1) + 5 * np.arange(rows)[None, :, None]).astype(np.float32)
    lengths = np.array([5, 5, 5, 4, 1, 2, 1, 1])
    mask = np.broadcast_to(np.arange(columns) < lengths[:, None], (steps, rows, columns))
    batch = {"x": x, "y": y}
    for name, default in {"ratio": 1.0, "policykl": 0.0, "offset": 0.0}.items():
        per_step = np.array(given.get(name, [default] * steps), np.float32)
        batch[name] = np.repeat(per_step[:, None], rows, axis=1)
    return batch, mask


def only(batches, steps):
    return jax.tree.map(lambda x: x[list(steps)], batches)


def start(params=None, bad_updates=0):
    controls = trajectories.initial_controls(RLConfig())._replace(bad_updates=jnp.int32(bad_updates))
    params = {"policy": jnp.zeros(2)} if params is None else params
    return update.init_state(params, optimizer.make_optimizer(CONFIG), controls)


@cache  # compiled programs are kept
def update_program(num_devices, mode, skip_rules):
    parallel = DataParallel(mode, jax.local_devices()[:num_devices])
    program = partial(
        update.update,
        loss=regression_loss,
        optimizer=optimizer.make_optimizer(CONFIG),
        rates=optimizer.make_learning_rates(CONFIG, 10),
        skip_rules=skip_rules,
        axis_name=DATA,
    )
    return parallel, parallel.map(program, row_axes=(None, 2), out_axes=(None, None))


def run_update(batches, num_devices=1, mode="shard_map", micro_batches=1, skip_rules=update.SKIP_NOTHING, state=None):
    parallel, program = update_program(num_devices, mode, skip_rules)
    rows, mask = batches
    weighted = (rows, ops.mean_weights(mask, (-2, -1)))
    cut = jax.tree.map(lambda x: x.reshape(x.shape[0], micro_batches, -1, *x.shape[2:]), weighted)
    return program(parallel.put(start() if state is None else state), parallel.put(cut, 2))


def loop_update(batches):
    """Step by step on the whole mini-batch, in float64: gradient, clipping to norm 1, Adam (0.9, 0.999)."""
    w, first, second = np.zeros(2), np.zeros(2), np.zeros(2)
    losses, norms = [], []
    rows, masks = batches
    for t, (x, y, mask) in enumerate(zip(rows["x"], rows["y"], masks, strict=True), 1):
        x, y = x[mask].astype(np.float64), y[mask].astype(np.float64)
        losses.append(np.mean((x @ w - y) ** 2))
        gradient = np.mean(2 * (x @ w - y)[:, None] * x, axis=0)
        norms.append(np.linalg.norm(gradient))
        gradient = gradient * min(1.0, 1.0 / norms[-1])
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        w = w - 0.1 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1.0)
    return w, losses, norms


def assert_same_state(a, b):
    """Parameters, moments of the optimizer and step, to the bit."""
    for name in ("params", "opt_state", "step"):
        jax.tree.map(np.testing.assert_array_equal, getattr(a, name), getattr(b, name))


@pytest.mark.parametrize(
    ("mode", "num_devices", "micro_batches"),
    [("shard_map", 1, 1), ("shard_map", 1, 4), ("shard_map", 4, 1), ("shard_map", 4, 2), ("pmap", 2, 2)],
)
def test_update_equals_a_loop_on_any_number_of_devices_and_micro_batches(mode, num_devices, micro_batches):
    batches = mini_batches()
    state, stats = run_update(batches, num_devices, mode, micro_batches)
    w, losses, norms = loop_update(batches)
    np.testing.assert_allclose(state.params["policy"], w, atol=1e-5)
    # Averages over all steps, not over a part of a larger array.
    np.testing.assert_allclose(stats["loss/total_avg"], np.mean(losses), rtol=1e-5)
    for name in ("grad_norm", "policy/grad_norm"):  # before clipping
        np.testing.assert_allclose(stats[name], np.mean(norms), rtol=1e-5)
    np.testing.assert_allclose(stats["lr"], 0.1, rtol=1e-6)
    assert "lr_value" not in stats
    assert state.step == 1
    assert (stats["policy/nonfinite_steps"], stats["policy/skipped_steps"], stats["policy/bad_updates"]) == (0, 0, 0)


@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_update_in_micro_batches_is_the_update_in_one(micro_batches):
    (one, one_stats), (several, several_stats) = (
        run_update(mini_batches(), micro_batches=m) for m in (1, micro_batches)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), several.params, one.params)
    assert set(several_stats) == set(one_stats)
    for name, value in one_stats.items():
        np.testing.assert_allclose(several_stats[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


def test_update_with_more_epochs_learns_more():
    batches = mini_batches(steps=1)
    repeated = jax.tree.map(lambda x: np.repeat(x, 4, axis=0), batches)
    once, four_times = (run_update(b)[0].params["policy"] for b in (batches, repeated))
    assert np.linalg.norm(four_times) > 2 * np.linalg.norm(once)


def test_update_gives_the_value_model_its_own_rate_and_norm():
    def loss(params, rows, weights):
        total = jnp.sum(weights * (3 * params["policy"] + 4 * params["value"]))
        return total, {"loss/total_avg": total}

    config = OptimizerConfig(learning_rate=0.1, value_learning_rate=0.4, adam_epsilon=1.0)
    state = start({"policy": jnp.float32(0), "value": jnp.float32(0)})
    rates = optimizer.make_learning_rates(config, 10)
    one_step = (jnp.zeros((1, 1, 2)), jnp.full((1, 1, 2), 0.5))
    transformation = optimizer.make_optimizer(config)
    after, stats = update.update(state, one_step, loss=loss, optimizer=transformation, rates=rates)
    np.testing.assert_allclose([stats["lr"], stats["lr_value"]], [0.1, 0.4], rtol=1e-6)
    norms = [stats[name] for name in ("policy/grad_norm", "value/grad_norm", "grad_norm")]
    np.testing.assert_allclose(norms, [3, 4, 5], rtol=1e-6)
    # Clipped together to norm 1: 0.6 and 0.8.
    changes = [after.params["policy"], after.params["value"]]
    np.testing.assert_allclose(changes, [-0.1 * 0.6 / 1.6, -0.4 * 0.8 / 1.8], rtol=1e-5)


# --- steps that are left out


@pytest.mark.parametrize("bad", [0, 1, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_update_leaves_out_exactly_the_step_with_a_gradient_that_is_not_finite(bad, value):
    batches = mini_batches()
    dirty = jax.tree.map(np.array, batches)
    dirty[0]["x"][bad, 0, 2, 1] = value
    (state, stats), (expected, expected_stats) = run_update(dirty), run_update(only(batches, {0, 1, 2, 3} - {bad}))
    assert_same_state(state, expected)
    assert (stats["policy/nonfinite_steps"], stats["policy/skipped_steps"]) == (1, 0)
    # It does not count in the averages either.
    for name in ("loss/total_avg", "grad_norm", "policy/grad_norm", "val/ratio"):
        np.testing.assert_allclose(stats[name], expected_stats[name], rtol=1e-6, err_msg=name)


def test_update_leaves_out_a_step_with_a_finite_gradient_of_an_infinite_loss():
    state, stats = run_update(mini_batches(offset=[0, np.inf, 0, 0]))
    assert_same_state(state, run_update(only(mini_batches(), [0, 2, 3]))[0])
    assert stats["policy/nonfinite_steps"] == 1


@pytest.mark.parametrize(("mode", "num_devices"), [("shard_map", 4), ("pmap", 2)])
def test_update_leaves_out_the_step_on_all_devices_when_one_has_the_bad_row(mode, num_devices):
    batches = mini_batches()
    dirty = jax.tree.map(np.array, batches)
    dirty[0]["x"][2, 7, 0, 0] = np.nan  # the last row, in the last micro-batch of the last device
    state, stats = run_update(dirty, num_devices, mode, micro_batches=2)
    expected, _ = run_update(only(batches, [0, 1, 3]), num_devices, mode, micro_batches=2)
    assert_same_state(state, expected)
    assert stats["policy/nonfinite_steps"] == 1


def test_update_where_no_step_is_finite_changes_nothing_but_the_step():
    dirty = mini_batches(offset=[np.nan] * 4)
    before = start()
    state, stats = run_update(dirty)
    assert_same_state(state, before._replace(step=jnp.int32(1)))
    assert stats["policy/nonfinite_steps"] == 4
    assert np.isnan(stats["loss/total_avg"])  # 0 would be a value


def test_update_counts_bad_updates_in_a_row_and_starts_again_after_a_good_one():
    state, seen = start(), []
    for offset in (0, np.nan, np.inf, 0, np.nan):
        state, stats = run_update(mini_batches(steps=2, offset=[0, offset]), state=state)
        assert stats["policy/bad_updates"] == state.controls.bad_updates
        seen.append(int(state.controls.bad_updates))
    assert seen == [0, 1, 2, 0, 1]
    assert state.step == 5


def test_update_without_controls_counts_no_bad_updates():
    state, stats = run_update(mini_batches(), state=start()._replace(controls=None))
    assert state.controls is None
    assert "policy/bad_updates" not in stats


def test_update_leaves_out_steps_whose_ratio_is_above_the_threshold():
    batches = mini_batches(ratio=[1.0, 10.5, 2.0, 11.0])
    state, stats = run_update(batches, skip_rules=update.SkipRules(ratio_threshold=10.0), state=start(bad_updates=2))
    assert_same_state(state, run_update(only(batches, [0, 2]))[0])
    assert (stats["policy/nonfinite_steps"], stats["policy/skipped_steps"]) == (0, 2)
    assert state.controls.bad_updates == 0  # such steps are finite
    np.testing.assert_allclose(stats["val/ratio"], np.mean([1.0, 10.5, 2.0, 11.0]), rtol=1e-6)
    assert_same_state(run_update(batches)[0], run_update(batches, skip_rules=update.SkipRules(ratio_threshold=20.0))[0])


@pytest.mark.parametrize(("mode", "num_devices"), [("shard_map", 1), ("shard_map", 4)])
def test_update_ends_at_the_first_step_whose_policykl_is_too_large(mode, num_devices):
    batches = mini_batches(policykl=[0.1, 1.6, 0.2, 0.0])
    state, stats = run_update(batches, num_devices, mode, skip_rules=update.SkipRules(max_policykl=1.5))
    assert_same_state(state, run_update(only(batches, [0]), num_devices, mode)[0])
    assert (stats["policy/nonfinite_steps"], stats["policy/skipped_steps"]) == (0, 3)
    # The step that went too far is measured, those behind it are not.
    np.testing.assert_allclose(stats["policy/policykl_avg"], 0.85, rtol=1e-6)
    loss = run_update(only(batches, [0, 1]), skip_rules=update.SkipRules(max_policykl=1.5))[1]["loss/total_avg"]
    np.testing.assert_allclose(stats["loss/total_avg"], loss, rtol=1e-6)


def test_update_starts_anew_after_one_that_ended_early():
    skip_rules = update.SkipRules(max_policykl=1.5)
    ended, _ = run_update(mini_batches(policykl=[2.0, 0, 0, 0]), skip_rules=skip_rules)
    assert_same_state(ended, start()._replace(step=jnp.int32(1)))
    state, stats = run_update(mini_batches(), skip_rules=skip_rules, state=ended)
    assert stats["policy/skipped_steps"] == 0
    assert np.any(state.params["policy"])


def test_update_goes_on_after_a_policykl_that_is_not_a_number():
    batches = mini_batches(policykl=[0, np.nan, 0, 0], offset=[0, np.nan, 0, 0])
    state, stats = run_update(batches, skip_rules=update.SkipRules(max_policykl=1.5, ratio_threshold=10.0))
    assert_same_state(state, run_update(only(mini_batches(), [0, 2, 3]))[0])
    assert (stats["policy/nonfinite_steps"], stats["policy/skipped_steps"]) == (1, 0)


def test_update_counts_a_step_that_is_left_out_for_two_reasons_once():
    """Above the threshold and not finite; the first too far; behind it."""
    batches = mini_batches(ratio=[1, 30, 1, 1], policykl=[0, 0, 2, 0], offset=[0, np.nan, 0, np.nan])
    state, stats = run_update(batches, skip_rules=update.SkipRules(ratio_threshold=10.0, max_policykl=1.5))
    assert (stats["policy/nonfinite_steps"], stats["policy/skipped_steps"]) == (0, 3)
    assert state.controls.bad_updates == 0
    assert_same_state(state, run_update(only(batches, [0]))[0])


@pytest.mark.parametrize("empty", [0, 2])
def test_update_takes_no_step_on_a_mini_batch_without_a_token(empty):
    """A gradient of 0 is not nothing to do: Adam's moments and the weight decay would still move the parameters."""
    rows, mask = mini_batches()
    mask = mask.copy()
    mask[empty] = False
    (state, stats), (expected, expected_stats) = (
        run_update((rows, mask)),
        run_update(only((rows, mask), {0, 1, 2, 3} - {empty})),
    )
    assert_same_state(state, expected)
    assert (stats["policy/nonfinite_steps"], stats["policy/skipped_steps"]) == (0, 0)
    for name in ("loss/total_avg", "grad_norm", "val/ratio", "val/ratio_var"):
        np.testing.assert_allclose(stats[name], expected_stats[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_update_does_not_compute_what_comes_after_an_early_stop():
    computed = []

    def loss(params, rows, weights):
        jax.debug.callback(lambda: computed.append(1))
        return regression_loss(params, rows, weights)

    rows, mask = mini_batches(policykl=[0, 2, 0, 0])
    batches = jax.tree.map(lambda x: jnp.asarray(x)[:, None], (rows, ops.mean_weights(mask, (-2, -1))))
    options = {"optimizer": optimizer.make_optimizer(CONFIG), "rates": optimizer.make_learning_rates(CONFIG, 10)}
    for skip_rules, count in ((update.SkipRules(max_policykl=1.5), 2), (update.SKIP_NOTHING, 4)):
        computed.clear()
        jax.jit(partial(update.update, loss=loss, skip_rules=skip_rules, **options))(start(), batches)
        jax.effects_barrier()
        assert len(computed) == count


def test_update_reports_the_variance_of_the_ratio_over_the_steps_that_count():
    ratios = [1.0, 1.5, 0.7, 30.0]
    _, stats = run_update(mini_batches(ratio=ratios, offset=[0, 0, 0, np.nan]))
    np.testing.assert_allclose(stats["val/ratio_var"], np.var(ratios[:3], ddof=1), rtol=1e-5)
    np.testing.assert_allclose(stats["val/ratio"], np.mean(ratios[:3]), rtol=1e-6)
    np.testing.assert_allclose(stats["val/ratio_first"], 1.0, rtol=1e-6)
    assert run_update(only(mini_batches(ratio=ratios), [1]))[1]["val/ratio_var"] == 0.0


def test_the_first_ratio_is_not_0_where_the_first_mini_batch_has_nothing():
    """0 would say that sampler and learner disagree."""
    rows, mask = mini_batches()
    _, stats = run_update((rows, mask & (np.arange(4) > 0)[:, None, None]))
    assert np.isnan(stats["val/ratio_first"]) and np.isnan(stats["policy/approxkl_avg_first"])
    assert stats["val/ratio"] == pytest.approx(1.0)


# --- the losses of PPO and RLOO

MODEL = GPTNeoXConfig(
    vocab_size=24,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    rotary_pct=1.0,
    initializer_range=0.4,
)
TEMPERATURE = 0.7
PROMPTS = np.array([3, 1, 5, 2, 4, 4, 2, 3])
LENGTHS = np.array([5, 1, 3, 4, 2, 5, 3, 1])
MASK = np.arange(5) < LENGTHS[:, None]
VALUE_MASK = np.arange(5) <= LENGTHS[:, None]  # score position `after`
COEFFICIENTS = {"entropy_coef": 0.3, "vf_coef": 0.7, "cliprange": 0.2, "cliprange_high": 0.4, "cliprange_value": 0.5}


@pytest.fixture(scope="module")
def params():
    policy, value = (models.init_params(MODEL, jax.random.key(i), head) for i, head in ((0, "lm"), (1, "score")))
    return {"policy": policy, "value": value}


@pytest.fixture(scope="module")
def predicted(params):
    """Log-probabilities, entropies and values at every completion position, from whole logits in numpy."""
    ids, completions = token_ids()
    hidden_of = jax.jit(lambda p, ids: models.apply(MODEL, p, ids, logits=False).hidden)
    hidden = np.asarray(hidden_of(params["policy"], ids), np.float64)
    logits = hidden @ np.asarray(params["policy"]["lm_head"]["kernel"]) / TEMPERATURE
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    hidden = np.asarray(hidden_of(params["value"], ids), np.float64)
    scores = hidden @ np.asarray(params["value"]["score"]["kernel"])[:, 0]
    logprobs, entropies, values = np.zeros((3, 8, 5))
    for row in range(8):
        for t in range(LENGTHS[row] + (LENGTHS[row] < 5)):
            at = PROMPTS[row] - 1 + t
            logprobs[row, t] = log_p[row, at, completions[row, t]]
            entropies[row, t] = -np.sum(np.exp(log_p[row, at]) * log_p[row, at])
            values[row, t] = scores[row, at]
    return logprobs, entropies, values


def token_ids():
    """Packed sequences with junk behind their ends, and the completions in them."""
    ids = np.random.default_rng(7).integers(0, 24, (8, 11)).astype(np.int32)
    return ids, np.take_along_axis(ids, PROMPTS[:, None] + np.arange(5), axis=1)


def trajectories_for(algorithm, predicted, drift=0.5):
    """A mini-batch [1, 8, ...] whose policy and values have moved by about `drift` since it was sampled."""
    rng = np.random.default_rng(8)
    noise, advantages, old_values, returns = rng.normal(size=(4, 8, 5)).astype(np.float32)
    ids, completions = token_ids()
    logprobs = np.where(MASK, predicted[0] + drift * noise, 0).astype(np.float32)
    values = np.where(VALUE_MASK, predicted[2] + 2 * drift * old_values, 0).astype(np.float32)
    sequences = Sequences(ids, PROMPTS.astype(np.int32), completions, MASK)
    if algorithm == "rloo":
        batch = Trajectories(sequences, logprobs, advantages[:, 0], advantages[:, 0])
    else:
        advantages = np.where(MASK, advantages, 0)
        batch = Trajectories(sequences, logprobs, advantages, advantages, values, returns, VALUE_MASK)
    return jax.tree.map(lambda x: jnp.asarray(x)[None], batch)


def gradients_program(algorithm, axis_name=None, **ppo):
    loss = partial(
        update.policy_gradient_loss,
        model=MODEL,
        value_model=MODEL,
        rl=RLConfig(algorithm=algorithm, **COEFFICIENTS | ppo),
        temperature=TEMPERATURE,
    )
    return partial(update.gradients, loss, axis_name=axis_name)


def weights_of(batch):
    level = "completion" if batch.advantages.ndim < batch.logprobs.ndim else "token"
    return losses.loss_weights(batch, level, "bnpo", batch.logprobs.shape[-1])


@cache  # compiled programs are kept
def compiled(algorithm, **ppo):
    return jax.jit(gradients_program(algorithm, **ppo))


def gradients(params, batch, micro_batches=1, **ppo):
    """Gradients and statistics of a mini-batch [1, b, ...] in this many parts; its token weights add up to 1."""
    cut = lambda x: x[0].reshape(micro_batches, -1, *x.shape[2:])  # noqa: E731
    algorithm = "rloo" if batch.values is None else "ppo"
    result = compiled(algorithm, **ppo)(params, jax.tree.map(cut, (batch, weights_of(batch))))
    np.testing.assert_allclose(result.tokens, 1.0, rtol=1e-6)
    assert result.loss == result.stats["loss/total_avg"]
    return result.grads, result.stats


def clipped_terms(ratio, advantage):
    """The two terms of the policy loss."""
    return -advantage * ratio, -advantage * min(max(ratio, 0.8), 1.4)


def loop_stats(algorithm, predicted, batch):
    """Everything that the loss reports, token by token (RLOO: completion by completion)."""
    old, advantages = np.asarray(batch.logprobs[0], np.float64), np.asarray(batch.advantages[0], np.float64)
    new, entropies, values = predicted
    tokens = list(zip(*np.nonzero(MASK), strict=True))
    if algorithm == "rloo":
        ratios = [np.prod([np.exp(new[i, t] - old[i, t]) for t in range(LENGTHS[i])]) for i in range(8)]
        pairs = [clipped_terms(ratio, advantages[i]) for i, ratio in enumerate(ratios)]
    else:
        ratios = [np.exp(new[at] - old[at]) for at in tokens]
        pairs = [clipped_terms(ratio, advantages[at]) for at, ratio in zip(tokens, ratios, strict=True)]
    stats = {
        "loss/policy_avg": np.mean([max(pair) for pair in pairs]),
        "policy/clipfrac_avg": np.mean([clipped > plain for plain, clipped in pairs]),
        "val/ratio": np.mean(ratios),
        "policy/approxkl_avg": np.mean([(new[at] - old[at]) ** 2 / 2 for at in tokens]),
        "policy/policykl_avg": np.mean([old[at] - new[at] for at in tokens]),
        "policy/entropy_avg": np.mean([entropies[at] for at in tokens]),
    }
    stats["loss/total_avg"] = stats["loss/policy_avg"] - 0.3 * stats["policy/entropy_avg"]
    if algorithm == "rloo":
        return stats
    old_values, returns = np.asarray(batch.values[0], np.float64), np.asarray(batch.returns[0], np.float64)
    errors = []
    for at in zip(*np.nonzero(VALUE_MASK), strict=True):
        clipped = min(max(values[at], old_values[at] - 0.5), old_values[at] + 0.5)
        errors.append(((values[at] - returns[at]) ** 2, (clipped - returns[at]) ** 2))
    stats |= {
        "loss/value_avg": 0.5 * np.mean([max(pair) for pair in errors]),
        "val/clipfrac_avg": np.mean([clipped > plain for plain, clipped in errors]),
        "value/error": np.mean([plain for plain, _ in errors]),
        "value/prediction": values[VALUE_MASK].mean(),
    }
    stats["loss/total_avg"] += 0.7 * stats["loss/value_avg"]
    return stats


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_policy_gradient_loss_equals_a_loop(params, predicted, algorithm):
    batch = trajectories_for(algorithm, predicted)
    _, stats = gradients(params, batch)
    expected = loop_stats(algorithm, predicted, batch)
    assert set(stats) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(stats[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert 0.1 < stats["policy/clipfrac_avg"] < 0.9


POSITIVE = np.array([True, False, True, False, False, True, False, False])
GRPO = {
    "token": {"loss_type": "grpo", "delta": 1.5},
    "sequence": {"loss_type": "dr_grpo", "importance_sampling_level": "sequence", "use_bias_correction_kl": False},
    "cispo": {"loss_type": "cispo", "cliprange_high": 1.2},
}


def loop_grpo(predicted, batch, loss_type, importance_sampling_level="token", use_bias_correction_kl=True, **clip):
    """Loss, its terms, and what is told of ratios, completion by completion and token by token."""
    old, advantages, reference = (
        np.asarray(x[0], np.float64) for x in (batch.logprobs, batch.advantages, batch.ref_logprobs)
    )
    new, entropies, _ = predicted
    sums, ratios, clipped = np.zeros(3), [], []  # of policy, KL and likelihood
    for i, count in enumerate(LENGTHS):
        logs = [new[i, t] - old[i, t] for t in range(count)]
        if importance_sampling_level == "sequence":
            logs = [sum(logs) / count] * count
        for t in range(count):
            ratio, advantage, gap = np.exp(logs[t]), advantages[i, t], reference[i, t] - new[i, t]
            plain, kept = clipped_terms(ratio, advantage)
            if "delta" in clip:
                plain = -advantage * min(ratio, clip["delta"])
            loss = max(plain, kept)
            if loss_type == "cispo":
                loss, kept = (
                    -advantage * min(ratio, 1.2) * new[i, t],
                    np.inf if ratio > 1.2 and advantage > 0 else -np.inf,
                )
            kl = (np.exp(gap) - 1 - gap) * (ratio if use_bias_correction_kl else 1.0)
            share = {"grpo": 1 / (8 * count), "dr_grpo": 1 / (8 * 5), "cispo": 1 / LENGTHS.sum()}[loss_type]
            sums += [share * loss, share * kl, -new[i, t] * POSITIVE[i] / LENGTHS[POSITIVE].sum()]
            told = 1 / LENGTHS.sum() if importance_sampling_level == "token" else 1 / (8 * count)
            ratios.append(told * ratio)
            clipped.append(told * (kept > plain))
    return {
        "loss/policy_avg": sums[0],
        "loss/kl_avg": sums[1],
        "loss/positive_nll_avg": sums[2],
        "loss/total_avg": sums[0] + 0.4 * sums[1] + 0.2 * sums[2] - 0.3 * entropies[MASK].mean(),
        "val/ratio": sum(ratios),
        "policy/clipfrac_avg": sum(clipped),
    }


@pytest.mark.parametrize("name", GRPO)
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_the_loss_of_grpo_equals_a_loop(params, predicted, name, micro_batches):
    settings = GRPO[name]
    batch = trajectories_for("ppo", predicted)
    reference = np.where(MASK, predicted[0] + 0.4 * np.random.default_rng(9).normal(size=MASK.shape), 0)
    batch = Trajectories(*batch[:4], ref_logprobs=jnp.asarray(reference[None], jnp.float32), positive=POSITIVE[None])
    rl = RLConfig(algorithm="grpo", **COEFFICIENTS | {"kl_coef": 0.4, "positive_nll": 0.2} | settings)
    weights = losses.loss_weights(batch, rl.ratio_level, rl.mean_of_losses, 5)
    cut = lambda x: x[0].reshape(micro_batches, -1, *x.shape[2:])  # noqa: E731
    program = gradients_program("grpo", kl_coef=0.4, positive_nll=0.2, **settings)
    result = jax.jit(program)({"policy": params["policy"]}, jax.tree.map(cut, (batch, weights)))
    for key, value in loop_grpo(predicted, batch, **settings).items():
        np.testing.assert_allclose(result.stats[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    assert result.stats["policy/clipfrac_avg"] > 0.1


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_gradients_of_micro_batches_add_up_to_those_of_the_mini_batch(params, predicted, algorithm):
    batch = trajectories_for(algorithm, predicted)
    (one, one_stats), (several, several_stats) = (gradients(params, batch, m) for m in (1, 4))
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(one))
    assert largest > 0.1
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-6 * max(1.0, largest)), several, one)
    for name, value in one_stats.items():
        np.testing.assert_allclose(several_stats[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_gradients_are_summed_over_devices(params, predicted):
    batch = trajectories_for("ppo", predicted)
    parallel = DataParallel(devices=jax.local_devices()[:2])
    program = parallel.map(gradients_program("ppo", DATA), row_axes=(None, 1), out_axes=None)
    several = program(parallel.put(params), parallel.put((batch, weights_of(batch)), 1))
    one = gradients(params, batch)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, (several.grads, several.stats), one)
    close((several.loss, several.tokens), (one[1]["loss/total_avg"], 1.0))


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_policy_gradient_loss_of_the_policy_that_sampled_has_ratio_1_and_kl_0(params, predicted, algorithm):
    batch = trajectories_for(algorithm, predicted, drift=0.0)
    _, stats = gradients(params, batch)
    np.testing.assert_allclose(stats["val/ratio"], 1.0, atol=1e-5)
    assert stats["policy/approxkl_avg"] < 1e-9
    assert abs(stats["policy/policykl_avg"]) < 1e-5
    assert stats["policy/clipfrac_avg"] == 0.0


def test_policy_gradient_loss_with_a_shared_trunk_has_the_values_of_its_head(params, predicted):
    """A value model whose trunk equals the policy's predicts the same, but sends no gradient into the policy."""
    batch, head = trajectories_for("ppo", predicted), params["value"]["score"]
    twin = {"policy": params["policy"], "value": {"trunk": params["policy"]["trunk"], "score": head}}
    shared = {"policy": params["policy"], "value": {"score": head}}
    (grads, stats), (shared_grads, shared_stats) = (gradients(p, batch) for p in (twin, shared))
    for name, value in stats.items():
        np.testing.assert_allclose(shared_stats[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    both = jax.tree.map(jnp.add, grads["policy"]["trunk"], grads["value"]["trunk"])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), shared_grads["policy"]["trunk"], both)


@pytest.mark.full
def test_policy_gradient_loss_rewards_entropy(params, predicted):
    """With nothing else to learn, a step against the gradient raises the entropy, and without a bonus does nothing."""
    batch, policy = trajectories_for("rloo", predicted, drift=0.0), {"policy": params["policy"]}
    batch = batch._replace(advantages=jnp.zeros_like(batch.advantages))
    grads, before = gradients(policy, batch)
    _, after = gradients(jax.tree.map(lambda p, g: p - 0.01 * g, policy, grads), batch)
    rise = after["policy/entropy_avg"] - before["policy/entropy_avg"]
    squared_norm = sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(grads))
    np.testing.assert_allclose(rise, 0.01 * squared_norm / 0.3, rtol=0.2)  # to first order, at entropy_coef 0.3
    assert rise > 1e-3
    none, _ = gradients(policy, batch, entropy_coef=0.0)
    assert not np.any([np.any(x) for x in jax.tree.leaves(none)])


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_policy_gradient_loss_ignores_what_lies_outside_the_masks(params, predicted, algorithm):
    batch = trajectories_for(algorithm, predicted)
    junk = lambda x, real: jnp.where(jnp.asarray(real), x, 77.0)  # noqa: E731
    dirty = batch._replace(logprobs=junk(batch.logprobs, MASK))
    if algorithm == "ppo":
        dirty = dirty._replace(
            advantages=junk(batch.advantages, MASK),
            values=junk(batch.values, VALUE_MASK),
            returns=junk(batch.returns, VALUE_MASK),
        )
    jax.tree.map(np.testing.assert_array_equal, *(gradients(params, b) for b in (batch, dirty)))
