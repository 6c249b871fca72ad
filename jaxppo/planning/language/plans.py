"""Plan text to actions and back, and the overlap of two plans."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from jaxppo.planning.language.verdicts import PlanError

__all__ = [
    "Action",
    "ParsedPlan",
    "ParsedTimedPlan",
    "PlanError",
    "TimedAction",
    "format_action",
    "format_timed_action",
    "lccs_length",
    "lcs_length",
    "parse_action",
    "parse_plan_text",
    "parse_timed_plan_text",
]

Action = tuple[str, ...]
"""The operator's name followed by its arguments, all lower case."""

Span = tuple[int, int]
"""A piece of a text: the index of its first character, and the index after its last."""

# ASCII only and possessive (`*+`): look-alike letters
# are refused, and hostile text costs linear time.
NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_-]*+"
_SPACE = r"[ \t\r\n]"
_COMMENT = re.compile(r";[^\n]*+\n")
_LAST_COMMENT = re.compile(r";++[ \t\r]*+(?:[A-Za-z_][^\n]*+)?")
_STEP_PATTERN = rf"{_SPACE}*+\({_SPACE}*+({NAME_PATTERN}(?:{_SPACE}++{NAME_PATTERN})*+){_SPACE}*+\)"
_STEP = re.compile(_STEP_PATTERN)
# Decimals without sign or exponent. Nine digits on each side: a double, which is what VAL computes
# with, keeps a thousandth (VAL's tolerance) apart from the next one there.
_DECIMAL = r"([0-9]{1,9}+(?:\.[0-9]{1,9}+)?)"
_TIMED_STEP = re.compile(
    rf"{_SPACE}*+{_DECIMAL}{_SPACE}*+:{_STEP_PATTERN}(?:{_SPACE}*+\[{_SPACE}*+{_DECIMAL}{_SPACE}*+\])?"
)
_BLANK = re.compile(rf"{_SPACE}*+")
# VAL's lexer reads this word at the very start of a line as a header (the planner's time).
_TIME_WORD = re.compile(r"(?im)^time(?![\w-])")


@dataclass(frozen=True, slots=True)
class ParsedPlan:
    """The steps read from a plan text.

    Attributes:
        actions: the steps before the first error (all steps where there is none).
        error: the kind of the first error, or None.
        error_step: 1-based index of the step where reading stopped, or None.
        spans: where each action stands in the text; after an error also the text that could not be read, up to the end
            of its step or line.
    """

    actions: tuple[Action, ...]
    error: PlanError | None = None
    error_step: int | None = None
    spans: tuple[Span, ...] = field(default=(), compare=False, repr=False)

    @property
    def steps(self) -> tuple[Action, ...]:
        """The actions, under the name that timed plans have for theirs."""
        return self.actions

    @classmethod
    def unreadable(cls, actions: Sequence[Action], spans: Sequence[Span]) -> "ParsedPlan":
        """Return the steps before one that cannot be read, whose place is the last of `spans`."""
        return cls(tuple(actions), PlanError.SYNTAX, len(actions) + 1, tuple(spans))


class TimedAction(NamedTuple):
    """A step of a temporal plan.

    Attributes:
        start: when it starts, from 0 on.
        action: the operator and its arguments.
        duration: how long it takes; None where the text states nothing.
    """

    start: Decimal
    action: Action
    duration: Decimal | None = None


@dataclass(frozen=True, slots=True)
class ParsedTimedPlan:
    """The steps read from the text of a temporal plan; `error` and `error_step` as in `ParsedPlan`."""

    steps: tuple[TimedAction, ...]
    error: PlanError | None = None
    error_step: int | None = None

    @property
    def actions(self) -> tuple[Action, ...]:
        """The steps without their times, in the order of the text."""
        return tuple(step.action for step in self.steps)


def format_action(action: Action) -> str:
    """Write an action as PDDL: `("pick-up", "a")` becomes `(pick-up a)`."""
    return f"({' '.join(action)})"


def format_timed_action(step: TimedAction) -> str:
    """Write a timed step as PDDL: `0.5: (fire a o) [5]`."""
    duration = "" if step.duration is None else f" [{_plain(step.duration)}]"
    return f"{_plain(step.start)}: {format_action(step.action)}{duration}"


def _plain(number: Decimal) -> str:
    """Write digits and a point, never an exponent."""
    return f"{number.normalize():f}"


def parse_action(text: str) -> Action:
    """Read one action written as PDDL.

    Raises:
        ValueError: the text is not exactly one action, or no text.
    """
    plan = parse_plan_text(text) if isinstance(text, str) else None
    if plan is None or plan.error is not None or len(plan.actions) != 1:
        raise ValueError(f"expected one action such as '(pick-up a)', got {text!r}")
    return plan.actions[0]


