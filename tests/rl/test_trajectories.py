"""From scores to trajectories against plain loops in float64, for PPO, RLOO and GRPO, on any number of devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.parallel.devices import DATA, DataParallel
from jaxppo.rl import trajectories
from jaxppo.types import Controls, ModelOutputs, Rollout, ScoreMoments, Sequences

ROWS, LENGTH = 8, 5
LENGTHS = np.array([3, 4, 5, 2, 5, 1, 1, 2])  # the first of four devices has neither the shortest nor the longest
ENDED = np.array([True, True, False, False, True, True, False, True])  # rows 3 and 6 were cut at limits of their own
MASK = np.arange(LENGTH)[None, :] < LENGTHS[:, None]
PROMPTS = np.array([3, 3, 5, 5, 4, 4, 2, 2], np.int32)
SCORES = np.array([0.37, 1.0, 0.25, -0.5, 0.6, 0.6, 1.0, 0.2], np.float32)  # rows 4 and 5 are a flat group of two
EARLIER = np.array([2.0, -1.0, 0.5], np.float32)
ENTROPY = np.where(MASK, np.random.default_rng(2).uniform(0.1, 3.0, MASK.shape), 9.0).astype(np.float32)
SETTINGS = {"batch_size": ROWS, "response_length": LENGTH, "gamma": 0.9, "lam": 0.8, "kl_coef": 0.1}


def make_config(**changes):
    return replace(TrainConfig(), **SETTINGS | changes)


def inputs(padding=0, junk=0.0):
    """ModelOutputs, Rollout and Sequences of ragged rows; outside the masks, and in more columns, lies junk."""
    rng = np.random.default_rng(3)
    logprobs, reference, values, full_kl = rng.normal(size=(4, ROWS, LENGTH)).astype(np.float32)
    reference -= np.float32(0.3)

    def dirty(x, real):
        return np.pad(np.where(real, x, np.float32(junk)), ((0, 0), (0, padding)), constant_values=junk)

    # The value after the last token is a real one.
    states = np.arange(LENGTH)[None, :] <= LENGTHS[:, None]
    full_kl = dirty(np.abs(full_kl), MASK)
    scored = ModelOutputs(dirty(logprobs, MASK), dirty(reference, MASK), dirty(values, states), full_kl)
    mask = np.pad(MASK, ((0, 0), (0, padding)))
    ids = np.zeros(mask.shape, np.int32)
    rollout = Rollout(ids, mask, scored.logprobs, ENDED)
    return scored, rollout, Sequences(np.zeros((ROWS, 11 + padding), np.int32), PROMPTS, ids, mask)


def controls_after(scores=EARLIER, kl_coef=0.1):
    """Controls with the moments of these scores."""
    mean = float(np.mean(scores)) if len(scores) else 0.0
    numbers = len(scores), mean, float(np.sum((scores.astype(np.float64) - mean) ** 2))
    return Controls(jnp.float32(kl_coef), ScoreMoments(*map(jnp.float32, numbers)), jnp.int32(2))


def make(
    config,
    controls=None,
    scores=SCORES,
    padding=0,
    junk=0.0,
    program=None,
    rollout=None,
    **scored_changes,
):
    """(controls, trajectories, stats) of the recorded rollout; a full KL only where the configuration asks for one."""
    scored, recorded, sequences = inputs(padding, junk)
    unused = {} if config.rl.kl_estimator == "full" else {"full_kl": None}
    unused |= {} if config.rl.algorithm == "ppo" else {"values": None}
    if config.rl.top_entropy_quantile < 1:
        unused["entropy"] = np.pad(ENTROPY, ((0, 0), (0, padding)), constant_values=junk)
    scored = scored._replace(**unused | scored_changes)
    controls = controls_after() if controls is None else controls
    # Not compiled, unless a test gives a compiled program: compilation would take most of the time.
    program = partial(trajectories.make_trajectories, config=config) if program is None else program
    rollout = recorded if rollout is None else rollout
    return program(controls, *jax.tree.map(jnp.asarray, (scored, rollout, sequences, scores)))


def loop_gae(rewards, values, lengths, gamma, lam):
    """Advantages and returns row by row, from the last state to the first, in float64."""
    advantages, returns = np.zeros(rewards.shape), np.zeros(rewards.shape)
    for row, length in enumerate(lengths):
        following = 0.0
        for t in reversed(range(length)):
            next_value = values[row, t + 1] if t + 1 < length else 0.0
            delta = rewards[row, t] + gamma * next_value - values[row, t]
            following = delta + gamma * lam * following
            advantages[row, t] = following
            returns[row, t] = following + values[row, t]
    return advantages, returns


def final_scores(ppo, scores, history):
    """Row by row: scale, clip, penalise; NaN where there is no score."""
    everything = np.concatenate([history, scores[~np.isnan(scores)]]).astype(np.float64)
    final = []
    for score, ended in zip(scores.astype(np.float64), ENDED, strict=True):
        if ppo.score_scaling != "none":
            score = (score - (everything.mean() if ppo.score_scaling == "norm" else 0.0)) / everything.std(ddof=1)
        if ppo.reward_clip_range is not None:
            score = min(max(score, ppo.reward_clip_range[0]), ppo.reward_clip_range[1])
        if ppo.missing_eos_penalty is not None and not ended:
            score -= ppo.missing_eos_penalty
        final.append(score)
    return np.array(final)


def token_kls(scored, estimator):
    """Estimates of every token, in float64."""
    d = scored.logprobs.astype(np.float64) - scored.ref_logprobs
    by_name = {"k1": d, "k2": d**2 / 2, "k3": np.exp(-d) - 1 + d, "abs": np.abs(d), "full": scored.full_kl}
    return by_name["k2" if estimator == "mse" else estimator].astype(np.float64)


def loop_ppo(ppo, scored, rewards, kl, counts, kl_coef):
    """Rewards, advantages and returns token by token; `counts` are the real tokens of each row."""
    places = counts if ppo.score_position == "last" else np.where(counts > 0, np.minimum(counts + 1, LENGTH), 0)
    token_rewards = np.zeros((ROWS, LENGTH))
    for row, (tokens, states) in enumerate(zip(counts, places, strict=True)):
        for t in range(tokens):
            token_rewards[row, t] -= kl_coef * kl[row, t]
        if states:
            token_rewards[row, states - 1] += rewards[row]
    real = np.arange(LENGTH)[None, :] < places[:, None]
    if ppo.whiten_rewards:
        mean, std = token_rewards[real].mean(), token_rewards[real].std(ddof=1)
        token_rewards = np.where(real, (token_rewards - mean) / std + mean, 0)
    advantages, returns = loop_gae(token_rewards, scored.values, places, ppo.gamma, ppo.lam)
    tokens = np.arange(LENGTH)[None, :] < counts[:, None]
    values = np.where(real, scored.values, 0).astype(np.float64)
    stats = {
        "policy/advantages_mean": advantages[tokens].mean(),
        "value/explained_variance": 1 - (returns - values)[real].var(ddof=1) / returns[real].var(ddof=1),
        "value/mean": values[real].mean(),
        "value/var": values[real].var(ddof=1),
        "value/returns_mean": returns[real].mean(),
        "value/returns_var": returns[real].var(ddof=1),
    }
    whitened = (advantages - advantages[tokens].mean()) / advantages[tokens].std(ddof=1)
    arrays = {"rewards": token_rewards, "advantages": np.where(tokens, whitened, 0), "returns": returns}
    return arrays | {"values": values, "value_mask": real}, stats


def loop_rloo(ppo, scores, kl, counts, kl_coef):
    """Rewards and advantages completion by completion."""
    rewards = np.array([scores[row] - kl_coef * sum(kl[row, : counts[row]]) for row in range(ROWS)])
    advantages = []
    for row, group in enumerate(groups_of(ppo, scores)):
        others = [rewards[other] for other in group if other != row]
        has_baseline = row in group and others
        advantages.append(rewards[row] - sum(others) / len(others) if has_baseline else 0.0)
    advantages, real = np.array(advantages), ~np.isnan(scores)
    stats = {
        "policy/advantages_std": advantages[real].std(ddof=1),
        "policy/advantages_mean": 0.0,
    }
    if ppo.normalize_advantages:
        advantages = np.where(real, (advantages - advantages[real].mean()) / (advantages[real].std(ddof=1) + 1e-4), 0)
    return {"rewards": rewards, "advantages": advantages}, stats


def loop_grpo(ppo, scores):
    """Scores and advantages completion by completion, each at all tokens."""
    advantages, real = np.zeros(ROWS), ~np.isnan(scores)
    for row, group in enumerate(groups_of(ppo, scores)):
        if row not in group:
            continue
        among = scores[real] if ppo.scale_rewards == "batch" else scores[group]
        deviation = {"none": 1.0}.get(ppo.scale_rewards, (among.std(ddof=1) if len(among) > 1 else 0.0) + 1e-4)
        advantages[row] = (scores[row] - scores[group].mean()) / deviation
    stats = {
        "policy/advantages_std": advantages[real].std(ddof=1),
        "policy/advantages_mean": advantages[real].mean(),
    }
    return {"rewards": scores, "advantages": advantages[:, None]}, stats


def groups_of(ppo, scores):
    """Of each row the rows of its prompt that have a score."""
    starts = [row // ppo.group_size * ppo.group_size for row in range(ROWS)]
    return [[i for i in range(start, start + ppo.group_size) if not np.isnan(scores[i])] for start in starts]


def loop(config, scores=SCORES, history=EARLIER, kl_coef=0.1, reference=True):
    """(arrays, statistics, next KL coefficient), from the equations."""
    ppo, scored = config.rl, inputs()[0]
    counts = np.where(ENDED, LENGTHS, 0) if ppo.mask_truncated_completions else LENGTHS
    counts = np.where(np.isnan(scores), 0, counts)
    final = final_scores(ppo, scores, history)
    mean = lambda x, n: np.mean([sum(x[row, : n[row]]) for row in range(ROWS)])  # noqa: E731
    stats = {
        "objective/scores": np.nanmean(final),
        "objective/scores_std": np.nanstd(final, ddof=1),
        "objective/entropy": mean(-scored.logprobs.astype(np.float64), LENGTHS),
        "completions/mean_length": LENGTHS.mean(),
        "completions/length_std": LENGTHS.std(ddof=1),
        "completions/min_length": 1,
        "completions/max_length": 5,
        "completions/clipped_ratio": 3 / 8,
        "tokens/queries_len_mean": PROMPTS.mean(),
        "tokens/queries_len_std": PROMPTS.std(ddof=1),
        "val/num_eos_tokens": 5,
    }
    kl, penalty, next_coef = np.zeros((ROWS, LENGTH)), 0.0, kl_coef
    if reference:
        kl = token_kls(scored, ppo.kl_estimator)
        # Of all completions, also of those that nothing is learned from.
        steered_by = mean(token_kls(scored, "full" if ppo.kl_estimator == "full" else "k1"), LENGTHS)
        penalty = -kl_coef * mean(kl, LENGTHS)
        stats |= {
            "objective/kl": mean(kl, LENGTHS),
            "objective/kl_k1": mean(token_kls(scored, "k1"), LENGTHS),
            "objective/kl_k3": mean(token_kls(scored, "k3"), LENGTHS),
            "objective/kl_coef": kl_coef,
        }
        if ppo.algorithm != "grpo":
            stats["objective/non_score_reward"] = penalty
        if ppo.kl_target is not None:
            error = min(max(steered_by / ppo.kl_target - 1, -0.2), 0.2)
            next_coef = kl_coef * (1 + error * ROWS / ppo.kl_horizon)
    stats["objective/rlhf_reward"] = np.nanmean(final) + (penalty if ppo.algorithm != "grpo" else 0.0)
    if ppo.group_size > 1:
        flat = [len({round(final[other], 6) for other in group}) <= 1 for group in groups_of(ppo, final)]
        stats["reward/zero_variance_groups"] = np.mean(flat)
    if ppo.algorithm == "rloo":
        arrays, more = loop_rloo(ppo, final, kl, counts, kl_coef)
    elif ppo.algorithm == "grpo":
        arrays, more = loop_grpo(ppo, final)
        learned = np.arange(LENGTH)[None, :] < counts[:, None]
        if ppo.top_entropy_quantile < 1:
            learned = learned & (np.quantile(ENTROPY[learned], 1 - ppo.top_entropy_quantile) <= ENTROPY)
        arrays["advantages"] = np.where(learned, arrays["advantages"], 0)
    else:
        arrays, more = loop_ppo(ppo, scored, final, kl, counts, kl_coef)
    return arrays | {"completion_mask": np.arange(LENGTH)[None, :] < counts[:, None]}, stats | more, next_coef


def assert_is(made, expected, scores=SCORES, history=EARLIER, padding=0):
    """What the program made is what the loop found: arrays, statistics, controls; in wider arrays with 0 after it."""
    (controls, result, stats), (arrays, expected_stats, next_coef) = made, expected
    for name, array in arrays.items():
        ours = result.sequences.completion_mask if name == "completion_mask" else getattr(result, name)
        if array.ndim > 1:
            array = np.pad(array, ((0, 0), (0, padding)))
        else:  # of completions; where there is no score the reward is of no account
            ours = np.where(np.isnan(array), np.nan, ours)
        np.testing.assert_allclose(ours, array, atol=2e-5, err_msg=name)
    assert set(stats) == set(expected_stats)
    for name, value in expected_stats.items():
        np.testing.assert_allclose(stats[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(controls.kl_coef, next_coef, rtol=1e-6)
    everything = np.concatenate([history, scores[~np.isnan(scores)]]).astype(np.float64)
    moments = [len(everything), everything.mean(), everything.var() * len(everything)]
    np.testing.assert_allclose(np.array(controls.moments), moments, rtol=1e-5)
    assert controls.bad_updates == 2


STEERED = {"kl_target": 1.6, "kl_horizon": 40}
ANY = [
    {},
    {"missing_eos_penalty": 0.5},
    {"mask_truncated_completions": True},
    {"score_scaling": "norm", "reward_clip_range": (-0.4, 0.3), "missing_eos_penalty": 0.5},
    {"kl_estimator": "full"},
]
STEERED_BY_K1 = {"kl_estimator": "abs"} | STEERED
PPO = [
    *ANY,
    STEERED_BY_K1,
    {"score_scaling": "scale"},
    {"reward_clip_range": (0.0, 0.5), "missing_eos_penalty": 1.0},  # the penalty comes after clipping: to -1
    {"kl_estimator": "k2"},
    {"kl_estimator": "k3"},
    {"kl_estimator": "abs"},
    {"kl_estimator": "mse"},
    {"kl_estimator": "full"} | STEERED | {"kl_target": 2.1},
    STEERED | {"kl_target": 100.0},
    {"gamma": 1.0, "lam": 0.95},
    {"whiten_rewards": True},
    {"score_position": "after"},
    {"score_position": "after", "whiten_rewards": True, "missing_eos_penalty": 0.5},
    {"score_position": "after", "mask_truncated_completions": True},
]
RLOO = [{"num_generations": 2} | changes for changes in (*ANY, STEERED_BY_K1, {"normalize_advantages": True})]
RLOO += [{"num_generations": 4}, {"num_generations": 4, "mask_truncated_completions": True}]
GRPO = [{"num_generations": 2} | changes for changes in ANY if "kl_estimator" not in changes]  # its loss has k3
GRPO += [{"num_generations": 4, "scale_rewards": scale} for scale in ("group", "batch", "none")]
GRPO += [{"num_generations": 2, "top_entropy_quantile": 0.4}]
GRPO += [{"num_generations": 2, "top_entropy_quantile": 0.4, "mask_truncated_completions": True}]
CASES = [("ppo", changes) for changes in PPO]
CASES += [("rloo", changes) for changes in RLOO]
CASES += [("grpo", changes) for changes in GRPO]
SOME = np.where([1, 0, 1, 1, 0, 0, 1, 1], SCORES, np.nan).astype(np.float32)  # one group of two has no score at all


UNSCORED = [("ppo", changes) for changes in ({}, ANY[2], ANY[3], {"score_position": "after", "whiten_rewards": True})]
UNSCORED += [("rloo", RLOO[3]), ("rloo", RLOO[6]), ("rloo", RLOO[-1])]
UNSCORED += [("grpo", GRPO[2]), *(("grpo", changes) for changes in GRPO[4:7])]


@pytest.mark.parametrize(("algorithm", "changes"), CASES, ids=str)
def test_make_trajectories_equal_a_loop(algorithm, changes):
    config = make_config(algorithm=algorithm, **changes)
    made = make(config)
    assert_is(made, loop(config))
    if algorithm != "ppo":
        assert made[1].values is made[1].returns is made[1].value_mask is None
    if algorithm == "rloo":
        assert made[1].advantages.shape == (ROWS,)
    if algorithm == "grpo":
        np.testing.assert_array_equal(made[1].ref_logprobs, inputs()[0].ref_logprobs)


@pytest.mark.parametrize(("algorithm", "changes"), UNSCORED, ids=str)
def test_make_trajectories_leave_out_completions_without_a_score(algorithm, changes):
    config = make_config(algorithm=algorithm, **changes)
    made = make(config, scores=SOME)
    assert_is(made, loop(config, SOME), SOME)
    assert not np.any(made[1].sequences.completion_mask[np.isnan(SOME)])
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(made))


def test_every_setting_above_changes_what_is_learned_or_the_next_coefficient():
    """Otherwise one that does nothing would pass the comparisons."""
    for algorithm, cases in (("ppo", PPO), ("rloo", RLOO)):
        prints = set()
        for changes in cases:
            arrays, _, coef = loop(make_config(algorithm=algorithm, **changes))
            learned = (arrays[name].round(6).tobytes() for name in ("advantages", "returns") if name in arrays)
            prints.add((*learned, round(coef, 6)))
        assert len(prints) == len(cases) - (algorithm == "ppo")  # mse is another name for k2


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_make_trajectories_without_a_reference_have_no_kl(algorithm):
    config = make_config(algorithm=algorithm, num_generations=2, **STEERED)
    controls, result, stats = made = make(config, ref_logprobs=None)
    assert_is(made, loop(config, reference=False))
    assert not [name for name in stats if name.startswith(("objective/kl", "objective/non_score"))]
    assert stats["objective/rlhf_reward"] == stats["objective/scores"]
    np.testing.assert_allclose(np.sum(result.rewards), SCORES.sum(), rtol=1e-6)  # nothing but the scores
    assert controls.kl_coef == jnp.float32(0.1)


def test_make_trajectories_carry_coefficient_and_moments_to_the_next_update():
    config = make_config(score_scaling="norm", kl_target=1.6, kl_horizon=8, kl_estimator="k3")
    first = trajectories.initial_controls(config.rl)
    assert first.kl_coef == jnp.float32(0.1)
    assert (*first.moments, first.bad_updates) == (0, 0, 0, 0)
    first = first._replace(bad_updates=jnp.int32(2))
    nothing = np.zeros(0, np.float32)
    second, *_ = made = make(config, controls=first)
    assert_is(made, loop(config, history=nothing), history=nothing)
    assert abs(second.kl_coef - 0.1) > 0.001
    later = SCORES[::-1] * 2 - 1
    expected = loop(config, later, history=SCORES, kl_coef=float(second.kl_coef))
    assert_is(make(config, controls=second, scores=later), expected, later, SCORES)


def test_make_trajectories_forget_a_batch_with_a_score_that_is_not_finite():
    before = controls_after()
    scores = np.where(np.arange(ROWS) == 5, np.inf, SCORES)
    controls, *_ = make(make_config(score_scaling="scale"), controls=before, scores=scores)
    np.testing.assert_array_equal(np.array(controls.moments), np.array(before.moments))


MUCH = {"score_scaling": "scale", "missing_eos_penalty": 0.5, "kl_target": 1.0}
ALGORITHMS = pytest.mark.parametrize(
    "changes",
    [
        MUCH | {"score_position": "after", "whiten_rewards": True},
        MUCH | {"kl_estimator": "full", "mask_truncated_completions": True},
        MUCH | {"algorithm": "rloo", "num_generations": 2, "normalize_advantages": True},
        GRPO[-1] | {"algorithm": "grpo", "missing_eos_penalty": 0.5},
    ],
    ids=["after", "full", "rloo", "grpo"],
)


@ALGORITHMS
@pytest.mark.parametrize(("mode", "num_devices"), [("shard_map", 4), ("pmap", 2)])
def test_make_trajectories_is_the_same_on_any_number_of_devices(changes, mode, num_devices):
    config, parallel = make_config(**changes), DataParallel(mode, jax.local_devices()[:num_devices])
    program = partial(trajectories.make_trajectories, config=config, axis_name=DATA)
    mapped = parallel.map(program, row_axes=(None, 0, 0, 0, 0), out_axes=(None, 0, None))

    def run(controls, *rows):
        return mapped(parallel.put(controls), *parallel.put(rows, 0))

    assert_is(make(config, program=run), loop(config))


@ALGORITHMS
@pytest.mark.parametrize("junk", [50.0, np.nan])
def test_make_trajectories_ignore_what_lies_outside_the_masks(changes, junk):
    config = make_config(**changes)
    assert_is(make(config, padding=4, junk=junk), loop(config), padding=4)


def test_the_gap_between_learner_and_sampler_is_measured():
    rollout = inputs()[1]
    gap = np.where(MASK, np.random.default_rng(1).normal(size=MASK.shape) * 0.2, 0).astype(np.float32)
    sampled = rollout._replace(logprobs=rollout.logprobs - gap)
    _, _, stats = make(make_config(logprobs="recompute"), rollout=sampled)
    np.testing.assert_allclose(stats["policy/sampler_gap_avg"], np.abs(gap[MASK]).mean(), rtol=1e-4)
    np.testing.assert_allclose(stats["policy/sampler_gap_max"], np.abs(gap).max(), rtol=1e-4)
    outside = np.abs(np.exp(gap[MASK].astype(np.float64)) - 1) > 0.1
    np.testing.assert_allclose(stats["policy/sampler_outside"], outside.mean(), rtol=1e-5)


def test_positive_completions_are_those_with_a_score_of_1_before_it_is_changed():
    changes = {"positive_nll": 0.1, "missing_eos_penalty": 5.0, "reward_clip_range": (0.0, 0.5)}
    _, result, _ = make(make_config(**changes))
    np.testing.assert_array_equal(result.positive, SCORES >= 1.0)
    assert 0 < np.sum(result.positive) < ROWS
    _, result, _ = make(make_config(**changes), scores=np.where(np.arange(ROWS) == 1, np.nan, SCORES))
    np.testing.assert_array_equal(result.positive, (SCORES >= 1.0) & (np.arange(ROWS) != 1))
