"""Blocksworld: rebuild towers of blocks with one hand; problems and optimal plans."""

from importlib.resources import files

from jaxppo.planning.domains.blocksworld.generator import (
    LARGER_SIZES,
    NAMES,
    POOLS,
    SIZES,
    TRAIN_SIZES,
    generate_problem,
)
from jaxppo.planning.domains.blocksworld.solver import solve

__all__ = [
    "DOMAIN_PDDL",
    "LARGER_SIZES",
    "NAMES",
    "PLANNER",
    "POOLS",
    "SIZES",
    "TRAIN_SIZES",
    "generate_problem",
    "solve",
]

DOMAIN_PDDL = files(__name__).joinpath("domain.pddl").read_text(encoding="utf-8")
PLANNER = "astar-optimal"
"""What the rows say about where `solve`'s plans come from."""
