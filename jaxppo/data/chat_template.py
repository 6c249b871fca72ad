"""Chat templates: prompts become turns of a chat where the tokenizer has a template, and stay as they are elsewhere."""

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from jaxppo.config import DataConfig
from jaxppo.data.chats import ANSWER, SYSTEM_ROLES, Row, Turn, is_chat, turns_of
from jaxppo.data.few_shot import Examples, load_examples, shown_after
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning import prompts

_LOG = logging.getLogger(__name__)

_PROMPT, _COMPLETION = "prompt", "completion"
"""Texts to try a template with."""

_LEAD = re.compile(r"\s*(?:(?:<think>)?\s*</think>\s*)?")
"""What may stand between a prompt and a completion: blanks, and an empty thinking part, or the end of one."""
_THINKING_LEAD = re.compile(r"<think>\s*(?:</think>\s*)?$")
_FIRST_CHECKED, _CHECKED_EVERY = 20, 50
"""Of the rows with the same sequence of roles, those whose prompts are rendered by themselves, too."""
_CHATS_AT_ONCE = 1000
"""Chats rendered in one call, which takes a sixth less than one call for each."""
_GENERATION = re.compile(r"\{%-?\s*generation\b")
_DATE = re.compile(r"""strftime_now\(\s*["']([^"']+)["']\s*\)""")
_OPENED_THINKING = re.compile(r"<think>\s*$")


class RowTexts(NamedTuple):
    """A prompt, and the completion that follows it in the same text, with the end that a template writes."""

    prompt: str
    completion: str


