"""Driverlog: drivers walk to trucks, which deliver packages by road."""

from importlib.resources import files

from jaxppo.planning.domains.driverlog.generator import NAMES, POOLS, SIZES, generate_problem

__all__ = ["DOMAIN_PDDL", "NAMES", "POOLS", "SIZES", "generate_problem"]

DOMAIN_PDDL = files(__name__).joinpath("domain.pddl").read_text(encoding="utf-8")
