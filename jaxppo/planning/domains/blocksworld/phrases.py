"""Blocksworld in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
    about="Blocks stand on a table or on one another, and one hand moves them. The hand holds one block at most.",
    kinds={
        "object": ("a block", "blocks"),
    },
    predicates={
        "on": "block {0} is on block {1}",
        "ontable": "block {0} is on the table",
        "clear": "nothing is on block {0}",
        "handempty": "the hand is empty",
        "holding": "the hand holds block {0}",
    },
    actions={
        "pick-up": "pick up block {0}",
        "put-down": "put down block {0}",
        "stack": "stack block {0} on block {1}",
        "unstack": "unstack block {0} from block {1}",
    },
)
