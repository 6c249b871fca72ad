"""From rows to token ids and back: the one way, for PPO, SFT, reward models, evaluation, examples and repair alike.

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from jaxppo.config import DataConfig
from jaxppo.data.chat_template import ChatTemplate, RowTexts
from jaxppo.data.rows import Row, paused_collection
from jaxppo.errors import DataError, first_line
from jaxppo.run import activity


class EncodedRow(NamedTuple):
    """A row as token ids.

    Attributes:
        prompt: all that stands before the completion.
        completion: with the token that ends it; of a whole chat, all from the first answer on.
        learned: of each token of the completion, whether it is learned; None: all of them are.
    """

    prompt: list[int]
    completion: list[int]
    learned: list[bool] | None = None

    @property
    def length(self) -> int:
        """How many tokens the row has."""
        return len(self.prompt) + len(self.completion)


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
        DataError: a prompt is empty, longer than `max_length` tokens, or has a word that the tokenizer does not know;
            the message names the row.
    """
    template = _plain(tokenizer) if template is None else template
    start = _start(tokenizer, template)
    encoded = _prompts(tokenizer, _prompt_texts(template, rows), rows, start)
    if cut_to is not None:
        encoded = [ids[: len(start) + length] for ids, length in zip(encoded, cut_to, strict=True)]
    _check_lengths(rows, encoded, len(start), max_length)
    return encoded


def _prompt_texts(template: ChatTemplate, rows: Sequence[Row]) -> list[str]:
    return [template.prompt_text(row) for row in activity.counted("writing prompts", rows)]


def _check_lengths(rows: Sequence[Row], encoded: Sequence[Sequence[int]], start: int, max_length: int | None) -> None:
    """Raise a `DataError` that names the first row whose prompt has no token of its own, or too many."""
    for row, ids in zip(rows, encoded, strict=True):
        length = len(ids) if len(ids) > start else 0
        if length == 0 or (max_length is not None and length > max_length):
            expected = "1 token or more" if max_length is None else f"1 to max_prompt_length={max_length} tokens"
            fix = "; a larger max_prompt_length may help" if length else ""
            raise DataError(f"prompt of row {row['id']}: expected {expected}, got {length}{fix}")


def _start(tokenizer: Any, template: ChatTemplate) -> list[int]:
    """Return what every prompt begins with; a chat template writes that itself."""
    return [] if template.templated else start_ids(tokenizer)


def start_ids(tokenizer: Any) -> list[int]:
    """Return what a tokenizer puts before a text: the beginning of sequence of Llama's and Mistral's, else nothing."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return [bos] if bos is not None and tokenizer("")["input_ids"][:1] == [bos] else []


def _prompts(tokenizer: Any, texts: Sequence[str], rows: Sequence[Row], start: list[int]) -> list[list[int]]:
    """Tokenize prompts; one that is written with the beginning of sequence does not get a second."""
    return _started(_encode(tokenizer, rows, texts, "prompt"), start)


def _started(encoded: list[list[int]], start: list[int]) -> list[list[int]]:
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
            the first of them, and `learned` tells them from what is between them.
        may_lack_prompt: a prompt may be empty, as of preferences that are texts of their own.

    Raises:
        DataError: as for `encode_prompts`, and for a completion that the tokenizer cannot encode.
        ConfigError: the template writes another prompt where a completion follows, or does not show where the turns of
            the assistant are.
    """
    template = _plain(tokenizer) if template is None else template
    start = _start(tokenizer, template)
    with paused_collection():
        return _encoded_rows(tokenizer, rows, max_length, template, start, assistant_only, may_lack_prompt)


