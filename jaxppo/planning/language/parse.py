"""PDDL text to a `Domain` and a `Problem`: typing, ADL, numeric fluents and action costs, derived predicates.

Other features (time, trajectory constraints, preferences, processes, functions with objects as values) are refused by
name.
"""

from functools import lru_cache

from jaxppo.planning.language.conditions import Condition, Literal
from jaxppo.planning.language.domain import read_domain
from jaxppo.planning.language.problem import read_problem
from jaxppo.planning.language.scope import Atom, Parameter, Scope, Types, UnsupportedPddlError
from jaxppo.planning.language.sexpr import read_form
from jaxppo.planning.language.task import ActionSchema, Domain, Problem, ProblemMetric

__all__ = [
    "ActionSchema",
    "Atom",
    "Condition",
    "Domain",
    "Literal",
    "Parameter",
    "Problem",
    "ProblemMetric",
    "Types",
    "UnsupportedPddlError",
    "parse_domain",
    "parse_problem",
    "parse_problem_names",
]


@lru_cache(maxsize=256)
def parse_domain(text: str, source: str = "<domain>") -> Domain:
    """Read a PDDL domain; equal texts give the same object.

    Args:
        text: the content of a domain file, any case.
        source: file name for messages.

    Raises:
        PddlError: the text is malformed or names something undeclared.
        UnsupportedPddlError: the text needs more than this package covers.
    """
    return read_domain(read_form(text, source), Scope(source=source))


# A training run judges many plans for each problem, and the validator caches by identity.
@lru_cache(maxsize=4096)
def parse_problem(text: str, domain: Domain, source: str = "<problem>") -> Problem:
    """Read a PDDL problem of a domain; equal texts give the same object.

    The name under `:domain` is not compared, as in VAL: benchmark files often differ there.

    Args:
        text: the content of a problem file, any case.
        domain: its domain, from `parse_domain`.
        source: file name for messages.

    Raises:
        PddlError: the text is malformed or names something undeclared.
        UnsupportedPddlError: the text needs more than this package covers.
    """
    return read_problem(read_form(text, source), domain, Scope(source=source))


def parse_problem_names(domain_pddl: str, problem_pddl: str) -> Problem:
    """Read only the operators, their parameters and the objects, of files that may go beyond what is covered here.

    Durative actions count as operators. Conditions, effects, facts and goals of the result are empty; it is used to
    check the names in a plan.

    Raises:
        PddlError: a text is malformed.
    """
    domain_form = read_form(domain_pddl, "<domain>")
    domain = read_domain(domain_form, Scope(source="<domain>", names_only=True))
    problem_form = read_form(problem_pddl, "<problem>")
    return read_problem(problem_form, domain, Scope(source="<problem>", names_only=True))
