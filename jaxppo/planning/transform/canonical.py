"""One text for all problems that differ only in object names and in the order of atoms.

Colour refinement, then individualisation with backtracking where objects are still alike; a branch that ends in a text
already seen is an image of an earlier branch under a symmetry of the problem and is not followed, nor is the branch of
an object that may change places with an earlier one while all facts stay the same (a twin).
Source: McKay and Piperno, Practical graph isomorphism, II, Journal of Symbolic Computation 60 (2014).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxppo.planning.language.conditions import Condition, Literal, write_condition
from jaxppo.planning.language.numeric import write_expression
from jaxppo.planning.language.parse import Problem
from jaxppo.planning.language.task import compares_numbers

# A name that is no variable, no type (behind `-` or in `either`) and not what a form starts with.
_OBJECT = re.compile(r"(?<= )(?<!- )[a-z_][\w-]*+(?=[ )])")

Colours = tuple[int, ...]
"""For each object the number of objects in front of its class; objects of a class look alike so far."""


class _Fact(NamedTuple):
    label: str
    arguments: tuple[int, ...]


class _Structure(NamedTuple):
    """A problem as labelled facts over numbered objects."""

    kinds: tuple[str, ...]
    facts: tuple[_Fact, ...]
    occurrences: tuple[tuple[tuple[int, int, tuple[int, ...]], ...], ...]
    """For each object, its facts as (rank of the label, position in it, arguments)."""
    twins: tuple[int, ...]
    """For each object, the first one that it may change places with while all facts stay the same."""


def canonical_form(problem: Problem) -> str:
    """Write init and goal so that two problems of a domain get the same text exactly where a renaming maps them.

    Constants of the domain keep their names, objects keep their types, and the order of atoms does not count; numbers
    count where conditions compare them, and not where they only make costs. Inside a goal's `or`, `forall` and their
    like the order does count: such a part is compared as it is written.
    """
    structure = _structure(problem)
    kinds = sorted(structure.kinds)
    return _smallest_text(structure, _refine(structure, tuple(kinds.index(kind) for kind in structure.kinds)))


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
    return _Structure(kinds, tuple(facts), occurrences, _twins(kinds, occurrences))


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


def _twins(kinds: Sequence[str], occurrences: Sequence[Sequence[tuple[int, int, tuple[int, ...]]]]) -> tuple[int, ...]:
    """Compare each object with the first of every group that has facts like its own."""
    groups: dict[tuple[str, tuple[tuple[int, int], ...]], list[int]] = {}
    twins = []
    for number, (kind, facts) in enumerate(zip(kinds, occurrences, strict=True)):
        firsts = groups.setdefault((kind, tuple(sorted((label, position) for label, position, _ in facts))), [])
        twin = next((first for first in firsts if _may_swap(first, number, occurrences)), number)
        if twin == number:
            firsts.append(number)
        twins.append(twin)
    return tuple(twins)


def _may_swap(one: int, other: int, occurrences: Sequence[Sequence[tuple[int, int, tuple[int, ...]]]]) -> bool:
    """Return whether all facts stay the same when two objects of a kind change places."""
    swap = {one: other, other: one}
    swapped = [
        (label, position, tuple(swap.get(i, i) for i in arguments)) for label, position, arguments in occurrences[one]
    ]
    return sorted(swapped) == sorted(occurrences[other])


def _refine(structure: _Structure, colours: Colours) -> Colours:
    """Split classes by what their members' facts look like, until nothing splits."""
    while len(set(colours)) < len(colours):
        signatures = [
            (colour, sorted((label, position, [colours[i] for i in arguments]) for label, position, arguments in facts))
            for colour, facts in zip(colours, structure.occurrences, strict=True)
        ]
        finer = [0] * len(colours)
        order = sorted(range(len(colours)), key=signatures.__getitem__)
        for place, (before, number) in enumerate(zip(order[:1] + order, order, strict=False)):
            is_alike = place > 0 and signatures[before] == signatures[number]
            finer[number] = finer[before] if is_alike else place
        if tuple(finer) == colours:
            break
        colours = tuple(finer)
    return colours


def _smallest_text(structure: _Structure, colours: Colours) -> str:
    cell = _first_cell(colours)
    if not cell:
        return _text(structure, colours)
    choices = _one_of_each(structure, cell)
    if len(choices) == 1:
        return _smallest_text(structure, _individualise(structure, colours, cell))
    texts: list[str] = []
    ends: set[str] = set()
    for number in choices:
        branch = _individualise(structure, colours, [number])
        end = _any_text(structure, branch)
        if end not in ends:
            ends.add(end)
            texts.append(_smallest_text(structure, branch))
    return min(texts)


def _any_text(structure: _Structure, colours: Colours) -> str:
    """Return the text at the end of the branch that always takes the first object."""
    while cell := _first_cell(colours):
        is_one_kind = len(_one_of_each(structure, cell)) == 1
        colours = _individualise(structure, colours, cell if is_one_kind else cell[:1])
    return _text(structure, colours)


def _first_cell(colours: Colours) -> list[int]:
    """Return the objects of the first class with several members."""
    counts = Counter(colours)
    first = min((colour for colour, count in counts.items() if count > 1), default=None)
    return [number for number, colour in enumerate(colours) if colour == first]


def _one_of_each(structure: _Structure, cell: Iterable[int]) -> list[int]:
    """Take the first object of each group of twins: branches that take its twins end in the same texts."""
    return list({structure.twins[number]: number for number in reversed(list(cell))}.values())[::-1]


def _individualise(structure: _Structure, colours: Colours, chosen: Sequence[int]) -> Colours:
    """Put objects in front of the rest of their class, one by one.

    Several only where the class has no others and all are twins: everything else sees each of them alike, so that only
    the last one is worth a look at what splits.
    """
    finer = list(colours)
    for place, number in enumerate(chosen):
        finer[number] = colours[number] + place
    for number, colour in enumerate(colours):
        if colour == colours[chosen[0]] and number not in chosen:
            finer[number] = colour + len(chosen)
    return _refine(structure, tuple(finer))


def _text(structure: _Structure, colours: Colours) -> str:
    """Write the facts under the numbering that discrete colours are."""
    names = [kind.replace("?", str(colour)) for kind, colour in zip(structure.kinds, colours, strict=True)]
    objects = [name for _, name in sorted(zip(colours, names, strict=True))]
    short = [name.split(" ")[0] for name in names]
    facts = sorted(" ".join((label, *(short[number] for number in arguments))) for label, arguments in structure.facts)
    return "; ".join((", ".join(objects), *facts))
