"""Planners as functions from a domain and a problem to a plan; they run inside planner processes, never beside JAX."""

from collections.abc import Callable
from typing import Any, NamedTuple

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

    def __init__(self, optimal: bool = False):
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


class Unified:
    """An engine of unified-planning, by the name it has there, such as `pyperplan-opt`.

    One that is not asked for optimal plans solves a problem without its metric where it does not cover the metric.
    """

    def __init__(self, name: str, optimal: bool = False):
        from unified_planning.shortcuts import get_environment  # pyright: ignore[reportMissingImports] # an extra

        self._name = name
        self._optimal = optimal
        environment = get_environment()
        # No banner of credits at every call.
        environment.credits_stream = None
        environment.error_used_name = False  # an object may be called like a type

    def __call__(self, domain_pddl: str, problem_pddl: str) -> PlannerAnswer:
        """Ask the engine for one plan."""
        from unified_planning.io import PDDLReader  # pyright: ignore[reportMissingImports]
        from unified_planning.shortcuts import OneshotPlanner  # pyright: ignore[reportMissingImports]

        problem = PDDLReader().parse_problem_string(domain_pddl, problem_pddl)
        with OneshotPlanner(name=self._name) as planner:
            # Any plan will do then; an optimal one would be optimal for another problem.
            if not (planner.supports(problem.kind) or self._optimal):
                problem.clear_quality_metrics()
            if not planner.supports(problem.kind):
                unsupported = sorted(problem.kind.features - planner.supported_kind().features)
                return PlannerAnswer(
                    None, f"unsupported: {', '.join(unsupported).lower().replace('_', ' ')}"
                )
            return _to_answer(planner.solve(problem))


# What unified-planning calls an outcome, to what it is called here.
_REASONS = {
    "UNSOLVABLE_PROVEN": "unsolvable",
    "UNSOLVABLE_INCOMPLETELY": "no plan: the planner gave up",
    "TIMEOUT": "timeout",
    "MEMOUT": "memory",
    "UNSUPPORTED_PROBLEM": "unsupported: the planner refused the problem",
}


def _to_answer(result: Any) -> PlannerAnswer:
    if result.plan is None:
        status = result.status.name
        return PlannerAnswer(
            None, _REASONS.get(status, f"crash: {status.lower().replace('_', ' ')}")
        )
    plan: list[Action] = []
    for step in result.plan.actions:
        plan.append(
            (
                step.action.name.lower(),
                *(str(argument).lower() for argument in step.actual_parameters),
            )
        )
    return PlannerAnswer(tuple(plan))
