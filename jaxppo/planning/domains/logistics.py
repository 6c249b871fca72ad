"""Logistics: trucks inside cities and planes between them deliver packages."""

import random
from itertools import chain, islice

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import (
    draw_count,
    draw_goal,
    draw_targets,
    numbered,
    write_problem,
)

POOLS = {
    "city": numbered("city", 4),
    "airport": numbered("airport", 4),
    "location": numbered("location", 12),
    "truck": numbered("truck", 6),
    "airplane": numbered("plane", 3),
    "package": numbered("package", 10),
}


def draw_problem(n_packages: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    The places of packages and vehicles, the target places, which packages have one (at least half), the numbers of
    cities, places, planes and spare trucks, names and order vary. It is solvable: every city has an airport and a
    truck that reaches all of its places, a plane reaches all airports, and packages can be carried one by one.
    """
    cities = rng.sample(POOLS["city"], draw_count(range(1, 5), 2 + n_packages // 3, rng))
    planes = rng.sample(POOLS["airplane"], draw_count(range(1, 4), 2, rng))
    airports, locations = _draw_places(cities, rng)
    # The places of each city, its airport first.
    city_places = {city: [airports[city], *locations[city]] for city in cities}
    all_places = list(chain.from_iterable(city_places.values()))
    # Packages may begin and end anywhere, in the same city or in another one.
    starts = {
        package: rng.choice(all_places) for package in rng.sample(POOLS["package"], n_packages)
    }
    targets = draw_targets(starts, all_places, rng)
    # A truck for every city, and up to two spare ones.
    truck_cities = [*cities, *rng.choices(cities, k=rng.randint(0, 2))]
    trucks = dict(zip(rng.sample(POOLS["truck"], len(truck_cities)), truck_cities, strict=True))
    init = []
    for city, places in city_places.items():
        init += [f"(in-city {place} {city})" for place in places]
    init += [f"(at {package} {place})" for package, place in starts.items()]
    # A truck never leaves its city and a plane flies between airports only.
    init += [f"(at {truck} {rng.choice(city_places[city])})" for truck, city in trucks.items()]
    init += [f"(at {plane} {airports[rng.choice(cities)]})" for plane in planes]
    goal = draw_goal([f"(at {package} {place})" for package, place in targets.items()], init, rng)
    objects = {
        "city": cities,
        "airport": list(airports.values()),
        "location": list(chain.from_iterable(locations.values())),
        "truck": list(trucks),
        "airplane": planes,
        "package": list(starts),
    }
    return write_problem(name, "logistics", objects, init, goal, rng)


def _draw_places(
    cities: list[str], rng: random.Random
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Draw the airport of each city, and its other places."""
    airports = dict(zip(cities, rng.sample(POOLS["airport"], len(cities)), strict=True))
    # One iterator for all cities, so that no location is in two of them.
    unused = iter(rng.sample(POOLS["location"], len(POOLS["location"])))
    return airports, {
        city: list(islice(unused, draw_count(range(1, 4), 3, rng))) for city in cities
    }


LOGISTICS = PlanningDomain(
    name="logistics",
    sizes=range(1, 11),
    train_sizes=range(1, 7),
    larger_sizes=range(7, 10),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about="Packages are carried by truck within a city and by plane between airports.",
        kinds={
            "city": ("a city", "cities"),
            "place": ("a place", "places"),
            "movable": ("a thing with a place", "things with a place"),
            "airport": ("an airport", "airports"),
            "location": ("a location", "locations"),
            "package": ("a package", "packages"),
            "vehicle": ("a vehicle", "vehicles"),
            "truck": ("a truck", "trucks"),
            "airplane": ("a plane", "planes"),
            "object": ("something", "anything"),
        },
        predicates={
            "at": "{0} is at {1}",
            "in": "{0} is in {1}",
            "in-city": "{0} belongs to {1}",
        },
        actions={
            "load-truck": "load {0} into truck {1} at {2}",
            "unload-truck": "unload {0} from truck {1} at {2}",
            "load-airplane": "load {0} into plane {1} at {2}",
            "unload-airplane": "unload {0} from plane {1} at {2}",
            "drive-truck": "drive {0} from {1} to {2} in {3}",
            "fly-airplane": "fly {0} from {1} to {2}",
        },
    ),
)
