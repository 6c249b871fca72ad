"""One text for all problems that differ only in object names and in the order of atoms.

Objects get numbers that depend on the facts alone, and the facts are written with these numbers. It works like this:

1. *Colour refinement*: objects of one kind begin with one colour. Where two objects of a colour are in different facts
   (other predicates, other positions, other colours beside them) their class splits, until nothing splits any more. In
   most problems every object then has a colour of its own, which is its number.
2. *Individualisation*: where objects still look alike, one of them is put in front of its class, and everything is
   refined again. Which one is arbitrary, so all are tried, and the smallest of the texts is taken.
3. *Symmetries*: trying all would take n! branches for n objects alike. Two branches that end in the same text are
   images of each other under a symmetry of the problem; the symmetries found join objects to orbits, and of each orbit
   only one object is tried. Objects that may change places while all facts stay the same (twins) are an orbit from the
   start.

Source: McKay and Piperno, Practical graph isomorphism, II, Journal of Symbolic Computation 60 (2014).
"""

import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from jaxppo.planning.language.conditions import Condition, Literal, write_condition
from jaxppo.planning.language.numeric import write_expression
from jaxppo.planning.language.parse import Problem
from jaxppo.planning.language.task import compares_numbers

# A name that is no variable, no type (after `-` or in `either`) and not what a form starts with.
_OBJECT = re.compile(r"(?<= )(?<!- )[a-z_][\w-]*+(?=[ )])")

_LOG = logging.getLogger(__name__)
# Facts that may be looked at, some seconds' work; only
# problems with hundreds of objects alike need more.
_MAX_WORK = 5_000_000
# Numbers that are copied in the time of looking at a fact.
_COPIES = 16
_UNDECIDED = "undecided: "

_Occurrence = tuple[int, int, tuple[int, ...]]
"""A fact as one of its objects has it: rank of the label, position of the object, arguments."""


class _GaveUpError(Exception):
    """Telling objects apart takes more than `_MAX_WORK`."""


class _Fact(NamedTuple):
    label: str
    arguments: tuple[int, ...]


class _Structure(NamedTuple):
    """A problem as labelled facts over numbered objects."""

    kinds: tuple[str, ...]
    facts: tuple[_Fact, ...]
    occurrences: tuple[tuple[_Occurrence, ...], ...]
    """For each object, its facts."""
    twins: tuple[int, ...]
    """For each object, the first one that it may change places with while all facts stay the same."""


def canonical_form(problem: Problem) -> str:
    """Write init and goal so that two problems of a domain get the same text exactly where a renaming maps them.

    Constants of the domain keep their names, objects keep their types, and the order of atoms does not count; numbers
    count where conditions compare them, and not where they only make costs. Inside a goal's `or`, `forall` and their
    like the order does count: such a part is compared as it is written.

    The work is bounded. Where it does not suffice to tell the objects apart, a warning names the problem, and the text
    begins with `undecided` and says what colour refinement found: renamed copies still get the same text, but so may
    problems that differ.
    """
    structure = _structure(problem)
    search = _Search(structure)
    try:
        return search.smallest_text(search.start)[0]
    except (_GaveUpError, RecursionError):
        _LOG.warning(
            "canonical_form: problem %s has too many objects that look alike; other problems may get the same form",
            problem.name,
        )
        return _UNDECIDED + _text(structure, search.start.colours)


def _structure(problem: Problem) -> _Structure:
    # Numbers in the order of the declaration, which must not show in the text: only colours do.
    index = {name: number for number, name in enumerate(problem.objects)}
    # The actions use constants by their names, so a
    # renaming must keep them: each is a kind of its own.
    constants = problem.domain.constants.keys() | problem.domain.late_constants
    kinds = []
    for name, types in problem.objects.items():
        kinds.append(name if name in constants else f"? - {'|'.join(sorted(types))}")
    facts = []
    for predicate, *arguments in problem.init_order:
        facts.append(_Fact(f"init {predicate}", _numbers(arguments, index)))
    if compares_numbers(problem):
        for (function, *arguments), value in problem.values.items():
            label = f"init {function} = {write_expression(value)}"
            facts.append(_Fact(label, _numbers(arguments, index)))
    # A condition that the goal states twice counts once.
    for condition in dict.fromkeys(problem.conditions):
        facts.append(_goal_fact(condition, index))
    occurrences = _occurrences(facts, len(index))
    return _Structure(
        kinds=tuple(kinds),
        facts=tuple(facts),
        occurrences=occurrences,
        twins=_twins(kinds, occurrences),
    )