class ChatTemplate(NamedTuple):
    """How a model gets the texts of a row.

    Attributes:
        tokenizer: of the model.
        templated: whether its chat template is used.
        end_id: the token that ends a completion.
        system_prompt: first turn of every chat without a system turn; None for none.
        arguments: of the template.
        tail: what the template writes behind a completion.
        before_end: the part of it before the token that ends the completion: blanks, if anything.
        has_whole_chats: whether the template writes a prompt in the same way where its completion follows.
        examples: solved rows before each prompt; None for none.
        opening: what the template writes between a turn of the user and the completion.
        writes_bos: whether the template begins a chat with the beginning of sequence.
    """

    tokenizer: Any
    templated: bool
    end_id: int
    system_prompt: str | None = None
    arguments: Mapping[str, Any] | None = None
    tail: str = ""
    before_end: str = ""
    has_whole_chats: bool = True
    examples: Examples | None = None
    opening: str = ""
    writes_bos: bool = False

    def prompt_text(self, row: Row) -> str:
        """Return what a model is given of a row, up to where the completion begins.

        Raises:
            DataError: the row is a chat, and there is no template for it; or it has too few examples.
            ConfigError: the template does not take these turns.
        """
        if self.templated and self._is_templated(row):
            _warn(
                f"prompt of row {row['id']}: it carries the chat template already, as others may: such prompts are "
                "taken as they are"
            )
            bos = self.tokenizer.bos_token or ""
            return row["prompt"] if row["prompt"].startswith(bos) or not self.writes_bos else bos + row["prompt"]
        if self.templated:
            return self._render(self._turns(row), row)
        *examples, last = shown = self._shown(row)
        for chat in filter(is_chat, shown):
            expected = "a tokenizer with a chat template, and use_chat_template not False"
            raise DataError(f"messages of row {chat['id']}: expected {expected}, got prompts that are plain text")
        return "".join(map(self._solved, examples)) + last["prompt"]

    def row_texts(self, row: Row) -> RowTexts:
        """Return the prompt of a row and its completion, which joined are the text that a model learns.

        Raises:
            DataError: as for `prompt_text`.
            ConfigError: the template writes another prompt where a completion follows.
        """
        start = self.prompt_text(row)
        if not self.templated:
            return RowTexts(start, row["completion"])
        if self._is_templated(row):
            return RowTexts(start, row["completion"] + self.before_end + self.end_text)
        whole = self._render([*self._turns(row), _answer(row)], row)
        if not self.has_whole_chats or not whole.startswith(start) or not whole.endswith(self.tail):
            expected = "False, or for supervised rows a chat template that writes a prompt the same with its completion"
            raise ConfigError(
                f"use_chat_template: expected {expected} (row {row['id']}), got a prompt that ends in {start[-40:]!r}, "
                f"and {whole[-60:]!r}; chat_template_kwargs may help, such as enable_thinking"
            )
        answer = whole[len(start) : len(whole) - len(self.tail)]
        return RowTexts(start, answer + self.before_end + self.end_text)

    def texts_of_rows(self, rows: Sequence[Row]) -> list[RowTexts]:
        """Return the `row_texts` of every row, of most of them from one rendering instead of two.

        Where a chat ends with what this template writes before a completion, the completion and what it writes behind
        it, the prompt is the text up to there. Of each sequence of roles the first rows and some of the others are
        rendered both ways; all rows are, if these differ.

        Raises:
            DataError, ConfigError: as for `row_texts`.
        """
        texts: list[RowTexts] = []
        counts: Counter[tuple[str, ...]] = Counter()
        for row, found in zip(rows, self._texts_of_wholes(rows), strict=True):
            if found is None:
                texts.append(self.row_texts(row))
                continue
            roles = tuple(turn["role"] for turn in turns_of(row))
            counts[roles] += 1
            if counts[roles] <= _FIRST_CHECKED or counts[roles] % _CHECKED_EVERY == 0:
                expected = self.row_texts(row)
                if found != expected:
                    return [self.row_texts(row) for row in rows]
            texts.append(found)
        return texts

    def _texts_of_wholes(self, rows: Sequence[Row]) -> Iterator[RowTexts | None]:
        """Split chats where their completions begin, found from their ends; None where that has to be looked for."""
        if not self.templated or not self.has_whole_chats or not self.opening.strip():
            yield from [None] * len(rows)
            return
        for _, of_same_tools in groupby(rows, _tools_of):
            group = list(of_same_tools)
            for start in range(0, len(group), _CHATS_AT_ONCE):
                some = group[start : start + _CHATS_AT_ONCE]
                chats = [self._usual_chat(row) for row in some]
                usual = [(chat, row) for chat, row in zip(chats, some, strict=True) if chat is not None]
                wholes = iter(self._render_all(usual))
                for chat, row in zip(chats, some, strict=True):
                    yield None if chat is None else self._texts_of_whole(next(wholes), row)

    def _usual_chat(self, row: Row) -> list[Turn] | None:
        """Return all turns of a row, unless a template may write a turn in another way where others follow."""
        if ANSWER in row or self._is_templated(row):
            return None
        turns = self._turns(row)
        if any("<think>" in turn.get("content", "") or turn.keys() != {"role", "content"} for turn in turns):
            return None  # templates leave out thoughts of earlier turns
        return [*turns, _answer(row)]

    def _texts_of_whole(self, whole: str, row: Row) -> RowTexts | None:
        begin = len(whole) - len(self.tail) - len(row["completion"])
        if not whole.endswith(self.opening + row["completion"] + self.tail):
            return None
        return RowTexts(whole[:begin], row["completion"] + self.before_end + self.end_text)

    def assistant_spans(self, row: Row) -> list[tuple[int, int]]:
        """Return the characters of all turns of the assistant, with their ends, in prompt and completion of a row.

        They are what the template has in `{% generation %}` blocks; where it has none, what follows the text up to
        which the turns before are written, to the end of the turn.

        Raises:
            ConfigError: the template writes a turn in a way that does not show where it is, or where its calls are.
        """
        if self._is_templated(row):
            prompt, completion = self.row_texts(row)
            return [(len(prompt), len(prompt) + len(completion))]
        turns = [*self._turns(row), _answer(row)]
        if _GENERATION.search(str(self.tokenizer.chat_template)):
            generated = _generated(self.tokenizer, turns, self._arguments_of(row))
            if all(begin == end for begin, end in generated):
                expected = "False, or a chat template whose {% generation %} blocks hold the turns of the assistant"
                raise ConfigError(f"assistant_only_loss: expected {expected}, got none in row {row['id']}")
            return generated
        whole = self._render(turns, row)
        spans = []
        for number, turn in enumerate(turns):
            if turn.get("tool_calls"):
                expected = "False, or a chat template with {% generation %} blocks for turns that call tools"
                raise ConfigError(f"assistant_only_loss: expected {expected}, got one without (row {row['id']})")
            if turn["role"] == "assistant":
                spans.append(self._span(whole, turns[:number], turn["content"], row))
        return spans

    def _span(self, whole: str, before: Sequence[Turn], content: str, row: Row) -> tuple[int, int]:
        """Find a turn of the assistant, with its end, behind the turns before it."""
        start = self._render(before, row) if before else ""
        if not whole.startswith(start):  # thoughts that are opened for the last answer alone
            start = _THINKING_LEAD.sub("", start)
        # Templates leave out blanks around an answer, and thoughts of earlier ones.
        for answer in dict.fromkeys([content, content.strip(), content.rpartition("</think>")[2].strip()]):
            found = whole.find(answer, len(start))
            if whole.startswith(start) and found >= 0 and _LEAD.fullmatch(whole, len(start), found):
                ended = re.compile(rf"\s*{re.escape(self.end_text)}").match(whole, found + len(answer))
                return len(start), found + len(answer) if ended is None else ended.end()
        expected = "False, or a chat template with {% generation %} blocks, or one that writes all turns alike"
        raise ConfigError(f"assistant_only_loss: expected {expected} (row {row['id']}), got {whole[-200:]!r}")

    def describe(self) -> str:
        """Describe what a model reads, in a few words."""
        layout = "turns of the tokenizer's chat template" if self.templated else "texts as they are"
        if self.templated and self.system_prompt is not None:
            layout += f" (system turn: {self.system_prompt!r})"
        if self.templated and self.arguments:
            layout += f" (arguments: {dict(self.arguments)})"
        return f"{layout}, ended by {self.tokenizer.convert_ids_to_tokens(self.end_id)}"

    @property
    def end_text(self) -> str:
        """The token that the template writes after a completion, as text; nothing where it writes none."""
        return self.tokenizer.convert_ids_to_tokens(self.end_id) if self.tail.strip() else ""

    def _is_templated(self, row: Row) -> bool:
        """Return whether the prompt of a row is a rendered chat already: it opens the assistant's turn itself."""
        opening = self.opening.strip()
        return bool(opening) and not is_chat(row) and row["prompt"].rstrip().endswith(opening)

    def _turns(self, row: Row) -> list[Turn]:
        """Return all turns before the completion: system, examples, and those of the row."""
        *examples, last = self._shown(row)
        turns = turns_of(last)
        own = turns[:1] if turns[0]["role"] in SYSTEM_ROLES else []
        shown = [turn for example in examples for turn in (*_without_system(turns_of(example)), _answer(example))]
        return [*(own or _system(self.system_prompt)), *shown, *turns[len(own) :]]

    def _shown(self, row: Row) -> list[Row]:
        """Return the examples and the row, each without the domain where the one before has told it."""
        rows = [*(self.examples.of(row) if self.examples is not None else ()), row]
        return [rows[0], *(shown_after(later, before) for before, later in pairwise(rows))]

    def _solved(self, example: Row) -> str:
        """Write an example as text; its end is shown, as the model has to end its answer, too."""
        style = prompts.PROMPT_STYLES.get(str(example.get("prompt_style")))
        gap = "" if style is None else style.gap
        return f"{example['prompt']}{gap}{example['completion']}{self.tokenizer.eos_token}\n\n"

    def _arguments_of(self, row: Row) -> dict[str, Any]:
        """Return the arguments of the template for a row, with its tools."""
        tools = _tools_of(row)
        return {**(self.arguments or {}), **({"tools": tools} if tools else {})}

    def _render(self, turns: Sequence[Turn], row: Row) -> str:
        (text,) = self._render_all([(turns, row)])
        return text

    def _render_all(self, chats: Sequence[tuple[Sequence[Turn], Row]]) -> list[str]:
        """Render turns of rows with the same tools; either all of them end in an answer, or none does."""
        if not chats:
            return []
        arguments = self._arguments_of(chats[0][1])
        texts = _apply_to_all(
            self.tokenizer, [turns for turns, _ in chats], arguments, [f" of row {row['id']}" for _, row in chats]
        )
        for (turns, row), text in zip(chats, texts, strict=True):
            for what, said in _beyond_the_usual(turns, arguments.get("tools", [])):
                if not _is_written(said, text):
                    expected = f"a chat template that writes {what} of row {row['id']}"
                    raise ConfigError(f"use_chat_template: expected {expected}, got one that leaves out {said!r:.60}")
        return texts


