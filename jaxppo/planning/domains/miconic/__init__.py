"""Miconic: a lift collects passengers and brings them to their floors."""

from importlib.resources import files

from jaxppo.planning.domains.miconic.generator import (
    LARGER_SIZES,
    NAMES,
    POOLS,
    SIZES,
    TRAIN_SIZES,
    generate_problem,
)

__all__ = ["DOMAIN_PDDL", "LARGER_SIZES", "NAMES", "POOLS", "SIZES", "TRAIN_SIZES", "generate_problem"]

DOMAIN_PDDL = files(__name__).joinpath("domain.pddl").read_text(encoding="utf-8")
