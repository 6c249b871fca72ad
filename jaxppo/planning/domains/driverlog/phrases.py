"""Driverlog in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
    about="Drivers walk along paths and drive trucks along roads. Trucks carry packages.",
    kinds={
        "location": ("a place", "places"),
        "locatable": ("a thing with a place", "things with a place"),
        "driver": ("a driver", "drivers"),
        "truck": ("a truck", "trucks"),
        "package": ("a package", "packages"),
        "object": ("something", "anything"),
    },
    predicates={
        "at": "{0} is at {1}",
        "in": "{0} is in {1}",
        "driving": "{0} sits in {1}",
        "empty": "{0} has no driver",
        "link": "a road leads from {0} to {1}",
        "path": "a path leads from {0} to {1}",
    },
    actions={
        "load-truck": "load {0} into {1} at {2}",
        "unload-truck": "unload {0} from {1} at {2}",
        "board-truck": "let {0} get into {1} at {2}",
        "disembark-truck": "let {0} get out of {1} at {2}",
        "drive-truck": "drive {0} from {1} to {2} with {3}",
        "walk": "let {0} walk from {1} to {2}",
    },
)
