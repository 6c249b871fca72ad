"""Stop strings as a table over tokens, by which a sampler on the devices sees that one is complete.

A string may begin and end inside tokens, so that no list of token ids says where a completion ends. What has been
written so far matters only as the longest beginning of a stop string that it ends with: these beginnings are the states
of an automaton, which reads one token at a time (Aho and Corasick 1975, "Efficient string matching"). Source of the
idea, as tables over a vocabulary: `StopStringCriteria` of transformers.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jaxppo.data.tokens import REPLACEMENT, text_after, token_ids
from jaxppo.errors import ConfigError


@lru_cache(maxsize=1)  # training and evaluation have the same, and a vocabulary takes seconds
def stop_table(
    tokenizer: Any,
    stop_strings: tuple[str, ...],
    num_ids: int,
) -> np.ndarray | None:
    """Return the table of the automaton: [S, V] int32, the state after each token in each state.

    State 0 is the beginning of a completion, S says that a stop string is complete. Only the completion counts, not the
    end of its prompt.

    Args:
        tokenizer: of the model.
        stop_strings: none of them empty; none at all: no table.
        num_ids: V, ids that may be sampled.

    Raises:
        ConfigError: the tokenizer cuts a character of a stop string into tokens of single bytes, in which it would not
            be recognised.
    """
    if not stop_strings:
        return None
    # A token of single bytes adds a replacement mark to the text, which no stop string has.
    for string in stop_strings:
        for ids in token_ids(tokenizer, [string], "stop_strings"):
            if any(REPLACEMENT in text_after(tokenizer, token_id) for token_id in ids):
                raise ConfigError(
                    "stop_strings: expected characters that are not cut into bytes by the model's tokenizer, got "
                    f"{string!r}"
                )
    # The states: every beginning of a stop string, the empty one first, so that it is state 0.
    states: dict[str, int] = {}
    for string in stop_strings:
        for end in range(len(string)):
            states.setdefault(string[:end], len(states))
    longest = max(map(len, states))
    pieces = [text_after(tokenizer, token_id) for token_id in range(num_ids)]

    def state_after(text: str) -> int:
        if any(string in text for string in stop_strings):
            return len(states)
        # The longest state that the text ends with; the empty one is an end of every text.
        start = max(len(text) - longest, 0)
        while text[start:] not in states:
            start += 1
        return states[text[start:]]

    table = np.empty((len(states), num_ids), np.int32)
    for beginning, state in states.items():
        # Many tokens add the same text, such as bytes that
        # are no character, so each text is looked up once.
        next_states = {piece: state_after(beginning + piece) for piece in set(pieces)}
        table[state] = [next_states[piece] for piece in pieces]
    return table


def has_stop_string(table: np.ndarray | None, ids: Sequence[int]) -> bool:
    """Return whether a completion has a stop string, by the table of `stop_table`."""
    if table is None:
        return False
    state = 0
    for token_id in ids:
        state = int(table[state, token_id])
        if state == len(table):
            return True
    return False
