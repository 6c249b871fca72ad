"""Logistics in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
    about="Packages are carried by truck within a city and by plane between airports.",
    kinds={
        "city": ("a city", "cities"),
        "place": ("a place", "places"),
        "movable": ("a thing with a place", "things with a place"),
        "airport": ("an airport", "airports"),
        "location": ("a location", "locations"),
        "package": ("a package", "packages"),
        "vehicle": ("a vehicle", "vehicles"),
        "truck": ("a truck", "trucks"),
        "airplane": ("a plane", "planes"),
        "object": ("something", "anything"),
    },
    predicates={
        "at": "{0} is at {1}",
        "in": "{0} is in {1}",
        "in-city": "{0} belongs to {1}",
    },
    actions={
        "load-truck": "load {0} into truck {1} at {2}",
        "unload-truck": "unload {0} from truck {1} at {2}",
        "load-airplane": "load {0} into plane {1} at {2}",
        "unload-airplane": "unload {0} from plane {1} at {2}",
        "drive-truck": "drive {0} from {1} to {2} in {3}",
        "fly-airplane": "fly {0} from {1} to {2}",
    },
)
