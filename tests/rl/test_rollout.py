"""Sampling and generation against plain loops without a cache."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import hf, models
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import ops, rollout, sampling
from jaxppo.types import PromptBatch, Rollout

MODEL = GPTNeoXConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    rotary_pct=1.0,
    initializer_range=0.6,  # large, so that the next token depends on all tokens before
)
NO_TOKEN = -1  # a stop token that is never sampled
PAD, LENGTH, TEMPERATURE = 31, 6, 0.7
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6], [5, 3, 5, 8, 9, 7, 9], [3, 2, 3, 8]]

TRUNCATION = ("top_k", "top_p", "min_p")
sample_tokens = jax.jit(sampling.sample_tokens, static_argnames=("temperature", *TRUNCATION))
truncate = jax.jit(sampling.truncate, static_argnames=TRUNCATION)
generate = jax.jit(partial(rollout.generate, model=MODEL), static_argnames=("temperature", *TRUNCATION))
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


# --- truncate

# top_k, top_p, min_p
CASES = [
    (5, 1.0, None),
    (1, 1.0, None),
    (24, 1.0, None),
    (100, 1.0, None),
    (0, 0.7, None),
    (0, 0.05, None),
    (0, 0.999, None),
    (0, 1.0, 0.2),
    (0, 1.0, 1.0),
    (0, 1.0, 0.0),
    (8, 0.8, None),
    (6, 0.9, 0.1),
    (0, 0.9, 0.3),
    (3, 0.3, 0.5),
    (0, 1.0, None),
]


def random_logits(num_rows=100):
    return 2 * np.random.default_rng(7).normal(size=(num_rows, 24)).astype(np.float32)


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), CASES)
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_truncate_equals_the_warpers_of_transformers(top_k, top_p, min_p, temperature):
    torch = pytest.importorskip("torch")
    warpers = pytest.importorskip("transformers.generation.logits_process")
    scores = torch.tensor(random_logits() / temperature)
    for given, warper in (
        (top_k, warpers.TopKLogitsWarper),
        (top_p if top_p < 1 else None, warpers.TopPLogitsWarper),
        (min_p, warpers.MinPLogitsWarper),
    ):
        if given:
            scores = warper(given)(None, scores)
    expected = torch.log_softmax(scores, -1).numpy()
    ours = truncate(random_logits(), temperature, top_k=top_k, top_p=top_p, min_p=min_p) / temperature
    ours = jax.nn.log_softmax(ours, axis=-1)
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(expected))
    np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("limits", "p"),
    [
        ({"top_k": 2}, [0, 2 / 3, 1 / 3, 0]),
        ({"top_k": 3}, [0.125, 0.5, 0.25, 0.125]),  # the last two are equally likely: both stay
        ({"top_p": 0.7}, [0, 2 / 3, 1 / 3, 0]),
        ({"top_p": 0.4}, [0, 1, 0, 0]),
        ({"top_p": 0.8}, [0.125, 0.5, 0.25, 0.125]),  # one of the last two would do: both stay
        ({"min_p": 0.4}, [0, 2 / 3, 1 / 3, 0]),
        ({"min_p": 0.6}, [0, 1, 0, 0]),
        ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),  # of the two, renormalised, the first has 2/3
        ({}, [0.125, 0.5, 0.25, 0.125]),
    ],
)
def test_truncate_on_hand_numbers(limits, p):
    log_p = jnp.log(jnp.array([[0.125, 0.5, 0.25, 0.125]]))
    np.testing.assert_allclose(jax.nn.softmax(truncate(log_p, **limits), axis=-1), [p], atol=1e-6)


def kept(log_p, top_k=0, top_p=1.0, min_p=None):
    """Which of the log-probabilities [V] stay, token by token."""
    p = np.exp(np.asarray(log_p, np.float64))
    stays = np.ones(len(p), bool)
    if top_k:
        stays &= np.array([np.sum(p > one) < top_k for one in p])
    if top_p < 1:
        of_rest = np.where(stays, p, 0) / p[stays].sum()
        stays &= np.array([of_rest[p > one].sum() < top_p for one in p])
    return stays if min_p is None else stays & (p >= min_p * p.max())


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(5, 1.0, None), (0, 0.7, None), (0, 1.0, 0.2), (6, 0.9, 0.1)])
@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-24, None])
def test_sample_tokens_draws_only_what_truncation_keeps(top_k, top_p, min_p, u):
    logits = random_logits()
    uniforms = np.random.default_rng(8).random(100, np.float32) if u is None else np.full(100, u, np.float32)
    sampled = sample_tokens(logits, uniforms, temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
    for row, log_p in enumerate(numpy_log_softmax(logits, 0.7)):
        stays = kept(log_p, top_k, top_p, min_p)
        assert stays[sampled.ids[row]]
        assert not stays.all()
        truncated = numpy_log_softmax(np.where(stays, log_p, -np.inf))
        np.testing.assert_allclose(sampled.logprobs[row], truncated[sampled.ids[row]], atol=1e-5)


def test_sample_tokens_draws_with_the_frequencies_of_the_truncated_softmax():
    n, logits = 20_000, random_logits(1)
    u = np.random.default_rng(9).random(n, np.float32)
    ids = np.asarray(sample_tokens(np.tile(logits, (n, 1)), u, temperature=1.0, top_k=6).ids)
    p = np.where(kept(numpy_log_softmax(logits)[0], top_k=6), np.exp(logits[0]), 0)
    drawn, expected = np.bincount(ids, minlength=24), n * p / p.sum()
    assert drawn[p == 0].sum() == 0
    chi_square = np.sum((drawn - expected)[p > 0] ** 2 / expected[p > 0])
    assert chi_square < 20.5  # 99.9 % point with 5 degrees of freedom


def test_sample_tokens_at_temperature_0_does_not_truncate():
    logits = random_logits()
    sampled = sample_tokens(logits, np.zeros(100, np.float32), temperature=0.0, top_k=1)
    np.testing.assert_allclose(sampled.logprobs, numpy_log_softmax(logits).max(axis=1), atol=1e-5)


# --- generate


def naive_generate(params, prompts, uniforms, temperature, keep=None):
    """Row by row and token by token, each time through the whole sequence: (ids, logprobs) of rows that never end.

    `keep` gives the tokens that may be drawn, of log-probabilities [V].
    """
    results = []
    for prompt, row_uniforms in zip(prompts, uniforms, strict=True):
        ids, logprobs = list(prompt), []
        for u in row_uniforms:
            # Fixed width, for one compilation: a token does not see what comes after it.
            padded = np.zeros((1, 16), np.int32)
            padded[0, : len(ids)] = ids
            log_p = numpy_log_softmax(logits_of(params, padded)[0, len(ids) - 1], temperature or 1.0)
            if keep is not None:
                log_p = numpy_log_softmax(np.where(keep(log_p), log_p, -np.inf))
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
        assert generated.ended[row] == (eos is not None and ids[-1] == eos)


@pytest.fixture(scope="module")
def free_run(params):
    """What a plain loop samples where nothing ends a row."""
    return naive_generate(params, PROMPTS, uniforms_for(5), TEMPERATURE)


def test_generate_equals_a_loop_without_cache(params, free_run):
    generated = generate(
        params, left_padded(), uniforms_for(5), stop_ids=(NO_TOKEN,), pad_id=PAD, temperature=TEMPERATURE
    )
    assert_is(generated, free_run, NO_TOKEN, PAD)
    assert len({tuple(ids) for ids, _ in free_run}) == 5
    assert not np.any(generated.ended)


def test_generate_at_temperature_0_equals_a_greedy_loop(params):
    generated = generate(params, left_padded(), uniforms_for(5), stop_ids=(NO_TOKEN,), pad_id=PAD, temperature=0.0)
    assert_is(generated, naive_generate(params, PROMPTS, uniforms_for(5), 0.0), NO_TOKEN, PAD)


def cut_at(free_run, eos):
    """Each row up to and including its first eos."""
    ends = [ids.index(eos) + 1 if eos in ids else len(ids) for ids, _ in free_run]
    return [(ids[:end], logprobs[:end]) for (ids, logprobs), end in zip(free_run, ends, strict=True)]


def test_generate_without_a_stop_token_fills_every_row(params, free_run):
    generated = generate(params, left_padded(), uniforms_for(5), stop_ids=(), pad_id=PAD, temperature=TEMPERATURE)
    assert_is(generated, free_run, None, PAD)
    assert np.all(generated.completion_mask) and not np.any(generated.ended)


def test_generate_stops_at_any_end_as_transformers_does(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        initializer_range=0.6,
        eos_token_id=[4, 7],
    )
    model = transformers.GPTNeoXForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    ours, params = hf.load_pretrained(tmp_path)
    assert ours.eos_token_ids == (4, 7)
    prompts = left_padded()
    given = {"attention_mask": torch.tensor(prompts.prompt_mask).long(), "do_sample": False, "pad_token_id": PAD}
    given |= {"input_ids": torch.tensor(prompts.prompt_ids).long(), "max_new_tokens": LENGTH}
    free = model.generate(**given, eos_token_id=NO_TOKEN)[:, 8:].numpy()
    stop = tuple(int(free[row, column]) for row, column in ((0, 1), (2, 3), (4, 0)))
    assert len(set(stop)) == 3
    expected = model.generate(**given, eos_token_id=list(stop))[:, 8:].numpy()
    program = partial(rollout.generate, model=ours, stop_ids=stop, pad_id=PAD, temperature=0.0)
    generated = jax.jit(program)(params, prompts, uniforms_for(5))
    np.testing.assert_array_equal(generated.completion_ids[:, : expected.shape[1]], expected)
    lengths = [next((i + 1 for i, token in enumerate(row) if token in stop), LENGTH) for row in free]
    np.testing.assert_array_equal(np.sum(generated.completion_mask, axis=1), lengths)
    ends = [row[length - 1] in stop for row, length in zip(free, lengths, strict=True)]
    np.testing.assert_array_equal(generated.ended, ends)
    last = [free[row][length - 1] for row, length in enumerate(lengths) if ends[row]]
    assert len(set(last)) == 3  # each of them has ended a row


@pytest.mark.parametrize("truncation", [{}, {"top_k": 30}, {"top_p": 0.999}, {"min_p": 1e-4}], ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_generate_never_samples_a_padded_vocabulary(params, tied, truncation):
    """The rows of a padded vocabulary have the largest logits; what is drawn has numpy's log-softmax without them."""
    tokens = 24
    model = dataclasses.replace(MODEL, num_tokens=tokens, tie_word_embeddings=tied)
    first = params["trunk"]["embed_in"]["embedding"]
    tree = {"trunk": params["trunk"] | {"embed_in": {"embedding": first.at[tokens:].set(9 * first[:8])}}}
    if not tied:
        tree["lm_head"] = {"kernel": params["lm_head"]["kernel"].at[:, tokens:].multiply(9.0)}
    prompts = left_padded(pad=0)
    program = partial(rollout.generate, model=model, stop_ids=(3, 5), pad_id=0, temperature=TEMPERATURE, **truncation)
    generated = jax.jit(program)(tree, prompts, uniforms_for(5))
    real = np.asarray(generated.completion_mask)
    assert np.asarray(generated.completion_ids)[real].max() < tokens
    sequences = rollout.to_sequences(prompts, generated, length=14)
    whole = dataclasses.replace(model, num_tokens=None)
    logits = np.asarray(models.apply(whole, tree, sequences.input_ids).logits)
    columns = np.asarray(ops.prediction_columns(sequences.prompt_lengths, LENGTH, 14))
    of_completion = logits[np.arange(5)[:, None], columns]
    assert (of_completion.argmax(axis=-1)[real] >= tokens).any()
    log_p = numpy_log_softmax(of_completion[:, :, :tokens], TEMPERATURE)
    expected = np.take_along_axis(log_p, np.asarray(generated.completion_ids)[..., None], axis=-1)[..., 0]
    scored = rollout.completion_logprobs(tree, sequences, model=model, temperature=TEMPERATURE)
    np.testing.assert_allclose(np.asarray(scored[0])[real], expected[real], atol=1e-5)
    entropy = -np.sum(np.exp(log_p) * log_p, axis=-1)
    np.testing.assert_allclose(np.asarray(scored[1])[real], entropy[real], atol=1e-5)
    if not truncation:
        np.testing.assert_allclose(np.asarray(generated.logprobs)[real], expected[real], atol=1e-5)
    in_all = rollout.completion_logprobs(tree, sequences, model=whole, temperature=TEMPERATURE)[0]
    assert np.abs(np.asarray(in_all) - scored[0]).max() > 0.1
    greedy = models.apply(model, tree, sequences.input_ids).logits
    assert greedy.shape == logits.shape and np.argmax(greedy, axis=-1).max() < tokens


