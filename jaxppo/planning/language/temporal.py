"""Temporal PDDL, as far as a plan for it must be read and its names checked.

Durative actions, processes and events, timed initial literals. What holds when is left to VAL.

Source: Fox and Long, PDDL2.1, JAIR 20 (2003), and PDDL+, JAIR 27 (2006); Edelkamp and Hoffmann, PDDL2.2, technical
report 195, University of Freiburg (2004).
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from jaxppo.planning.language.parse import (
    Problem,
    UnsupportedPddlError,
    parse_domain,
    parse_problem,
    parse_problem_names,
)
from jaxppo.planning.language.plans import (
    Action,
    ParsedPlan,
    ParsedTimedPlan,
    TimedAction,
    parse_plan_text,
    parse_timed_plan_text,
)
from jaxppo.planning.language.scope import UncoveredPddlError
from jaxppo.planning.language.sexpr import COMMENT, read_form
from jaxppo.planning.language.task import check_action
from jaxppo.planning.language.verdicts import PlanError

Plan = Sequence[Action | TimedAction]
"""The steps of a plan, with time stamps where `needs_time_stamps`."""

_TIMED_SECTION = re.compile(r"\(\s*+:(?:durative-action|process|event)(?![\w-])")
_TIMED_FACT = re.compile(r"\(\s*+at\s++[0-9.]++\s*+\(")
_DURATIVE = ":durative-action"


class PlanNames(NamedTuple):
    """The names that the steps of a plan may use.

    Attributes:
        problem: operators, parameters and objects.
        timed: whether steps need time stamps.
        durative: the operators whose steps need durations.
        beyond: why the built-in validator does not cover the problem, with file and line; None where it does.
    """

    problem: Problem
    timed: bool
    durative: frozenset[str]
    beyond: str | None


# By the text alone, as it is asked for every plan, and of files that only VAL reads.
@lru_cache(maxsize=4096)
def needs_time_stamps(domain_pddl: str, problem_pddl: str) -> bool:
    """Return whether the steps of a plan need times: durative actions, processes, events, timed initial literals."""
    domain_text = COMMENT.sub("", domain_pddl.lower())
    problem_text = COMMENT.sub("", problem_pddl.lower())
    return bool(_TIMED_SECTION.search(domain_text) or _TIMED_FACT.search(problem_text))


def parse_plan_for(
    domain_pddl: str, problem_pddl: str, plan_text: str
) -> ParsedPlan | ParsedTimedPlan:
    """Read a plan with time stamps (`parse_timed_plan_text`) or without, as its problem needs."""
    if needs_time_stamps(domain_pddl, problem_pddl):
        return parse_timed_plan_text(plan_text)
    return parse_plan_text(plan_text)


def parse_planner_output(
    domain_pddl: str, problem_pddl: str, plan_text: str
) -> ParsedPlan | ParsedTimedPlan:
    """Read what a planner wrote: as `parse_plan_for`, but planners write time stamps for any problem.

    Where time does not matter, they give the order of the steps and nothing more.
    """
    plan = parse_plan_for(domain_pddl, problem_pddl, plan_text)
    if isinstance(plan, ParsedTimedPlan):
        return plan
    timed = parse_timed_plan_text(plan_text)
    # Steps at the same time have no order, so such a text is no plan of a problem without time.
    starts = {step.start for step in timed.steps}
    if timed.error is None and timed.steps and len(starts) == len(timed.steps):
        return ParsedPlan(
            tuple(step.action for step in sorted(timed.steps, key=lambda step: step.start))
        )
    return plan


def read_names(domain_pddl: str, problem_pddl: str) -> PlanNames:
    """Read the names that a plan may use, of any PDDL; files that the built-in validator covers are read in full.

    Raises:
        PddlError: the domain or the problem cannot be read.
    """
    try:
        problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
        return PlanNames(problem, False, frozenset(), None)
    except UncoveredPddlError:
        # VAL does not read it either, so no plan for it can be judged.
        raise
    except UnsupportedPddlError as error:
        beyond = str(error)
    problem = parse_problem_names(domain_pddl, problem_pddl)
    # Only their steps need durations; planners print them after other steps, too.
    durative = set()
    for section in read_form(domain_pddl, "<domain>"):
        if section[:1] == [_DURATIVE]:
            durative.add(str(section[1]))
    timed = needs_time_stamps(domain_pddl, problem_pddl)
    return PlanNames(problem, timed, frozenset(durative), beyond)


def check_step(names: PlanNames, step: Action | TimedAction) -> PlanError | None:
    """Check one step: a time stamp and a duration where they belong, then operator, arguments, objects, types."""
    if isinstance(step, TimedAction) != names.timed:
        return PlanError.SYNTAX
    if not isinstance(step, TimedAction):
        return check_action(names.problem, step)
    error = check_action(names.problem, step.action)
    if error is None and step.duration is None and step.action[0] in names.durative:
        return PlanError.SYNTAX
    return error
