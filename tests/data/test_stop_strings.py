"""The table by which a sampler sees stop strings, against a search in the decoded text."""

import numpy as np
import pytest

from jaxppo import data
from jaxppo.errors import ConfigError
from tests.data.tokenizers import KINDS, tokenizer_of

STRINGS = ("ab", "bca", "c\nc", "aab")


def tokens_until_a_stop(table, ids):
    """How many tokens of a completion are written; None where no stop string is."""
    state = 0
    for count, token_id in enumerate(ids, start=1):
        state = table[state, token_id]
        if state == len(table):
            return count
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_ends_with_the_token_that_completes_a_stop_string(kind):
    tokenizer, rng = tokenizer_of(kind), np.random.default_rng(3)
    strings = STRINGS if kind != "word pieces" else ("ab", "b c", "aab")  # which has no line breaks
    table = data.stop_table(tokenizer, strings, len(tokenizer))
    alphabet = [tokenizer.convert_tokens_to_ids(token) for token in ("a", "b", "c")]
    alphabet += [ids for word in (" a", "\n", "ac") for ids in tokenizer(word, add_special_tokens=False)["input_ids"]]
    found = []
    for _ in range(200):
        ids = rng.choice(alphabet, 8).tolist()
        texts = [data.decode(tokenizer, np.array([ids[:n]]), np.ones((1, n), bool))[0] for n in range(1, 9)]
        expected = next((n for n, text in enumerate(texts, start=1) if any(s in text for s in strings)), None)
        assert tokens_until_a_stop(table, ids) == expected, ids
        assert data.has_stop_string(table, ids) == (expected is not None) and not data.has_stop_string(None, ids)
        found.append(expected)
    assert len(set(found)) > 5


def test_no_stop_strings_need_no_table_and_those_of_single_bytes_are_refused():
    tokenizer = tokenizer_of("byte-level")
    assert data.stop_table(tokenizer, (), len(tokenizer)) is None
    with pytest.raises(ConfigError, match=r"^stop_strings: .*é"):
        data.stop_table(tokenizer, ("ab", "é"), len(tokenizer))