def _encoded_rows(
    tokenizer: Any,
    rows: Sequence[Row],
    max_length: int | None,
    template: ChatTemplate,
    start: list[int],
    assistant_only: bool,
    may_lack_prompt: bool,
) -> list[EncodedRow]:
    with activity.shown(f"writing {len(rows)} prompts and completions"):
        texts = template.texts_of_rows(rows)
    if assistant_only:
        return [_closed(chat, template.end_id) for chat in _chats(tokenizer, rows, texts, template, max_length)]
    joined = _joined(tokenizer, texts)
    prompts = _started(_prompts_of(tokenizer, rows, texts, joined), start)
    if not may_lack_prompt:
        _check_lengths(rows, prompts, len(start), max_length)
    completions = _after(tokenizer, rows, texts, prompts, None if joined is None else _started(joined, start))
    pairs = zip(prompts, completions, strict=True)
    return [_closed(EncodedRow(prompt, completion), template.end_id) for prompt, completion in pairs]


def _closed(row: EncodedRow, end_id: int) -> EncodedRow:
    """Add the end, unless the template has written it, or a completion of the data has it: it is learned once."""
    # Of a chat in which no token is learned all of it is prompt.
    ids = row.completion if row.completion or row.learned is None else row.prompt
    if ids[-1:] == [end_id]:
        return row
    return EncodedRow(row.prompt, [*row.completion, end_id], None if row.learned is None else [*row.learned, True])


def _joined(tokenizer: Any, texts: Sequence[RowTexts]) -> list[list[int]] | None:
    """Return the ids of prompts with their completions; None where there are no tokens across words.

    A word-level vocabulary lacks a word that the ends of two texts make together.
    """
    try:
        return token_ids(tokenizer, [text.prompt + text.completion for text in texts], "completion")
    except DataError:
        return None


def _prompts_of(
    tokenizer: Any, rows: Sequence[Row], texts: Sequence[RowTexts], joined: Sequence[list[int]] | None
) -> list[list[int]]:
    """Return the ids that prompts have alone, without tokenizing again what they share with the joined text.

    A special token of a chat template is no part of any other token, so up to the last one in a prompt its ids are
    those of the joined text. What follows is tokenized from that token on, mostly the same text in all rows.
    """
    specials = _separators(tokenizer)
    if joined is None or not specials:
        return _encode(tokenizer, rows, [text.prompt for text in texts], "prompt")
    # Of several tokens that begin at one place, the longest.
    pattern = re.compile("|".join(map(re.escape, sorted(specials, reverse=True))))
    ends: list[tuple[int, str]] = []  # of each prompt: ids that it shares with the joined text, and the rest of it
    for text, ids in zip(texts, joined, strict=True):
        ends.append(_shared(text, ids, specials, pattern))
    tails = dict.fromkeys(tail for _, tail in ends)
    by_tail = dict(zip(tails, token_ids(tokenizer, list(tails), "prompt"), strict=True))
    return [[*ids[:shared], *by_tail[tail]] for ids, (shared, tail) in zip(joined, ends, strict=True)]


def _separators(tokenizer: Any) -> dict[str, int]:
    """Return the ids of tokens that are found in a text before anything else, whatever stands around them."""
    found = {}
    for number, token in tokenizer.added_tokens_decoder.items():
        if token.special and not (token.lstrip or token.rstrip or token.single_word or token.normalized):
            found[token.content] = number
    return found


def _shared(text: RowTexts, ids: list[int], specials: Mapping[str, int], pattern: re.Pattern[str]) -> tuple[int, str]:
    """Return how many ids of a joined text come before the last special token of its prompt, and the text from it."""
    found, match = None, pattern.search(text.prompt)
    while match is not None:  # tokens may overlap: the last one is that which begins last
        found, match = match, pattern.search(text.prompt, match.start() + 1)
    if found is None:
        return 0, text.prompt
    place, last = found.start(), found[0]
    before = text.prompt.count(last) - 1
    everywhere = before + 1 + text.prompt[place + len(last) :].count(last) + text.completion.count(last)
    # Unless each is found as one token, as where one is part of another, nothing is known of the ids.
    if ids.count(specials[last]) != everywhere:
        return 0, text.prompt
    shared = ids.index(specials[last])
    for _ in range(before):
        shared = ids.index(specials[last], shared + 1)
    return shared, text.prompt[place:]


