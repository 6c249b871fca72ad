"""The text of a problem to a `Problem`.

Source: McDermott et al., PDDL - The Planning Domain Definition Language (1998); Fox and Long, PDDL2.1, JAIR 20 (2003).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxppo.planning.language.conditions import Condition, has_quantifier, read_conjuncts
from jaxppo.planning.language.domain import (
    check_once,
    items_of,
    read_definition,
    read_objects,
    sections_of,
)
from jaxppo.planning.language.numeric import read_expression, read_function, read_number
from jaxppo.planning.language.scope import (
    Atom,
    Scope,
    Types,
    headed,
    read_atom,
    read_name,
)
from jaxppo.planning.language.sexpr import Node
from jaxppo.planning.language.task import Domain, Problem, ProblemMetric, has_quantifiers

_ONCE = frozenset({":domain", ":objects", ":init", ":goal", ":metric"})
_SECTIONS = _ONCE | {":requirements", ":length"}
_NUMBER = r"-?\d+(?:\.\d*)?"
_LENGTH = re.compile(rf":serial {_NUMBER}(?: :parallel {_NUMBER})?|:parallel {_NUMBER}")


def read_problem(form: list[Node], domain: Domain, scope: Scope) -> Problem:
    """Read a problem of a domain, or only its names where `scope.names_only`."""
    scope = replace(
        scope,
        typed=domain.typed,
        ancestors=domain.ancestors,
        predicates=domain.predicates,
        functions=domain.functions,
        derived=frozenset(domain.rules),
        fallible=domain.fallible,
    )
    name, sections = read_definition(form, "problem", _SECTIONS, scope)
    objects = read_objects(items_of(sections, ":objects"), domain.constants, scope)
    if scope.names_only:
        return Problem(name, domain, objects, frozenset(), (), (), {})
    _check_sections(form, sections, scope)
    # The domain was read before any problem, so it could not tell whether these exist.
    for constant in sorted(domain.late_constants - objects.keys()):
        scope.fail(form, f"the object '{constant}', which an action of the domain names")
    scope = replace(scope, terms=objects)
    # Objects before facts and goal, which name them; the order of the sections does not matter.
    facts, values = _read_init(items_of(sections, ":init"), scope)
    goal = _read_goal(sections_of(sections, ":goal"), scope)
    if has_quantifiers(domain) or any(map(has_quantifier, goal)):
        _check_objects_have_types(form, objects, scope)
    metric = _read_metric(sections_of(sections, ":metric"), scope)
    return Problem(name, domain, objects, frozenset(facts), facts, goal, values, metric)


def _check_sections(form: list[Node], sections: Sequence[list[Node]], scope: Scope) -> None:
    """Refuse what VAL fails on: it crashes without `:domain` first or `:init`, and drops one of two equal sections."""
    check_once(sections, _ONCE, scope)
    keywords = [section[0] for section in sections]
    if keywords[:1] != [":domain"] or ":init" not in keywords:
        scope.fail(form, "a section '(:domain NAME)' in front and a section '(:init ...)'")
    if len(sections[0]) != 2:
        scope.fail(sections[0], "'(:domain NAME)'")
    # Both are lists of a keyword and a name: `(problem NAME)` and `(:domain NAME)`.
    for node in (form[1], sections[0]):
        name = node[-1]
        if read_name(name, scope, "a name") in scope.functions:
            scope.fail(
                name,
                "a problem and a domain that are not named like a function (VAL reads the function)",
            )
    for section in sections:
        if section[0] == ":length":
            _check_length(section, scope)


def _check_objects_have_types(form: list[Node], objects: Mapping[str, Types], scope: Scope) -> None:
    """Refuse objects without a type where something ranges over the objects of a type: VAL has no answer then."""
    for name, types in objects.items():
        if not types:
            # The word in the text has the line for the
            # message; a constant of the domain has none here.
            lists = (section for section in form if isinstance(section, list) and name in section)
            section = next(lists, None)
            node = form if section is None else section[section.index(name)]
            scope.fail(node, f"a type for the object '{name}', as 'forall' or 'exists' ask for it")


def _check_length(section: list[Node], scope: Scope) -> None:
    """Read the form of `:length` that VAL reads, which says nothing about plans."""
    # Inner forms, as in `(:length (:serial 3))`, become text that does not match.
    if not _LENGTH.fullmatch(" ".join(map(str, section[1:]))):
        scope.fail(section, "'(:length :serial NUMBER)', as VAL reads it")


def _read_init(items: Sequence[Node], scope: Scope) -> tuple[tuple[Atom, ...], dict[Atom, float]]:
    """Read the atoms that hold at the start, and the values of functions (of several for one function, the last).

    Negated facts are left out, even where they contradict a positive one (as in VAL).
    """
    facts: dict[Atom, None] = {}
    values: dict[Atom, float] = {}
    for node in items:
        fact = _read_fact(node, scope, values)
        if fact is not None:
            facts[fact] = None
    return tuple(facts), values


def _read_fact(node: Node, scope: Scope, values: dict[Atom, float]) -> Atom | None:
    """Read a fact; a value is added to `values`, and for that and for a negated fact the result is None."""
    form, head = headed(node, scope, "a fact '(predicate object ...)'")
    if head == "=":
        function, number = _read_value(form, scope)
        values[function] = number
        return None
    if head != "not":
        return read_atom(form, head, scope)
    if len(form) != 2:
        scope.fail(form, "'(not (predicate ...))'")
    # A negated fact is checked and left out: what is not listed does not hold.
    inner, inner_head = headed(form[1], scope, "'(predicate ...)' behind 'not'")
    if inner_head == "=":
        scope.fail(form, "a fact on a predicate")
    read_atom(inner, inner_head, scope)
    return None


def _read_value(form: list[Node], scope: Scope) -> tuple[Atom, float]:
    number = read_number(form[2], scope) if len(form) == 3 else None
    if number is None or not isinstance(form[1], list):
        scope.fail(form, "'(= (function ...) number)'")
    return read_function(form[1], scope), number


def _read_goal(sections: Sequence[list[Node]], scope: Scope) -> tuple[Condition, ...]:
    """Read the goal; a problem without one is solved by every plan."""
    if not sections:
        return ()
    if len(sections[0]) != 2:
        scope.fail(sections[0], "'(:goal (condition))'")
    return read_conjuncts(sections[0][1], scope)


def _read_metric(sections: Sequence[list[Node]], scope: Scope) -> ProblemMetric | None:
    if not sections:
        return None
    section = sections[0]
    if len(section) != 3 or section[1] not in ("minimize", "maximize"):
        scope.fail(section, "'(:metric minimize expression)' or '(:metric maximize expression)'")
    return ProblemMetric(str(section[1]), read_expression(section[2], scope, in_metric=True))
