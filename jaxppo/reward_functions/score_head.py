"""Scores of a `...ForSequenceClassification` model, read at the last real token of each row.

TRL and transformers find the end of a row by comparing ids with the pad id, so a pad token that was sampled, or pad =
eos, moves it. Lengths are always right.

Shape letters: B rows, T tokens.
"""

from collections.abc import Sequence

import numpy as np

from jaxppo import models
from jaxppo.data import MIN_PADDED_SIZE, bucket, chunks, padded_size, right_padded
from jaxppo.nn import ModelConfig, map_in_chunks
from jaxppo.parallel import platform
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.profiling.halving import Halving
from jaxppo.types import Array, Params


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
    # At one token of each row, and without logits, which would be much larger.
    hidden = models.apply(model, params, input_ids, read=lengths[:, None] - 1, logits=False).hidden
    return models.scores(params, hidden[:, 0])


class RowScorer:
    """Scores any number of token rows on all devices, with few compiled programs.

    Rows of similar length are scored together, padded to one of few lengths; a row's score depends on neither.

    Args:
        model: configuration of the model.
        parallel: devices.
        batch_size: the largest number of rows scored at once, over all devices (rounded up to a multiple of them).
    """

    def __init__(self, model: ModelConfig, parallel: DataParallel, batch_size: int):
        self._model = model
        self._parallel = parallel
        self._batch_size = batch_size
        self._halving = Halving("scores of a reward model")
        # A wide model takes a CPU so long that columns and rows
        # of padding cost more than compiling for more sizes.
        self._is_costly = model.wide and platform.current().name == "cpu"

        def score_in_chunks(params: Params, input_ids: Array, lengths: Array) -> Array:
            max_rows = memory.rows_at_once([model], input_ids.shape[1])
            return map_in_chunks(
                lambda chunk: score_rows(params, *chunk, model=model),
                (input_ids, lengths),
                max_rows,
            )

        self._program = parallel.map(score_in_chunks, row_axes=(None, 0, 0), out_axes=0)

    def __call__(self, params: Params, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Score rows of at least one token each.

        Args:
            params: {"trunk", "score"}, on the devices already unless they are to travel with every batch.
            rows: token ids.

        Returns:
            [len(rows)] fp32.
        """
        max_rows = self._max_rows(rows)

        def rows_at_once() -> int:
            return self._halving.rows(max_rows)

        return self._halving.repeated(
            lambda: self._scores(params, rows, rows_at_once()), rows_at_once
        )

    def _max_rows(self, rows: Sequence[Sequence[int]]) -> int:
        """Return the most rows of a batch, over all devices."""
        max_rows = min(self._batch_size, max(1, len(rows)))
        if not self._is_costly:
            return max_rows
        longest = max(map(len, rows), default=1)
        rows_per_device = max(1, max_rows // self._parallel.row_shards)
        # Equal parts, so that there are few shapes.
        num_parts = memory.num_equal_parts(
            rows_per_device, memory.rows_at_once([self._model], longest)
        )
        return rows_per_device // num_parts * self._parallel.row_shards

    def _scores(
        self, params: Params, rows: Sequence[Sequence[int]], rows_at_once: int
    ) -> np.ndarray:
        # Rows of similar length share a batch, so that there is little padding.
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        batches = list(chunks(order, rows_at_once))
        # All batches are dispatched before the first is waited for, so the devices never idle.
        running = []
        for batch in batches:
            running.append(self._dispatch(params, [rows[number] for number in batch]))
        scores = np.empty(len(rows), np.float32)
        for batch, batch_scores in zip(batches, running, strict=True):
            scores[batch] = self._parallel.to_host(batch_scores)[: len(batch)]
        return scores

    def _dispatch(self, params: Params, rows: list[Sequence[int]]) -> Array:
        """Start a batch, filled up with copies of its first row to one of few sizes."""
        min_rows = 1 if self._is_costly else MIN_PADDED_SIZE
        num_rows = padded_size(len(rows), self._halving.rows(self._batch_size), min_size=min_rows)
        num_rows = bucket(num_rows, self._parallel.row_shards)
        # With copies of a real row, since every row must have a last token.
        filled = [*rows, *[rows[0]] * (num_rows - len(rows))]
        num_tokens = padded_size(
            max(map(len, rows)), self._model.max_length, steps=4 if self._is_costly else 2
        )
        ids, lengths = right_padded(filled, num_tokens)
        return self._program(params, *self._parallel.put((ids, lengths), 0))
