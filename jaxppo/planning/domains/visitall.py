"""Random Visit-all problems."""

import random

from jaxppo.errors import ConfigError
from jaxppo.planning.domains.problems import (
    both_ways,
    check_count,
    draw_goal,
    draw_region,
    neighbours,
    numbered,
    write_problem,
)

POOLS = {"cell": numbered("cell", 30)}
"""Type to the names that its objects may have; each is one word of a word-level tokenizer."""
NAMES = POOLS["cell"]
SIZES = range(4, 31)
"""Numbers of cells."""
TRAIN_SIZES = range(4, 17)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(17, 27)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(n_cells: int, rng: random.Random, name: str, *, openness: float | None = None) -> str:
    """Write a random problem.

    The map is a region of the square grid that grows at random, with walls between some neighbours; its shape, the
    walls, the robot's cell, which cells it must visit (at least half), names and order vary. It is solvable: every cell
    has a way to an earlier one, so the map is connected, and ways go in both directions.

    Args:
        n_cells: 4 to 30.
        rng: the only source of randomness.
        name: the problem's name.
        openness: how many of the ways that the map could do without are open, from 0 (a tree) to 1; drawn from 0.3 to 1
            where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_cells", n_cells, SIZES)
    if openness is not None and not 0 <= openness <= 1:
        raise ConfigError(f"openness: expected 0 to 1, got {openness}")
    share = rng.uniform(0.3, 1) if openness is None else openness
    cells = rng.sample(POOLS["cell"], n_cells)
    start = rng.choice(cells)
    ways = [(cells[a], cells[b]) for a, b in _ways(n_cells, share, rng)]
    init = [f"(at-robot {start})", f"(visited {start})", *both_ways("connected", ways)]
    goal = draw_goal([f"(visited {cell})" for cell in cells], init, rng)
    return write_problem(name, "visitall", {"cell": cells}, init, goal, rng)


def _ways(n_cells: int, openness: float, rng: random.Random) -> list[tuple[int, int]]:
    """Pairs of connected cells: each cell with one earlier neighbour, and a share of the other pairs of neighbours."""
    pairs = neighbours(draw_region(n_cells, rng))
    tree = [rng.choice([pair for pair in pairs if pair[0] == cell]) for cell in range(1, n_cells)]
    return tree + [pair for pair in pairs if pair not in tree and rng.random() < openness]
