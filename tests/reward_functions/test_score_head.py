"""Scores of reward models against TRL's `get_reward` and transformers' classes, and where those two are wrong."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.errors import ModelError
from jaxppo.parallel.devices import DataParallel
from jaxppo.reward_functions import score_head
from jaxppo.reward_functions.score_head import RowScorer
from tests import quick_first
from tests.torch_models import CONFIGS, RAW, from_torch, torch, torch_model

trl_utils = pytest.importorskip("trl.experimental.utils")

PAD, EOS = 1, 2
PROMPT, COMPLETION = 6, 7  # columns

# Prompt and completion of each row. The ids of the padding and of the end of sequence may be sampled like any other.
ROWS = {
    "to the last column": ([11, 12, 13], [21, 22, 23, 24, 25, 26, 27]),
    "longest prompt": ([11, 12, 13, 14, 15, 16], [31, 32, EOS]),
    "shortest prompt": ([17], [41, 42, 43, 44, EOS]),
    "an end alone": ([18, 19], [EOS]),
    "empty": ([18, 19, 20], []),
    "pad inside": ([11, 12], [21, 22, PAD, 24, EOS]),
    "pad last": ([11, 12], [21, 22, 23, 24, PAD]),
    "pad first": ([11, 12], [PAD, 22, 23]),
    "pad in prompt": ([11, PAD, 12], [21, 22, EOS]),
}
PLAIN = {"to the last column", "longest prompt", "shortest prompt", "an end alone", "empty"}
NO_END = {"to the last column", "empty", "pad last", "pad first"}
# Pad id -> the rows whose end TRL and transformers find. TRL stops before the first pad, and does not count one in the
# prompt; transformers takes the rightmost id that is none. Where pad = end, both take the end for padding.
RIGHT = {PAD: (PLAIN, set(ROWS) - {"pad last"}), EOS: (NO_END, NO_END)}

score_rows = jax.jit(score_head.score_rows, static_argnames="model")
trl_scores = jax.jit(score_head.trl_scores, static_argnames=("model", "context_length"))
pooled_scores = jax.jit(score_head.pooled_scores, static_argnames="model")
assert_close = partial(np.testing.assert_allclose, atol=1e-4, rtol=0)


# GPT-2 learns a vector for each position, so that a shift shows; the rotary positions of the other are relative.
@pytest.fixture(scope="module", params=quick_first(1, ["gpt2", "gpt_neox"]))
def reward(request, tmp_path_factory):
    """(transformers model, config, parameters) of a reward model of one layer."""
    raw = RAW[request.param] | {"n_layer" if request.param == "gpt2" else "num_hidden_layers": 1}
    model = torch_model(raw, head="score")
    return model, *from_torch(model, tmp_path_factory.mktemp("reward"), raw)


def as_trl(pad=PAD):
    """[B, PROMPT + COMPLETION]: prompts padded on the left, completions on the right."""
    rows = [
        [pad] * (PROMPT - len(prompt)) + prompt + completion + [pad] * (COMPLETION - len(completion))
        for prompt, completion in ROWS.values()
    ]
    return np.array(rows)


def padded(side, pad=PAD):
    """(ids, mask) of whole rows, padded on one side."""
    rows = [prompt + completion for prompt, completion in ROWS.values()]
    width = max(map(len, rows))
    order = 1 if side == "right" else -1
    ids = np.array([(row[::order] + [pad] * (width - len(row)))[::order] for row in rows])
    mask = np.arange(width) < np.array([[len(row)] for row in rows])
    return ids, mask[:, ::order]


def last_token_scores(params, pad, config):
    ids, mask = padded("right", pad)
    return score_rows(params, jnp.asarray(ids), jnp.asarray(mask.sum(axis=1)), model=config)


def scores_alone(model):
    """Score at the last token of each row, each in a batch of its own, where nothing is padded."""
    trunk = getattr(model, model.base_model_prefix)
    with torch.no_grad():
        hidden = [trunk(torch.tensor([p + c])).last_hidden_state for p, c in ROWS.values()]
        return np.array([float(model.score(states)[0, -1, 0]) for states in hidden])


def transformers_scores(model, ids, pad, mask=None):
    model.config.pad_token_id = pad
    with torch.no_grad():
        mask = None if mask is None else torch.tensor(mask.astype(int))
        return model(torch.tensor(ids), attention_mask=mask).logits[:, 0].numpy()


def far(first, second):
    return np.abs(np.asarray(first) - np.asarray(second)) > 1e-2


@pytest.mark.parametrize("pad", [PAD, EOS])
def test_only_last_token_scores_are_right_where_ids_do_not_tell(reward, pad):
    model, config, params = reward
    expected = scores_alone(model)
    ours = last_token_scores(params, pad, config)
    assert (ours.shape, ours.dtype) == ((len(ROWS),), jnp.float32)
    assert_close(ours, expected)
    np.testing.assert_array_equal(ours, last_token_scores(params, 50, config))  # whatever the padding holds
    trl = trl_scores(params, jnp.asarray(as_trl(pad)), model=config, pad_id=pad, context_length=PROMPT).final
    pooled = pooled_scores(params, jnp.asarray(padded("right", pad)[0]), model=config, pad_id=pad)
    for scores, right in zip((trl, pooled), RIGHT[pad], strict=True):
        assert {name for name, wrong in zip(ROWS, far(scores, expected), strict=True) if not wrong} == right


@pytest.mark.parametrize("pad", [PAD, EOS])
@pytest.mark.parametrize("context_length", quick_first(1, [PROMPT, 0]))
def test_trl_scores_are_those_of_get_reward(reward, pad, context_length):
    model, config, params = reward
    ids = as_trl(pad)
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


def test_trl_scores_at_the_edges_and_pooled_scores_without_a_pad_id(reward):
    _, config, params = reward
    run = partial(trl_scores, params, jnp.asarray(as_trl()), model=config, pad_id=PAD)
    # No pad: the last column. A pad at once: the last column of the prompt. A pad inside: what comes after is cut off.
    np.testing.assert_array_equal(run(context_length=PROMPT).last, PROMPT - 1 + np.array([7, 3, 5, 1, 0, 2, 4, 0, 3]))
    # A prompt of no columns: one before the first is the last of all. A completion of none: the end of the prompt.
    whole = run(context_length=0)
    np.testing.assert_array_equal(whole.last, [-1, PROMPT + 2, *[-1] * 7])
    np.testing.assert_array_equal(whole.final[2:], whole.scores[2:, -1])
    np.testing.assert_array_equal(run(context_length=PROMPT + COMPLETION).last, [PROMPT + COMPLETION - 1] * len(ROWS))
    model, config, params = reward
    ids = np.array([[5, 6, PAD, 7, PAD]])
    ours = pooled_scores(params, jnp.asarray(ids), model=config, pad_id=None)
    assert_close(ours, transformers_scores(model, ids, None))
    assert far(ours, transformers_scores(model, ids, PAD))
    with pytest.raises(ModelError, match=r"^pad_token_id: .*2 rows"):
        pooled_scores(params, jnp.asarray(np.repeat(ids, 2, axis=0)), model=config, pad_id=None)


@pytest.mark.parametrize("side", ["left", "right"])
def test_pooled_scores_are_those_of_transformers(reward, side):
    """Under left padding, positions are columns: GPT-2's scores of these rows are shifted, there as here."""
    model, config, params = reward
    for pad in (PAD, EOS):
        ids, mask = padded(side, pad)
        ours = pooled_scores(params, jnp.asarray(ids), model=config, pad_id=pad)
        assert_close(ours, transformers_scores(model, ids, pad))
        masked = pooled_scores(params, jnp.asarray(ids), model=config, pad_id=pad, attention_mask=jnp.asarray(mask))
        assert_close(masked, transformers_scores(model, ids, pad, mask))
        assert np.ptp(ours) > 0.5
    # A row of nothing but pads is read at its first column.
    ids = np.full_like(ids, PAD)
    ids[1, 2] = ids[2, 0] = 7
    assert_close(
        pooled_scores(params, jnp.asarray(ids), model=config, pad_id=PAD), transformers_scores(model, ids, PAD)
    )


def test_few_programs_serve_all_lengths(monkeypatch):
    scorer, shapes = RowScorer(CONFIGS["gpt_neox"], DataParallel(), 64), set()

    def program(params, ids, lengths):
        shapes.add(ids.shape)
        return np.asarray(ids)[np.arange(len(ids)), np.asarray(lengths) - 1]

    monkeypatch.setattr(scorer, "_program", program)
    for length in range(1, 49):
        assert scorer({}, [[5] * (length - 1) + [row] for row in range(5)]).tolist() == [0, 1, 2, 3, 4]
    assert shapes == {(16, 16), (16, 24), (16, 32), (16, 48)}
