"""Gripper: a robot with several hands carries balls between rooms."""

import random

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import (
    UNTYPED,
    draw_count,
    draw_goal,
    draw_targets,
    numbered,
    write_problem,
)

POOLS = {
    "room": numbered("room", 6),
    "ball": numbered("ball", 12),
    "gripper": ("left", "right", "upper", "lower"),
}


def draw_problem(n_balls: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    The rooms of the robot and of the balls, the target rooms, which balls have one (at least half), the numbers of
    rooms and grippers, names and order vary. It is solvable: every room is next to every other one, all grippers are
    free, and balls can be carried one by one.
    """
    rooms = rng.sample(POOLS["room"], draw_count(range(2, 7), 2 + n_balls // 3, rng))
    grippers = rng.sample(POOLS["gripper"], draw_count(range(1, 5), 3, rng))
    starts = {ball: rng.choice(rooms) for ball in rng.sample(POOLS["ball"], n_balls)}
    targets = draw_targets(starts, rooms, rng)
    # The domain has no types: rooms, balls and grippers are told apart by these facts alone.
    init = [f"(at-robby {rng.choice(rooms)})"]
    init += [f"(room {room})" for room in rooms]
    init += [f"(ball {ball})" for ball in starts]
    for gripper in grippers:
        init += [f"(gripper {gripper})", f"(free {gripper})"]
    init += [f"(at {ball} {room})" for ball, room in starts.items()]
    goal = draw_goal([f"(at {ball} {room})" for ball, room in targets.items()], init, rng)
    return write_problem(name, "gripper", {UNTYPED: [*rooms, *starts, *grippers]}, init, goal, rng)


GRIPPER = PlanningDomain(
    name="gripper",
    sizes=range(2, 13),
    train_sizes=range(2, 9),
    larger_sizes=range(9, 13),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about="A robot moves between rooms and carries one ball with each of its grippers.",
        kinds={
            "object": ("a room, a ball or a gripper", "rooms, balls and grippers"),
        },
        predicates={
            "room": "{0} is a room",
            "ball": "{0} is a ball",
            "gripper": "{0} is a gripper",
            "at-robby": "the robot is in {0}",
            "at": "{0} lies in {1}",
            "free": "gripper {0} is free",
            "carry": "gripper {1} holds {0}",
        },
        actions={
            "move": "move from {0} to {1}",
            "pick": "pick up {0} in {1} with gripper {2}",
            "drop": "drop {0} in {1} from gripper {2}",
        },
    ),
)
