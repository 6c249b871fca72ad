"""Depots: hoists stack crates on pallets, trucks carry crates between places."""

import random
from collections.abc import Iterable

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import (
    draw_count,
    draw_goal,
    numbered,
    on_atoms,
    shuffled,
    write_problem,
)

POOLS = {
    "depot": numbered("depot", 4),
    "distributor": numbered("distributor", 4),
    "truck": numbered("truck", 3),
    "hoist": numbered("hoist", 6),
    "pallet": numbered("pallet", 8),
    "crate": numbered("crate", 8),
}


def draw_problem(n_crates: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    The piles at the start and in the goal, how much of the goal's piles is asked for (at least half), the kinds and
    number of places, spare pallets, hoists and trucks, names and order vary. It is solvable: every place has a hoist
    and is open to all trucks, which carry any number of crates, so all piles can be loaded from the top and the goal's
    piles built from the bottom.
    """
    n_places = draw_count(range(2, 5), 2 + n_crates // 2, rng)
    n_depots = rng.randint(1, n_places - 1)
    depots = rng.sample(POOLS["depot"], n_depots)
    distributors = rng.sample(POOLS["distributor"], n_places - n_depots)
    places = depots + distributors
    trucks = rng.sample(POOLS["truck"], draw_count(range(1, 4), 2, rng))
    hoists = _draw_places("hoist", places, 2, rng)
    pallets = _draw_places("pallet", places, 3, rng)
    crates = rng.sample(POOLS["crate"], n_crates)
    piles = _draw_piles(crates, pallets, rng)
    goal_piles = piles
    # Drawn again until the piles differ, in whatever order they
    # are listed; the goal would hold at the start otherwise.
    while sorted(goal_piles) == sorted(piles):
        goal_piles = _draw_piles(crates, pallets, rng)
    init = [f"(at {truck} {rng.choice(places)})" for truck in trucks]
    # Hoists stay where they are and begin with nothing in them.
    for hoist, place in hoists.items():
        init += [f"(at {hoist} {place})", f"(available {hoist})"]
    for pile in piles:
        # Crates are at the place of the pallet below them.
        init += [f"(at {surface} {pallets[pile[0]]})" for surface in pile]
    init += [f"(clear {pile[-1]})" for pile in piles]
    init += on_atoms(piles)
    objects = {
        "depot": depots,
        "distributor": distributors,
        "truck": trucks,
        "hoist": list(hoists),
        "pallet": list(pallets),
        "crate": crates,
    }
    return write_problem(
        name, "depots", objects, init, draw_goal(on_atoms(goal_piles), init, rng), rng
    )


def _draw_places(
    kind: str, places: list[str], max_spare: int, rng: random.Random
) -> dict[str, str]:
    """Draw objects of a kind and their places: one for every place, and some spare ones."""
    assigned = [*places, *rng.choices(places, k=rng.randint(0, max_spare))]
    return dict(zip(rng.sample(POOLS[kind], len(assigned)), assigned, strict=True))


def _draw_piles(crates: list[str], pallets: Iterable[str], rng: random.Random) -> list[list[str]]:
    """Draw each pallet with its crates, from the bottom."""
    piles = [[pallet] for pallet in pallets]
    for crate in shuffled(crates, rng):
        rng.choice(piles).append(crate)
    return piles


DEPOTS = PlanningDomain(
    name="depots",
    sizes=range(1, 9),
    train_sizes=range(1, 5),
    larger_sizes=range(5, 7),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about="Crates are piled on pallets. Hoists lift and drop them, and trucks carry them from place to place.",
        kinds={
            "place": ("a place", "places"),
            "locatable": ("a thing with a place", "things with a place"),
            "depot": ("a depot", "depots"),
            "distributor": ("a distributor", "distributors"),
            "truck": ("a truck", "trucks"),
            "hoist": ("a hoist", "hoists"),
            "surface": ("a surface", "surfaces"),
            "pallet": ("a pallet", "pallets"),
            "crate": ("a crate", "crates"),
            "object": ("something", "anything"),
        },
        predicates={
            "at": "{0} is at {1}",
            "on": "{0} stands on {1}",
            "in": "{0} is in {1}",
            "clear": "nothing stands on {0}",
            "lifting": "{0} holds {1}",
            "available": "{0} holds nothing",
        },
        actions={
            "drive": "drive {0} from {1} to {2}",
            "lift": "use {0} to lift {1} from {2} at {3}",
            "drop": "use {0} to drop {1} onto {2} at {3}",
            "load": "use {0} to load {1} into {2} at {3}",
            "unload": "use {0} to unload {1} out of {2} at {3}",
        },
    ),
)
