"""Miconic in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
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
)
