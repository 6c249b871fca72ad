"""Towers of Hanoi: discs change pegs one at a time, never a larger one on a smaller one."""

import random
from collections.abc import Sequence

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import (
    UNTYPED,
    draw_count,
    draw_goal,
    numbered,
    on_atoms,
    write_problem,
)

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
    # A legal position is nothing but a peg for each
    # disc: on a peg, discs can lie in one order only.
    start = [rng.choice(pegs) for _ in discs]
    goal = start
    while goal == start:
        goal = [rng.choice(pegs) for _ in discs]
    # The names of discs say nothing of their size, so facts state it for all pairs.
    piles = _piles(discs, pegs, start)
    init = on_atoms(piles)
    init += [f"(clear {pile[-1]})" for pile in piles]
    # Pegs count as larger than all discs: the domain has one action for moves to pegs and to discs.
    for disc in discs:
        init += [f"(smaller {disc} {peg})" for peg in pegs]
    for number, disc in enumerate(discs):
        init += [f"(smaller {smaller} {disc})" for smaller in discs[:number]]
    goal_atoms = draw_goal(on_atoms(_piles(discs, pegs, goal)), init, rng)
    return write_problem(name, "hanoi", {UNTYPED: [*discs, *pegs]}, init, goal_atoms, rng)


def _piles(discs: Sequence[str], pegs: Sequence[str], position: Sequence[str]) -> list[list[str]]:
    """List each peg with its discs, from the bottom; `position` is the peg of each disc."""
    piles = {peg: [peg] for peg in pegs}
    # The discs come from small to large, and the largest lies lowest.
    for disc, peg in zip(reversed(discs), reversed(position), strict=True):
        piles[peg].append(disc)
    return list(piles.values())


HANOI = PlanningDomain(
    name="hanoi",
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
