"""Miconic: a lift collects passengers and brings them to their floors."""

import random

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import draw_count, draw_goal, numbered, write_problem

POOLS = {"passenger": numbered("person", 12), "floor": numbered("floor", 12)}


def draw_problem(n_passengers: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    The lift's floor, where passengers wait and want to go, which of them must be served (at least half), the number of
    floors, names (which say nothing about height) and order vary. It is solvable: of two floors one is above the other,
    so the lift reaches every floor, and nothing keeps a passenger from boarding.
    """
    # From the lowest
    floors = rng.sample(POOLS["floor"], draw_count(range(2, 13), 3 + n_passengers, rng))
    passengers = rng.sample(POOLS["passenger"], n_passengers)
    # Origin and destination, two different floors.
    trips = {passenger: rng.sample(floors, 2) for passenger in passengers}
    init = [f"(lift-at {rng.choice(floors)})"]
    # All pairs of floors, as one step goes up or down any number of them.
    for number, floor in enumerate(floors):
        init += [f"(above {floor} {lower})" for lower in floors[:number]]
    init += [f"(origin {passenger} {origin})" for passenger, (origin, _) in trips.items()]
    init += [f"(destin {passenger} {destination})" for passenger, (_, destination) in trips.items()]
    goal = draw_goal([f"(served {passenger})" for passenger in passengers], init, rng)
    return write_problem(
        name, "miconic", {"passenger": passengers, "floor": floors}, init, goal, rng
    )


MICONIC = PlanningDomain(
    name="miconic",
    sizes=range(1, 13),
    train_sizes=range(1, 9),
    larger_sizes=range(9, 13),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about="A lift takes passengers to the floors that they want to reach.",
        kinds={
            "passenger": ("a passenger", "passengers"),
            "floor": ("a floor", "floors"),
            "object": ("something", "anything"),
        },
        predicates={
            "above": "{0} is above {1}",
            "lift-at": "the lift is at {0}",
            "origin": "{0} waits at {1}",
            "destin": "{0} wants to reach {1}",
            "boarded": "{0} is in the lift",
            "served": "{0} has arrived",
        },
        actions={
            "up": "go up from {0} to {1}",
            "down": "go down from {0} to {1}",
            "board": "let {1} in at {0}",
            "depart": "let {1} out at {0}",
        },
    ),
)