@pytest.mark.parametrize("pad", [0, PAD])
def test_generate_can_stop_at_token_0(params, pad):
    """Token 0 takes the place of the one that the second row samples third; greedy, so that order does not matter."""
    greedy = naive_generate(params, PROMPTS, uniforms_for(5), 0.0)
    stop = greedy[1][0][2]
    order = np.arange(32)
    order[[0, stop]] = stop, 0
    swapped = {
        "trunk": params["trunk"] | {"embed_in": {"embedding": params["trunk"]["embed_in"]["embedding"][order]}},
        "lm_head": {"kernel": params["lm_head"]["kernel"][:, order]},
    }
    prompts = left_padded([order[prompt].tolist() for prompt in PROMPTS])
    generated = generate(swapped, prompts, uniforms_for(5), stop_ids=(0,), pad_id=pad, temperature=0.0)
    expected = [(order[ids].tolist(), logprobs) for ids, logprobs in cut_at(greedy, stop)]
    assert_is(generated, expected, 0, pad)
    assert generated.ended[1] and not np.all(generated.ended)


@pytest.mark.parametrize("stops", [True, False])
def test_generate_respects_the_length_of_each_row(params, free_run, stops):
    """A row that is cut has not ended; one whose last allowed token is the stop token has."""
    lengths = np.array([3, 1, 6, 2, 5], np.int32)
    eos = free_run[0][0][2] if stops else None
    generated = generate(
        params, left_padded(), uniforms_for(5), lengths, stop_ids=(eos,), pad_id=PAD, temperature=TEMPERATURE
    )
    expected = cut_at([(ids[:n], logprobs[:n]) for (ids, logprobs), n in zip(free_run, lengths, strict=True)], eos)
    assert_is(generated, expected, eos, PAD)
    assert np.all(np.sum(generated.completion_mask, axis=1) <= lengths)
    assert bool(generated.ended[0]) == stops and not np.all(generated.ended)


