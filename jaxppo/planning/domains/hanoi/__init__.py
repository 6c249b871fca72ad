"""Towers of Hanoi: discs change pegs one at a time, never a larger one on a smaller one."""

from importlib.resources import files

from jaxppo.planning.domains.hanoi.generator import NAMES, POOLS, SIZES, generate_problem

__all__ = ["DOMAIN_PDDL", "NAMES", "POOLS", "SIZES", "generate_problem"]

DOMAIN_PDDL = files(__name__).joinpath("domain.pddl").read_text(encoding="utf-8")
