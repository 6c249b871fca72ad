"""Chat templates: prompts become turns of a chat where the tokenizer has a template, and stay as they are elsewhere."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from jaxppo.config import DataConfig
from jaxppo.errors import ConfigError

MAX_TEMPLATE_S = 1.8
"""Time for one chat; templates take less than a thousandth of it."""

_PROMPT, _COMPLETION = "prompt", "completion"
"""Texts to try a template with."""


class ChatTemplate(NamedTuple):
    """How a model gets the texts of a row.

    Attributes:
        tokenizer: of the model.
        templated: whether its chat template is used.
        system_prompt: first turn of every chat; None for none.
        lead: blanks that the template puts between a prompt and its completion.
        end_id: the token that ends a completion.
    """

    tokenizer: Any
    templated: bool
    system_prompt: str | None
    lead: str
    end_id: int

    def prompt_text(self, prompt: str) -> str:
        """Return a prompt up to where the completion begins, as the user's turn where the template is used."""
        return _apply(self.tokenizer, self.system_prompt, [prompt]) if self.templated else prompt

    def completion_text(self, completion: str) -> str:
        """Return a completion without its end."""
        return self.lead + completion


def make_chat_template(tokenizer: Any, config: DataConfig | None = None) -> ChatTemplate:
    """Return the chat template of a tokenizer, if it is used.

    Args:
        tokenizer: of the model.
        config: says whether the chat template is used, and the system prompt; default `DataConfig()`.

    Raises:
        ConfigError: the tokenizer has no chat template, or one that does not show where a completion begins and ends.
    """
    config = DataConfig() if config is None else config
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if config.use_chat_template and not has_template:
        raise ConfigError("use_chat_template: expected a tokenizer with a chat template, got one without")
    # Prompts that are cut are text to be continued.
    by_default = has_template and config.input_max_text_length is None
    templated = by_default if config.use_chat_template is None else config.use_chat_template
    if not templated:
        if config.system_prompt is not None:
            raise ConfigError("system_prompt: expected None without a chat template, got a text")
        return ChatTemplate(tokenizer, False, None, "", tokenizer.eos_token_id)
    lead, end = _around_completion(tokenizer, config.system_prompt)
    return ChatTemplate(tokenizer, True, config.system_prompt, lead, _end_id(tokenizer, end))


def _apply(tokenizer: Any, system_prompt: str | None, turns: Sequence[str]) -> str:
    """Render a chat that begins with the user's turn; where the user has the last turn, the assistant's is opened."""
    roles = [("user", "assistant")[number % 2] for number in range(len(turns))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
    if system_prompt is not None:
        messages.insert(0, {"role": "system", "content": system_prompt})
    text: Future[str] = Future()

    def render() -> None:
        try:
            opened = len(turns) % 2 == 1
            text.set_result(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened))
        except Exception as error:  # whatever a template raises
            text.set_exception(error)

    # A template is a program, maybe one without an end; as a daemon it ends with the process.
    threading.Thread(target=render, daemon=True).start()
    try:
        return text.result(MAX_TEMPLATE_S)
    except Exception as error:
        late = f"no end within {MAX_TEMPLATE_S:g} s"
        reason = f"{type(error).__name__}: {error}" if text.done() else late
        asked = f"a chat template for the turns {', '.join(message['role'] for message in messages)}"
        raise ConfigError(f"use_chat_template: expected {asked}, got {reason}") from error


def _around_completion(tokenizer: Any, system_prompt: str | None) -> tuple[str, str]:
    """Return what a template writes before a completion and after it."""
    start = _apply(tokenizer, system_prompt, [_PROMPT])
    whole = _apply(tokenizer, system_prompt, [_PROMPT, _COMPLETION])
    lead, found, end = whole[len(start) :].partition(_COMPLETION)
    if not whole.startswith(start) or not found or lead.strip():
        expected = "False, or a chat template that writes the same prompt with a completion behind it as without"
        raise ConfigError(f"use_chat_template: expected {expected}, got {whole!r} and {start!r}")
    return lead, end


def _end_id(tokenizer: Any, end: str) -> int:
    """Return the first special token after a completion; the end of sequence where nothing follows it."""
    ids = tokenizer(end, add_special_tokens=False)["input_ids"] if end.strip() else []
    special = set(tokenizer.all_special_ids) | {
        number for number, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    place = next((place for place, number in enumerate(ids) if number in special), None)
    if place is None and not ids:
        return tokenizer.eos_token_id
    if place is None or tokenizer.decode(ids[:place]).strip():
        expected = "False, or a chat template that ends a completion with a special token"
        raise ConfigError(f"use_chat_template: expected {expected}, got {end!r}")
    return ids[place]
