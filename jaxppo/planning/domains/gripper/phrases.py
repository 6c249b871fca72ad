"""Gripper in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
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
)
