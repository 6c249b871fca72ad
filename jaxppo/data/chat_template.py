"""Chat templates: prompts become turns of a chat where the tokenizer has a template, and stay as they are elsewhere."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from jaxppo.config import DataConfig
from jaxppo.data.chats import ANSWER, SYSTEM_ROLES, Message, Row, is_chat, turns_of
from jaxppo.data.few_shot import Examples, load_examples, shown_after
from jaxppo.data.forms import warn_once
from jaxppo.data.rendering import check_complete, generation_spans, render_chats
from jaxppo.data.template_layout import LEAD, TemplateLayout, find_layout, system_turns
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning import prompts

_THINKING_LEAD = re.compile(r"<think>\s*(?:</think>\s*)?$")
_REOPENED_THINKING = re.compile(r"</think>\s*<think>")
_GENERATION = re.compile(r"\{%-?\s*generation\b")

# Of the rows with the same sequence of roles, those whose prompts are rendered by themselves, too.
_FIRST_CHECKED = 20
_CHECKED_EVERY = 50
# Chats rendered in one call, which takes a sixth less than one call for each.
_CHATS_AT_ONCE = 1000


class RowTexts(NamedTuple):
    """A prompt, and the completion that follows it in the same text, with the end that a template writes."""

    prompt: str
    completion: str


class ChatTemplate(NamedTuple):
    """How a model gets the texts of a row.

    Attributes:
        tokenizer: of the model.
        is_used: whether its chat template is used.
        layout: what the template writes around prompts and completions.
        system_prompt: first turn of every chat without a system turn; None for none.
        arguments: of the template.
        examples: solved rows before each prompt; None for none.
    """

    tokenizer: Any
    is_used: bool
    layout: TemplateLayout
    system_prompt: str | None = None
    arguments: Mapping[str, Any] | None = None
    examples: Examples | None = None

    @property
    def end_id(self) -> int:
        """The token that ends a completion."""
        return self.layout.end_id

    @property
    def end_text(self) -> str:
        """The token that the template writes after a completion, as text; nothing where it writes none."""
        if not self.layout.tail.strip():
            return ""
        return self.tokenizer.convert_ids_to_tokens(self.end_id)

    def describe(self) -> str:
        """Describe what a model reads, in a few words."""
        text = "turns of the tokenizer's chat template" if self.is_used else "texts as they are"
        if self.is_used and self.system_prompt is not None:
            text += f" (system turn: {self.system_prompt!r})"
        if self.is_used and self.arguments:
            text += f" (arguments: {dict(self.arguments)})"
        return f"{text}, ended by {self.tokenizer.convert_ids_to_tokens(self.end_id)}"

    # --- prompts and completions as texts

    def prompt_text(self, row: Row) -> str:
        """Return what a model reads of a row, up to where the completion begins.

        Raises:
            DataError: the row is a chat, and there is no template for it; or it has too few examples.
            ConfigError: the template does not take these turns.
        """
        if self._is_rendered(row):
            warn_once(
                f"prompt of row {row['id']}: it carries the chat template already, as others may: such prompts are "
                "taken as they are"
            )
            # The template writes its beginning of sequence
            # once, and the tokenizer adds none to a chat.
            bos = self.tokenizer.bos_token or ""
            prompt = row["prompt"]
            return bos + prompt.removeprefix(bos) if self.layout.writes_bos else prompt
        if self.is_used:
            text = self._render(self._turns(row), row, is_prompt=True)
            # Qwen3's takes the turn for a whole answer, which it gives an empty thinking part.
            if turns_of(row)[-1]["role"] == "assistant" and _REOPENED_THINKING.search(text):
                warn_once(
                    f"prompt of row {row['id']}: the chat template writes an empty thinking part before a turn of the "
                    "assistant that begins with <think>: the model reads both"
                )
            return text
        # Without a template, examples and prompt become one text, which has no turns.
        *examples, last = rows = self._with_examples(row)
        chats = [chat for chat in rows if is_chat(chat)]
        if chats:
            raise DataError(
                f"messages of row {chats[0]['id']}: expected a tokenizer with a chat template, and "
                "use_chat_template not False, got prompts that are plain text"
            )
        return "".join(map(self._solved_text, examples)) + last["prompt"]

    def row_texts(self, row: Row) -> RowTexts:
        """Return the prompt of a row and its completion, which joined are the text that a model learns.

        Raises:
            DataError: as for `prompt_text`.
            ConfigError: the template writes another prompt where a completion follows.
        """
        prompt = self.prompt_text(row)
        if not self.is_used:
            return RowTexts(prompt, row["completion"])
        if self._is_rendered(row):
            return RowTexts(prompt, self._with_end(row["completion"]))
        # The completion is cut out of the whole chat, as templates may change it: they strip
        # blanks, or write an empty thinking part before it. This is right only where the chat
        # begins with the very prompt that a sampler gets.
        tail = self.layout.tail
        chat = self._render(_answered(self._turns(row), row), row)
        if not chat.startswith(prompt) or not chat.endswith(tail):
            raise ConfigError(
                "use_chat_template: expected False, or for supervised rows a chat template that writes a prompt the "
                f"same with its completion (row {row['id']}), got a prompt that ends in {prompt[-40:]!r}, and "
                f"{chat[-60:]!r}; chat_template_kwargs may help, such as enable_thinking"
            )
        return RowTexts(prompt, self._with_end(chat[len(prompt) : len(chat) - len(tail)]))

    def texts_of_rows(self, rows: Sequence[Row]) -> list[RowTexts]:
        """Return the `row_texts` of every row, of most of them from one rendering instead of two.

        To learn a row takes the text of its whole chat and that of its prompt, which shows where the completion begins.
        Most templates write turn after turn, whatever follows. Then a whole chat ends with what the template writes
        before every completion, the completion, and what it writes after every completion; the prompt is the text up to
        the completion. Whether a template is of this kind is tried, not asked: of each sequence of roles the first rows
        and some of the others are rendered both ways, and all rows are as soon as one differs.

        Raises:
            DataError, ConfigError: as for `row_texts`.
        """
        texts: list[RowTexts] = []
        counts: Counter[tuple[str, ...]] = Counter()
        for row, split_text in zip(rows, self._split_chats(rows), strict=True):
            if split_text is None:
                texts.append(self.row_texts(row))
                continue
            # Templates branch by the roles of the turns, seldom by what they say.
            roles = tuple(turn["role"] for turn in turns_of(row))
            counts[roles] += 1
            is_checked = counts[roles] <= _FIRST_CHECKED or counts[roles] % _CHECKED_EVERY == 0
            if is_checked and split_text != self.row_texts(row):
                return [self.row_texts(row) for row in rows]
            texts.append(split_text)
        return texts

    def _split_chats(self, rows: Sequence[Row]) -> Iterator[RowTexts | None]:
        """Render whole chats and split them where the completion begins, found from the end; None: not by this way."""
        if not (self.is_used and self.layout.appends_completions and self.layout.opening.strip()):
            yield from [None] * len(rows)
            return
        # The tools are arguments of the template, which all chats of a call share.
        for _, group in groupby(rows, _tools_of):
            group_rows = list(group)
            for start in range(0, len(group_rows), _CHATS_AT_ONCE):
                yield from self._split_some(group_rows[start : start + _CHATS_AT_ONCE])

    def _split_some(self, rows: Sequence[Row]) -> Iterator[RowTexts | None]:
        """Split chats with the same tools, as `_split_chats` does."""
        chats = [self._simple_chat(row) for row in rows]
        pairs = [(chat, row) for chat, row in zip(chats, rows, strict=True) if chat]
        renderings = iter(self._render_all(pairs))
        for row, chat in zip(rows, chats, strict=True):
            text = next(renderings) if chat else ""
            # Where the template has changed the completion, or
            # what is around it, the row takes the slow way.
            ending = self.layout.opening + row["completion"] + self.layout.tail
            if not text.endswith(ending):
                yield None
            else:
                prompt = text[: len(text) - len(ending)] + self.layout.opening
                yield RowTexts(prompt, self._with_end(row["completion"]))

    def _simple_chat(self, row: Row) -> list[Message]:
        """Return all turns of a row; none where a template may write one in another way when others follow."""
        if ANSWER in row or self._is_rendered(row):
            return []
        turns = self._turns(row)
        for turn in turns:
            # Templates leave out thoughts of earlier turns.
            if turn.keys() != {"role", "content"} or "<think>" in turn["content"]:
                return []
        # What is written before a completion that goes on in a turn is not the opening of a turn.
        return [] if turns[-1]["role"] == "assistant" else _answered(turns, row)

    def _with_end(self, completion: str) -> str:
        return completion + self.layout.before_end + self.end_text

    # --- where the turns of the assistant are

    def assistant_spans(self, row: Row) -> list[tuple[int, int]]:
        """Return the characters of all turns of the assistant, with their ends, in prompt and completion of a row.

        They are what the template has in `{% generation %}` blocks; where it has none, what follows the text up to
        which the turns before are written, to the end of the turn.

        Raises:
            ConfigError: the template writes a turn in a way that does not show where it is, or where its calls are.
        """
        # The turns within such a prompt are text, so the completion is the only one to be found.
        if self._is_rendered(row):
            prompt, completion = self.row_texts(row)
            return [(len(prompt), len(prompt) + len(completion))]
        turns = _answered(self._turns(row), row)
        if _GENERATION.search(str(self.tokenizer.chat_template)):
            spans = generation_spans(self.tokenizer, turns, self._arguments_for(row))
            if all(start == end for start, end in spans):
                raise ConfigError(
                    "assistant_only_loss: expected False, or a chat template whose {% generation %} blocks hold the "
                    f"turns of the assistant, got none in row {row['id']}"
                )
            return spans
        # Without such blocks, the chat is rendered up to each turn of the
        # assistant: what the whole chat has beyond it begins with the turn.
        # A call of a tool has no text of its own that could be looked for.
        chat = self._render(turns, row)
        spans = []
        for number, turn in enumerate(turns):
            if turn.get("tool_calls"):
                raise ConfigError(
                    "assistant_only_loss: expected False, or a chat template with {% generation %} blocks for turns "
                    f"that call tools, got one without (row {row['id']})"
                )
            if turn["role"] == "assistant":
                spans.append(self._turn_span(chat, turns[:number], turn["content"], row))
        return spans

    def _turn_span(
        self,
        chat: str,
        earlier_turns: Sequence[Message],
        content: str,
        row: Row,
    ) -> tuple[int, int]:
        """Find a turn of the assistant, with its end, after the turns before it."""
        beginning = self._render(earlier_turns, row) if earlier_turns else ""
        if not chat.startswith(beginning):
            # Some templates open thoughts for the last answer alone, so not in the whole chat.
            beginning = _THINKING_LEAD.sub("", beginning)
        if chat.startswith(beginning):
            start = len(beginning)
            # Templates leave out blanks around an answer, and thoughts of earlier ones.
            for answer in (content, content.strip(), content.rpartition("</think>")[2].strip()):
                # The answer must come at once: the same words further on are those of another turn.
                place = chat.find(answer, start)
                if place >= 0 and LEAD.fullmatch(chat, start, place):
                    end = place + len(answer)
                    end_mark = re.compile(rf"\s*{re.escape(self.end_text)}").match(chat, end)
                    if end_mark is not None:
                        end = end_mark.end()
                    return start, end
        raise ConfigError(
            "assistant_only_loss: expected False, or a chat template with {% generation %} blocks, or one that writes "
            f"all turns alike (row {row['id']}), got {chat[-200:]!r}"
        )

    # --- turns

    def _is_rendered(self, row: Row) -> bool:
        """Return whether the prompt of a row is a rendered chat already: it opens the assistant's turn itself."""
        opening = self.layout.opening.strip()
        return bool(opening) and not is_chat(row) and row["prompt"].rstrip().endswith(opening)

    def _turns(self, row: Row) -> list[Message]:
        """Return all turns before the completion: system, examples, and those of the row."""
        *examples, last = self._with_examples(row)
        turns = turns_of(last)
        # The row's own system turn wins, and an example's is
        # left out: a chat has at most one, the first turn.
        system = turns[:1] if turns[0]["role"] in SYSTEM_ROLES else system_turns(self.system_prompt)
        example_turns: list[Message] = []
        for example in examples:
            example_turns += _answered(_without_system(turns_of(example)), example)
        return [*system, *example_turns, *_without_system(turns)]

    def _with_examples(self, row: Row) -> list[Row]:
        """Return the examples and the row, each without the domain where the one before has shown it."""
        if self.examples is None:
            return [row]
        rows = [*self.examples.draw(row), row]
        return [rows[0]] + [shown_after(later, earlier) for earlier, later in pairwise(rows)]

    def _solved_text(self, example: Row) -> str:
        """Write an example as text; its end is shown, as the model has to end its answer, too."""
        style = prompts.PROMPT_STYLES.get(str(example.get("prompt_style")))
        gap = "" if style is None else style.gap
        return f"{example['prompt']}{gap}{example['completion']}{self.tokenizer.eos_token}\n\n"

    # --- rendering

    def _arguments_for(self, row: Row) -> dict[str, Any]:
        """Return the arguments of the template for a row, with its tools."""
        # A copy, as the arguments of the configuration are shared by all rows.
        arguments = dict(self.arguments or {})
        if tools := _tools_of(row):
            arguments["tools"] = tools
        return arguments

    def _render(self, turns: Sequence[Message], row: Row, *, is_prompt: bool = False) -> str:
        return self._render_all([(turns, row)], is_prompt=is_prompt)[0]

    def _render_all(
        self, chats: Sequence[tuple[Sequence[Message], Row]], *, is_prompt: bool = False
    ) -> list[str]:
        """Render turns of rows with the same tools; either all of them end in an answer, or none does."""
        if not chats:
            return []
        arguments = self._arguments_for(chats[0][1])
        labels = [f" of row {row['id']}" for _, row in chats]
        all_turns = [turns for turns, _ in chats]
        texts = render_chats(self.tokenizer, all_turns, arguments, labels, is_prompt=is_prompt)
        for (turns, _), text, label in zip(chats, texts, labels, strict=True):
            check_complete(turns, arguments.get("tools", []), text, label)
        return texts


