"""A whole update: what must hold at the first one, and what must not change it."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo import data, models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError, DataError
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.rl import ops, padding
from jaxppo.rl.ppo import PPO
from jaxppo.types import PromptBatch, Rollout, Sequences
from tests import quick_first
from tests.device_modes import EOS, MODEL, PAD

ROWS, LENGTH = 8, 12
CONFIG = replace(
    TrainConfig(),
    batch_size=ROWS,
    num_ppo_epochs=2,
    num_mini_batches=1,
    response_length=LENGTH,
    temperature=0.9,
    learning_rate=1e-3,
    total_episodes=6400,
)
VARIANTS = {
    "separate": replace(CONFIG, value_model="separate"),
    "shared": replace(CONFIG, value_model="shared"),
    "after": replace(CONFIG, score_position="after", whiten_rewards=True, kl_estimator="k3"),
    "full-kl": replace(CONFIG, kl_estimator="full", entropy_coef=0.01, missing_eos_penalty=0.3),
    "lora": replace(CONFIG, use_peft=True, lora_r=4, learning_rate=1e-2),
    "rloo": replace(CONFIG, algorithm="rloo", num_generations=2, normalize_advantages=True),
    "rloo-masked": replace(CONFIG, algorithm="rloo", num_generations=2, mask_truncated_completions=True),
}
POLICY = jax.device_get(models.init_params(MODEL, jax.random.key(0)))
REFERENCE = jax.device_get(models.init_params(MODEL, jax.random.key(1)))
SCORES = np.linspace(-0.5, 1.0, ROWS, dtype=np.float32)


@functools.cache  # compiled programs are kept
def make_ppo(config=CONFIG, mode="shard_map", num_devices=1, pad_id=PAD):
    return PPO(config, MODEL, EOS, pad_id, DataParallel(mode, jax.devices()[:num_devices]))


def make_prompts(pad_id=PAD, copies=1, extra_padding=0):
    """The prompts of a batch, each standing for `copies` completions."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 24, rng.integers(3, 9)).tolist() for _ in range(ROWS // copies)]
    return data.pad_left(prompts, 8 + extra_padding, pad_id)


def start(ppo):
    value = {
        "trunk": jax.tree.map(np.array, REFERENCE["trunk"]),
        "score": {"kernel": np.full((16, 1), 0.1, np.float32)},
    }
    separate = ppo.has_value_model and ppo.config.value_model == "separate"
    return ppo.init_state(POLICY, value if separate else None)


def test_mini_batches_that_do_not_divide_over_the_devices_are_refused():
    config = replace(CONFIG, num_mini_batches=CONFIG.batch_size // 2)
    message = r"batch_size / num_mini_batches / gradient_accumulation_steps: expected a multiple of .* \(4\), got 2"
    with pytest.raises(ConfigError, match=message):
        make_ppo(config, num_devices=4)


def some_end(rollout) -> bool:
    """Whether some rows end and some are cut."""
    return 0 < int(rollout.ended.sum()) < ROWS


@functools.cache
def sample(copies):
    """One rollout, made on one device, and the number of its update."""
    ppo = make_ppo(VARIANTS["separate"] if copies == 1 else replace(VARIANTS["rloo"], num_generations=copies))
    prompts = make_prompts(copies=copies)
    rollouts = ((ppo.generate(start(ppo), prompts, step), step) for step in range(20))
    return jax.device_get(next(pair for pair in rollouts if some_end(pair[0])))


def rollout_of(copies):
    return sample(copies)[0]


@pytest.fixture(scope="module")
def recorded():
    return rollout_of(1)


class Update(NamedTuple):
    """What an update leaves behind."""

    stats: dict
    params: dict
    opt_state: object


def estimate_from(ppo, prompts, rollout, scores=SCORES, reference=REFERENCE, extra_padding=0):
    """The stages between sampling and learning, from a given rollout: state, trajectories, statistics."""
    state = start(ppo)
    sequences = ppo.pack(prompts, rollout)
    if extra_padding:
        wider = np.pad(np.asarray(sequences.input_ids), ((0, 0), (0, extra_padding)), constant_values=7)
        sequences = Sequences(jnp.asarray(wider), *sequences[1:])
    reference = None if reference is None else ppo.parallel.put(reference)
    scored = ppo.score(state, reference, sequences, rollout)
    return ppo.make_trajectories(state, scored, rollout, sequences, scores)


def update_from(ppo, prompts, rollout, *args, **options) -> Update:
    """Everything after sampling, from a given rollout."""
    state, trajectories, stats = estimate_from(ppo, prompts, rollout, *args, **options)
    state, update_stats = ppo.update(state, trajectories, 0)
    return Update(jax.device_get(stats | update_stats), jax.device_get(state.params), jax.device_get(state.opt_state))


def assert_same(a: Update, b: Update, tolerance=1e-5):
    assert a.stats.keys() == b.stats.keys()
    for name in a.stats:
        np.testing.assert_allclose(a.stats[name], b.stats[name], rtol=0, atol=tolerance, err_msg=name)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance), a.params, b.params)


