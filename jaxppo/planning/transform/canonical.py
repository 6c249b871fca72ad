"""One text for all problems that differ only in object names and in the order of atoms.

Colour refinement, then individualisation with backtracking where objects are still alike. Two branches that end in the
same text are images of each other under a symmetry of the problem; the symmetries found join objects to orbits, and of
each orbit only one object is tried. Objects that may change places while all facts stay the same (twins) are an orbit
from the start.

Source: McKay and Piperno, Practical graph isomorphism, II, Journal of Symbolic Computation 60 (2014).
"""

import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxppo.planning.language.conditions import Condition, Literal, write_condition
from jaxppo.planning.language.numeric import write_expression
from jaxppo.planning.language.parse import Problem
from jaxppo.planning.language.task import compares_numbers

# A name that is no variable, no type (behind `-` or in `either`) and not what a form starts with.
_OBJECT = re.compile(r"(?<= )(?<!- )[a-z_][\w-]*+(?=[ )])")

_LOG = logging.getLogger(__name__)
# So many facts may be looked at, which takes some seconds; only problems with hundreds of objects alike need more.
_MAX_WORK = 5_000_000
# Copying so many numbers takes as long as looking at a fact.
_COPIES = 16
_UNDECIDED = "undecided: "


class _GaveUpError(Exception):
    """Telling objects apart takes more than `_MAX_WORK`."""


class _Fact(NamedTuple):
    label: str
    arguments: tuple[int, ...]


class _Structure(NamedTuple):
    """A problem as labelled facts over numbered objects."""

    kinds: tuple[str, ...]
    facts: tuple[_Fact, ...]
    occurrences: tuple[tuple[tuple[int, int, tuple[int, ...]], ...], ...]
    """For each object, its facts as (rank of the label, position in it, arguments)."""
    neighbours: tuple[frozenset[int], ...]
    """For each object, those that some fact names beside it, and itself."""
    twins: tuple[int, ...]
    """For each object, the first one that it may change places with while all facts stay the same."""


def canonical_form(problem: Problem) -> str:
    """Write init and goal so that two problems of a domain get the same text exactly where a renaming maps them.

    Constants of the domain keep their names, objects keep their types, and the order of atoms does not count; numbers
    count where conditions compare them, and not where they only make costs. Inside a goal's `or`, `forall` and their
    like the order does count: such a part is compared as it is written.

    The work is bounded. Where objects cannot be told apart within it, a warning names the problem, and the text, which
    begins with `undecided`, says what colour refinement tells: renamed copies still get the same, and so may others.
    """
    structure = _structure(problem)
    search = _Search(structure)
    try:
        return search.smallest_text(search.start)[0]
    except (_GaveUpError, RecursionError):
        _LOG.warning("canonical_form: problem %s has too many objects alike; renamed copies are not told", problem.name)
        return _UNDECIDED + _text(structure, search.start.colours)


def _structure(problem: Problem) -> _Structure:
    index = {name: number for number, name in enumerate(problem.objects)}
    constants = problem.domain.constants.keys() | problem.domain.late_constants
    kinds = tuple(
        name if name in constants else f"? - {'|'.join(sorted(types))}" for name, types in problem.objects.items()
    )
    facts = [_Fact(f"init {atom[0]}", _numbers(atom[1:], index)) for atom in problem.init_order]
    if compares_numbers(problem):
        for function, value in problem.values.items():
            facts.append(_Fact(f"init {function[0]} = {write_expression(value)}", _numbers(function[1:], index)))
    facts.extend(_goal_fact(condition, index) for condition in dict.fromkeys(problem.conditions))
    occurrences = _occurrences(facts, len(index))
    neighbours = tuple(
        frozenset((number, *(other for _, _, arguments in own for other in arguments)))
        for number, own in enumerate(occurrences)
    )
    return _Structure(kinds, tuple(facts), occurrences, neighbours, _twins(kinds, occurrences, neighbours))