def without_template(tokenizer: Any, examples: Examples | None = None) -> ChatTemplate:
    """Return texts as they are, ended by the end of sequence."""
    return ChatTemplate(tokenizer, False, TemplateLayout(tokenizer.eos_token_id), examples=examples)


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
    is_used = config.use_chat_template
    if is_used is None:
        # Prompts that are cut are text to be continued, so by default there is no chat.
        is_used = bool(tokenizer.chat_template) and config.input_text_length is None
    elif is_used and not tokenizer.chat_template:
        raise ConfigError(
            "use_chat_template: expected a tokenizer with a chat template, got one without"
        )
    if is_used:
        layout = find_layout(tokenizer, config.system_prompt, config.chat_template_kwargs or {})
        examples = load_examples(config)
        return ChatTemplate(
            tokenizer, True, layout, config.system_prompt, config.chat_template_kwargs, examples
        )
    if config.system_prompt is not None:
        raise ConfigError("system_prompt: expected None without a chat template, got a text")
    if config.chat_template_kwargs is not None:
        raise ConfigError(
            "chat_template_kwargs: expected None without a chat template, got a mapping"
        )
    return without_template(tokenizer, load_examples(config))


def _answered(turns: Sequence[Message], row: Row) -> list[Message]:
    """Return the turns of a row with its completion: as a turn of the assistant, or as the rest of an open one."""
    answer = row.get(ANSWER) or {"role": "assistant", "content": row["completion"]}
    *earlier_turns, last = turns
    if last["role"] != "assistant":
        return [*turns, answer]
    return [*earlier_turns, answer | {"content": last["content"] + answer.get("content", "")}]


def _without_system(turns: Sequence[Message]) -> Sequence[Message]:
    return turns[1:] if turns[0]["role"] in SYSTEM_ROLES else turns


def _tools_of(row: Row) -> list[dict[str, Any]]:
    """Return the tools that may be called in a row."""
    # A column of that name of a row that is no chat is for the reward functions.
    if not is_chat(row):
        return []
    return row.get("tools") or []
