"""From rows to token ids: the one way, for PPO, SFT, reward models, evaluation and examples alike.

A text is tokenized as a whole, a chat from its first turn to its last; no piece of it is tokenized by itself and glued
on. Where a completion begins:

1. A prompt has the ids that it has alone, since that is what a sampler continues.
2. A completion has the ids that follow these in the joined text.
3. Where one token of the joined text spans the boundary, as where a blank at the end of a prompt would merge with the
   word after it, the completion is tokenized as the continuation of another text: without the blank that some
   tokenizers put before the first word of a text.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxppo.data.chat_template import ChatTemplate, RowTexts, without_template
from jaxppo.data.rows import Row, paused_collection
from jaxppo.data.tokens import encodings, named_in_errors, start_ids, token_ids
from jaxppo.errors import DataError
from jaxppo.run import activity


class EncodedRow(NamedTuple):
    """A row as token ids.

    Attributes:
        prompt: all that stands before the completion.
        completion: with the token that ends it; of a whole chat, all from the first answer on.
        loss_mask: of each token of the completion, whether it is learned; None: all of them are.
    """

    prompt: list[int]
    completion: list[int]
    loss_mask: list[bool] | None = None

    @property
    def length(self) -> int:
        """How many tokens the row has."""
        return len(self.prompt) + len(self.completion)

    @property
    def num_learned(self) -> int:
        """How many tokens of the completion are learned."""
        return len(self.completion) if self.loss_mask is None else sum(self.loss_mask)


# --- prompts


def encode_prompts(
    tokenizer: Any,
    rows: Sequence[Row],
    max_length: int | None = None,
    cut_to: Sequence[int] | None = None,
    template: ChatTemplate | None = None,
) -> list[list[int]]:
    """Return the token ids of every row's prompt, or of its first `cut_to` tokens.

    Args:
        tokenizer: of the model.
        rows: with `prompt`, and `messages` where they are chats.
        max_length: most tokens of a prompt, with all that the template puts before it; default: any number.
        cut_to: numbers of tokens, beside those that every text begins with.
        template: chat template; default: none.

    Raises:
        DataError: a prompt is empty, longer than `max_length` tokens, or has a word that the tokenizer lacks; the
            message names the row.
    """
    if template is None:
        template = without_template(tokenizer)
    encoded = encode_prompts_of_any_length(tokenizer, rows, template)
    num_start = len(_prompt_start(tokenizer, template))
    if cut_to is not None:
        encoded = [ids[: num_start + length] for ids, length in zip(encoded, cut_to, strict=True)]
    _check_lengths(rows, encoded, num_start, max_length)
    return encoded


def encode_prompts_of_any_length(
    tokenizer: Any,
    rows: Sequence[Row],
    template: ChatTemplate,
) -> list[list[int]]:
    """Return the token ids of every row's prompt, also of an empty one."""
    texts = [template.prompt_text(row) for row in activity.track("writing prompts", rows)]
    return _with_start(
        _encode_column(tokenizer, rows, texts, "prompt"), _prompt_start(tokenizer, template)
    )


def cut_prompts(
    tokenizer: Any,
    rows: Sequence[Row],
    max_length: int | None,
    text_lengths: tuple[int, int],
    seed: int,
) -> tuple[list[Row], list[list[int]]]:
    """Cut every prompt to a random length; return the rows with the cut prompts, and their token ids.

    Args:
        tokenizer: of the model.
        rows: with `prompt`.
        max_length: most tokens of a prompt; None: any number.
        text_lengths: range of the lengths in tokens, both ends included.
        seed: of the lengths.

    Raises:
        DataError: as for `encode_prompts`.
    """
    # A function of the seed and the number of rows, so that
    # training, evaluation and a resumed run cut alike.
    shortest, longest = text_lengths
    rng = np.random.default_rng((seed, len(rows)))
    lengths = rng.integers(shortest, longest, len(rows), endpoint=True)
    encoded = encode_prompts(tokenizer, rows, max_length, lengths.tolist())
    # The text of a cut prompt is that of its ids, but for the start, which is no part of a text.
    num_start = len(start_ids(tokenizer))
    cut_rows = []
    for row, ids in zip(rows, encoded, strict=True):
        cut_rows.append(row | {"prompt": tokenizer.decode(ids[num_start:])})
    return cut_rows, encoded