def make_chat_template(tokenizer: Any, config: DataConfig | None = None) -> ChatTemplate:
    """Return the chat template of a tokenizer, if it is used, and the examples before each prompt.

    Args:
        tokenizer: of the model.
        config: says whether the chat template is used, the system prompt, and how many examples there are; default
            `DataConfig()`.

    Raises:
        ConfigError: the tokenizer has no chat template, or one that does not show where a completion begins and ends.
        DataError: there is nothing to draw examples from.
    """
    config = DataConfig() if config is None else config
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if config.use_chat_template and not has_template:
        raise ConfigError("use_chat_template: expected a tokenizer with a chat template, got one without")
    # Prompts that are cut are text to be continued.
    by_default = has_template and config.input_max_text_length is None
    templated = by_default if config.use_chat_template is None else config.use_chat_template
    if not templated:
        for name, kind in (("system_prompt", "a text"), ("chat_template_kwargs", "a mapping")):
            if getattr(config, name) is not None:
                raise ConfigError(f"{name}: expected None without a chat template, got {kind}")
        return ChatTemplate(tokenizer, False, tokenizer.eos_token_id, examples=load_examples(config))
    _warn_of_arguments(tokenizer, config)
    tail, has_whole_chats = _around_completion(tokenizer, config)
    if _tells_the_date(tokenizer, config):
        _warn("the chat template writes today's date into every prompt: a run that goes on tomorrow has others")
    end_id, before_end = _end(tokenizer, tail)
    return ChatTemplate(
        tokenizer,
        True,
        end_id,
        config.system_prompt,
        config.chat_template_kwargs,
        tail,
        before_end,
        has_whole_chats,
        load_examples(config),
        *_around_prompt(tokenizer, config),
    )


