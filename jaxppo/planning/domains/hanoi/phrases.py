"""Hanoi in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
    about=(
        "Discs are piled on pegs. A disc that nothing lies on can be moved onto a peg or a larger disc that "
        "nothing lies on."
    ),
    kinds={
        "object": ("a disc or a peg", "discs and pegs"),
    },
    predicates={
        "on": "{0} is on {1}",
        "clear": "nothing lies on {0}",
        "smaller": "{1} can carry {0}",
    },
    actions={
        "move": "move {0} from {1} onto {2}",
    },
)
