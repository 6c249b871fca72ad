"""Sampling and generation against plain loops without a cache."""

import dataclasses
from functools import partial
from itertools import product
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import data, models
from jaxppo.nn import ModelSource
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import ops, rollout, sampling
from jaxppo.types import PromptBatch, Rollout
from tests import device_modes

# A large range, so that the next token depends on all tokens before.
MODEL = dataclasses.replace(device_modes.MODEL, vocab_size=32, initializer_range=0.6, rotary_pct=1.0)
NO_TOKEN = -1  # a stop token that is never sampled
PAD, LENGTH, TEMPERATURE = 31, 6, 0.7
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6], [5, 3, 5, 8, 9, 7, 9], [3, 2, 3, 8]]

TRUNCATION = ("top_k", "top_p", "min_p")
sample_tokens = jax.jit(sampling.sample_tokens, static_argnames=("temperature", *TRUNCATION))
truncate = jax.jit(sampling.truncate, static_argnames=TRUNCATION)
OPTIONS = ("temperature", *TRUNCATION, "repetition_penalty", "drop_ended")
generate = jax.jit(partial(rollout.generate, model=MODEL), static_argnames=OPTIONS)
hidden_of = jax.jit(lambda params, ids: models.apply(MODEL, params, ids, logits=False).hidden)
logprobs_of = jax.jit(partial(rollout.completion_logprobs, temperature=TEMPERATURE), static_argnames="model")
kl_of = jax.jit(partial(rollout.completion_kl, temperature=TEMPERATURE), static_argnames="model")


@partial(jax.jit, static_argnames="model")
def logits_of(params, ids, model=MODEL):
    return models.apply(model, params, ids).logits


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


