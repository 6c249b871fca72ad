"""Preference data: pairs of completions of which people, or a rule, preferred one; read and tokenized on the host.

A row has `chosen` and `rejected`, and may have `prompt` (the beginning of both) and `margin` (by how much the scores
should differ at least). All three may be texts, or lists of turns as in TRL: then `chosen` and `rejected` end with a
turn of the assistant. Without a prompt the two are whole texts or whole chats: TRL's implicit prompt. Whole chats may
stand beside a prompt, too, which then says nothing that they do not.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxppo.data.batches import padded_size, right_padded, row_order
from jaxppo.data.chat_template import ChatTemplate, make_chat_template
from jaxppo.data.chats import plain_row
from jaxppo.data.encoding import encode_rows
from jaxppo.data.forms import convert_turn, warn_of_unread_system, warn_once
from jaxppo.data.rows import Row, read_rows
from jaxppo.errors import DataError, MissingColumnError, shown
from jaxppo.types import Array


class Pair(NamedTuple):
    """Two token rows: prompt, completion and end of sequence."""

    chosen: list[int]
    rejected: list[int]
    margin: float


class Pairs(NamedTuple):
    """The pairs of a split that are short enough, and the number of those that are not."""

    pairs: list[Pair]
    num_too_long: int

    @property
    def num_equal(self) -> int:
        """How many pairs have the same text twice, which says nothing of what is preferred."""
        return sum(pair.chosen == pair.rejected for pair in self.pairs)


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
    rows = read_rows(dataset, split, {}, configuration)
    unread: dict[str, None] = {}  # names of columns, in their order
    for number, row in enumerate(rows):
        location = f"{dataset}, split {split}, row {number}"
        for side in ("chosen", "rejected"):
            if side not in row:
                error = (
                    f"{location}: field '{side}': expected a text or a list of turns, got nothing"
                )
                raise MissingColumnError(error, row).with_fix(
                    "pairs have chosen and rejected, and their question as prompt: rename the columns"
                )
            if not isinstance(row[side], str | list):
                raise DataError(
                    f"{location}: field '{side}': expected a text or a list of turns, got {row[side]!r:.60}"
                )
        if row.get("prompt") is not None or isinstance(row["chosen"], list):
            warn_of_unread_system(row)
        elif row.get("messages") is not None:
            raise DataError(
                f"{location}: expected the turns before chosen and rejected as prompt, got them as messages"
            )
        else:
            # A text may be a whole one, or an answer whose question goes by another name.
            for name, value in row.items():
                if isinstance(value, str | list) and name not in ("id", "chosen", "rejected"):
                    unread[name] = None
    if unread:
        warn_once(
            f"{dataset}, split {split}: chosen and rejected are read as whole texts, as there is no prompt; not read: "
            f"{', '.join(map(shown, unread))}; a question is read if its column is called prompt"
        )
    return rows


def encode_pairs(
    tokenizer: Any,
    rows: Sequence[Row],
    max_length: int,
    location: str,
    template: ChatTemplate | None = None,
) -> Pairs:
    """Tokenize every row as PPO will have it scored, and drop the pairs in which a text is too long.

    Args:
        tokenizer: with an end of sequence.
        rows: see the top of this module.
        max_length: most tokens of prompt, completion and the token that ends it together.
        location: names the rows in errors.
        template: how prompts and turns are read; default: by the tokenizer's chat template, if it has one. Texts
            without a prompt are taken as they are.

    Raises:
        DataError: a prompt or margin is of another type, turns are malformed, a text cannot be encoded, or no pair is
            short enough.
    """
    if template is None:
        template = make_chat_template(tokenizer)
    margins = []
    chosen = []
    rejected = []
    is_plain = []
    for number, row in enumerate(rows):
        row_location = f"{location}, row {number}"
        margins.append(_margin(row, row_location))
        chosen.append(_side(row, "chosen", row_location))
        rejected.append(_side(row, "rejected", row_location))
        # Without a prompt a text may be anything, such as a
        # dialogue that is written out: there is no turn to render.
        is_plain.append(row.get("prompt") is None and isinstance(row["chosen"], str))
    chosen_ids = _encode(tokenizer, chosen, is_plain, template)
    rejected_ids = _encode(tokenizer, rejected, is_plain, template)
    pairs = list(map(Pair, chosen_ids, rejected_ids, margins))
    short_pairs = [
        pair for pair in pairs if max(len(pair.chosen), len(pair.rejected)) <= max_length
    ]
    if not short_pairs:
        raise DataError(
            f"{location}: expected a pair of at most {max_length} tokens, got {len(pairs)} longer ones"
        )
    return Pairs(short_pairs, len(pairs) - len(short_pairs))


def _side(row: Row, side: str, location: str) -> Row:
    """Return one completion of a row as a row of its own."""
    prompt = row.get("prompt")
    if prompt is not None and not isinstance(prompt, str | list):
        raise DataError(
            f"{location}: field 'prompt': expected a text, a list of turns or nothing, got {prompt!r:.60}"
        )
    answer = row[side]
    if isinstance(answer, list) and (prompt is None or _is_whole_chat(answer)):
        # TRL takes the prompt from the common beginning of such
        # chats, where it is a text; turns would be written twice.
        if isinstance(prompt, list) and answer[: len(prompt)] != prompt:
            raise DataError(
                f"{location}: field '{side}': expected a turn of the assistant, or a whole chat that begins with the "
                f"turns of prompt, got {answer!r:.60}"
            )
        chat = plain_row({"id": location, "messages": answer}, f"{location}, {side}")
        if "completion" not in chat:
            raise DataError(
                f"{location}: field '{side}': expected a chat that ends with a turn of the assistant, got "
                f"{chat['messages'][-1]['role']}"
            )
        contents = [turn.get("content", "") for turn in chat["messages"]]
        if isinstance(prompt, str) and not any(prompt.strip() in content for content in contents):
            warn_once("dataset: prompt is not read where chosen and rejected are whole chats")
        return chat
    # A text before turns is what the user said.
    if isinstance(answer, list) and not isinstance(prompt, list):
        prompt = [{"role": "user", "content": prompt or ""}]
    return plain_row(
        {"id": location, "prompt": prompt or "", "completion": answer}, f"{location}, {side}"
    )


def _is_whole_chat(turns: list[Any]) -> bool:
    """Return whether turns begin with what stands before an answer, not with the answer."""
    first = turns[0] if turns else None
    return isinstance(first, Mapping) and convert_turn(first).get("role") != "assistant"


def _encode(
    tokenizer: Any,
    rows: Sequence[Row],
    is_plain: Sequence[bool],
    template: ChatTemplate,
) -> list[list[int]]:
    """Return the ids of prompt and completion, with the token that ends it; plain rows without the template."""
    encoded: dict[int, list[int]] = {}
    # Rows of one layout are tokenized in one call, and put back in their order.
    for plain, row_template in ((True, None), (False, template)):
        numbers = [number for number in range(len(rows)) if is_plain[number] == plain]
        if not numbers:
            continue
        group = [rows[number] for number in numbers]
        encoded_group = encode_rows(tokenizer, group, template=row_template, may_lack_prompt=True)
        for number, row in zip(numbers, encoded_group, strict=True):
            encoded[number] = row.prompt + row.completion
    return [encoded[number] for number in range(len(rows))]


def _margin(row: Row, location: str) -> float:
    margin = row.get("margin")
    if margin is None:
        return 0.0
    # A bool is an int to Python.
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
        raise DataError(
            f"{location}: field 'margin': expected a finite number or nothing, got {margin!r:.60}"
        )
    return float(margin)


class PreferenceData:
    """Batches of pairs: `batch(step)` depends on nothing but the seed and the step.

    Args:
        pairs: of the training split.
        batch_size: B, pairs per batch.
        seed: of their order.
        max_length: longest row that the model can read; None: any.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        batch_size: int,
        seed: int,
        max_length: int | None = None,
    ):
        self._pairs = pairs
        self.batch_size = batch_size
        self._seed = seed
        self._max_length = max_length

    def longest_batch(self) -> PairBatch:
        """Return the shapes of the pairs of a step with the longest row."""
        length = self._padded_length(self._pairs)
        ids = jax.ShapeDtypeStruct((self.batch_size, length), np.int32)
        lengths = jax.ShapeDtypeStruct((self.batch_size,), np.int32)
        margins = jax.ShapeDtypeStruct((self.batch_size,), np.float32)
        return PairBatch(ids, lengths, ids, lengths, margins)  # type: ignore[arg-type]

    def batch(self, step: int) -> PairBatch:
        """Return the pairs of step `step` (0-based), numpy arrays."""
        order = row_order(len(self._pairs), self._seed, step * self.batch_size, self.batch_size)
        pairs = [self._pairs[i] for i in order]
        length = self._padded_length(pairs)
        chosen = right_padded([pair.chosen for pair in pairs], length)
        rejected = right_padded([pair.rejected for pair in pairs], length)
        margins = np.array([pair.margin for pair in pairs], np.float32)
        return PairBatch(*chosen, *rejected, margins)  # type: ignore[arg-type]

    def _padded_length(self, pairs: Sequence[Pair]) -> int:
        """Return the length of both texts of all pairs: they go through the model as one batch."""
        longest = max(max(len(pair.chosen), len(pair.rejected)) for pair in pairs)
        return padded_size(longest, self._max_length)
