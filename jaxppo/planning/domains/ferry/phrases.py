"""Ferry in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
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
)
