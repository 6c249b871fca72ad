"""Rows in the forms of other projects, ShareGPT's and Alpaca's, read as ours.

A row is looked at where it has neither a prompt nor messages, so that it would be refused without this.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jaxppo.errors import DataError
from jaxppo.planning.datasets.rows import Row

_LOG = logging.getLogger(__name__)

_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
"""ShareGPT's names of roles; all other names stay as they are."""


def convert_row(row: Row, location: str) -> Row:
    """Return a row of ShareGPT or Alpaca with `messages`, or with `prompt` and `completion`; others as they are.

    Args:
        row: as it was read.
        location: names the row in errors.

    Raises:
        DataError: a column of such a row has another type; the message names row and field.
    """
    # A row of ours that has such a column beside is not touched.
    if row.get("prompt") is not None or row.get("messages") is not None:
        warn_of_unread_system(row)
        return row
    if isinstance(row.get("conversations"), list):
        warn_once("dataset: conversations is read as messages (ShareGPT)")
        turns = row["conversations"]
        return row | {"messages": [*_system_turns(row, turns), *turns]}
    if row.get("instruction") is not None and "output" in row:
        warn_once(
            "dataset: instruction and input are read as the prompt, output as the completion (Alpaca)"
        )
        return _alpaca_row(row, location)
    return row


def convert_turn(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a turn with `role` and `content`, where it has ShareGPT's `from` and `value`; others as they are."""
    if "role" in turn or "from" not in turn:
        return turn
    role = turn["from"]
    # A role that is no text is refused later, by a message that shows it.
    converted = {"role": _SHAREGPT_ROLES.get(role, role) if isinstance(role, str) else role}
    converted |= {name: entry for name, entry in turn.items() if name not in ("from", "value")}
    if "value" in turn:
        converted["content"] = turn["value"]
    return converted


def _alpaca_row(row: Row, location: str) -> Row:
    for name in ("instruction", "input", "output"):
        if not isinstance(row.get(name) or "", str):
            raise DataError(f"{location}: field '{name}': expected str, got {row[name]!r:.60}")
    prompt = "\n\n".join(text for text in (row["instruction"], row.get("input")) if text)
    # LLaMA-Factory's column: earlier questions, each with its answer.
    history = []
    for pair in row.get("history") or ():
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise DataError(
                f"{location}: field 'history': expected pairs of question and answer, got {pair!r:.60}"
            )
        history.append({"role": "user", "content": pair[0]})
        history.append({"role": "assistant", "content": pair[1]})
    converted = row | {"prompt": prompt}
    if row["output"] is not None:
        converted["completion"] = row["output"]
    turns = [*_system_turns(row, history), *history]
    # A row that is a question alone stays a text, so that
    # models without a chat template can learn from it.
    if turns:
        converted["messages"] = [*turns, {"role": "user", "content": prompt}]
    return converted


def _system_turns(row: Row, turns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the column `system` of a row as its first turn; nothing where the turns begin with one."""
    system = row.get("system")
    if not isinstance(system, str) or not system:
        return []
    if turns and isinstance(turns[0], Mapping) and convert_turn(turns[0]).get("role") == "system":
        return []
    return [{"role": "system", "content": system}]


def warn_of_unread_system(row: Row) -> None:
    """Warn once of a column `system` that is none of a form which reads it."""
    turns = row.get("messages")
    if _system_turns(row, turns if isinstance(turns, list) else ()):
        warn_once(
            "dataset: the model does not get the column system; it gets --system_prompt, or a turn of the system that "
            "prompt or messages begin with"
        )


@cache
def warn_once(message: str) -> None:
    """Warn, unless the same was said before: of every row, or by training and evaluation."""
    _LOG.warning(message)
