"""Random Depots problems."""

import random
from collections.abc import Iterable
from itertools import pairwise

from jaxppo.planning.domains.problems import check_count, draw_count, draw_goal, numbered, shuffled, write_problem

POOLS = {
    "depot": numbered("depot", 4),
    "distributor": numbered("distributor", 4),
    "truck": numbered("truck", 3),
    "hoist": numbered("hoist", 6),
    "pallet": numbered("pallet", 8),
    "crate": numbered("crate", 8),
}
"""Type to the names that its objects may have; each is one word of a word-level tokenizer."""
NAMES = tuple(name for pool in POOLS.values() for name in pool)
SIZES = range(1, 9)
"""Numbers of crates."""
TRAIN_SIZES = range(1, 5)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(5, 7)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(
    n_crates: int, rng: random.Random, name: str, *, n_places: int | None = None, n_trucks: int | None = None
) -> str:
    """Write a random problem.

    The piles at the start and in the goal, how much of the goal's piles is asked for (at least half), the kinds and
    number of places, spare pallets, hoists and trucks, names and order vary. It is solvable: every place has a hoist
    and is open to all trucks, which carry any number of crates, so all piles can be loaded from the top and the goal's
    piles built from the bottom.

    Args:
        n_crates: 1 to 8.
        rng: the only source of randomness.
        name: the problem's name.
        n_places: 2 to 4; drawn, at most `2 + n_crates // 2`, where None.
        n_trucks: 1 to 3; drawn, at most 2, where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_crates", n_crates, SIZES)
    places = _draw_places(draw_count("n_places", n_places, range(2, 5), 2 + n_crates // 2, rng), rng)
    trucks = rng.sample(POOLS["truck"], draw_count("n_trucks", n_trucks, range(1, 4), 2, rng))
    hoists = _spread("hoist", places, 2, rng)
    pallets = _spread("pallet", places, 3, rng)
    crates = rng.sample(POOLS["crate"], n_crates)
    piles = goal_piles = _draw_piles(crates, pallets, rng)
    while sorted(goal_piles) == sorted(piles):
        goal_piles = _draw_piles(crates, pallets, rng)
    init = [
        *(f"(at {truck} {rng.choice(places)})" for truck in trucks),
        *(f"{fact}" for hoist, place in hoists.items() for fact in (f"(at {hoist} {place})", f"(available {hoist})")),
        *(f"(at {surface} {pallets[pile[0]]})" for pile in piles for surface in pile),
        *(f"(clear {pile[-1]})" for pile in piles),
        *_on(piles),
    ]
    objects = {
        "depot": [place for place in places if place in POOLS["depot"]],
        "distributor": [place for place in places if place in POOLS["distributor"]],
        "truck": trucks,
        "hoist": list(hoists),
        "pallet": list(pallets),
        "crate": crates,
    }
    return write_problem(name, "depots", objects, init, draw_goal(_on(goal_piles), init, rng), rng)


def _draw_places(n_places: int, rng: random.Random) -> list[str]:
    n_depots = rng.randint(1, n_places - 1)
    return [*rng.sample(POOLS["depot"], n_depots), *rng.sample(POOLS["distributor"], n_places - n_depots)]


def _spread(kind: str, places: list[str], most_spare: int, rng: random.Random) -> dict[str, str]:
    """Objects of a kind to their places: one for every place, and some spare ones."""
    where = [*places, *rng.choices(places, k=rng.randint(0, most_spare))]
    return dict(zip(rng.sample(POOLS[kind], len(where)), where, strict=True))


def _draw_piles(crates: list[str], pallets: Iterable[str], rng: random.Random) -> list[list[str]]:
    """Each pallet with its crates, from below."""
    piles = [[pallet] for pallet in pallets]
    for crate in shuffled(crates, rng):
        rng.choice(piles).append(crate)
    return piles


def _on(piles: Iterable[list[str]]) -> list[str]:
    return [f"(on {upper} {lower})" for pile in piles for lower, upper in pairwise(pile)]
