"""Batches of token ids on the host; the order of rows is a pure function of (seed, epoch)."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from jaxppo.data.chat_template import ChatTemplate
from jaxppo.data.encoding import EncodedRow, cut_prompts, encode_prompts, encode_rows
from jaxppo.data.overlong import RowLimit, within_limit
from jaxppo.data.rows import Row, column_names, columns_of
from jaxppo.errors import DataError
from jaxppo.types import Batch, PromptBatch, Sequences

T = TypeVar("T")

# Prompt lengths are rounded up to a multiple of this, so that few shapes are compiled.
PROMPT_BUCKET = 8
SEQUENCE_BUCKET = 32
"""Packed sequences of a batch are rounded up to a multiple of this, or to the longest possible, for the same reason."""
MIN_PADDED_SIZE = 16
"""Smaller arrays are no faster, and each size is one more program to compile."""

# --- order, sizes and padding


def row_order(
    num_rows: int,
    seed: int,
    start: int,
    count: int,
) -> np.ndarray:
    """Return row numbers `start ... start + count - 1` of the endless stream that shuffles all rows every epoch."""
    first_epoch = start // num_rows
    last_epoch = (start + count - 1) // num_rows
    # Each epoch has random numbers of its own, so that a resumed run needs none of those before.
    epochs = range(first_epoch, last_epoch + 1)
    permutations = [np.random.default_rng((seed, epoch)).permutation(num_rows) for epoch in epochs]
    stream = np.concatenate(permutations)
    offset = start - first_epoch * num_rows
    return stream[offset : offset + count]


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield consecutive parts of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def bucket(length: int, multiple: int = PROMPT_BUCKET) -> int:
    """Return the smallest multiple that is at least `length`."""
    # The negation rounds up where `//` rounds down.
    return -(-length // multiple) * multiple


def padded_size(
    size: int,
    limit: int | None = None,
    *,
    min_size: int = MIN_PADDED_SIZE,
    steps: int = 2,
) -> int:
    """Return the next of 16, 24, 32, 48, 64, 96, ...: at most half too large, and few sizes to compile for.

    Args:
        size: what must fit.
        limit: largest result, at least `size`.
        min_size: smallest result where the limit allows it, a power of two.
        steps: sizes from one power of two to the next, itself a power of two; the result is at most 1 / steps too
            large.
    """
    next_power = 1 << (size - 1).bit_length()
    # From the power of two before up to this one there are `steps` sizes, at equal distances.
    distance = max(1, next_power // 2 // steps)
    padded = max(min_size, bucket(size, distance))
    return padded if limit is None else min(padded, limit)


def pad_left(encoded: Sequence[Sequence[int]], length: int, pad_id: int) -> PromptBatch:
    """Return prompts as [B, length] arrays whose last column holds every prompt's last token."""
    ids = np.full((len(encoded), length), pad_id, np.int32)
    mask = np.zeros((len(encoded), length), bool)
    # Prompts end in the last column, so that the completions of all rows
    # begin in the same one. The mask comes from the lengths: the id of
    # padding may be that of a real token, such as the end of sequence.
    for i, row in enumerate(encoded):
        ids[i, length - len(row) :] = row
        mask[i, length - len(row) :] = True
    return PromptBatch(ids, mask)  # type: ignore[arg-type]