@functools.cache
def baseline_of(variant):
    config = VARIANTS[variant]
    copies = config.rl.group_size
    ppo = make_ppo(config)
    update = update_from(ppo, make_prompts(copies=copies), rollout_of(copies))
    before = jax.device_get(start(ppo).params["policy"])
    moved = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), update.params["policy"], before)
    assert max(jax.tree.leaves(moved)) > 1e-3  # an update that does nothing would pass every comparison below
    return update


@pytest.fixture(scope="module", params=quick_first(2, sorted(VARIANTS, key=["separate", "rloo", *VARIANTS].index)))
def variant(request):
    return request.param


@pytest.mark.full
@pytest.mark.parametrize("kl_estimator", ["k1", "k3"])
def test_first_update_kl_is_zero_with_sampler_logprobs(recorded, kl_estimator):
    ppo = make_ppo(replace(CONFIG, kl_estimator=kl_estimator))
    *_, stats = estimate_from(ppo, make_prompts(), recorded, reference=POLICY)
    assert abs(stats["objective/kl"]) < 1e-5


def test_first_update_kl_is_exactly_zero_when_recomputed(recorded):
    ppo = make_ppo(replace(CONFIG, logprobs="recompute"))
    *_, stats = estimate_from(ppo, make_prompts(), recorded, reference=POLICY)
    assert stats["objective/kl"] == 0.0


@pytest.mark.parametrize("logprobs", ["sampler", "recompute"])
def test_first_mini_batch_has_ratio_one(recorded, logprobs):
    stats = update_from(make_ppo(replace(CONFIG, logprobs=logprobs)), make_prompts(), recorded).stats
    assert abs(stats["val/ratio_first"] - 1.0) < 1e-5
    assert stats["policy/approxkl_avg_first"] < 1e-9
    assert abs(stats["val/ratio"] - 1.0) > 1e-4  # the second epoch has moved


@pytest.mark.parametrize("variant_name", ["full-kl", "lora"])
def test_a_padded_vocabulary_leaves_the_first_update_as_it_is(variant_name):
    """Three more rows, of the largest logits: nothing of a step changes, and they get no gradient."""
    config = replace(VARIANTS[variant_name], logprobs="recompute")
    widened = dataclasses.replace(MODEL, vocab_size=MODEL.vocab_size + 3, num_tokens=MODEL.vocab_size)
    kernel, embedding = POLICY["lm_head"]["kernel"], POLICY["trunk"]["embed_in"]["embedding"]
    more = {"embed_in": {"embedding": np.concatenate([embedding, embedding[:3]])}}
    wide = {
        "trunk": POLICY["trunk"] | more,
        "lm_head": {"kernel": np.concatenate([kernel, 50 * kernel[:, :3]], axis=1)},
    }
    ppos = [PPO(config, model, EOS, PAD, DataParallel(devices=jax.devices()[:1])) for model in (MODEL, widened)]
    starts = [ppo.init_state(policy) for ppo, policy in zip(ppos, (POLICY, wide), strict=True)]
    results = []
    for ppo, state, policy in zip(ppos, starts, (POLICY, wide), strict=True):
        prompts = make_prompts()
        rollout = jax.device_get(ppo.generate(state, prompts, 1))
        sequences = ppo.pack(prompts, rollout)
        scored = ppo.score(state, ppo.reference(state, policy), sequences, rollout)
        state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, SCORES)
        state, more_stats = ppo.update(state, trajectories, 1)
        results.append((rollout, jax.device_get(stats | more_stats), jax.device_get(state.params["policy"])))
    (narrow_rollout, narrow_stats, narrow_params), (wide_rollout, wide_stats, wide_params) = results
    np.testing.assert_array_equal(wide_rollout.completion_ids, narrow_rollout.completion_ids)
    assert wide_stats["objective/kl"] == 0.0 and abs(wide_stats["val/ratio_first"] - 1.0) < 1e-6
    assert wide_stats["policy/approxkl_avg_first"] < 1e-12
    for name, value in narrow_stats.items():
        np.testing.assert_allclose(wide_stats[name], value, atol=2e-5, err_msg=name)
    if variant_name == "full-kl":
        after = wide_params["lm_head"]["kernel"]
        np.testing.assert_array_equal(after[:, -3:], wide["lm_head"]["kernel"][:, -3:])
        np.testing.assert_allclose(after[:, :-3], narrow_params["lm_head"]["kernel"], atol=2e-5)
        assert np.abs(after[:, :-3] - kernel).max() > 1e-3


