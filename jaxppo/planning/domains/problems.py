"""What the generators share: random counts, roads, regions and goals, and the text of a problem.

Digests of the data sets pin what the generators draw: a call of `rng` more or less, or facts in another order before
they are shuffled, gives other problems for the same seed.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

UNTYPED = "object"
"""The key of objects whose type a problem does not state."""


def numbered(word: str, count: int) -> tuple[str, ...]:
    """Make a pool of names: `word1` to `word<count>`."""
    return tuple(f"{word}{number}" for number in range(1, count + 1))


def draw_count(allowed: range, upper: int, rng: random.Random) -> int:
    """Draw a count uniformly from half of `upper` to `upper`, both moved into the allowed range."""
    upper = max(allowed[0], min(upper, allowed[-1]))
    return rng.randint(max(allowed[0], upper // 2), upper)


def shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    """Return the items in random order."""
    return rng.sample(items, len(items))


def draw_targets(
    starts: Mapping[str, str], places: Sequence[str], rng: random.Random
) -> dict[str, str]:
    """Draw a place for each object, uniform over all choices that move at least one object."""
    # All targets are drawn again, so that every other choice stays equally likely.
    while True:
        targets = {name: rng.choice(places) for name in starts}
        if targets != starts:
            return targets


def draw_goal(atoms: Sequence[str], init: Collection[str], rng: random.Random) -> list[str]:
    """Draw at least half of the atoms, among them one that does not hold at the start.

    Args:
        atoms: candidates, at least one of which is not in `init`.
        init: what holds at the start.
        rng: the only source of randomness.
    """
    # The first one is drawn apart: a goal that holds from the start would have the empty plan.
    first = rng.choice([atom for atom in atoms if atom not in init])
    remaining = [atom for atom in atoms if atom != first]
    return [first, *rng.sample(remaining, rng.randint(len(remaining) // 2, len(remaining)))]


def draw_roads(places: Sequence[str], n_extra: int, rng: random.Random) -> list[tuple[str, str]]:
    """Draw a connected graph: a spanning tree and up to `n_extra` more edges; each edge is listed once."""
    # Shuffled, so that no place is more often the root of the tree than others.
    order = shuffled(places, rng)
    # The tree: every place but the first has a road to one that comes before it.
    roads = [(place, rng.choice(order[:number])) for number, place in enumerate(order) if number]
    unused = []
    for number, place in enumerate(order):
        unused += [(place, earlier) for earlier in order[:number] if (place, earlier) not in roads]
    return roads + rng.sample(unused, min(n_extra, len(unused)))


def draw_region(n_cells: int, rng: random.Random) -> list[tuple[int, int]]:
    """Draw a connected region of the square grid, grown from (0, 0) by random neighbours.

    Returns:
        The cells; every one but the first is next to an earlier one.
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
    pairs = []
    for later, (x, y) in enumerate(cells):
        pairs += [
            (later, earlier)
            for earlier, (u, v) in enumerate(cells[:later])
            if abs(x - u) + abs(y - v) == 1
        ]
    return pairs


def both_ways(predicate: str, roads: Iterable[tuple[str, str]]) -> list[str]:
    """Write a symmetric relation as atoms."""
    atoms = []
    for a, b in roads:
        atoms += [f"({predicate} {a} {b})", f"({predicate} {b} {a})"]
    return atoms


def on_atoms(piles: Iterable[Sequence[str]]) -> list[str]:
    """Write `(on UPPER LOWER)` for all neighbours in piles, each of which is listed from the bottom."""
    atoms = []
    for pile in piles:
        atoms += [f"(on {upper} {lower})" for lower, upper in pairwise(pile)]
    return atoms


def write_problem(
    name: str,
    domain: str,
    objects: Mapping[str, Sequence[str]],
    init: Sequence[str],
    goal: Sequence[str],
    rng: random.Random,
) -> str:
    """Write PDDL text, with objects (by type), facts and goals in random order."""
    # Generators list facts kind by kind and draw the goal's
    # first atom apart: the order would tell what was drawn when.
    return problem_text(
        name, domain, _typed_lists(objects, rng), shuffled(init, rng), shuffled(goal, rng)
    )


def problem_text(
    name: str, domain: str, objects: str, init: Iterable[str], goal: Iterable[str]
) -> str:
    """Write PDDL text with everything in this order."""
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
            suffix = "" if kind == UNTYPED else f" - {kind}"
            lists.append(" ".join(shuffled(names, rng)) + suffix)
    return " ".join(shuffled(lists, rng))
