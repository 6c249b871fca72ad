"""Planners as functions from a domain and a problem to a plan; they run inside planner processes, never beside JAX."""

from collections.abc import Callable
from typing import NamedTuple

from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.search import SearchLimitError, solve


class PlannerAnswer(NamedTuple):
    """A plan, or the reason why there is none."""

    plan: tuple[Action, ...] | None
    reason: str | None = None


Engine = Callable[[str, str], PlannerAnswer]
"""Takes the texts of a domain and a problem."""


class Builtin:
    """The search of this package."""

    def __init__(self, optimal: bool):
        self._optimal = optimal

    def __call__(self, domain_pddl: str, problem_pddl: str) -> PlannerAnswer:
        """Search for a plan."""
        try:
            plan = solve(
                parse_problem(problem_pddl, parse_domain(domain_pddl)), optimal=self._optimal
            )
        except UnsupportedPddlError as error:
            return PlannerAnswer(None, f"unsupported: {error.message}")
        except SearchLimitError as error:
            return PlannerAnswer(None, f"limit: {error}")
        return PlannerAnswer(plan, "unsolvable" if plan is None else None)
