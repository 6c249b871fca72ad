"""Texts as token ids, and the ids of completions as texts."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxppo.errors import DataError, first_line
from jaxppo.run import activity

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no character."""

# How SentencePiece writes the blank before a word.
_WORD_START = "\u2581"

# Texts that are tokenized in one call. Encodings are many times
# as large as their ids: all at once took half as long again.
_BATCH_SIZE = 1000

# --- texts to token ids


def start_ids(tokenizer: Any) -> list[int]:
    """Return what a tokenizer puts before a text: the beginning of sequence of Llama's and Mistral's, else nothing."""
    # A tokenizer may have a beginning of sequence and not write it, as GPT-2's does.
    bos = tokenizer.bos_token_id
    if bos is None or tokenizer("")["input_ids"][:1] != [bos]:
        return []
    return [bos]


def token_ids(tokenizer: Any, texts: Sequence[str], label: str) -> list[list[int]]:
    """Return the token ids of every text, without special tokens; `label` names the texts in a `DataError`."""
    with named_in_errors(label):
        return [encoding.ids for encoding in encodings(tokenizer, texts)]


def encodings(
    tokenizer: Any,
    texts: Sequence[str],
    *,
    offsets: bool = False,
) -> Iterator[Any]:
    """Yield the encoding of every text, without special tokens.

    Args:
        tokenizer: fast tokenizer.
        texts: to be tokenized as they are.
        offsets: whether the encodings tell the characters of each token.
    """
    # The backend keeps the truncation and padding that a
    # tokenizer's files ask for, until a call without them.
    tokenizer("")
    # The backend makes no lists of masks beside the ids, which the tokenizer itself would.
    backend = tokenizer.backend_tokenizer
    encode = backend.encode_batch if offsets else backend.encode_batch_fast
    with activity.show("tokenizing", len(texts), "texts") as progress:
        for start in range(0, len(texts), _BATCH_SIZE):
            yield from encode(list(texts[start : start + _BATCH_SIZE]), add_special_tokens=False)
            progress.done = start + _BATCH_SIZE


@contextmanager
def named_in_errors(label: str) -> Iterator[None]:
    """Turn what a tokenizer raises in the block into a `DataError` that names the text."""
    try:
        yield
    except Exception as error:
        # the tokenizers library raises plain Exception for a word that a vocabulary lacks
        raise DataError(
            f"{label}: expected text that the model's tokenizer can encode, got: {first_line(error)}"
        ) from error


# --- token ids to texts


def decode(
    tokenizer: Any,
    ids: np.ndarray,
    mask: np.ndarray,
    end_ids: Collection[int] | None = None,
) -> list[str]:
    """Decode completions without the token that ends them: [B, C] ids and mask to B strings.

    Any other special token stays in the text: if it were left out, a plan with such junk would count as clean.

    Args:
        tokenizer: of the model.
        ids: of the completions.
        mask: True where there is a token.
        end_ids: any of these ends a completion; default: the end of sequence.
    """
    return [
        join_tokens(tokenizer, tokens)
        for tokens in completion_tokens(tokenizer, ids, mask, end_ids)
    ]


def completion_tokens(
    tokenizer: Any,
    ids: np.ndarray,
    mask: np.ndarray,
    end_ids: Collection[int] | None,
) -> list[list[str]]:
    """Return the tokens of each completion as strings, without the one that ends it; arguments as for `decode`."""
    if end_ids is None:
        end_ids = (tokenizer.eos_token_id,)
    rows = []
    for row_ids, row_mask in zip(ids, mask, strict=True):
        row = row_ids[row_mask].tolist()
        # The last token alone ends a completion: the same id
        # before it is junk, which has to show in the text.
        if row and row[-1] in end_ids:
            row.pop()
        rows.append([_token_name(tokenizer, token_id) for token_id in row])
    return rows


def join_tokens(tokenizer: Any, tokens: list[str]) -> str:
    """Return the text that tokens are after a prompt: the blank before the first word, if there is one, stays."""
    if not tokens:
        return ""
    if not tokens[0].startswith(_WORD_START):
        return tokenizer.convert_tokens_to_string(tokens)
    # Decoders of SentencePiece drop the blank of the token
    # that begins a text, so another one has to begin it.
    return _text_after_first(tokenizer, [tokens[0], *tokens])


def text_after(tokenizer: Any, token_id: int) -> str:
    """Return what a token adds to a text that does not begin with it; `<id>` for an id that the tokenizer lacks."""
    token = _token_name(tokenizer, token_id)
    return _text_after_first(tokenizer, [token, token])


def _text_after_first(tokenizer: Any, tokens: list[str]) -> str:
    """Return what all tokens but the first add to its text."""
    first = tokenizer.convert_tokens_to_string(tokens[:1])
    return tokenizer.convert_tokens_to_string(tokens)[len(first) :]


def _token_name(tokenizer: Any, token_id: int) -> str:
    """Return the token as a string, or `<id>` for an id that the tokenizer lacks."""
    token = tokenizer.convert_ids_to_tokens(token_id)
    return f"<{token_id}>" if token is None else token
