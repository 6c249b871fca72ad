"""Texts into tokens and back, with the tokenizer of a model."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.config import DataConfig
from jaxppo.config.reading import parse_json
from jaxppo.data.chat_template import ChatTemplate
from jaxppo.data.rows import Row, load_split
from jaxppo.data.stream import stream_of
from jaxppo.errors import DataError, first_line
from jaxppo.planning import prompts
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets.renamed_rows import NUMBERED
from jaxppo.planning.domains import BLOCKSWORLD, DOMAINS

# --- fresh tokenizers


def words_of_dataset(config: DataConfig) -> list[str]:
    """Return the words that a fresh word-level tokenizer needs for a data set.

    They are those of all problems of the built-in domain or of a stream; those of the list in `vocabulary.json` of a
    folder that has one; else those of the rows of `train_split` and `eval_splits`. Where objects are numbered, all
    numbers are among them.

    Raises:
        DataError: the file is no list of words, or a row is malformed.
    """
    numbers = NUMBERED if config.numbers_objects else ()
    if config.dataset == "blocksworld":
        return prompts.vocabulary([BLOCKSWORLD.pddl], numbers or BLOCKSWORLD.names, config.prompt_style)
    if config.stream_domains is not None:
        stream = stream_of(config, "train")
        domains = [DOMAINS[name].pddl for name in stream.domains]
        return prompts.vocabulary(domains, stream.object_names, config.prompt_style)
    path = Path(config.dataset) / dataset_files.VOCABULARY_FILE
    if path.is_file():
        return [*_read_words(path), *numbers]
    splits = dict.fromkeys((config.train_split, *config.eval_splits))
    rows = [row for split in splits for row in load_split(config, split, None)]
    texts = (row[column] for row in rows for column in ("prompt", "completion") if row.get(column))
    return prompts.words_of((*texts, *numbers))


def _read_words(path: Path) -> list[str]:
    try:
        words = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, DataError) as error:
        raise DataError(f"{path}: expected a JSON list of words, got: {error}") from error
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise DataError(f"{path}: expected a JSON list of words, got {words!r:.60}")
    return words


def word_tokenizer(words: Sequence[str] | None = None) -> Any:
    """Make a fast word-level tokenizer: one token per word and per punctuation mark of `prompts.PUNCTUATION`.

    Args:
        words: the vocabulary, in any order; default: that of the built-in domain.

    Returns:
        `PreTrainedTokenizerFast` with pad token `<pad>`, end token `<eos>`, padding on the left.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = sorted({*prompts.SPECIAL_WORDS, *(words_of_dataset(DataConfig()) if words is None else words)})
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}))
    at_blanks = pre_tokenizers.WhitespaceSplit()
    at_marks = pre_tokenizers.Split(Regex(f"[{prompts.PUNCTUATION}]"), "isolated")
    # The style `atoms` has blanks around its only mark, `;`.
    has_marks = not set(prompts.PUNCTUATION).isdisjoint(set(vocabulary) - {";"})
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([at_blanks, at_marks]) if has_marks else at_blanks
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", padding_side="left", model_max_length=2048
    )


# --- prompts and completions


def encode_prompts(
    tokenizer: Any,
    rows: Sequence[Row],
    max_length: int,
    cut_to: Sequence[int] | None = None,
    template: ChatTemplate | None = None,
) -> list[list[int]]:
    """Return the token ids of every row's prompt, or of its first `cut_to` tokens.

    Args:
        tokenizer: of the model.
        rows: with `prompt`, and `messages` where they are chats.
        max_length: most tokens of a prompt, with all that the template puts before it.
        cut_to: numbers of tokens, beside those that every text begins with.
        template: chat template; default: none.

    Raises:
        DataError: a prompt is empty, longer than `max_length` tokens, or has a word that the tokenizer does not know;
            the message names the row.
    """
    template = _plain(tokenizer) if template is None else template
    start, encoded = _prompts(tokenizer, rows, template)
    if cut_to is not None:
        encoded = [ids[:length] for ids, length in zip(encoded, cut_to, strict=True)]
    for row, ids in zip(rows, encoded, strict=True):
        length = len(start) + len(ids) if ids else 0
        if not 0 < length <= max_length:
            expected = f"1 to max_prompt_length={max_length} tokens"
            fix = "; a larger max_prompt_length may help" if ids else ""
            raise DataError(f"prompt of row {row['id']}: expected {expected}, got {length}{fix}")
    return [[*start, *ids] for ids in encoded]


