"""Random Driverlog problems."""

import random

from jaxppo.planning.domains.problems import (
    both_ways,
    check_count,
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
"""Type to the names that its objects may have; each is one word of a word-level tokenizer."""
NAMES = tuple(name for pool in POOLS.values() for name in pool)
SIZES = range(1, 13)
"""Numbers of packages."""
TRAIN_SIZES = range(1, 9)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(9, 13)
"""Those of larger test problems: most have plans of at most 40 steps."""
_PLACES, _STOPS = POOLS["location"][:8], POOLS["location"][8:]


def generate_problem(
    n_packages: int,
    rng: random.Random,
    name: str,
    *,
    n_locations: int | None = None,
    n_trucks: int | None = None,
    n_drivers: int | None = None,
) -> str:
    """Write a random problem.

    The two maps (links for trucks, paths for walkers, some with a stop between), where everything starts, the targets
    of packages (at least half have one) and of some trucks and drivers, all numbers, names and order vary. It is
    solvable: both maps are connected and symmetric, so a driver reaches each truck, delivers all packages, brings
    every truck to its target, and then all drivers walk to theirs.

    Args:
        n_packages: 1 to 12.
        rng: the only source of randomness.
        name: the problem's name.
        n_locations: places that trucks reach, 2 to 8; drawn, at most `3 + n_packages // 2`, where None.
        n_trucks: 1 to 3; drawn, at most 2, where None.
        n_drivers: 1 to 3; drawn, at most 2, where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_packages", n_packages, SIZES)
    places = rng.sample(_PLACES, draw_count("n_locations", n_locations, range(2, 9), 3 + n_packages // 2, rng))
    trucks = rng.sample(POOLS["truck"], draw_count("n_trucks", n_trucks, range(1, 4), 2, rng))
    drivers = rng.sample(POOLS["driver"], draw_count("n_drivers", n_drivers, range(1, 4), 2, rng))
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
    """A connected map for walkers: every other path leads over a stop of its own; returns the paths and the stops."""
    paths, stops, spare = [], [], rng.sample(_STOPS, len(_STOPS))
    for a, b in draw_roads(places, rng.randint(0, 1), rng):
        if spare and rng.random() < 0.5:
            stops.append(spare.pop())
            paths += [(a, stops[-1]), (stops[-1], b)]
        else:
            paths.append((a, b))
    return paths, stops