def right_padded(
    rows: Sequence[Sequence[int]],
    length: int,
    pad_id: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return token rows as ids [B, length] and lengths [B], both int32; what lies past a row's end means nothing."""
    ids = np.full((len(rows), length), pad_id, np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids, np.array([len(row) for row in rows], np.int32)


# --- batches


def length_gaps(lengths: Sequence[int]) -> tuple[int, ...]:
    """Compute by how many tokens the rows at the three quartiles are shorter than the longest: [N] -> 3 numbers."""
    # "higher" gives lengths that rows have, not means of two of them.
    quartiles = np.percentile(lengths, (25, 50, 75), method="higher")
    return tuple(max(lengths) - int(quartile) for quartile in quartiles)


class PromptData:
    """Training prompts: `batch(step)` depends on nothing but the seed and the step.

    Args:
        rows: data set rows with `prompt` and whatever the reward needs.
        tokenizer: fast tokenizer.
        batch_size: G, prompts per batch.
        seed: of the order, and of the lengths that prompts are cut to.
        max_prompt_length: longest prompt allowed; None: any.
        text_lengths: cut every prompt to a number of tokens drawn from this range (both ends may come out).
        template: how the model gets the texts of a row; default: as they are.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        tokenizer: Any,
        batch_size: int,
        seed: int,
        max_prompt_length: int | None,
        text_lengths: tuple[int, int] | None = None,
        template: ChatTemplate | None = None,
    ):
        if not rows:
            raise DataError("train_split: expected a split with rows, got an empty one")
        self.seed = seed
        self.batch_size = batch_size
        if text_lengths is None:
            self.rows = rows
            self._encoded = encode_prompts(tokenizer, rows, max_prompt_length, template=template)
        else:
            # Once for all epochs, so that rows, texts and ids stay the same prompt.
            self.rows, self._encoded = cut_prompts(
                tokenizer, rows, max_prompt_length, text_lengths, seed
            )
        self.num_rows = len(self.rows)
        self._pad_id = tokenizer.pad_token_id
        self._columns = column_names(self.rows)
        lengths = [len(ids) for ids in self._encoded]
        self.longest = max(lengths)
        self.length_gaps = length_gaps(lengths)
        # All batches have this length, so that programs are compiled once.
        self.prompt_length = bucket(self.longest)

    def batch(self, step: int) -> Batch:
        """Return the batch of update `step` (0-based): the next rows in order."""
        order = row_order(self.num_rows, self.seed, step * self.batch_size, self.batch_size)
        rows = [self.rows[i] for i in order]
        encoded = [self._encoded[i] for i in order]
        return prompt_batch(rows, encoded, self._columns, self.prompt_length, self._pad_id)

    def epoch(self, step: int) -> float:
        """Return how many passes over the rows are done before a step."""
        return step * self.batch_size / self.num_rows


def prompt_batch(
    rows: Sequence[Row],
    encoded: Sequence[list[int]],
    columns: Sequence[str],
    length: int,
    pad_id: int,
) -> Batch:
    """Put prompts together, left-padded to a length, with the named columns of their rows."""
    return Batch(
        prompts=pad_left(encoded, length, pad_id),
        prompt_texts=[row["prompt"] for row in rows],
        columns=columns_of(rows, columns) | {"prompt_ids": list(encoded)},
    )


class SupervisedData:
    """Prompts with their reference completions, packed and right-padded; the rows of a step are those of `PromptData`.

    A batch is no longer than the bucket of its longest row, and sorted by length.

    Args:
        rows: with `prompt` and `completion`.
        tokenizer: of the model.
        batch_size: rows of a step.
        seed: of the order.
        max_prompt_length: longest prompt allowed; None: any.
        template: how the model gets the texts of a row; default: as they are.
        limit: what becomes of long rows; default: they stay.
        assistant_only: see `encode_rows`.

    Attributes:
        longest: tokens of the longest row.
        length: longest sequences of a batch.
        length_gaps: `length_gaps` of the rows.
        overlong: how many rows were longer than the limit.
        left_out: how many of these are not learned from.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        tokenizer: Any,
        batch_size: int,
        seed: int,
        max_prompt_length: int | None,
        template: ChatTemplate | None = None,
        limit: RowLimit | None = None,
        *,
        assistant_only: bool = False,
    ):
        if not rows:
            raise DataError("train_split: expected a split with rows, got an empty one")
        self.seed = seed
        self.batch_size = batch_size
        self._pad_id = tokenizer.pad_token_id
        encoded = encode_rows(
            tokenizer, rows, max_prompt_length, template, assistant_only=assistant_only
        )
        self._rows, self.overlong, self.left_out = within_limit(rows, encoded, limit)
        if limit is not None and not self._rows:
            shortest = min(ids.length for ids in encoded)
            raise DataError(
                f"max_length: expected a row with at most {limit.max_length} tokens to learn, got {len(rows)} longer "
                f"ones, the shortest with {shortest}"
            )
        self._lengths = [row.length for row in self._rows]
        self.longest = max(self._lengths)
        self.length_gaps = length_gaps(self._lengths)
        self.length = bucket(self.longest)
        # Of all rows, so that batches differ in the length of their sequences alone.
        self.completion_length = bucket(max(len(row.completion) for row in self._rows))

    def __len__(self) -> int:
        """Count the rows that are learned from."""
        return len(self._rows)

    def batch(self, step: int, length: int | None = None) -> Sequences:
        """Return the sequences of step `step` (0-based), numpy arrays.

        Args:
            step: number of the step, from 0.
            length: of the sequences, at least the batch's longest row; default: the bucket of that row.
        """
        order = row_order(
            len(self._rows), self.seed, step * self.batch_size, self.batch_size
        ).tolist()
        # Rows of like length stand side by side, so that little of a micro-batch is padding.
        order.sort(key=self._lengths.__getitem__)
        if length is None:
            length = min(bucket(self._lengths[order[-1]], SEQUENCE_BUCKET), self.length)
        return packed([self._rows[i] for i in order], length, self.completion_length, self._pad_id)

    def longest_batch(self) -> Sequences:
        """Return the shapes of the sequences of a step with the longest row."""
        return longest_shapes(self.batch_size, self.length, self.completion_length)


def packed(
    rows: Sequence[EncodedRow],
    length: int,
    completion_length: int,
    pad_id: int,
) -> Sequences:
    """Put prompts and completions together: sequences of `length`, completions of `completion_length`, on the host."""
    # Prompt and completion follow each other without a gap,
    # and padding is at the end alone: position i is column i.
    ids, lengths = right_padded([[*row.prompt, *row.completion] for row in rows], length, pad_id)
    completion_ids, completion_lengths = right_padded(
        [row.completion for row in rows], completion_length, pad_id
    )
    mask = np.arange(completion_length)[None, :] < completion_lengths[:, None]
    # None where all of every completion is learned: then the mask of the completions says so.
    loss_mask = None
    if any(row.loss_mask is not None for row in rows):
        flags = [row.loss_mask or [True] * len(row.completion) for row in rows]
        padded_flags, _ = right_padded(flags, completion_length)
        loss_mask = padded_flags.astype(bool)
    prompt_lengths = lengths - completion_lengths
    return Sequences(ids, prompt_lengths, completion_ids, mask, loss_mask)  # type: ignore[arg-type]


def longest_shapes(batch_size: int, length: int, completion_length: int) -> Sequences:
    """Return the shapes of what `packed` gives."""
    ids = jax.ShapeDtypeStruct((batch_size, length), np.int32)
    prompt_lengths = jax.ShapeDtypeStruct((batch_size,), np.int32)
    completion_ids = jax.ShapeDtypeStruct((batch_size, completion_length), np.int32)
    mask = jax.ShapeDtypeStruct((batch_size, completion_length), bool)
    return Sequences(ids, prompt_lengths, completion_ids, mask)  # type: ignore[arg-type]
