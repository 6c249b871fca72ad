"""What a chat template writes around prompts and completions, found by rendering two small chats."""

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxppo.data.chats import Message
from jaxppo.data.forms import warn_once
from jaxppo.data.rendering import render
from jaxppo.errors import ConfigError

# Texts to try a template with.
_PROMPT = "prompt"
_COMPLETION = "completion"

# What may stand between a prompt and a completion:
# blanks, and an empty thinking part, or the end of one.
LEAD = re.compile(r"\s*(?:(?:<think>)?\s*</think>\s*)?")
_OPENED_THINKING = re.compile(r"<think>\s*$")
_DATE = re.compile(r"""strftime_now\(\s*["']([^"']+)["']\s*\)""")


class TemplateLayout(NamedTuple):
    """What a chat template writes around prompts and completions; without one there is the end alone.

    Attributes:
        end_id: the token that ends a completion.
        tail: what is written after a completion.
        before_end: the part of it before the token that ends the completion: blanks, if anything.
        opening: what is written between a turn of the user and the completion.
        appends_completions: whether a whole chat is the prompt, the completion and the tail, with nothing in between.
        writes_bos: whether a chat begins with the beginning of sequence.
    """

    end_id: int
    tail: str = ""
    before_end: str = ""
    opening: str = ""
    appends_completions: bool = True
    writes_bos: bool = False


def system_turns(system_prompt: str | None) -> list[Message]:
    """Return what a chat begins with: a turn of the system, or nothing."""
    return [] if system_prompt is None else [{"role": "system", "content": system_prompt}]


def find_layout(
    tokenizer: Any,
    system_prompt: str | None,
    arguments: Mapping[str, Any],
) -> TemplateLayout:
    """Find the layout of a tokenizer's chat template.

    Args:
        tokenizer: with a chat template.
        system_prompt: first turn of every chat; None for none.
        arguments: of the template; a warning names those that it does not read.

    Raises:
        ConfigError: the template does not take these turns, or does not show where a completion begins and ends.
    """
    # Jinja leaves out unknown variables in silence, so a misspelt argument would change nothing.
    source = str(tokenizer.chat_template)
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", source):
            warn_once(
                f"chat_template_kwargs: the chat template does not read {name!r}, which changes nothing"
            )
    turns = [*system_turns(system_prompt), {"role": "user", "content": _PROMPT}]
    prompt = render(tokenizer, turns, arguments)
    chat = render(tokenizer, [*turns, {"role": "assistant", "content": _COMPLETION}], arguments)
    tail = _text_after_completion(prompt, chat)
    # Llama 3.1 and 3.2 write it, unless `date_string` is among the arguments.
    if any(time.strftime(form) in prompt for form in _DATE.findall(source)):
        warn_once(
            "the chat template writes today's date into every prompt: a run that goes on tomorrow has others"
        )
    end_id, before_end = _end(tokenizer, tail)
    bos = tokenizer.bos_token
    return TemplateLayout(
        end_id=end_id,
        tail=tail,
        before_end=before_end,
        opening=prompt.rpartition(_PROMPT)[2],
        appends_completions=chat == prompt + _COMPLETION + tail,
        writes_bos=bool(bos) and prompt.startswith(bos),
    )


def _text_after_completion(prompt: str, chat: str) -> str:
    """Return what a template writes after the completion of a chat.

    The chat need not begin with the prompt where the prompt opens the thinking: such a prompt can be continued, though
    not learned from.
    """
    # DeepSeek-R1's distilled models do so, and leave the thinking out of the whole chat.
    begin = prompt if chat.startswith(prompt) else _OPENED_THINKING.sub("", prompt)
    lead, completion, tail = chat[len(begin) :].partition(_COMPLETION)
    if not chat.startswith(begin) or not completion or not LEAD.fullmatch(lead):
        raise ConfigError(
            "use_chat_template: expected False, or a chat template that writes the same prompt with a completion after "
            f"it as without, got {chat!r} and {prompt!r}"
        )
    return tail


def _end(tokenizer: Any, tail: str) -> tuple[int, str]:
    """Return the first special token after a completion, and what stands before it.

    That is the end of sequence where nothing follows a completion.
    """
    if not tail.strip():
        return tokenizer.eos_token_id, ""
    # A template may end a turn with a token that the tokenizer does not list as its end of
    # sequence. Blanks may come before it, and whatever after it.
    special_ids = set(tokenizer.all_special_ids)
    special_ids |= {
        token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    for token_id in tokenizer(tail, add_special_tokens=False)["input_ids"]:
        if token_id not in special_ids:
            continue
        before_end = tail.partition(tokenizer.convert_ids_to_tokens(token_id))[0]
        if before_end.strip():
            break
        return token_id, before_end
    raise ConfigError(
        "use_chat_template: expected False, or a chat template that ends a completion with a special token, got "
        f"{tail!r}"
    )
