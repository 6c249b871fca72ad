"""Random Child snack problems."""

import random

from jaxppo.planning.domains.problems import check_count, draw_count, draw_goal, numbered, write_problem

POOLS = {
    "child": numbered("child", 8),
    "bread": numbered("bread", 10),
    "filling": numbered("filling", 10),
    "sandwich": numbered("sandwich", 10),
    "tray": numbered("tray", 3),
    "place": numbered("table", 4),
}
"""Type to the names that its objects may have (and the constant `kitchen`); each is one word of a tokenizer."""
NAMES = ("kitchen", *(name for pool in POOLS.values() for name in pool))
SIZES = range(1, 9)
"""Numbers of children."""
TRAIN_SIZES = range(1, 6)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(6, 9)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(
    n_children: int,
    rng: random.Random,
    name: str,
    *,
    n_allergic: int | None = None,
    n_tables: int | None = None,
    n_trays: int | None = None,
) -> str:
    """Write a random problem.

    Who waits where and who tolerates no gluten, which children must be served (at least half), where the trays are,
    spare bread, filling and sandwiches, all numbers, names and order vary. It is solvable: there is bread, filling and
    a sandwich for every child and, of bread and filling, as much without gluten as children who need it; so their
    sandwiches are made first, and a tray can move between all places.

    Args:
        n_children: 1 to 8.
        rng: the only source of randomness.
        name: the problem's name.
        n_allergic: children who tolerate no gluten, 0 to `n_children`; drawn, at most half of them
            (rounded up), where None.
        n_tables: 1 to 4; drawn, at most `1 + n_children // 2`, where None.
        n_trays: 1 to 3; drawn, at most 2, where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_children", n_children, SIZES)
    children = rng.sample(POOLS["child"], n_children)
    allowed = range(n_children + 1)
    allergic = children[: draw_count("n_allergic", n_allergic, allowed, (n_children + 1) // 2, rng)]
    tables = rng.sample(POOLS["place"], draw_count("n_tables", n_tables, range(1, 5), 1 + n_children // 2, rng))
    trays = rng.sample(POOLS["tray"], draw_count("n_trays", n_trays, range(1, 4), 2, rng))
    bread, filling, sandwiches = (
        rng.sample(POOLS[kind], n_children + rng.randint(0, 2)) for kind in ("bread", "filling", "sandwich")
    )
    init = [
        *(f"({'allergic' if child in allergic else 'not_allergic'} {child})" for child in children),
        *(f"(waiting {child} {rng.choice(tables)})" for child in children),
        *_portions("bread", bread, len(allergic), rng),
        *_portions("filling", filling, len(allergic), rng),
        *(f"(not_made {sandwich})" for sandwich in sandwiches),
        *(f"(at {tray} {rng.choice(['kitchen', 'kitchen', *tables])})" for tray in trays),
    ]
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


def _portions(kind: str, portions: list[str], n_needed: int, rng: random.Random) -> list[str]:
    """Portions in the kitchen, at least `n_needed` of which are without gluten."""
    gluten_free = portions[: rng.randint(n_needed, min(n_needed + 2, len(portions)))]
    return [
        *(f"({kind}_in_kitchen {portion})" for portion in portions),
        *(f"(gluten_free_{kind} {portion})" for portion in gluten_free),
    ]
