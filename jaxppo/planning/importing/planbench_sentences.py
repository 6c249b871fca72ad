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
_ALIKE = {"on": "(?:on(?:to)?|atop|upon)", "into": "in(?:to|side)?"}
"""Words between two objects, to those that models write in their place."""


class Sentences:
    """The sentences of a configuration for the objects of a problem.

    Args:
        config: of PlanBench, with `actions` and `encoded_objects`.
        problem: whose objects they name.
    """

    def __init__(self, config: Mapping[str, Any], problem: Problem):
        self._problem = problem
        self._objects = {_phrase(name, config.get("encoded_objects")): name for name in problem.objects}
        compact = config.get("encoded_objects_compact")
        own = {name: name for name in problem.objects}
        short = {_phrase(name, compact): name for name in problem.objects} if compact else _first_words(self._objects)
        self._names = short | own | self._objects
        templates = config.get("actions")
        self._actions: dict[tuple[str, ...], list[str]] = {}
        for action, template in templates.items() if isinstance(templates, dict) else ():
            if not str(template).strip():
                continue
            self._actions.setdefault(tuple(str(template).split("{}")), []).append(str(action))

    def read(self, text: str) -> Iterator[Action]:
        """Read a sentence a line, and nothing else but `[PLAN]` and `[PLAN END]`.

        Raises:
            DataError: a line is no such sentence.
        """
        for line in filter(None, map(str.strip, text.splitlines())):
            if line not in _MARKS:
                yield self._step(line)

    def in_pddl(self, action: Action) -> Action:
        """Write `(stack red blue)`, or `(feast object a object b)`, in the names of the problem; its own names stay."""
        declared, arguments = self._problem.objects, list(action[1:])
        schema = self._problem.domain.actions.get(action[0])
        if schema is not None and len(arguments) > len(schema.parameters):
            pairs = [" ".join(arguments[place : place + 2]) for place in range(0, len(arguments), 2)]
            if len(pairs) == len(schema.parameters) and self.names.keys() >= {*pairs}:
                arguments = pairs
        return (action[0], *(name if name in declared else self.names.get(name, name) for name in arguments))

    def _step(self, line: str) -> Action:
        for parts, pattern in self._patterns.items():
            if match := pattern.fullmatch(line):
                return self._chosen(parts, [self._objects[phrase] for phrase in match.groups()])
        known = ", ".join(action for actions in self._actions.values() for action in actions)
        raise DataError(f"unreadable plan: expected a sentence for one of {known}, got {line[:60]!r}")

    def find(self, text: str) -> Iterator[tuple[Span, Action]]:
        """Find the sentences in a text, and where they stand, in any case and with any blanks between words.

        `the` may be missing, and so may all words between two objects but the first: `Stack red block on blue block`.
        An object may also have its compact phrase or its PDDL name: `red`, `a`.
        """
        if not self._actions:
            return
        templates, names = list(self._actions), self.names
        for match in self._anywhere.finditer(text):
            outer = match.lastindex or 1  # the group around a template closes last
            parts = templates[int((match.lastgroup or "_0")[1:])]
            phrases = [" ".join(match[outer + place].lower().split()) for place in range(1, len(parts))]
            if names.keys() >= {*phrases}:  # in any case, the pattern also takes the long s for an s
                yield match.span(), self._chosen(parts, [names[phrase] for phrase in phrases])

    @cached_property
    def names(self) -> Mapping[str, str]:
        """What an object may be called, in lower case, to the object."""
        return {phrase.lower(): name for phrase, name in self._names.items()}

    @cached_property
    def _patterns(self) -> dict[tuple[str, ...], re.Pattern[str]]:
        """The pattern of each template; with the objects in it, long lines take no longer than others."""
        phrases = "|".join(map(re.escape, sorted(filter(None, self._objects), key=len, reverse=True)))
        return {parts: re.compile(f"({phrases or '(?!)'})".join(map(re.escape, parts))) for parts in self._actions}

    @cached_property
    def _anywhere(self) -> re.Pattern[str]:
        """Make one pattern of all templates; the group around a template is named by its number."""
        objects = "|".join(map(_spaced, sorted(self.names, key=len, reverse=True)))
        forms = (f"(?P<_{number}>{_loose(parts, objects or '(?!)')})" for number, parts in enumerate(self._actions))
        return re.compile(rf"(?<![\w-])(?:{'|'.join(forms)})(?![\w-])", re.IGNORECASE)

    def _chosen(self, parts: tuple[str, ...], objects: Sequence[str]) -> Action:
        """Take the action of a template; of several the one whose arguments are of the right kind."""
        actions = self._actions[parts]
        fitting = [action for action in actions if len(actions) > 1 and self._is_fitting(action, objects)]
        return ((fitting or actions)[0], *objects)

    def _is_fitting(self, action: str, objects: Sequence[str]) -> bool:
        domain, init = self._problem.domain, self._problem.init
        schema = domain.actions.get(action)
        if schema is None or len(schema.parameters) != len(objects):
            return False
        binding = {name: given for (name, _), given in zip(schema.parameters, objects, strict=True)}
        kinds = [part.atom for part in schema.precondition if isinstance(part, Literal) and len(part.atom) == 2]
        present = {atom[0] for atom in init}
        return all((kind, binding.get(term, term)) in init for kind, term in kinds if kind in present)


def _first_words(objects: Mapping[str, str]) -> dict[str, str]:
    """Name objects by the first words of their phrases, `red` for `red block`, where these tell all of them apart."""
    first = {phrase.split()[0]: name for phrase, name in objects.items() if len(phrase.split()) > 1}
    return first if len(first) == len(objects) else {}


def _loose(parts: Sequence[str], objects: str) -> str:
    """Write a template as a pattern of words."""
    words = [(f"{_spaced(word)}\\s++", word == "the") for word in parts[0].split()]
    pattern = "".join(f"(?:{word})?" if may_be_missing else word for word, may_be_missing in words)
    for place, part in enumerate(parts[1:], 2):
        first, *others = part.split() or [""]
        pattern += f"({objects})"
        pattern += f"\\s++{_ALIKE.get(first, _spaced(first))}" if first else ""
        pattern += "".join(f"(?:\\s++{_spaced(word)})?" for word in others)
        pattern += "\\s++" if place < len(parts) else ""
    return pattern if len(parts) > 1 else _spaced(parts[0])


def _spaced(text: str) -> str:
    return r"\s++".join(map(re.escape, text.split()))


def _phrase(name: str, encoded: Any) -> str:
    """Write an object as the prompts do: `red block` for `a`, `package_0` for `p0`, `location_1-0` for `l1-0`."""
    if not isinstance(encoded, dict):
        return name
    if name in encoded:
        return str(encoded[name])
    parts = str(encoded.get(name[0], "")).split("{}")
    numbers = re.findall(r"\d+", name)
    if len(parts) != len(numbers) + 1:
        return name
    return "".join(part + number for part, number in zip(parts, [*numbers, ""], strict=True)) or name
