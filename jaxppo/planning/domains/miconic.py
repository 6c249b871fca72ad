"""Random Miconic problems."""

import random

from jaxppo.planning.domains.problems import check_count, draw_count, draw_goal, numbered, write_problem

POOLS = {"passenger": numbered("person", 12), "floor": numbered("floor", 12)}
"""Type to the names that its objects may have; each is one word of a word-level tokenizer."""
NAMES = tuple(name for pool in POOLS.values() for name in pool)
SIZES = range(1, 13)
"""Numbers of passengers."""
TRAIN_SIZES = range(1, 9)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(9, 13)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(n_passengers: int, rng: random.Random, name: str, *, n_floors: int | None = None) -> str:
    """Write a random problem.

    The lift's floor, where passengers wait and want to go, which of them must be served (at least half), the number of
    floors, names (which say nothing about height) and order vary. It is solvable: of two floors one is above the other,
    so the lift reaches every floor, and nothing keeps a passenger from boarding.

    Args:
        n_passengers: 1 to 12.
        rng: the only source of randomness.
        name: the problem's name.
        n_floors: 2 to 12; drawn, at most `3 + n_passengers`, where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_passengers", n_passengers, SIZES)
    floors = rng.sample(POOLS["floor"], draw_count("n_floors", n_floors, range(2, 13), 3 + n_passengers, rng))
    passengers = rng.sample(POOLS["passenger"], n_passengers)
    trips = [(passenger, *rng.sample(floors, 2)) for passenger in passengers]
    init = [
        f"(lift-at {rng.choice(floors)})",
        *(f"(above {high} {low})" for number, high in enumerate(floors) for low in floors[:number]),
        *(f"(origin {passenger} {floor})" for passenger, floor, _ in trips),
        *(f"(destin {passenger} {floor})" for passenger, _, floor in trips),
    ]
    goal = draw_goal([f"(served {passenger})" for passenger in passengers], init, rng)
    return write_problem(name, "miconic", {"passenger": passengers, "floor": floors}, init, goal, rng)
