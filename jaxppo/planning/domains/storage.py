"""Storage: hoists bring crates from containers into depots without blocking their own way."""

import random
from collections.abc import Sequence
from itertools import chain

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import (
    both_ways,
    draw_count,
    draw_goal,
    draw_region,
    neighbours,
    numbered,
    write_problem,
)

POOLS = {
    "cell": numbered("cell", 24),
    "dock": ("dock1", "dock2"),
    "depot": numbered("depot", 2),
    "container": numbered("container", 3),
    "hoist": numbered("hoist", 3),
    "crate": numbered("crate", 6),
}


def draw_problem(n_crates: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    The depots' shapes and doors, where the hoists are (in a depot's cell or at the dock), how crates share containers,
    which depot each crate must get into (at least half must), spare cells, all numbers, names and order vary. It is
    solvable: the hoists leave the depots, those near the door first; then one of them takes the crates one by one and
    fills each depot from the cells far from a door to the near ones. A depot has a cell for each of its crates; its
    cells are connected, and the dock is next to a door of each depot and to all cells of the containers that are used.
    """
    crates = rng.sample(POOLS["crate"], n_crates)
    hoists = rng.sample(POOLS["hoist"], draw_count(range(1, 4), 2, rng))
    depots = rng.sample(POOLS["depot"], draw_count(range(1, 3), 2, rng))
    containers = rng.sample(POOLS["container"], rng.randint(1, min(3, n_crates)))
    dock = rng.choice(POOLS["dock"])
    targets = {crate: rng.choice(depots) for crate in crates}
    unused_cells = rng.sample(POOLS["cell"], len(POOLS["cell"]))
    rooms = {}
    for depot in depots:
        n_targets = list(targets.values()).count(depot)
        # Two cells more than its crates need, at least.
        rooms[depot] = _pop_names(unused_cells, rng.randint(n_targets + 2, 2 * n_targets + 2))
    room_cells = list(chain.from_iterable(rooms.values()))
    # A cell has room for one hoist, the dock for all of them.
    hoist_areas = rng.sample([*room_cells, *[dock] * len(hoists)], len(hoists))
    # The container of each crate: every container has one.
    homes = [*containers, *rng.choices(containers, k=n_crates - len(containers))]
    # Each crate has a cell in its container; containers have no other cells.
    slots = _pop_names(unused_cells, n_crates)
    init = both_ways("connected", _draw_ways(list(rooms.values()), slots, dock, rng))
    for depot, room in rooms.items():
        init += [f"(part-of {cell} {depot})" for cell in room]
    init += [f"(part-of {slot} {home})" for slot, home in zip(slots, homes, strict=True)]
    init += [f"(on {crate} {slot})" for crate, slot in zip(crates, slots, strict=True)]
    init += [f"(in {crate} {home})" for crate, home in zip(crates, homes, strict=True)]
    init += [f"(at {hoist} {area})" for hoist, area in zip(hoists, hoist_areas, strict=True)]
    init += [f"(available {hoist})" for hoist in hoists]
    init += [f"(clear {cell})" for cell in room_cells if cell not in hoist_areas]
    # A crate may be anywhere in its depot.
    goal = draw_goal([f"(in {crate} {depot})" for crate, depot in targets.items()], init, rng)
    objects = {
        "cell": slots + room_cells,
        "dock": [dock],
        "depot": depots,
        "container": containers,
        "hoist": hoists,
        "crate": crates,
    }
    return write_problem(name, "storage", objects, init, goal, rng)


def _pop_names(names: list[str], count: int) -> list[str]:
    """Remove the last names from a list and return them."""
    return [names.pop() for _ in range(count)]


def _draw_ways(
    rooms: Sequence[Sequence[str]], slots: Sequence[str], dock: str, rng: random.Random
) -> list[tuple[str, str]]:
    """Draw pairs of areas next to each other: in the depots, and the dock with doors and the containers' cells."""
    ways = [(slot, dock) for slot in slots]
    for room in rooms:
        # The first cell is always a door, so that the dock reaches
        # every depot; up to a quarter of the others are, too.
        doors = [room[0], *rng.sample(room[1:], rng.randint(0, len(room) // 4))]
        ways += [(door, dock) for door in doors]
        ways += [(room[a], room[b]) for a, b in neighbours(draw_region(len(room), rng))]
    return ways


STORAGE = PlanningDomain(
    name="storage",
    sizes=range(1, 7),
    train_sizes=range(1, 4),
    larger_sizes=range(4, 6),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about=(
            "Hoists bring crates into depots. A cell has room for one crate or one hoist; any number of hoists "
            "fit on a dock."
        ),
        kinds={
            "area": ("an area", "areas"),
            "place": ("a store", "stores"),
            "hoist": ("a hoist", "hoists"),
            "crate": ("a crate", "crates"),
            "cell": ("a cell", "cells"),
            "dock": ("a dock", "docks"),
            "depot": ("a depot", "depots"),
            "container": ("a container", "containers"),
            "object": ("something", "anything"),
        },
        predicates={
            "connected": "{0} is next to {1}",
            "part-of": "{0} is part of {1}",
            "clear": "{0} is free",
            "at": "{0} stands on {1}",
            "available": "{0} holds nothing",
            "lifting": "{0} holds {1}",
            "on": "{0} is on {1}",
            "in": "{0} is in {1}",
        },
        actions={
            "lift": "use {0} to lift {1} from {2} next to {3} in {4}",
            "drop": "use {0} to drop {1} onto {2} next to {3} in {4}",
            "move": "move {0} from {1} to {2}",
            "go-out": "move {0} out from {1} to {2}",
            "go-in": "move {0} in from {1} to {2}",
        },
    ),
    unseen=True,
)