def _system(content: str | None) -> list[Turn]:
    return [] if content is None else [{"role": "system", "content": content}]


def _answer(row: Row) -> Turn:
    return row.get(ANSWER) or {"role": "assistant", "content": row["completion"]}


def _without_system(turns: Sequence[Turn]) -> Sequence[Turn]:
    return turns[1:] if turns[0]["role"] in SYSTEM_ROLES else turns


def _tools_of(row: Row) -> list[dict[str, Any]]:
    return (row.get("tools") if is_chat(row) else None) or []


def _apply(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any]) -> str:
    return _apply_to_all(tokenizer, [turns], arguments, [""])[0]


def _apply_to_all(
    tokenizer: Any, chats: Sequence[Sequence[Turn]], arguments: Mapping[str, Any], places: Sequence[str]
) -> list[str]:
    """Render chats; where the user has the last turn, the assistant's is opened. `places` names them in errors."""
    opened = chats[0][-1]["role"] != "assistant"
    options = {**arguments, "tokenize": False, "add_generation_prompt": opened}
    try:
        return tokenizer.apply_chat_template([list(turns) for turns in chats], **options)
    except Exception as error:  # whatever a template raises
        if len(chats) > 1:  # one by one, the first that is refused is named
            each = zip(chats, places, strict=True)
            return [_apply_to_all(tokenizer, [turns], arguments, [place])[0] for turns, place in each]
        asked = f"a chat template for the turns {', '.join(turn['role'] for turn in chats[0])}{places[0]}"
        got = f"{type(error).__name__}: {error}"
        raise ConfigError(f"use_chat_template: expected {asked}, got {got}") from error


