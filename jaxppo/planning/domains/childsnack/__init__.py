"""Child snack: make sandwiches, some without gluten, and serve them to the children at the tables."""

from importlib.resources import files

from jaxppo.planning.domains.childsnack.generator import (
    LARGER_SIZES,
    NAMES,
    POOLS,
    SIZES,
    TRAIN_SIZES,
    generate_problem,
)

__all__ = ["DOMAIN_PDDL", "LARGER_SIZES", "NAMES", "POOLS", "SIZES", "TRAIN_SIZES", "generate_problem"]

DOMAIN_PDDL = files(__name__).joinpath("domain.pddl").read_text(encoding="utf-8")
