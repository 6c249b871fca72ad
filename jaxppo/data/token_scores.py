"""Scores of pieces of a completion's text, such as the actions of a plan, put on its tokens."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from jaxppo.data.tokens import REPLACEMENT, completion_tokens, join_tokens

Span = tuple[int, int]
"""The first character, and the one after the last."""


def token_scores(
    tokenizer: Any,
    parts: Sequence[Sequence[tuple[int, int, float, str]]],
    ids: np.ndarray,
    mask: np.ndarray,
    end_ids: Collection[int] | None = None,
) -> np.ndarray:
    """Put the parts of scores on tokens: [B, C] fp32, each part at the last token that has something of its piece.

    Tokens without a part have NaN, which tells them from those whose part is 0. A part that has no token of its own
    goes to the last token of the completion, so that a row adds up to the sum of its parts.

    Args:
        tokenizer: of the model.
        parts: per completion, (start, end, reward, "characters" or "tokens"): pieces of what `decode` gives.
        ids: of the completions, [B, C].
        mask: True where there is a token, from column 0 on.
        end_ids: as for `decode`.
    """
    # Summed in float64, as several parts may meet at a token.
    scores = np.full(mask.shape, np.nan, np.float64)
    lengths = mask.sum(axis=1)
    for row, tokens in enumerate(completion_tokens(tokenizer, ids, mask, end_ids)):
        if not lengths[row]:
            continue
        # Decoding every beginning of the text is slow, and not needed for pieces that are given in tokens.
        spans = []
        if any(unit == "characters" for _, _, _, unit in parts[row]):
            spans = _token_spans(tokenizer, tokens)
        for start, end, reward, unit in parts[row]:
            if unit == "characters":
                token = _last_token(spans, start, end)
            else:
                end = min(end, lengths[row])
                token = end - 1 if start < end else None
            if token is None:
                # A piece without characters, or one that was cut off.
                token = lengths[row] - 1
            scores[row, token] = reward + np.nan_to_num(scores[row, token])
    return scores.astype(np.float32)


def _last_token(spans: Sequence[Span], start: int, end: int) -> int | None:
    """Return the last token that shares a character with a piece of the text."""
    # Spans begin and end in order, so the last one that begins before `end` is the only candidate.
    token = bisect_left(spans, (end,)) - 1
    if token < 0:
        return None
    token_start, token_end = spans[token]
    has_shared = max(token_start, start) < min(token_end, end)
    return token if has_shared else None


def _token_spans(tokenizer: Any, tokens: list[str]) -> list[Span]:
    """Return the characters of the text that each token has a part in; tokens share those that they make together.

    A tokenizer does not tell where the tokens of a completion stand in its text: it was sampled, and tokenizing the
    text anew may give other tokens. So the text is decoded token by token, and what a token adds to the text of those
    before it is its span. Two things are in the way. A character may be cut into several tokens: a decoder writes a
    replacement mark for its first bytes, and the character once the last have come; all of these tokens then share it.
    And some decoders change a blank that they wrote before: a token's span begins where the two texts differ.
    """
    spans: list[Span] = []
    text = ""
    for count, token in enumerate(tokens, 1):
        longer_text = join_tokens(tokenizer, tokens[:count])
        start = _common_prefix(text, longer_text)
        # A token that adds fewer characters than it has alone completes the last one, whatever that is now.
        added = len(longer_text) - len(text)
        if text.endswith(REPLACEMENT) and added < len(join_tokens(tokenizer, [token])):
            start = min(start, len(text) - 1, len(longer_text) - 1)
        spans.append((start, len(longer_text)))
        text = longer_text
    # A later token may have changed what an earlier one wrote: the earlier span cannot begin or end after the later.
    for token in range(len(spans) - 2, -1, -1):
        start = min(spans[token][0], spans[token + 1][0])
        end = min(spans[token][1], spans[token + 1][1])
        spans[token] = (start, end)
    return spans


def _common_prefix(a: str, b: str) -> int:
    """Return how many characters two texts begin with together."""
    length = min(len(a), len(b))
    while a[:length] != b[:length]:
        length -= 1
    return length
