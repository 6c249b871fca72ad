"""From scores to trajectories against plain loops in float64, for PPO and RLOO, on any number of devices."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.config import RLConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.parallel.devices import DATA, DataParallel
from jaxppo.rl import losses, trajectories
from jaxppo.rl.algorithms import formulas_of
from jaxppo.types import Controls, Rollout, Scored, ScoreMoments, Sequences

ROWS, LENGTH = 8, 5
LENGTHS = np.array([3, 4, 5, 2, 5, 1, 1, 2])  # the first of four devices has neither the shortest nor the longest
ENDED = np.array([True, True, False, False, True, True, False, True])  # rows 3 and 6 were cut at limits of their own
MASK = np.arange(LENGTH)[None, :] < LENGTHS[:, None]
PROMPTS = np.array([3, 3, 5, 5, 4, 4, 2, 2], np.int32)
SCORES = np.array([0.37, 1.0, 0.25, -0.5, 0.6, 0.6, 1.0, 0.2], np.float32)  # rows 4 and 5 are a flat group of two
EARLIER = np.array([2.0, -1.0, 0.5], np.float32)
SETTINGS = {"batch_size": ROWS, "response_length": LENGTH, "gamma": 0.9, "lam": 0.8, "kl_coef": 0.1}


def make_config(**changes):
    return replace(TrainConfig(), **SETTINGS | changes)


def inputs(padding=0, junk=0.0):
    """Scored, Rollout and Sequences of ragged rows; outside the masks, and in more columns, lies junk."""
    rng = np.random.default_rng(3)
    logprobs, reference, values, full_kl = rng.normal(size=(4, ROWS, LENGTH)).astype(np.float32)
    reference -= np.float32(0.3)

    def dirty(x, real):
        return np.pad(np.where(real, x, np.float32(junk)), ((0, 0), (0, padding)), constant_values=junk)

    # The value behind the last token is a real one.
    behind = np.arange(LENGTH)[None, :] <= LENGTHS[:, None]
    full_kl = dirty(np.abs(full_kl), MASK)
    scored = Scored(dirty(logprobs, MASK), dirty(reference, MASK), dirty(values, behind), full_kl)
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
    step=0,
    rollout=None,
    parts=None,
    **scored_changes,
):
    """(controls, trajectories, stats) of the recorded rollout; a full KL only where the configuration asks for one."""
    scored, recorded, sequences = inputs(padding, junk)
    unused = {} if config.rl.kl_estimator == "full" else {"full_kl": None}
    unused |= {} if config.rl.algorithm == "ppo" else {"values": None}
    scored = scored._replace(**unused | scored_changes)
    controls = controls_after() if controls is None else controls
    # Not compiled, unless a test gives a compiled program: compilation would take most of the time.
    program = partial(trajectories.make_trajectories, config=config) if program is None else program
    given = (scored, recorded if rollout is None else rollout, sequences, scores, *([] if parts is None else [parts]))
    return program(controls, jnp.int32(step), *jax.tree.map(jnp.asarray, given))


# --- the loop


def final_scores(ppo, scores, history):
    """Row by row: scale, clip, penalise; NaN where there is no score."""
    everything = np.concatenate([history, scores[~np.isnan(scores)]]).astype(np.float64)
    final = []
    for score, ended in zip(scores.astype(np.float64), ENDED, strict=True):
        if ppo.use_score_scaling:
            score = (score - (everything.mean() if ppo.use_score_norm else 0.0)) / everything.std(ddof=1)
        if ppo.reward_clip_range is not None:
            score = min(max(score, ppo.reward_clip_range[0]), ppo.reward_clip_range[1])
        if ppo.missing_eos_penalty is not None and not ended:
            score -= ppo.missing_eos_penalty
        final.append(score)
    return np.array(final)


def token_kls(scored, estimator):
    """Estimates of every token, in float64."""
    d = scored.logprobs.astype(np.float64) - scored.ref_logprobs
    of = {"k1": d, "k2": d**2 / 2, "mse": d**2 / 2, "k3": np.exp(-d) - 1 + d, "abs": np.abs(d), "full": scored.full_kl}
    return of[estimator].astype(np.float64)


def parts_on_tokens(ppo, parts, scores, history, row):
    """What the parts of a completion give to its tokens; they are scaled as scores are, not centred or clipped."""
    scale = 1.0
    if ppo.use_score_scaling:
        scale = np.concatenate([history, scores[~np.isnan(scores)]]).astype(np.float64).std(ddof=1)
    return [float(part) / scale for part in parts[row]]


def loop_ppo(ppo, scored, rewards, kl, counts, kl_coef, parts=None):
    """Rewards, advantages and returns token by token; `counts` are the real tokens of each row."""
    places = counts if ppo.score_position == "last" else np.where(counts > 0, np.minimum(counts + 1, LENGTH), 0)
    token_rewards, advantages, returns = np.zeros((3, ROWS, LENGTH))
    for row, (tokens, states) in enumerate(zip(counts, places, strict=True)):
        for t in range(tokens):
            token_rewards[row, t] -= kl_coef * kl[row, t]
        left = rewards[row]
        for t in range(states if parts else 0):
            token_rewards[row, t] += parts(row)[t]
            left -= parts(row)[t]
        if states:
            token_rewards[row, states - 1] += left
    real = np.arange(LENGTH)[None, :] < places[:, None]
    if ppo.whiten_rewards:
        mean, std = token_rewards[real].mean(), token_rewards[real].std(ddof=1)
        token_rewards = np.where(real, (token_rewards - mean) / std + mean, 0)
    for row, states in enumerate(places):
        following = 0.0
        for t in reversed(range(states)):
            value, next_value = scored.values[row, t], scored.values[row, t + 1] if t + 1 < states else 0.0
            following = token_rewards[row, t] + ppo.gamma * next_value - value + ppo.gamma * ppo.lam * following
            advantages[row, t], returns[row, t] = following, following + value
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
    return {"rewards": np.nan_to_num(rewards), "advantages": advantages}, stats


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
    return {"rewards": np.nan_to_num(scores), "advantages": advantages[:, None]}, stats


def groups_of(ppo, scores):
    """Of each row the rows of its prompt that have a score."""
    starts = [row // ppo.group_size * ppo.group_size for row in range(ROWS)]
    return [[i for i in range(start, start + ppo.group_size) if not np.isnan(scores[i])] for start in starts]


def loop(config, scores=SCORES, history=EARLIER, kl_coef=0.1, reference=True, parts=None):
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
        if ppo.adap_kl_ctrl:
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
        arrays["advantages"] = arrays["advantages"] * (np.arange(LENGTH)[None, :] < counts[:, None])
    else:
        of_row = None if parts is None else partial(parts_on_tokens, ppo, parts, scores, history)
        arrays, more = loop_ppo(ppo, scored, final, kl, counts, kl_coef, of_row)
    return arrays | {"completion_mask": np.arange(LENGTH)[None, :] < counts[:, None]}, stats | more, next_coef


def assert_is(made, expected, scores=SCORES, history=EARLIER):
    """What the program made is what the loop found: arrays, statistics, controls."""
    (controls, result, stats), (arrays, expected_stats, next_coef) = made, expected
    for name, array in arrays.items():
        ours = result.sequences.completion_mask if name == "completion_mask" else getattr(result, name)
        np.testing.assert_allclose(ours, array, atol=2e-5, err_msg=name)
    assert set(stats) == set(expected_stats)
    for name, value in expected_stats.items():
        np.testing.assert_allclose(stats[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(controls.kl_coef, next_coef, rtol=1e-6)
    everything = np.concatenate([history, scores[~np.isnan(scores)]]).astype(np.float64)
    moments = [len(everything), everything.mean(), everything.var() * len(everything)]
    np.testing.assert_allclose(np.array(controls.moments), moments, rtol=1e-5)
    assert controls.bad_updates == 2


STEERED = {"adap_kl_ctrl": True, "kl_target": 1.6, "kl_horizon": 40}
BOTH = [
    {},
    {"missing_eos_penalty": 0.5},
    {"mask_truncated_completions": True},
    {"use_score_scaling": True, "use_score_norm": True, "reward_clip_range": (-0.4, 0.3), "missing_eos_penalty": 0.5},
    {"kl_estimator": "full"},
    {"kl_estimator": "abs"} | STEERED,  # steered by k1 all the same
]
PPO_ONLY = [
    {"use_score_scaling": True},
    {"reward_clip_range": (0.0, 0.5), "missing_eos_penalty": 1.0},  # the penalty comes after clipping: to -1
    *({"kl_estimator": name} for name in ("k2", "k3", "abs", "mse")),
    {"kl_estimator": "full"} | STEERED | {"kl_target": 2.1},
    STEERED | {"kl_target": 100.0},
    {"gamma": 1.0, "lam": 0.95},
    {"whiten_rewards": True},
    {"score_position": "after"},
    {"score_position": "after", "whiten_rewards": True, "missing_eos_penalty": 0.5},
    {"score_position": "after", "mask_truncated_completions": True},
]
RLOO = [{"num_generations": 2} | changes for changes in (*BOTH, {"normalize_advantages": True})]
RLOO += [{"num_generations": 4}, {"num_generations": 4, "mask_truncated_completions": True}]


@pytest.mark.parametrize("changes", BOTH + PPO_ONLY, ids=str)
def test_make_trajectories_of_ppo_equals_a_loop(changes):
    config = make_config(**changes)
    assert_is(make(config), loop(config))


@pytest.mark.parametrize("changes", RLOO, ids=str)
def test_make_trajectories_of_rloo_equals_a_loop(changes):
    config = make_config(algorithm="rloo", **changes)
    made = make(config)
    assert_is(made, loop(config))
    assert made[1].values is made[1].returns is made[1].value_mask is None
    assert made[1].advantages.shape == (ROWS,)


GRPO = [{"num_generations": 2} | changes for changes in BOTH if "adap_kl_ctrl" not in changes]
GRPO += [{"num_generations": 4, "scale_rewards": scale} for scale in ("group", "batch", "none")]


@pytest.mark.parametrize("changes", GRPO, ids=str)
def test_make_trajectories_of_grpo_equals_a_loop(changes):
    config = make_config(algorithm="grpo", **changes)
    made = make(config)
    assert_is(made, loop(config))
    assert made[1].values is made[1].returns is made[1].value_mask is None
    np.testing.assert_array_equal(made[1].ref_logprobs, inputs()[0].ref_logprobs)


SOME = np.where([1, 0, 1, 1, 0, 0, 1, 1], SCORES, np.nan).astype(np.float32)  # one group of two has no score at all
UNSCORED = [
    {},
    {"use_score_scaling": True, "use_score_norm": True, "reward_clip_range": (-0.4, 0.3), "missing_eos_penalty": 0.5},
    {"score_position": "after", "whiten_rewards": True},
    {"mask_truncated_completions": True},
    {"algorithm": "rloo", "num_generations": 2, "normalize_advantages": True},
    {"algorithm": "rloo", "num_generations": 4, "missing_eos_penalty": 0.5},
    {"algorithm": "grpo", "num_generations": 2},
    {"algorithm": "grpo", "num_generations": 4, "scale_rewards": "batch"},
    {"algorithm": "grpo", "num_generations": 4, "scale_rewards": "none", "mask_truncated_completions": True},
]


@pytest.mark.parametrize("changes", UNSCORED, ids=str)
def test_make_trajectories_leave_out_completions_without_a_score(changes):
    config = make_config(**changes)
    made = make(config, scores=SOME)
    assert_is(made, loop(config, SOME), SOME)
    assert not np.any(made[1].sequences.completion_mask[np.isnan(SOME)])
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(made))


def test_every_setting_above_changes_the_advantages_or_the_next_coefficient():
    """Otherwise one that does nothing would pass the comparisons."""
    for algorithm, cases in (("ppo", BOTH + PPO_ONLY), ("rloo", RLOO)):
        made = [loop(make_config(algorithm=algorithm, **changes)) for changes in cases]
        prints = {(arrays["advantages"].round(6).tobytes(), round(coef, 6)) for arrays, _, coef in made}
        assert len(prints) == len(cases) - (algorithm == "ppo")  # mse is another name for k2


# --- scores in parts


def parts_of(scores, seed=0):
    """Parts at random tokens, some of which leave something over of the score."""
    rng = np.random.default_rng(seed)
    parts = np.where(MASK & (rng.random(MASK.shape) < 0.7), rng.normal(size=MASK.shape), 0)
    whole = np.arange(ROWS) % 2 == 0
    parts[whole, LENGTHS[whole] - 1] += np.nan_to_num(scores)[whole] - parts.sum(axis=1)[whole]
    return np.where(np.isnan(scores)[:, None], 0, parts).astype(np.float32)


@pytest.mark.parametrize("scores", [SCORES, SOME], ids=["all", "some"])
@pytest.mark.parametrize("changes", BOTH + PPO_ONLY + UNSCORED[1:3], ids=str)
def test_make_trajectories_give_the_parts_of_scores_at_their_tokens(changes, scores):
    config, parts = make_config(**changes), parts_of(scores)
    made = make(config, scores=scores, parts=parts)
    assert_is(made, loop(config, scores, parts=parts), scores)
    if not config.rl.whiten_rewards:
        plain = make(config, scores=scores)[1].rewards
        np.testing.assert_allclose(np.sum(made[1].rewards, axis=1), np.sum(plain, axis=1), atol=1e-5)
        assert np.abs(np.array(made[1].rewards) - plain).max() > 0.1


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
@pytest.mark.parametrize("changes", [{}, *UNSCORED[1:4], {"reward_clip_range": (-0.1, 0.1)}], ids=str)
def test_rewarded_token_scores_add_up_to_the_scores(changes, algorithm, monkeypatch):
    """What every algorithm is given: in sum the final scores, where something is learned."""
    if algorithm == "rloo":
        changes = {name: value for name, value in changes.items() if name not in ("score_position", "whiten_rewards")}
    seen = []
    formulas = formulas_of(algorithm)
    original = formulas.make_trajectories
    monkeypatch.setattr(formulas, "make_trajectories", lambda *a, **k: seen.append(a[0]) or original(*a, **k))
    config = make_config(**changes | {"algorithm": algorithm, "num_generations": 2})
    make(config, scores=SOME, parts=parts_of(SOME))
    make(config, scores=SOME)
    (rewarded, plain) = seen
    learned = np.array(rewarded.sequences.completion_mask).any(axis=1)
    sums = np.sum(rewarded.token_scores, axis=1)
    np.testing.assert_allclose(sums, np.where(learned, rewarded.scores, 0), atol=1e-6)
    assert rewarded.token_scores.dtype == jnp.float32 and plain.token_scores is None
    if algorithm == "rloo":
        assert not np.any(np.array(rewarded.token_scores)[~MASK])


@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_the_rounding_of_a_sum_is_no_step_however_large_the_parts(size, monkeypatch):
    """They end before the last token, and are the whole score."""
    seen = []
    formulas = formulas_of("grpo")
    original = formulas.make_trajectories
    monkeypatch.setattr(formulas, "make_trajectories", lambda *a, **k: seen.append(a[0]) or original(*a, **k))
    parts = np.where(np.arange(LENGTH)[None, :] < LENGTHS[:, None] - 1, size * (0.1 + parts_of(SCORES, 1) ** 2), np.nan)
    parts = np.where(MASK, parts, np.nan).astype(np.float32)
    scores = np.array([np.float32(math.fsum(row[~np.isnan(row)])) for row in parts])
    some = LENGTHS > 1
    make(make_config(algorithm="grpo", num_generations=2, kl_coef=0.0), scores=scores, parts=parts)
    np.testing.assert_array_equal(np.array(seen[0].steps)[some], ~np.isnan(parts)[some])


def test_make_trajectories_of_parts_at_the_last_token_are_those_without():
    parts = np.where(np.arange(LENGTH)[None, :] == LENGTHS[:, None] - 1, SCORES[:, None], 0).astype(np.float32)
    for changes in ({}, {"use_score_scaling": True}, {"whiten_rewards": True}):
        with_parts, without = (make(make_config(**changes), parts=given)[1] for given in (parts, None))
        np.testing.assert_allclose(with_parts.advantages, without.advantages, atol=1e-5)


# --- the KL


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_make_trajectories_without_a_reference_have_no_kl(algorithm):
    config = make_config(algorithm=algorithm, num_generations=2, **STEERED)
    controls, result, stats = made = make(config, ref_logprobs=None)
    assert_is(made, loop(config, reference=False))
    assert not [name for name in stats if name.startswith(("objective/kl", "objective/non_score"))]
    assert stats["objective/rlhf_reward"] == stats["objective/scores"]
    np.testing.assert_allclose(np.sum(result.rewards), SCORES.sum(), rtol=1e-6)  # nothing but the scores
    assert controls.kl_coef == jnp.float32(0.1)


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_make_trajectories_with_coefficient_0_measure_the_kl_and_do_not_use_it(algorithm):
    config = make_config(algorithm=algorithm, num_generations=2, kl_coef=0.0)
    controls = controls_after(kl_coef=0.0)
    (_, with_kl, stats), (_, without, _) = make(config, controls), make(config, controls, ref_logprobs=None)
    np.testing.assert_allclose(stats["objective/kl"], loop(config)[1]["objective/kl"], rtol=1e-5)
    assert stats["objective/non_score_reward"] == 0.0
    np.testing.assert_array_equal(with_kl.advantages, without.advantages)


def test_make_trajectories_of_a_policy_that_is_its_reference_have_kl_0():
    scored = inputs()[0]
    for estimator in ("k1", "k2", "k3", "abs"):
        stats = make(make_config(kl_estimator=estimator), ref_logprobs=scored.logprobs)[2]
        assert stats["objective/kl"] == stats["objective/kl_k1"] == stats["objective/kl_k3"] == 0.0


def test_make_trajectories_use_the_coefficient_of_the_controls_and_not_of_the_configuration():
    config = make_config()
    assert_is(make(config, controls_after(kl_coef=0.7)), loop(config, kl_coef=0.7))


def test_make_trajectories_carry_coefficient_and_moments_to_the_next_update():
    config = make_config(
        use_score_scaling=True, use_score_norm=True, adap_kl_ctrl=True, kl_target=1.6, kl_horizon=8, kl_estimator="k3"
    )
    first = trajectories.initial_controls(config.rl)._replace(bad_updates=jnp.int32(2))
    nothing = np.zeros(0, np.float32)
    second, *_ = made = make(config, first)
    assert_is(made, loop(config, history=nothing), history=nothing)
    assert abs(second.kl_coef - 0.1) > 0.001
    later = SCORES[::-1] * 2 - 1
    expected = loop(config, later, history=SCORES, kl_coef=float(second.kl_coef))
    assert_is(make(config, second, later), expected, later, SCORES)


def test_initial_controls_start_with_the_configured_coefficient_and_no_scores():
    controls = trajectories.initial_controls(RLConfig(kl_coef=0.3))
    assert controls.kl_coef == jnp.float32(0.3)
    assert (*controls.moments, controls.bad_updates) == (0, 0, 0, 0)


def test_make_trajectories_forget_a_batch_with_a_score_that_is_not_finite():
    before = controls_after()
    controls, *_ = make(make_config(use_score_scaling=True), before, np.where(np.arange(ROWS) == 5, np.inf, SCORES))
    np.testing.assert_array_equal(np.array(controls.moments), np.array(before.moments))


# --- what must not matter

MUCH = {"use_score_scaling": True, "missing_eos_penalty": 0.5, "adap_kl_ctrl": True, "kl_target": 1.0}
ALGORITHMS = pytest.mark.parametrize(
    "changes",
    [
        MUCH | {"score_position": "after", "whiten_rewards": True},
        MUCH | {"kl_estimator": "full", "mask_truncated_completions": True},
        MUCH | {"algorithm": "rloo", "num_generations": 2, "normalize_advantages": True},
    ],
    ids=["after", "full", "rloo"],
)


@ALGORITHMS
@pytest.mark.parametrize(("mode", "num_devices"), [("shard_map", 1), ("shard_map", 2), ("shard_map", 4), ("pmap", 4)])
def test_make_trajectories_is_the_same_on_any_number_of_devices(changes, mode, num_devices):
    config, parallel = make_config(**changes), DataParallel(mode, jax.local_devices()[:num_devices])
    program = partial(trajectories.make_trajectories, config=config, axis_name=DATA)
    mapped = parallel.map(program, row_axes=(None, None, 0, 0, 0, 0, 0), out_axes=(None, 0, None))
    for parts in (None, parts_of(SCORES)):

        def run(controls, step, *rows):
            given = rows if len(rows) == 5 else (*rows, None)
            return mapped(*parallel.put((controls, step)), *parallel.put(given, 0))

        assert_is(make(config, program=run, parts=parts), loop(config, parts=parts))


@ALGORITHMS
@pytest.mark.parametrize(("padding", "junk"), [(0, 50.0), (4, 50.0), (4, np.nan)])
def test_make_trajectories_ignore_what_lies_outside_the_masks(changes, padding, junk):
    config = make_config(**changes)
    parts = parts_of(SCORES)
    controls, clean, stats = make(config, parts=parts)
    wide = np.pad(parts, ((0, 0), (0, padding)), constant_values=junk)
    dirty_controls, dirty, dirty_stats = make(config, padding=padding, junk=junk, parts=wide)
    np.testing.assert_allclose(jax.tree.leaves(dirty_controls), jax.tree.leaves(controls), rtol=1e-6)
    assert set(dirty_stats) == set(stats)
    for name, value in stats.items():
        np.testing.assert_allclose(dirty_stats[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    for name in ("rewards", "advantages", "values", "returns", "value_mask"):
        short, long = getattr(clean, name), getattr(dirty, name)
        if short is not None:
            wide = short if short.ndim == 1 else np.pad(short, ((0, 0), (0, padding)))
            np.testing.assert_allclose(long, wide, atol=1e-5, err_msg=name)


# --- weights


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("ppo", {}),
        ("ppo", {"score_position": "after"}),
        ("ppo", {"mask_truncated_completions": True}),
        ("rloo", {}),
        ("rloo", {"mask_truncated_completions": True}),
    ],
    ids=str,
)
def test_loss_weights_give_the_entries_of_every_mini_batch_a_sum_of_1(algorithm, changes):
    _, result, _ = make(make_config(algorithm=algorithm, num_generations=2, **changes))
    rows = np.array([[7, 0, 2], [4, 1, 3], [5, 6, 2]])
    mini_batches = jax.tree.map(lambda x: x[rows], result)
    level = "completion" if algorithm == "rloo" else "token"
    weights = losses.loss_weights(mini_batches, level, "bnpo", LENGTH)
    for kind in weights:
        if kind is not None:
            axes = tuple(range(1, kind.ndim))
            np.testing.assert_allclose(np.sum(kind, axis=axes), np.ones(3), rtol=1e-6)
    real = np.asarray(mini_batches.sequences.completion_mask)
    share = real.sum((1, 2))[:, None, None]
    np.testing.assert_allclose(weights.tokens, real / share, rtol=1e-6)
    if algorithm == "rloo":
        # Completions count alike, also one that keeps no token.
        np.testing.assert_allclose(weights.policy, np.full((3, 3), 1 / 3), rtol=1e-6)
        assert weights.values is None
    else:
        np.testing.assert_array_equal(weights.policy, weights.tokens)
        states = np.asarray(mini_batches.value_mask)
        np.testing.assert_allclose(weights.values, states / states.sum((1, 2))[:, None, None], rtol=1e-6)


def test_loss_weights_give_a_mini_batch_without_tokens_no_weight():
    _, result, _ = make(make_config(mask_truncated_completions=True))
    mini_batches = jax.tree.map(lambda x: x[np.array([[2, 3], [0, 1]])], result)
    weights = losses.loss_weights(mini_batches, "token", "bnpo", LENGTH)
    np.testing.assert_allclose([np.sum(kind, axis=(1, 2)) for kind in weights[:4]], [[0, 1]] * 4, rtol=1e-6)