def _check_lengths(
    rows: Sequence[Row],
    encoded: Sequence[Sequence[int]],
    num_start: int,
    limit: int | None,
) -> None:
    """Raise a `DataError` that names the first row whose prompt has no token beside its start, or too many."""
    for row, ids in zip(rows, encoded, strict=True):
        # A prompt that is its start alone is an empty text;
        # with one that has more, the start counts, too.
        length = len(ids) if len(ids) > num_start else 0
        if length == 0 or (limit is not None and length > limit):
            allowed = (
                "1 token or more" if limit is None else f"1 to max_prompt_length={limit} tokens"
            )
            advice = "; a larger max_prompt_length may help" if length else ""
            raise DataError(f"prompt of row {row['id']}: expected {allowed}, got {length}{advice}")


def _prompt_start(tokenizer: Any, template: ChatTemplate) -> list[int]:
    """Return what every prompt begins with; a chat template writes that itself."""
    return [] if template.is_used else start_ids(tokenizer)


def _with_start(encoded: list[list[int]], start: list[int]) -> list[list[int]]:
    """Put the start before texts; one that is written with the beginning of sequence does not get a second."""
    if not start:
        return encoded
    return [ids if ids[: len(start)] == start else [*start, *ids] for ids in encoded]


# --- prompts with their completions


def encode_rows(
    tokenizer: Any,
    rows: Sequence[Row],
    max_length: int | None = None,
    template: ChatTemplate | None = None,
    *,
    assistant_only: bool = False,
    may_lack_prompt: bool = False,
) -> list[EncodedRow]:
    """Return the token ids of every row's prompt and completion.

    Args:
        tokenizer: of the model.
        rows: with `prompt` and `completion`, and `messages` where they are chats.
        max_length: most tokens of a prompt, with all that the template puts before it; default: any number.
        template: chat template; default: none.
        assistant_only: all turns of the assistant are learned, not the completion alone: a row's prompt ends before
            the first of them, and `loss_mask` tells them from what is between them.
        may_lack_prompt: a prompt may be empty, as of preferences that are texts of their own.

    Raises:
        DataError: as for `encode_prompts`, and for a completion that the tokenizer cannot encode.
        ConfigError: the template writes another prompt where a completion follows, or does not show where the turns of
            the assistant are.
    """
    if template is None:
        template = without_template(tokenizer)
    with paused_collection():
        with activity.show(f"writing {len(rows)} prompts and completions"):
            texts = template.texts_of_rows(rows)
        if assistant_only:
            encoded = _encode_chats(tokenizer, rows, texts, template, max_length)
            return [_with_end(row, template.end_id) for row in encoded]
        # Rule 1, and rule 2: the ids of prompts alone,
        # and those of the joined text that follow them.
        start = _prompt_start(tokenizer, template)
        joined = _joined_ids(tokenizer, texts)
        prompts = _with_start(_prompt_ids(tokenizer, rows, texts, joined), start)
        if not may_lack_prompt:
            _check_lengths(rows, prompts, len(start), max_length)
        if joined is None:
            completions = _encode_column(
                tokenizer, rows, [text.completion for text in texts], "completion"
            )
        else:
            completions = _completion_ids(
                tokenizer, rows, texts, prompts, _with_start(joined, start)
            )
        encoded = map(EncodedRow, prompts, completions)
        return [_with_end(row, template.end_id) for row in encoded]


def encode_completions(
    tokenizer: Any,
    rows: Sequence[Row],
    template: ChatTemplate | None = None,
) -> list[list[int]]:
    """Return the token ids of every row's completion as it stands after its prompt, with the token that ends it."""
    return [
        row.completion
        for row in encode_rows(tokenizer, rows, template=template, may_lack_prompt=True)
    ]