def test_generate_without_lengths_gives_every_row_all_columns(params):
    options = {"stop_ids": (NO_TOKEN,), "pad_id": PAD, "temperature": TEMPERATURE}
    full = generate(params, left_padded(), uniforms_for(5), np.full(5, LENGTH, np.int32), **options)
    jax.tree.map(np.testing.assert_array_equal, full, generate(params, left_padded(), uniforms_for(5), **options))


@pytest.mark.parametrize(("stop_column", "lengths"), [(1, [6, 6]), (None, [2, 2]), (1, [2, 6]), (5, [6, 3])])
def test_generate_draws_until_the_last_row_is_done_and_no_longer(params, monkeypatch, stop_column, lengths):
    """Two equal rows, which end at this column or at their lengths."""
    prompts, uniforms = left_padded([PROMPTS[0]] * 2), np.tile(uniforms_for(1), (2, 1))
    [(ids, _)] = naive_generate(params, PROMPTS[:1], uniforms[:1], TEMPERATURE)
    stop = None if stop_column is None else ids[stop_column]
    assert stop is None or ids.index(stop) == stop_column
    drawn, sample = [], sampling.sample_tokens

    def spy(*args, **options):
        jax.debug.callback(lambda: drawn.append(1))
        return sample(*args, **options)

    monkeypatch.setattr(sampling, "sample_tokens", spy)
    program = partial(rollout.generate, model=MODEL, pad_id=PAD, temperature=TEMPERATURE)
    generated = jax.jit(program)(params, prompts, uniforms, jnp.array(lengths), stop_ids=(stop,))
    jax.effects_barrier()
    assert len(drawn) == int(np.sum(generated.completion_mask, axis=1).max())
    assert len(drawn) == {1: 2, None: 2, 5: 6}[stop_column]


