"""Random Blocksworld problems: start and goal uniform over all states of n blocks.

Placing block after block at random favours few tall towers; the counts below remove that bias.
Source: Slaney and Thiebaux, Blocks World revisited, Artificial Intelligence 125 (2001).
"""

import random
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

from jaxppo.errors import ConfigError

NAMES = tuple("abcdefghijklmnop")
"""The pool of block names; each is one word of a word-level tokenizer."""
POOLS = {"block": NAMES}
"""Kind of object to the names it may have."""
SIZES = range(2, len(NAMES) + 1)
"""Numbers of blocks."""
TRAIN_SIZES = range(2, 9)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(9, 13)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(n_blocks: int, rng: random.Random, name: str) -> str:
    """Write a random problem: start, goal (a complete state other than the start), names and atom order vary.

    Args:
        n_blocks: 2 to 16.
        rng: the only source of randomness.
        name: the problem's name.

    Returns:
        PDDL text.

    Raises:
        ConfigError: there are not enough names, or only one state, for that many blocks.
    """
    if n_blocks not in SIZES:
        raise ConfigError(f"n_blocks: expected {SIZES[0]} to {SIZES[-1]}, got {n_blocks}")
    blocks = rng.sample(NAMES, n_blocks)
    start, goal = random_towers(blocks, rng), random_towers(blocks, rng)
    while sorted(goal) == sorted(start):
        start, goal = random_towers(blocks, rng), random_towers(blocks, rng)
    init = [*_places(start), *(f"(clear {tower[-1]})" for tower in start), "(handempty)"]
    return _problem_pddl(name, blocks, _shuffled(init, rng), _shuffled(_places(goal), rng))


def random_towers(blocks: Iterable[str], rng: random.Random) -> list[list[str]]:
    """Draw a state uniformly: its towers, each listed from the table upwards.

    A loose tower is put on the table, or on another tower (loose or standing), with probabilities proportional to the
    number of states that each choice still allows.
    """
    loose, standing = [[block] for block in blocks], []
    while loose:
        tower = loose.pop()
        choice = rng.randrange(count_states(len(loose) + 1, len(standing)))
        on_table = count_states(len(loose), len(standing) + 1)
        if choice < on_table:
            standing.append(tower)
        else:
            others = loose + standing
            others[(choice - on_table) // count_states(len(loose), len(standing))].extend(tower)
    return standing


@cache
def count_states(n_loose: int, n_standing: int) -> int:
    """The number of states that n loose and k standing towers can still become.

    `g(0, k) = 1` and `g(n + 1, k) = g(n, k + 1) + (n + k) g(n, k)`.

    Source: Slaney and Thiebaux (2001).
    """
    if n_loose == 0:
        return 1
    rest = n_loose - 1
    return count_states(rest, n_standing + 1) + (rest + n_standing) * count_states(rest, n_standing)


def _places(towers: Iterable[list[str]]) -> list[str]:
    """One `on` or `ontable` atom per block."""
    atoms = []
    for tower in towers:
        atoms.append(f"(ontable {tower[0]})")
        atoms.extend(f"(on {upper} {lower})" for lower, upper in pairwise(tower))
    return atoms


def _shuffled(atoms: list[str], rng: random.Random) -> list[str]:
    return rng.sample(atoms, len(atoms))


def _problem_pddl(name: str, blocks: Iterable[str], init: Iterable[str], goal: Iterable[str]) -> str:
    return (
        f"(define (problem {name})\n"
        f"  (:domain blocksworld)\n"
        f"  (:objects {' '.join(blocks)})\n"
        f"  (:init {' '.join(init)})\n"
        f"  (:goal (and {' '.join(goal)})))\n"
    )