def test_any_of_several_ends_spares_the_penalty():
    ends, penalty = (EOS, 5, 9), 0.75
    config = replace(CONFIG, missing_eos_penalty=penalty, kl_coef=0.0)
    model = dataclasses.replace(MODEL, end_ids=ends[1:])
    ppo = PPO(config, model, EOS, PAD, DataParallel(devices=jax.devices()[:1]))
    assert ppo.stop_ids == ppo.end_ids == ends
    prompts, lasts = make_prompts(), [EOS, 5, 9, 4, EOS, 5, 9, 4]
    rollout = ppo.rollout_of([[4, 6, last] for last in lasts])
    np.testing.assert_array_equal(rollout.ended, np.array(lasts) != 4)
    state, sequences = start(ppo), ppo.pack(prompts, rollout)
    scored = ppo.score(state, None, sequences, rollout)
    _, _, stats = ppo.make_trajectories(state, scored, rollout, sequences, SCORES)
    np.testing.assert_allclose(stats["objective/scores"], SCORES.mean() - penalty * 2 / 8, rtol=1e-6)
    assert (stats["val/num_eos_tokens"], stats["completions/clipped_ratio"]) == (6, 0.25)
    with pytest.raises(DataError, match="completion 0: expected its stop token 9 last"):
        ppo.rollout_of([[4, 9, EOS]] * ROWS)
    alone = PPO(replace(config, stop_token_id=6), model, EOS, PAD, DataParallel(devices=jax.devices()[:1]))
    assert alone.stop_ids == (6,) and not np.any(alone.rollout_of([[4, last] for last in lasts]).ended)


def permuted(prompts, rollout, copies, order):
    """Prompts in another order, each with its completions; and the order of the rows."""
    rows = (np.asarray(order)[:, None] * copies + np.arange(copies)).reshape(-1)
    return PromptBatch(*(x[np.asarray(order)] for x in prompts)), Rollout(*(x[rows] for x in rollout)), rows


def padded(rollout, columns, junk):
    """The same completions in wider arrays, with junk behind them."""
    wider = lambda x, fill: np.pad(x, ((0, 0), (0, columns)), constant_values=fill)  # noqa: E731
    mask = wider(rollout.completion_mask, False)
    ids = np.where(mask, wider(rollout.completion_ids, junk), junk)
    logprobs = np.where(mask, wider(rollout.logprobs, -3.0), -3.0)
    return Rollout(ids, mask, logprobs, rollout.ended)


