"""Scores of reward models against TRL's `get_reward` and transformers' classes, and where those two are wrong."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.data import right_padded
from jaxppo.reward_functions import score_head
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


def our_scores(params, rows, pad, config):
    ids, lengths = right_padded([prompt + completion for prompt, completion in rows], PROMPT + COMPLETION)
    ids[np.arange(ids.shape[1]) >= lengths[:, None]] = pad
    return score_rows(params, jnp.asarray(ids), jnp.asarray(lengths), model=config)


def scores_alone(model, rows):
    """Score at the last token of each row, each in a batch of its own, where nothing is padded."""
    trunk = getattr(model, model.base_model_prefix)
    with torch.no_grad():
        return np.array([float(model.score(trunk(torch.tensor([p + c])).last_hidden_state)[0, -1, 0]) for p, c in rows])


def trl_scores(model, rows, pad):
    with torch.no_grad():
        return trl_utils.get_reward(model, torch.tensor(as_trl(rows, pad)), pad, PROMPT)[1].numpy()


def transformers_scores(model, rows, pad):
    model.config.pad_token_id = pad
    width = max(len(prompt + completion) for prompt, completion in rows)
    ids = [prompt + completion + [pad] * (width - len(prompt + completion)) for prompt, completion in rows]
    with torch.no_grad():
        return model(torch.tensor(ids)).logits[:, 0].numpy()


assert_close = partial(np.testing.assert_allclose, atol=1e-4, rtol=0)


def far(first, second):
    return np.abs(np.asarray(first) - np.asarray(second)) > 1e-2


@pytest.mark.parametrize("pad", [PAD, EOS])
def test_score_rows_are_those_of_rows_alone(reward, pad):
    model, config, params = reward
    ours = our_scores(params, ROWS, pad, config)
    assert (ours.shape, ours.dtype) == ((len(ROWS),), jnp.float32)
    assert_close(ours, scores_alone(model, ROWS))


def test_score_rows_ignores_what_the_padding_holds(reward):
    _, config, params = reward
    first, second = (our_scores(params, ROWS, pad, config) for pad in (PAD, 50))
    np.testing.assert_array_equal(first, second)


def test_trl_and_transformers_agree_on_plain_rows(reward):
    model, config, params = reward
    expected = our_scores(params, PLAIN, PAD, config)
    assert_close(trl_scores(model, PLAIN, PAD), expected)
    assert_close(transformers_scores(model, PLAIN, PAD), expected)


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
def test_only_lengths_are_right_where_ids_do_not_tell(reward, row, pad, trl_is_right, transformers_is_right):
    model, config, params = reward
    expected = scores_alone(model, [row])
    rows = [row, PLAIN[0]]  # beside a long row, so that this one is padded
    assert_close(our_scores(params, rows, pad, config)[:1], expected)
    assert (not far(trl_scores(model, rows, pad)[:1], expected)) == trl_is_right
    assert (not far(transformers_scores(model, rows, pad)[:1], expected)) == transformers_is_right