class RowLimit(NamedTuple):
    """The most tokens of a row, prompt and completion together, and what becomes of longer ones."""

    max_length: int
    overlong: str  # cut: they lose their ends; drop: they are left out; error: they are refused


class LimitedRows(NamedTuple):
    """Rows that are within a limit, encoded."""

    rows: list[Any]
    overlong: int  # how many were longer
    left_out: int  # how many of these are not among the rows


def within_limit(rows: Sequence[Row], encoded: Sequence[EncodedRow], limit: RowLimit | None) -> LimitedRows:
    """Cut rows to a limit, or leave them out; see `limited_rows`.

    Raises:
        DataError: as for `limited_rows`, or no row is left.
    """
    limited = limited_rows(rows, encoded, limit)
    if limit is not None and not limited.rows:
        shortest = min(ids.length for ids in encoded)
        got = f"{len(rows)} longer ones, the shortest with {shortest}"
        raise DataError(f"max_length: expected a row with at most {limit.max_length} tokens to learn, got {got}")
    return limited


def limited_rows(rows: Sequence[Row], encoded: Sequence[EncodedRow], limit: RowLimit | None) -> LimitedRows:
    """Cut rows to a limit, or leave them out.

    A row that is cut keeps its beginning, as in TRL, and has no end of sequence; one of which nothing is left to be
    learned is left out in any case.

    Args:
        rows: as they were read, for errors.
        encoded: the same, as token ids.
        limit: most tokens; None for any number.

    Raises:
        DataError: the first overlong row under `overlong: error`; the message names it.
    """
    if limit is None:
        return LimitedRows(list(encoded), 0, 0)
    kept, overlong = [], 0
    for row, ids in zip(rows, encoded, strict=True):
        if ids.length <= limit.max_length:
            kept.append(ids)
            continue
        if limit.overlong == "error":
            expected = f"at most {limit.max_length} tokens with overlong error"
            raise DataError(f"max_length: expected {expected}, got {ids.length} in row {row['id']}")
        overlong += 1
        shorter = _cut(ids, limit.max_length)
        if limit.overlong == "cut" and shorter.completion and (shorter.learned is None or any(shorter.learned)):
            kept.append(shorter)
    return LimitedRows(kept, overlong, len(encoded) - len(kept))


def _cut(row: EncodedRow, max_length: int) -> EncodedRow:
    """Return the first tokens of a row."""
    rest = max(max_length - len(row.prompt), 0)
    return EncodedRow(row.prompt, row.completion[:rest], None if row.learned is None else row.learned[:rest])


def encode_completions(tokenizer: Any, rows: Sequence[Row], template: ChatTemplate | None = None) -> list[list[int]]:
    """Return the token ids of every row's completion as it stands after its prompt, with the token that ends it."""
    return [row.completion for row in encode_rows(tokenizer, rows, template=template, may_lack_prompt=True)]


def _after(
    tokenizer: Any,
    rows: Sequence[Row],
    texts: Sequence[RowTexts],
    prompts: Sequence[list[int]],
    joined: Sequence[list[int]] | None,
) -> list[list[int]]:
    """Return the ids of completions as they follow those of their prompts."""
    if joined is None:
        return _encode(tokenizer, rows, [text.completion for text in texts], "completion")
    completions = []
    for row, text, prompt, ids in zip(rows, texts, prompts, joined, strict=True):
        if ids[: len(prompt)] == prompt:
            completions.append(ids[len(prompt) :])
        else:
            completions.append(_continuation(tokenizer, row, text))
    return completions


