"""PDDL text to a `Domain` and a `Problem`: STRIPS with typing, constants, equality, negative preconditions and costs.

Of costs and metrics only the names are kept: amounts never change whether a plan is valid. Everything that goes beyond
(disjunctions, quantifiers, conditional effects, numeric conditions, derived predicates, time) is refused by name.

Source: McDermott et al., PDDL - The Planning Domain Definition Language (1998); Fox and Long, PDDL2.1, JAIR 20 (2003).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from jaxppo.planning.conditions import (
    Atom,
    Literal,
    Scope,
    Types,
    UnsupportedPddlError,
    read_condition,
    read_effects,
    read_facts,
    read_functions,
    read_name,
    read_updates,
)
from jaxppo.planning.plans import NAME_PATTERN
from jaxppo.planning.sexpr import Form, Word, read_form
from jaxppo.planning.typed_lists import ancestors_of, read_typed_list, read_types

__all__ = [
    "ActionSchema",
    "Atom",
    "Domain",
    "Literal",
    "Parameter",
    "Problem",
    "Types",
    "UnsupportedPddlError",
    "parse_domain",
    "parse_problem",
    "parse_problem_names",
]

_VARIABLE = re.compile(r"\?" + NAME_PATTERN)
_DOMAIN_SECTIONS = frozenset({":requirements", ":types", ":constants", ":predicates", ":functions", ":action"})
_PROBLEM_SECTIONS = frozenset({":domain", ":requirements", ":objects", ":init", ":goal", ":metric", ":length"})
# Sections that say what holds and declare no action or object.
_RULE_SECTIONS = frozenset({":derived", ":constraints"})


class Parameter(NamedTuple):
    """A variable (`?x`) and the types it may have."""

    name: str
    types: Types


@dataclass(frozen=True, slots=True)
class ActionSchema:
    """An operator: what must hold before it, what it adds and deletes, and the functions (costs) it reads and sets."""

    name: str
    parameters: tuple[Parameter, ...]
    precondition: tuple[Literal, ...] = ()
    add: tuple[Atom, ...] = ()
    delete: tuple[Atom, ...] = ()
    reads: tuple[Atom, ...] = ()
    sets: tuple[Atom, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """A planning domain; compared by identity, because equal texts give the same object.

    Attributes:
        name: the name it gives itself.
        types: declared type to its parents; empty for an untyped domain.
        ancestors: type to itself and everything above it.
        constants: name to types, shared by all problems.
        late_constants: names that the actions of an untyped domain use and each problem must declare.
        predicates: name to the types of its arguments.
        actions: name to operator.
    """

    name: str
    types: Mapping[str, Types]
    ancestors: Mapping[str, frozenset[str]]
    constants: Mapping[str, Types]
    late_constants: frozenset[str]
    predicates: Mapping[str, tuple[Types, ...]]
    actions: Mapping[str, ActionSchema]

    def is_of_type(self, types: Types, wanted: Types) -> bool:
        """Whether an object declared with `types` may stand where one of `wanted` is asked for."""
        return any(not self.ancestors[name].isdisjoint(wanted) for name in types)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A planning problem; compared by identity like its domain.

    Attributes:
        name: the name it gives itself.
        domain: its domain.
        objects: name to types, in source order behind the domain's constants, which are among them.
        init: the atoms that hold at the start.
        init_order: the same atoms in source order.
        goal: the literals that must hold at the end, in source order.
        functions: the functions that have a value at the start.
        metric: the functions that the metric reads.
    """

    name: str
    domain: Domain
    objects: Mapping[str, Types]
    init: frozenset[Atom]
    init_order: tuple[Atom, ...]
    goal: tuple[Literal, ...]
    functions: frozenset[Atom] = frozenset()
    metric: tuple[Atom, ...] = ()


