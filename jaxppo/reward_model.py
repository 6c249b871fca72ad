"""How a score is read off a `...ForSequenceClassification` model: by lengths, as TRL does, or as transformers does.

TRL and transformers find the end of a row by comparing ids with the pad id, and differ: the first pad of the completion
ends it for the one, the rightmost id that is no pad for the other. Neither can tell padding from a pad token that was
sampled, nor from the end of sequence where pad = eos. `last_token_scores` reads lengths, and is right in all cases; the
other two are there to get the numbers of a model that was trained or is compared with them.

Shape letters: B rows, T tokens.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxppo import models
from jaxppo.errors import ModelError
from jaxppo.families import ModelConfig
from jaxppo.types import Array, Params, Sequences


class TrlScores(NamedTuple):
    """What `trl_scores` returns."""

    scores: Array  # [B, T] fp32, of every token; they mean nothing at pad ids
    final: Array  # [B] fp32, the one that counts
    last: Array  # [B] int32, its column


def last_token_scores(params: Params, sequences: Sequences, *, model: ModelConfig) -> Array:
    """Score at the last real token of each row, the one at column prompt length + completion length - 1.

    Args:
        params: {"trunk", "score"}.
        sequences: packed and right-padded, with any ids at all in the padding.
        model: configuration of the model, static under `jax.jit`.

    Returns:
        [B] fp32; where a completion is empty, the score of the prompt.
    """
    hidden = models.apply(model, params, sequences.input_ids, logits=False).hidden
    lengths = sequences.prompt_lengths + jnp.sum(sequences.completion_mask, axis=1, dtype=jnp.int32)
    return models.scores(params, _pick(hidden, lengths - 1))


def trl_scores(params: Params, input_ids: Array, *, model: ModelConfig, pad_id: int, context_length: int) -> TrlScores:
    """Scores as TRL's `get_reward` reads them: a completion ends before its first pad id.

    Ids that are the pad id are hidden from the others, do not count as positions and are read as id 0. A completion
    without a pad ends in the last column; one that starts with a pad, in the last column of the prompt (with
    `context_length` 0, in the last column of all).

    Args:
        params: {"trunk", "score"}.
        input_ids: [B, T] int, left-padded prompts of `context_length` columns, then right-padded completions.
        model: configuration of the model, static under `jax.jit`.
        pad_id: id of the padding, wherever it occurs.
        context_length: columns of the prompts, in [0, T].

    Returns:
        All scores, those that count and their columns.

    Source: TRL 1.12 trl/experimental/utils.py, get_reward and first_true_indices.
    """
    real = input_ids != pad_id
    # `apply` counts positions as TRL does: the real tokens before each.
    output = models.apply(model, params, jnp.where(real, input_ids, 0), attention_mask=real, logits=False)
    scores = models.scores(params, output.hidden)
    length = input_ids.shape[1] - context_length
    columns = jnp.where(real[:, context_length:], length, jnp.arange(length, dtype=jnp.int32))
    last = jnp.min(columns, axis=1, initial=length) - 1 + context_length
    return TrlScores(scores, _pick(scores, last), last)


def pooled_scores(
    params: Params,
    input_ids: Array,
    *,
    model: ModelConfig,
    pad_id: int | None,
    attention_mask: Array | None = None,
) -> Array:
    """Scores as transformers' `...ForSequenceClassification` pools them: at the rightmost id that is not the pad id.

    A row of nothing but pads is read at column 0. Positions are columns, also under left padding, which is what
    transformers takes where it is given none: with GPT-2 the score of a row then depends on its padding.

    Args:
        params: {"trunk", "score"}.
        input_ids: [B, T] int, padded on either side.
        model: configuration of the model, static under `jax.jit`.
        pad_id: id of the padding; None reads the last column, for one row only.
        attention_mask: [B, T] bool, the tokens that others see; default all of them, pads included.

    Returns:
        [B] fp32.

    Raises:
        ModelError: several rows without a pad id.

    Source: transformers 5 modeling_layers.py, GenericForSequenceClassification.
    """
    rows, length = input_ids.shape
    if pad_id is None and rows != 1:
        raise ModelError(f"pad_token_id: expected an id, without which only one row can be scored, got {rows} rows")
    columns = jnp.arange(length, dtype=jnp.int32)[None]
    output = models.apply(model, params, input_ids, positions=columns, attention_mask=attention_mask, logits=False)
    counted = jnp.ones_like(input_ids, bool) if pad_id is None else input_ids != pad_id
    return models.scores(params, _pick(output.hidden, jnp.max(jnp.where(counted, columns, 0), axis=1)))


def _pick(x: Array, columns: Array) -> Array:
    """The entry of each row at its column, negative ones from the end: [B, T, ...], [B] -> [B, ...]."""
    return x[jnp.arange(x.shape[0]), columns]