def parse_plan_text(text: str) -> ParsedPlan:
    """Read a PDDL plan strictly: `(action args)` one after another, and nothing else.

    Any case, tabs, CRLF, `;` comments, several steps on a line and a step over several lines are read; everything
    else (prose, time stamps, missing or empty parentheses, characters that no PDDL name has) is an error.

    Args:
        text: the plan; it is never interpreted beyond this.

    Returns:
        The steps before the first error, and the error.
    """
    text = _without_comments(text)
    actions = []
    spans = []
    position = 0
    while step := _STEP.match(text, position):
        actions.append(tuple(step[1].lower().split()))
        # The match begins with the blanks before the step.
        spans.append((text.index("(", position), step.end()))
        position = step.end()
    if _BLANK.fullmatch(text, position):
        return ParsedPlan(tuple(actions), spans=tuple(spans))
    spans.append(rest_of_line(text, position))
    return ParsedPlan.unreadable(actions, spans)


def trimmed(text: str, start: int, end: int) -> Span:
    """Return the span of a piece of text without the blanks around it; blanks alone give an empty span at their end."""
    piece = text[start:end]
    trimmed_start = end - len(piece.lstrip())
    trimmed_end = start + len(piece.rstrip())
    return trimmed_start, max(trimmed_start, trimmed_end)


def rest_of_line(text: str, position: int) -> Span:
    """Return the span from the first non-blank character at or after a position to the end of its line."""
    start = _BLANK.match(text, position).end()  # pyright: ignore[reportOptionalMemberAccess] # it matches everywhere
    line_end = text.find("\n", start)
    if line_end < 0:
        line_end = len(text)
    return start, line_end


def parse_timed_plan_text(text: str) -> ParsedTimedPlan:
    """Read a temporal plan strictly: `0.5: (action args) [5.0]` one after another, and nothing else.

    Every step has a time stamp, in any order; a duration is optional here. Both are decimals such as `3` or `0.001`:
    no sign, no exponent, at most nine digits on each side of the point. Layout and comments as for `parse_plan_text`.

    Args:
        text: the plan.

    Returns:
        The steps before the first error, and the error.
    """
    text = _without_comments(text)
    steps = []
    position = 0
    while match := _TIMED_STEP.match(text, position):
        start_text, step_text, duration_text = match.groups()
        action = tuple(step_text.lower().split())
        duration = None if duration_text is None else Decimal(duration_text)
        steps.append(TimedAction(Decimal(start_text), action, duration))
        position = match.end()
    if _BLANK.fullmatch(text, position):
        return ParsedTimedPlan(tuple(steps))
    return ParsedTimedPlan(tuple(steps), PlanError.SYNTAX, len(steps) + 1)


def _without_comments(text: str) -> str:
    """Blank out the comments, and mark words that VAL reads differently so that no step matches there.

    Every character keeps its index, because spans refer to the text as it was given; only a last comment is cut.

    VAL takes a `;` with no newline after it for a stray character and reads on, so a comment on a last line without
    newline can add steps or break the plan there. Here it is a comment only where VAL would stop at it without harm:
    blank, or starting with a word.
    """
    lines, newline, last_line = text.rpartition("\n")
    step_text, semicolon, _ = last_line.partition(";")
    if semicolon and _LAST_COMMENT.fullmatch(last_line, len(step_text)):
        last_line = step_text
    blanked = _COMMENT.sub(lambda comment: " " * (len(comment[0]) - 1) + "\n", lines + newline)
    # No step matches a `!`, and four of them are as long as the word.
    return _TIME_WORD.sub("!!!!", blanked + last_line)


def lcs_length(a: Sequence[Action], b: Sequence[Action]) -> int:
    """Compute the length of the longest common subsequence (gaps allowed) of two plans.

    `L[i, j] = L[i-1, j-1] + 1` where `a[i] == b[j]`, else `max(L[i-1, j], L[i, j-1])`.

    Source: longest common subsequence; Cormen et al., Introduction to Algorithms (4th edition, 2022), section 14.4.
    """
    # Two rows of the table suffice: `above` is L[i-1, :] while `row` becomes L[i, :].
    above = [0] * (len(b) + 1)
    for step_a in a:
        row = [0]
        for j, step_b in enumerate(b):
            row.append(above[j] + 1 if step_a == step_b else max(above[j + 1], row[j]))
        above = row
    return above[-1]


def lccs_length(a: Sequence[Action], b: Sequence[Action]) -> int:
    """Compute the length of the longest common contiguous run (no gaps) of two plans.

    `R[i, j] = R[i-1, j-1] + 1` where `a[i] == b[j]`, else 0; the result is the largest `R`.

    Source: longest common substring; Gusfield, Algorithms on Strings, Trees and Sequences (1997).
    """
    longest = 0
    above = [0] * (len(b) + 1)
    for step_a in a:
        row = [0] + [above[j] + 1 if step_a == step_b else 0 for j, step_b in enumerate(b)]
        # A run may end anywhere, so the largest entry may be in any row.
        longest = max(longest, max(row))
        above = row
    return longest
