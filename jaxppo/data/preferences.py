"""Preference data: pairs of completions of which people, or a rule, preferred one; read and tokenised on the host.

A row has the texts `chosen` and `rejected`, and may have `prompt` (the beginning of both) and `margin` (by how much the
scores should differ at least). Without a prompt the two are whole texts: TRL's implicit prompt.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxppo.data.batches import padded_size, right_padded, row_order
from jaxppo.data.rows import Row, read_rows
from jaxppo.data.tokens import start_ids, token_ids
from jaxppo.errors import DataError
from jaxppo.types import Array

COLUMNS: Mapping[str, type] = {"chosen": str, "rejected": str}
"""The columns that every row has, and their types."""


class Pair(NamedTuple):
    """Two token rows: prompt, completion and end of sequence."""

    chosen: list[int]
    rejected: list[int]
    margin: float


class Pairs(NamedTuple):
    """The pairs of a split that are short enough, and the number of those that are not."""

    kept: list[Pair]
    too_long: int


class PairBatch(NamedTuple):
    """B pairs, right-padded to a common length."""

    chosen_ids: Array  # [B, T] int32
    chosen_lengths: Array  # [B] int32
    rejected_ids: Array  # [B, T] int32
    rejected_lengths: Array  # [B] int32
    margins: Array  # [B] fp32


def load_rows(dataset: str, split: str, configuration: str | None = None) -> list[Row]:
    """Read the rows of a split.

    Args:
        dataset: a folder with one `<split>.jsonl` per split or, through the `datasets` library, a `save_to_disk` folder
            or a hub id.
        split: name of the split.
        configuration: see `data.read_rows`.

    Raises:
        DataError: there is no such split, it is empty, or a row lacks `chosen` or `rejected`.
    """
    rows = read_rows(dataset, split, COLUMNS, configuration)
    for number, row in enumerate(rows):
        if row.get("messages") is not None:
            expected = "texts (prompt, chosen and rejected)"
            raise DataError(f"{dataset}, split {split}, row {number}: expected {expected}, got a chat in messages")
    return rows


def encode_pairs(tokenizer: Any, rows: Sequence[Row], max_length: int, where: str) -> Pairs:
    """Tokenise every row, and drop the pairs in which a text is too long.

    Prompt and completion are tokenised apart, so that the reward model learns from the very ids that it scores in PPO,
    and end with the end of sequence, as in TRL.

    Args:
        tokenizer: with an end of sequence.
        rows: see the top of this module.
        max_length: most tokens of prompt, completion and end of sequence together.
        where: names the rows in errors.

    Raises:
        DataError: a prompt or margin is of another type, a text cannot be encoded, or no pair is short enough.
    """
    margins = [_margin(row, f"{where}, row {i}") for i, row in enumerate(rows)]
    start = start_ids(tokenizer)
    prompts = token_ids(tokenizer, [_prompt(row, f"{where}, row {i}") for i, row in enumerate(rows)], where)
    chosen, rejected = (
        [_ended([*start, *prompt, *ids], tokenizer.eos_token_id) for prompt, ids in zip(prompts, encoded, strict=True)]
        for encoded in (token_ids(tokenizer, [row[side] for row in rows], where) for side in COLUMNS)
    )
    pairs = [Pair(*pair) for pair in zip(chosen, rejected, margins, strict=True)]
    kept = [pair for pair in pairs if max(len(pair.chosen), len(pair.rejected)) <= max_length]
    if not kept:
        raise DataError(f"{where}: expected a pair of at most {max_length} tokens, got {len(pairs)} longer ones")
    return Pairs(kept, len(pairs) - len(kept))


def _prompt(row: Row, where: str) -> str:
    prompt = row.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise DataError(f"{where}: field 'prompt': expected str or nothing, got {prompt!r:.60}")
    return prompt or ""


def _margin(row: Row, where: str) -> float:
    margin = row.get("margin")
    if margin is None:
        return 0.0
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
        raise DataError(f"{where}: field 'margin': expected a finite number or nothing, got {margin!r:.60}")
    return float(margin)


def _ended(ids: list[int], end: int) -> list[int]:
    return ids if ids[-1:] == [end] else [*ids, end]


class PreferenceData:
    """Batches of pairs: `batch(step)` depends on nothing but the seed and the step.

    Args:
        pairs: of the training split.
        batch_size: B, pairs per batch.
        seed: of their order.
        max_length: longest row that the model can read; None: any.
    """

    def __init__(self, pairs: Sequence[Pair], batch_size: int, seed: int, max_length: int | None = None):
        self._pairs, self.batch_size, self._seed, self._max_length = pairs, batch_size, seed, max_length

    def longest_batch(self) -> PairBatch:
        """Return the shapes of the pairs of a step with the longest row."""
        longest = max(len(row) for pair in self._pairs for row in (pair.chosen, pair.rejected))
        rows = self.batch_size, padded_size(longest, self._max_length)
        ids, lengths = jax.ShapeDtypeStruct(rows, np.int32), jax.ShapeDtypeStruct(rows[:1], np.int32)
        margins = jax.ShapeDtypeStruct(rows[:1], np.float32)
        return PairBatch(ids, lengths, ids, lengths, margins)  # type: ignore[arg-type]

    def batch(self, step: int) -> PairBatch:
        """Return the pairs of step `step` (0-based), numpy arrays."""
        order = row_order(len(self._pairs), self._seed, step * self.batch_size, self.batch_size)
        pairs = [self._pairs[i] for i in order]
        longest = max(len(row) for pair in pairs for row in (pair.chosen, pair.rejected))
        length = padded_size(longest, self._max_length)
        chosen, rejected = (right_padded([pair[side] for pair in pairs], length) for side in (0, 1))
        return PairBatch(*chosen, *rejected, np.array([pair.margin for pair in pairs], np.float32))  # type: ignore[arg-type]
