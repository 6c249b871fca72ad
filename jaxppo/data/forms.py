"""Rows in the forms of other projects, ShareGPT's and Alpaca's, read as ours.

A row is looked at where it has neither a prompt nor messages, so that it would be refused without this.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jaxppo.errors import DataError

_LOG = logging.getLogger(__name__)

Row = dict[str, Any]

_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
"""ShareGPT's names of roles; others are taken as they are."""


def usual_form(row: Row, where: str) -> Row:
    """Return a row of ShareGPT or Alpaca with `messages`, or with `prompt` and `completion`; others as they are.

    Args:
        row: as it was read.
        where: names the row in errors.

    Raises:
        DataError: a column of such a row has another type; the message names row and field.
    """
    if row.get("prompt") is not None or row.get("messages") is not None:
        return row
    if isinstance(row.get("conversations"), list):
        _tell("conversations is read as messages (ShareGPT)")
        turns = row["conversations"]
        return row | {"messages": [*_system(row, turns), *turns]}
    if row.get("instruction") is not None and "output" in row:
        _tell("instruction and input are read as the prompt, output as the completion (Alpaca)")
        return _alpaca_row(row, where)
    return row


def usual_turn(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a turn with `role` and `content`, where it has ShareGPT's `from` and `value`; others as they are."""
    if "role" in turn or "from" not in turn:
        return turn
    others = {name: entry for name, entry in turn.items() if name not in ("from", "value")}
    role = turn["from"]
    return {"role": _SHAREGPT_ROLES.get(role, role) if isinstance(role, str) else role} | others | _content(turn)


def _content(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": turn["value"]} if "value" in turn else {}


def _alpaca_row(row: Row, where: str) -> Row:
    for name in ("instruction", "input", "output"):
        if not isinstance(row.get(name) or "", str):
            raise DataError(f"{where}: field '{name}': expected str, got {row[name]!r:.60}")
    prompt = "\n\n".join(text for text in (row["instruction"], row.get("input")) if text)
    answer = {} if row["output"] is None else {"completion": row["output"]}
    earlier = []
    for pair in row.get("history") or ():
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise DataError(f"{where}: field 'history': expected pairs of question and answer, got {pair!r:.60}")
        earlier += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    before = [*_system(row, earlier), *earlier]
    turns = {"messages": [*before, {"role": "user", "content": prompt}]} if before else {}
    return row | {"prompt": prompt} | answer | turns


def _system(row: Row, turns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the column `system` of a row as its first turn, unless the turns begin with one."""
    first = usual_turn(turns[0]) if turns and isinstance(turns[0], Mapping) else {}
    system = row.get("system")
    if not isinstance(system, str) or not system or first.get("role") == "system":
        return []
    return [{"role": "system", "content": system}]


@cache
def _tell(message: str) -> None:
    """Say once how rows are read."""
    _LOG.warning(f"dataset: {message}")
