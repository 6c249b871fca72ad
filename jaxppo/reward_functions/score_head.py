"""Scores of a `...ForSequenceClassification` model, read at the last real token of each row.

TRL and transformers find the end of a row by comparing ids with the pad id, so a pad token that was sampled, or pad =
eos, moves it. Lengths are always right. `trl_scores` and `pooled_scores` give the numbers of the other two, for a model
that was trained or is compared with them.

Shape letters: B rows, T tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxppo import models
from jaxppo.data import bucket, chunks, padded_size, right_padded
from jaxppo.errors import ModelError
from jaxppo.nn import ModelConfig, by_rows
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.types import Array, Params


class TrlScores(NamedTuple):
    """Scores of all tokens, and the one of each row that counts."""

    scores: Array  # [B, T] fp32, of every token; they mean nothing at pad ids
    final: Array  # [B] fp32, the one that counts
    last: Array  # [B] int32, its column


def score_rows(params: Params, input_ids: Array, lengths: Array, *, model: ModelConfig) -> Array:
    """Compute the score at the last real token of each row.

    Args:
        params: {"trunk", "score"}.
        input_ids: [B, T] int, right-padded with any ids at all.
        lengths: [B] int, real tokens of each row, at least 1.
        model: configuration of the model, static under `jax.jit`.

    Returns:
        [B] fp32.
    """
    hidden = models.apply(model, params, input_ids, read=lengths[:, None] - 1, logits=False).hidden
    return models.scores(params, hidden[:, 0])


def trl_scores(params: Params, input_ids: Array, *, model: ModelConfig, pad_id: int, context_length: int) -> TrlScores:
    """Read scores as TRL's `get_reward` does: a completion ends before its first pad id.

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
    return TrlScores(scores, scores[jnp.arange(len(last)), last], last)


def pooled_scores(
    params: Params,
    input_ids: Array,
    *,
    model: ModelConfig,
    pad_id: int | None,
    attention_mask: Array | None = None,
) -> Array:
    """Read scores as transformers' `...ForSequenceClassification` does: at the rightmost id that is not the pad id.

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
    counted = jnp.ones_like(input_ids, bool) if pad_id is None else input_ids != pad_id
    last = jnp.max(jnp.where(counted, columns, 0), axis=1, keepdims=True)
    output = models.apply(
        model, params, input_ids, positions=columns, attention_mask=attention_mask, read=last, logits=False
    )
    return models.scores(params, output.hidden[:, 0])


class RowScorer:
    """Scores any number of token rows on all devices, with few compiled programs.

    Rows of similar length are scored together, padded to one of few lengths; a row's score depends on neither.

    Args:
        model: configuration of the model.
        parallel: devices.
        batch_size: most rows scored at once, over all devices (rounded up to a multiple of them).
        max_length: longest row that will come, at most the number of the model's positions.
    """

    def __init__(self, model: ModelConfig, parallel: DataParallel, batch_size: int, max_length: int | None = None):
        self._parallel, self._batch_size, self._max_length = parallel, batch_size, max_length

        def in_parts(params: Params, input_ids: Array, lengths: Array) -> Array:
            most = memory.rows_at_once([model], input_ids.shape[1])
            return by_rows(lambda part: score_rows(params, *part, model=model), (input_ids, lengths), most)

        self._program = parallel.map(in_parts, row_axes=(None, 0, 0), out_axes=0)

    def __call__(self, params: Params, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Score rows of at least one token each.

        Args:
            params: {"trunk", "score"}, on the devices already unless they are to travel with every batch.
            rows: token ids.

        Returns:
            [len(rows)] fp32.
        """
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        parts = list(chunks(order, min(self._batch_size, max(1, len(rows)))))
        # All batches are dispatched before the first is waited for, so the devices never idle.
        running = [self._dispatch(params, [rows[i] for i in part]) for part in parts]
        scores = np.empty(len(rows), np.float32)
        for part, batch in zip(parts, running, strict=True):
            scores[part] = self._parallel.to_host(batch)[: len(part)]
        return scores

    def _dispatch(self, params: Params, rows: list[Sequence[int]]) -> Array:
        """Start a batch, filled up with copies of its first row to one of few sizes."""
        size = bucket(padded_size(len(rows), self._batch_size), self._parallel.row_shards)
        filled = [*rows, *[rows[0]] * (size - len(rows))]
        ids, lengths = right_padded(filled, padded_size(max(map(len, rows)), self._max_length))
        return self._program(params, *self._parallel.put((ids, lengths), 0))