def _numbers(names: Iterable[str], index: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(index[name] for name in names)


def _goal_fact(condition: Condition, index: Mapping[str, int]) -> _Fact:
    if isinstance(condition, Literal):
        sign = "goal" if condition.positive else "goal not"
        return _Fact(f"{sign} {condition.atom[0]}", _numbers(condition.atom[1:], index))
    return _fact_of_text(f"goal {write_condition(condition, {})}", index)


def _fact_of_text(text: str, index: Mapping[str, int]) -> _Fact:
    """Write a formula as one fact about the objects it names, in their order; its label is the text without them.

    Names of predicates, functions and types stay, also where objects have the same: they stand where no object can.
    """
    names = [name for name in _OBJECT.findall(text) if name in index]
    label = _OBJECT.sub(lambda match: "%" if match[0] in index else match[0], text)
    return _Fact(label, _numbers(names, index))


def _occurrences(facts: Iterable[_Fact], n_objects: int) -> tuple[tuple[tuple[int, int, tuple[int, ...]], ...], ...]:
    labels = {label: rank for rank, label in enumerate(sorted({fact.label for fact in facts}))}
    found: list[list[tuple[int, int, tuple[int, ...]]]] = [[] for _ in range(n_objects)]
    for label, arguments in facts:
        for position, number in enumerate(arguments):
            found[number].append((labels[label], position, arguments))
    return tuple(map(tuple, found))


def _twins(
    kinds: Sequence[str],
    occurrences: Sequence[Sequence[tuple[int, int, tuple[int, ...]]]],
    neighbours: Sequence[Iterable[int]],
) -> tuple[int, ...]:
    """Find the twins: objects with the same facts but for themselves, and those that may change places in facts."""
    orbits = _Orbits(len(kinds))
    first_with: dict[tuple, int] = {}
    shapes = []
    for number, (kind, facts) in enumerate(zip(kinds, occurrences, strict=True)):
        others = sorted((label, place, tuple(-1 if i == number else i for i in items)) for label, place, items in facts)
        orbits.join(number, first_with.setdefault((kind, tuple(others)), number))
        shapes.append((kind, sorted((label, place) for label, place, _ in facts)))
    for number, near in enumerate(neighbours):
        for other in near:
            if other < number and shapes[other] == shapes[number] and _may_swap(other, number, occurrences):
                orbits.join(number, other)
    return tuple(map(orbits.first, range(len(kinds))))


def _may_swap(one: int, other: int, occurrences: Sequence[Sequence[tuple[int, int, tuple[int, ...]]]]) -> bool:
    """Return whether all facts stay the same when two objects of a kind change places."""
    swap = {one: other, other: one}
    swapped = [
        (label, position, tuple(swap.get(i, i) for i in arguments)) for label, position, arguments in occurrences[one]
    ]
    return sorted(swapped) == sorted(occurrences[other])


class _Orbits:
    """Sets of objects that symmetries map to each other; each is known by its first object."""

    def __init__(self, n_objects: int):
        self._above = list(range(n_objects))

    def first(self, number: int) -> int:
        """Return the first object of a set."""
        while self._above[number] != number:
            self._above[number] = number = self._above[self._above[number]]
        return number

    def join(self, one: int, other: int) -> None:
        """Make two sets one."""
        one, other = self.first(one), self.first(other)
        self._above[max(one, other)] = min(one, other)

    def join_all(self, images: Iterable[int]) -> None:
        """Join each object with its image."""
        for number, image in enumerate(images):
            if number != image:
                self.join(number, image)

    def images(self) -> list[int]:
        """Return for each object one of its set."""
        return list(self._above)


class _Colouring(NamedTuple):
    """Which objects look alike so far.

    Attributes:
        colours: for each object the number of objects in front of its class.
        classes: the classes with several members, by colour; the members in their order.
    """

    colours: list[int]
    classes: dict[int, list[int]]


class _Search:
    """Tells the objects of a problem apart, as far as its facts do.

    Attributes:
        start: what colour refinement alone tells.
    """

    def __init__(self, structure: _Structure):
        self._structure = structure
        self._room = math.inf
        self.start = self._refined()
        self._room = _MAX_WORK

    def _refined(self) -> _Colouring:
        """Split classes by what their members' facts look like, until nothing splits."""
        kinds = self._structure.kinds
        members_of: dict[str, list[int]] = {}
        for number, kind in enumerate(kinds):
            members_of.setdefault(kind, []).append(number)
        colours, classes, colour = [0] * len(kinds), {}, 0
        for kind in sorted(members_of):
            for number in members_of[kind]:
                colours[number] = colour
            if len(members_of[kind]) > 1:
                classes[colour] = members_of[kind]
            colour += len(members_of[kind])
        colouring = _Colouring(colours, classes)
        self._split(colouring, dict(classes))
        return colouring

    def smallest_text(self, colouring: _Colouring) -> tuple[str, list[int], _Orbits]:
        """Return the smallest text of all branches.

        Returns:
            The text; the colours at the end of the first branch; and the orbits of the symmetries found, all of which
            leave what is told apart already in its place.
        """
        if not colouring.classes:
            return _text(self._structure, colouring.colours), colouring.colours, _Orbits(len(colouring.colours))
        choices, is_one_kind = self._choices(colouring)
        if is_one_kind:
            return self.smallest_text(self._individualise(colouring, choices))
        text, first_end, orbits = self.smallest_text(self._individualise(colouring, choices[:1]))
        ends = {_text(self._structure, first_end): first_end}
        tried = [choices[0]]
        for number in choices[1:]:
            if orbits.first(number) in map(orbits.first, tried):
                continue
            branch = self._individualise(colouring, [number])
            colours = self._first_end(branch)
            end = _text(self._structure, colours)
            if end in ends:  # the branch is the image of an earlier one
                orbits.join_all(_symmetry(ends[end], colours))
                continue
            ends[end] = colours
            tried.append(number)
            other, _, others = self.smallest_text(branch)
            text = min(text, other)
            orbits.join_all(others.images())
        return text, first_end, orbits

    def _first_end(self, colouring: _Colouring) -> list[int]:
        """Return the colours at the end of the branch that always takes the first object."""
        while colouring.classes:
            choices, is_one_kind = self._choices(colouring)
            colouring = self._individualise(colouring, choices if is_one_kind else choices[:1])
        return colouring.colours

    def _choices(self, colouring: _Colouring) -> tuple[list[int], bool]:
        """Return the first class, where all its members are twins, else the first of each group of twins in it."""
        members = colouring.classes[min(colouring.classes)]
        twins = self._structure.twins
        firsts = list({twins[number]: number for number in reversed(members)}.values())[::-1]
        return (members, True) if len(firsts) == 1 else (firsts, False)

    def _individualise(self, colouring: _Colouring, chosen: Sequence[int]) -> _Colouring:
        """Put objects in front of the rest of their class, one by one.

        Several only where the class has no others and all are twins: everything else sees each of them alike, so that
        only the last one is worth a look at what splits.
        """
        colours, classes = list(colouring.colours), dict(colouring.classes)
        self._spend(1 + len(colours) // _COPIES)
        colour = colours[chosen[0]]
        rest = [number for number in classes.pop(colour) if number not in chosen]
        for place, number in enumerate(chosen):
            colours[number] = colour + place
        for number in rest:
            colours[number] = colour + len(chosen)
        if len(rest) > 1:
            classes[colour + len(chosen)] = rest
        finer = _Colouring(colours, classes)
        self._split(finer, self._beside(finer, chosen))
        return finer

    def _beside(self, colouring: _Colouring, changed: Iterable[int]) -> dict[int, list[int]]:
        """Find the members of classes that facts connect with some objects, by class."""
        beside: dict[int, set[int]] = defaultdict(set)
        for number in changed:
            for other in self._structure.neighbours[number]:
                if colouring.colours[other] in colouring.classes:
                    beside[colouring.colours[other]].add(other)
        return {colour: sorted(members) for colour, members in beside.items()}

    def _split(self, colouring: _Colouring, touched: dict[int, list[int]]) -> None:
        """Refine in place, round by round.

        Args:
            colouring: the classes so far.
            touched: the members of classes that may differ from the rest of their class, all of which look alike.
        """
        while touched and colouring.classes:
            parts = {colour: self._parts(colouring, colour, members) for colour, members in touched.items()}
            changed: list[int] = []
            for colour, groups in parts.items():
                if len(groups) > 1:
                    self._relabel(colouring, colour, groups)
                    largest = max(groups, key=len)  # who sees only these sees what it saw before
                    changed.extend(number for group in groups if group is not largest for number in group)
            touched = self._beside(colouring, changed)

    def _parts(self, colouring: _Colouring, colour: int, touched: Sequence[int]) -> list[list[int]]:
        """Divide a class by what its members' facts look like, in the order of that."""
        members = colouring.classes[colour]
        looked_at = set(touched)
        untouched = [number for number in members if number not in looked_at] if len(touched) < len(members) else []
        groups: dict[tuple, list[int]] = {}
        for number in (*touched, *untouched[:1]):
            groups.setdefault(self._signature(colouring.colours, number), []).append(number)
        if untouched:
            group = groups[self._signature(colouring.colours, untouched[0])]
            group.extend(untouched[1:])
            group.sort()
        return [groups[signature] for signature in sorted(groups)]

    def _signature(self, colours: Sequence[int], number: int) -> tuple:
        facts = self._structure.occurrences[number]
        self._spend(1 + len(facts))
        return tuple(sorted([(label, place, tuple([colours[i] for i in items])) for label, place, items in facts]))

    def _spend(self, work: int) -> None:
        self._room -= work
        if self._room < 0:
            raise _GaveUpError

    def _relabel(self, colouring: _Colouring, colour: int, groups: Iterable[list[int]]) -> None:
        del colouring.classes[colour]
        for group in groups:
            for number in group:
                colouring.colours[number] = colour
            if len(group) > 1:
                colouring.classes[colour] = group
            colour += len(group)


def _symmetry(ends: Sequence[int], other_ends: Sequence[int]) -> list[int]:
    """Return where a symmetry maps each object: to the one that has its place in the other, equal text."""
    at_place = [0] * len(other_ends)
    for number, colour in enumerate(other_ends):
        at_place[colour] = number
    return [at_place[colour] for colour in ends]


def _text(structure: _Structure, colours: Sequence[int]) -> str:
    """Write the facts under the numbering that discrete colours are."""
    names = [kind.replace("?", str(colour)) for kind, colour in zip(structure.kinds, colours, strict=True)]
    objects = [name for _, name in sorted(zip(colours, names, strict=True))]
    short = [name.split(" ")[0] for name in names]
    facts = sorted(" ".join((label, *(short[number] for number in arguments))) for label, arguments in structure.facts)
    return "; ".join((", ".join(objects), *facts))
