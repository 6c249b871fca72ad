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

_PLACES = numbered("place", 8)
_STOPS = numbered("stop", 6)
POOLS = {
    "location": _PLACES + _STOPS,
    "driver": numbered("driver", 3),
    "truck": numbered("truck", 3),
    "package": numbered("package", 12),
}


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
    # Roads and paths are drawn apart: where a truck
    # goes directly, a driver may have to walk around.
    paths, stops = _draw_paths(places, rng)
    package_starts = {package: rng.choice(places) for package in packages}
    other_starts = {movable: rng.choice(places) for movable in (*trucks, *drivers)}
    init = both_ways("link", draw_roads(places, rng.randint(0, len(places) // 2), rng))
    init += both_ways("path", paths)
    init += [
        f"(at {movable} {place})" for movable, place in (package_starts | other_starts).items()
    ]
    init += [f"(empty {truck})" for truck in trucks]
    targets = draw_targets(package_starts, places, rng)
    goal = draw_goal([f"(at {package} {place})" for package, place in targets.items()], init, rng)
    # About one in four trucks and drivers has to end somewhere, too.
    goal += [
        f"(at {movable} {rng.choice(places)})" for movable in other_starts if rng.random() < 0.25
    ]
    objects = {
        "location": [*places, *stops],
        "driver": drivers,
        "truck": trucks,
        "package": packages,
    }
    return write_problem(name, "driverlog", objects, init, goal, rng)


def _draw_paths(places: list[str], rng: random.Random) -> tuple[list[tuple[str, str]], list[str]]:
    """Draw the paths of a connected map for walkers, about every other one with a stop between, and the stops."""
    paths = []
    stops = []
    unused_stops = rng.sample(_STOPS, len(_STOPS))
    # Each place is reachable, since a stop divides a path and takes none away.
    for a, b in draw_roads(places, rng.randint(0, 1), rng):
        if unused_stops and rng.random() < 0.5:
            stop = unused_stops.pop()
            stops.append(stop)
            paths += [(a, stop), (stop, b)]
        else:
            paths.append((a, b))
    return paths, stops


DRIVERLOG = PlanningDomain(
    name="driverlog",
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