@lru_cache(maxsize=256)
def parse_domain(text: str, source: str = "<domain>") -> Domain:
    """Read a PDDL domain; equal texts give the same object.

    Args:
        text: the content of a domain file, any case.
        source: file name for messages.

    Raises:
        PddlError: the text is malformed or names something undeclared.
        UnsupportedPddlError: the text needs more than this module covers.
    """
    return _read_domain(text, Scope(source=source))


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
        UnsupportedPddlError: the text needs more than this module covers.
    """
    return _read_problem(text, domain, Scope(source=source))


@lru_cache(maxsize=256)
def parse_problem_names(domain_pddl: str, problem_pddl: str) -> Problem:
    """Read only the operators, their parameters and the objects, of files that may go beyond STRIPS.

    Conditions, effects, facts and goals of the result are empty: it serves to check the names in a plan.

    Raises:
        PddlError: a text is malformed.
        UnsupportedPddlError: durative actions, whose plans are more than a list of actions.
    """
    domain = _read_domain(domain_pddl, Scope(source="<domain>", names_only=True))
    return _read_problem(problem_pddl, domain, Scope(source="<problem>", names_only=True))


def _read_domain(text: str, scope: Scope) -> Domain:
    form = read_form(text, scope.source)
    name, sections = _definition(form, "domain", _DOMAIN_SECTIONS, scope)
    is_typed = any(section[0] == ":types" for section in sections)
    types = read_types(_items(sections, ":types"), scope)
    scope = replace(scope, ancestors=ancestors_of(types), late=None if is_typed else set())
    constants = _declared_objects(_items(sections, ":constants"), {}, scope)
    predicates = _predicates(_items(sections, ":predicates"), scope)
    scope = replace(scope, predicates=predicates, terms=constants)
    actions = _actions([section for section in sections if section[0] == ":action"], scope)
    return Domain(name, types, scope.ancestors, constants, frozenset(scope.late or ()), predicates, actions)


def _read_problem(text: str, domain: Domain, scope: Scope) -> Problem:
    form = read_form(text, scope.source)
    scope = replace(scope, ancestors=domain.ancestors, predicates=domain.predicates)
    name, sections = _definition(form, "problem", _PROBLEM_SECTIONS, scope)
    objects = _declared_objects(_items(sections, ":objects"), domain.constants, scope)
    if scope.names_only:
        return Problem(name, domain, objects, frozenset(), (), ())
    for constant in sorted(domain.late_constants - objects.keys()):
        scope.fail(form, f"the object '{constant}', which an action of the domain names")
    if not any(section[0] == ":init" for section in sections):
        scope.fail(form, "a section '(:init ...)'")
    scope = replace(scope, terms=objects)
    init, functions = read_facts(_items(sections, ":init"), scope)
    goal = tuple(literal for node in _items(sections, ":goal") for literal in read_condition(node, scope))
    metric = tuple(atom for node in _items(sections, ":metric")[1:] for atom in read_functions(node, scope))
    return Problem(name, domain, objects, frozenset(init), init, goal, frozenset(functions), metric)


def _definition(form: Form, kind: str, known: frozenset[str], scope: Scope) -> tuple[str, list[Form]]:
    """The name and the sections of `(define (kind name) (:section ...) ...)`."""
    head = form[1] if len(form) > 1 and form[0] == "define" else form
    if head is form or not isinstance(head, Form) or len(head) != 2 or head[0] != kind:
        scope.fail(head, f"'(define ({kind} NAME) ...)'")
    name = read_name(head[1], scope, f"the {kind}'s name")
    return name, [_checked_section(node, known, scope) for node in form[2:]]


def _checked_section(node: Word | Form, known: frozenset[str], scope: Scope) -> Form:
    keyword = node[0] if isinstance(node, Form) and node else None
    if isinstance(node, Word) or not isinstance(keyword, Word) or keyword[0] != ":":
        scope.fail(node, "a section '(:keyword ...)'")
    if keyword not in known and not (scope.names_only and keyword in _RULE_SECTIONS):
        scope.refuse(node, keyword)
    return node


def _items(sections: Iterable[Form], keyword: str) -> list[Word | Form]:
    """The items of all sections of that keyword."""
    return [item for section in sections if section[0] == keyword for item in section[1:]]


def _declared_objects(items: Sequence[Word | Form], constants: Mapping[str, Types], scope: Scope) -> dict[str, Types]:
    objects = dict(constants)
    for name, types in read_typed_list(items, scope):
        if objects.setdefault(read_name(name, scope, "an object"), types) != types:
            scope.fail(name, "an object to be declared with one type")
    return objects


def _parameters(items: Sequence[Word | Form], scope: Scope) -> tuple[Parameter, ...]:
    parameters = []
    for name, types in read_typed_list(items, scope):
        if not _VARIABLE.fullmatch(name):
            scope.fail(name, "a variable such as '?x'")
        if any(name == parameter.name for parameter in parameters):
            scope.fail(name, "every parameter to have its own name")
        parameters.append(Parameter(str(name), types))
    return tuple(parameters)


def _predicates(items: Sequence[Word | Form], scope: Scope) -> dict[str, tuple[Types, ...]]:
    predicates: dict[str, tuple[Types, ...]] = {}
    for node in items:
        if isinstance(node, Word) or not node:
            scope.fail(node, "'(predicate ?argument ...)'")
        name = read_name(node[0], scope, "a predicate")
        if name in predicates:
            scope.fail(node, "a predicate to be declared once")
        predicates[name] = tuple(parameter.types for parameter in _parameters(node[1:], scope))
    return predicates


def _actions(forms: Sequence[Form], scope: Scope) -> dict[str, ActionSchema]:
    actions: dict[str, ActionSchema] = {}
    for form in forms:
        schema = _action(form, scope)
        if schema.name in actions:
            scope.fail(form, f"the action '{schema.name}' to be declared once")
        actions[schema.name] = schema
    return actions


def _action(form: Form, scope: Scope) -> ActionSchema:
    if len(form) < 2:
        scope.fail(form, "'(:action NAME :parameters ... :effect ...)'")
    name = read_name(form[1], scope, "an action")
    parts = _action_parts(form, scope)
    parameters = _parameters(parts[":parameters"], scope)
    if scope.names_only:
        return ActionSchema(name, parameters)
    scope = replace(scope, terms={**scope.terms, **{entry.name: entry.types for entry in parameters}})
    precondition = read_condition(parts[":precondition"], scope)
    effects = read_effects(parts[":effect"], scope)
    sets, reads = read_updates(parts[":effect"], scope)
    return ActionSchema(
        name,
        parameters,
        precondition,
        add=tuple(literal.atom for literal in effects if literal.positive),
        delete=tuple(literal.atom for literal in effects if not literal.positive),
        reads=reads,
        sets=sets,
    )


def _action_parts(form: Form, scope: Scope) -> dict[str, Form]:
    """The three parts behind an action's name, which VAL wants complete and in this order."""
    keywords = (":parameters", ":precondition", ":effect")
    parts = {
        str(keyword): part for keyword, part in zip(form[2::2], form[3::2], strict=False) if isinstance(part, Form)
    }
    if tuple(parts) != keywords or len(form) != 2 + 2 * len(keywords):
        scope.fail(form, f"'{' (...) '.join(keywords)} (...)', all three in this order ('()' for an empty one)")
    return parts
