"""A whole update: what must hold at the first one, and what must not change it."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import data, models
from jaxppo.config import TrainConfig, replace
from jaxppo.parallel import DataParallel
from jaxppo.ppo import PPO
from jaxppo.types import PromptBatch, Rollout, Sequences

EOS, PAD, ROWS, LENGTH = 0, 1, 8, 12
MODEL = models.ModelConfig(
    vocab_size=24,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=0.3,
    eos_token_id=EOS,
    pad_token_id=PAD,
)
CONFIG = replace(
    TrainConfig(),
    batch_size=ROWS,
    num_ppo_epochs=2,
    num_mini_batches=1,
    response_length=LENGTH,
    temperature=0.9,
    learning_rate=1e-3,
)
POLICY = jax.device_get(models.init_params(MODEL, jax.random.key(0)))
REFERENCE = jax.device_get(models.init_params(MODEL, jax.random.key(1)))
SCORES = np.linspace(-0.5, 1.0, ROWS, dtype=np.float32)


@functools.cache  # compiled programs are kept
def make_ppo(config=CONFIG, mode="shard_map", num_devices=1, pad_id=PAD):
    return PPO(config, MODEL, EOS, pad_id, DataParallel(mode, jax.devices()[:num_devices]))


def make_prompts(pad_id=PAD):
    rng = np.random.default_rng(0)
    return data.pad_left([rng.integers(2, 24, rng.integers(3, 9)).tolist() for _ in range(ROWS)], 8, pad_id)


def start(ppo):
    value = {
        "trunk": jax.tree.map(np.array, REFERENCE["trunk"]),
        "score": {"kernel": np.full((16, 1), 0.1, np.float32)},
    }
    return ppo.init_state(POLICY, value if ppo.config.value_model == "separate" else None)


@pytest.fixture(scope="module")
def recorded():
    """One rollout, made on one device."""
    ppo = make_ppo()
    rollout = ppo.generate(start(ppo), make_prompts(), 0)
    assert 0 < int(rollout.ended.sum()) < ROWS  # some rows end, some are cut
    return jax.device_get(rollout)


class Update(NamedTuple):
    """What an update leaves behind."""

    stats: dict
    params: dict


def update_from(ppo, prompts, rollout, scores=SCORES, reference=REFERENCE, extra_padding=0) -> Update:
    """Everything after sampling, from a given rollout."""
    state = start(ppo)
    sequences = ppo.pack(prompts, rollout)
    if extra_padding:
        wider = np.pad(np.asarray(sequences.input_ids), ((0, 0), (0, extra_padding)), constant_values=7)
        sequences = Sequences(jnp.asarray(wider), *sequences[1:])
    scored = ppo.score(state, ppo.parallel.put(reference), sequences, rollout)
    trajectories, stats = ppo.make_trajectories(scored, rollout, sequences, scores)
    state, update_stats = ppo.update(state, trajectories, 0)
    return Update(jax.device_get(stats | update_stats), jax.device_get(state.params))


def assert_same(a: Update, b: Update, tolerance=1e-5):
    assert a.stats.keys() == b.stats.keys()
    for name in a.stats:
        np.testing.assert_allclose(a.stats[name], b.stats[name], rtol=0, atol=tolerance, err_msg=name)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance), a.params, b.params)


@pytest.fixture(scope="module", params=["separate", "shared"])
def config(request):
    return replace(CONFIG, value_model=request.param)


@pytest.fixture(scope="module")
def baseline(config, recorded):
    update = update_from(make_ppo(config), make_prompts(), recorded)
    moved = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), update.params["policy"], POLICY)
    assert max(jax.tree.leaves(moved)) > 1e-3  # an update that does nothing would pass every comparison below
    return update


@pytest.mark.parametrize("kl_estimator", ["k1", "k3"])
def test_first_update_kl_is_zero_with_sampler_logprobs(recorded, kl_estimator):
    ppo = make_ppo(replace(CONFIG, kl_estimator=kl_estimator))
    stats = update_from(ppo, make_prompts(), recorded, reference=POLICY).stats
    assert abs(stats["objective/kl"]) < 1e-5


def test_first_update_kl_is_exactly_zero_when_recomputed(recorded):
    ppo = make_ppo(replace(CONFIG, logprobs="recompute"))
    assert update_from(ppo, make_prompts(), recorded, reference=POLICY).stats["objective/kl"] == 0.0


@pytest.mark.parametrize("logprobs", ["sampler", "recompute"])
def test_first_mini_batch_has_ratio_one(recorded, logprobs):
    stats = update_from(make_ppo(replace(CONFIG, logprobs=logprobs)), make_prompts(), recorded).stats
    assert abs(stats["val/ratio_first"] - 1.0) < 1e-5
    assert stats["policy/approxkl_avg_first"] < 1e-9
    assert abs(stats["val/ratio"] - 1.0) > 1e-4  # the second epoch has moved


def test_right_padding_changes_nothing(config, recorded, baseline):
    wider = Rollout(
        completion_ids=np.pad(recorded.completion_ids, ((0, 0), (0, 5)), constant_values=9),
        completion_mask=np.pad(recorded.completion_mask, ((0, 0), (0, 5))),
        logprobs=np.pad(recorded.logprobs, ((0, 0), (0, 5)), constant_values=-3.0),
        ended=recorded.ended,
    )
    assert_same(update_from(make_ppo(config), make_prompts(), wider, extra_padding=6), baseline)


def test_row_order_changes_nothing(config, recorded, baseline):
    order = np.random.default_rng(1).permutation(ROWS)
    prompts = PromptBatch(*(x[order] for x in make_prompts()))
    rollout = Rollout(*(x[order] for x in recorded))
    assert_same(update_from(make_ppo(config), prompts, rollout, SCORES[order]), baseline)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.parametrize("mode", ["shard_map", "pmap"])
def test_devices_change_nothing(config, recorded, baseline, mode, num_devices):
    ppo = make_ppo(config, mode, num_devices)
    assert_same(update_from(ppo, make_prompts(), recorded), baseline)
    np.testing.assert_array_equal(ppo.generate(start(ppo), make_prompts(), 0).completion_ids, recorded.completion_ids)


def test_mini_batches_are_the_same_on_any_device_count(recorded):
    config = replace(CONFIG, num_mini_batches=2)
    updates = [update_from(make_ppo(config, "shard_map", n), make_prompts(), recorded) for n in (1, 4)]
    assert_same(*updates)


def test_pad_equal_to_eos_changes_nothing(config, recorded, baseline):
    ppo = make_ppo(config, pad_id=EOS)
    rollout = ppo.generate(start(ppo), make_prompts(EOS), 0)
    np.testing.assert_array_equal(rollout.completion_mask, recorded.completion_mask)
    np.testing.assert_array_equal(
        np.where(recorded.completion_mask, rollout.completion_ids, 0),
        np.where(recorded.completion_mask, recorded.completion_ids, 0),
    )
    assert_same(update_from(ppo, make_prompts(EOS), rollout), baseline)


def test_an_update_leaves_the_arrays_it_started_from_alone(recorded):
    """Its memory is donated: without copies, a reference that shares it would be gone."""
    ppo = make_ppo()
    policy = ppo.parallel.put(POLICY)
    state = ppo.init_state(policy)
    sequences = ppo.pack(make_prompts(), recorded)
    scored = ppo.score(state, policy, sequences, recorded)
    trajectories, _ = ppo.make_trajectories(scored, recorded, sequences, SCORES)
    ppo.update(state, trajectories, 0)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(policy), POLICY)


def test_each_update_samples_anew():
    ppo = make_ppo()
    first, second = (ppo.generate(start(ppo), make_prompts(), step).completion_ids for step in (0, 1))
    assert (np.asarray(first) != np.asarray(second)).any()


def test_learning_raises_a_simple_reward():
    """Reward: fraction of tokens equal to 5."""
    config = replace(CONFIG, learning_rate=3e-3, kl_coef=0.01, lr_scheduler_type="constant", total_episodes=ROWS * 30)
    ppo, prompts = make_ppo(config), make_prompts()
    state, reference, means = start(ppo), ppo.parallel.put(POLICY), []
    for step in range(30):
        rollout = ppo.generate(state, prompts, step)
        mask = np.asarray(rollout.completion_mask)
        scores = ((np.asarray(rollout.completion_ids) == 5) & mask).sum(1) / mask.sum(1)
        sequences = ppo.pack(prompts, rollout)
        scored = ppo.score(state, reference, sequences, rollout)
        trajectories, _ = ppo.make_trajectories(scored, rollout, sequences, scores)
        state, _ = ppo.update(state, trajectories, step)
        means.append(scores.mean())
    assert np.mean(means[-5:]) > np.mean(means[:5]) + 0.3