def _chats(
    tokenizer: Any, rows: Sequence[Row], texts: Sequence[RowTexts], template: ChatTemplate, max_length: int | None
) -> list[EncodedRow]:
    """Tokenize chats as a whole, and mark the tokens that their turns of the assistant have a part in."""
    wholes = _encodings(tokenizer, [text.prompt + text.completion for text in texts], offsets=True)
    chats, prompts = [], []
    for row, text in zip(rows, texts, strict=True):
        with _naming(f"chat of row {row['id']}"):
            whole = next(wholes)
        ids, offsets = whole.ids, whole.offsets
        learned = [False] * len(ids)
        for begin, end in template.assistant_spans(row):
            # Tokens are in the order of their characters, also where several share one.
            first = bisect_right(offsets, begin, key=lambda characters: characters[1])
            behind = bisect_left(offsets, end, key=lambda characters: characters[0])
            learned[first:behind] = [True] * (behind - first)
        learned[:1] = [False]  # nothing stands before the first token, from which it could be told
        start = learned.index(True) if True in learned else len(ids)
        chats.append(EncodedRow(ids[:start], ids[start:], learned[start:]))
        prompts.append(ids[: bisect_left(offsets, len(text.prompt), key=lambda characters: characters[0])])
    _check_lengths(rows, prompts, 0, max_length)
    return chats


_BEFORE = ("\n", "a", ".")
"""Texts to tokenize a completion after, where it would merge with the end of its own prompt."""


def _continuation(tokenizer: Any, row: Row, text: RowTexts) -> list[int]:
    """Tokenize a completion that does not begin a text, after the first short text that it does not merge with."""
    for before in (text.prompt[-1:], *_BEFORE):
        alone, joined = token_ids(tokenizer, [before, before + text.completion], "completion")
        if alone and joined[: len(alone)] == alone:
            return joined[len(alone) :]
    return _encode(tokenizer, [row], [text.completion], "completion")[0]


def _plain(tokenizer: Any) -> ChatTemplate:
    return ChatTemplate(tokenizer, False, tokenizer.eos_token_id)


# --- prompts that are left out or cut


def without_overlong(tokenizer: Any, rows: Sequence[Row], config: DataConfig, template: ChatTemplate) -> list[Row]:
    """Return the rows that `encode_prompts` accepts where `filter_overlong_prompts` is set, otherwise all.

    Raises:
        DataError: there is none.
    """
    if not config.filter_overlong_prompts or config.text_lengths is not None:
        return list(rows)
    kept, lengths = fitting_rows(tokenizer, rows, config, template)
    if not kept:
        raise DataError(
            f"max_prompt_length: expected a prompt of at most {config.longest_prompt} tokens, got {len(rows)} "
            f"longer ones, the shortest with {min(lengths)}"
        )
    return kept


def fitting_rows(
    tokenizer: Any, rows: Sequence[Row], config: DataConfig, template: ChatTemplate
) -> tuple[list[Row], list[int]]:
    """Return the rows whose prompts `filter_overlong_prompts` keeps, maybe none, and the tokens of every prompt."""
    most = config.longest_prompt
    assert most is not None
    texts = _prompt_texts(template, rows)
    lengths = [len(ids) for ids in _prompts(tokenizer, texts, rows, _start(tokenizer, template))]
    return [row for row, length in zip(rows, lengths, strict=True) if length <= most], lengths


def tell_left_out(tell: Callable[[str], None], config: DataConfig, counts: Mapping[str, int]) -> None:
    """Report how many rows of each split `without_overlong` has left out."""
    for split, count in counts.items():
        if count:
            tell(f"{count} rows of split {split} left out: prompts longer than {config.longest_prompt} tokens")