def _with_end(row: EncodedRow, end_id: int) -> EncodedRow:
    """Add the end, unless the template has written it, or a completion of the data has it: it is learned once."""
    ids = row.completion
    if not ids and row.loss_mask is not None:
        # A chat in which no token is learned is all prompt, with its end.
        ids = row.prompt
    if ids[-1:] == [end_id]:
        return row
    loss_mask = None if row.loss_mask is None else [*row.loss_mask, True]
    return EncodedRow(row.prompt, [*row.completion, end_id], loss_mask)


def _joined_ids(tokenizer: Any, texts: Sequence[RowTexts]) -> list[list[int]] | None:
    """Return the ids of prompts with their completions; None where a word-level vocabulary lacks a word of them.

    The end of a prompt and the beginning of a completion may make a word together that neither has. Such a vocabulary
    has no tokens across words, so that prompts and completions can be tokenized one by one.
    """
    try:
        return token_ids(tokenizer, [text.prompt + text.completion for text in texts], "completion")
    except DataError:
        return None


def _prompt_ids(
    tokenizer: Any,
    rows: Sequence[Row],
    texts: Sequence[RowTexts],
    joined: Sequence[list[int]] | None,
) -> list[list[int]]:
    """Return the ids that prompts have alone, without tokenizing again what they share with the joined text.

    A special token of a chat template is no part of any other token, so up to the last one in a prompt its ids are
    those of the joined text. What follows is tokenized from that token on. It is the same text in nearly all rows,
    such as `<|im_start|>assistant`, and tokenized once.
    """
    special_ids = _special_ids(tokenizer)
    if joined is None or not special_ids:
        return _encode_column(tokenizer, rows, [text.prompt for text in texts], "prompt")
    # Of several tokens that begin at one place, the longest
    # is found: in reverse order it comes before its prefixes.
    pattern = re.compile("|".join(map(re.escape, sorted(special_ids, reverse=True))))
    shared = []
    tails = []
    for text, ids in zip(texts, joined, strict=True):
        shared_count, tail = _shared_with_joined(text, ids, special_ids, pattern)
        shared.append(ids[:shared_count])
        tails.append(tail)
    distinct_tails = list(dict.fromkeys(tails))
    tail_ids = dict(
        zip(distinct_tails, token_ids(tokenizer, distinct_tails, "prompt"), strict=True)
    )
    return [[*ids, *tail_ids[tail]] for ids, tail in zip(shared, tails, strict=True)]


def _special_ids(tokenizer: Any) -> dict[str, int]:
    """Return the ids of tokens that are found in a text before anything else, whatever stands around them."""
    special_ids = {}
    for token_id, token in tokenizer.added_tokens_decoder.items():
        # Others take the blanks around them, or need them, so
        # that the ids beside them depend on what stands there.
        if token.special and not (
            token.lstrip or token.rstrip or token.single_word or token.normalized
        ):
            special_ids[token.content] = token_id
    return special_ids


def _shared_with_joined(
    text: RowTexts,
    ids: list[int],
    special_ids: Mapping[str, int],
    pattern: re.Pattern[str],
) -> tuple[int, str]:
    """Return how many ids of a joined text come before the last special token of its prompt, and the text from it."""
    # Tokens may overlap, so the search goes on from the
    # next character, not from the end of the last match.
    match = pattern.search(text.prompt)
    if match is None:
        return 0, text.prompt
    while (later := pattern.search(text.prompt, match.start() + 1)) is not None:
        match = later
    token = match[0]
    tail = text.prompt[match.start() :]
    num_earlier = text.prompt.count(token) - 1
    num_later = tail[len(token) :].count(token) + text.completion.count(token)
    # Each must be one token of the ids, or the loop below ends
    # at another one: not so where one is part of another.
    token_id = special_ids[token]
    if ids.count(token_id) != num_earlier + 1 + num_later:
        return 0, text.prompt
    place = -1
    for _ in range(num_earlier + 1):
        place = ids.index(token_id, place + 1)
    return place, tail


