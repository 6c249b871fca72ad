"""Ferry: a boat for one car brings cars to the other shores."""

import random

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import (
    draw_count,
    draw_goal,
    draw_targets,
    numbered,
    write_problem,
)

POOLS = {"car": numbered("car", 12), "shore": numbered("shore", 8)}


def draw_problem(n_cars: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    The shores of the ferry and of the cars, the target shores, which cars have one (at least half), whether the first
    car is on board at the start, the number of shores, names and order vary. It is solvable: the ferry reaches every
    shore from every other one and can carry car after car, beginning with the one on board.
    """
    shores = rng.sample(POOLS["shore"], draw_count(range(2, 9), 3 + n_cars // 2, rng))
    # Several cars may begin on one shore, and shores may stay empty.
    starts = {car: rng.choice(shores) for car in rng.sample(POOLS["car"], n_cars)}
    targets = draw_targets(starts, shores, rng)
    car_atoms = [f"(at {car} {shore})" for car, shore in starts.items()]
    # With probability 0.2 the first car is on board and not on its shore.
    if rng.random() < 0.2:
        car_atoms[0] = f"(on {next(iter(starts))})"
    else:
        car_atoms.append("(empty-ferry)")
    init = [f"(at-ferry {rng.choice(shores)})", *car_atoms]
    goal = draw_goal([f"(at {car} {shore})" for car, shore in targets.items()], init, rng)
    return write_problem(name, "ferry", {"car": list(starts), "shore": shores}, init, goal, rng)


FERRY = PlanningDomain(
    name="ferry",
    sizes=range(1, 13),
    train_sizes=range(1, 9),
    larger_sizes=range(9, 13),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about="A ferry takes cars from shore to shore, one car at a time.",
        kinds={
            "car": ("a car", "cars"),
            "shore": ("a shore", "shores"),
            "object": ("something", "anything"),
        },
        predicates={
            "at-ferry": "the ferry is at {0}",
            "at": "{0} stands at {1}",
            "on": "{0} is on the ferry",
            "empty-ferry": "the ferry is empty",
        },
        actions={
            "sail": "sail from {0} to {1}",
            "board": "let {0} drive onto the ferry at {1}",
            "debark": "let {0} drive off the ferry at {1}",
        },
    ),
)
