"""Temporal PDDL, as far as a plan for it must be read and its names checked.

Durative actions, processes and events, timed initial literals. What holds when is left to VAL.

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
"""The steps of a plan, with time stamps where `needs_time_stamps`."""

_COMMENT = re.compile(r";[^\n]*+")
_TIMED_SECTION = re.compile(r"\(\s*+:(?:durative-action|process|event)(?![\w-])")
_TIMED_FACT = re.compile(r"\(\s*+at\s++[0-9.]++\s*+\(")
_DURATIVE = ":durative-action"
# The sections that declare operators and objects, all that a plan can name.
_NAMING_SECTIONS = frozenset(
    {":requirements", ":types", ":constants", ":action", ":objects", ":domain", _DURATIVE}
)


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


def needs_time_stamps(domain_pddl: str, problem_pddl: str) -> bool:
    """Return whether the steps of a plan need times: durative actions, processes, events, timed initial literals."""
    return _has_timed_sections(domain_pddl) or _has_timed_facts(problem_pddl)


@lru_cache(maxsize=256)
def _has_timed_sections(domain_pddl: str) -> bool:
    return bool(_TIMED_SECTION.search(_COMMENT.sub("", domain_pddl.lower())))


@lru_cache(maxsize=4096)
def _has_timed_facts(problem_pddl: str) -> bool:
    return bool(_TIMED_FACT.search(_COMMENT.sub("", problem_pddl.lower())))


def parse_plan_for(
    domain_pddl: str, problem_pddl: str, plan_text: str
) -> ParsedPlan | ParsedTimedPlan:
    """Read a plan with time stamps (`parse_timed_plan_text`) or without, as its problem needs."""
    if needs_time_stamps(domain_pddl, problem_pddl):
        return parse_timed_plan_text(plan_text)
    return parse_plan_text(plan_text)


def read_names(domain_pddl: str, problem_pddl: str) -> PlanNames:
    """Read the names that a plan may use, of any PDDL; files that the built-in validator covers are read in full.

    Raises:
        PddlError: the domain or the problem cannot be read.
    """
    try:
        return PlanNames(
            parse_problem(problem_pddl, parse_domain(domain_pddl)), False, frozenset(), None
        )
    except UncoveredPddlError:
        # VAL does not read it either, so no plan for it can be judged.
        raise
    except UnsupportedPddlError as error:
        beyond = str(error)
    timed = needs_time_stamps(domain_pddl, problem_pddl)
    if not timed:
        return PlanNames(parse_problem_names(domain_pddl, problem_pddl), False, frozenset(), beyond)
    # The reader of names knows no durative actions, so it reads an outline in which they are plain
    # ones.
    domain = read_form(domain_pddl, "<domain>")
    problem = read_form(problem_pddl, "<problem>")
    names = parse_problem_names(_outline(domain), _outline(problem))
    return PlanNames(names, True, _durative_names(domain), beyond)


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
        str(section[1])
        for section in domain[1:]
        if isinstance(section, Form) and section[:1] == [_DURATIVE]
    )


def _outline(form: Form) -> str:
    """Write only the declarations of names, with durative actions as plain ones.

    Every word keeps its line, so that an error in the outline names the line of the file.
    """
    lines: dict[int, list[str]] = {}
    for token, line in _outline_tokens(form):
        lines.setdefault(line, []).append(token)
    return "\n".join(" ".join(lines.get(number, [])) for number in range(1, max(lines) + 1))


def _outline_tokens(form: Form) -> Iterator[tuple[str, int]]:
    yield "(", form.line
    for node in form:
        keyword = node[0] if isinstance(node, Form) and node else None
        is_section = isinstance(keyword, Word) and keyword[0] == ":"
        if isinstance(node, Form) and keyword in (":action", _DURATIVE):
            yield from _action_tokens(node)
        elif not is_section or keyword in _NAMING_SECTIONS:
            yield from _tokens(node)
    yield ")", _last_line(form)


def _action_tokens(form: Form) -> Iterator[tuple[str, int]]:
    """Yield an operator's name and parameters."""
    head = form[1:2]
    if form[0] == _DURATIVE:
        # VAL needs the parameters right after the name; whatever stands there is kept, for the
        # error.
        head += form[2:4]
    elif ":parameters" in form[:-1]:
        index = next(index for index, node in enumerate(form) if node == ":parameters")
        head += form[index : index + 2]
    yield "(:action", form.line
    for node in head:
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
    if not form:
        return form.line
    last_node = form[-1]
    return last_node.line if isinstance(last_node, Word) else _last_line(last_node)
