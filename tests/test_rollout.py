"""Sampling and generation against plain loops without a cache."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models, ops, rollout
from jaxppo.models import ModelConfig
from jaxppo.parallel import DataParallel
from jaxppo.types import PromptBatch, Rollout

MODEL = ModelConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    rotary_pct=1.0,
    initializer_range=0.6,  # large, so that the next token depends on all tokens before
)
NO_TOKEN = -1  # an eos that is never sampled
PAD, LENGTH, TEMPERATURE = 31, 6, 0.7
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6], [5, 3, 5, 8, 9, 7, 9], [3, 2, 3, 8]]

sample_tokens = jax.jit(rollout.sample_tokens, static_argnames="temperature")
generate = jax.jit(partial(rollout.generate, model=MODEL), static_argnames="temperature")
hidden_of = jax.jit(lambda params, ids: models.apply(MODEL, params, ids, logits=False).hidden)
logits_of = jax.jit(lambda params, ids: models.apply(MODEL, params, ids).logits)


@pytest.fixture(scope="module")
def params():
    return models.init_params(MODEL, jax.random.key(1))


def uniforms_for(num_rows, length=LENGTH):
    return np.random.default_rng(5).random((num_rows, length), np.float32)


def left_padded(prompts=PROMPTS, length=8, pad=PAD):
    ids, mask = np.full((len(prompts), length), pad, np.int32), np.zeros((len(prompts), length), bool)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :], mask[row, length - len(prompt) :] = prompt, True
    return PromptBatch(ids, mask)


def numpy_log_softmax(logits, temperature=1.0):
    z = np.asarray(logits, np.float64) / temperature
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


# --- sample_tokens


def test_sample_tokens_inverts_the_cumulative_sum_on_hand_numbers():
    logits = jnp.log(jnp.array([[0.125, 0.5, 0.25, 0.125]]))
    u = jnp.array([0.0, 0.1, 0.13, 0.6, 0.63, 0.87, 0.88, 0.99])
    sampled = sample_tokens(jnp.tile(logits, (8, 1)), u, temperature=1.0)
    np.testing.assert_array_equal(sampled.ids, [0, 0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_allclose(sampled.logprobs, np.log([0.125, 0.125, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]), rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_sample_tokens_draws_with_the_frequencies_of_the_softmax(temperature):
    n, logits = 20_000, np.random.default_rng(0).normal(size=10).astype(np.float32)
    u = np.random.default_rng(1).random(n, np.float32)
    ids = np.asarray(sample_tokens(np.tile(logits, (n, 1)), u, temperature=temperature).ids)
    expected = n * np.exp(numpy_log_softmax(logits, temperature))
    chi_square = np.sum((np.bincount(ids, minlength=10) - expected) ** 2 / expected)
    assert chi_square < 27.9  # 99.9 % point with 9 degrees of freedom


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0])
def test_sample_tokens_gives_the_log_softmax_of_the_scaled_logits(temperature):
    logits = 3 * np.random.default_rng(2).normal(size=(50, 32)).astype(np.float32)
    sampled = sample_tokens(logits, np.random.default_rng(3).random(50, np.float32), temperature=temperature)
    expected = numpy_log_softmax(logits, temperature)[np.arange(50), np.asarray(sampled.ids)]
    np.testing.assert_allclose(sampled.logprobs, expected, atol=1e-5)


def test_sample_tokens_at_temperature_0_takes_the_largest_logit():
    logits = np.random.default_rng(4).normal(size=(20, 32)).astype(np.float32)
    sampled = sample_tokens(logits, np.full(20, 0.99, np.float32), temperature=0.0)
    np.testing.assert_array_equal(sampled.ids, logits.argmax(axis=1))
    np.testing.assert_allclose(sampled.logprobs, numpy_log_softmax(logits).max(axis=1), atol=1e-5)


@pytest.mark.parametrize("vocab_size", [3, 32, 1000, 50304])
@pytest.mark.parametrize("u", [0.0, 1 - 2**-24, 1.0])
def test_sample_tokens_never_draws_a_token_without_probability(u, vocab_size):
    """The ends of [0, 1), and 1 by rounding: impossible tokens lie at both ends of the vocabulary."""
    rng = np.random.default_rng(6)
    logits = 2 * rng.normal(size=(16, vocab_size)).astype(np.float32)
    impossible = np.zeros((16, vocab_size), bool)
    impossible[:, : vocab_size // 3] = impossible[:, -(vocab_size // 3) :] = True
    logits[impossible] = -1e9
    sampled = sample_tokens(logits, np.full(16, u, np.float32), temperature=1.0)
    assert not impossible[np.arange(16), np.asarray(sampled.ids)].any()
    assert np.isfinite(sampled.logprobs).all()


# --- generate


def naive_generate(params, prompts, uniforms, temperature):
    """Row by row and token by token, each time through the whole sequence: (ids, logprobs) of rows that never end."""
    results = []
    for prompt, row_uniforms in zip(prompts, uniforms, strict=True):
        ids, logprobs = list(prompt), []
        for u in row_uniforms:
            # Fixed width, for one compilation: a token does not see what comes after it.
            padded = np.zeros((1, 16), np.int32)
            padded[0, : len(ids)] = ids
            log_p = numpy_log_softmax(logits_of(params, padded)[0, len(ids) - 1], temperature or 1.0)
            chosen = int(np.searchsorted(np.cumsum(np.exp(log_p)), u, side="right")) if temperature else log_p.argmax()
            ids.append(int(chosen))
            logprobs.append(log_p[chosen])
        results.append((ids[len(prompt) :], logprobs))
    return results


def assert_is(generated, expected, eos, pad):
    """A rollout holds exactly these (ids, logprobs), and padding after them."""
    for row, (ids, logprobs) in enumerate(expected):
        n = len(ids)
        rest = LENGTH - n
        np.testing.assert_array_equal(generated.completion_ids[row], ids + [pad] * rest)
        np.testing.assert_array_equal(generated.completion_mask[row], [True] * n + [False] * rest)
        np.testing.assert_allclose(generated.logprobs[row], logprobs + [0.0] * rest, atol=1e-5)
        assert generated.ended[row] == (ids[-1] == eos)


@pytest.fixture(scope="module")
def free_run(params):
    """What a plain loop samples where nothing ends a row."""
    return naive_generate(params, PROMPTS, uniforms_for(5), TEMPERATURE)


def test_generate_equals_a_loop_without_cache(params, free_run):
    generated = generate(params, left_padded(), uniforms_for(5), eos_id=NO_TOKEN, pad_id=PAD, temperature=TEMPERATURE)
    assert_is(generated, free_run, NO_TOKEN, PAD)
    assert len({tuple(ids) for ids, _ in free_run}) == 5
    assert not np.any(generated.ended)


def test_generate_at_temperature_0_equals_a_greedy_loop(params):
    generated = generate(params, left_padded(), uniforms_for(5), eos_id=NO_TOKEN, pad_id=PAD, temperature=0.0)
    assert_is(generated, naive_generate(params, PROMPTS, uniforms_for(5), 0.0), NO_TOKEN, PAD)


def cut_at(free_run, eos):
    """Each row up to and including its first eos."""
    ends = [ids.index(eos) + 1 if eos in ids else len(ids) for ids, _ in free_run]
    return [(ids[:end], logprobs[:end]) for (ids, logprobs), end in zip(free_run, ends, strict=True)]


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("column", [0, 2, LENGTH - 1])
@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_generate_ends_a_row_at_its_first_eos(params, free_run, row, column, pad_is_eos):
    eos = free_run[row][0][column]
    pad = eos if pad_is_eos else PAD
    prompts = left_padded(pad=pad)
    generated = generate(params, prompts, uniforms_for(5), eos_id=eos, pad_id=pad, temperature=TEMPERATURE)
    expected = cut_at(free_run, eos)
    assert_is(generated, expected, eos, pad)
    assert generated.ended[row] and len(expected[row][0]) <= column + 1


def test_generate_of_rows_that_all_end_at_once_fills_up_with_padding(params):
    prompts, uniforms = left_padded([PROMPTS[0]] * 5), np.tile(uniforms_for(1), (5, 1))
    (ids, _), *_ = naive_generate(params, PROMPTS[:1], uniforms[:1], TEMPERATURE)
    generated = generate(params, prompts, uniforms, eos_id=ids[1], pad_id=PAD, temperature=TEMPERATURE)
    n = ids.index(ids[1]) + 1
    np.testing.assert_array_equal(generated.completion_ids, [ids[:n] + [PAD] * (LENGTH - n)] * 5)
    assert np.all(generated.ended) and np.all(np.sum(generated.completion_mask, axis=1) == n)
    assert not np.any(generated.logprobs[:, n:])


@pytest.mark.parametrize(("length", "pad"), [(8, 5), (11, 0)])
def test_generate_does_not_change_with_left_padding(params, free_run, length, pad):
    prompts = left_padded(length=length, pad=pad)
    generated = generate(params, prompts, uniforms_for(5), eos_id=NO_TOKEN, pad_id=PAD, temperature=TEMPERATURE)
    assert_is(generated, free_run, NO_TOKEN, PAD)


def test_generate_of_a_row_does_not_depend_on_the_other_rows(params, free_run):
    order = [3, 0, 4, 2, 1]
    prompts = left_padded([PROMPTS[i] for i in order])
    generated = generate(params, prompts, uniforms_for(5)[order], eos_id=NO_TOKEN, pad_id=PAD, temperature=TEMPERATURE)
    assert_is(generated, [free_run[i] for i in order], NO_TOKEN, PAD)


def test_generate_gives_the_same_completions_on_four_devices_as_on_one(params, free_run):
    prompts, uniforms, eos = left_padded(PROMPTS[1:]), uniforms_for(5)[1:], free_run[1][0][1]
    # One device ends early: its loop must not wait for the others.
    program = partial(rollout.generate, model=MODEL, eos_id=eos, pad_id=PAD, temperature=TEMPERATURE)
    parallel = DataParallel(devices=jax.local_devices()[:4])
    mapped = parallel.map(program, row_axes=(None, 0, 0), out_axes=0)
    several = mapped(parallel.put(params), *parallel.put((prompts, uniforms), 0))
    expected = cut_at(free_run, eos)[1:]
    assert_is(several, expected, eos, PAD)
    assert len({len(ids) for ids, _ in expected}) > 1


def test_generate_with_other_keys_gives_other_completions(params):
    """Two updates must not sample with the same noise."""
    drawn = [
        generate(
            params,
            left_padded(),
            ops.row_uniforms(ops.purpose_key(0, ops.Purpose.ROLLOUT, step), 5, LENGTH),
            eos_id=NO_TOKEN,
            pad_id=PAD,
            temperature=TEMPERATURE,
        ).completion_ids
        for step in (0, 1)
    ]
    assert np.all(np.any(drawn[0] != drawn[1], axis=1))


# --- to_sequences and scoring


@pytest.fixture(scope="module")
def recorded(params, free_run):
    """Prompts, and a rollout with an early end, a late end, and rows that never end."""
    prompts = left_padded()
    eos = free_run[0][0][2]
    return prompts, generate(params, prompts, uniforms_for(5), eos_id=eos, pad_id=PAD, temperature=TEMPERATURE)


def test_to_sequences_packs_every_row_as_a_loop_does(recorded):
    prompts, generated = recorded
    sequences = rollout.to_sequences(prompts, generated, length=13)
    np.testing.assert_array_equal(sequences.prompt_lengths, [5, 2, 1, 7, 4])
    for row, prompt in enumerate(PROMPTS):
        real = [*prompt, *np.asarray(generated.completion_ids[row])[np.asarray(generated.completion_mask[row])]]
        np.testing.assert_array_equal(sequences.input_ids[row, : len(real)], real)
    np.testing.assert_array_equal(sequences.completion_mask, generated.completion_mask)
    np.testing.assert_array_equal(sequences.completion_ids, generated.completion_ids)


@jax.jit
def score(params, sequences):
    """Log-probabilities and entropies of the policy, and values, of {"policy", "value"}."""
    both = rollout.completion_logprobs(params["policy"], sequences, model=MODEL, temperature=TEMPERATURE)
    return *both, rollout.completion_values(params, sequences, model=MODEL)


@pytest.fixture(scope="module")
def both(params):
    """A policy with a separate value model."""
    return {"policy": params, "value": models.init_params(MODEL, jax.random.key(2), head="score")}


def test_completion_logprobs_are_those_of_the_sampler(both, recorded):
    prompts, generated = recorded
    logprobs, entropy, _ = score(both, rollout.to_sequences(prompts, generated, length=13))
    mask = np.asarray(generated.completion_mask)
    np.testing.assert_allclose(logprobs, generated.logprobs, atol=1e-5)
    assert not np.any(logprobs[~mask]) and not np.any(entropy[~mask]) and np.all(entropy[mask] > 0)


def test_completion_logprobs_and_values_do_not_change_with_right_padding(both, recorded):
    prompts, generated = recorded
    fills = zip(generated[:3], (7, False, 0.0), strict=True)
    wide = Rollout(*(jnp.pad(x, ((0, 0), (0, 3)), constant_values=fill) for x, fill in fills), generated.ended)
    narrow = score(both, rollout.to_sequences(prompts, generated, length=13))
    wider = score(both, rollout.to_sequences(prompts, wide, length=17))
    for short, long in zip(narrow, wider, strict=True):
        np.testing.assert_allclose(long[:, :LENGTH], short, atol=1e-5)
        assert not np.any(long[:, LENGTH:])


@pytest.mark.parametrize("separate", [True, False])
def test_completion_values_belong_to_the_state_before_each_token(both, recorded, separate):
    prompts, generated = recorded
    sequences = rollout.to_sequences(prompts, generated, length=13)
    head = both["value"]["score"]
    values = score(both if separate else both | {"value": {"score": head}}, sequences)[2]
    trunk = both["value" if separate else "policy"]
    hidden = np.asarray(hidden_of(trunk, sequences.input_ids))
    for row, prompt in enumerate(PROMPTS):
        n = int(np.sum(generated.completion_mask[row]))
        states = hidden[row, len(prompt) - 1 : len(prompt) - 1 + n]
        np.testing.assert_allclose(values[row, :n], states @ np.asarray(head["kernel"])[:, 0], atol=1e-5)
        assert not np.any(values[row, n:])
