"""Find the steps in what a model wrote, and the lists that they make, by the lines that they stand in.

A step counts where it begins its line, behind no more than a label (a number, a bullet, `then`), or ends a numbered
one. What is said behind it, and actions in the middle of a sentence, are no steps. `docs/judge_plans.md` has the rules.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.language.plans import NAME_PATTERN, Action, Span
from jaxppo.planning.language.task import Problem

_DASHES = dict.fromkeys((*range(0x2010, 0x2016), 0x2212, 0xFE63, 0xFF0D), "-")
_BLANKS = dict.fromkeys((0xA0, 0x1680, 0x202F, 0x205F, 0x3000, *range(0x2000, 0x200B)), " ")
_QUOTES = dict.fromkeys((0xAB, 0xBB, *range(0x201C, 0x2020)), '"') | dict.fromkeys(range(0x2018, 0x201C), "'")
_FULL_WIDTH = {0xFF08: "(", 0xFF09: ")", 0xFF0C: ","}
_INVISIBLE = dict.fromkeys((0x200B, 0xFEFF), None)
_CHARACTERS = _DASHES | _BLANKS | _QUOTES | _FULL_WIDTH | _INVISIBLE
_LINE_BREAK = re.compile(r"\\\\|\\\n|<br ?/?>", re.IGNORECASE)
_ESCAPED = re.compile(r"\\([_\-#&%$])")
_LATEX = re.compile(r"\\(?:[A-Za-z]++\{?|[()\[\]])")
_EMPHASIS = re.compile(r"\*++|(?<!`)`{1,2}+(?!`)|\$++|(?<![\w-])_+(?=\w)|(?<=\w)_+(?![\w-])|</?[bi]>|</?code>")

_IN_PARENTHESES = re.compile(rf"\(\s*+({NAME_PATTERN}(?:[\s,]++{NAME_PATTERN})*+)\s*+\)")
_JSON_STEP = (
    r'"(?:action|name|operator|op)"\s*+:\s*+"({operators})"\s*+,\s*+'
    r'"(?:args|arguments|parameters|params|objects)"\s*+:\s*+\[([^\[\]{{}}]{{0,1000}}+)\]'
)
_WORDS = r"step|steps|action|actions|move|then|next|first|firstly|second|third|finally|lastly|and|now|after that|plan"
_LABELS = rf'[^\w()]*+(?:(?:(?:{_WORDS})(?!\w)|\d++|[a-z](?=[.)])|(?<=")\w++")[^\w(]*+)*+'
_LABEL = re.compile(rf"(?:[^()\n]{{0,200}}:)?{_LABELS}", re.IGNORECASE)
"""What may stand in front of a step in its line."""
_BETWEEN = re.compile(rf"(?!\s*+:){_LABELS}", re.IGNORECASE)
"""What may stand between two steps of a line; what follows a colon explains the step before it."""
_DENIAL = re.compile(r"\s++(?:is|are|was|would|will|can|could|should|may)(?:\s*+not\b|n't|\s++no\b)", re.IGNORECASE)
_NUMBER = re.compile(r"[^\w()]*+(?:(?:step|action|move)s?[^\w()]*+)?(\d{1,6}+)(?![\w-])", re.IGNORECASE)
_CLOSING = re.compile(r"[^\w()]*+")
_SECTION = re.compile(r"^\s*+(?:#|-{3,}+\s*+$|={3,}+\s*+$|`{3,})|:[^\w]*+$")
_REJECTION = re.compile(
    r"\b(?:wrong|instead|no|not|n't|wait|however|fails?|failed|actually|mistakes?|invalid|incorrect|correct(?:ed|ion)?|"
    r"sorry|retry|attempt|again|but|revised?|alternatively)\b",
    re.IGNORECASE,
)


_MOST_LISTS = 200


class FoundStep(NamedTuple):
    """A step, and where it stands."""

    span: Span
    action: Action


class _Line(NamedTuple):
    """A line with the steps that count in it.

    Attributes:
        number: its number in a list; None where it has none.
        indent: its blanks in front.
        steps: what counts; none in a line of words.
        text: the line.
        is_denied: it says of a step that it is not possible.
    """

    number: int | None
    indent: int
    steps: tuple[Action, ...]
    text: str
    is_denied: bool


def plain(text: str) -> str:
    """Write a text without typography: unicode dashes, blanks and quotes, emphasis, LaTeX commands."""
    text = _LINE_BREAK.sub("\n", text.translate(_CHARACTERS))
    return _EMPHASIS.sub("", _LATEX.sub(" ", _ESCAPED.sub(r"\1", text)))


class StepFinder:
    """Finds the steps of a domain.

    Args:
        problem: its actions and objects.
        sentences: how they are written in English, where that is known.
    """

    def __init__(self, problem: Problem, sentences: Sentences | None = None):
        self._problem, self._sentences = problem, sentences
        names = sentences.names if sentences is not None else {}
        self._objects: Mapping[str, str] = {**names, **{name: name for name in problem.objects}}

    def lists(self, text: str) -> list[tuple[Action, ...]]:
        """Return the lists of steps in a text without typography, in their order.

        A numbered list begins with 0 or 1. A list of fewer than half the steps of the longest before it, of no others
        and in their order, speaks about that one. Of very many lists the last are looked at.
        """
        lists: list[_List] = []
        heading, after_blank = None, False
        for line in self._lines(text):
            if line.steps:
                if line.number is None and heading is not None:
                    line = line._replace(number=heading, indent=0)
                heading = None
                if not lists or not lists[-1].take(line):
                    lists.append(_List(list(line.steps), line.number, line.indent, line.steps, line.number))
            elif lists and line.is_denied and line.number == (lists[-1].number or 0) + 1:
                lists[-1].number = line.number
            elif line.number is not None and not (lists and line.indent > lists[-1].indent):
                heading = line.number
            elif lists and _separates(line, lists[-1], after_blank):
                lists[-1].is_closed = True
            after_blank = not line.text.strip()
        kept: list[tuple[Action, ...]] = []
        longest: tuple[Action, ...] = ()
        for found in lists[-_MOST_LISTS:]:
            steps = tuple(found.steps)
            if found.first in (None, 0, 1) and not _speaks_about(steps, longest):
                kept.append(steps)
                longest = max(longest, steps, key=len)
        return kept

    def _lines(self, text: str) -> Iterator[_Line]:
        found = list(self._find(text))
        place, start = 0, 0
        for line in text.split("\n"):
            end = start + len(line)
            own = []
            while place < len(found) and found[place].span[0] < end:
                own.append(found[place])
                place += 1
            number = _NUMBER.match(line)
            indent = len(line) - len(line.lstrip())
            counting = list(_counting(text, start, end, own, number is not None)) if own else []
            steps = tuple(step.action for step in counting if not _DENIAL.match(text, step.span[1]))
            is_denied = len(steps) < len(counting)
            yield _Line(int(number[1]) if number else None, indent, steps, line, is_denied)
            start = end + 1

    def _find(self, text: str) -> list[FoundStep]:
        """Find what reads as a step, wherever it stands; those that the domain knows before others."""
        found = [*self._in_json(text), *self._functional(text), *self._in_parentheses(text)]
        if self._sentences is not None:
            found += [FoundStep(*step) for step in self._sentences.find(text)]
        found += self._bare(text)
        known = _without_overlaps(found)
        return known or [FoundStep(one.span(), tuple(_words(one[1]))) for one in _IN_PARENTHESES.finditer(text)]

    def _in_parentheses(self, text: str) -> Iterator[FoundStep]:
        for match in _IN_PARENTHESES.finditer(text):
            name, *arguments = _words(match[1])
            action = self._action(name, arguments)
            if action is not None:
                yield FoundStep(match.span(), action)

    def _functional(self, text: str) -> Iterator[FoundStep]:
        for match in self._call.finditer(text):
            parts = match[2].split(",") if "," in match[2] else match[2].split()
            yield FoundStep(match.span(), self._known(match[1], [" ".join(part.split()) for part in parts]))

    def _in_json(self, text: str) -> Iterator[FoundStep]:
        for match in self._json.finditer(text):
            arguments = [part.strip(" \t\n\"'") for part in match[2].split(",")]
            yield FoundStep(match.span(), self._known(match[1], arguments))

    def _bare(self, text: str) -> Iterator[FoundStep]:
        """Find `stack a b`: the right number of objects, and nothing more up to a stop, a comment or the line's end."""
        for match in self._bare_step.finditer(text):
            arguments = [self._objects[name] for name in _words(match[2])]
            name = self._operators[_folded(match[1])]
            if len(arguments) == len(self._problem.domain.actions[name].parameters):
                yield FoundStep(match.span(), (name, *arguments))

    def _action(self, name: str, arguments: Sequence[str]) -> Action | None:
        return self._known(name, arguments) if _folded(name) in self._operators else None

    def _known(self, name: str, arguments: Sequence[str]) -> Action:
        """Write a step in the names of the domain; what is no object stays as it is, and surplus words go."""
        operator = self._operators[_folded(name)]
        arguments = [argument.lower() for argument in arguments if argument]
        objects = [self._objects[argument] for argument in arguments if argument in self._objects]
        count = len(self._problem.domain.actions[operator].parameters)
        if len(arguments) > count and len(objects) == count:
            return (operator, *objects)
        return (operator, *(self._objects.get(argument, argument) for argument in arguments))

    @cached_property
    def _operators(self) -> dict[str, str]:
        return {_folded(name): name for name in self._problem.domain.actions}

    @cached_property
    def _operator_pattern(self) -> str:
        names = sorted(self._problem.domain.actions, key=len, reverse=True)
        return "|".join("[-_ ]?".join(map(re.escape, re.split("[-_]+", name))) for name in names) or "(?!)"

    @cached_property
    def _call(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![\w-])({self._operator_pattern}) ?\(([\w\s,\-]{{0,1000}}+)\)", re.IGNORECASE)

    @cached_property
    def _json(self) -> re.Pattern[str]:
        return re.compile(_JSON_STEP.format(operators=self._operator_pattern), re.IGNORECASE)

    @cached_property
    def _bare_step(self) -> re.Pattern[str]:
        objects = "|".join(map(re.escape, sorted(self._problem.objects, key=len, reverse=True))) or "(?!)"
        arguments = rf"((?:[ \t,|]++(?:{objects})(?![\w-]))*)"
        behind = r"(?=[ \t]*+(?:$|[.,;:|()\[\]\"'!-]))"
        return re.compile(
            rf"(?<![\w-])({self._operator_pattern})(?![\w-]){arguments}{behind}", re.IGNORECASE | re.MULTILINE
        )