@settings(deadline=None, max_examples=8, derandomize=True)
@given(order_seed=st.integers(0, 1000), junk=st.integers(0, 23), score_seed=st.integers(0, 1000))
def test_update_does_not_depend_on_what_should_not_matter(variant, order_seed, junk, score_seed):
    """All at once, no change: padding left and right with junk in it, row order, micro-batches, devices, pad = eos."""
    config, copies = VARIANTS[variant], VARIANTS[variant].rl.group_size
    scores = np.random.default_rng(score_seed).normal(size=ROWS).astype(np.float32)
    plain = update_from(make_ppo(config), make_prompts(copies=copies), rollout_of(copies), scores)
    order = np.random.default_rng(order_seed).permutation(ROWS // copies)
    prompts = make_prompts(EOS, copies, extra_padding=4)
    prompts, rollout, rows = permuted(prompts, rollout_of(copies), copies, order)
    ppo = make_ppo(replace(config, gradient_accumulation_steps=2), num_devices=2, pad_id=EOS)
    other = update_from(ppo, prompts, padded(rollout, 5, junk), scores[rows], extra_padding=5)
    assert_same(other, plain, tolerance=3e-5)


@pytest.mark.parametrize(("mode", "num_devices"), [("pmap", 4)])  # shard_map is above and below
def test_devices_change_nothing(variant, mode, num_devices):
    config, copies = VARIANTS[variant], VARIANTS[variant].rl.group_size
    ppo, prompts = make_ppo(config, mode, num_devices), make_prompts(copies=copies)
    rollout, step = sample(copies)
    assert_same(update_from(ppo, prompts, rollout), baseline_of(variant))
    completions = ppo.generate(start(ppo), prompts, step).completion_ids
    np.testing.assert_array_equal(completions, rollout.completion_ids)


@pytest.mark.full
def test_mini_batches_are_the_same_on_any_device_count(recorded):
    config = replace(CONFIG, num_mini_batches=2, gradient_accumulation_steps=2)
    updates = [
        update_from(
            make_ppo(replace(config, gradient_accumulation_steps=parts), "shard_map", n), make_prompts(), recorded
        )
        for n, parts in ((1, 1), (2, 2), (4, 1))
    ]
    assert_same(updates[0], updates[1])
    assert_same(updates[0], updates[2])


@pytest.mark.full
def test_parts_that_fit_the_cache_change_nothing(recorded, monkeypatch):
    monkeypatch.setattr(memory, "rows_at_once", lambda *_: 3)
    assert_same(update_from(make_ppo(VARIANTS["full-kl"]), make_prompts(), recorded), baseline_of("full-kl"))


@pytest.mark.full
@pytest.mark.parametrize(("variant", "mode", "num_devices"), [("lora", "pmap", 2), ("separate", "shard_map", 2)])
def test_micro_batches_cut_to_their_lengths_change_nothing(variant, mode, num_devices, monkeypatch):
    monkeypatch.setattr(padding, "SEQUENCE_BUCKET", 1)
    monkeypatch.setattr(padding, "WORTH_CUTTING", 0.99)
    copies, columns = VARIANTS[variant].rl.group_size, set()
    prompts, rollout = make_prompts(copies=copies), rollout_of(copies)
    lengths = np.sort(np.repeat(prompts.prompt_mask.sum(1), copies) + rollout.completion_mask.sum(1))
    full = lengths[-1]
    length_gaps = (full - lengths[ROWS // 2 - 1], 0, 0)
    assert len(padding.cut_lengths(full, length_gaps)) > 1  # the shorter half of the rows may be cut
    apply = models.apply

    def spy(config, params, input_ids, **options):
        columns.add(input_ids.shape[1])
        return apply(config, params, input_ids, **options)

    monkeypatch.setattr(models, "apply", spy)
    config = replace(VARIANTS[variant], gradient_accumulation_steps=2)
    parallel = DataParallel(mode, jax.devices()[:num_devices])
    ppo = PPO(config, MODEL, EOS, PAD, parallel, length_gaps=length_gaps)
    monkeypatch.setattr(data, "SEQUENCE_BUCKET", 1)
    assert_same(update_from(ppo, prompts, rollout), baseline_of(variant), tolerance=3e-5)
    assert columns == {full, full - length_gaps[0]}


@pytest.mark.parametrize("parts", [1, 2])
def test_micro_batches_that_can_be_cut_are_sorted_by_length(recorded, parts, monkeypatch):
    monkeypatch.setattr(padding, "cut_lengths", lambda full, length_gaps: [full - 1, full])
    config = replace(CONFIG, num_mini_batches=2, gradient_accumulation_steps=parts)
    ppo = PPO(config, MODEL, EOS, PAD, DataParallel(devices=jax.devices()[:1]), length_gaps=(1,))
    sequences = ppo.pack(make_prompts(), recorded)
    scored = ppo.score(start(ppo), None, sequences, recorded)
    trajectories = ppo.make_trajectories(start(ppo), scored, recorded, sequences, SCORES)[1]
    (batch, weights) = ppo._mini_batches(trajectories, jax.random.key(0))
    lengths = np.asarray(ops.real_lengths(batch.sequences)).reshape(4, -1)  # two epochs of two mini-batches
    assert np.all(np.diff(lengths, axis=1) >= 0) == (parts > 1)
    np.testing.assert_array_equal(np.sort(lengths[:2].ravel()), np.sort(ops.real_lengths(sequences)))
    for name in ("tokens", "policy"):  # each mini-batch's weights belong to its rows
        weight = np.asarray(getattr(weights, name)).reshape(4, -1, LENGTH)
        mask = np.asarray(batch.sequences.completion_mask).reshape(weight.shape)
        np.testing.assert_array_equal(weight > 0, mask)
        np.testing.assert_allclose(weight.sum(axis=(1, 2)), 1.0, rtol=1e-5)


@pytest.mark.full
def test_scoring_in_chunks_changes_nothing(recorded):
    chunked = make_ppo(replace(VARIANTS["full-kl"], local_rollout_forward_batch_size=3))
    assert_same(update_from(chunked, make_prompts(), recorded), baseline_of("full-kl"))


def test_pad_equal_to_eos_samples_the_same(recorded):
    ppo = make_ppo(pad_id=EOS)
    rollout = ppo.generate(start(ppo), make_prompts(EOS), sample(1)[1])
    np.testing.assert_array_equal(rollout.completion_mask, recorded.completion_mask)
    np.testing.assert_array_equal(
        np.where(recorded.completion_mask, rollout.completion_ids, 0),
        np.where(recorded.completion_mask, recorded.completion_ids, 0),
    )


def test_completions_from_elsewhere_give_the_same_update(recorded):
    ppo = make_ppo()
    lists = [ids[mask].tolist() for ids, mask in zip(recorded.completion_ids, recorded.completion_mask, strict=True)]
    update = update_from(ppo, make_prompts(), ppo.rollout_of(lists))
    assert_same(update, baseline_of("separate"), tolerance=2e-5)


@pytest.mark.parametrize(
    ("completion", "message"),
    [([], "got 0"), ([5] * (LENGTH + 1), f"got {LENGTH + 1}"), ([5, EOS, 5], "stop token 0 last")],
)
def test_rollout_of_names_the_completion_that_does_not_fit(completion, message):
    with pytest.raises(DataError, match=f"completion 1: .*{message}"):
        make_ppo().rollout_of([[5, EOS], completion])


@pytest.mark.parametrize("scores", [SCORES[:1], SCORES[:4], SCORES[:, None], 0.5])
@pytest.mark.parametrize("variant", ["separate", "rloo"])
def test_make_trajectories_wants_one_score_per_completion(variant, scores):
    config, copies = VARIANTS[variant], VARIANTS[variant].rl.group_size
    with pytest.raises(DataError, match=f"scores: expected {ROWS} numbers, got the shape"):
        update_from(make_ppo(config), make_prompts(copies=copies), rollout_of(copies), scores)


@pytest.mark.parametrize("wrong", [lambda x: x[:, :-1], lambda x: x[:1], lambda x: x[0]])
def test_make_trajectories_wants_one_part_per_token(recorded, wrong):
    ppo = make_ppo()
    state, prompts = start(ppo), make_prompts()
    sequences = ppo.pack(prompts, recorded)
    scored = ppo.score(state, None, sequences, recorded)
    parts = np.zeros(sequences.completion_mask.shape, np.float32)
    ppo.make_trajectories(state, scored, recorded, sequences, SCORES, parts)
    with pytest.raises(DataError, match=r"token_scores: expected .* numbers, got the shape"):
        ppo.make_trajectories(state, scored, recorded, sequences, SCORES, wrong(parts))
    for name, numbers in (("scores", (SCORES + np.inf, None)), ("token_scores", (SCORES, parts - np.inf))):
        with pytest.raises(DataError, match=f"^{name}: expected finite numbers, .* got an infinite one"):
            ppo.make_trajectories(state, scored, recorded, sequences, *numbers)


def test_pack_wants_the_rows_of_a_batch(recorded):
    half = Rollout(*(x[:4] for x in recorded))
    with pytest.raises(DataError, match=f"completions: expected those of {ROWS} rows .batch_size., got 4"):
        make_ppo().pack(make_prompts(), half)
    with pytest.raises(DataError, match=f"prompts: expected those of {ROWS} rows .batch_size., got 4"):
        make_ppo().pack(PromptBatch(*(x[:4] for x in make_prompts())), recorded)


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_mini_batches_without_a_counted_token_take_no_step_and_do_not_dilute(algorithm):
    """All but one completion are cut and masked: of 4 mini-batches 3 have nothing to learn from."""
    groups = {"num_generations": 2} if algorithm == "rloo" else {}
    config = replace(CONFIG, algorithm=algorithm, **groups, mask_truncated_completions=True, num_mini_batches=4)
    ppo = make_ppo(replace(config, num_ppo_epochs=1))
    rollout = ppo.rollout_of([[5] * LENGTH] * (ROWS - 1) + [[6, 7, EOS]])
    update = update_from(ppo, make_prompts(copies=config.rl.group_size), rollout)
    counts = [leaf for leaf in jax.tree.leaves(update.opt_state) if leaf.dtype == np.int32 and leaf.ndim == 0]
    assert counts == [1]
    np.testing.assert_allclose(update.stats["val/ratio"], 1.0, atol=1e-5)
    assert update.stats["policy/entropy_avg"] > 0.5
    assert update.stats["objective/kl_k3"] > 1.0  # of all completions, also those that were masked


def test_completions_of_a_prompt_are_adjacent_and_differ():
    ppo = make_ppo(replace(VARIANTS["rloo"], num_generations=4))
    prompts = make_prompts(copies=4)
    rollout = ppo.generate(start(ppo), prompts, 0)
    sequences = ppo.pack(prompts, rollout)
    lengths = np.asarray(sequences.prompt_lengths)
    np.testing.assert_array_equal(lengths, np.repeat(prompts.prompt_mask.sum(1), 4))
    for row, ids in enumerate(np.asarray(sequences.input_ids)):
        prompt = prompts.prompt_ids[row // 4][prompts.prompt_mask[row // 4]]
        np.testing.assert_array_equal(ids[: lengths[row]], prompt)
    assert len({tuple(row) for row in np.asarray(rollout.completion_ids)}) > 4


def test_lengths_are_drawn_per_row_and_anew_for_each_update():
    ppo = make_ppo(replace(CONFIG, output_min_length=2, stop_token="none"))
    lengths = [np.asarray(ppo.generate(start(ppo), make_prompts(), step).completion_mask).sum(1) for step in range(6)]
    assert np.min(lengths) == 2 and np.max(lengths) == LENGTH
    assert len({tuple(row) for row in lengths}) == 6


def test_without_reference_there_is_no_kl(recorded):
    stats = update_from(make_ppo(), make_prompts(), recorded, reference=None).stats
    assert not any(name.startswith("objective/kl") for name in stats)
    assert stats["objective/rlhf_reward"] == stats["objective/scores"]


def test_an_update_leaves_the_arrays_it_started_from_alone(recorded):
    """Its memory is donated: without copies, a reference that shares it would be gone."""
    ppo = make_ppo()
    policy = ppo.parallel.put(POLICY)
    state = ppo.init_state(policy)
    sequences = ppo.pack(make_prompts(), recorded)
    scored = ppo.score(state, policy, sequences, recorded)
    state, trajectories, _ = ppo.make_trajectories(state, scored, recorded, sequences, SCORES)
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
        state, trajectories, _ = ppo.make_trajectories(state, scored, rollout, sequences, scores)
        state, _ = ppo.update(state, trajectories, step)
        means.append(scores.mean())
    assert np.mean(means[-5:]) > np.mean(means[:5]) + 0.3


def one_update(ppo, state, reference, recorded):
    sequences = ppo.pack(make_prompts(), recorded)
    scored = ppo.score(state, reference, sequences, recorded)
    state, trajectories, stats = ppo.make_trajectories(state, scored, recorded, sequences, SCORES)
    return *ppo.update(state, trajectories, 0), stats


@pytest.mark.parametrize("value_model", ["separate", "shared"])
def test_adapters_of_policy_and_value_share_one_frozen_base_with_the_reference(recorded, value_model):
    ppo = make_ppo(replace(VARIANTS["lora"], value_model=value_model, logprobs="recompute"))
    state = ppo.init_state(POLICY)
    reference = ppo.reference(state, POLICY)
    assert reference is state.frozen["policy"]
    if value_model == "separate":
        shared = jax.tree.map(lambda a, b: a is b, state.frozen["policy"]["trunk"], state.frozen["value"]["trunk"])
        assert all(jax.tree.leaves(shared))
    trained = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(state.params)}
    assert trained == {"lora_a", "lora_b", "kernel", "bias"} - ({"bias"} if value_model == "separate" else set())
    state, _, stats = one_update(ppo, state, reference, recorded)
    assert abs(stats["objective/kl"]) < 1e-5  # a fresh adapter changes nothing
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.frozen["policy"]), POLICY)
    _, _, stats = one_update(ppo, state, reference, recorded)  # the update has not taken the base's memory
    assert stats["objective/kl_k3"] > 1e-5
    moments = [leaf.size for leaf in jax.tree.leaves(state.opt_state)]
    assert sum(moments) < 2.1 * sum(leaf.size for leaf in jax.tree.leaves(state.params))


def test_a_given_adapter_is_where_the_policy_starts(recorded):
    """And the reference stays there."""
    ppo = make_ppo(replace(VARIANTS["lora"], logprobs="recompute", lora_path="folder"))
    fresh = ppo.init_state(POLICY).params["policy"]
    given = jax.tree.map(lambda x: x + 0.3, fresh)
    state = ppo.init_state(POLICY, adapter=given)
    whole = ppo.models_of(state)["policy"]["trunk"]["layers"]["0"]["attention"]["dense"]
    base, adapter = (tree["trunk"]["layers"]["0"]["attention"]["dense"] for tree in (POLICY, given))
    np.testing.assert_array_equal(whole["kernel"], base["kernel"])
    np.testing.assert_allclose(whole["lora_b"], adapter["lora_b"] * 32.0 / 4, rtol=1e-6)
    reference = ppo.reference(state, POLICY)
    assert reference["trunk"]["embed_in"]["embedding"] is state.frozen["policy"]["trunk"]["embed_in"]["embedding"]
    state, _, stats = one_update(ppo, state, reference, recorded)
    assert abs(stats["objective/kl_k3"]) < 1e-6
    *_, stats = one_update(ppo, state, reference, recorded)  # the update has not taken the adapter's memory
    assert stats["objective/kl_k3"] > 1e-5


@pytest.mark.full
def test_bfloat16_computes_with_float32_parameters_and_recomputed_logprobs(recorded):
    config = replace(CONFIG, dtype="bfloat16")
    assert config.logprobs == "recompute" and CONFIG.logprobs == "sampler"
    ppo = make_ppo(config)
    state = start(ppo)
    reference = ppo.reference(state, POLICY)
    assert {leaf.dtype for leaf in jax.tree.leaves(reference)} == {jnp.dtype("bfloat16")}
    rollout = ppo.generate(state, make_prompts(), sample(1)[1])
    assert rollout.logprobs.dtype == jnp.float32
    after, update_stats, stats = one_update(ppo, state, reference, recorded)
    assert {leaf.dtype for leaf in jax.tree.leaves(after.params)} == {jnp.dtype("float32")}
    assert stats["objective/kl"] == 0.0  # the same bits went through the same program
    assert abs(update_stats["val/ratio_first"] - 1.0) < 0.02
    plain = update_from(make_ppo(), make_prompts(), recorded, reference=POLICY).stats
    for name in ("objective/scores", "policy/entropy_avg", "loss/value_avg", "grad_norm"):
        both = stats | update_stats
        np.testing.assert_allclose(both[name], plain[name], rtol=0.1, err_msg=name)
    assert both["policy/entropy_avg"] != plain["policy/entropy_avg"]


@pytest.mark.full
def test_a_value_model_may_have_another_architecture(recorded):
    other = GPTNeoXConfig(vocab_size=24, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    ppo = PPO(CONFIG, MODEL, EOS, PAD, DataParallel(devices=jax.devices()[:1]), value_model=other)
    value = models.init_params(other, jax.random.key(3), head="score")
    state = ppo.init_state(POLICY, value)
    after, update_stats, _ = one_update(ppo, state, ppo.reference(state, POLICY), recorded)
    assert np.isfinite(update_stats["loss/value_avg"])
    assert after.params["value"]["score"]["kernel"].shape == (8, 1)
    assert np.abs(after.params["value"]["score"]["kernel"] - value["score"]["kernel"]).max() > 1e-4


@pytest.mark.full
def test_a_value_model_without_a_head_gets_one_of_zeros():
    state = make_ppo().init_state(POLICY, {"trunk": REFERENCE["trunk"]})
    assert not np.asarray(state.params["value"]["score"]["kernel"]).any()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params["value"]["trunk"]), REFERENCE["trunk"])
