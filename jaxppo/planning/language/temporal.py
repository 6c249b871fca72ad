"""PDDL in which time matters, as far as a plan for it must be read and its names checked; VAL does the rest.

Durative actions, processes and events, timed initial literals. What holds and when is left to VAL.

Source: Fox and Long, PDDL2.1, JAIR 20 (2003), and PDDL+, JAIR 27 (2006); Edelkamp and Hoffmann, PDDL2.2, technical
report 195, University of Freiburg (2004).
"""

import re
from collections.abc import Iterator, Sequence
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
from jaxppo.planning.language.sexpr import Form, Word, read_form
from jaxppo.planning.language.task import check_action
from jaxppo.planning.language.verdicts import PlanError

Plan = Sequence[Action | TimedAction]
"""The steps of a plan: with time stamps where `needs_time_stamps` says so, else without."""

_COMMENT = re.compile(r";[^\n]*+")
_TIMED_SECTION = re.compile(r"\(\s*+:(?:durative-action|process|event)(?![\w-])")
_TIMED_FACT = re.compile(r"\(\s*+at\s++[0-9.]++\s*+\(")
_DURATIVE = ":durative-action"
# What declares the operators and objects, and everything that a plan can name.
_NAMING_SECTIONS = frozenset({":requirements", ":types", ":constants", ":action", ":objects", ":domain", _DURATIVE})


class PlanNames(NamedTuple):
    """What the steps of a plan may name.

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


def needs_time_stamps(domain_pddl: str, problem_pddl: str) -> bool:
    """Return whether the steps of a plan need times: durative actions, processes, events, timed initial literals."""
    return _has_timed_sections(domain_pddl) or _has_timed_facts(problem_pddl)


@lru_cache(maxsize=256)
def _has_timed_sections(domain_pddl: str) -> bool:
    return bool(_TIMED_SECTION.search(_COMMENT.sub("", domain_pddl.lower())))


@lru_cache(maxsize=4096)
def _has_timed_facts(problem_pddl: str) -> bool:
    return bool(_TIMED_FACT.search(_COMMENT.sub("", problem_pddl.lower())))


def parse_plan_for(domain_pddl: str, problem_pddl: str, plan_text: str) -> ParsedPlan | ParsedTimedPlan:
    """Read a plan as its problem asks for: with time stamps (`parse_timed_plan_text`) or without."""
    if needs_time_stamps(domain_pddl, problem_pddl):
        return parse_timed_plan_text(plan_text)
    return parse_plan_text(plan_text)


def read_names(domain_pddl: str, problem_pddl: str) -> PlanNames:
    """Read what a plan may name, of any PDDL: where the built-in validator covers it the files are read in full.

    Raises:
        PddlError: the domain or the problem cannot be read.
    """
    try:
        return PlanNames(parse_problem(problem_pddl, parse_domain(domain_pddl)), False, frozenset(), None)
    except UncoveredPddlError:
        raise
    except UnsupportedPddlError as error:
        beyond = str(error)
    timed = needs_time_stamps(domain_pddl, problem_pddl)
    if not timed:
        return PlanNames(parse_problem_names(domain_pddl, problem_pddl), timed, frozenset(), beyond)
    domain = read_form(domain_pddl, "<domain>")
    problem = read_form(problem_pddl, "<problem>")
    names = parse_problem_names(_outline(domain), _outline(problem))
    return PlanNames(names, timed, _durative_names(domain), beyond)


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


def _durative_names(domain: Form) -> frozenset[str]:
    return frozenset(
        str(section[1]) for section in domain[1:] if isinstance(section, Form) and section[:1] == [_DURATIVE]
    )


def _outline(form: Form) -> str:
    """Keep only what declares names, every word on its line: durative actions become plain ones."""
    lines: dict[int, list[str]] = {}
    for token, line in _outline_tokens(form):
        lines.setdefault(line, []).append(token)
    return "\n".join(" ".join(lines.get(number, [])) for number in range(1, max(lines) + 1))


def _outline_tokens(form: Form) -> Iterator[tuple[str, int]]:
    yield "(", form.line
    for node in form:
        keyword = node[0] if isinstance(node, Form) and node else None
        if not (isinstance(keyword, Word) and keyword[0] == ":"):
            yield from _tokens(node)
        elif isinstance(node, Form) and keyword in (":action", _DURATIVE):
            yield from _action_tokens(node)
        elif keyword in _NAMING_SECTIONS:
            yield from _tokens(node)
    yield ")", _last_line(form)


def _action_tokens(form: Form) -> Iterator[tuple[str, int]]:
    """Yield an operator's head: its name and parameters."""
    yield "(:action", form.line
    places = [place for place, node in enumerate(form[:-1]) if node == ":parameters"]
    # VAL wants them behind the name of a durative action; other actions may be without.
    first = 2 if form[0] == _DURATIVE or not places else places[0]
    for node in (*form[1:2], *(form[first : first + 2] if places or form[0] == _DURATIVE else ())):
        yield from _tokens(node)
    yield ":precondition () :effect (and))", _last_line(form)


def _tokens(node: Word | Form) -> Iterator[tuple[str, int]]:
    if isinstance(node, Word):
        yield str(node), node.line
        return
    yield "(", node.line
    for part in node:
        yield from _tokens(part)
    yield ")", _last_line(node)


def _last_line(form: Form) -> int:
    last = form[-1] if form else form
    return last.line if isinstance(last, Word) or not last else _last_line(last)