def _beyond_the_usual(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what a template may pass over in silence, as one that knows no tools does: (what it is, what it says)."""
    for turn in turns:
        if turn["role"] in ("developer", "tool"):
            yield f"the turn of the {turn['role']}", turn.get("content", "")
        for call in turn.get("tool_calls") or ():
            yield "the tool call", call.get("function", call)["name"]
    for tool in tools:
        name = tool.get("function", tool).get("name")
        if isinstance(name, str):
            yield "the tool", name


def _is_written(said: str, text: str) -> bool:
    """Return whether a rendered chat has a text, as it is or within JSON."""
    said = said.strip()
    return said in text or any(json.dumps(said, ensure_ascii=is_ascii)[1:-1] in text for is_ascii in (False, True))


def _generated(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the characters of a chat that its template has in `{% generation %}` blocks."""
    from transformers.utils.chat_template_utils import render_jinja_template  # slow to import

    _, (spans,) = render_jinja_template(
        [list(turns)],
        chat_template=tokenizer.get_chat_template(),
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
        **arguments,
    )
    return [(int(begin), int(end)) for begin, end in spans]


def _around_completion(tokenizer: Any, config: DataConfig) -> tuple[str, bool]:
    """Return what a template writes behind a completion, and whether it writes the prompt as it does without one.

    It need not where it opens the thinking in the prompt, as such a prompt can be continued, though not learned from.
    """
    turns = [*_system(config.system_prompt), {"role": "user", "content": _PROMPT}]
    arguments = config.chat_template_kwargs or {}
    start = _apply(tokenizer, turns, arguments)
    whole = _apply(tokenizer, [*turns, {"role": "assistant", "content": _COMPLETION}], arguments)
    has_whole_chats = whole.startswith(start)
    begin = start if has_whole_chats else _OPENED_THINKING.sub("", start)
    lead, found, tail = whole[len(begin) :].partition(_COMPLETION)
    if not whole.startswith(begin) or not found or not _LEAD.fullmatch(lead):
        expected = "False, or a chat template that writes the same prompt with a completion behind it as without"
        raise ConfigError(f"use_chat_template: expected {expected}, got {whole!r} and {start!r}")
    return tail, has_whole_chats


def _around_prompt(tokenizer: Any, config: DataConfig) -> tuple[str, bool]:
    """Return what a template writes after a turn of the user, and whether it begins with the beginning of sequence."""
    start = _apply(tokenizer, [{"role": "user", "content": _PROMPT}], config.chat_template_kwargs or {})
    bos = getattr(tokenizer, "bos_token", None)
    return start.rpartition(_PROMPT)[2], bool(bos) and start.startswith(bos)


def _warn_of_arguments(tokenizer: Any, config: DataConfig) -> None:
    """Warn of arguments that the template never reads, such as misspelt ones."""
    for name in config.chat_template_kwargs or {}:
        if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
            _warn(f"chat_template_kwargs: the chat template does not read {name!r}, which changes nothing")


def _tells_the_date(tokenizer: Any, config: DataConfig) -> bool:
    """Return whether a prompt would be another one on another day."""
    turns = [*_system(config.system_prompt), {"role": "user", "content": _PROMPT}]
    text = _apply(tokenizer, turns, config.chat_template_kwargs or {})
    return any(time.strftime(form) in text for form in _DATE.findall(str(tokenizer.chat_template)))


@cache
def _warn(message: str) -> None:
    """Warn once; training and evaluation each make a template of their own."""
    _LOG.warning(message)


def _end(tokenizer: Any, tail: str) -> tuple[int, str]:
    """Return the first special token behind a completion, and what stands before it.

    That is the end of sequence where nothing follows a completion.
    """
    ids = tokenizer(tail, add_special_tokens=False)["input_ids"] if tail.strip() else []
    special = set(tokenizer.all_special_ids) | {
        number for number, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    place = next((place for place, number in enumerate(ids) if number in special), None)
    if place is None and not ids:
        return tokenizer.eos_token_id, ""
    before = "" if place is None else tail.partition(tokenizer.convert_ids_to_tokens(ids[place]))[0]
    if place is None or before.strip():
        expected = "False, or a chat template that ends a completion with a special token"
        raise ConfigError(f"use_chat_template: expected {expected}, got {tail!r}")
    return ids[place], before
