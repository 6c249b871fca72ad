"""Mini-batches, optimizer steps, when they are skipped, and the losses of PPO and RLOO; the same on any devices."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models
from jaxppo.config import OptimizerConfig, RLConfig
from jaxppo.parallel.devices import DATA, DataParallel
from jaxppo.rl import losses, ops, optimizer, trajectories, update
from jaxppo.types import Sequences, Trajectories
from tests import device_modes
from tests.torch_models import CONFIGS


@pytest.mark.parametrize(("epochs", "parts"), [(1, 1), (3, 4)])
def test_mini_batch_rows_hold_every_row_once_per_epoch(epochs, parts):
    rows = np.asarray(update.mini_batch_rows(jax.random.key(0), 8, epochs, parts))
    assert rows.shape == (epochs * parts, 8 // parts)
    for epoch in rows.reshape(epochs, 8):
        assert sorted(epoch) == list(range(8))


def test_mini_batch_rows_differ_between_epochs_and_updates():
    keys = [ops.purpose_key(0, ops.Purpose.MINI_BATCHES, step) for step in range(3)]
    epochs = np.concatenate([update.mini_batch_rows(key, 16, 4, 2).reshape(4, 16) for key in keys])
    orders = {tuple(epoch.tolist()) for epoch in epochs}
    assert len(orders) == 12
    assert tuple(range(16)) not in orders


CONFIG = OptimizerConfig(learning_rate=0.1, adam_epsilon=1.0)


def regression_loss(params, rows, weights):
    """A mean over ragged tokens, like the real losses, and statistics that are given with the rows."""
    error = (rows["x"] @ params["policy"] - rows["y"]) ** 2
    loss = ops.weighted_sum(error, weights) + jnp.sum(rows["offset"])
    mean = lambda name: ops.weighted_sum(jnp.broadcast_to(rows[name][:, None], weights.shape), weights)  # noqa: E731
    given = {"val/ratio": mean("ratio"), "policy/policykl_avg": mean("policykl")}
    return loss, {"loss/total_avg": loss, "policy/approxkl_avg": given["policy/policykl_avg"] / 2} | given


def mini_batches(place=None, value=0.0, empty=None, steps=4, rows=8, columns=5, **given):
    """{name: [S, b, ...]} and the mask; `given` names one number per step.

    At a `place` of the inputs is another `value`; the step `empty` has no token.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps, rows, columns, 2)).astype(np.float32)
    # The first rows have other targets and more tokens than the last: a mean of means over devices would differ.
    y = (x.sum(-1) + 5 * np.arange(rows)[None, :, None]).astype(np.float32)
    lengths = np.array([5, 5, 5, 4, 1, 2, 1, 1])
    mask = np.tile(np.arange(columns) < lengths[:, None], (steps, 1, 1))
    if place is not None:
        x[place] = value
    if empty is not None:
        mask[empty] = False
    batch = {"x": x, "y": y}
    for name, default in {"ratio": 1.0, "policykl": 0.0, "offset": 0.0}.items():
        per_step = np.array(given.get(name, [default] * steps), np.float32)
        batch[name] = np.repeat(per_step[:, None], rows, axis=1)
    return batch, mask


def start(params=None, bad_updates=0):
    controls = trajectories.initial_controls(RLConfig())._replace(bad_updates=jnp.int32(bad_updates))
    params = {"policy": jnp.zeros(2)} if params is None else params
    return update.init_state(params, optimizer.make_optimizer(CONFIG), controls)


@cache  # compiled programs are kept
def update_program(num_devices, mode, has_rules):
    parallel = DataParallel(mode, jax.local_devices()[:num_devices])
    program = partial(
        update.update,
        loss=regression_loss,
        optimizer=optimizer.make_optimizer(CONFIG),
        rates=optimizer.make_learning_rates(CONFIG, 10),
        axis_name=DATA,
        **(RULES if has_rules else {}),
    )
    return parallel, parallel.map(program, row_axes=(None, 2), out_axes=(None, None))


def run_update(batches, num_devices=1, mode="shard_map", micro_batches=1, has_rules=False, state=None):
    parallel, program = update_program(num_devices, mode, has_rules)
    rows, mask = batches
    weighted = (rows, ops.mean_weights(mask, (-2, -1)))
    cut = jax.tree.map(lambda x: x.reshape(x.shape[0], micro_batches, -1, *x.shape[2:]), weighted)
    return program(parallel.put(start() if state is None else state), parallel.put(cut, 2))


