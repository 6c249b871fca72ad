"""Find the steps in what a model wrote, and the lists that they make, by the lines that they stand in.

A step counts where it begins its line, after no more than a label (a number, a bullet, `then`), or ends a numbered
one. What is said after it, and actions in the middle of a sentence, are no steps. `docs/judge_plans.md` has the rules.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.language.plans import NAME_PATTERN, Action, Span
from jaxppo.planning.language.task import Problem

# Typography that models write in place of plain characters,
# by code point: dashes, blanks, quotes, CJK punctuation.
_DASHES = dict.fromkeys((*range(0x2010, 0x2016), 0x2212, 0xFE63, 0xFF0D), "-")
_BLANKS = dict.fromkeys((0xA0, 0x1680, 0x202F, 0x205F, 0x3000, *range(0x2000, 0x200B)), " ")
_QUOTES = dict.fromkeys((0xAB, 0xBB, *range(0x201C, 0x2020)), '"') | dict.fromkeys(
    range(0x2018, 0x201C), "'"
)
_FULL_WIDTH = {0xFF08: "(", 0xFF09: ")", 0xFF0C: ","}
_INVISIBLE = dict.fromkeys((0x200B, 0xFEFF), None)
_CHARACTERS = _DASHES | _BLANKS | _QUOTES | _FULL_WIDTH | _INVISIBLE
# LaTeX and HTML line breaks, escapes of Markdown, commands of LaTeX, emphasis of Markdown and HTML.
_LINE_BREAK = re.compile(r"\\\\|\\\n|<br ?/?>", re.IGNORECASE)
_ESCAPED = re.compile(r"\\([_\-#&%$])")
_LATEX = re.compile(r"\\(?:[A-Za-z]++\{?|[()\[\]])")
_EMPHASIS = re.compile(
    r"\*++|(?<!`)`{1,2}+(?!`)|\$++|(?<![\w-])_+(?=\w)|(?<=\w)_+(?![\w-])|</?[bi]>|</?code>"
)

_NOTHING = "(?!)"
"""The pattern that matches nothing: `|` of no alternatives would match everything."""
_IN_PARENTHESES = re.compile(rf"\(\s*+({NAME_PATTERN}(?:[\s,]++{NAME_PATTERN})*+)\s*+\)")
# What JSON that holds steps begins with; `[PLAN]` and `{x}` are none.
_JSON_START = re.compile(r'[\[{]\s*+["\[{]')
_TRAILING_COMMA = re.compile(r",(?=\s*+[\]}])")
_NO_ARGUMENT = re.compile(r"[^\w\s-]")
_JSON_NAMES = ("action", "name", "operator", "op", "action_name", "operation")
_JSON_ARGUMENTS = ("args", "arguments", "parameters", "params", "objects")
# A step that has other words than these before it in
# its line is spoken about, and not part of a plan.
_WORDS = r"step|steps|action|actions|move|then|next|first|firstly|second|third|finally|lastly|and|now|after that|plan"
# The outer repetition is not possessive: Python before 3.11.5 matches nothing then, since the
# alternatives within can backtrack (cpython issue 106052). Each of them begins in its own way.
_LABELS = rf'[^\w()]*+(?:(?:(?:{_WORDS})(?!\w)|\d++|[a-z](?=[.)])|(?<=")\w++")[^\w(]*+)*'
_LABEL = re.compile(rf"(?:[^()\n]{{0,200}}:)?{_LABELS}", re.IGNORECASE)
"""What may stand before a step in its line."""
_BETWEEN = re.compile(rf"(?!\s*+:){_LABELS}", re.IGNORECASE)
"""What may stand between two steps of a line; what follows a colon explains the step before it."""
_DENIAL = re.compile(
    r"\s++(?:is|are|was|would|will|can|could|should|may)(?:\s*+not\b|n't|\s++no\b)", re.IGNORECASE
)
_NUMBER = re.compile(
    r"[^\w()]*+(?:(?:step|action|move)s?[^\w()]*+)?(\d{1,6}+)(?![\w-])", re.IGNORECASE
)
_CLOSING = re.compile(r"[^\w()]*+")
_SECTION = re.compile(r"^\s*+(?:#|-{3,}+\s*+$|={3,}+\s*+$|`{3,})|:[^\w]*+$")
_REJECTION = re.compile(
    r"\b(?:wrong|instead|no|not|n't|wait|however|fails?|failed|actually|mistakes?|invalid|incorrect|correct(?:ed|ion)?|"
    r"sorry|retry|attempt|again|but|revised?|alternatively)\b",
    re.IGNORECASE,
)

_MAX_LISTS = 200
"""Of an answer, the last ones are looked at: each is compared with the longest before it."""

_MAX_BROKEN_JSON = 300
"""Beginnings of JSON that turn out to be none: each may be read up to the end of the text."""


class FoundStep(NamedTuple):
    """A step, and where it stands."""

    span: Span
    action: Action


class _Line(NamedTuple):
    """A line with the steps that count in it.

    Attributes:
        number: its number in a list; None where it has none.
        indent: its blanks at the beginning.
        steps: what counts; none in a line of words.
        text: the line.
        is_denied: it says of a step that it is not possible.
    """

    number: int | None
    indent: int
    steps: tuple[Action, ...]
    text: str
    is_denied: bool


def without_typography(text: str) -> str:
    """Write a text without typography: unicode dashes, blanks and quotes, emphasis, LaTeX commands."""
    text = text.translate(_CHARACTERS)
    # Escapes before commands and emphasis: an escaped
    # underscore is part of a name, not the start of italics.
    text = _LINE_BREAK.sub("\n", text)
    text = _ESCAPED.sub(r"\1", text)
    text = _LATEX.sub(" ", text)
    return _EMPHASIS.sub("", text)


class StepFinder:
    """Finds the steps of a domain.

    Args:
        problem: its actions and objects.
        sentences: how they are written in English, where that is known.
    """

    def __init__(self, problem: Problem, sentences: Sentences | None = None):
        self._problem = problem
        self._sentences = sentences
        # What an object may be called, to its name in PDDL, which comes first.
        self._objects: dict[str, str] = dict(sentences.names) if sentences is not None else {}
        self._objects.update((name, name) for name in problem.objects)

    def lists(self, text: str) -> list[tuple[Action, ...]]:
        """Return the lists of steps in a text, in their order.

        A numbered list begins with 0 or 1. A list of fewer than half the steps of the longest before it, of no others
        and in their order, speaks about that one. Of very many lists the last are looked at.
        """
        # Twice: escapes in JSON are no LaTeX, and JSON may be typeset itself, with curly quotes or `pick\\_up`.
        text = self._without_json(without_typography(self._without_json(text)))
        lists = self._all_lists(text)
        plans: list[tuple[Action, ...]] = []
        longest: tuple[Action, ...] = ()
        for step_list in lists[-_MAX_LISTS:]:
            steps = tuple(step_list.steps)
            # A list that begins with 3 is the rest of one
            # whose beginning cannot be read, and no plan.
            if step_list.first_number in (None, 0, 1) and not _is_remark(steps, longest):
                plans.append(steps)
                longest = max(longest, steps, key=len)
        return plans

    def _all_lists(self, text: str) -> list["_StepList"]:
        """Group the lines of a text into lists.

        The text is read once, line by line, with one open list, the last. A line with steps goes on with it where the
        list takes it, and else begins the next. A line without steps can do three things: an item that is called
        impossible is passed over, so that the next number still follows; a number alone (`Step 3:`) is the number of
        the next line that has steps; and words that separate (a heading, `wrong`, a paragraph) close the list.
        """
        lists: list[_StepList] = []
        heading: int | None = None
        after_blank = False
        for line in self._lines(text):
            current = lists[-1] if lists else None
            if line.steps:
                if line.number is None and heading is not None:
                    line = line._replace(number=heading, indent=0)
                heading = None
                if current is None or not current.add(line):
                    lists.append(_StepList(line))
            elif (
                current is not None and line.is_denied and line.number == (current.number or 0) + 1
            ):
                current.number = line.number
            elif line.number is not None and (current is None or line.indent <= current.indent):
                heading = line.number
            elif current is not None and _separates(line, current, after_blank):
                current.is_closed = True
            after_blank = not line.text.strip()
        return lists

    def _without_json(self, text: str) -> str:
        """Write the JSON of a text that holds steps as lines, so that its layout does not matter; the rest stays."""
        text = _TRAILING_COMMA.sub("", text)
        pieces: list[str] = []
        position = 0
        end = 0
        tries = 0
        while tries < _MAX_BROKEN_JSON and (start := _JSON_START.search(text, position)):
            try:
                value, position = _JSON.raw_decode(text, start.start())
                lines = self._json_lines(value)
            except (ValueError, RecursionError):
                # No JSON, or cut off: what lies within may be some.
                position = start.start() + 1
                tries += 1
                continue
            if not self._has_steps("\n".join(lines)):
                continue
            before = text[end : start.start()]
            pieces.append(before)
            # A single step stays in its line, where words before it may make it none.
            if len(lines) > 1 and before.rpartition("\n")[2].strip():
                pieces.append("\n")
            pieces.append("\n".join(lines))
            end = position
        return "".join([*pieces, text[end:]])

    def _json_lines(self, value: Any) -> list[str]:
        """Write a JSON value as lines: a step, a numbered list, or a line or heading for each key of an object."""
        step = self._json_step(value)
        if step is not None:
            return [step]
        if isinstance(value, list):
            lines = [" ".join(self._json_lines(item)) for item in self._json_items(value)]
            if len(lines) > 1 and not all(map(_NUMBER.match, lines)):
                # Numbers, as an item that cannot be read ends a numbered list, and is not passed over.
                lines = [f"{number}. {line}" for number, line in enumerate(lines, 1)]
            return lines
        if isinstance(value, dict):
            lines = []
            for key, item in value.items():
                # `{"stack": ["a", "b"]}`; elsewhere the name is a label, or what is described.
                step = None
                if self._is_action(key) and self._are_objects(item):
                    step = self._json_call(key, {"args": item})
                item_lines = self._json_lines(item)
                if step is not None:
                    lines.append(step)
                elif len(item_lines) == 1:
                    lines.append(f"{key}: {item_lines[0]}")
                else:
                    lines += [f"{key}:", *item_lines]
            return lines
        return str(value).splitlines()

    def _json_items(self, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the items of a list, and of lists within it that are no steps."""
        for value in values:
            if isinstance(value, list) and self._json_step(value) is None:
                yield from self._json_items(value)
            else:
                yield value

    def _json_step(self, value: Any) -> str | None:
        """Write a JSON value that is one step: `["stack", "a", "b"]`, or an object with the name of an action."""
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            # `["noop", "noop"]` is two steps.
            is_action = list(map(self._is_action, value))
            if is_action[0] and not any(is_action[1:]):
                return _call(value[0], value[1:])
        if not isinstance(value, dict):
            return None
        fields = {key.lower(): item for key, item in value.items()}
        step = None
        for key in _JSON_NAMES:
            name = fields.get(key)
            if isinstance(name, str) and self._is_action(name):
                step = self._json_call(name, fields)
            elif isinstance(name, str) and self._has_steps(name):
                step = name
            if step is not None:
                break
        if step is None and any(key in fields for key in _JSON_ARGUMENTS):
            # The name of an action beside arguments, whatever its key is.
            names = [item for item in fields.values() if isinstance(item, str)]
            name = next(filter(self._is_action, names), None)
            step = None if name is None else self._json_call(name, fields)
        number = fields.get("step")
        return f"{number}. {step}" if step is not None and isinstance(number, int) else step

    def _json_call(self, name: str, fields: Mapping[str, Any]) -> str | None:
        """Write the step of an object; its arguments are a list, a text, or in keys of their own."""
        arguments = next((fields[key] for key in _JSON_ARGUMENTS if key in fields), None)
        if arguments is None:
            arguments = {
                key: item
                for key, item in fields.items()
                if isinstance(item, str) and item.lower() in self._objects
            }
        if isinstance(arguments, dict):
            action = self._problem.domain.actions[self.domain_name(name)]
            # Keys in any order, where they are the parameters; else in the order that they have.
            names = [name.lstrip("?") for name, _ in action.parameters]
            keys = {key.lower().lstrip("?"): item for key, item in arguments.items()}
            arguments = [keys[key] for key in (names if keys.keys() == set(names) else keys)]
        elif isinstance(arguments, str):
            arguments = arguments.replace(",", " ").split()
        if not isinstance(arguments, list) or any(
            isinstance(one, list | dict) for one in arguments
        ):
            return None
        return _call(name, list(map(str, arguments)))

    def _are_objects(self, value: Any) -> bool:
        """Return whether a JSON value is a list, a text or an object of names of objects, and nothing else."""
        if isinstance(value, str):
            value = value.replace(",", " ").split()
        elif isinstance(value, dict):
            value = list(value.values())
        return isinstance(value, list) and all(
            isinstance(name, str) and name.lower() in self._objects for name in value
        )

    def _is_action(self, name: str) -> bool:
        return self.domain_name(without_typography(name)) in self._problem.domain.actions

    def _has_steps(self, text: str) -> bool:
        return any(line.steps for line in self._lines(without_typography(text)))

    def _lines(self, text: str) -> Iterator[_Line]:
        """Yield each line with the steps that begin in it and count."""
        # Steps are found in the whole text, as one in
        # parentheses may go over several lines.
        all_steps = self._find(text)
        next_step = 0
        start = 0
        for line in text.split("\n"):
            end = start + len(line)
            line_steps: list[FoundStep] = []
            while next_step < len(all_steps) and all_steps[next_step].span[0] < end:
                line_steps.append(all_steps[next_step])
                next_step += 1
            number = _NUMBER.match(line)
            counted: list[FoundStep] = []
            if line_steps:
                counted = list(_counted_steps(text, start, end, line_steps, number is not None))
            steps = tuple(step.action for step in counted if not _DENIAL.match(text, step.span[1]))
            yield _Line(
                number=int(number[1]) if number else None,
                indent=len(line) - len(line.lstrip()),
                steps=steps,
                text=line,
                is_denied=len(steps) < len(counted),
            )
            start = end + 1

    def _find(self, text: str) -> list[FoundStep]:
        """Find what reads as a step, wherever it stands; those that the domain has before others."""
        # In this order: of readings that begin at one place the
        # first counts, and the more particular are more certain.
        steps = [*self._functional(text), *self._in_parentheses(text)]
        if self._sentences is not None:
            steps += [FoundStep(*step) for step in self._sentences.find(text)]
        steps += self._bare(text)
        if steps:
            return _without_overlaps(steps)
        # No action is the domain's: any `(name ...)` is one,
        # so that answers in other names are judged, as wrong.
        return [
            FoundStep(match.span(), tuple(_words(match[1])))
            for match in _IN_PARENTHESES.finditer(text)
        ]

    def _in_parentheses(self, text: str) -> Iterator[FoundStep]:
        """Find `(stack a b)`."""
        for match in _IN_PARENTHESES.finditer(text):
            name, *arguments = _words(match[1])
            if self.domain_name(name) in self._problem.domain.actions:
                yield FoundStep(match.span(), self._action(name, arguments))

    def _functional(self, text: str) -> Iterator[FoundStep]:
        """Find `stack(a, b)`; with commas, an argument may have several words."""
        for match in self._call_pattern.finditer(text):
            parts = match[2].split(",") if "," in match[2] else match[2].split()
            yield FoundStep(
                match.span(), self._action(match[1], [" ".join(part.split()) for part in parts])
            )

    def _bare(self, text: str) -> Iterator[FoundStep]:
        """Find `stack a b`: the right number of objects, and nothing more up to a stop, a comment or the line's end."""
        for match in self._bare_pattern.finditer(text):
            arguments = [self._objects[name] for name in _words(match[2])]
            operator = self.domain_name(match[1])
            if len(arguments) == self._arity(operator):
                yield FoundStep(match.span(), (operator, *arguments))

    def _action(self, name: str, arguments: Sequence[str]) -> Action:
        """Write a step in the names of the domain; what is no object stays as it is, and surplus words go."""
        operator = self.domain_name(name)
        arguments = [argument.lower() for argument in arguments if argument]
        objects = [self._objects[argument] for argument in arguments if argument in self._objects]
        arity = self._arity(operator)
        # `stack block a on block b`: surplus words go
        # only if the objects alone are the right number.
        if len(arguments) > arity and len(objects) == arity:
            return (operator, *objects)
        return (operator, *(self._objects.get(argument, argument) for argument in arguments))

    def domain_name(self, name: str) -> str:
        """Return what the domain calls an action: `pick-up` for `Pick_Up` and `pickup`; another name stays."""
        # A domain may have both `pick-up` and `pickup`, so what is spelled as one of its actions is that one.
        if name.lower() in self._problem.domain.actions:
            return name.lower()
        return self._operators.get(_folded(name), name)

    def _arity(self, operator: str) -> int:
        return len(self._problem.domain.actions[operator].parameters)

    @cached_property
    def _operators(self) -> dict[str, str]:
        return {_folded(name): name for name in self._problem.domain.actions}

    @cached_property
    def _operator_pattern(self) -> str:
        """The pattern of any operator: `pick-up`, `Pick_Up`, `pickup`."""
        # Longer names first: the first alternative that matches is taken.
        names = sorted(self._problem.domain.actions, key=len, reverse=True)
        patterns = ["[-_ ]?".join(map(re.escape, re.split("[-_]+", name))) for name in names]
        return "|".join(patterns) or _NOTHING

    @cached_property
    def _call_pattern(self) -> re.Pattern[str]:
        return re.compile(
            rf"(?<![\w-])({self._operator_pattern}) ?\(([\w\s,\-]{{0,1000}}+)\)", re.IGNORECASE
        )

    @cached_property
    def _bare_pattern(self) -> re.Pattern[str]:
        names = sorted(self._problem.objects, key=len, reverse=True)
        objects = "|".join(map(re.escape, names)) or _NOTHING
        operator = rf"(?<![\w-])({self._operator_pattern})(?![\w-])"
        arguments = rf"((?:[ \t,|]++(?:{objects})(?![\w-]))*)"
        stop = r"(?=[ \t]*+(?:$|[.,;:|()\[\]\"'!-]))"
        return re.compile(operator + arguments + stop, re.IGNORECASE | re.MULTILINE)


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON; of one with a key twice, one of both would be lost.

    Raises:
        ValueError: a key comes twice.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("expected each key once")
    return fields


