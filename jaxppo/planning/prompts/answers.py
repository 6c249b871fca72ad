"""The plan in an answer: what models write around it, thinking before it and marks at both ends, is left out."""

import re
from itertools import islice

from jaxppo.planning.language.plans import Span

_OPEN = "<think>"
_CLOSE = "</think>"
_FENCE = "```"
_MARK = re.compile(r"`{3,}+|</?plan>|\[plan(?: end)?\]", re.IGNORECASE)
_PAIRS = {"<plan>": "</plan>", "[plan]": "[plan end]"}
# Fences within a line are no ends of a block: only the name of a language may stand beside the first.
_FENCED = re.compile(
    r"^[ \t\r]*+```[ \t]*+[A-Za-z0-9_+-]*+[ \t\r]*+\n(.*)^[ \t\r]*+```[ \t\r]*+$",
    re.MULTILINE | re.DOTALL,
)


def plan_span(text: str) -> Span:
    r"""Return where the part of an answer stands that should be a plan, without looking into it.

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
    start = _after_thinking(text)
    # With tags that are not those of one thinking part, all
    # of the text is the plan, and cannot be read as one.
    if start is None:
        return 0, len(text)
    return _marked(text, start)


def _after_thinking(text: str) -> int | None:
    """Return where the thinking ends; None where the tags are not those of one thinking part."""
    n_opened = text.count(_OPEN)
    n_closed = text.count(_CLOSE)
    if not n_opened and not n_closed:
        return 0
    if n_closed != 1 or n_opened > 1:
        return None
    # Without `<think>` the answer begins inside: some chat templates end the prompt with it.
    if n_opened == 1 and not text.lstrip(" \t\r\n").startswith(_OPEN):
        return None
    return text.index(_CLOSE) + len(_CLOSE)


def _marked(text: str, start: int) -> Span:
    """Return where the only marked block is, from a place on; all of it where there is another mark, or none."""
    # A third mark decides already, so no more are looked for.
    marks = list(islice(_MARK.finditer(text, start), 3))
    if len(marks) == 2:
        first, second = marks
        closing_mark = _PAIRS.get(first[0].lower())
        if second[0].lower() == closing_mark:
            return first.end(), second.start()
        if first[0] == second[0] == _FENCE:
            # Of the text from `start` on: what comes after the thinking begins a line.
            block = _FENCED.search(text[start:])
            if block is not None:
                return start + block.start(1), start + block.end(1)
    return start, len(text)
