"""Conversations about a row: its prompt, answers of a model, and the feedback to each of them."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxppo.data.chat_template import ChatTemplate
from jaxppo.data.chats import Row, turns_of
from jaxppo.data.tokens import token_ids


class Turn(NamedTuple):
    """An answer, and the feedback to it."""

    completion: str
    ids: list[int]  # of the completion, without the token that ends it
    feedback: str


def encode_turns(
    row: Row,
    prompt_ids: Sequence[int],
    turns: Sequence[Turn],
    template: ChatTemplate,
) -> list[int]:
    """Return the token ids of a conversation, up to where the next answer begins.

    With a chat template, answers are turns of the assistant, and feedback is the user's. Without one the tokens follow
    those of the prompt, the answers' as they were sampled.

    Args:
        row: what it is about.
        prompt_ids: of its prompt alone.
        turns: so far.
        template: how the model gets the texts of a row.
    """
    if not turns:
        return list(prompt_ids)
    if not template.is_used:
        texts = [turn.feedback for turn in turns]
        feedback = token_ids(template.tokenizer, texts, f"feedback to row {row['id']}")
        ids = list(prompt_ids)
        # Answers are not tokenized again: other tokens than the sampled ones may make the same
        # text.
        for turn, feedback_ids in zip(turns, feedback, strict=True):
            ids += turn.ids
            ids += feedback_ids
        return ids
    # The template may write earlier answers in another way than they were sampled, so the chat is
    # rendered anew.
    messages = list(turns_of(row))
    for turn in turns:
        messages.append({"role": "assistant", "content": turn.completion})
        messages.append({"role": "user", "content": turn.feedback.strip()})
    text = template.prompt_text(row | {"prompt": messages[-1]["content"], "messages": messages})
    return token_ids(template.tokenizer, [text], f"conversation about row {row['id']}")[0]