@pytest.mark.full
@pytest.mark.parametrize("limits", [{"top_k": 4}, {"top_p": 0.6}, {"top_k": 8, "top_p": 0.9, "min_p": 0.05}], ids=str)
def test_generate_with_truncation_equals_a_loop(params, free_run, limits):
    options = {"stop_ids": (NO_TOKEN,), "pad_id": PAD, "temperature": TEMPERATURE}
    generated = generate(params, left_padded(), uniforms_for(5), **options, **limits)
    expected = naive_generate(params, PROMPTS, uniforms_for(5), TEMPERATURE, partial(kept, **limits))
    assert_is(generated, expected, NO_TOKEN, PAD)
    assert [ids for ids, _ in expected] != [ids for ids, _ in free_run]


@pytest.fixture(scope="module")
def free_pairs(params):
    """Two completions of every prompt, in adjacent rows."""
    return naive_generate(params, [prompt for prompt in PROMPTS for _ in range(2)], uniforms_for(10), TEMPERATURE)


def test_generate_gives_several_completions_per_prompt_in_adjacent_rows(params, free_pairs):
    eos = free_pairs[3][0][1]
    options = {"stop_ids": (eos,), "pad_id": PAD, "temperature": TEMPERATURE}
    once = generate(params, left_padded(), uniforms_for(10), **options)
    repeated = generate(params, left_padded([p for p in PROMPTS for _ in range(2)]), uniforms_for(10), **options)
    assert_is(once, cut_at(free_pairs, eos), eos, PAD)
    np.testing.assert_array_equal(once.completion_ids, repeated.completion_ids)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), once, repeated)
    assert all(free_pairs[i][0] != free_pairs[i + 1][0] for i in range(0, 10, 2))


