"""Scores of reward models are those of rows alone, where TRL's `get_reward` and transformers' classes go by the ids."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def padded(pad=PAD):
    """(ids, lengths) of whole rows, padded on the right."""
    rows = [prompt + completion for prompt, completion in ROWS.values()]
    lengths = np.array([len(row) for row in rows])
    ids = np.array([row + [pad] * (lengths.max() - len(row)) for row in rows])
    return ids, lengths


def last_token_scores(params, pad, config):
    ids, lengths = padded(pad)
    return score_rows(params, jnp.asarray(ids), jnp.asarray(lengths), model=config)


def scores_alone(model):
    """Score at the last token of each row, each in a batch of its own, where nothing is padded."""
    trunk = getattr(model, model.base_model_prefix)
    with torch.no_grad():
        hidden = [trunk(torch.tensor([p + c])).last_hidden_state for p, c in ROWS.values()]
        return np.array([float(model.score(states)[0, -1, 0]) for states in hidden])


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
    model.config.pad_token_id = pad
    with torch.no_grad():
        _, trl, _ = trl_utils.get_reward(model, torch.tensor(as_trl(pad)), pad, PROMPT)
        pooled = model(torch.tensor(padded(pad)[0])).logits[:, 0]
    for scores, right in zip((trl, pooled), RIGHT[pad], strict=True):
        assert {name for name, wrong in zip(ROWS, far(scores, expected), strict=True) if not wrong} == right


@pytest.mark.parametrize(
    ("hidden_size", "rows", "lengths"), [(64, 16, (16, 24, 32, 48)), (512, 4, (16, 20, 24, 28, 32, 40, 48))]
)
def test_few_programs_serve_all_lengths(hidden_size, rows, lengths, monkeypatch):
    # Wide models take a CPU long, and are given less padding.
    scorer, shapes = RowScorer(replace(CONFIGS["gpt_neox"], hidden_size=hidden_size), DataParallel(), 64), set()

    def program(params, ids, lengths):
        shapes.add(ids.shape)
        return np.asarray(ids)[np.arange(len(ids)), np.asarray(lengths) - 1]

    monkeypatch.setattr(scorer, "_program", program)
    for length in range(1, 49):
        assert scorer({}, [[5] * (length - 1) + [row] for row in range(5)]).tolist() == [0, 1, 2, 3, 4]
    assert shapes == {(rows, length) for length in lengths}
