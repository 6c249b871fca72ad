"""Scores of a `...ForSequenceClassification` model, read at the last real token of each row.

TRL and transformers find the end of a row by comparing ids with the pad id, so a pad token that was sampled, or pad =
eos, moves it. Lengths are always right.

Shape letters: B rows, T tokens.
"""

from collections.abc import Sequence

import numpy as np

from jaxppo import models
from jaxppo.data import MIN_PADDED_SIZE, bucket, chunks, padded_size, right_padded
from jaxppo.nn import ModelConfig, by_rows
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
    hidden = models.apply(model, params, input_ids, read=lengths[:, None] - 1, logits=False).hidden
    return models.scores(params, hidden[:, 0])


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
        self._halving = Halving("scores of a reward model")
        # A wide model takes a CPU so long that columns and rows of padding cost more than compiling for more sizes.
        self._costly = model.wide and platform.current().name == "cpu"
        self._model = model

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
        most = self._rows_at_once(rows)

        def at_once() -> int:
            return self._halving.rows(most)

        return self._halving.repeated(lambda: self._scores(params, rows, at_once()), at_once)

    def _rows_at_once(self, rows: Sequence[Sequence[int]]) -> int:
        """Return the most rows of a batch, over all devices."""
        most = min(self._batch_size, max(1, len(rows)))
        if not self._costly:
            return most
        longest = max(map(len, rows), default=1)
        of_a_device = max(1, most // self._parallel.row_shards)
        # Equal ones, so that there are few shapes.
        parts = memory.equal_parts(of_a_device, memory.rows_at_once([self._model], longest))
        return of_a_device // parts * self._parallel.row_shards

    def _scores(self, params: Params, rows: Sequence[Sequence[int]], at_once: int) -> np.ndarray:
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        parts = list(chunks(order, at_once))
        # All batches are dispatched before the first is waited for, so the devices never idle.
        running = [self._dispatch(params, [rows[i] for i in part]) for part in parts]
        scores = np.empty(len(rows), np.float32)
        for part, batch in zip(parts, running, strict=True):
            scores[part] = self._parallel.to_host(batch)[: len(part)]
        return scores

    def _dispatch(self, params: Params, rows: list[Sequence[int]]) -> Array:
        """Start a batch, filled up with copies of its first row to one of few sizes."""
        most = self._halving.rows(self._batch_size)
        least, steps = (1, 4) if self._costly else (MIN_PADDED_SIZE, 2)
        size = bucket(padded_size(len(rows), most, least=least), self._parallel.row_shards)
        filled = [*rows, *[rows[0]] * (size - len(rows))]
        length = padded_size(max(map(len, rows)), self._max_length, steps=steps)
        ids, lengths = right_padded(filled, length)
        return self._program(params, *self._parallel.put((ids, lengths), 0))
