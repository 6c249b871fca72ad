"""Options of the policy's loss and of its advantages, each against a plain loop in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import data, models
from jaxppo.config import OptimizerConfig, TrainConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.errors import ConfigError
from jaxppo.parallel.devices import DATA, DataParallel
from jaxppo.rl import losses, optimizer, trajectories, update
from jaxppo.rl.ppo import PPO
from jaxppo.types import Sequences, Trajectories
from tests.device_modes import EOS, MODEL, PAD

from .test_trajectories import LENGTHS, MASK, ROWS, SCORES, inputs, make, make_config

COUNTS = np.array([[3, 1, 4], [2, 0, 1]])  # two mini-batches of three completions, one of them without a token
REAL = np.arange(4) < COUNTS[..., None]
ONES = np.ones_like(REAL, np.float32)


def batch_of(mask, advantages, **rest):
    ids = np.zeros(mask.shape, np.int32)
    sequences = Sequences(ids, np.ones(mask.shape[:-1], np.int32), ids, jnp.asarray(mask))
    return Trajectories(sequences, jnp.zeros(mask.shape), jnp.zeros(mask.shape), jnp.asarray(advantages), **rest)


# --- means over tokens


def loop_weights(loss_type, length):
    """The share of every token, from the definition of each mean."""
    expected = np.zeros(REAL.shape)
    steps, rows, _ = REAL.shape
    for step in range(steps):
        in_step, in_all = COUNTS[step].sum(), COUNTS.sum()
        for row in range(rows):
            for t in range(COUNTS[step, row]):
                expected[step, row, t] = {
                    "grpo": 1 / COUNTS[step, row] / rows,
                    "bnpo": 1 / in_step,
                    "dr_grpo": 1 / (rows * length),
                    "dapo": 1 / (in_all / steps),
                    "cispo": 1 / (in_all / steps),
                }[loss_type]
    return expected


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_loss_weights_equal_a_loop(loss_type, level):
    weights = losses.loss_weights(batch_of(REAL, ONES), level, loss_type, 7)
    np.testing.assert_allclose(weights.policy, loop_weights(loss_type, 7), rtol=1e-6)
    np.testing.assert_allclose(weights.tokens, loop_weights("bnpo", 7), rtol=1e-6)
    of_sequences = loop_weights("grpo", 7) * COUNTS.shape[1] / np.sum(COUNTS > 0, axis=1)[:, None, None]
    logged = loop_weights("bnpo", 7) if level == "token" else of_sequences
    np.testing.assert_allclose(weights.ratios, logged, rtol=1e-6)
    assert weights.values is weights.positive is None


@pytest.mark.parametrize("level", ["token", "sequence", "completion"])
def test_a_completion_without_tokens_takes_nothing_from_the_mean_ratio(level):
    real = REAL.copy()
    real[0, 0] = False
    weights = losses.loss_weights(batch_of(real, ONES if level != "completion" else ONES[..., 0]), level, "bnpo", 7)
    np.testing.assert_allclose(np.sum(weights.ratios, axis=(1, 2) if level != "completion" else 1), 1.0, rtol=1e-6)


def test_loss_weights_of_completions_count_every_one_alike():
    weights = losses.loss_weights(batch_of(REAL, ONES[..., 0]), "completion", "bnpo", 7)
    np.testing.assert_allclose(weights.policy, np.full((2, 3), 1 / 3), rtol=1e-6)
    np.testing.assert_array_equal(weights.ratios, weights.policy)


def test_loss_weights_of_positive_completions_are_the_mean_over_their_tokens():
    positive = np.array([[True, False, True], [False, True, False]])
    weights = losses.loss_weights(batch_of(REAL, ONES, positive=jnp.asarray(positive)), "token", "dapo", 7)
    expected = np.zeros(REAL.shape)
    expected[0, 0, :3] = expected[0, 2, :4] = 1 / 7
    np.testing.assert_allclose(weights.positive, expected, rtol=1e-6)  # the second has no token of a positive one


# --- ratios and clips


@pytest.mark.parametrize("level", ["token", "sequence", "completion"])
def test_log_ratio_at_equals_a_loop(level):
    mask = REAL[0]
    log_ratio = np.where(mask, np.random.default_rng(0).normal(size=mask.shape), 0).astype(np.float32)
    found = losses.log_ratio_at(level, jnp.asarray(log_ratio), jnp.asarray(mask))
    for row, count in enumerate(COUNTS[0]):
        own = [float(x) for x in log_ratio[row, :count]]
        if level == "completion":
            np.testing.assert_allclose(found[row], sum(own), rtol=1e-5)
        else:
            expected = own if level == "token" else [sum(own) / len(own)] * count
            np.testing.assert_allclose(found[row, :count], expected, rtol=1e-5)


RATIOS = np.array([0.3, 0.9, 1.1, 1.3, 2.0, 6.0, 0.3, 0.9, 1.1, 1.3, 2.0, 6.0])
ADVANTAGES = np.array([2.0] * 6 + [-2.0] * 6)
SHARES = jnp.full(12, 1 / 12)


@pytest.mark.parametrize("delta", [None, 1.5, 3.0])
def test_policy_loss_with_a_second_clip_equals_a_loop(delta):
    expected, clipped = 0.0, 0
    for ratio, advantage in zip(RATIOS, ADVANTAGES, strict=True):
        kept = -advantage * min(max(ratio, 0.8), 1.25)
        plain = -advantage * (ratio if delta is None else min(ratio, delta))
        expected, clipped = expected + max(plain, kept) / 12, clipped + (kept > plain)
    args = jnp.log(RATIOS), jnp.asarray(ADVANTAGES, jnp.float32), SHARES, 0.2, 0.25, delta
    result = losses.policy_loss(*args)
    np.testing.assert_allclose(result.loss, expected, rtol=1e-5)
    np.testing.assert_allclose(result.clipfrac, clipped / 12, rtol=1e-6)
    gradient = jax.grad(lambda x: losses.policy_loss(x, *args[1:]).loss)(args[0])
    beyond = np.array([delta is not None and r > delta for r in RATIOS]) & (ADVANTAGES < 0)
    free = ((ADVANTAGES > 0) & (RATIOS < 1.25)) | ((ADVANTAGES < 0) & (RATIOS > 0.8) & ~beyond)
    np.testing.assert_allclose(gradient, np.where(free, -ADVANTAGES * RATIOS / 12, 0), rtol=1e-5, atol=1e-7)


def test_what_is_told_of_ratios_has_its_own_weights():
    means = jnp.asarray(np.arange(12) / 66, jnp.float32)
    result = losses.policy_loss(jnp.log(RATIOS), jnp.asarray(ADVANTAGES, jnp.float32), SHARES, 0.2, means=means)
    np.testing.assert_allclose(result.ratio, np.sum(RATIOS * np.arange(12)) / 66, rtol=1e-5)


def test_the_capped_loss_weighs_the_gradient_of_the_log_probabilities():
    logprobs, means = jnp.log(jnp.linspace(0.1, 0.9, 12)), jnp.asarray(np.arange(12) / 66, jnp.float32)
    args = jnp.asarray(ADVANTAGES, jnp.float32), SHARES, 1.5, means
    of = lambda ratio, logprobs: losses.capped_policy_loss(ratio, logprobs, *args)  # noqa: E731
    result = of(jnp.log(RATIOS), logprobs)
    expected = -ADVANTAGES * np.minimum(RATIOS, 1.5) / 12
    np.testing.assert_allclose(result.loss, np.sum(expected * np.asarray(logprobs)), rtol=1e-5)
    both = jax.grad(lambda *x: of(*x).loss, argnums=(0, 1))(jnp.log(RATIOS), logprobs)
    np.testing.assert_array_equal(both[0], np.zeros(12))
    np.testing.assert_allclose(both[1], expected, rtol=1e-5)
    over = [(r > 1.5 and a > 0) * n for n, (r, a) in enumerate(zip(RATIOS, ADVANTAGES, strict=True))]
    np.testing.assert_allclose(result.clipfrac, sum(over) / 66, rtol=1e-5)


# --- advantages


def loop_gae(rewards, values, lam):
    advantages = np.zeros(rewards.shape)
    for row, count in enumerate(LENGTHS):
        following = 0.0
        for t in reversed(range(count)):
            behind = values[row, t + 1] if t + 1 < count else 0.0
            following = rewards[row, t] + 0.9 * behind - values[row, t] + 0.9 * lam * following
            advantages[row, t] = following
    return advantages


@pytest.mark.parametrize(
    ("changes", "step", "lam_value"),
    [
        ({}, 0, 0.8),
        ({"lam_value": 1.0}, 0, 1.0),
        ({"lam_value": 0.3}, 5, 0.3),
        ({"value_warmup_updates": 2}, 1, 1.0),
        ({"value_warmup_updates": 2}, 2, 0.8),
        ({"value_warmup_updates": 2, "lam_value": 0.5}, 1, 1.0),
        ({"value_warmup_updates": 2, "lam_value": 0.5}, 2, 0.5),
    ],
    ids=str,
)
def test_returns_have_a_lambda_of_their_own(changes, step, lam_value):
    _, result, stats = make(make_config(**changes), step=step)
    _, plain, plain_stats = make(make_config())
    values = np.where(MASK, inputs()[0].values, 0).astype(np.float64)
    expected = np.where(MASK, loop_gae(np.asarray(plain.rewards, np.float64), values, lam_value) + values, 0)
    np.testing.assert_allclose(result.returns, expected, atol=1e-5)
    np.testing.assert_array_equal(result.advantages, plain.advantages)
    residual = (expected - values)[MASK]
    np.testing.assert_allclose(stats["value/explained_variance"], 1 - residual.var() / expected[MASK].var(), rtol=1e-4)
    assert plain_stats.keys() == stats.keys()


RECOMPUTED = {"logprobs": "recompute", "importance_cap": 1.2}


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "rloo"])
def test_importance_weights_are_truncated_ratios_of_learner_and_sampler(algorithm):
    scored, rollout, _ = inputs()
    gap = np.where(MASK, np.random.default_rng(1).normal(size=MASK.shape) * 0.2, 0).astype(np.float32)
    sampled = rollout._replace(logprobs=rollout.logprobs - gap)
    settings = {"algorithm": algorithm, "num_generations": 2, "logprobs": "recompute"}
    of = lambda **more: make(make_config(**settings, **more), rollout=sampled)  # noqa: E731
    (_, plain, stats), (_, weighed, _) = of(), of(importance_cap=1.2)
    before, after = np.asarray(plain.advantages, np.float64), np.asarray(weighed.advantages)
    for row, count in enumerate(LENGTHS):
        own = [float(x) for x in gap[row, :count]]
        if algorithm == "rloo":
            np.testing.assert_allclose(after[row], min(np.exp(sum(own)), 1.2) * before[row], atol=1e-5)
        else:
            expected = [min(np.exp(x), 1.2) * before[row, t] for t, x in enumerate(own)]
            np.testing.assert_allclose(after[row, :count], expected, atol=1e-5)
    assert (np.exp(gap[MASK]) > 1.2).any()
    np.testing.assert_allclose(stats["policy/sampler_gap_avg"], np.abs(gap[MASK]).mean(), rtol=1e-4)
    np.testing.assert_allclose(stats["policy/sampler_gap_max"], np.abs(gap).max(), rtol=1e-4)
    outside = np.abs(np.exp(gap[MASK].astype(np.float64)) - 1) > 0.1
    np.testing.assert_allclose(stats["policy/sampler_outside"], outside.mean(), rtol=1e-5)
    assert scored.logprobs is not None


def high_entropy(devices=None, share=0.4, **changes):
    """Advantages, and those without the option."""
    entropy = np.random.default_rng(2).uniform(0.1, 3.0, MASK.shape).astype(np.float32)
    entropy[~MASK] = 9.0
    config = make_config(algorithm="grpo", num_generations=2, top_entropy_quantile=share, **changes)
    program = None
    if devices:
        parallel = DataParallel("shard_map", jax.local_devices()[:devices])
        program = lambda config: parallel.map(  # noqa: E731
            lambda *args: trajectories.make_trajectories(*args, config=config, axis_name=DATA),
            row_axes=(None, None, 0, 0, 0, 0, 0),
            out_axes=(None, 0, None),
        )
        mapped = program(config)
        program = lambda *args: mapped(*parallel.put(args[:2]), *parallel.put((*args[2:], None), 0))  # noqa: E731
    _, some, _ = make(config, program=program, entropy=entropy)
    _, all_, _ = make(replace(config, top_entropy_quantile=1.0))
    return np.asarray(some.advantages), np.asarray(all_.advantages), entropy


@pytest.mark.parametrize("devices", [None, 1, 4])
def test_only_tokens_of_the_highest_entropy_keep_their_advantage(devices):
    some, every, entropy = high_entropy(devices)
    lowest = np.quantile(entropy[MASK].astype(np.float64), 0.6)
    np.testing.assert_allclose(some, np.where(MASK & (entropy >= lowest), every, 0), atol=1e-6)
    kept = (entropy[MASK] >= lowest).mean()
    assert 0.35 < kept < 0.5


def test_of_truncated_completions_that_are_masked_no_entropy_counts():
    some, every, entropy = high_entropy(mask_truncated_completions=True)
    learned = MASK & inputs()[1].ended[:, None]
    lowest = np.quantile(entropy[learned].astype(np.float64), 0.6)
    np.testing.assert_allclose(some, np.where(learned & (entropy >= lowest), every, 0), atol=1e-6)


def test_positive_completions_are_those_with_a_score_of_1_before_it_is_changed():
    changes = {"positive_nll": 0.1, "missing_eos_penalty": 5.0, "reward_clip_range": (0.0, 0.5)}
    _, result, _ = make(make_config(**changes))
    np.testing.assert_array_equal(result.positive, SCORES >= 1.0)
    assert 0 < np.sum(result.positive) < ROWS
    _, result, _ = make(make_config(**changes), scores=np.where(np.arange(ROWS) == 1, np.nan, SCORES))
    np.testing.assert_array_equal(result.positive, (SCORES >= 1.0) & (np.arange(ROWS) != 1))


# --- scores in parts


def parts_with_gaps():
    """Parts, some of them 0, and NaN where there is none; they leave something over of every other score."""
    rng = np.random.default_rng(4)
    parts = np.where(MASK & (rng.random(MASK.shape) < 0.6), rng.normal(size=MASK.shape), np.nan)
    parts[0, 1] = 0.0
    parts[5] = np.nan  # a score as a whole
    whole, last = np.arange(ROWS) % 2 == 0, LENGTHS - 1
    parts[whole, last[whole]] = np.nan
    parts[whole, last[whole]] = SCORES[whole] - np.nansum(parts, axis=1)[whole]
    return parts.astype(np.float32)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("num_generations", [2, 4])
def test_grpo_compares_parts_with_those_of_the_group_and_sums_up_what_is_to_come(scale, num_generations):
    parts = parts_with_gaps()
    config = make_config(algorithm="grpo", num_generations=num_generations, scale_rewards=scale)
    scores = np.where(np.arange(ROWS) == 5, 0.0, SCORES).astype(np.float32)
    _, result, stats = make(config, parts=parts, scores=scores)
    rows = []  # of each row its steps: (token, reward)
    for row, count in enumerate(LENGTHS):
        steps = {t: float(parts[row, t]) for t in range(count) if not np.isnan(parts[row, t])}
        over = float(scores[row]) - sum(steps.values())
        if abs(over) > 1e-6 or not steps:
            steps[count - 1] = steps.get(count - 1, 0.0) + over
        rows.append(steps)
    expected = np.zeros(MASK.shape)
    for row, count in enumerate(LENGTHS):
        first = row // num_generations * num_generations
        group = [reward for steps in rows[first : first + num_generations] for reward in steps.values()]
        among = [reward for steps in rows for reward in steps.values()] if scale == "batch" else group
        divisor = 1.0 if scale == "none" else np.std(among, ddof=1) + 1e-4
        for t in range(count):
            left = [reward for place, reward in rows[row].items() if place >= t]
            expected[row, t] = sum((reward - np.mean(group)) / divisor for reward in left)
    np.testing.assert_allclose(result.advantages, expected, atol=1e-4)
    np.testing.assert_allclose(stats["policy/advantages_std"], expected[MASK].std(ddof=1), rtol=1e-3)
    np.testing.assert_array_equal(result.rewards, scores)


def test_grpo_of_scores_in_one_part_at_the_end_is_that_of_whole_scores():
    parts = np.full(MASK.shape, np.nan, np.float32)
    parts[np.arange(ROWS), LENGTHS - 1] = SCORES
    config = make_config(algorithm="grpo", num_generations=4)
    (_, in_parts, _), (_, whole, _) = make(config, parts=parts), make(config)
    np.testing.assert_allclose(in_parts.advantages, whole.advantages, atol=1e-5)


def test_grpo_of_parts_learns_nothing_from_completions_without_a_score():
    scores = np.where(np.arange(ROWS) < 3, np.nan, SCORES).astype(np.float32)
    _, result, _ = make(make_config(algorithm="grpo", num_generations=2), scores=scores, parts=parts_with_gaps())
    assert not np.any(result.advantages[:3]) and np.all(np.isfinite(result.advantages))


# --- a value model that learns alone

FLAGS = (
    "--batch_size 8 --total_episodes 32 --response_length 6 --learning_rate 0.01 --warmup_steps 0 --kl_coef 0 "
    "--num_ppo_epochs 2"
)


@pytest.mark.parametrize("value_model", ["separate", "shared"])
def test_the_value_model_learns_alone_in_the_first_updates(value_model):
    flags = f"{FLAGS} --value_warmup_updates 2 --value_model {value_model} --lr_scheduler_type constant"
    config = parse_cli(TrainConfig, "train", flags.split())
    ppo = PPO(config, MODEL, EOS, PAD, DataParallel(devices=jax.devices()[:1]))
    policy = models.init_params(MODEL, jax.random.key(0))
    state, prompts = ppo.init_state(policy), data.pad_left([[5, 6], [7], [3, 4], [9]] * 2, 4, PAD)
    moved = []
    for step in range(3):
        before = jax.device_get(state.params)
        rollout = ppo.generate(state, prompts, step)
        sequences = ppo.pack(prompts, rollout)
        scored = ppo.score(state, None, sequences, rollout)
        state, batch, _ = ppo.make_trajectories(state, scored, rollout, sequences, SCORES)
        state, stats = ppo.update(state, batch, step)
        after = jax.device_get(state.params)
        differ = lambda name: any(map(np.any, jax.tree.leaves(jax.tree.map(np.not_equal, before[name], after[name]))))  # noqa: B023, E731
        moved.append((differ("policy"), differ("value"), float(stats["lr"])))
    assert moved == [(False, True, 0.0), (False, True, 0.0), (True, True, pytest.approx(0.01))]


def test_the_schedule_of_the_policy_begins_behind_the_updates_of_the_value_model():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=2, lr_scheduler_type="linear")
    alone, plain = optimizer.make_learning_rates(config, 10, 3), optimizer.make_learning_rates(config, 7)
    np.testing.assert_allclose([alone.policy(n) for n in range(3)], 0.0)
    np.testing.assert_allclose([alone.policy(n) for n in range(3, 10)], [plain.policy(n) for n in range(7)], rtol=1e-6)
    whole = optimizer.make_learning_rates(config, 10)
    np.testing.assert_allclose([alone.value(n) for n in range(10)], [whole.value(n) for n in range(10)], rtol=1e-6)


# --- settings


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--algorithm grpo --loss_type cispo", "cliprange_high: expected the most that a ratio may be"),
        ("--algorithm grpo --loss_type cispo --epsilon_high 5 --delta 9", "delta: expected None with loss_type cispo"),
        ("--delta 1.2", "delta: expected more than 1.2, where the clip ends, got 1.2"),
        ("--algorithm rloo --loss_type dapo", "loss_type: expected None with algorithm rloo"),
        ("--algorithm rloo --top_entropy_quantile 0.2", "top_entropy_quantile: expected 1.0 with algorithm rloo"),
        ("--scale_rewards none", "scale_rewards: expected group with algorithm ppo"),
        ("--importance_sampling_level sequence", "importance_sampling_level: expected token with algorithm ppo"),
        ("--algorithm grpo --adap_kl_ctrl True --kl_target 1", "adap_kl_ctrl: expected False with algorithm grpo"),
        ("--algorithm rloo --reward_level step", "reward_level: expected outcome with algorithm rloo"),
        ("--algorithm grpo --lam_value 1", "lam_value: expected None with algorithm grpo"),
        ("--algorithm grpo --value_warmup_updates 1", "value_warmup_updates: expected 0 with algorithm grpo"),
        ("--algorithm grpo --num_generations 1", "num_generations: expected at least 2 with algorithm grpo, got 1"),
        ("--top_entropy_quantile 0", "top_entropy_quantile: expected a share above 0, at most 1, got 0.0"),
        ("--lam_value 1.5", "lam_value: expected"),
        ("--positive_nll nan", "positive_nll: expected"),
        ("--importance_cap 2", "logprobs: expected recompute with importance_cap"),
        ("--importance_cap 0 --logprobs recompute", "importance_cap: expected"),
        ("--value_warmup_updates -1", "value_warmup_updates: expected at least 0, got -1"),
        ("--total_episodes 64 --value_warmup_updates 1", "value_warmup_updates: expected fewer than the 1 updates"),
        (
            "--algorithm grpo --importance_sampling_level sequence --top_k 5",
            "logprobs: expected recompute with algorithm grpo and top_k",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_one_line(flags, message):
    with pytest.raises(ConfigError) as error:
        parse_cli(TrainConfig, "train", flags.split())
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_trl_spellings_are_other_names_of_flags():
    flags = "--algorithm grpo --beta 0.3 --epsilon 0.1 --epsilon_high 0.28 --num_iterations 2"
    rl = parse_cli(TrainConfig, "train", flags.split()).rl
    assert (rl.kl_coef, rl.cliprange, rl.cliprange_high, rl.num_ppo_epochs, rl.group_size) == (0.3, 0.1, 0.28, 2, 8)
    assert (rl.mean_of_losses, rl.ratio_level, rl.scale_rewards) == ("dapo", "token", "group")


def test_ppo_takes_the_means_and_clips_of_grpo():
    rl = parse_cli(TrainConfig, "train", ["--loss_type", "dr_grpo", "--delta", "3"]).rl
    assert (rl.mean_of_losses, rl.delta) == ("dr_grpo", 3.0)
    assert update.SKIP_NOTHING.ratio_threshold is None
