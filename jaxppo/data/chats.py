"""Rows that are chats: turns read into a prompt, the turns before the completion, and the completion."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.config.reading import parse_json
from jaxppo.data.forms import Row, convert_row, convert_turn, warn_of_unread_system, warn_once
from jaxppo.errors import DataError

Message = dict[str, Any]
"""A turn of a chat: `role`, `content`, and what else the chat template reads."""

SYSTEM_ROLES = ("system", "developer")
"""Who may speak first, before the user."""
ANSWER = "completion_turn"
"""Where a row keeps an answer that is more than its text: one that calls tools."""
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")
_ANSWER_KEYS = ("role", "content", "tool_calls")


def turns_of(row: Mapping[str, Any]) -> list[Message]:
    """Return the turns before the completion of a row: its `messages`, else its prompt as the user's turn.

    The last one may be the assistant's: then it is the beginning of a turn, which the completion ends.
    """
    if is_chat(row):
        return row["messages"]
    return [{"role": "user", "content": row["prompt"]}]


def is_chat(row: Mapping[str, Any]) -> bool:
    """Return whether a row has turns of its own."""
    return row.get("messages") is not None


def last_user_turn(turns: Sequence[Message]) -> int | None:
    """Return the index of the user's last turn; None where there is none."""
    for index in reversed(range(len(turns))):
        if turns[index]["role"] == "user":
            return index
    return None


def plain_row(row: Row, location: str, prompt_column: str = "prompt") -> Row:
    """Return a row with a text as `prompt`; a chat gets `messages`, the turns before the completion.

    A chat is a row with a list of turns as `messages`, or as its prompt (TRL's conversational form). Its prompt is what
    the user says last. Where the last turn of `messages` is the assistant's, that is the completion; else the
    completion may be a column of its own, a text or a list of one turn of the assistant. Where the last turn of
    `prompt` is the assistant's, it stays among the turns: the completion goes on in it, as in TRL. Its `tools` are what
    the template gets. Rows of ShareGPT and Alpaca are read as such, see `forms`; others stay as they are.

    Args:
        row: as it was read.
        location: names the row in errors.
        prompt_column: column of the prompt; `messages` are read only where it is `prompt` or `messages`.

    Raises:
        DataError: malformed turns; the message names row and field.
    """
    if ANSWER in row:
        raise DataError(
            f"{location}: field '{ANSWER}': expected another name, as answers that call tools are kept by it"
        )
    if prompt_column in ("prompt", "messages"):
        row = convert_row(row, location)
    else:
        warn_of_unread_system(row)
        # The user has named the prompt, so a chat beside it is not what the model gets.
        row = {name: value for name, value in row.items() if name != "messages"}
    column = "messages" if is_chat(row) else prompt_column
    if not isinstance(row.get(column), list):
        if column == "messages":
            raise DataError(
                f"{location}: field 'messages': expected a list of turns, got {row[column]!r:.60}"
            )
        return row
    # An answer may be the last turn, or a column; where it is both, they must agree.
    turns = _read_turns(row[column], f"{location}: field '{column}'")
    answer = _read_completion(row.get("completion"), f"{location}: field 'completion'")
    prefill: list[Message] = []
    if turns[-1]["role"] == "assistant":
        last_turn = _check_answer(
            turns.pop(), f"{location}: field '{column}', turn {len(turns) + 1}"
        )
        if column == "prompt" and answer != last_turn:
            warn_once(
                "dataset: where prompt ends with a turn of the assistant, the completion goes on in that turn"
            )
            if "tool_calls" in last_turn:
                raise DataError(
                    f"{location}: field 'prompt', turn {len(turns) + 1}: expected text alone in a turn that the "
                    "completion goes on in, got tool_calls"
                )
            # An empty turn is what the template opens without it. Of blanks
            # alone many templates leave nothing, and cut their own opening.
            prefill = [last_turn] if last_turn["content"].strip() else []
        elif answer is not None and answer != last_turn:
            content = answer.get("content", answer)
            raise DataError(
                f"{location}: field 'completion': expected that of {column}, got {content!r:.60}"
            )
        else:
            if column not in ("prompt", "messages"):
                warn_once(
                    f"dataset: where {column} ends with a turn of the assistant, that is the completion; in a column "
                    "called prompt the completion would go on in it"
                )
            answer = last_turn
    question = last_user_turn(turns)
    if question is None or turns[-1]["role"] not in ("user", "tool"):
        role = turns[-1]["role"] if turns else "none"
        # Two answers in a row, or a system turn alone:
        # no template says where the model would begin.
        raise DataError(
            f"{location}: field '{column}': expected a turn of the user, or of a tool after one, before the "
            f"completion, got {role}"
        )
    # The text alone is what rewards and reports read. A
    # call of a tool is more than text, and kept beside it.
    row = dict(row)
    if answer is not None:
        row["completion"] = answer.get("content", "")
        if "tool_calls" in answer:
            row[ANSWER] = answer
    if row.get("tools") is not None:
        row["tools"] = _read_tools(row["tools"], f"{location}: field 'tools'")
    row[prompt_column] = row["prompt"] = turns[question]["content"]
    row["messages"] = [*turns, *prefill]
    return row