_JSON = json.JSONDecoder(object_pairs_hook=_unique_keys, strict=False)


def _call(name: str, arguments: Sequence[str]) -> str:
    """Write `stack(a, b, )`; the commas keep an argument of several words whole."""
    written = "".join(_NO_ARGUMENT.sub(" ", argument) + ", " for argument in arguments)
    return f"{name}({written})"


def _words(text: str) -> list[str]:
    return text.lower().replace(",", " ").replace("|", " ").split()


def _folded(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _without_overlaps(steps: Sequence[FoundStep]) -> list[FoundStep]:
    """Keep, of steps that overlap, the one that begins first, and of those the first in the list."""
    separate: list[FoundStep] = []
    for step in sorted(steps, key=lambda step: step.span[0]):
        if not separate or step.span[0] >= separate[-1].span[1]:
            separate.append(step)
    return separate


def _counted_steps(
    text: str, start: int, end: int, steps: Sequence[FoundStep], is_numbered: bool
) -> Iterator[FoundStep]:
    """Yield the steps at the beginning of a line, with no more than labels between them; else one at its end."""
    position = start
    label = _LABEL
    for step in steps:
        if not label.fullmatch(text, position, step.span[0]):
            break
        yield step
        position = step.span[1]
        label = _BETWEEN
    # `3. Now I can safely (stack a b).`: a number says that the line is a step of the plan.
    has_none = label is _LABEL
    if has_none and is_numbered and _CLOSING.fullmatch(text, steps[-1].span[1], end):
        yield steps[-1]


class _StepList:
    """Steps that belong together, and how the list goes on.

    Args:
        line: its first line.

    Attributes:
        steps: so far.
        number: of the last line; None where the lines have none.
        indent: of its lines.
        last_steps: the steps of the last line.
        first_number: the number of the first line.
        is_closed: something has ended it, unless the next line has the next number.
    """

    def __init__(self, line: _Line):
        self.steps: list[Action] = list(line.steps)
        self.number = line.number
        self.indent = line.indent
        self.last_steps = line.steps
        self.first_number = line.number
        self.is_closed = False

    def add(self, line: _Line) -> bool:
        """Take a line as the next of this list, or as a detail of its last one; returns whether it was either.

        A detail says more about the last line (a deeper one, or the same step again), and its steps are not added.
        """
        is_deeper = line.indent > self.indent
        is_repeated = line.steps == self.last_steps
        if self.number is None and line.number is None:
            if self.is_closed:
                return False
        elif self.number is None or line.number is None:
            # Numbered and unnumbered lines are no list together.
            return self.number is not None and (is_deeper or is_repeated)
        elif (line.number == self.number and is_repeated) or (
            line.number <= self.number and is_deeper
        ):
            return True
        elif line.number == self.number and line.indent == self.indent:
            # One item on several lines, each with its number.
            if self.is_closed:
                return False
        elif line.number != self.number + 1:
            return False
        self.steps += line.steps
        self.number = line.number
        self.last_steps = line.steps
        self.is_closed = False
        return True


def _is_remark(steps: Sequence[Action], plan: Sequence[Action]) -> bool:
    """Return whether steps are fewer than half of those of a plan, in their order."""
    remaining = iter(plan)
    # `in` reads the iterator up to the step, so the next one is only looked for after it.
    return 2 * len(steps) < len(plan) and all(step in remaining for step in steps)


def _separates(line: _Line, current: _StepList, after_blank: bool) -> bool:
    """Return whether a line of words ends a list: a heading, a rejection, or a paragraph of its own."""
    if not line.text.strip() or line.indent > current.indent:
        return False
    return after_blank or bool(_SECTION.search(line.text)) or bool(_REJECTION.search(line.text))
