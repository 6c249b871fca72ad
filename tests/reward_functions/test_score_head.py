"""Scores of reward models against TRL's `get_reward` and transformers' classes, and where those two are wrong."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models
from jaxppo.errors import ModelError
from jaxppo.reward_functions import score_head
from jaxppo.rl import ops
from jaxppo.types import Sequences
from tests import quick_first
from tests.test_models import RAW, from_torch, torch, torch_model

trl_utils = pytest.importorskip("trl.experimental.utils")

PAD, EOS = 1, 2
PROMPT, COMPLETION = 6, 7  # columns

# Prompt and completion of each row. The ids of the padding and of the end of sequence may be sampled like any other.
PLAIN = [
    ([11, 12, 13], [21, 22, 23, 24, 25, 26, 27]),
    ([11, 12, 13, 14, 15, 16], [31, 32, EOS]),
    ([17], [41, 42, 43, 44, EOS]),
    ([18, 19], [EOS]),
]
EMPTY = ([18, 19, 20], [])
PAD_INSIDE = ([11, 12], [21, 22, PAD, 24, EOS])
PAD_LAST = ([11, 12], [21, 22, 23, 24, PAD])
PAD_FIRST = ([11, 12], [PAD, 22, 23])
PAD_IN_PROMPT = ([11, PAD, 12], [21, 22, EOS])
ROWS = [*PLAIN, EMPTY, PAD_INSIDE, PAD_LAST, PAD_FIRST, PAD_IN_PROMPT]

score_rows = jax.jit(score_head.score_rows, static_argnames="model")
trl_scores = jax.jit(score_head.trl_scores, static_argnames=("model", "context_length"))
pooled_scores = jax.jit(score_head.pooled_scores, static_argnames="model")


def last_token_scores(params, sequences, model):
    return score_rows(params, sequences.input_ids, ops.real_lengths(sequences), model=model)


@pytest.fixture(scope="module", params=list(RAW))
def reward(request, tmp_path_factory):
    """(transformers model, config, parameters) of a reward model."""
    model = torch_model(RAW[request.param], head="score")
    return model, *from_torch(model, tmp_path_factory.mktemp("reward"), RAW[request.param])


def as_trl(rows, pad=PAD):
    """[B, PROMPT + COMPLETION]: prompts padded on the left, completions on the right."""
    return np.array(
        [[pad] * (PROMPT - len(p)) + p + completion + [pad] * (COMPLETION - len(completion)) for p, completion in rows]
    )


def padded(rows, side, pad=PAD):
    """(ids, mask) of whole rows, padded on one side."""
    rows = [prompt + completion for prompt, completion in rows]
    width = max(map(len, rows))
    order = 1 if side == "right" else -1
    ids = np.array([(row[::order] + [pad] * (width - len(row)))[::order] for row in rows])
    mask = np.arange(width) < np.array([[len(row)] for row in rows])
    return ids, mask[:, ::order]


def sequences_of(rows, pad=PAD):
    completions = [completion + [pad] * (COMPLETION - len(completion)) for _, completion in rows]
    return Sequences(
        input_ids=jnp.asarray(padded(rows, "right", pad)[0]),
        prompt_lengths=jnp.asarray([len(prompt) for prompt, _ in rows]),
        completion_ids=jnp.asarray(completions),
        completion_mask=jnp.asarray([[i < len(completion) for i in range(COMPLETION)] for _, completion in rows]),
    )


def our_scores(params, rows, pad, config):
    return last_token_scores(params, sequences_of(rows, pad), model=config)


def scores_alone(model, rows):
    """Score at the last token of each row, each in a batch of its own, where nothing is padded."""
    trunk = getattr(model, model.base_model_prefix)
    with torch.no_grad():
        return np.array([float(model.score(trunk(torch.tensor([p + c])).last_hidden_state)[0, -1, 0]) for p, c in rows])


def transformers_scores(model, ids, pad, mask=None):
    model.config.pad_token_id = pad
    with torch.no_grad():
        mask = None if mask is None else torch.tensor(mask.astype(int))
        return model(torch.tensor(ids), attention_mask=mask).logits[:, 0].numpy()


assert_close = partial(np.testing.assert_allclose, atol=1e-4, rtol=0)


def far(first, second):
    return np.abs(np.asarray(first) - np.asarray(second)) > 1e-2


@pytest.mark.parametrize("pad", [PAD, EOS])
@pytest.mark.parametrize("context_length", quick_first(1, [PROMPT, 0, PROMPT + 2]))
def test_trl_scores_are_those_of_get_reward(reward, pad, context_length):
    model, config, params = reward
    ids = as_trl(ROWS, pad)
    with torch.no_grad():
        scores, final, last = (x.numpy() for x in trl_utils.get_reward(model, torch.tensor(ids), pad, context_length))
    ours = trl_scores(params, jnp.asarray(ids), model=config, pad_id=pad, context_length=context_length)
    assert ours.scores.shape == ids.shape
    real = ids != pad
    np.testing.assert_array_equal(ours.last, last)
    assert_close(ours.scores[real], scores[..., 0][real])
    counts = real[np.arange(len(ids)), last]  # what stands at a pad means nothing
    assert_close(ours.final[counts], final[counts])
    assert counts.all() if context_length == PROMPT else counts.any()
    assert np.ptp(scores[..., 0][real]) > 0.5


def test_trl_scores_at_the_edges(reward):
    _, config, params = reward
    rows = [PLAIN[0], EMPTY, PAD_FIRST, PAD_INSIDE, PAD_LAST]
    run = partial(trl_scores, params, jnp.asarray(as_trl(rows)), model=config, pad_id=PAD)
    last = run(context_length=PROMPT).last
    # No pad: the last column. A pad at once: the last column of the prompt. A pad inside: what comes after is cut off.
    np.testing.assert_array_equal(last, PROMPT - 1 + np.array([7, 0, 0, 2, 4]))
    # A prompt of no columns: one before the first is the last of all.
    np.testing.assert_array_equal(run(context_length=0).last, [-1] * 5)
    np.testing.assert_array_equal(run(context_length=0).final, run(context_length=0).scores[:, -1])
    np.testing.assert_array_equal(run(context_length=PROMPT + COMPLETION).last, [PROMPT + COMPLETION - 1] * 5)


@pytest.mark.parametrize("pad", [PAD, EOS])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_pooled_scores_are_those_of_transformers(reward, side, masked, pad):
    """Under left padding, positions are columns: GPT-2's scores of these rows are shifted, there as here."""
    model, config, params = reward
    ids, mask = padded(ROWS, side, pad)
    mask = mask if masked else None
    ours = pooled_scores(
        params, jnp.asarray(ids), model=config, pad_id=pad, attention_mask=None if mask is None else jnp.asarray(mask)
    )
    expected = transformers_scores(model, ids, pad, mask)
    assert_close(ours, expected)
    assert np.ptp(expected) > 0.5


