"""Childsnack in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
    about=(
        "Sandwiches are made in the kitchen and brought on trays to waiting children. A child that is "
        "allergic gets a sandwich without gluten."
    ),
    kinds={
        "child": ("a child", "children"),
        "bread": ("a piece of bread", "pieces of bread"),
        "filling": ("a filling", "fillings"),
        "sandwich": ("a sandwich", "sandwiches"),
        "tray": ("a tray", "trays"),
        "place": ("a place", "places"),
        "object": ("a thing", "things"),
    },
    predicates={
        "bread_in_kitchen": "{0} lies in the kitchen",
        "filling_in_kitchen": "{0} is ready in the kitchen",
        "gluten_free_bread": "{0} is bread without gluten",
        "gluten_free_filling": "{0} is a filling without gluten",
        "not_made": "{0} is not made yet",
        "sandwich_in_kitchen": "{0} is made and in the kitchen",
        "gluten_free_sandwich": "{0} is without gluten",
        "on_tray": "{0} is on {1}",
        "at": "{0} is at {1}",
        "allergic": "{0} is allergic",
        "not_allergic": "{0} can eat everything",
        "waiting": "{0} waits at {1}",
        "served": "{0} has a sandwich",
    },
    actions={
        "make_gluten_free_sandwich": "make {0} without gluten from {1} and {2}",
        "make_sandwich": "make {0} from {1} and {2}",
        "put_on_tray": "put {0} on {1}",
        "move_tray": "move {0} from {1} to {2}",
        "serve_gluten_free_sandwich": "serve {0} without gluten to {1} from {2} at {3}",
        "serve_sandwich": "serve {0} to {1} from {2} at {3}",
    },
)
