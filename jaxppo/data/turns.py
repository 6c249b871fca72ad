"""Conversations about a row: its prompt, answers of a model, and what was said about each of them."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxppo.data.chat_template import ChatTemplate
from jaxppo.data.chats import Row, turns_of
from jaxppo.data.tokens import token_ids


class Turn(NamedTuple):
    """An answer, and what was said about it."""

    completion: str
    ids: list[int]  # of the completion, without the token that ends it
    said: str


def encode_turns(row: Row, prompt_ids: Sequence[int], turns: Sequence[Turn], template: ChatTemplate) -> list[int]:
    """Return the token ids of a conversation, up to where the next answer begins.

    By a chat template, answers are turns of the assistant, and what was said about them is the user's. Elsewhere the
    tokens follow those of the prompt, the answers' as they were sampled.

    Args:
        row: what it is about.
        prompt_ids: of its prompt alone.
        turns: so far.
        template: how the model gets the texts of a row.
    """
    if not turns:
        return list(prompt_ids)
    if not template.templated:
        said = token_ids(template.tokenizer, [turn.said for turn in turns], f"what is said about row {row['id']}")
        return [*prompt_ids, *(i for turn, more in zip(turns, said, strict=True) for i in (*turn.ids, *more))]
    messages = list(turns_of(row))
    for turn in turns:
        messages.append({"role": "assistant", "content": turn.completion})
        messages.append({"role": "user", "content": turn.said.strip()})
    text = template.prompt_text(row | {"prompt": messages[-1]["content"], "messages": messages})
    return token_ids(template.tokenizer, [text], f"conversation about row {row['id']}")[0]
