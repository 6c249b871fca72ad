"""Rows that are chats: turns read into a prompt, the turns before the completion, and the completion."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.config.reading import parse_json
from jaxppo.data.forms import usual_form, usual_turn
from jaxppo.errors import DataError

Row = dict[str, Any]
Turn = dict[str, Any]
"""A turn of a chat: `role`, `content`, and what else the chat template reads."""

SYSTEM_ROLES = ("system", "developer")
"""Who may speak first, before the user."""
ANSWER = "completion_turn"
"""Where a row keeps an answer that is more than its text: one that calls tools."""
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")


def turns_of(row: Mapping[str, Any]) -> list[Turn]:
    """Return the turns that the model is given of a row: its `messages`, else its prompt as the user's turn."""
    return row["messages"] if is_chat(row) else [{"role": "user", "content": row["prompt"]}]


def is_chat(row: Mapping[str, Any]) -> bool:
    """Return whether a row has turns of its own."""
    return row.get("messages") is not None


def plain_row(row: Row, where: str, prompt_column: str = "prompt") -> Row:
    """Return a row with a text as `prompt`; a chat gets `messages`, the turns before the completion.

    A chat is a row with a list of turns as `messages`, or as its prompt (TRL's conversational form). Its prompt is what
    the user says last. Where the last turn is the assistant's, that is the completion; else the completion may be a
    column of its own, a text or a list of one turn of the assistant. Its `tools` are what the template gets. Rows of
    ShareGPT and Alpaca are read as such, see `forms`; others stay as they are.

    Args:
        row: as it was read.
        where: names the row in errors.
        prompt_column: column of the prompt; `messages` are looked at beside `prompt` alone.

    Raises:
        DataError: malformed turns; the message names row and field.
    """
    if ANSWER in row:
        raise DataError(f"{where}: field '{ANSWER}': expected another name, as answers that call tools are kept by it")
    if prompt_column in ("prompt", "messages"):
        row = usual_form(row, where)
    else:
        row = {name: value for name, value in row.items() if name != "messages"}
    name = "messages" if is_chat(row) else prompt_column
    if not isinstance(row.get(name), list):
        if name == "messages":
            raise DataError(f"{where}: field 'messages': expected a list of turns, got {row[name]!r:.60}")
        return row
    turns = _turns(row[name], f"{where}: field '{name}'")
    answers = _completion(row.get("completion"), f"{where}: field 'completion'")
    if turns[-1]["role"] == "assistant":
        answers = [*answers, _answer(turns.pop(), f"{where}: field '{name}', turn {len(turns) + 1}")]
    last = last_of_user(turns)
    if last is None or turns[-1]["role"] not in ("user", "tool"):
        got = turns[-1]["role"] if turns else "none"
        expected = "a turn of the user, or of a tool after one, before the completion"
        raise DataError(f"{where}: field '{name}': expected {expected}, got {got}")
    if answers and answers[0] != answers[-1]:
        got = answers[0].get("content", answers[0])
        raise DataError(f"{where}: field 'completion': expected that of {name}, got {got!r:.60}")
    answer: Row = {}
    if answers:
        answer = {"completion": answers[0].get("content", "")}
        if "tool_calls" in answers[0]:
            answer[ANSWER] = answers[0]
    prompt = turns[last]["content"]
    tools = {"tools": _tools(row["tools"], f"{where}: field 'tools'")} if row.get("tools") is not None else {}
    return row | answer | tools | {prompt_column: prompt, "prompt": prompt, "messages": turns}


def last_of_user(turns: Sequence[Turn]) -> int | None:
    """Return the place of the user's last turn; None where there is none."""
    return next((place for place in reversed(range(len(turns))) if turns[place]["role"] == "user"), None)


def _tools(value: Any, where: str) -> list[dict[str, Any]]:
    """Return the schemas of tools; tables may hold them as JSON text, and every key in every one."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except DataError as error:
            raise DataError(f"{where}: expected a list of tools, as such or in JSON, got {error}") from None
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise DataError(f"{where}: expected a list of tools, each a mapping, got {value!r:.60}")
    return _without_none(value)


def _completion(value: Any, where: str) -> list[Turn]:
    """Return the completion of a chat as a turn, or nothing where there is none."""
    if value is None or isinstance(value, str):
        return [] if value is None else [{"role": "assistant", "content": value}]
    turns = _turns(value, where)
    if [turn["role"] for turn in turns] != ["assistant"]:
        raise DataError(f"{where}: expected a text, or one turn of the assistant, got {value!r:.60}")
    return [_answer(turns[0], f"{where}, turn 1")]


def _answer(turn: Turn, where: str) -> Turn:
    """Return an answer with what a template writes of it; thoughts, which many leave out, would not be learned."""
    known = ("role", "content", "tool_calls")
    turn = {name: value for name, value in turn.items() if value or name == "content"}
    more = [name for name in turn if name not in known]
    if more:
        raise DataError(
            f"{where}, {more[0]}: expected {', '.join(known)} alone in the answer, got {turn[more[0]]!r:.60}"
        )
    return turn


def _turns(value: Any, where: str) -> list[Turn]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DataError(f"{where}: expected a list of turns, got {value!r:.60}")
    return [_turn(turn, number, f"{where}, turn {number}") for number, turn in enumerate(value, 1)]


def _turn(turn: Any, number: int, where: str) -> Turn:
    """Check a turn; what is empty in it is left out, as tables have every column in every turn."""
    if not isinstance(turn, Mapping):
        raise DataError(f"{where}: expected a mapping of role and content, got {turn!r:.60}")
    turn = _without_none(usual_turn(turn))
    role = turn.get("role")
    if role not in ROLES:
        raise DataError(f"{where}, role: expected one of {', '.join(ROLES)}, got {role!r:.60}")
    if role in SYSTEM_ROLES and number > 1:
        raise DataError(f"{where}, role: expected {role} only in the first turn, got it here")
    if calls := turn.get("tool_calls"):
        turn |= {"tool_calls": [_tool_call(call, f"{where}, tool_calls") for call in calls]}
        if role == "assistant" and "content" not in turn:
            return turn
    return turn | {"content": _text(turn.get("content"), f"{where}, content")}


def _text(content: Any, where: str) -> str:
    """Return what a turn says: a text, or the parts of a list one after the other."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise DataError(f"{where}: expected str, or a list of parts of type text, got {content!r:.60}")
    texts = []
    for number, part in enumerate(content, 1):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            got = f"type {kind}" if isinstance(kind, str) and kind != "text" else f"{part!r:.60}"
            raise DataError(
                f"{where}, part {number}: expected type text, which is all that models here read, got {got}"
            )
        texts.append(part["text"])
    return "".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """Check a call of a tool; arguments in JSON become a mapping, which is what chat templates write as JSON."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"{where}: expected mappings with a function and its name, got {call!r:.60}")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return dict(call)
    try:
        read = parse_json(arguments)
    except DataError:
        read = None
    if not isinstance(read, dict):
        raise DataError(f"{where}, arguments: expected a mapping, as such or in JSON, got {arguments!r:.60}")
    function = {**function, "arguments": read}
    return {**call, "function": function} if "function" in call else dict(function)


def _without_none(value: Any) -> Any:
    """Leave out the keys without a value, at any depth: tables give each mapping the keys of all others."""
    if isinstance(value, Mapping):
        return {name: _without_none(entry) for name, entry in value.items() if entry is not None}
    return [_without_none(entry) for entry in value] if isinstance(value, list) else value
