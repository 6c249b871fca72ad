"""Rows and prompts with more tokens than a limit: cut, left out and counted, or refused."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxppo.config import DataConfig, SFTConfig
from jaxppo.data.chat_template import ChatTemplate
from jaxppo.data.encoding import EncodedRow, encode_prompts_of_any_length
from jaxppo.data.rows import Row
from jaxppo.errors import DataError

# --- rows: prompt and completion together


class RowLimit(NamedTuple):
    """The most tokens of a row, prompt and completion together, and what becomes of longer ones."""

    max_length: int
    overlong: str  # cut: they lose their ends; drop: they are left out; error: they are refused


class LimitedRows(NamedTuple):
    """Rows that are within a limit, encoded."""

    rows: list[Any]
    overlong: int  # how many were longer
    left_out: int  # how many of these are not among the rows


def limits_of(config: SFTConfig, made_for: int) -> tuple[int | None, RowLimit]:
    """Return the most tokens of a prompt, None for any number, and the limit of rows to learn from.

    Args:
        config: of the command.
        made_for: tokens that the model was made for, the limit of rows where none is set.
    """
    max_length = made_for if config.max_length is None else config.max_length
    return config.prompt_data.max_prompt_length, RowLimit(max_length, config.overlong)


def within_limit(
    rows: Sequence[Row],
    encoded: Sequence[EncodedRow],
    limit: RowLimit | None,
) -> LimitedRows:
    """Cut rows to a limit, or leave them out.

    A row that is cut keeps its beginning, as in TRL, and has no end of sequence; one of which nothing is left to be
    learned is left out in any case.

    Args:
        rows: as they were read, for errors.
        encoded: the same, as token ids.
        limit: most tokens; None for any number.

    Returns:
        What is left, maybe no row.

    Raises:
        DataError: the first overlong row under `overlong: error`; the message names it.
    """
    if limit is None:
        return LimitedRows(list(encoded), 0, 0)
    rows_within = []
    num_overlong = 0
    for row, ids in zip(rows, encoded, strict=True):
        if ids.length <= limit.max_length:
            rows_within.append(ids)
            continue
        if limit.overlong == "error":
            raise DataError(
                f"max_length: expected at most {limit.max_length} tokens with overlong error, got {ids.length} in row "
                f"{row['id']}"
            )
        # A row whose prompt takes up all tokens has nothing
        # left to learn: to cut it is to leave it out.
        num_overlong += 1
        shorter = _cut(ids, limit.max_length)
        if shorter.loss_mask is None:
            has_loss = len(shorter.completion) > 0
        else:
            has_loss = any(shorter.loss_mask)
        if limit.overlong == "cut" and has_loss:
            rows_within.append(shorter)
    return LimitedRows(rows_within, num_overlong, len(encoded) - len(rows_within))


def _cut(row: EncodedRow, max_length: int) -> EncodedRow:
    """Return the first tokens of a row."""
    length = max(max_length - len(row.prompt), 0)
    loss_mask = None if row.loss_mask is None else row.loss_mask[:length]
    return EncodedRow(row.prompt, row.completion[:length], loss_mask)


# --- prompts


def without_overlong(
    tokenizer: Any,
    rows: Sequence[Row],
    config: DataConfig,
    template: ChatTemplate,
    split: str,
) -> list[Row]:
    """Return the rows whose prompt is within `max_prompt_length`, where it is set; all of a stream.

    Raises:
        DataError: there is none.
    """
    max_length = config.max_prompt_length
    # Prompts that are cut have a length of their own, whatever they had before;
    # those of a stream are not all there yet, so that none is left out.
    is_whole = config.input_text_length is None and config.stream_domains is None
    if max_length is None or not is_whole:
        return list(rows)
    encoded = encode_prompts_of_any_length(tokenizer, rows, template)
    fitting = [row for row, ids in zip(rows, encoded, strict=True) if len(ids) <= max_length]
    if not fitting:
        raise DataError(
            f"max_prompt_length: expected a prompt of at most {max_length} tokens in split {split}, got {len(rows)} "
            f"longer ones, the shortest with {min(map(len, encoded))}"
        )
    return fitting


def report_left_out(
    tell: Callable[[str], None],
    config: DataConfig,
    counts: Mapping[str, int],
) -> None:
    """Report how many rows of each split `without_overlong` has left out."""
    for split, count in counts.items():
        if count:
            tell(
                f"{count} rows of split {split} left out: prompts longer than {config.max_prompt_length} tokens"
            )
