"""Random problems of the Towers of Hanoi."""

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

from jaxppo.planning.domains.problems import UNTYPED, check_count, draw_count, draw_goal, numbered, write_problem

POOLS = {"disc": numbered("disc", 7), "peg": numbered("peg", 5)}
"""Kind of object to the names it may have; each is one word of a word-level tokenizer."""
NAMES = tuple(name for pool in POOLS.values() for name in pool)
SIZES = range(2, 8)
"""Numbers of discs."""
TRAIN_SIZES = range(2, 6)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(6, 8)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(n_discs: int, rng: random.Random, name: str, *, n_pegs: int | None = None) -> str:
    """Write a random problem.

    Start and goal are drawn uniformly from all legal positions (not only full towers), and the goal states at least
    half of its position; the number of pegs, names (which say nothing about the size of a disc) and order vary. It is
    solvable: with three pegs or more every legal position can be reached from every other one, since the largest disc
    that is out of place can be freed by moving the smaller ones to a third peg.

    Args:
        n_discs: 2 to 7.
        rng: the only source of randomness.
        name: the problem's name.
        n_pegs: 3 to 5; drawn, at most 4, where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_discs", n_discs, SIZES)
    discs = rng.sample(POOLS["disc"], n_discs)  # from small to large
    pegs = rng.sample(POOLS["peg"], draw_count("n_pegs", n_pegs, range(3, 6), 4, rng))
    start = goal = [rng.choice(pegs) for _ in discs]
    while goal == start:
        goal = [rng.choice(pegs) for _ in discs]
    piles = _piles(discs, pegs, start)
    init = [
        *_places(piles),
        *(f"(clear {pile[-1]})" for pile in piles),
        *(f"(smaller {disc} {peg})" for disc in discs for peg in pegs),
        *(f"(smaller {small} {large})" for i, large in enumerate(discs) for small in discs[:i]),
    ]
    goal_atoms = draw_goal(_places(_piles(discs, pegs, goal)), init, rng)
    return write_problem(name, "hanoi", {UNTYPED: [*discs, *pegs]}, init, goal_atoms, rng)


def _piles(discs: Sequence[str], pegs: Sequence[str], position: Sequence[str]) -> list[list[str]]:
    """Each peg with its discs, from below; `position` is the peg of each disc."""
    placed = list(zip(discs, position, strict=True))[::-1]
    return [[peg, *(disc for disc, own in placed if own == peg)] for peg in pegs]


def _places(piles: Iterable[list[str]]) -> list[str]:
    return [f"(on {upper} {lower})" for pile in piles for lower, upper in pairwise(pile)]