def test_pooled_scores_of_nothing_but_pads_are_those_of_the_first_column(reward):
    model, config, params = reward
    ids = np.array([[PAD] * 5, [PAD, PAD, 7, PAD, PAD], [7, PAD, PAD, PAD, PAD]])
    ours = pooled_scores(params, jnp.asarray(ids), model=config, pad_id=PAD)
    assert_close(ours, transformers_scores(model, ids, PAD))
    hidden = models.apply(config, params, jnp.asarray(ids), logits=False).hidden
    assert_close(ours, models.scores(params, hidden)[jnp.arange(3), jnp.array([0, 2, 0])])


def test_pooled_scores_without_a_pad_id_are_of_one_row(reward):
    model, config, params = reward
    ids = np.array([[5, 6, PAD, 7, PAD]])
    ours = pooled_scores(params, jnp.asarray(ids), model=config, pad_id=None)
    assert_close(ours, transformers_scores(model, ids, None))
    assert far(ours, pooled_scores(params, jnp.asarray(ids), model=config, pad_id=PAD))
    twice = np.repeat(ids, 2, axis=0)
    with pytest.raises(ValueError, match="Cannot handle batch sizes > 1 if no padding token is defined"):
        transformers_scores(model, twice, None)
    with pytest.raises(ModelError, match=r"^pad_token_id: expected an id, .*, got 2 rows"):
        pooled_scores(params, jnp.asarray(twice), model=config, pad_id=None)


@pytest.mark.parametrize("pad", [PAD, EOS])
def test_last_token_scores_are_those_of_rows_alone(reward, pad):
    model, config, params = reward
    ours = last_token_scores(params, sequences_of(ROWS, pad), model=config)
    assert (ours.shape, ours.dtype) == ((len(ROWS),), jnp.float32)
    assert_close(ours, scores_alone(model, ROWS))


def test_last_token_scores_ignore_what_the_padding_holds(reward):
    _, config, params = reward
    first, second = (last_token_scores(params, sequences_of(ROWS, pad), model=config) for pad in (PAD, 50))
    np.testing.assert_array_equal(first, second)


def test_all_three_agree_on_plain_rows(reward):
    _, config, params = reward
    expected = last_token_scores(params, sequences_of(PLAIN), model=config)
    ids = jnp.asarray(as_trl(PLAIN))
    assert_close(trl_scores(params, ids, model=config, pad_id=PAD, context_length=PROMPT).final, expected)
    assert_close(pooled_scores(params, sequences_of(PLAIN).input_ids, model=config, pad_id=PAD), expected)


@pytest.mark.parametrize(
    ("row", "pad", "trl_is_right", "transformers_is_right"),
    [
        (EMPTY, PAD, True, True),  # the score of the prompt
        (PAD_INSIDE, PAD, False, True),  # TRL stops before the first pad; the rightmost id is none
        (PAD_LAST, PAD, False, False),  # both take it for padding
        (PAD_FIRST, PAD, False, True),
        (PAD_IN_PROMPT, PAD, False, True),  # hidden and not counted by TRL
        (PLAIN[1], EOS, False, False),  # pad = eos: the score before the end of the completion
        (PLAIN[0], EOS, True, True),  # pad = eos, but the completion has no end
    ],
)
def test_only_last_token_scores_are_right_where_ids_do_not_tell(reward, row, pad, trl_is_right, transformers_is_right):
    model, config, params = reward
    expected = scores_alone(model, [row])
    rows = [row, PLAIN[0]]  # beside a long row, so that this one is padded
    assert_close(last_token_scores(params, sequences_of(rows, pad), model=config)[:1], expected)
    trl = trl_scores(params, jnp.asarray(as_trl(rows, pad)), model=config, pad_id=pad, context_length=PROMPT).final[:1]
    pooled = pooled_scores(params, sequences_of(rows, pad).input_ids, model=config, pad_id=pad)[:1]
    assert (not far(trl, expected)) == trl_is_right
    assert (not far(pooled, expected)) == transformers_is_right