def test_generate_reads_each_prompt_once(params, monkeypatch):
    shapes, apply = [], models.apply

    def spy(model, params, ids, **options):
        shapes.append(ids.shape)
        return apply(model, params, ids, **options)

    monkeypatch.setattr(models, "apply", spy)
    program = partial(rollout.generate, model=MODEL, stop_ids=(0,), pad_id=PAD, temperature=1.0)
    jax.eval_shape(program, params, left_padded(), uniforms_for(15))
    assert shapes[0] == (5, 8)
    assert set(shapes[1:]) == {(15, 1)}


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("column", [0, 2, LENGTH - 1])
@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_generate_ends_a_row_at_its_first_eos(params, free_run, row, column, pad_is_eos):
    eos = free_run[row][0][column]
    pad = eos if pad_is_eos else PAD
    prompts = left_padded(pad=pad)
    generated = generate(params, prompts, uniforms_for(5), stop_ids=(eos,), pad_id=pad, temperature=TEMPERATURE)
    expected = cut_at(free_run, eos)
    assert_is(generated, expected, eos, pad)
    assert generated.ended[row] and len(expected[row][0]) <= column + 1


def test_generate_of_rows_that_all_end_at_once_fills_up_with_padding(params):
    prompts, uniforms = left_padded([PROMPTS[0]] * 5), np.tile(uniforms_for(1), (5, 1))
    (ids, _), *_ = naive_generate(params, PROMPTS[:1], uniforms[:1], TEMPERATURE)
    generated = generate(params, prompts, uniforms, stop_ids=(ids[1],), pad_id=PAD, temperature=TEMPERATURE)
    n = ids.index(ids[1]) + 1
    np.testing.assert_array_equal(generated.completion_ids, [ids[:n] + [PAD] * (LENGTH - n)] * 5)
    assert np.all(generated.ended) and np.all(np.sum(generated.completion_mask, axis=1) == n)
    assert not np.any(generated.logprobs[:, n:])