def loop_update(batches, steps=range(4)):
    """Step by step on the whole mini-batch, in float64: gradient, clipping to norm 1, Adam (0.9, 0.999).

    Steps that are not among `steps` are measured all the same.
    """
    w, first, second = np.zeros(2), np.zeros(2), np.zeros(2)
    losses, norms, count = [], [], 0
    rows, masks = batches
    for step, (x, y, mask) in enumerate(zip(rows["x"], rows["y"], masks, strict=True)):
        x, y = x[mask].astype(np.float64), y[mask].astype(np.float64)
        losses.append(np.sum((x @ w - y) ** 2) / max(len(y), 1))
        gradient = np.sum(2 * (x @ w - y)[:, None] * x, axis=0) / max(len(y), 1)
        norms.append(np.linalg.norm(gradient))
        if step not in steps:
            continue
        count += 1
        gradient = gradient * min(1.0, 1.0 / norms[-1])
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        w = w - 0.1 * (first / (1 - 0.9**count)) / (np.sqrt(second / (1 - 0.999**count)) + 1.0)
    return (w, first, second), np.array(losses), np.array(norms)


def assert_state(state, expected, num_steps):
    """The parameters and moments of the loop, after so many steps."""
    adam = state.opt_state[1]
    for ours, numbers in zip((state.params, adam.mu, adam.nu), expected, strict=True):
        np.testing.assert_allclose(ours["policy"], numbers, atol=1e-5)
    assert adam.count == num_steps


