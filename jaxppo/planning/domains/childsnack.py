"""Child snack: make sandwiches, some without gluten, and serve them to the children at the tables."""

import random

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import draw_count, draw_goal, numbered, write_problem

POOLS = {
    "child": numbered("child", 8),
    "bread": numbered("bread", 10),
    "filling": numbered("filling", 10),
    "sandwich": numbered("sandwich", 10),
    "tray": numbered("tray", 3),
    "place": numbered("table", 4),
}


def draw_problem(n_children: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    Who waits where and who tolerates no gluten, which children must be served (at least half), where the trays are,
    spare bread, filling and sandwiches, all numbers, names and order vary. It is solvable: there is bread, filling and
    a sandwich for every child and, of bread and filling, as much without gluten as children who need it; so their
    sandwiches are made first, and a tray can move between all places.
    """
    children = rng.sample(POOLS["child"], n_children)
    # The first ones, as the names are in random order.
    allergic = children[: draw_count(range(n_children + 1), (n_children + 1) // 2, rng)]
    tables = rng.sample(POOLS["place"], draw_count(range(1, 5), 1 + n_children // 2, rng))
    trays = rng.sample(POOLS["tray"], draw_count(range(1, 4), 2, rng))
    # One for every child, and up to two to spare.
    bread = rng.sample(POOLS["bread"], n_children + rng.randint(0, 2))
    filling = rng.sample(POOLS["filling"], n_children + rng.randint(0, 2))
    sandwiches = rng.sample(POOLS["sandwich"], n_children + rng.randint(0, 2))
    # Plain STRIPS has no negative conditions, so `not_allergic` is a fact of its own.
    init = [
        f"({'allergic' if child in allergic else 'not_allergic'} {child})" for child in children
    ]
    init += [f"(waiting {child} {rng.choice(tables)})" for child in children]
    init += _draw_portions("bread", bread, len(allergic), rng)
    init += _draw_portions("filling", filling, len(allergic), rng)
    init += [f"(not_made {sandwich})" for sandwich in sandwiches]
    # A tray is in the kitchen twice as often as at any one table.
    init += [f"(at {tray} {rng.choice(['kitchen', 'kitchen', *tables])})" for tray in trays]
    goal = draw_goal([f"(served {child})" for child in children], init, rng)
    objects = {
        "child": children,
        "bread": bread,
        "filling": filling,
        "sandwich": sandwiches,
        "tray": trays,
        "place": tables,
    }
    return write_problem(name, "childsnack", objects, init, goal, rng)


def _draw_portions(kind: str, portions: list[str], n_needed: int, rng: random.Random) -> list[str]:
    """Write the portions in the kitchen, at least `n_needed` of which are without gluten."""
    n_gluten_free = rng.randint(n_needed, min(n_needed + 2, len(portions)))
    # The first ones are without gluten; the names were drawn in random order.
    atoms = [f"({kind}_in_kitchen {portion})" for portion in portions]
    return atoms + [f"(gluten_free_{kind} {portion})" for portion in portions[:n_gluten_free]]


CHILDSNACK = PlanningDomain(
    name="childsnack",
    sizes=range(1, 9),
    train_sizes=range(1, 6),
    larger_sizes=range(6, 9),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
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
    ),
    constants=("kitchen",),
)
