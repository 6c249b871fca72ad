"""The plan in an answer: what models write around it, thinking before it and marks at both ends, is left out."""

import re
from itertools import islice

from jaxppo.planning.language.plans import Span

_OPEN, _CLOSE = "<think>", "</think>"
_FENCE = "```"
_MARK = re.compile(r"`{3,}+|</?plan>|\[plan(?: end)?\]", re.IGNORECASE)
_PAIRS = {"<plan>": "</plan>", "[plan]": "[plan end]"}
_LANGUAGE = re.compile(r"[ \t]*+[A-Za-z0-9_+-]*+[ \t\r]*+")


def plan_text(text: str) -> str:
    r"""Return the part of an answer that should be a plan, without looking into it.

    First the thinking: where the text has `</think>` once, and `<think>` at most once and then at the very start,
    everything up to `</think>` is cut. A text with these tags in any other way is returned whole.

    Then the marks. These are ```` ``` ````, `<plan>`, `</plan>`, `[PLAN]` and `[PLAN END]`, in any case. Where there
    are two in all, and they are the ends of one block, the plan is what lies between them; ```` ``` ```` has to stand
    on lines of its own, the first with the name of a language or without. With other marks the text is returned whole.

    As no prompt style writes such tags and marks, what is returned with them cannot be read, save for those in
    comments of PDDL, which are no part of a plan anyway. The time is linear in the length.

    Args:
        text: what a model wrote.
    """
    start, end = plan_span(text)
    return text[start:end]


def plan_span(text: str) -> Span:
    """Return where `plan_text` stands in an answer."""
    start = _after_thinking(text)
    return (0, len(text)) if start is None else _marked(text, start)


def _after_thinking(text: str) -> int | None:
    """Return where the thinking ends; None where the tags are not those of one thinking part."""
    opened, closed = text.count(_OPEN), text.count(_CLOSE)
    if not opened and not closed:
        return 0
    starts = text.lstrip(" \t\r\n").startswith(_OPEN)
    if closed != 1 or opened > 1 or (opened and not starts):
        return None
    return text.index(_CLOSE) + len(_CLOSE)


def _marked(text: str, start: int) -> Span:
    """Return where the only marked block is, from a place on; all of it where there is another mark, or none."""
    marks = list(islice(_MARK.finditer(text, start), 3))
    if len(marks) == 2:
        first, second = (mark[0].lower() for mark in marks)
        if _PAIRS.get(first) == second:
            return marks[0].end(), marks[1].start()
        if first == second == _FENCE:
            return _fenced(text, start, marks[0].span(), marks[1].span())
    return start, len(text)


def _fenced(text: str, start: int, first: Span, second: Span) -> Span:
    """Return what lies between two fences, if each has a line of its own; else all of the text from `start` on."""
    begin, line_ends = text.find("\n", first[1]) + 1, text.find("\n", second[1])
    close = text.rfind("\n", start, second[0]) + 1
    before = text[max(start, text.rfind("\n", start, first[0]) + 1) : first[0]]
    after = text[second[1] : len(text) if line_ends < 0 else line_ends]
    alone = not (before + text[close : second[0]] + after).strip(" \t\r")
    if 0 < begin <= close and alone and _LANGUAGE.fullmatch(text, first[1], begin - 1):
        return begin, close
    return start, len(text)