def _numbers(names: Iterable[str], index: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(index[name] for name in names)


def _goal_fact(condition: Condition, index: Mapping[str, int]) -> _Fact:
    if isinstance(condition, Literal):
        sign = "goal" if condition.positive else "goal not"
        predicate, *arguments = condition.atom
        return _Fact(f"{sign} {predicate}", _numbers(arguments, index))
    # Any other formula is one fact about the objects that it names, in their order; its label is
    # the text without them. Predicates, functions and types that are spelt like an object stay in
    # it: they stand where no object can.
    text = f"goal {write_condition(condition, {})}"
    names = [name for name in _OBJECT.findall(text) if name in index]

    def without_object(match: re.Match[str]) -> str:
        return "%" if match[0] in index else match[0]

    label = _OBJECT.sub(without_object, text)
    return _Fact(label, _numbers(names, index))


def _occurrences(facts: Iterable[_Fact], n_objects: int) -> tuple[tuple[_Occurrence, ...], ...]:
    labels = sorted({fact.label for fact in facts})
    ranks = {label: rank for rank, label in enumerate(labels)}
    occurrences: list[list[_Occurrence]] = [[] for _ in range(n_objects)]
    for label, arguments in facts:
        rank = ranks[label]
        for position, number in enumerate(arguments):
            occurrences[number].append((rank, position, arguments))
    return tuple(map(tuple, occurrences))


def _twins(kinds: Sequence[str], occurrences: Sequence[Sequence[_Occurrence]]) -> tuple[int, ...]:
    """Find the first twin of each object."""
    orbits = _Orbits(len(kinds))
    # Twins that share no fact: their facts are the same but for
    # themselves. A dictionary finds them without comparing all pairs.
    first_with: dict[tuple, int] = {}
    shapes = []
    for number, (kind, facts) in enumerate(zip(kinds, occurrences, strict=True)):
        masked = tuple(_replace_objects(facts, {number: -1}))
        first_twin = first_with.setdefault((kind, masked), number)
        orbits.join(number, first_twin)
        places = sorted((label, position) for label, position, _ in facts)
        shapes.append((kind, places))
    # Twins that share a fact, such as the two ends of a road: only neighbours can be such.
    for number, facts in enumerate(occurrences):
        for neighbour in set(chain.from_iterable(arguments for _, _, arguments in facts)):
            # Each pair once; and most pairs differ in shape already, which is compared faster than facts.
            if neighbour >= number or shapes[neighbour] != shapes[number]:
                continue
            swap = {number: neighbour, neighbour: number}
            swapped = _replace_objects(occurrences[neighbour], swap)
            if swapped == sorted(occurrences[number]):
                orbits.join(number, neighbour)
    return tuple(map(orbits.first, range(len(kinds))))


def _replace_objects(
    facts: Iterable[_Occurrence], replacements: Mapping[int, int]
) -> list[_Occurrence]:
    """Write other objects into facts, and sort them."""
    replaced = []
    for label, position, arguments in facts:
        new_arguments = tuple(replacements.get(number, number) for number in arguments)
        replaced.append((label, position, new_arguments))
    return sorted(replaced)


class _Orbits:
    """Sets of objects that symmetries map to each other; each set has the name of its first object.

    Attributes:
        parents: union-find: leads from an object to smaller ones of its set, and from the first one to itself.
    """

    def __init__(self, n_objects: int):
        self.parents = list(range(n_objects))

    def first(self, number: int) -> int:
        """Return the first object of a set."""
        while self.parents[number] != number:
            # Leave out a parent on the way (path halving), so that chains do not grow long.
            grandparent = self.parents[self.parents[number]]
            self.parents[number] = grandparent
            number = grandparent
        return number

    def join(self, number: int, image: int) -> None:
        """Make two sets one."""
        first = self.first(number)
        image_first = self.first(image)
        self.parents[max(first, image_first)] = min(first, image_first)

    def join_all(self, images: Iterable[int]) -> None:
        """Join each object with its image."""
        for number, image in enumerate(images):
            if number != image:
                self.join(number, image)


class _Colouring(NamedTuple):
    """Which objects look alike so far.

    Attributes:
        colours: for each object the number of objects in front of its class.
        classes: the classes with several members, by colour; the members in their order.
    """

    colours: list[int]
    classes: dict[int, list[int]]

    def divide(self, colour: int, groups: Iterable[list[int]]) -> None:
        """Replace a class by the groups of its members, in this order."""
        del self.classes[colour]
        for group in groups:
            for number in group:
                self.colours[number] = colour
            if len(group) > 1:
                self.classes[colour] = group
            colour += len(group)


class _Search:
    """Tells the objects of a problem apart, as far as its facts do.

    Attributes:
        start: what colour refinement alone tells.
    """

    def __init__(self, structure: _Structure):
        self._structure = structure
        # The first refinement is not bounded, since an undecided form is made of it.
        self._work_left = math.inf
        self.start = self._refine_kinds()
        self._work_left = _MAX_WORK

    def _refine_kinds(self) -> _Colouring:
        """Give each kind of objects a class, and refine these until nothing splits."""
        members_by_kind: dict[str, list[int]] = {}
        for number, kind in enumerate(self._structure.kinds):
            members_by_kind.setdefault(kind, []).append(number)
        objects = list(range(len(self._structure.kinds)))
        colouring = _Colouring([0] * len(objects), {0: objects})
        # In the order of the names of kinds, which a renaming does not change.
        groups = [members_by_kind[kind] for kind in sorted(members_by_kind)]
        colouring.divide(0, groups)
        self._refine(colouring, dict(colouring.classes))
        return colouring

    def smallest_text(self, colouring: _Colouring) -> tuple[str, list[int], _Orbits]:
        """Return the smallest text of all branches.

        Returns:
            The text; the colours at the end of the first branch; and the orbits of the symmetries found, all of which
            leave the objects that are told apart already where they are.
        """
        if not colouring.classes:
            text = _text(self._structure, colouring.colours)
            return text, colouring.colours, _Orbits(len(colouring.colours))
        branches = self._branches(colouring)
        first_colouring = self._individualise(colouring, branches[0])
        text, first_end, orbits = self.smallest_text(first_colouring)
        if len(branches) == 1:
            return text, first_end, orbits
        # The ends of the first paths of all branches, by
        # their texts: an equal text shows a symmetry.
        ends = {_text(self._structure, first_end): first_end}
        tried = [branches[0][0]]
        for branch in branches[1:]:
            (number,) = branch
            if orbits.first(number) in map(orbits.first, tried):
                continue
            branch_colouring = self._individualise(colouring, branch)
            branch_end = self._first_end(branch_colouring)
            branch_end_text = _text(self._structure, branch_end)
            if branch_end_text in ends:
                # The branch is the image of an earlier one, whose
                # texts are the same: it need not be searched.
                orbits.join_all(_symmetry(ends[branch_end_text], branch_end))
                continue
            ends[branch_end_text] = branch_end
            tried.append(number)
            branch_text, _, branch_orbits = self.smallest_text(branch_colouring)
            text = min(text, branch_text)
            orbits.join_all(branch_orbits.parents)
        return text, first_end, orbits

    def _first_end(self, colouring: _Colouring) -> list[int]:
        """Return the colours at the end of the path that always takes the first branch."""
        while colouring.classes:
            first_branch = self._branches(colouring)[0]
            colouring = self._individualise(colouring, first_branch)
        return colouring.colours

    def _branches(self, colouring: _Colouring) -> list[list[int]]:
        """Return what may be individualised in the first class.

        Returns:
            All members at once where all are twins, since their order makes no difference; otherwise the first of each
            group of twins, one in each branch.
        """
        members = colouring.classes[min(colouring.classes)]
        # From the last to the first, so that the first of each group of twins remains.
        first_twins: dict[int, int] = {}
        for number in reversed(members):
            first_twins[self._structure.twins[number]] = number
        if len(first_twins) == 1:
            return [members]
        return [[number] for number in reversed(first_twins.values())]

    def _individualise(self, colouring: _Colouring, chosen: Sequence[int]) -> _Colouring:
        """Put objects in front of the others of their class, one by one.

        Several are chosen only where the class has no others and all are twins.
        """
        finer = _Colouring(list(colouring.colours), dict(colouring.classes))
        self._spend(1 + len(finer.colours) // _COPIES)
        colour = finer.colours[chosen[0]]
        remaining = [number for number in finer.classes[colour] if number not in chosen]
        groups = [[number] for number in chosen]
        if remaining:
            groups.append(remaining)
        finer.divide(colour, groups)
        self._refine(finer, self._affected(finer, chosen))
        return finer

    def _affected(self, colouring: _Colouring, changed: Iterable[int]) -> dict[int, list[int]]:
        """Find the members of classes that share facts with objects whose colour has changed, by class."""
        affected: dict[int, set[int]] = defaultdict(set)
        for number in changed:
            for _, _, arguments in self._structure.occurrences[number]:
                for neighbour in arguments:
                    colour = colouring.colours[neighbour]
                    if colour in colouring.classes:
                        affected[colour].add(neighbour)
        return {colour: sorted(members) for colour, members in affected.items()}

    def _refine(self, colouring: _Colouring, affected: dict[int, list[int]]) -> None:
        """Split classes by what their members' facts look like, in place, until nothing splits.

        Args:
            colouring: the classes so far.
            affected: the members of classes that may differ from the others of their class, which all look alike.
        """
        while affected and colouring.classes:
            # All classes are looked at before one is divided,
            # so that the order of the classes does not matter.
            groups_by_colour = {}
            for colour, members in affected.items():
                groups_by_colour[colour] = self._groups(colouring, colour, members)
            changed: list[int] = []
            for colour, groups in groups_by_colour.items():
                if len(groups) > 1:
                    colouring.divide(colour, groups)
                    # One group may be left out: an object sees the
                    # change in the others. The largest saves most work.
                    largest = max(groups, key=len)
                    for group in groups:
                        if group is not largest:
                            changed.extend(group)
            affected = self._affected(colouring, changed)

    def _groups(
        self, colouring: _Colouring, colour: int, affected: Sequence[int]
    ) -> list[list[int]]:
        """Group the members of a class by what their facts look like, in the order of that."""
        members = colouring.classes[colour]
        affected_set = set(affected)
        unaffected = [number for number in members if number not in affected_set]
        groups: dict[tuple, list[int]] = {}
        # The others still look alike, so one of them stands for all.
        for number in (*affected, *unaffected[:1]):
            signature = self._signature(colouring.colours, number)
            groups.setdefault(signature, []).append(number)
        if unaffected:
            group = groups[self._signature(colouring.colours, unaffected[0])]
            group.extend(unaffected[1:])
            group.sort()
        return [groups[signature] for signature in sorted(groups)]

    def _signature(self, colours: Sequence[int], number: int) -> tuple:
        """Write an object's facts with the colours of their arguments."""
        occurrences = self._structure.occurrences[number]
        self._spend(1 + len(occurrences))
        coloured = []
        for label, position, arguments in occurrences:
            argument_colours = tuple([colours[argument] for argument in arguments])
            coloured.append((label, position, argument_colours))
        return tuple(sorted(coloured))

    def _spend(self, work: int) -> None:
        # Counted and not timed, so that a problem has the same form on every machine.
        self._work_left -= work
        if self._work_left < 0:
            raise _GaveUpError


def _symmetry(ends: Sequence[int], other_ends: Sequence[int]) -> list[int]:
    """Return where a symmetry maps each object: to the one that has its place in the other, equal text."""
    at_place = [0] * len(other_ends)
    for number, colour in enumerate(other_ends):
        at_place[colour] = number
    return [at_place[colour] for colour in ends]


def _text(structure: _Structure, colours: Sequence[int]) -> str:
    """Write objects and facts with colours for names; constants keep theirs."""
    typed_names = []
    for kind, colour in zip(structure.kinds, colours, strict=True):
        typed_names.append(kind.replace("?", str(colour)))
    objects = []
    for _, typed_name in sorted(zip(colours, typed_names, strict=True)):
        objects.append(typed_name)
    # Types stand with the objects; facts have the names alone.
    names = [typed_name.split(" ")[0] for typed_name in typed_names]
    facts = []
    for label, arguments in structure.facts:
        argument_names = [names[number] for number in arguments]
        facts.append(" ".join([label, *argument_names]))
    facts.sort()
    return "; ".join([", ".join(objects), *facts])