def _prompts(tokenizer: Any, rows: Sequence[Row], template: ChatTemplate) -> tuple[list[int], list[list[int]]]:
    """Return what every prompt begins with (a chat template writes that itself), and the ids behind it."""
    texts = [template.prompt_text(row) for row in rows]
    return [] if template.templated else start_ids(tokenizer), _encode(tokenizer, rows, texts, "prompt")


def start_ids(tokenizer: Any) -> list[int]:
    """Return what a tokenizer puts before a text: the beginning of sequence of Llama's and Mistral's, else nothing."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return [bos] if bos is not None and tokenizer("")["input_ids"][:1] == [bos] else []


def encode_completions(tokenizer: Any, rows: Sequence[Row], template: ChatTemplate | None = None) -> list[list[int]]:
    """Return the token ids of every row's completion, with the token that ends it."""
    template = _plain(tokenizer) if template is None else template
    texts = [template.completion_text(row) for row in rows]
    return [[*ids, template.end_id] for ids in _encode(tokenizer, rows, texts, "completion")]


def _plain(tokenizer: Any) -> ChatTemplate:
    return ChatTemplate(tokenizer, False, tokenizer.eos_token_id)


def without_overlong(tokenizer: Any, rows: Sequence[Row], config: DataConfig, template: ChatTemplate) -> list[Row]:
    """Return the rows that `encode_prompts` accepts where `filter_overlong_prompts` is set, otherwise all.

    Raises:
        DataError: there is none.
    """
    if not config.filter_overlong_prompts or config.text_lengths is not None:
        return list(rows)
    start, encoded = _prompts(tokenizer, rows, template)
    lengths = [len(start) + len(ids) for ids in encoded]
    kept = [row for row, length in zip(rows, lengths, strict=True) if length <= config.max_prompt_length]
    if not kept:
        raise DataError(
            f"max_prompt_length: expected a prompt of at most {config.max_prompt_length} tokens, got {len(rows)} "
            f"longer ones, the shortest with {min(lengths)}"
        )
    return kept


def tell_left_out(tell: Callable[[str], None], config: DataConfig, counts: Mapping[str, int]) -> None:
    """Report how many rows of each split `without_overlong` has left out."""
    for split, count in counts.items():
        if count:
            tell(f"{count} rows of split {split} left out: prompts longer than {config.max_prompt_length} tokens")


def cut_prompts(
    tokenizer: Any, rows: Sequence[Row], max_length: int, text_lengths: tuple[int, int], seed: int
) -> tuple[list[Row], list[list[int]]]:
    """Cut every prompt to a random length; return the rows with the cut prompts, and their token ids.

    Args:
        tokenizer: of the model.
        rows: with `prompt`.
        max_length: most tokens of a prompt.
        text_lengths: range of the lengths in tokens, both ends included.
        seed: of the lengths.

    Raises:
        DataError: as for `encode_prompts`.
    """
    lengths = np.random.default_rng((seed, len(rows))).integers(*text_lengths, len(rows), endpoint=True)
    encoded = encode_prompts(tokenizer, rows, max_length, lengths.tolist())
    begin = len(start_ids(tokenizer))
    return [row | {"prompt": tokenizer.decode(ids[begin:])} for row, ids in zip(rows, encoded, strict=True)], encoded


def token_ids(tokenizer: Any, texts: Sequence[str], where: str) -> list[list[int]]:
    """Return the token ids of every text, without special tokens; `where` names the texts in a `DataError`."""
    try:
        return tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    except Exception as error:  # tokenizers raises plain Exception for a word that a word-level vocabulary lacks
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


def _text(tokenizer: Any, words: list[str]) -> str:
    return tokenizer.convert_tokens_to_string(words) if words else ""


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
    # Spans begin and end in order, so the last one that begins in front of `end` is the only candidate but for those
    # without a character.
    for token in range(bisect_left(spans, (end,)) - 1, -1, -1):
        first, behind = spans[token]
        if behind <= start:
            return None
        if max(first, start) < min(behind, end):
            return token
    return None


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
        if before.endswith(_REPLACEMENT) and len(text) - len(before) < len(_text(tokenizer, words[count - 1 : count])):
            start = min(start, len(before) - 1, len(text) - 1)  # it has bytes of the last character, whatever that is
        spans.append((start, len(text)))
        before = text
    # What a later token changes was not the last word on it.
    for token in range(len(spans) - 2, -1, -1):
        spans[token] = min(spans[token][0], spans[token + 1][0]), min(spans[token][1], spans[token + 1][1])
    return spans


def _first_difference(a: str, b: str) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


_REPLACEMENT = "\ufffd"
