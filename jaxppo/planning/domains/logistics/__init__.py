"""Logistics: trucks inside cities and planes between them deliver packages."""

from importlib.resources import files

from jaxppo.planning.domains.logistics.generator import NAMES, POOLS, SIZES, generate_problem

__all__ = ["DOMAIN_PDDL", "NAMES", "POOLS", "SIZES", "generate_problem"]

DOMAIN_PDDL = files(__name__).joinpath("domain.pddl").read_text(encoding="utf-8")
