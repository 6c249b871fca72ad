"""Rows that are chats: turns read into a prompt, the turns before the completion, and the completion."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.errors import DataError

Row = dict[str, Any]
Turn = dict[str, Any]
"""A turn of a chat: `role`, `content`, and what else the chat template reads."""

ROLES = ("system", "user", "assistant")


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
    column of its own, a text or a list of one turn of the assistant. Other rows stay as they are.

    Args:
        row: as it was read.
        where: names the row in errors.
        prompt_column: column of the prompt; `messages` are looked at beside `prompt` alone.

    Raises:
        DataError: malformed turns; the message names row and field.
    """
    if prompt_column not in ("prompt", "messages"):
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
    if not turns or turns[-1]["role"] != "user":
        got = turns[-1]["role"] if turns else "none"
        raise DataError(f"{where}: field '{name}': expected a turn of the user before the completion, got {got}")
    if len(set(answers)) > 1:
        raise DataError(f"{where}: field 'completion': expected that of {name}, got {answers[0]!r:.60}")
    answer = {"completion": answers[0]} if answers else {}
    prompt = turns[-1]["content"]
    return row | answer | {prompt_column: prompt, "prompt": prompt, "messages": turns}


def _completion(value: Any, where: str) -> list[str]:
    """Return the completion of a chat, or nothing where there is none."""
    if value is None or isinstance(value, str):
        return [] if value is None else [value]
    turns = _turns(value, where)
    if [turn["role"] for turn in turns] != ["assistant"]:
        raise DataError(f"{where}: expected a text, or one turn of the assistant, got {value!r:.60}")
    return [_answer(turns[0], f"{where}, turn 1")]


def _answer(turn: Turn, where: str) -> str:
    """Return what an answer says; thoughts and calls of tools beside it would be left out of what is learned."""
    more = [name for name, value in turn.items() if name not in ("role", "content") and value]
    if more:
        raise DataError(f"{where}, {more[0]}: expected role and content alone in the answer, got {turn[more[0]]!r:.60}")
    return turn["content"]


def _turns(value: Any, where: str) -> list[Turn]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DataError(f"{where}: expected a list of turns, got {value!r:.60}")
    return [_turn(turn, number, f"{where}, turn {number}") for number, turn in enumerate(value, 1)]


def _turn(turn: Any, number: int, where: str) -> Turn:
    """Check a turn; what is empty in it is left out, as tables have every column in every turn."""
    if not isinstance(turn, Mapping):
        raise DataError(f"{where}: expected a mapping of role and content, got {turn!r:.60}")
    role, content = turn.get("role"), turn.get("content")
    if role not in ROLES:
        raise DataError(f"{where}, role: expected one of {', '.join(ROLES)}, got {role!r:.60}")
    if role == "system" and number > 1:
        raise DataError(f"{where}, role: expected system only in the first turn, got it here")
    if not isinstance(content, str):
        raise DataError(f"{where}, content: expected str, got {content!r:.60}")
    return {name: entry for name, entry in turn.items() if entry is not None}
