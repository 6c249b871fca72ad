"""A whole update: what must hold at the first one, and what must not change it."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import data, models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError, DataError
from jaxppo.nn import ModelSource
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel import platform
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.rl import ops, padding
from jaxppo.rl.learner import PPO
from jaxppo.run import activity
from jaxppo.types import PromptBatch, Rollout
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
    learning_rate=3e-3,
    lr_scheduler_type="constant",
    kl_coef=0.01,
    total_episodes=6400,
)
RLOO = replace(CONFIG, algorithm="rloo", num_generations=2)
VARIANTS = {
    "separate": CONFIG,
    "rloo": replace(RLOO, normalize_advantages=True, output_min_length=2),
    "shared": replace(CONFIG, value_model="shared"),
    "full-kl": replace(CONFIG, kl_estimator="full", entropy_coef=0.01, missing_eos_penalty=0.3),
    "lora": replace(CONFIG, use_peft=True, lora_r=4, learning_rate=1e-2),
}
OTHER_DEVICES = {
    "separate": ("shard_map", 2),
    "rloo": ("pmap", 4),
    "shared": ("pmap", 2),
    "full-kl": ("shard_map", 4),
    "lora": ("pmap", 4),
}
"""Where each variant must do what it does on one device."""
RECOMPUTED = replace(VARIANTS["full-kl"], logprobs="recompute")
ADAPTERS = replace(VARIANTS["lora"], logprobs="recompute")
POLICY = jax.device_get(models.init_params(MODEL, jax.random.key(0)))
REFERENCE = jax.device_get(models.init_params(MODEL, jax.random.key(1)))
SCORES = np.linspace(-0.5, 1.0, ROWS, dtype=np.float32)


@functools.cache  # compiled programs are kept
def make_ppo(config=CONFIG, mode="shard_map", num_devices=1, pad_id=PAD, model=MODEL):
    return PPO(config, model, EOS, pad_id, DataParallel(mode, jax.devices()[:num_devices]))


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


@functools.cache
def sample(copies):
    """One rollout made on one device, of which some rows end and some are cut, and the number of its update."""
    ppo = make_ppo(VARIANTS["separate" if copies == 1 else "rloo"])
    state, prompts = start(ppo), make_prompts(copies=copies)
    for step in range(20):
        rollout = jax.device_get(ppo.generate(state, prompts, step))
        if 0 < rollout.ended.sum() < ROWS:
            return rollout, step
    raise AssertionError("all rows end, or none does")


@pytest.fixture(scope="module")
def recorded():
    return sample(1)[0]


def estimate(ppo, state, reference, prompts, rollout, scores=SCORES, extra_padding=0, scorer=None):
    """The stages between sampling and learning: state, trajectories, statistics.

    Another PPO may score, whose programs are compiled, where the settings make no difference to that.
    """
    sequences = ppo.pack(prompts, rollout)
    if extra_padding:
        wider = jnp.pad(sequences.input_ids, ((0, 0), (0, extra_padding)), constant_values=7)
        sequences = sequences._replace(input_ids=wider)
    scored = (scorer or ppo).score(state, reference, sequences, rollout)
    return ppo.make_trajectories(state, scored, rollout, sequences, scores)


def learn(ppo, state, reference, prompts, rollout, *args, **options):
    """Everything after sampling: the state after the update, and its statistics."""
    state, trajectories, stats = estimate(ppo, state, reference, prompts, rollout, *args, **options)
    state, update_stats = ppo.update(state, trajectories, 0)
    return state, jax.device_get(stats | update_stats)


def update_from(ppo, prompts, rollout, *args, **options):
    """An update of the models of `start`."""
    return learn(ppo, start(ppo), ppo.parallel.put(REFERENCE), prompts, rollout, *args, **options)


def assert_same(one, other, tolerance=3e-5):
    """Two results of `learn` have the same statistics and parameters."""
    (state, stats), (other_state, other_stats) = one, other
    assert stats.keys() == other_stats.keys()
    for name in stats:
        np.testing.assert_allclose(stats[name], other_stats[name], rtol=0, atol=tolerance, err_msg=name)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=tolerance)
    jax.tree.map(close, jax.device_get(state.params), jax.device_get(other_state.params))


def moved(params, others):
    """How far parameters are from others, at most."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), params, others)))


