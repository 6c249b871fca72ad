"""Logistics: trucks inside cities and planes between them deliver packages."""

import random

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import draw_count, draw_goal, draw_targets, numbered, write_problem

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
    places = _draw_places(cities, rng)
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


def _draw_places(cities: list[str], rng: random.Random) -> dict[str, list[str]]:
    """Draw the places of each city: the airport first."""
    airports = rng.sample(POOLS["airport"], len(cities))
    locations = iter(rng.sample(POOLS["location"], len(POOLS["location"])))
    counts = [draw_count(range(1, 4), 3, rng) for _ in cities]
    return {
        city: [airport, *(next(locations) for _ in range(count))]
        for city, airport, count in zip(cities, airports, counts, strict=True)
    }


LOGISTICS = PlanningDomain(
    name="logistics",
    counts="packages",
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
