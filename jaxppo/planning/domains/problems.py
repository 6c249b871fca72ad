"""What the generators share: random counts, roads, regions and goals, and the text of a problem."""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

UNTYPED = "object"
"""The key of objects whose type a problem does not state."""


def numbered(word: str, count: int) -> tuple[str, ...]:
    """Make a pool of names: `word1` to `word<count>`."""
    return tuple(f"{word}{number}" for number in range(1, count + 1))


def draw_count(allowed: range, most: int, rng: random.Random) -> int:
    """Draw a count uniformly from half of `most` to `most`, as far as that is allowed."""
    most = max(allowed[0], min(most, allowed[-1]))
    return rng.randint(max(allowed[0], most // 2), most)


def shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    """Return the items in random order."""
    return rng.sample(items, len(items))


def draw_targets(starts: Mapping[str, str], places: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Draw a place for each object, uniform over all choices in which not every object stays where it is."""
    while True:
        targets = {name: rng.choice(places) for name in starts}
        if targets != starts:
            return targets


def draw_goal(atoms: Sequence[str], init: Collection[str], rng: random.Random) -> list[str]:
    """Draw at least half of the atoms, at least one of which does not hold yet; some atom must not hold."""
    first = rng.choice([atom for atom in atoms if atom not in init])
    others = [atom for atom in atoms if atom != first]
    return [first, *rng.sample(others, rng.randint(len(others) // 2, len(others)))]


def draw_roads(places: Sequence[str], n_extra: int, rng: random.Random) -> list[tuple[str, str]]:
    """Draw a connected graph: a spanning tree and up to `n_extra` more edges; each edge is listed once."""
    order = shuffled(places, rng)
    roads = [(place, rng.choice(order[:number])) for number, place in enumerate(order) if number]
    missing = [
        (place, other)
        for number, place in enumerate(order)
        for other in order[:number]
        if (place, other) not in roads and (other, place) not in roads
    ]
    return roads + rng.sample(missing, min(n_extra, len(missing)))


def draw_region(n_cells: int, rng: random.Random) -> list[tuple[int, int]]:
    """Draw a connected region of the square grid, grown from (0, 0) by random neighbours: its cells in this order.

    Every cell but the first is next to an earlier one.
    """
    cells = [(0, 0)]
    while len(cells) < n_cells:
        x, y = rng.choice(cells)
        dx, dy = rng.choice(((1, 0), (-1, 0), (0, 1), (0, -1)))
        if (x + dx, y + dy) not in cells:
            cells.append((x + dx, y + dy))
    return cells


def neighbours(cells: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """List the pairs (later, earlier) of numbers of cells that share a side."""
    return [
        (later, earlier)
        for later, (x, y) in enumerate(cells)
        for earlier, (u, v) in enumerate(cells[:later])
        if abs(x - u) + abs(y - v) == 1
    ]


def both_ways(predicate: str, roads: Iterable[tuple[str, str]]) -> list[str]:
    """Write a symmetric relation as atoms."""
    return [atom for a, b in roads for atom in (f"({predicate} {a} {b})", f"({predicate} {b} {a})")]


def write_problem(
    name: str,
    domain: str,
    objects: Mapping[str, Sequence[str]],
    init: Sequence[str],
    goal: Sequence[str],
    rng: random.Random,
) -> str:
    """Write PDDL text, with objects (by type), facts and goals in random order."""
    return problem_text(name, domain, _typed_lists(objects, rng), shuffled(init, rng), shuffled(goal, rng))


def problem_text(name: str, domain: str, objects: str, init: Iterable[str], goal: Iterable[str]) -> str:
    """Write PDDL text, everything in the order given."""
    return (
        f"(define (problem {name})\n"
        f"  (:domain {domain})\n"
        f"  (:objects {objects})\n"
        f"  (:init {' '.join(init)})\n"
        f"  (:goal (and {' '.join(goal)})))\n"
    )


def _typed_lists(objects: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    lists = []
    for kind, names in objects.items():
        if names:
            lists.append(" ".join(shuffled(names, rng)) + ("" if kind == UNTYPED else f" - {kind}"))
    return " ".join(shuffled(lists, rng))