@functools.cache
def baseline_of(variant):
    config = VARIANTS[variant]
    copies = config.rl.group_size
    ppo = make_ppo(config)
    state, stats = update_from(ppo, make_prompts(copies=copies), sample(copies)[0])
    # An update that does nothing would pass every comparison below.
    assert moved(state.params["policy"], start(ppo).params["policy"]) > 1e-3
    return state, stats


@pytest.mark.parametrize("config", [CONFIG, RECOMPUTED], ids=["sampler", "recompute"])
def test_the_first_update_starts_at_kl_0_and_ratio_1(recorded, config):
    ppo = make_ppo(config)
    _, stats = learn(ppo, start(ppo), ppo.parallel.put(POLICY), make_prompts(), recorded)
    # Recomputed, the same bits went through the same program.
    most = 0.0 if config.logprobs == "recompute" else 1e-5
    for name in ("objective/kl", "objective/kl_k1", "objective/kl_k3"):
        assert abs(stats[name]) <= most
    assert abs(stats["val/ratio_first"] - 1.0) < 1e-5
    assert stats["policy/approxkl_avg_first"] < 1e-9
    assert abs(stats["val/ratio"] - 1.0) > 1e-4  # the second epoch has moved


def test_without_a_reference_there_is_none_to_compare_with(recorded):
    ppo = make_ppo()
    scored = ppo.score(start(ppo), None, ppo.pack(make_prompts(), recorded), recorded)
    assert scored.ref_logprobs is scored.full_kl is None
    assert make_ppo(replace(CONFIG, kl_coef=0.0)).reference(start(ppo), POLICY) is None


def permuted(prompts, rollout, copies, order):
    """Prompts in another order, each with its completions; and the order of the rows."""
    rows = (np.asarray(order)[:, None] * copies + np.arange(copies)).reshape(-1)
    return PromptBatch(*(x[np.asarray(order)] for x in prompts)), Rollout(*(x[rows] for x in rollout)), rows


def padded(rollout, columns, junk):
    """The same completions in wider arrays, with junk after them."""

    def wider(x, fill):
        return np.pad(x, ((0, 0), (0, columns)), constant_values=fill)

    mask = wider(rollout.completion_mask, False)
    ids = np.where(mask, wider(rollout.completion_ids, junk), junk)
    logprobs = np.where(mask, wider(rollout.logprobs, -3.0), -3.0)
    return Rollout(ids, mask, logprobs, rollout.ended)