def _words(text: str) -> list[str]:
    return text.lower().replace(",", " ").replace("|", " ").split()


def _folded(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _without_overlaps(found: Sequence[FoundStep]) -> list[FoundStep]:
    """Keep, of steps that overlap, the one that begins first, and of those the first in the list."""
    kept: list[FoundStep] = []
    for step in sorted(found, key=lambda step: step.span[0]):
        if not kept or step.span[0] >= kept[-1].span[1]:
            kept.append(step)
    return kept


def _counting(text: str, start: int, end: int, found: Sequence[FoundStep], is_numbered: bool) -> Iterator[FoundStep]:
    """Yield the steps at the beginning of a line, with no more than labels between them; else one at its end."""
    place, in_front = start, _LABEL
    for step in found:
        if not in_front.fullmatch(text, place, step.span[0]):
            break
        place, in_front = step.span[1], _BETWEEN
        yield step
    if in_front is _LABEL and is_numbered and _CLOSING.fullmatch(text, found[-1].span[1], end):
        yield found[-1]


@dataclass(slots=True)
class _List:
    """Steps that belong together, and how the list goes on.

    Attributes:
        steps: so far.
        number: of the last line; None where the lines have none.
        indent: of its lines.
        last: the steps of the last line.
        first: the number of the first line.
        is_closed: something has ended it, unless the next line has the next number.
    """

    steps: list[Action]
    number: int | None
    indent: int
    last: tuple[Action, ...]
    first: int | None
    is_closed: bool = False

    def take(self, line: _Line) -> bool:
        """Take a line as the next of this list, or as a detail of its last one; whether it was either."""
        if self.number is None or line.number is None:
            is_detail = self.number is not None and (line.indent > self.indent or line.steps == self.last)
            if is_detail:
                return True
            if self.is_closed or (self.number is None) != (line.number is None):
                return False
        elif line.number == self.number and line.indent == self.indent and line.steps != self.last:
            if self.is_closed:
                return False
        elif (line.number == self.number and line.steps == self.last) or (
            line.indent > self.indent and line.number <= self.number
        ):
            return True
        elif line.number != self.number + 1:
            return False
        self.steps += line.steps
        self.number, self.last, self.is_closed = line.number, line.steps, False
        return True


def _speaks_about(steps: Sequence[Action], plan: Sequence[Action]) -> bool:
    """Return whether steps are fewer than half of those of a plan, in their order."""
    rest = iter(plan)
    return 2 * len(steps) < len(plan) and all(step in rest for step in steps)


def _separates(line: _Line, before: _List, after_blank: bool) -> bool:
    """Return whether a line of words ends a list: a heading, a rejection, or a paragraph of its own."""
    if not line.text.strip() or line.indent > before.indent:
        return False
    return after_blank or bool(_SECTION.search(line.text)) or bool(_REJECTION.search(line.text))