@pytest.mark.parametrize(("length", "pad"), [(8, 5), (11, 0)])
def test_generate_does_not_change_with_left_padding(params, free_run, length, pad):
    prompts = left_padded(length=length, pad=pad)
    generated = generate(params, prompts, uniforms_for(5), stop_ids=(NO_TOKEN,), pad_id=PAD, temperature=TEMPERATURE)
    assert_is(generated, free_run, NO_TOKEN, PAD)


def test_generate_of_a_row_does_not_depend_on_the_other_rows(params, free_run):
    order = [3, 0, 4, 2, 1]
    prompts = left_padded([PROMPTS[i] for i in order])
    generated = generate(
        params, prompts, uniforms_for(5)[order], stop_ids=(NO_TOKEN,), pad_id=PAD, temperature=TEMPERATURE
    )
    assert_is(generated, [free_run[i] for i in order], NO_TOKEN, PAD)


def test_generate_gives_the_same_completions_on_four_devices_as_on_one(params, free_run):
    prompts, uniforms, eos = left_padded(PROMPTS[1:]), uniforms_for(5)[1:], free_run[1][0][1]
    # One device ends early: its loop must not wait for the others.
    program = partial(rollout.generate, model=MODEL, stop_ids=(eos,), pad_id=PAD, temperature=TEMPERATURE)
    parallel = DataParallel(devices=jax.local_devices()[:4])
    mapped = parallel.map(program, row_axes=(None, 0, 0), out_axes=0)
    several = mapped(parallel.put(params), *parallel.put((prompts, uniforms), 0))
    expected = cut_at(free_run, eos)[1:]
    assert_is(several, expected, eos, PAD)
    assert len({len(ids) for ids, _ in expected}) > 1


def test_generate_gives_several_completions_per_prompt_on_four_devices(params, free_pairs):
    program = partial(rollout.generate, model=MODEL, stop_ids=(NO_TOKEN,), pad_id=PAD, temperature=TEMPERATURE)
    parallel = DataParallel(devices=jax.local_devices()[:4])
    mapped = parallel.map(program, row_axes=(None, 0, 0), out_axes=0)
    rows = parallel.put((left_padded(PROMPTS[:4]), uniforms_for(10)[:8]), 0)
    assert_is(mapped(parallel.put(params), *rows), free_pairs[:8], NO_TOKEN, PAD)