def _read_tools(value: Any, location: str) -> list[dict[str, Any]]:
    """Return the schemas of tools; tables may hold them as JSON text, and every key in every one."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except DataError as error:
            raise DataError(
                f"{location}: expected a list of tools, as such or in JSON, got {error}"
            ) from None
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise DataError(f"{location}: expected a list of tools, each a mapping, got {value!r:.60}")
    return _without_none(value)


def _read_completion(value: Any, location: str) -> Message | None:
    """Return the completion of a chat as a turn; None where there is none."""
    if value is None:
        return None
    if isinstance(value, str):
        return {"role": "assistant", "content": value}
    turns = _read_turns(value, location)
    if [turn["role"] for turn in turns] != ["assistant"]:
        raise DataError(
            f"{location}: expected a text, or one turn of the assistant, got {value!r:.60}"
        )
    return _check_answer(turns[0], f"{location}, turn 1")


def _check_answer(turn: Message, location: str) -> Message:
    """Return an answer with what a template writes of it; thoughts, which many leave out, would not be learned."""
    # Empty keys are those of other rows of a table.
    turn = {name: value for name, value in turn.items() if value or name == "content"}
    for name, value in turn.items():
        if name not in _ANSWER_KEYS:
            raise DataError(
                f"{location}, {name}: expected {', '.join(_ANSWER_KEYS)} alone in the answer, got {value!r:.60}"
            )
    return turn


def _read_turns(value: Any, location: str) -> list[Message]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DataError(f"{location}: expected a list of turns, got {value!r:.60}")
    return [
        _read_turn(turn, number, f"{location}, turn {number}")
        for number, turn in enumerate(value, 1)
    ]


def _read_turn(value: Any, number: int, location: str) -> Message:
    """Check a turn; what is empty in it is left out, as tables have every column in every turn."""
    if not isinstance(value, Mapping):
        raise DataError(f"{location}: expected a mapping of role and content, got {value!r:.60}")
    turn = _without_none(convert_turn(value))
    role = turn.get("role")
    if role not in ROLES:
        raise DataError(f"{location}, role: expected one of {', '.join(ROLES)}, got {role!r:.60}")
    if role in SYSTEM_ROLES and number > 1:
        raise DataError(f"{location}, role: expected {role} only in the first turn, got it here")
    calls = turn.get("tool_calls")
    if calls:
        # Of OpenAI's form `{"type": "function", "function": {...}}`, or the function alone.
        turn["tool_calls"] = [_read_tool_call(call, f"{location}, tool_calls") for call in calls]
    # A turn of the assistant that calls tools may say nothing beside.
    if not calls or role != "assistant" or "content" in turn:
        turn["content"] = _read_text(turn.get("content"), f"{location}, content")
    return turn


def _read_text(content: Any, location: str) -> str:
    """Return what a turn says: a text, or the parts of a list one after the other."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise DataError(
            f"{location}: expected str, or a list of parts of type text, got {content!r:.60}"
        )
    texts = []
    for number, part in enumerate(content, 1):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            shown = f"type {kind}" if isinstance(kind, str) and kind != "text" else f"{part!r:.60}"
            raise DataError(
                f"{location}, part {number}: expected type text, which is all that models here read, got {shown}"
            )
        texts.append(part["text"])
    return "".join(texts)


def _read_tool_call(call: Any, location: str) -> dict[str, Any]:
    """Check a call of a tool; arguments in JSON become a mapping, which is what chat templates write as JSON."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(
            f"{location}: expected mappings with a function and its name, got {call!r:.60}"
        )
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return dict(call)
    try:
        mapping = parse_json(arguments)
    except DataError:  # the error below shows the text itself
        mapping = None
    if not isinstance(mapping, dict):
        raise DataError(
            f"{location}, arguments: expected a mapping, as such or in JSON, got {arguments!r:.60}"
        )
    function = {**function, "arguments": mapping}
    return {**call, "function": function} if "function" in call else function


def _without_none(value: Any) -> Any:
    """Leave out the keys without a value, at any depth: tables give each mapping the keys of all others."""
    if isinstance(value, Mapping):
        return {name: _without_none(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_without_none(entry) for entry in value]
    return value
