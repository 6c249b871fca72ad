"""Blocksworld: rebuild towers of blocks with one hand; start and goal uniform over all states of n blocks.

Placing block after block at random favours few tall towers; the counts below remove that bias.
Source: Slaney and Thiebaux, Blocks World revisited, Artificial Intelligence 125 (2001).
"""

import random
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import problem_text, shuffled
from jaxppo.planning.solve.blocksworld import solve

POOLS = {"block": tuple("abcdefghijklmnop")}


def draw_problem(n_blocks: int, rng: random.Random, name: str) -> str:
    """Write a random problem: start, goal (a complete state other than the start), names and atom order vary."""
    blocks = rng.sample(POOLS["block"], n_blocks)
    start = random_towers(blocks, rng)
    goal = random_towers(blocks, rng)
    # Sorted, since the order of the towers means nothing.
    while sorted(goal) == sorted(start):
        start = random_towers(blocks, rng)
        goal = random_towers(blocks, rng)
    # The names of the blocks are in random order already, the atoms are shuffled.
    clear = [f"(clear {tower[-1]})" for tower in start]
    init = [*_place_atoms(start), *clear, "(handempty)"]
    return problem_text(
        name,
        "blocksworld",
        " ".join(blocks),
        shuffled(init, rng),
        shuffled(_place_atoms(goal), rng),
    )


def random_towers(blocks: Iterable[str], rng: random.Random) -> list[list[str]]:
    """Draw a state uniformly: its towers, each listed from the table upwards.

    A loose tower is put on the table, or on another tower (loose or standing), with probabilities proportional to the
    number of states that each choice still allows.
    """
    loose = [[block] for block in blocks]
    standing: list[list[str]] = []
    while loose:
        tower = loose.pop()
        # One number decides: each state that is still possible owns one value, first those with
        # this tower on the table, then as many for every tower that it may be put on.
        state = rng.randrange(count_states(len(loose) + 1, len(standing)))
        n_on_table = count_states(len(loose), len(standing) + 1)
        if state < n_on_table:
            standing.append(tower)
        else:
            n_on_each_tower = count_states(len(loose), len(standing))
            towers = loose + standing
            towers[(state - n_on_table) // n_on_each_tower].extend(tower)
    return standing


@cache
def count_states(n_loose: int, n_standing: int) -> int:
    """Count the states that n loose and k standing towers can still become.

    `g(0, k) = 1` and `g(n + 1, k) = g(n, k + 1) + (n + k) g(n, k)`.

    Source: Slaney and Thiebaux (2001).
    """
    if n_loose == 0:
        return 1
    on_table = count_states(n_loose - 1, n_standing + 1)
    on_each_tower = count_states(n_loose - 1, n_standing)
    return on_table + (n_loose - 1 + n_standing) * on_each_tower


def _place_atoms(towers: Iterable[list[str]]) -> list[str]:
    """Write one `on` or `ontable` atom per block."""
    atoms = []
    for tower in towers:
        atoms.append(f"(ontable {tower[0]})")
        atoms.extend(f"(on {upper} {lower})" for lower, upper in pairwise(tower))
    return atoms


BLOCKSWORLD = PlanningDomain(
    name="blocksworld",
    sizes=range(2, 17),
    train_sizes=range(2, 9),
    larger_sizes=range(9, 13),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about="Blocks stand on a table or on one another, and one hand moves them. The hand holds one block at most.",
        kinds={
            "object": ("a block", "blocks"),
        },
        predicates={
            "on": "block {0} is on block {1}",
            "ontable": "block {0} is on the table",
            "clear": "nothing is on block {0}",
            "handempty": "the hand is empty",
            "holding": "the hand holds block {0}",
        },
        actions={
            "pick-up": "pick up block {0}",
            "put-down": "put down block {0}",
            "stack": "stack block {0} on block {1}",
            "unstack": "unstack block {0} from block {1}",
        },
    ),
    solve=solve,
    planner="astar-optimal",
)
