"""Depots in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
    about="Crates are piled on pallets. Hoists lift and drop them, and trucks carry them from place to place.",
    kinds={
        "place": ("a place", "places"),
        "locatable": ("a thing with a place", "things with a place"),
        "depot": ("a depot", "depots"),
        "distributor": ("a distributor", "distributors"),
        "truck": ("a truck", "trucks"),
        "hoist": ("a hoist", "hoists"),
        "surface": ("a surface", "surfaces"),
        "pallet": ("a pallet", "pallets"),
        "crate": ("a crate", "crates"),
        "object": ("something", "anything"),
    },
    predicates={
        "at": "{0} is at {1}",
        "on": "{0} stands on {1}",
        "in": "{0} is in {1}",
        "clear": "nothing stands on {0}",
        "lifting": "{0} holds {1}",
        "available": "{0} holds nothing",
    },
    actions={
        "drive": "drive {0} from {1} to {2}",
        "lift": "use {0} to lift {1} from {2} at {3}",
        "drop": "use {0} to drop {1} onto {2} at {3}",
        "load": "use {0} to load {1} into {2} at {3}",
        "unload": "use {0} to unload {1} out of {2} at {3}",
    },
)
