"""Towers of Hanoi: discs change pegs one at a time, never a larger one on a smaller one."""

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import UNTYPED, draw_count, draw_goal, numbered, write_problem

POOLS = {"disc": numbered("disc", 7), "peg": numbered("peg", 5)}


def draw_problem(n_discs: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    Start and goal are drawn uniformly from all legal positions (not only full towers), and the goal states at least
    half of its position; the number of pegs, names (which say nothing about the size of a disc) and order vary. It is
    solvable: with three pegs or more every legal position can be reached from every other one, since the largest disc
    that is out of place can be freed by moving the smaller ones to a third peg.
    """
    discs = rng.sample(POOLS["disc"], n_discs)  # from small to large
    pegs = rng.sample(POOLS["peg"], draw_count(range(3, 6), 4, rng))
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
    """List each peg with its discs, from below; `position` is the peg of each disc."""
    placed = list(zip(discs, position, strict=True))[::-1]
    return [[peg, *(disc for disc, own in placed if own == peg)] for peg in pegs]


def _places(piles: Iterable[list[str]]) -> list[str]:
    return [f"(on {upper} {lower})" for pile in piles for lower, upper in pairwise(pile)]


HANOI = PlanningDomain(
    name="hanoi",
    counts="discs",
    sizes=range(2, 8),
    train_sizes=range(2, 6),
    larger_sizes=range(6, 8),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about=(
            "Discs are piled on pegs. A disc that nothing lies on can be moved onto a peg or a larger disc that "
            "nothing lies on."
        ),
        kinds={
            "object": ("a disc or a peg", "discs and pegs"),
        },
        predicates={
            "on": "{0} is on {1}",
            "clear": "nothing lies on {0}",
            "smaller": "{1} can carry {0}",
        },
        actions={
            "move": "move {0} from {1} onto {2}",
        },
    ),
    unseen=True,
)
