"""Random Gripper problems."""

import random

from jaxppo.planning.domains.problems import (
    UNTYPED,
    check_count,
    draw_count,
    draw_goal,
    draw_targets,
    numbered,
    write_problem,
)

POOLS = {"room": numbered("room", 6), "ball": numbered("ball", 12), "gripper": ("left", "right", "upper", "lower")}
"""Kind of object to the names it may have; each is one word of a word-level tokenizer."""
NAMES = tuple(name for pool in POOLS.values() for name in pool)
SIZES = range(2, 13)
"""Numbers of balls."""
TRAIN_SIZES = range(2, 9)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(9, 13)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(
    n_balls: int, rng: random.Random, name: str, *, n_rooms: int | None = None, n_grippers: int | None = None
) -> str:
    """Write a random problem.

    The rooms of the robot and of the balls, the target rooms, which balls have one (at least half), the numbers of
    rooms and grippers, names and order vary. It is solvable: every room is next to every other one, all grippers are
    free, and balls can be carried one by one.

    Args:
        n_balls: 2 to 12.
        rng: the only source of randomness.
        name: the problem's name.
        n_rooms: 2 to 6; drawn, at most `2 + n_balls // 3`, where None.
        n_grippers: 1 to 4; drawn, at most 3, where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_balls", n_balls, SIZES)
    rooms = rng.sample(POOLS["room"], draw_count("n_rooms", n_rooms, range(2, 7), 2 + n_balls // 3, rng))
    grippers = rng.sample(POOLS["gripper"], draw_count("n_grippers", n_grippers, range(1, 5), 3, rng))
    starts = {ball: rng.choice(rooms) for ball in rng.sample(POOLS["ball"], n_balls)}
    targets = draw_targets(starts, rooms, rng)
    init = [
        f"(at-robby {rng.choice(rooms)})",
        *(f"(room {room})" for room in rooms),
        *(f"(ball {ball})" for ball in starts),
        *(f"({word} {gripper})" for gripper in grippers for word in ("gripper", "free")),
        *(f"(at {ball} {room})" for ball, room in starts.items()),
    ]
    goal = draw_goal([f"(at {ball} {room})" for ball, room in targets.items()], init, rng)
    return write_problem(name, "gripper", {UNTYPED: [*rooms, *starts, *grippers]}, init, goal, rng)