def cut_prompts(
    tokenizer: Any, rows: Sequence[Row], max_length: int | None, text_lengths: tuple[int, int], seed: int
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
    lengths = np.random.default_rng((seed, len(rows))).integers(*text_lengths, len(rows), endpoint=True)
    encoded = encode_prompts(tokenizer, rows, max_length, lengths.tolist())
    begin = len(start_ids(tokenizer))
    return [row | {"prompt": tokenizer.decode(ids[begin:])} for row, ids in zip(rows, encoded, strict=True)], encoded


# --- texts


def token_ids(tokenizer: Any, texts: Sequence[str], where: str) -> list[list[int]]:
    """Return the token ids of every text, without special tokens; `where` names the texts in a `DataError`."""
    with _naming(where):
        return [encoding.ids for encoding in _encodings(tokenizer, texts)]


TEXTS_AT_ONCE = 1000
"""Texts tokenized in one call. Encodings are many times as large as their ids: all at once took half as long again."""


def _encodings(tokenizer: Any, texts: Sequence[str], *, offsets: bool = False) -> Iterator[Any]:
    """Yield the encoding of every text by the tokenizer's backend, which makes no lists of masks beside the ids.

    Args:
        tokenizer: fast tokenizer.
        texts: to be tokenized as they are, without special tokens.
        offsets: whether the encodings have the characters of each token.
    """
    tokenizer("")  # takes back truncation and padding that the tokenizer's files may ask for
    backend = tokenizer.backend_tokenizer
    encode = backend.encode_batch if offsets else backend.encode_batch_fast
    with activity.shown("tokenizing", len(texts), "texts") as progress:
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            yield from encode(list(texts[start : start + TEXTS_AT_ONCE]), add_special_tokens=False)
            progress.done = start + TEXTS_AT_ONCE


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Say what was to be tokenized; tokenizers raises plain Exception for a word that a word-level vocabulary lacks."""
    try:
        yield
    except Exception as error:
        got = first_line(error)
        raise DataError(f"{where}: expected text that the model's tokenizer can encode, got: {got}") from error


def _encode(tokenizer: Any, rows: Sequence[Row], texts: Sequence[str], column: str) -> list[list[int]]:
    try:
        return token_ids(tokenizer, texts, column)
    except DataError as error:
        for row, text in zip(rows, texts, strict=True):
            for word in _unknown_words(tokenizer, text):
                expected = "words that the model's tokenizer knows"
                fix = "use another model, or train one on this data with `python -m jaxppo.sft`"
                raise DataError(f"{column} of row {row['id']}: expected {expected}, got {word!r}; {fix}") from error
        raise


def _unknown_words(tokenizer: Any, text: str) -> Iterator[str]:
    known, splitter = tokenizer.get_vocab(), tokenizer.backend_tokenizer.pre_tokenizer
    words = [] if splitter is None else splitter.pre_tokenize_str(text)
    return (word for word, _ in words if word not in known)


# --- completions as texts


def decode(tokenizer: Any, ids: np.ndarray, mask: np.ndarray, end_ids: Collection[int] | None = None) -> list[str]:
    """Decode completions without the token that ends them: [B, C] ids and mask to B strings.

    Any other special token stays in the text: if it were left out, a plan with such junk would count as clean.

    Args:
        tokenizer: of the model.
        ids: of the completions.
        mask: True where there is a token.
        end_ids: any of these ends a completion; default: the end of sequence.
    """
    return [_text(tokenizer, words) for words in _words(tokenizer, ids, mask, end_ids)]


def _words(tokenizer: Any, ids: np.ndarray, mask: np.ndarray, end_ids: Collection[int] | None) -> list[list[str]]:
    """Return the tokens of each completion, without the one that ends it."""
    end_ids = (tokenizer.eos_token_id,) if end_ids is None else end_ids
    rows = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    bodies = [row[:-1] if row and row[-1] in end_ids else row for row in rows]
    return [[_visible(tokenizer, i) for i in row] for row in bodies]


_WORD_START = "\u2581"
"""How SentencePiece writes the blank before a word."""


def _text(tokenizer: Any, words: list[str]) -> str:
    """Write tokens as the text that they are after a prompt, where a blank of the first one is not lost."""
    if not words or not words[0].startswith(_WORD_START):
        return tokenizer.convert_tokens_to_string(words) if words else ""
    # Decoders of SentencePiece drop the blank of the token that begins a text, so another one has to begin it.
    before = tokenizer.convert_tokens_to_string(words[:1])
    return tokenizer.convert_tokens_to_string([words[0], *words])[len(before) :]


def text_after(tokenizer: Any, token_id: int) -> str:
    """Return what a token adds to a text that does not begin with it; `<id>` for an id that the tokenizer lacks."""
    word = _visible(tokenizer, token_id)
    before = tokenizer.convert_tokens_to_string([word])
    return tokenizer.convert_tokens_to_string([word, word])[len(before) :]


def _visible(tokenizer: Any, token_id: int) -> str:
    """Return the token, or `<id>` for an id that the tokenizer does not know."""
    token = tokenizer.convert_ids_to_tokens(token_id)
    return f"<{token_id}>" if token is None else token


# --- places in a text and tokens


def token_scores(
    tokenizer: Any,
    parts: Sequence[Sequence[tuple[int, int, float, str]]],
    ids: np.ndarray,
    mask: np.ndarray,
    end_ids: Collection[int] | None = None,
    nothing: float = 0.0,
) -> np.ndarray:
    """Put the parts of scores on tokens: [B, C] fp32, each part at the last token that has something of its piece.

    A part without such a token goes to the last token of the completion, so that a row adds up to the sum of its parts.

    Args:
        tokenizer: of the model.
        parts: per completion, (start, end, reward, "characters" or "tokens"): pieces of what `decode` gives.
        ids: of the completions, [B, C].
        mask: True where there is a token, from column 0 on.
        end_ids: as for `decode`.
        nothing: what tokens without a part get; NaN tells them from those whose part is 0.
    """
    scores = np.full(mask.shape, nothing, np.float64)
    lengths = mask.sum(axis=1)
    for row, words in enumerate(_words(tokenizer, ids, mask, end_ids)):
        if not lengths[row]:
            continue
        spans = _token_spans(tokenizer, words) if any(part[3] == "characters" for part in parts[row]) else []
        for start, end, reward, unit in parts[row]:
            if unit == "characters":
                found = _last_token(spans, start, end)
            else:
                found = min(end, lengths[row]) - 1 if start < min(end, lengths[row]) else None
            token = lengths[row] - 1 if found is None else found
            scores[row, token] = reward + np.nan_to_num(scores[row, token])
    return scores.astype(np.float32)


def _last_token(spans: Sequence[tuple[int, int]], start: int, end: int) -> int | None:
    """Return the last token that shares a character with a piece of the text."""
    # Spans begin and end in order, so the last one that begins in front of `end` is the only candidate.
    token = bisect_left(spans, (end,)) - 1
    if token < 0 or max(spans[token][0], start) >= min(spans[token][1], end):
        return None
    return token


def _token_spans(tokenizer: Any, words: list[str]) -> list[tuple[int, int]]:
    """Return the characters of the text that each token has a part in; tokens share those that they make together.

    What a token adds to the text of those before it is compared with that text: bytes that are no character yet are
    replaced when the next ones come, and some decoders change a blank or leave one out.
    """
    spans: list[tuple[int, int]] = []
    before = ""
    for count in range(1, len(words) + 1):
        text = _text(tokenizer, words[:count])
        start = len(before) if text.startswith(before) else _first_difference(before, text)
        if before.endswith(REPLACEMENT) and len(text) - len(before) < len(_text(tokenizer, words[count - 1 : count])):
            start = min(start, len(before) - 1, len(text) - 1)  # it has bytes of the last character, whatever that is
        spans.append((start, len(text)))
        before = text
    # What a later token changes was not the last word on it.
    for token in range(len(spans) - 2, -1, -1):
        spans[token] = min(spans[token][0], spans[token + 1][0]), min(spans[token][1], spans[token + 1][1])
    return spans


def _first_difference(a: str, b: str) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no character."""