def _completion_ids(
    tokenizer: Any,
    rows: Sequence[Row],
    texts: Sequence[RowTexts],
    prompts: Sequence[list[int]],
    joined: Sequence[list[int]],
) -> list[list[int]]:
    """Return the ids of completions as they follow those of their prompts: rules 2 and 3 at the top of this module."""
    completions = []
    for row, text, prompt, ids in zip(rows, texts, prompts, joined, strict=True):
        if ids[: len(prompt)] == prompt:
            completions.append(ids[len(prompt) :])
        else:
            completions.append(_continuation(tokenizer, row, text))
    return completions


# Texts to tokenize a completion after, where it would merge with the end of its own prompt.
_STAND_INS = ("\n", "a", ".")


def _continuation(tokenizer: Any, row: Row, text: RowTexts) -> list[int]:
    """Tokenize a completion that does not begin a text, after the first short text that it does not merge with."""
    for prefix in (text.prompt[-1:], *_STAND_INS):
        prefix_ids, joined = token_ids(tokenizer, [prefix, prefix + text.completion], "completion")
        if prefix_ids and joined[: len(prefix_ids)] == prefix_ids:
            return joined[len(prefix_ids) :]
    return _encode_column(tokenizer, [row], [text.completion], "completion")[0]


def _encode_chats(
    tokenizer: Any,
    rows: Sequence[Row],
    texts: Sequence[RowTexts],
    template: ChatTemplate,
    max_length: int | None,
) -> list[EncodedRow]:
    """Tokenize chats as a whole, and mark the tokens that their turns of the assistant have a part in."""
    chat_encodings = encodings(
        tokenizer, [text.prompt + text.completion for text in texts], offsets=True
    )
    chats = []
    prompts = []
    for row, text in zip(rows, texts, strict=True):
        # Encodings come one batch after the other, so an error of a batch names its first row.
        with named_in_errors(f"chat of row {row['id']}"):
            encoding = next(chat_encodings)
        ids = encoding.ids
        # Both are in order: tokens are in the order of
        # their characters, also where several share one.
        offsets = encoding.offsets
        token_starts = [start for start, _ in offsets]
        token_ends = [end for _, end in offsets]
        loss_mask = [False] * len(ids)
        # A token that has but a part of the turn, such as one with the blank before it, is learned:
        # otherwise the first word of the answer would not be.
        for start, end in template.assistant_spans(row):
            first = bisect_right(token_ends, start)
            stop = bisect_left(token_starts, end)
            loss_mask[first:stop] = [True] * (stop - first)
        # No token stands before the first one, from which it could be predicted.
        loss_mask[:1] = [False]
        # All before the first learned token is prompt, for which no loss is computed.
        num_context = loss_mask.index(True) if True in loss_mask else len(ids)
        chats.append(EncodedRow(ids[:num_context], ids[num_context:], loss_mask[num_context:]))
        prompts.append(ids[: bisect_left(token_starts, len(text.prompt))])
    _check_lengths(rows, prompts, 0, max_length)
    return chats


# --- texts of rows


def _encode_column(
    tokenizer: Any,
    rows: Sequence[Row],
    texts: Sequence[str],
    column: str,
) -> list[list[int]]:
    """Return the ids of one text of each row; a `DataError` names the row and the first word that is in the way."""
    try:
        return token_ids(tokenizer, texts, column)
    except DataError as error:
        # The tokenizer does not say which text it failed at, so each is split into words again.
        for row, text in zip(rows, texts, strict=True):
            word = _unknown_word(tokenizer, text)
            if word is not None:
                raise DataError(
                    f"{column} of row {row['id']}: expected words that the model's tokenizer knows, got {word!r}; use "
                    "another model, or train one on this data with `python -m jaxppo.sft`"
                ) from error
        raise


def _unknown_word(tokenizer: Any, text: str) -> str | None:
    """Return the first word that a word-level vocabulary lacks."""
    splitter = tokenizer.backend_tokenizer.pre_tokenizer
    if splitter is None:
        return None
    vocabulary = tokenizer.get_vocab()
    for word, _ in splitter.pre_tokenize_str(text):
        if word not in vocabulary:
            return word
    return None
