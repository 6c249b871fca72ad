"""Storage in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
    about=(
        "Hoists bring crates into depots. A cell has room for one crate or one hoist; any number of hoists "
        "fit on a dock."
    ),
    kinds={
        "area": ("an area", "areas"),
        "place": ("a store", "stores"),
        "hoist": ("a hoist", "hoists"),
        "crate": ("a crate", "crates"),
        "cell": ("a cell", "cells"),
        "dock": ("a dock", "docks"),
        "depot": ("a depot", "depots"),
        "container": ("a container", "containers"),
        "object": ("something", "anything"),
    },
    predicates={
        "connected": "{0} is next to {1}",
        "part-of": "{0} is part of {1}",
        "clear": "{0} is free",
        "at": "{0} stands on {1}",
        "available": "{0} holds nothing",
        "lifting": "{0} holds {1}",
        "on": "{0} is on {1}",
        "in": "{0} is in {1}",
    },
    actions={
        "lift": "use {0} to lift {1} from {2} next to {3} in {4}",
        "drop": "use {0} to drop {1} onto {2} next to {3} in {4}",
        "move": "move {0} from {1} to {2}",
        "go-out": "move {0} out from {1} to {2}",
        "go-in": "move {0} in from {1} to {2}",
    },
)
