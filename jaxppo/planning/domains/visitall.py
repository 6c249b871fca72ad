"""Visit-all: a robot walks over a map until it has seen the wanted cells."""

import random

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import (
    both_ways,
    draw_goal,
    draw_region,
    neighbours,
    numbered,
    write_problem,
)

POOLS = {"cell": numbered("cell", 30)}


def draw_problem(n_cells: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    The map is a region of the square grid that grows at random, with walls between some neighbours; its shape, the
    walls, the robot's cell, which cells it must visit (at least half), names and order vary. It is solvable: every cell
    has a way to an earlier one, so the map is connected, and ways go in both directions.
    """
    openness = rng.uniform(0.3, 1)  # share of the ways that the map could do without
    cells = rng.sample(POOLS["cell"], n_cells)
    start = rng.choice(cells)
    ways = [(cells[a], cells[b]) for a, b in _draw_ways(n_cells, openness, rng)]
    # The first cell counts as visited without a step.
    init = [f"(at-robot {start})", f"(visited {start})", *both_ways("connected", ways)]
    goal = draw_goal([f"(visited {cell})" for cell in cells], init, rng)
    return write_problem(name, "visitall", {"cell": cells}, init, goal, rng)


def _draw_ways(n_cells: int, openness: float, rng: random.Random) -> list[tuple[int, int]]:
    """Draw pairs of connected cells: each with one earlier neighbour, and a share of the other pairs of neighbours."""
    pairs = neighbours(draw_region(n_cells, rng))
    # Every cell of a region is next to an earlier one, so
    # that one such way for each makes a spanning tree.
    tree = []
    for cell in range(1, n_cells):
        tree.append(rng.choice([pair for pair in pairs if pair[0] == cell]))
    # The others that the region allows, each with the probability `openness`.
    return tree + [pair for pair in pairs if pair not in tree and rng.random() < openness]


VISITALL = PlanningDomain(
    name="visitall",
    sizes=range(4, 31),
    train_sizes=range(4, 17),
    larger_sizes=range(17, 27),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about="A robot walks from cell to cell and must visit some of them.",
        kinds={
            "cell": ("a cell", "cells"),
            "object": ("something", "anything"),
        },
        predicates={
            "connected": "a way leads from {0} to {1}",
            "at-robot": "the robot is on {0}",
            "visited": "{0} has been visited",
        },
        actions={
            "move": "walk from {0} to {1}",
        },
    ),
)
