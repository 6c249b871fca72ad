"""Driverlog: drivers walk to trucks, which deliver packages by road."""

import random

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import (
    both_ways,
    draw_count,
    draw_goal,
    draw_roads,
    draw_targets,
    numbered,
    write_problem,
)

POOLS = {
    "location": (*numbered("place", 8), *numbered("stop", 6)),
    "driver": numbered("driver", 3),
    "truck": numbered("truck", 3),
    "package": numbered("package", 12),
}
_PLACES, _STOPS = POOLS["location"][:8], POOLS["location"][8:]


def draw_problem(n_packages: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    The two maps (links for trucks, paths for walkers, some with a stop between), where everything starts, the targets
    of packages (at least half have one) and of some trucks and drivers, all numbers, names and order vary. It is
    solvable: both maps are connected and symmetric, so a driver reaches each truck, delivers all packages, brings
    every truck to its target, and then all drivers walk to theirs.
    """
    places = rng.sample(_PLACES, draw_count(range(2, 9), 3 + n_packages // 2, rng))
    trucks = rng.sample(POOLS["truck"], draw_count(range(1, 4), 2, rng))
    drivers = rng.sample(POOLS["driver"], draw_count(range(1, 4), 2, rng))
    packages = rng.sample(POOLS["package"], n_packages)
    paths, stops = _draw_paths(places, rng)
    starts = {name: rng.choice(places) for name in packages}
    others = {name: rng.choice(places) for name in (*trucks, *drivers)}
    init = [
        *both_ways("link", draw_roads(places, rng.randint(0, len(places) // 2), rng)),
        *both_ways("path", paths),
        *(f"(at {name} {place})" for name, place in (starts | others).items()),
        *(f"(empty {truck})" for truck in trucks),
    ]
    goal = draw_goal([f"(at {name} {place})" for name, place in draw_targets(starts, places, rng).items()], init, rng)
    goal += [f"(at {name} {rng.choice(places)})" for name in others if rng.random() < 0.25]
    objects = {"location": [*places, *stops], "driver": drivers, "truck": trucks, "package": packages}
    return write_problem(name, "driverlog", objects, init, goal, rng)


def _draw_paths(places: list[str], rng: random.Random) -> tuple[list[tuple[str, str]], list[str]]:
    """Draw the paths of a connected map for walkers, about every other one with a stop between, and the stops."""
    paths, stops, spare = [], [], rng.sample(_STOPS, len(_STOPS))
    for a, b in draw_roads(places, rng.randint(0, 1), rng):
        if spare and rng.random() < 0.5:
            stops.append(spare.pop())
            paths += [(a, stops[-1]), (stops[-1], b)]
        else:
            paths.append((a, b))
    return paths, stops


DRIVERLOG = PlanningDomain(
    name="driverlog",
    counts="packages",
    sizes=range(1, 13),
    train_sizes=range(1, 9),
    larger_sizes=range(9, 13),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about="Drivers walk along paths and drive trucks along roads. Trucks carry packages.",
        kinds={
            "location": ("a place", "places"),
            "locatable": ("a thing with a place", "things with a place"),
            "driver": ("a driver", "drivers"),
            "truck": ("a truck", "trucks"),
            "package": ("a package", "packages"),
            "object": ("something", "anything"),
        },
        predicates={
            "at": "{0} is at {1}",
            "in": "{0} is in {1}",
            "driving": "{0} sits in {1}",
            "empty": "{0} has no driver",
            "link": "a road leads from {0} to {1}",
            "path": "a path leads from {0} to {1}",
        },
        actions={
            "load-truck": "load {0} into {1} at {2}",
            "unload-truck": "unload {0} from {1} at {2}",
            "board-truck": "let {0} get into {1} at {2}",
            "disembark-truck": "let {0} get out of {1} at {2}",
            "drive-truck": "drive {0} from {1} to {2} with {3}",
            "walk": "let {0} walk from {1} to {2}",
        },
    ),
)
