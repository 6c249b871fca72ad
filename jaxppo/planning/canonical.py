"""One text for all problems that differ only in object names and in the order of atoms.

Colour refinement, then individualisation with backtracking where objects are still alike; a branch that ends in a text
already seen is an image of an earlier branch under a symmetry of the problem and is not followed.
Source: McKay and Piperno, Practical graph isomorphism, II, Journal of Symbolic Computation 60 (2014).
"""

from collections.abc import Iterable
from typing import NamedTuple

from jaxppo.planning.pddl import Problem

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


def canonical_form(problem: Problem) -> str:
    """Write init and goal so that two problems of a domain get the same text exactly where a renaming maps them.

    Constants of the domain keep their names, objects keep their types, and the order of atoms does not count.
    """
    structure = _structure(problem)
    kinds = sorted(structure.kinds)
    return _smallest_text(structure, _refine(structure, tuple(kinds.index(kind) for kind in structure.kinds)))


def _structure(problem: Problem) -> _Structure:
    index = {name: number for number, name in enumerate(problem.objects)}
    constants = problem.domain.constants
    kinds = tuple(
        name if name in constants else f"? - {'|'.join(sorted(types))}" for name, types in problem.objects.items()
    )
    facts = [_Fact(f"init {atom[0]}", tuple(index[name] for name in atom[1:])) for atom in problem.init_order]
    for literal in dict.fromkeys(problem.goal):
        sign = "goal" if literal.positive else "goal not"
        facts.append(_Fact(f"{sign} {literal.atom[0]}", tuple(index[name] for name in literal.atom[1:])))
    return _Structure(kinds, tuple(facts), _occurrences(facts, len(index)))


def _occurrences(facts: Iterable[_Fact], n_objects: int) -> tuple[tuple[tuple[int, int, tuple[int, ...]], ...], ...]:
    labels = {label: rank for rank, label in enumerate(sorted({fact.label for fact in facts}))}
    found: list[list[tuple[int, int, tuple[int, ...]]]] = [[] for _ in range(n_objects)]
    for label, arguments in facts:
        for position, number in enumerate(arguments):
            found[number].append((labels[label], position, arguments))
    return tuple(map(tuple, found))


def _refine(structure: _Structure, colours: Colours) -> Colours:
    """Split classes by what their members' facts look like, until nothing splits."""
    while len(set(colours)) < len(colours):
        signatures = [
            (colour, sorted((label, position, [colours[i] for i in arguments]) for label, position, arguments in facts))
            for colour, facts in zip(colours, structure.occurrences, strict=True)
        ]
        ordered = sorted(signatures)
        finer = tuple(ordered.index(signature) for signature in signatures)
        if finer == colours:
            break
        colours = finer
    return colours


def _smallest_text(structure: _Structure, colours: Colours) -> str:
    cell = _first_cell(colours)
    if not cell:
        return _text(structure, colours)
    texts: list[str] = []
    ends: set[str] = set()
    for number in cell:
        branch = _individualise(structure, colours, number)
        end = _any_text(structure, branch)
        if end not in ends:
            ends.add(end)
            texts.append(_smallest_text(structure, branch))
    return min(texts)


def _any_text(structure: _Structure, colours: Colours) -> str:
    """The text at the end of the branch that always takes the first object."""
    while cell := _first_cell(colours):
        colours = _individualise(structure, colours, cell[0])
    return _text(structure, colours)


def _first_cell(colours: Colours) -> list[int]:
    """The objects of the first class with several members."""
    repeated = [colour for colour in colours if colours.count(colour) > 1]
    return [number for number, colour in enumerate(colours) if colour == min(repeated)] if repeated else []


def _individualise(structure: _Structure, colours: Colours, chosen: int) -> Colours:
    """Put one object in front of the rest of its class."""
    rest = [colour + (colour == colours[chosen] and number != chosen) for number, colour in enumerate(colours)]
    return _refine(structure, tuple(rest))


def _text(structure: _Structure, colours: Colours) -> str:
    """The facts under the numbering that discrete colours are."""
    names = [kind.replace("?", str(colour)) for kind, colour in zip(structure.kinds, colours, strict=True)]
    objects = [name for _, name in sorted(zip(colours, names, strict=True))]
    short = [name.split(" ")[0] for name in names]
    facts = sorted(" ".join((label, *(short[number] for number in arguments))) for label, arguments in structure.facts)
    return "; ".join((", ".join(objects), *facts))