@pytest.mark.parametrize("variant", quick_first(2, VARIANTS))
def test_an_update_does_not_depend_on_what_should_not_matter(variant):
    """All at once, no change: padding left and right with junk in it, row order, micro-batches, devices, pad = eos."""
    config, copies = VARIANTS[variant], VARIANTS[variant].rl.group_size
    rollout, step = sample(copies)
    mode, num_devices = OTHER_DEVICES[variant]
    other = make_ppo(replace(config, gradient_accumulation_steps=2), mode, num_devices, pad_id=EOS)
    prompts = make_prompts(EOS, copies, extra_padding=4)
    assert_same(update_from(other, prompts, padded(rollout, 5, 7), extra_padding=5), baseline_of(variant))
    for seed, junk in enumerate((EOS, PAD)):
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=ROWS).astype(np.float32)
        plain = update_from(make_ppo(config), make_prompts(copies=copies), rollout, scores)
        shuffled, completions, rows = permuted(prompts, rollout, copies, rng.permutation(ROWS // copies))
        result = update_from(other, shuffled, padded(completions, 5, junk), scores[rows], extra_padding=5)
        assert_same(result, plain)
    drawn = other.generate(start(other), prompts, step)
    np.testing.assert_array_equal(drawn.completion_mask, rollout.completion_mask)
    np.testing.assert_array_equal(
        np.where(rollout.completion_mask, drawn.completion_ids, 0),
        np.where(rollout.completion_mask, rollout.completion_ids, 0),
    )


@pytest.mark.full
def test_mini_batches_are_the_same_on_any_device_count(recorded):
    config = replace(CONFIG, num_mini_batches=2)
    several = make_ppo(replace(config, gradient_accumulation_steps=2), num_devices=2)
    assert_same(*(update_from(ppo, make_prompts(), recorded) for ppo in (make_ppo(config), several)))


@pytest.mark.full
def test_scoring_and_learning_in_parts_changes_nothing(recorded, monkeypatch):
    monkeypatch.setattr(memory, "rows_at_once", lambda *_: 3)
    in_parts = make_ppo(replace(VARIANTS["full-kl"], local_rollout_forward_batch_size=3))
    assert_same(update_from(in_parts, make_prompts(), recorded), baseline_of("full-kl"))


@pytest.mark.full
def test_stages_without_memory_are_repeated_with_fewer_rows_and_nothing_changes(recorded, monkeypatch):
    ppo, warnings = make_ppo(), []
    monkeypatch.setattr(activity, "warn", warnings.append)

    def with_memory_for(most, program, rows_of):
        def limited(*args):
            if rows_of(*args) > most:
                raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
            return program(*args)

        return limited

    ppo.sample_program = with_memory_for(3, ppo.sample_program, lambda policy, prompts, *_: len(prompts.prompt_ids))
    drawn = ppo.generate(start(ppo), make_prompts(), sample(1)[1])
    np.testing.assert_array_equal(drawn.completion_mask, recorded.completion_mask)
    np.testing.assert_array_equal(drawn.completion_ids, recorded.completion_ids)
    ppo.values_program = with_memory_for(
        0, ppo.values_program, lambda *_: 1
    )  # the program that is compiled in its place has memory
    micro_rows = lambda state, frozen, cut: jax.tree.leaves(cut)[0].shape[2]  # noqa: E731
    ppo.update_program = with_memory_for(4, ppo.update_program, micro_rows)
    assert_same(update_from(ppo, make_prompts(), recorded), baseline_of("separate"))
    assert ppo.scored_rows(20) == ROWS // 2 and ppo.micro_batches(20) == 2 and ppo.sampling_parts(8) == 4
    assert [warning.partition(":")[0] for warning in warnings] == ["sampling", "scoring", "learning"]
    with platform.compiling_for(platform.Platform("gpu", 2**20)):  # the estimate comes first
        assert make_ppo().sampling_parts(2000) == ROWS


@pytest.mark.full
@pytest.mark.parametrize("wide", [False, True])
def test_micro_batches_cut_to_their_lengths_change_nothing(recorded, wide, monkeypatch):
    """A wide model has one length, that of the longest sequence there can be, and is scored in parts that are cut."""
    if wide:
        monkeypatch.setattr("jaxppo.nn.config.WIDE_FROM", MODEL.hidden_size)
    monkeypatch.setattr(padding, "SEQUENCE_BUCKET", 1)
    monkeypatch.setattr(padding, "WORTH_CUTTING", 0.99)
    prompts, columns = make_prompts(), set()
    lengths = np.sort(prompts.prompt_mask.sum(1) + recorded.completion_mask.sum(1))
    full = prompts.prompt_ids.shape[1] + LENGTH if wide else lengths[-1]
    length_gaps = (full - lengths[ROWS // 2 - 1], 0, 0)
    assert len(padding.cut_lengths(full, length_gaps)) > 1  # the shorter half of the rows may be cut
    apply = models.apply

    def spy(config, params, input_ids, **options):
        columns.add(input_ids.shape[1])
        return apply(config, params, input_ids, **options)

    expected = baseline_of("separate")
    monkeypatch.setattr(models, "apply", spy)
    config = replace(CONFIG, gradient_accumulation_steps=2)
    ppo = PPO(config, MODEL, EOS, PAD, DataParallel(devices=jax.devices()[:2]), length_gaps=length_gaps)
    assert_same(update_from(ppo, prompts, recorded), expected)
    assert columns == {full, full - length_gaps[0]}


@pytest.mark.parametrize("parts", [1, 2])
def test_micro_batches_that_can_be_cut_are_sorted_by_length(recorded, parts, monkeypatch):
    monkeypatch.setattr(padding, "cut_lengths", lambda full, length_gaps: [full - 1, full])
    config = replace(CONFIG, num_mini_batches=2, gradient_accumulation_steps=parts)
    ppo = PPO(config, MODEL, EOS, PAD, DataParallel(devices=jax.devices()[:1]), length_gaps=(1,))
    plain = make_ppo()
    _, trajectories, _ = estimate(plain, start(plain), plain.parallel.put(REFERENCE), make_prompts(), recorded)
    batch, weights = ppo.mini_batches_program(trajectories, jax.random.key(0))
    lengths = np.asarray(ops.real_lengths(batch.sequences)).reshape(4, -1)  # two epochs of two mini-batches
    assert np.all(np.diff(lengths, axis=1) >= 0) == (parts > 1)
    np.testing.assert_array_equal(np.sort(lengths[:2].ravel()), np.sort(ops.real_lengths(trajectories.sequences)))
    for name in ("tokens", "policy"):  # each mini-batch's weights belong to its rows
        weight = np.asarray(getattr(weights, name)).reshape(4, -1, LENGTH)
        mask = np.asarray(batch.sequences.completion_mask).reshape(weight.shape)
        np.testing.assert_array_equal(weight > 0, mask)
        np.testing.assert_allclose(weight.sum(axis=(1, 2)), 1.0, rtol=1e-5)


def test_rows_and_completions_that_do_not_fit_are_refused(recorded):
    config = replace(CONFIG, num_mini_batches=CONFIG.batch_size // 2)
    with pytest.raises(ConfigError, match="batch_size / num_mini_batches / gradient_accumulation_steps"):
        make_ppo(config, num_devices=4)
    for completion in ([], [5] * (LENGTH + 1), [5, EOS, 5]):  # empty, too long, goes on after its end
        with pytest.raises(DataError, match="completion 1"):
            make_ppo().rollout_of([[5, EOS], completion])
    half, fewer = Rollout(*(x[:4] for x in recorded)), PromptBatch(*(x[:4] for x in make_prompts()))
    for name, prompts, rollout in (("completions", make_prompts(), half), ("prompts", fewer, recorded)):
        with pytest.raises(DataError, match=f"^{name}: "):
            make_ppo().pack(prompts, rollout)


def test_make_trajectories_wants_one_finite_score_per_completion(recorded):
    ppo = make_ppo()
    state, sequences = start(ppo), ppo.pack(make_prompts(), recorded)
    outputs = ppo.score(state, ppo.parallel.put(REFERENCE), sequences, recorded)
    for scores in (SCORES[:4], SCORES[:, None], 0.5, SCORES + np.inf):
        with pytest.raises(DataError, match=r"^scores: "):
            ppo.make_trajectories(state, outputs, recorded, sequences, scores)


def test_a_completion_may_end_with_any_of_several_tokens():
    ends, lasts = (EOS, 5, 9), [EOS, 5, 9, 4, EOS, 5, 9, 4]
    model = dataclasses.replace(MODEL, source=ModelSource(end_ids=ends[1:]))
    ppo = make_ppo(model=model)
    assert ppo.stop_ids == ppo.end_ids == ends
    rollout = ppo.rollout_of([[4, 6, last] for last in lasts])
    np.testing.assert_array_equal(rollout.ended, np.array(lasts) != 4)
    with pytest.raises(DataError, match="completion 0"):
        ppo.rollout_of([[4, 9, EOS]] * ROWS)
    alone = make_ppo(replace(CONFIG, stop_token=6), model=model)
    assert alone.stop_ids == (6,)
    assert not np.any(alone.rollout_of([[4, last] for last in lasts]).ended)
    of_vocabulary = np.zeros((2, MODEL.vocab_size), np.int32)  # the tokens 6 and 7 in a row are a stop string
    of_vocabulary[:, 6], of_vocabulary[1, 7] = 1, 2
    stopped = PPO(CONFIG, model, EOS, PAD, DataParallel(devices=jax.devices()[:1]), stop_table=of_vocabulary)
    rows = [[6, 7], [6, 4, 7], [4, 6, 7], [7, 6]] * 2
    np.testing.assert_array_equal(stopped.rollout_of(rows).ended, [True, False, True, False] * 2)


def test_with_pad_equal_to_eos_the_end_is_a_token_of_its_completion():
    rollout = make_ppo(pad_id=EOS).rollout_of([[5, EOS], [7, 8, 9], [EOS], [3, 4, EOS]] * 2)
    np.testing.assert_array_equal(rollout.completion_mask.sum(1), [2, 3, 1, 3] * 2)


def test_lengths_and_tokens_are_drawn_per_row_and_anew_for_each_update():
    ppo, prompts = make_ppo(VARIANTS["rloo"]), make_prompts(copies=2)
    state = start(ppo)
    rollouts = [jax.device_get(ppo.generate(state, prompts, step)) for step in range(8)]
    cut = [rollout.completion_mask.sum(1)[~rollout.ended] for rollout in rollouts]
    assert np.min(np.concatenate(cut)) == 2
    assert np.max(np.concatenate(cut)) == LENGTH
    assert len({tuple(lengths) for lengths in cut}) == 8
    first, second = (rollout.completion_ids[:, :2] for rollout in rollouts[:2])
    assert (first != second).any()


@pytest.mark.parametrize("config", [CONFIG, RLOO], ids=["ppo", "rloo"])
def test_mini_batches_without_a_counted_token_take_no_step_and_do_not_dilute(config):
    """All but one completion are cut and masked: of 4 mini-batches 3 have nothing to learn from."""
    ppo = make_ppo(replace(config, mask_truncated_completions=True, num_mini_batches=4, num_ppo_epochs=1))
    rollout = ppo.rollout_of([[5] * LENGTH] * (ROWS - 1) + [[6, 7, EOS]])
    prompts = make_prompts(copies=config.rl.group_size)
    scorer = make_ppo(CONFIG if config.rl.algorithm == "ppo" else VARIANTS["rloo"])
    state, stats = update_from(ppo, prompts, rollout, scorer=scorer)
    counts = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.dtype == np.int32 and leaf.ndim == 0]
    assert counts == [1]
    np.testing.assert_allclose(stats["val/ratio"], 1.0, atol=1e-5)
    assert stats["policy/entropy_avg"] > 0.5
    assert stats["objective/kl_k3"] > 1.0  # of all completions, also those that were masked


def test_mini_batches_are_drawn_anew_for_each_update(monkeypatch):
    ppo, keys = make_ppo(), set()
    batch = SimpleNamespace(sequences=SimpleNamespace(input_ids=np.zeros((ROWS, 20))))
    monkeypatch.setattr(ppo, "mini_batches_program", lambda _, key: keys.add(tuple(jax.random.key_data(key).tolist())))
    monkeypatch.setattr(ppo, "update_program", lambda state, *_: (state, {}))
    for step in range(3):
        ppo.update(start(ppo), batch, step)
    assert len(keys) == 3


def test_an_update_leaves_the_arrays_it_started_from_alone(recorded):
    """Its memory is donated: without copies, a reference that shares it would be gone."""
    ppo = make_ppo()
    policy = ppo.parallel.put(POLICY)
    learn(ppo, ppo.init_state(policy), policy, make_prompts(), recorded)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(policy), POLICY)


def test_learning_raises_a_simple_reward():
    """Reward: fraction of tokens equal to 5."""
    ppo, prompts = make_ppo(), make_prompts()
    state, reference, means = start(ppo), ppo.parallel.put(POLICY), []
    for step in range(30):
        rollout = ppo.generate(state, prompts, step)
        mask = np.asarray(rollout.completion_mask)
        scores = ((np.asarray(rollout.completion_ids) == 5) & mask).sum(1) / mask.sum(1)
        state, trajectories, _ = estimate(ppo, state, reference, prompts, rollout, scores)
        state, _ = ppo.update(state, trajectories, step)
        means.append(scores.mean())
    assert np.mean(means[-5:]) > np.mean(means[:5]) + 0.3


@pytest.mark.parametrize("value_model", ["separate", "shared"])
def test_of_models_with_adapters_only_these_and_the_value_head_are_trained(value_model):
    state = make_ppo(replace(ADAPTERS, value_model=value_model)).init_state(POLICY)
    trained = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(state.params)}
    assert trained == {"lora_a", "lora_b", "kernel", "bias"} - ({"bias"} if value_model == "separate" else set())
    assert set(state.frozen) == {"policy"}  # `update` gets the trunk once, which the value model shares
    moments = [leaf.size for leaf in jax.tree.leaves(state.opt_state)]
    assert sum(moments) < 2.1 * sum(leaf.size for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize("value_model", quick_first(1, ["separate", "shared"]))
def test_adapters_share_one_frozen_base_with_the_reference(recorded, value_model):
    ppo = make_ppo(replace(ADAPTERS, value_model=value_model))
    state = ppo.init_state(POLICY)
    reference = ppo.reference(state, POLICY)
    assert reference is state.frozen["policy"]
    state, stats = learn(ppo, state, reference, make_prompts(), recorded)
    assert abs(stats["objective/kl"]) < 1e-5  # a fresh adapter changes nothing
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.frozen["policy"]), POLICY)
    _, stats = learn(ppo, state, reference, make_prompts(), recorded)  # the update has not taken the base's memory
    assert stats["objective/kl_k3"] > 1e-5


def test_a_given_adapter_is_where_the_policy_starts(recorded):
    """And the reference stays there."""
    ppo = make_ppo(ADAPTERS)
    given = jax.tree.map(lambda x: x + 0.3, ppo.init_state(POLICY).params["policy"])
    state = ppo.init_state(POLICY, adapter=given)
    whole = ppo.models_of(state)["policy"]["trunk"]["layers"]["0"]["attention"]["dense"]
    base, adapter = (tree["trunk"]["layers"]["0"]["attention"]["dense"] for tree in (POLICY, given))
    np.testing.assert_array_equal(whole["kernel"], base["kernel"])
    np.testing.assert_allclose(whole["lora_b"], adapter["lora_b"] * 32.0 / 4, rtol=1e-6)
    # Where adapters start decides what the reference is, and nothing in the compiled programs.
    reference = make_ppo(replace(ADAPTERS, lora_path="folder")).reference(state, POLICY)
    assert reference["trunk"]["embed_in"]["embedding"] is state.frozen["policy"]["trunk"]["embed_in"]["embedding"]
    state, stats = learn(ppo, state, reference, make_prompts(), recorded)
    assert abs(stats["objective/kl_k3"]) < 1e-6
    _, stats = learn(ppo, state, reference, make_prompts(), recorded)  # the update has not taken the adapter's memory
    assert stats["objective/kl_k3"] > 1e-5


@pytest.mark.full
def test_bfloat16_computes_with_float32_parameters_and_recomputed_logprobs(recorded):
    config = replace(CONFIG, dtype="bfloat16")
    assert (config.logprobs, CONFIG.logprobs) == ("recompute", "sampler")
    ppo = make_ppo(config)
    state = start(ppo)
    reference = ppo.reference(state, POLICY)
    assert {leaf.dtype for leaf in jax.tree.leaves(reference)} == {jnp.dtype("bfloat16")}
    rollout = ppo.generate(state, make_prompts(), sample(1)[1])
    assert rollout.logprobs.dtype == jnp.float32
    after, stats = learn(ppo, state, reference, make_prompts(), recorded)
    assert {leaf.dtype for leaf in jax.tree.leaves(after.params)} == {jnp.dtype("float32")}
    assert stats["objective/kl"] == 0.0  # the same bits went through the same program
    assert abs(stats["val/ratio_first"] - 1.0) < 0.02
    plain = make_ppo()
    _, expected = learn(plain, start(plain), plain.parallel.put(POLICY), make_prompts(), recorded)
    for name in ("objective/scores", "policy/entropy_avg", "loss/value_avg", "grad_norm"):
        np.testing.assert_allclose(stats[name], expected[name], rtol=0.1, err_msg=name)
    assert stats["policy/entropy_avg"] != expected["policy/entropy_avg"]


@pytest.mark.full
def test_a_value_model_may_have_another_architecture(recorded):
    other = GPTNeoXConfig(vocab_size=24, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    ppo = PPO(CONFIG, MODEL, EOS, PAD, DataParallel(devices=jax.devices()[:1]), value_model=other)
    value = models.init_params(other, jax.random.key(3), head="score")
    state = ppo.init_state(POLICY, value)
    after, stats = learn(ppo, state, ppo.reference(state, POLICY), make_prompts(), recorded)
    assert np.isfinite(stats["loss/value_avg"])
    assert after.params["value"]["score"]["kernel"].shape == (8, 1)
    assert np.abs(after.params["value"]["score"]["kernel"] - value["score"]["kernel"]).max() > 1e-4


def test_a_value_model_without_a_head_gets_one_of_zeros():
    state = make_ppo().init_state(POLICY, {"trunk": REFERENCE["trunk"]})
    assert not np.asarray(state.params["value"]["score"]["kernel"]).any()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params["value"]["trunk"]), REFERENCE["trunk"])
