"""Random Logistics problems."""

import random

from jaxppo.planning.domains.problems import check_count, draw_count, draw_goal, draw_targets, numbered, write_problem

POOLS = {
    "city": numbered("city", 4),
    "airport": numbered("airport", 4),
    "location": numbered("location", 12),
    "truck": numbered("truck", 6),
    "airplane": numbered("plane", 3),
    "package": numbered("package", 10),
}
"""Type to the names that its objects may have; each is one word of a word-level tokenizer."""
NAMES = tuple(name for pool in POOLS.values() for name in pool)
SIZES = range(1, 11)
"""Numbers of packages."""
TRAIN_SIZES = range(1, 7)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(7, 10)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(
    n_packages: int,
    rng: random.Random,
    name: str,
    *,
    n_cities: int | None = None,
    n_locations: int | None = None,
    n_airplanes: int | None = None,
) -> str:
    """Write a random problem.

    The places of packages and vehicles, the target places, which packages have one (at least half), the numbers of
    cities, places, planes and spare trucks, names and order vary. It is solvable: every city has an airport and a
    truck that reaches all of its places, a plane reaches all airports, and packages can be carried one by one.

    Args:
        n_packages: 1 to 10.
        rng: the only source of randomness.
        name: the problem's name.
        n_cities: 1 to 4; drawn, at most `2 + n_packages // 3`, where None.
        n_locations: places of each city beside its airport, 1 to 3; drawn for each city where None.
        n_airplanes: 1 to 3; drawn, at most 2, where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_packages", n_packages, SIZES)
    cities = rng.sample(POOLS["city"], draw_count("n_cities", n_cities, range(1, 5), 2 + n_packages // 3, rng))
    planes = rng.sample(POOLS["airplane"], draw_count("n_airplanes", n_airplanes, range(1, 4), 2, rng))
    places = _draw_places(cities, n_locations, rng)
    all_places = [place for own in places.values() for place in own]
    starts = {package: rng.choice(all_places) for package in rng.sample(POOLS["package"], n_packages)}
    targets = draw_targets(starts, all_places, rng)
    truck_cities = [*cities, *rng.choices(cities, k=rng.randint(0, 2))]
    trucks = dict(zip(rng.sample(POOLS["truck"], len(truck_cities)), truck_cities, strict=True))
    init = [
        *(f"(in-city {place} {city})" for city, own in places.items() for place in own),
        *(f"(at {package} {place})" for package, place in starts.items()),
        *(f"(at {truck} {rng.choice(places[city])})" for truck, city in trucks.items()),
        *(f"(at {plane} {places[rng.choice(cities)][0]})" for plane in planes),
    ]
    goal = draw_goal([f"(at {package} {place})" for package, place in targets.items()], init, rng)
    objects = {
        "city": cities,
        "airport": [own[0] for own in places.values()],
        "location": [place for own in places.values() for place in own[1:]],
        "truck": list(trucks),
        "airplane": planes,
        "package": list(starts),
    }
    return write_problem(name, "logistics", objects, init, goal, rng)


def _draw_places(cities: list[str], n_locations: int | None, rng: random.Random) -> dict[str, list[str]]:
    """City to its places: the airport first."""
    airports = rng.sample(POOLS["airport"], len(cities))
    locations = iter(rng.sample(POOLS["location"], len(POOLS["location"])))
    counts = [draw_count("n_locations", n_locations, range(1, 4), 3, rng) for _ in cities]
    return {
        city: [airport, *(next(locations) for _ in range(count))]
        for city, airport, count in zip(cities, airports, counts, strict=True)
    }
