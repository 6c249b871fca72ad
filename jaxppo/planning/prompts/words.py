"""Texts to the words of a word-level tokenizer."""

import re
from collections.abc import Iterable

PUNCTUATION = "().,:;"
"""Each of these is a separate word wherever it stands."""
SPECIAL_WORDS = ("<pad>", "<eos>")
"""What fills up a batch, and what ends a completion."""
# Punctuation by itself, also inside what stands between blanks: `(clear` is two words.
_WORD = re.compile(f"[{PUNCTUATION}]|[^{PUNCTUATION}\\s]+")


def split_words(text: str) -> list[str]:
    """Split a text into words: what stands between blanks, punctuation apart."""
    return _WORD.findall(text)


def words_of(texts: Iterable[str]) -> list[str]:
    """List the words that a word-level tokenizer needs for these texts, sorted, special words among them."""
    return sorted({*SPECIAL_WORDS}.union(*map(split_words, texts)))
