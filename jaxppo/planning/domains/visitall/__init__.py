"""Visit-all: a robot walks over a map until it has seen the wanted cells."""

from importlib.resources import files

from jaxppo.planning.domains.visitall.generator import (
    LARGER_SIZES,
    NAMES,
    POOLS,
    SIZES,
    TRAIN_SIZES,
    generate_problem,
)

__all__ = ["DOMAIN_PDDL", "LARGER_SIZES", "NAMES", "POOLS", "SIZES", "TRAIN_SIZES", "generate_problem"]

DOMAIN_PDDL = files(__name__).joinpath("domain.pddl").read_text(encoding="utf-8")
