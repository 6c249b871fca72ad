"""Rows that are made when their step comes: those of a stream, and rows of a folder under other names.

What a step learns from depends on nothing but the settings and its number, so a run resumes exactly.
"""

import random
from collections.abc import Callable, Collection, Sequence

from jaxppo.data.batches import (
    SEQUENCE_BUCKET,
    bucket,
    length_gaps,
    longest_shapes,
    packed,
    row_order,
)
from jaxppo.data.chats import Row
from jaxppo.data.encoding import EncodedRow
from jaxppo.data.rows import require_problem
from jaxppo.errors import DataError
from jaxppo.planning.datasets.renamed_rows import numbered_row, pools_of_rows, renamed_row
from jaxppo.types import Sequences


class FreshData:
    """Prompts with their reference completions, packed and right-padded to the sizes of the longest of a batch.

    Args:
        encode_step: from the number of a step to its rows; always the same for a step.
        pad_id: of the tokenizer.
        max_length: most tokens of a prompt and its completion; None where the model takes any number.

    Attributes:
        longest: tokens of the longest row of the first step; later ones may be longer.
        length_gaps: `length_gaps` of the rows of the first step.
    """

    def __init__(
        self,
        encode_step: Callable[[int], Sequence[EncodedRow]],
        pad_id: int,
        max_length: int | None = None,
    ):
        self._encode_step = encode_step
        self._pad_id = pad_id
        self._max_length = max_length
        # No one knows the longest row of what is made later; the first step stands for all.
        self._first_rows = self._rows(0)
        lengths = [row.length for row in self._first_rows]
        self.longest = lengths[-1]
        self.length_gaps = length_gaps(lengths)

    def batch(self, step: int) -> Sequences:
        """Return the sequences of step `step` (0-based), sorted by length; numpy arrays.

        Raises:
            DataError: a row has too many tokens, or as for its source.
        """
        rows = self._rows(step)
        longest = rows[-1].length
        if self._max_length is not None and longest > self._max_length:
            raise DataError(
                f"train_split: expected rows of at most {self._max_length} tokens, which the model has positions for, "
                f"got {longest} in step {step + 1}"
            )
        longest_completion = max(len(row.completion) for row in rows)
        length = bucket(longest, SEQUENCE_BUCKET)
        completion_length = bucket(longest_completion, SEQUENCE_BUCKET)
        return packed(rows, length, completion_length, self._pad_id)

    def longest_batch(self) -> Sequences:
        """Return the shapes of the sequences of the first step."""
        completion_length = bucket(max(len(row.completion) for row in self._first_rows))
        return longest_shapes(len(self._first_rows), bucket(self.longest), completion_length)

    def _rows(self, step: int) -> list[EncodedRow]:
        """Return the rows of a step, sorted by length."""
        return sorted(self._encode_step(step), key=lambda row: row.length)


def renamed_in_every_epoch(
    rows: Sequence[Row],
    batch_size: int,
    seed: int,
    augment: Collection[str],
    *,
    numbered: bool = False,
) -> Callable[[int], list[Row]]:
    """Return the function from a step to rows in the order of `row_order`, each drawn anew by (seed, epoch, row).

    Args:
        rows: planning problems with all columns.
        batch_size: rows of a step.
        seed: of the order, and of the names.
        augment: some of `names` and `order`.
        numbered: whether objects are numbered as the prompt mentions them, see `numbered_row`.

    Raises:
        DataError: rows that are not planning problems, or are chats.
    """
    for row in rows:
        require_problem(row, "augment")
    # Names to draw from; numbered objects have theirs by where the prompt mentions them.
    pools = {} if numbered else pools_of_rows(rows)

    def rename(row: Row, rng: random.Random) -> Row:
        if numbered:
            return numbered_row(row, rng)
        return renamed_row(row, pools[row["domain"]], rng, augment)

    def rows_of(step: int) -> list[Row]:
        start = step * batch_size
        order = row_order(len(rows), seed, start, batch_size).tolist()
        step_rows = []
        for place, number in enumerate(order, start):
            # Random numbers of the row and the epoch: the
            # names do not depend on what was drawn before.
            rng = random.Random(f"{seed}/{place // len(rows)}/{number}")
            step_rows.append(rename(rows[number], rng))
        return step_rows

    return rows_of