@pytest.mark.parametrize(
    ("mode", "num_devices", "micro_batches"),
    [("shard_map", 1, 1), ("shard_map", 1, 8), ("shard_map", 4, 2), ("pmap", 2, 1)],
)
def test_update_equals_a_loop_on_any_number_of_devices_and_micro_batches(mode, num_devices, micro_batches):
    batches = mini_batches(ratio=[1.0, 12.0, 0.9, 1.1])  # without rules no ratio is too large
    state, stats = run_update(batches, num_devices, mode, micro_batches)
    expected, losses, norms = loop_update(batches)
    assert_state(state, expected, 4)
    # Averages over all steps, not over a part of a larger array.
    np.testing.assert_allclose(stats["loss/total_avg"], np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(stats["val/ratio"], 3.75, rtol=1e-6)
    for name in ("grad_norm", "policy/grad_norm"):  # before clipping
        np.testing.assert_allclose(stats[name], np.mean(norms), rtol=1e-5)
    np.testing.assert_allclose(stats["lr"], 0.1, rtol=1e-6)
    assert "lr_value" not in stats
    assert state.step == 1
    assert (stats["policy/nonfinite_steps"], stats["policy/skipped_steps"], stats["policy/bad_updates"]) == (0, 0, 0)


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


RULES = {"ratio_threshold": 10.0, "max_policykl": 1.5}
NAN, INF = np.nan, np.inf
LEFT_OUT = {  # steps that are taken, steps that count in averages, of the others how many are bad and how many skipped
    "gradient of the first": ({"place": (0, 0, 2, 1), "value": NAN}, [1, 2, 3], [1, 2, 3], 1, 0),
    # In the last row, of the last micro-batch of the last device.
    "gradient on one device": ({"place": (2, 7, 0, 0), "value": INF}, [0, 1, 3], [0, 1, 3], 1, 0),
    "loss alone": ({"offset": [0, INF, 0, 0], "ratio": [1, 1.5, 0.7, 2]}, [0, 2, 3], [0, 2, 3], 1, 0),
    "all": ({"offset": [NAN] * 4}, [], [], 4, 0),
    # A gradient of 0 is not nothing to do: Adam's moments would still move the parameters.
    "no token": ({"empty": 2}, [0, 1, 3], [0, 1, 3], 0, 0),
    "no token at first": ({"empty": 0}, [1, 2, 3], [1, 2, 3], 0, 0),
    "ratio": ({"ratio": [1.0, 10.5, 2.0, 11.0]}, [0, 2], [0, 1, 2, 3], 0, 2),
    # The step that went too far is measured, those after it are not.
    "early stop": ({"policykl": [0.1, 1.6, 0.2, 0.0]}, [0], [0, 1], 0, 3),
    "stop at once": ({"policykl": [2.0, 0, 0, 0]}, [], [0], 0, 4),
    "policykl": ({"policykl": [0, NAN, 0, 0], "offset": [0, NAN, 0, 0]}, [0, 2, 3], [0, 2, 3], 1, 0),
    # Counted once: above the threshold and not finite; the first too far; after it.
    "two reasons": (
        {"ratio": [1, 30, 1, 1], "policykl": [0, 0, 2, 0], "offset": [0, NAN, 0, NAN]},
        [0],
        [0, 2],
        0,
        3,
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
@pytest.mark.parametrize(("mode", "num_devices", "micro_batches"), [("shard_map", 1, 1), ("pmap", 4, 2)])
def test_update_leaves_out_what_is_not_finite_or_empty_or_against_a_rule(case, mode, num_devices, micro_batches):
    given, steps, counted, nonfinite, skipped = LEFT_OUT[case]
    batches = mini_batches(**given)
    before = start(bad_updates=2)
    state, stats = run_update(batches, num_devices, mode, micro_batches, has_rules=True, state=before)
    expected, losses, norms = loop_update(batches, steps)
    assert_state(state, expected, len(steps))
    assert (stats["policy/nonfinite_steps"], stats["policy/skipped_steps"]) == (nonfinite, skipped)
    assert state.controls.bad_updates == stats["policy/bad_updates"] == (3 if nonfinite else 0)
    ratios, policykls = batches[0]["ratio"][:, 0], batches[0]["policykl"][:, 0]
    means = {"loss/total_avg": losses, "grad_norm": norms, "val/ratio": ratios, "policy/policykl_avg": policykls}
    for name, values in means.items():  # 0 would be a value
        mean = np.mean(values[counted]) if counted else NAN
        np.testing.assert_allclose(stats[name], mean, rtol=1e-5, atol=1e-6, err_msg=name)
    variance = np.var(ratios[counted], ddof=1) if len(counted) > 1 else 0.0
    np.testing.assert_allclose(stats["val/ratio_var"], variance, rtol=1e-5, atol=1e-9)
    # 0 would say that sampler and learner disagree.
    first = (ratios[0], policykls[0] / 2) if 0 in counted else (NAN, NAN)
    np.testing.assert_allclose([stats["val/ratio_first"], stats["policy/approxkl_avg_first"]], first, rtol=1e-6)


def test_update_counts_bad_updates_in_a_row_and_starts_again_after_a_good_one():
    state, seen = start(), []
    for offset, policykl in ((0, 0), (NAN, 0), (INF, 0), (0, 2), (NAN, 0)):
        batches = mini_batches(offset=[0, 0, 0, offset], policykl=[policykl, 0, 0, 0])
        state, stats = run_update(batches, has_rules=True, state=state)
        assert stats["policy/skipped_steps"] == (4 if policykl else 0)  # of this update alone
        seen.append(int(state.controls.bad_updates))
    assert seen == [0, 1, 2, 0, 1]
    assert state.step == 5
    state, stats = run_update(mini_batches(), state=start()._replace(controls=None))
    assert state.controls is None  # of what learns without rewards
    assert "policy/bad_updates" not in stats


def test_update_does_not_compute_what_comes_after_an_early_stop():
    computed = []

    def loss(params, rows, weights):
        jax.debug.callback(lambda: computed.append(1))
        return regression_loss(params, rows, weights)

    rows, mask = mini_batches(policykl=[0, 2, 0, 0])
    batches = jax.tree.map(lambda x: jnp.asarray(x)[:, None], (rows, ops.mean_weights(mask, (-2, -1))))
    options = {"optimizer": optimizer.make_optimizer(CONFIG), "rates": optimizer.make_learning_rates(CONFIG, 10)}
    for skip_rules, count in (({"max_policykl": 1.5}, 2), ({}, 4)):
        computed.clear()
        jax.jit(partial(update.update, loss=loss, **skip_rules, **options))(start(), batches)
        jax.effects_barrier()
        assert len(computed) == count


MODEL = dataclasses.replace(device_modes.MODEL, initializer_range=0.4)
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
    """Packed sequences with junk after their ends, and the completions in them."""
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


def loss_of(algorithm, **ppo):
    return partial(
        update.policy_gradient_loss,
        model=MODEL,
        value_model=MODEL,
        rl=RLConfig(algorithm=algorithm, **COEFFICIENTS | ppo),
        temperature=TEMPERATURE,
    )


def weights_of(batch):
    level = "completion" if batch.advantages.ndim < batch.logprobs.ndim else "token"
    return losses.loss_weights(batch, level, "bnpo", batch.logprobs.shape[-1])


@cache  # compiled programs are kept
def compiled(algorithm):
    return jax.jit(partial(update.gradients, loss_of(algorithm), axis_name=None))


def cut(mini_batch, micro_batches):
    """The arrays [1, b, ...] of a mini-batch in this many parts."""
    return jax.tree.map(lambda x: x[0].reshape(micro_batches, -1, *x.shape[2:]), mini_batch)


def gradients(params, batch, micro_batches=1):
    """Gradients and statistics of a mini-batch [1, b, ...] in this many parts; its token weights add up to 1."""
    algorithm = "rloo" if batch.values is None else "ppo"
    result = compiled(algorithm)(params, cut((batch, weights_of(batch)), micro_batches))
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
    """Loss, its terms, and means of ratios, completion by completion and token by token."""
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
            weight = 1 / LENGTHS.sum() if importance_sampling_level == "token" else 1 / (8 * count)
            ratios.append(weight * ratio)
            clipped.append(weight * (kept > plain))
    return {
        "loss/policy_avg": sums[0],
        "loss/kl_avg": sums[1],
        "loss/positive_nll_avg": sums[2],
        "loss/total_avg": sums[0] + 0.4 * sums[1] + 0.2 * sums[2] - 0.3 * entropies[MASK].mean(),
        "val/ratio": sum(ratios),
        "policy/clipfrac_avg": sum(clipped),
    }


@pytest.mark.parametrize("name", GRPO)
def test_the_loss_of_grpo_equals_a_loop(params, predicted, name):
    settings = GRPO[name]
    batch = trajectories_for("ppo", predicted)
    reference = np.where(MASK, predicted[0] + 0.4 * np.random.default_rng(9).normal(size=MASK.shape), 0)
    batch = Trajectories(*batch[:4], ref_logprobs=jnp.asarray(reference[None], jnp.float32), positive=POSITIVE[None])
    rl = RLConfig(algorithm="grpo", **COEFFICIENTS | {"kl_coef": 0.4, "positive_nll": 0.2} | settings)
    weights = losses.loss_weights(batch, rl.ratio_level, rl.mean_of_losses, 5)
    loss = loss_of("grpo", kl_coef=0.4, positive_nll=0.2, **settings)
    _, stats = jax.jit(loss)({"policy": params["policy"]}, *jax.tree.map(lambda x: x[0], (batch, weights)))
    for key, value in loop_grpo(predicted, batch, **settings).items():
        np.testing.assert_allclose(stats[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    assert stats["policy/clipfrac_avg"] > 0.1


def test_gradients_of_micro_batches_add_up_to_those_of_the_mini_batch(params, predicted):
    batch = trajectories_for("ppo", predicted)
    (one, one_stats), (several, several_stats) = (gradients(params, batch, m) for m in (1, 4))
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(one))
    assert largest > 0.1
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-6 * max(1.0, largest)), several, one)
    for name, value in one_stats.items():
        np.testing.assert_allclose(several_stats[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


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


def test_an_update_holds_one_sum_of_gradients_and_no_copy_of_the_moments():
    layers = {f"layer_{i}": jnp.ones((256, 256)) for i in range(16)}
    size = sum(x.nbytes for x in layers.values())

    def loss(params, x, weights):
        for layer in params["policy"].values():
            x = jnp.tanh(x @ layer)
        return ops.weighted_sum(x.sum(-1), weights), {"loss": jnp.float32(0)}

    program = partial(
        update.update,
        loss=loss,
        optimizer=optimizer.make_optimizer(CONFIG),
        rates=optimizer.make_learning_rates(CONFIG, 10),
        axis_name=DATA,
    )
    parallel = DataParallel("shard_map", jax.local_devices()[:1])
    wide = dataclasses.replace(CONFIGS["llama"], hidden_size=512)
    options = update.compiler_options([wide])
    compiled = parallel.map(program, (None, 2), (None, None), donate=(0,), compiler_options=options)
    batch = jnp.ones((1, 4, 8, 256)), jnp.full((1, 4, 8), 1 / 32)
    held = compiled.lower(start({"policy": layers}), batch).compile().memory_analysis().temp_size_in_bytes
    assert held < 1.3 * size
