"""Chats rendered by the chat template of a tokenizer, and checked: nothing that a row says may be left out."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxppo.data.chats import Message
from jaxppo.errors import ConfigError


def render_chats(
    tokenizer: Any,
    chats: Sequence[Sequence[Message]],
    arguments: Mapping[str, Any],
    labels: Sequence[str],
    *,
    is_prompt: bool = False,
) -> list[str]:
    """Render chats; where the user has the last turn, the assistant's is opened.

    Args:
        tokenizer: with a chat template.
        chats: turns; the last one is the assistant's in all of them, or in none.
        arguments: of the template.
        labels: name each chat in errors, such as ` of row 3`.
        is_prompt: a last turn of the assistant is left open, as its beginning.

    Raises:
        ConfigError: the template refuses a chat.
    """
    is_answered = chats[0][-1]["role"] == "assistant"
    options = {
        **arguments,
        "tokenize": False,
        "add_generation_prompt": not is_answered,
        "continue_final_message": is_answered and is_prompt,
    }
    try:
        return tokenizer.apply_chat_template([list(turns) for turns in chats], **options)
    except Exception as error:  # whatever a template raises
        if len(chats) > 1:
            # One by one, so that the error names the first chat that is refused.
            return [
                render_chats(tokenizer, [turns], arguments, [label], is_prompt=is_prompt)[0]
                for turns, label in zip(chats, labels, strict=True)
            ]
        roles = ", ".join(turn["role"] for turn in chats[0])
        raise ConfigError(
            f"use_chat_template: expected a chat template for the turns {roles}{labels[0]}, got "
            f"{type(error).__name__}: {error}"
        ) from error


def render(
    tokenizer: Any,
    turns: Sequence[Message],
    arguments: Mapping[str, Any],
) -> str:
    """Render one chat, as `render_chats` does."""
    return render_chats(tokenizer, [turns], arguments, [""])[0]


def check_complete(
    turns: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    text: str,
    label: str,
) -> None:
    """Raise a `ConfigError` where a template has passed over a part of a chat in silence.

    Args:
        turns: of the chat.
        tools: that may be called in it.
        text: what the template has written.
        label: names the chat in the error, such as ` of row 3`.
    """
    for part, content in _optional_parts(turns, tools):
        if not _is_written(content, text):
            raise ConfigError(
                f"use_chat_template: expected a chat template that writes {part}{label}, got one that leaves out "
                f"{content!r:.60}"
            )


def _optional_parts(
    turns: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Yield the parts that many templates do not know, each with a text that it must leave in the rendered chat."""
    # Turns of the system, the user and the assistant
    # are written or refused; others may be passed over.
    for turn in turns:
        if turn["role"] in ("developer", "tool"):
            yield f"the turn of the {turn['role']}", turn.get("content", "")
        for call in turn.get("tool_calls") or ():
            yield "the tool call", call.get("function", call)["name"]
    for tool in tools:
        name = tool.get("function", tool).get("name")
        if isinstance(name, str):
            yield "the tool", name


def _is_written(content: str, text: str) -> bool:
    """Return whether a rendered chat has a text, as it is or within JSON."""
    # Templates strip blanks; calls and schemas of tools are
    # mostly written as JSON, with or without \u escapes.
    content = content.strip()
    if content in text:
        return True
    return any(
        json.dumps(content, ensure_ascii=is_ascii)[1:-1] in text for is_ascii in (False, True)
    )


def generation_spans(
    tokenizer: Any,
    turns: Sequence[Message],
    arguments: Mapping[str, Any],
) -> list[tuple[int, int]]:
    """Return the characters of a chat that its template has in `{% generation %}` blocks."""
    from transformers.utils.chat_template_utils import render_jinja_template  # slow to import

    # `apply_chat_template` gives these spans as a mask of
    # tokens alone, and only where it tokenizes the chat itself.
    _, (spans,) = render_jinja_template(
        [list(turns)],
        chat_template=tokenizer.get_chat_template(),
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
        **arguments,
    )
    return [(int(start), int(end)) for start, end in spans]