def test_generate_with_other_keys_gives_other_completions(params):
    """Two updates must not sample with the same noise."""
    drawn = [
        generate(
            params,
            left_padded(),
            ops.row_uniforms(ops.purpose_key(0, ops.Purpose.ROLLOUT, step), 5, LENGTH),
            stop_ids=(NO_TOKEN,),
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
    return prompts, generate(params, prompts, uniforms_for(5), stop_ids=(eos,), pad_id=PAD, temperature=TEMPERATURE)


def test_to_sequences_packs_every_row_as_a_loop_does(recorded):
    prompts, generated = recorded
    sequences = rollout.to_sequences(prompts, generated, length=13)
    np.testing.assert_array_equal(sequences.prompt_lengths, [5, 2, 1, 7, 4])
    for row, prompt in enumerate(PROMPTS):
        real = [*prompt, *np.asarray(generated.completion_ids[row])[np.asarray(generated.completion_mask[row])]]
        np.testing.assert_array_equal(sequences.input_ids[row, : len(real)], real)
    np.testing.assert_array_equal(sequences.completion_mask, generated.completion_mask)
    np.testing.assert_array_equal(sequences.completion_ids, generated.completion_ids)


def test_to_sequences_repeats_a_prompt_for_each_of_its_completions():
    rng = np.random.default_rng(10)
    lengths = rng.integers(1, LENGTH + 1, 10)
    mask = np.arange(LENGTH) < lengths[:, None]
    ids = np.where(mask, rng.integers(0, 31, mask.shape), PAD).astype(np.int32)
    sequences = rollout.to_sequences(left_padded(), Rollout(ids, mask, None, np.ones(10, bool)), length=13)
    np.testing.assert_array_equal(sequences.prompt_lengths, np.repeat([5, 2, 1, 7, 4], 2))
    for row in range(10):
        real = [*PROMPTS[row // 2], *ids[row, : lengths[row]]]
        np.testing.assert_array_equal(sequences.input_ids[row, : len(real)], real)


@jax.jit
def score(params, sequences):
    """Log-probabilities and entropies of the policy, and values, of {"policy", "value"}."""
    both = rollout.completion_logprobs(params["policy"], sequences, model=MODEL, temperature=TEMPERATURE)
    return *both, rollout.completion_values(params, sequences, model=MODEL, value_model=MODEL)


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
    for short, long in zip(narrow[:2], wider[:2], strict=True):
        np.testing.assert_allclose(long[:, :LENGTH], short, atol=1e-5)
        assert not np.any(long[:, LENGTH:])
    mask = np.asarray(generated.completion_mask)
    np.testing.assert_allclose(np.where(mask, wider[2][:, :LENGTH], 0), np.where(mask, narrow[2], 0), atol=1e-5)


@pytest.mark.parametrize("separate", [True, False])
def test_completion_values_belong_to_the_state_before_each_token(both, recorded, separate):
    prompts, generated = recorded
    sequences = rollout.to_sequences(prompts, generated, length=13)
    head = both["value"]["score"]
    values = score(both if separate else both | {"value": {"score": head}}, sequences)[2]
    trunk = both["value" if separate else "policy"]
    hidden = np.asarray(hidden_of(trunk, sequences.input_ids))
    for row, prompt in enumerate(PROMPTS):
        # One more where there is room: the state behind the last token, where a score may be paid.
        n = min(int(np.sum(generated.completion_mask[row])) + 1, LENGTH)
        states = hidden[row, len(prompt) - 1 : len(prompt) - 1 + n]
        np.testing.assert_allclose(values[row, :n], states @ np.asarray(head["kernel"])[:, 0], atol=1e-5)
    assert np.any(np.sum(generated.completion_mask, axis=1) < LENGTH)


@pytest.fixture(scope="module")
def policy_and_reference(params):
    return {"policy": params, "reference": models.init_params(MODEL, jax.random.key(3))}


completion_kl = jax.jit(partial(rollout.completion_kl, model=MODEL, temperature=TEMPERATURE))


def test_completion_kl_equals_numpy_on_whole_logits(policy_and_reference, recorded):
    prompts, generated = recorded
    sequences = rollout.to_sequences(prompts, generated, length=13)
    kl = completion_kl(policy_and_reference, sequences)
    log_p, log_q = (
        numpy_log_softmax(logits_of(policy_and_reference[name], sequences.input_ids), TEMPERATURE)
        for name in ("policy", "reference")
    )
    exact, expected = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1), np.zeros((5, LENGTH))
    for row, prompt in enumerate(PROMPTS):
        n = int(np.sum(generated.completion_mask[row]))
        expected[row, :n] = exact[row, len(prompt) - 1 : len(prompt) - 1 + n]
    np.testing.assert_allclose(kl, expected, rtol=1e-4, atol=1e-5)
    assert not np.any(kl[~np.asarray(generated.completion_mask)])


def test_completion_kl_of_a_policy_to_itself_is_exactly_0(params, recorded):
    sequences = rollout.to_sequences(*recorded, length=13)
    kl = completion_kl({"policy": params, "reference": params}, sequences)
    np.testing.assert_array_equal(kl, np.zeros((5, LENGTH)))
