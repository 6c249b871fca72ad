"""Random Ferry problems."""

import random

from jaxppo.planning.domains.problems import check_count, draw_count, draw_goal, draw_targets, numbered, write_problem

POOLS = {"car": numbered("car", 12), "shore": numbered("shore", 8)}
"""Type to the names that its objects may have; each is one word of a word-level tokenizer."""
NAMES = tuple(name for pool in POOLS.values() for name in pool)
SIZES = range(1, 13)
"""Numbers of cars."""
TRAIN_SIZES = range(1, 9)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(9, 13)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(n_cars: int, rng: random.Random, name: str, *, n_shores: int | None = None) -> str:
    """Write a random problem.

    The shores of the ferry and of the cars, the target shores, which cars have one (at least half), whether the first
    car is on board at the start, the number of shores, names and order vary. It is solvable: the ferry reaches every
    shore from every other one and can carry car after car, beginning with the one on board.

    Args:
        n_cars: 1 to 12.
        rng: the only source of randomness.
        name: the problem's name.
        n_shores: 2 to 8; drawn, at most `3 + n_cars // 2`, where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_cars", n_cars, SIZES)
    shores = rng.sample(POOLS["shore"], draw_count("n_shores", n_shores, range(2, 9), 3 + n_cars // 2, rng))
    starts = {car: rng.choice(shores) for car in rng.sample(POOLS["car"], n_cars)}
    targets = draw_targets(starts, shores, rng)
    places = [f"(at {car} {shore})" for car, shore in starts.items()]
    if rng.random() < 0.2:
        places[0] = f"(on {next(iter(starts))})"
    else:
        places.append("(empty-ferry)")
    init = [f"(at-ferry {rng.choice(shores)})", *places]
    goal = draw_goal([f"(at {car} {shore})" for car, shore in targets.items()], init, rng)
    return write_problem(name, "ferry", {"car": list(starts), "shore": shores}, init, goal, rng)
