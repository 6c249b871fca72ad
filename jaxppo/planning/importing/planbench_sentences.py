"""Steps as the sentences of PlanBench, `unstack the red block from on top of the blue block`, by its configurations.

A configuration has a template for each action and a phrase for each object. Two actions may share a template
(logistics loads trucks and airplanes with the same words): the objects decide, by the conditions of one argument that
hold at the start.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from jaxppo.errors import DataError
from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.plans import Action, Span
from jaxppo.planning.language.task import Problem

_MARKS = ("[PLAN]", "[PLAN END]")
_SYNONYMS = {"on": "(?:on(?:to)?|atop|upon)", "into": "in(?:to|side)?"}
"""Words between two objects, to those that models write in their place."""
_NOTHING = "(?!)"
"""The pattern that matches nothing: `|` of no alternatives would match everything."""


class Sentences:
    """The sentences of a configuration for the objects of a problem.

    Args:
        config: of PlanBench, with `actions` and `encoded_objects`.
        problem: whose objects they name.
    """

    def __init__(self, config: Mapping[str, Any], problem: Problem):
        self._problem = problem
        self._objects_by_phrase = {
            _phrase(name, config.get("encoded_objects")): name for name in problem.objects
        }
        compact = config.get("encoded_objects_compact")
        if compact:
            short_names = {_phrase(name, compact): name for name in problem.objects}
        else:
            short_names = _first_words(self._objects_by_phrase)
        # Where one word names two objects: the prompts' phrase
        # before the PDDL name, and that before the short name.
        all_names = short_names | {name: name for name in problem.objects} | self._objects_by_phrase
        self.names: Mapping[str, str] = {phrase.lower(): name for phrase, name in all_names.items()}
        """What an object may be called, in lower case, to the object."""
        templates = config.get("actions")
        # The parts of a template around its objects, to the actions that have it.
        self._actions: dict[tuple[str, ...], list[str]] = {}
        if isinstance(templates, dict):
            for action, template in templates.items():
                if str(template).strip():
                    self._actions.setdefault(tuple(str(template).split("{}")), []).append(
                        str(action)
                    )

    def read(self, text: str) -> Iterator[Action]:
        """Read a sentence a line, and nothing else but `[PLAN]` and `[PLAN END]`.

        Raises:
            DataError: a line is no such sentence.
        """
        for line in map(str.strip, text.splitlines()):
            if line and line not in _MARKS:
                yield self._step(line)

    def in_pddl(self, action: Action) -> Action:
        """Write `(stack red blue)`, or `(feast object a object b)`, in the names of the problem; its own names stay."""
        name, *arguments = action
        schema = self._problem.domain.actions.get(name)
        if schema is not None and len(arguments) > len(schema.parameters):
            # Too many arguments may be phrases of two words each.
            pairs = [
                " ".join(arguments[place : place + 2]) for place in range(0, len(arguments), 2)
            ]
            if len(pairs) == len(schema.parameters) and self.names.keys() >= {*pairs}:
                arguments = pairs
        objects = self._problem.objects
        return (
            name,
            *(word if word in objects else self.names.get(word, word) for word in arguments),
        )

    def _step(self, line: str) -> Action:
        for template, pattern in self._line_patterns.items():
            if match := pattern.fullmatch(line):
                return self._action(
                    template, [self._objects_by_phrase[phrase] for phrase in match.groups()]
                )
        names: list[str] = []
        for actions in self._actions.values():
            names += actions
        raise DataError(
            f"unreadable plan: expected a sentence for one of {', '.join(names)}, got {line[:60]!r}"
        )

    def find(self, text: str) -> Iterator[tuple[Span, Action]]:
        """Find the sentences in a text, and where they stand, in any case and with any blanks between words.

        `the` may be missing, and so may all words between two objects but the first: `Stack red block on blue block`.
        An object may also have its compact phrase or its PDDL name: `red`, `a`.
        """
        if not self._actions:
            return
        templates = list(self._actions)
        for match in self._text_pattern.finditer(text):
            # The group around a template closes last, so it is the
            # last one; those of its objects follow it by number.
            template_group = match.lastindex or 1
            template = templates[int((match.lastgroup or "_0")[1:])]
            phrases = []
            for place in range(1, len(template)):
                phrases.append(" ".join(match[template_group + place].lower().split()))
            # Not every match has names: in any case, the pattern also takes the long s for an s.
            if self.names.keys() >= {*phrases}:
                yield (
                    match.span(),
                    self._action(template, [self.names[phrase] for phrase in phrases]),
                )

    @cached_property
    def _line_patterns(self) -> dict[tuple[str, ...], re.Pattern[str]]:
        """The pattern of each template; with the objects in it, long lines take no longer than others."""
        phrases = sorted(filter(None, self._objects_by_phrase), key=len, reverse=True)
        objects = f"({'|'.join(map(re.escape, phrases)) or _NOTHING})"
        return {
            template: re.compile(objects.join(map(re.escape, template)))
            for template in self._actions
        }

    @cached_property
    def _text_pattern(self) -> re.Pattern[str]:
        """Make one pattern of all templates; the group around a template is named by its number."""
        # Longer names first: the first alternative that matches is taken.
        objects = "|".join(map(_spaced, sorted(self.names, key=len, reverse=True))) or _NOTHING
        groups = [
            f"(?P<_{number}>{_loose(template, objects)})"
            for number, template in enumerate(self._actions)
        ]
        return re.compile(rf"(?<![\w-])(?:{'|'.join(groups)})(?![\w-])", re.IGNORECASE)

    def _action(self, template: tuple[str, ...], objects: Sequence[str]) -> Action:
        """Take the action of a template; of several the one whose arguments are of the right kind."""
        actions = self._actions[template]
        action = actions[0]
        if len(actions) > 1:
            action = next((name for name in actions if self._is_fitting(name, objects)), action)
        return (action, *objects)

    def _is_fitting(self, action: str, objects: Sequence[str]) -> bool:
        """Return whether the objects are of the kinds that an action asks for, such as `(truck t1)`."""
        schema = self._problem.domain.actions.get(action)
        if schema is None or len(schema.parameters) != len(objects):
            return False
        binding = {
            name: argument for (name, _), argument in zip(schema.parameters, objects, strict=True)
        }
        init = self._problem.init
        # A predicate of which nothing holds at the start is no kind: its facts are made by actions.
        predicates = {atom[0] for atom in init}
        for condition in schema.precondition:
            if isinstance(condition, Literal) and len(condition.atom) == 2:
                kind, term = condition.atom
                if kind in predicates and (kind, binding.get(term, term)) not in init:
                    return False
        return True


def _first_words(objects: Mapping[str, str]) -> dict[str, str]:
    """Name objects by the first words of their phrases, `red` for `red block`, where these tell all of them apart."""
    first_words: dict[str, str] = {}
    for phrase, name in objects.items():
        word, *more_words = phrase.split() or [""]
        if more_words:
            first_words[word] = name
    return first_words if len(first_words) == len(objects) else {}


def _loose(template: Sequence[str], objects: str) -> str:
    """Write a template as a pattern of words."""
    if len(template) == 1:
        return _spaced(template[0])
    pattern = ""
    for word in template[0].split():
        pattern += f"(?:{_spaced(word)}\\s++)?" if word == "the" else f"{_spaced(word)}\\s++"
    for place, part in enumerate(template[1:], 2):
        pattern += f"({objects})"
        words = part.split()
        if words:
            pattern += f"\\s++{_SYNONYMS.get(words[0], _spaced(words[0]))}"
        for word in words[1:]:
            pattern += f"(?:\\s++{_spaced(word)})?"
        if place < len(template):
            pattern += "\\s++"
    return pattern


def _spaced(text: str) -> str:
    """Return the pattern of a text with any blanks between its words."""
    return r"\s++".join(map(re.escape, text.split()))


def _phrase(name: str, encoded: Any) -> str:
    """Write an object as the prompts do: `red block` for `a`, `package_0` for `p0`, `location_1-0` for `l1-0`."""
    if not isinstance(encoded, dict):
        return name
    if name in encoded:
        return str(encoded[name])
    # Objects with numbers share an entry by their first letter: `l: location_{}-{}`.
    parts = str(encoded.get(name[0], "")).split("{}")
    numbers = re.findall(r"\d+", name)
    if len(parts) != len(numbers) + 1:
        return name
    phrase = parts[0]
    for number, part in zip(numbers, parts[1:], strict=True):
        phrase += number + part
    return phrase or name