def test_sample_tokens_inverts_the_cumulative_sum_on_hand_numbers():
    logits = jnp.log(jnp.array([[0.125, 0.5, 0.25, 0.125]]))
    u = jnp.array([0.0, 0.1, 0.13, 0.6, 0.63, 0.87, 0.88, 0.99])
    sampled = sample_tokens(jnp.tile(logits, (8, 1)), u, temperature=1.0)
    np.testing.assert_array_equal(sampled.ids, [0, 0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_allclose(sampled.logprobs, np.log([0.125, 0.125, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]), rtol=1e-6)
    # At temperature 0 it takes the largest logit, and truncates nothing.
    logits = np.random.default_rng(4).normal(size=(20, 32)).astype(np.float32)
    sampled = sample_tokens(logits, np.full(20, 0.99, np.float32), temperature=0.0, top_k=1)
    np.testing.assert_array_equal(sampled.ids, logits.argmax(axis=1))
    np.testing.assert_allclose(sampled.logprobs, numpy_log_softmax(logits).max(axis=1), atol=1e-5)


@pytest.mark.parametrize(
    ("vocab_size", "limits"),
    [(3, {}), (50304, {}), (32, {"top_k": 30}), (32, {"top_p": 0.999}), (32, {"min_p": 1e-4})],
    ids=str,
)
def test_sample_tokens_never_draws_a_token_without_probability(vocab_size, limits):
    """The ends of [0, 1), and 1 by rounding: impossible tokens lie at both ends of the vocabulary."""
    rng = np.random.default_rng(6)
    logits = 2 * rng.normal(size=(16, vocab_size)).astype(np.float32)
    impossible = np.zeros((16, vocab_size), bool)
    impossible[:, : vocab_size // 3] = impossible[:, -(vocab_size // 3) :] = True
    logits[impossible] = -1e9
    for u in (0.0, 1 - 2**-24, 1.0):
        sampled = sample_tokens(logits, np.full(16, u, np.float32), temperature=1.0, **limits)
        assert not impossible[np.arange(16), np.asarray(sampled.ids)].any()
        assert np.isfinite(sampled.logprobs).all()


def random_logits(num_rows=100):
    return 2 * np.random.default_rng(7).normal(size=(num_rows, 24)).astype(np.float32)


@pytest.mark.parametrize("top_k", [0, 8, 100])  # of 24 tokens
@pytest.mark.parametrize(("top_p", "min_p"), [(1.0, None), (0.7, None), (0.05, None), (1.0, 0.2), (0.9, 0.3)])
def test_truncate_equals_the_warpers_of_transformers(top_k, top_p, min_p):
    torch = pytest.importorskip("torch")
    warpers = pytest.importorskip("transformers.generation.logits_process")
    chosen = [warpers.TopKLogitsWarper(top_k)] if top_k else []
    chosen += [warpers.TopPLogitsWarper(top_p)] if top_p < 1 else []
    chosen += [warpers.MinPLogitsWarper(min_p)] if min_p else []
    for temperature in (0.7, 1.5):
        scores = torch.tensor(random_logits() / temperature)
        for warper in chosen:
            scores = warper(None, scores)
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
        ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),  # of the two, renormalised, the first has 2/3
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
def test_sample_tokens_draws_only_what_truncation_keeps(top_k, top_p, min_p):
    """Also at the ends of [0, 1)."""
    logits = random_logits()
    uniforms = np.concatenate([np.zeros(25), np.full(25, 1 - 2**-24), np.random.default_rng(8).random(50)])
    given = logits, uniforms.astype(np.float32)
    sampled = sample_tokens(*given, temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
    for row, log_p in enumerate(numpy_log_softmax(logits, 0.7)):
        stays = kept(log_p, top_k, top_p, min_p)
        assert stays[sampled.ids[row]]
        assert not stays.all()
        truncated = numpy_log_softmax(np.where(stays, log_p, -np.inf))
        np.testing.assert_allclose(sampled.logprobs[row], truncated[sampled.ids[row]], atol=1e-5)


def naive_generate(params, prompts, uniforms, temperature, keep=None, change=lambda ids, logits: logits):
    """Row by row and token by token, each time through the whole sequence: (ids, logprobs) of rows that never end.

    `change` gives other logits [V] behind some ids, `keep` the tokens that may be drawn, of log-probabilities [V].
    """
    results = []
    for prompt, row_uniforms in zip(prompts, uniforms, strict=True):
        ids, logprobs = list(prompt), []
        for u in row_uniforms:
            # Fixed width, for one compilation: a token does not see what comes after it.
            padded = np.zeros((1, 16), np.int32)
            padded[0, : len(ids)] = ids
            log_p = numpy_log_softmax(change(ids, logits_of(params, padded)[0, len(ids) - 1]), temperature or 1.0)
            if keep is not None:
                log_p = numpy_log_softmax(np.where(keep(log_p), log_p, -np.inf))
            chosen = int(np.searchsorted(np.cumsum(np.exp(log_p)), u, side="right")) if temperature else log_p.argmax()
            ids.append(int(chosen))
            logprobs.append(log_p[chosen])
        results.append((ids[len(prompt) :], logprobs))
    return results


def assert_is(generated, expected, stop_ids=(), pad=PAD):
    """A rollout holds exactly these (ids, logprobs), and padding after them."""
    for row, (ids, logprobs) in enumerate(expected):
        n = len(ids)
        rest = LENGTH - n
        np.testing.assert_array_equal(generated.completion_ids[row], ids + [pad] * rest)
        np.testing.assert_array_equal(generated.completion_mask[row], [True] * n + [False] * rest)
        np.testing.assert_allclose(generated.logprobs[row], logprobs + [0.0] * rest, atol=1e-5)
        assert generated.ended[row] == (ids[-1] in stop_ids)


@pytest.fixture(scope="module")
def free_run(params):
    """What a plain loop samples where nothing ends a row."""
    return naive_generate(params, PROMPTS, uniforms_for(5), TEMPERATURE)


def sample(params, prompts=None, uniforms=None, lengths=None, stop_ids=(NO_TOKEN,), pad_id=PAD, **options):
    """What is generated for `PROMPTS`, unless others are given; limits of LENGTH, so that one program serves most."""
    prompts = left_padded() if prompts is None else prompts
    uniforms = uniforms_for(5) if uniforms is None else uniforms
    lengths = np.full(len(uniforms), LENGTH, np.int32) if lengths is None else lengths
    options = {"temperature": TEMPERATURE} | options
    return generate(params, prompts, uniforms, lengths, stop_ids=stop_ids, pad_id=pad_id, **options)


def test_generate_equals_a_loop_without_cache(params, free_run):
    """Also without lengths or stop tokens, and at temperature 0, which is greedy."""
    unlimited = generate(params, left_padded(), uniforms_for(5), stop_ids=(), pad_id=PAD, temperature=TEMPERATURE)
    for generated in (sample(params), unlimited):
        assert_is(generated, free_run)
        assert np.all(generated.completion_mask) and not np.any(generated.ended)
    assert len({tuple(ids) for ids, _ in free_run}) == 5
    assert_is(sample(params, temperature=0.0), naive_generate(params, PROMPTS, uniforms_for(5), 0.0))


def test_generate_of_a_row_depends_on_its_prompt_and_random_numbers_alone(params, free_run):
    """Not on padding on the left, nor on the other rows."""
    for prompts in (left_padded(pad=5), left_padded(length=11, pad=0)):
        assert_is(sample(params, prompts), free_run)
    order = [3, 0, 4, 2, 1]
    shuffled = sample(params, left_padded([PROMPTS[i] for i in order]), uniforms_for(5)[order])
    assert_is(shuffled, [free_run[i] for i in order])


def cut_at(free_run, *stop_ids):
    """Each row up to and including its first stop token."""
    rows = []
    for ids, logprobs in free_run:
        end = next((place + 1 for place, token in enumerate(ids) if token in stop_ids), len(ids))
        rows.append((ids[:end], logprobs[:end]))
    return rows


TOKENS = 24


@pytest.mark.parametrize("tied", [False, True])
def test_a_padded_vocabulary_has_no_part_in_what_is_said_of_tokens(params, tied):
    """Log-probabilities, entropies and KL are those of numpy without its logits, which would be the largest."""
    model = dataclasses.replace(MODEL, source=ModelSource(num_tokens=TOKENS), tie_word_embeddings=tied)
    first = params["trunk"]["embed_in"]["embedding"]
    tree = {"trunk": params["trunk"] | {"embed_in": {"embedding": first.at[TOKENS:].set(9 * first[:8])}}}
    if not tied:
        tree["lm_head"] = {"kernel": params["lm_head"]["kernel"].at[:, TOKENS:].multiply(9.0)}
    program = partial(rollout.generate, model=model, stop_ids=(3, 5), pad_id=0, temperature=TEMPERATURE)
    generated = jax.jit(program)(tree, left_padded(pad=0), uniforms_for(5))
    real = np.asarray(generated.completion_mask)
    assert np.asarray(generated.completion_ids)[real].max() < TOKENS
    whole = dataclasses.replace(model, source=ModelSource())
    sequences = rollout.to_sequences(left_padded(pad=0), generated, length=14)
    columns = np.asarray(ops.prediction_columns(sequences.prompt_lengths, LENGTH, 14))

    def completion_logits(tree):
        return np.asarray(logits_of(tree, sequences.input_ids, whole))[np.arange(5)[:, None], columns]

    logits = completion_logits(tree)
    assert (logits.argmax(axis=-1)[real] >= TOKENS).any()
    log_p = numpy_log_softmax(logits[:, :, :TOKENS], TEMPERATURE)
    expected = np.take_along_axis(log_p, np.asarray(generated.completion_ids)[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(np.asarray(generated.logprobs)[real], expected[real], atol=1e-5)
    logprobs, entropy = (np.asarray(x) for x in logprobs_of(tree, sequences, model=model))
    np.testing.assert_allclose(logprobs[real], expected[real], atol=1e-5)
    np.testing.assert_allclose(entropy[real], -np.sum(np.exp(log_p) * log_p, axis=-1)[real], atol=1e-5)
    in_all = np.take_along_axis(
        numpy_log_softmax(logits, TEMPERATURE), np.asarray(generated.completion_ids)[..., None], axis=-1
    )
    assert np.abs(in_all[..., 0][real] - logprobs[real]).max() > 0.1
    if tied:
        return
    reference = jax.tree.map(lambda x: 0.9 * x, tree)
    log_q = numpy_log_softmax(completion_logits(reference)[:, :, :TOKENS], TEMPERATURE)
    kl = kl_of({"policy": tree, "reference": reference}, sequences, model=model)
    exact = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)
    np.testing.assert_allclose(np.asarray(kl)[real], exact[real], rtol=1e-3, atol=1e-5)
    greedy = np.asarray(logits_of(tree, sequences.input_ids, model))
    assert greedy.shape[-1] == 32 and np.argmax(greedy, axis=-1).max() < TOKENS


@pytest.mark.parametrize("stops", [True, False])
def test_generate_respects_the_length_of_each_row(params, free_run, stops):
    """A row that is cut has not ended; one whose last allowed token is the stop token has."""
    lengths = np.array([3, 1, 6, 2, 5], np.int32)
    eos = free_run[0][0][2] if stops else NO_TOKEN
    generated = sample(params, lengths=lengths, stop_ids=(eos,))
    expected = cut_at([(ids[:n], logprobs[:n]) for (ids, logprobs), n in zip(free_run, lengths, strict=True)], eos)
    assert_is(generated, expected, (eos,))
    assert np.all(np.sum(generated.completion_mask, axis=1) <= lengths)
    assert bool(generated.ended[0]) == stops and not np.all(generated.ended)


def test_generate_draws_until_the_last_row_is_done_and_no_longer(params, monkeypatch):
    """Two equal rows, which end at a column or at their lengths."""
    prompts, uniforms = left_padded([PROMPTS[0]] * 2), np.tile(uniforms_for(1), (2, 1))
    [(ids, logprobs)] = naive_generate(params, PROMPTS[:1], uniforms[:1], TEMPERATURE)
    drawn, sample_tokens = [], sampling.sample_tokens

    def spy(*args, **options):
        jax.debug.callback(lambda: drawn.append(1))
        return sample_tokens(*args, **options)

    monkeypatch.setattr(sampling, "sample_tokens", spy)
    program = jax.jit(partial(rollout.generate, model=MODEL, pad_id=PAD, temperature=TEMPERATURE))
    for stop_column, lengths, steps in ((1, [6, 6], 2), (None, [2, 2], 2), (1, [2, 6], 2), (5, [6, 3], 6)):
        stop = NO_TOKEN if stop_column is None else ids[stop_column]
        assert stop_column is None or ids.index(stop) == stop_column
        drawn.clear()
        generated = program(params, prompts, uniforms, jnp.array(lengths), stop_ids=(stop,))
        jax.effects_barrier()
        assert len(drawn) == steps
        expected = cut_at([(ids[:n], logprobs[:n]) for n in lengths], stop)
        assert_is(generated, expected, (stop,))


@pytest.mark.full
def test_generate_with_truncation_equals_a_loop(params, free_run):
    limits = {"top_k": 8, "top_p": 0.9, "min_p": 0.05}
    expected = naive_generate(params, PROMPTS, uniforms_for(5), TEMPERATURE, partial(kept, **limits))
    assert_is(sample(params, **limits), expected)
    assert [ids for ids, _ in expected] != [ids for ids, _ in free_run]


def test_generate_with_a_repetition_penalty_equals_a_loop_with_that_of_transformers(params, free_run):
    torch = pytest.importorskip("torch")
    penalize = pytest.importorskip("transformers").RepetitionPenaltyLogitsProcessor(3.0)

    def change(ids, logits):
        return penalize(torch.tensor([ids]), torch.tensor(np.array(logits)[None]))[0].numpy()

    expected = naive_generate(params, PROMPTS, uniforms_for(5), TEMPERATURE, change=change)
    assert_is(sample(params, repetition_penalty=3.0), expected)
    assert any(ids != free for (ids, _), (free, _) in zip(expected, free_run, strict=True))


class Letters:
    """A tokenizer whose tokens are the letters that follow one another from `A` on."""

    eos_token_id = -1

    def __init__(self):
        self.backend_tokenizer = self

    def __call__(self, text):
        return {"input_ids": []}

    def encode_batch_fast(self, texts, add_special_tokens):
        return [SimpleNamespace(ids=[ord(letter) - ord("A") for letter in text]) for text in texts]

    def convert_ids_to_tokens(self, token_id):
        return chr(ord("A") + token_id)

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)


@pytest.mark.parametrize("drop_ended", [False, True])
def test_generate_ends_a_row_with_the_token_that_completes_a_stop_string(params, free_run, drop_ended):
    """Where rows 0 and 3 are dropped, row 2 has half a stop string. Its prompt is no part of what a row has written."""
    letters = Letters()
    texts = ["".join(map(letters.convert_ids_to_tokens, ids)) for ids, _ in free_run]
    strings = (texts[0][2:4], texts[3][1:4], texts[2][3:5], chr(ord("A") + PROMPTS[1][-1]) + texts[1][0])
    ends = [min((text.find(s) + len(s) for s in strings if s in text), default=None) for text in texts]
    assert (ends[0], ends[2], ends[3]) == (4, 5, 4) and None in ends
    copies = [row for row in range(5) for _ in range(8)]  # enough to drop some
    rollout = sample(
        params,
        left_padded([PROMPTS[row] for row in copies]),
        uniforms_for(5)[copies],
        stop_ids=(),
        stop_table=data.stop_table(letters, strings, MODEL.num_logits),
        drop_ended=drop_ended,
    )
    for row, ids, mask, ended in zip(copies, *rollout[:2], rollout.ended, strict=True):
        assert ids[mask].tolist() == free_run[row][0][: ends[row]]
        assert ended == (ends[row] is not None)


@pytest.fixture(scope="module")
def free_pairs(params):
    """Two completions of every prompt, in adjacent rows."""
    return naive_generate(params, [prompt for prompt in PROMPTS for _ in range(2)], uniforms_for(10), TEMPERATURE)


def test_generate_gives_several_completions_per_prompt_in_adjacent_rows(params, free_pairs):
    eos = free_pairs[3][0][1]
    once = sample(params, uniforms=uniforms_for(10), stop_ids=(eos,))
    repeated = sample(params, left_padded([p for p in PROMPTS for _ in range(2)]), uniforms_for(10), stop_ids=(eos,))
    assert_is(once, cut_at(free_pairs, eos), (eos,))
    np.testing.assert_array_equal(once.completion_ids, repeated.completion_ids)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), once, repeated)
    assert all(free_pairs[i][0] != free_pairs[i + 1][0] for i in range(0, 10, 2))


def test_generate_gives_the_same_completions_on_four_devices_as_on_one(params, free_pairs):
    eos = free_pairs[3][0][1]
    program = partial(rollout.generate, model=MODEL, stop_ids=(eos,), pad_id=PAD, temperature=TEMPERATURE)
    parallel = DataParallel(devices=jax.local_devices()[:4])
    mapped = parallel.map(program, row_axes=(None, 0, 0), out_axes=0)
    rows = parallel.put((left_padded(PROMPTS[:4]), uniforms_for(10)[:8]), 0)
    expected = cut_at(free_pairs, eos)[:8]
    assert_is(mapped(parallel.put(params), *rows), expected, (eos,))
    # One device ends early: its loop must not wait for the others.
    assert len({max(len(expected[i][0]), len(expected[i + 1][0])) for i in range(0, 8, 2)}) > 1


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


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_generate_ends_a_row_at_its_first_eos_or_at_any_of_several_tokens(params, free_run, pad_is_eos):
    for row, column in product(range(5), (0, 2, LENGTH - 1)):
        eos = free_run[row][0][column]
        pad = eos if pad_is_eos else PAD
        generated = sample(params, left_padded(pad=pad), stop_ids=(eos,), pad_id=pad)
        expected = cut_at(free_run, eos)
        assert_is(generated, expected, (eos,), pad)
        assert generated.ended[row] and len(expected[row][0]) <= column + 1
    stop_ids = (free_run[0][0][1], free_run[2][0][3], free_run[4][0][0])
    expected = cut_at(free_run, *stop_ids)
    assert_is(sample(params, stop_ids=stop_ids), expected, stop_ids)
    assert {ids[-1] for ids, _ in expected} >= {*stop_ids}  # each of them has ended a row


def test_generate_can_stop_at_token_0(params):
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
    generated = generate(swapped, prompts, uniforms_for(5), stop_ids=(0,), pad_id=0, temperature=0.0)
    expected = [(order[ids].tolist(), logprobs) for ids, logprobs in cut_at(greedy, stop)]
    assert_is(generated, expected, (0,), 0)
    assert generated.ended[1] and not np.all(generated.ended)


@pytest.fixture(scope="module")
def recorded(params, free_run):
    """Prompts, and a rollout with an early end, a late end, and rows that never end."""
    prompts = left_padded()
    eos = free_run[0][0][2]
    return prompts, sample(params, prompts, stop_ids=(eos,))


def test_to_sequences_packs_each_completion_after_its_prompt():
    rng = np.random.default_rng(10)
    lengths = rng.integers(1, LENGTH + 1, 10)
    mask = np.arange(LENGTH) < lengths[:, None]
    ids = np.where(mask, rng.integers(0, 31, mask.shape), PAD).astype(np.int32)
    sequences = rollout.to_sequences(left_padded(), Rollout(ids, mask, None, np.ones(10, bool)), length=13)
    np.testing.assert_array_equal(sequences.prompt_lengths, np.repeat([5, 2, 1, 7, 4], 2))
    for row in range(10):
        real = [*PROMPTS[row // 2], *ids[row, : lengths[row]]]
        np.testing.assert_array_equal(sequences.input_ids[row, : len(real)], real)
    np.testing.assert_array_equal(sequences.completion_mask, mask)
    np.testing.assert_array_equal(sequences.completion_ids, ids)


@jax.jit
def score(params, sequences):
    """Log-probabilities and entropies of the policy, and values, of {"policy", "value"}."""
    both = rollout.completion_logprobs(params["policy"], sequences, model=MODEL, temperature=TEMPERATURE)
    return *both, rollout.completion_values(params, sequences, model=MODEL, value_model=MODEL)


@pytest.fixture(scope="module")
def both(params):
    """A policy with a separate value model."""
    return {"policy": params, "value": models.init_params(MODEL, jax.random.key(2), head="score")}


def test_completion_logprobs_are_those_of_the_sampler_and_with_values_do_not_change_with_padding(both, recorded):
    prompts, generated = recorded
    mask = np.asarray(generated.completion_mask)
    logprobs, entropy, values = score(both, rollout.to_sequences(prompts, generated, length=13))
    np.testing.assert_allclose(logprobs, generated.logprobs, atol=1e-5)
    assert not np.any(logprobs[~mask]) and not np.any(entropy[~mask]) and np.all(entropy[mask] > 0)
    fills = zip(generated[:3], (7, False, 0.0), strict=True)
    wide = Rollout(*(jnp.pad(x, ((0, 0), (0, 3)), constant_values=fill) for x, fill in fills), generated.ended)
    wider = score(both, rollout.to_sequences(prompts, wide, length=17))
    for short, long in zip((logprobs, entropy), wider[:2], strict=True):
        np.testing.assert_allclose(long[:, :LENGTH], short, atol=1e-5)
        assert not np.any(long[:, LENGTH:])
    np.testing.assert_allclose(np.where(mask, wider[2][:, :LENGTH], 0), np.where(mask, values, 0), atol=1e-5)


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


def test_completion_kl_equals_numpy_on_whole_logits(params, recorded):
    sequences = rollout.to_sequences(*recorded, length=13)
    mask = np.asarray(sequences.completion_mask)
    reference = models.init_params(MODEL, jax.random.key(3))
    kl = kl_of({"policy": params, "reference": reference}, sequences, model=MODEL)
    log_p, log_q = (numpy_log_softmax(logits_of(p, sequences.input_ids), TEMPERATURE) for p in (params, reference))
    exact, expected = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1), np.zeros((5, LENGTH))
    for row, prompt in enumerate(PROMPTS):
        n = int(np.sum(mask[row]))
        expected[row, :n] = exact[row, len(prompt) - 1 : len(prompt) - 1 + n]
    np.testing.assert_allclose(kl, expected, rtol=1e-4, atol=1e-5)
    assert not np.any(kl[~mask])
    of_itself = kl_of({"policy": params, "reference": params}, sequences, model=MODEL)
    np.testing.assert_array_equal(of_itself, np.zeros((5, LENGTH)))  # to the bit
