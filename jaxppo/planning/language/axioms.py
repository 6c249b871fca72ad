"""Derived predicates: rules that say when an atom holds, and the order in which they can be applied.

Source: Edelkamp and Hoffmann, PDDL2.2, technical report 195, University of Freiburg (2004); Thiebaux, Hoffmann and
Nebel, In defense of PDDL axioms, Artificial Intelligence 168 (2005).
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from jaxppo.planning.language.conditions import (
    Condition,
    is_fallible,
    predicates_in,
    read_condition,
)
from jaxppo.planning.language.numeric import COMPARISONS
from jaxppo.planning.language.scope import Parameter, Scope
from jaxppo.planning.language.sexpr import Node
from jaxppo.planning.language.typed_lists import reachable, read_parameters

_Uses: TypeAlias = Mapping[str, frozenset[tuple[str, bool]]]


@dataclass(frozen=True, slots=True)
class Rule:
    """`(:derived (predicate parameters) body)`: the atom holds for every binding for which the body does."""

    predicate: str
    parameters: tuple[Parameter, ...]
    body: Condition


def derived_predicates(forms: Sequence[list[Node]]) -> frozenset[str]:
    """Return the predicates that rules define, read before the rules themselves are."""
    names = set()
    for form in forms:
        head = form[1] if len(form) > 1 else None
        if isinstance(head, list) and head and isinstance(head[0], str):
            names.add(head[0])
    return frozenset(names)


def compare_numbers(forms: Iterable[Node]) -> bool:
    """Return whether numbers are compared anywhere in these forms (an `=` of objects counts, too)."""
    for form in forms:
        if isinstance(form, list):
            head = form[0] if form else None
            if (isinstance(head, str) and head in COMPARISONS) or compare_numbers(form):
                return True
    return False


def read_rules(
    forms: Sequence[list[Node]], scope: Scope
) -> tuple[dict[str, tuple[Rule, ...]], dict[str, int]]:
    """Read the rules of a domain.

    Returns:
        Derived predicate to its rules, and to its stratum.
    """
    rules: dict[str, tuple[Rule, ...]] = {}
    for form in forms:
        rule = _read_rule(form, scope)
        rules[rule.predicate] = (*rules.get(rule.predicate, ()), rule)
    # Between predicates, not atoms: what an atom depends on is known once objects are filled in.
    uses = {name: _uses(name_rules, rules) for name, name_rules in rules.items()}
    strata = _strata(uses, forms, scope)
    dependencies = {name: [used for used, _ in name_uses] for name, name_uses in uses.items()}
    # A rule that compares numbers may read a function without
    # a value; VAL gives wrong answers where it is recursive.
    for name, name_rules in rules.items():
        compares = any(is_fallible(rule.body, frozenset()) for rule in name_rules)
        if compares and any(name in reachable(used, dependencies) for used in dependencies[name]):
            reason = f"no comparison of numbers in the rules of '{name}', which is recursive (VAL gets them wrong)"
            scope.fail(_form_of(name, forms), reason)
    return rules, strata


def _uses(rules: Iterable[Rule], derived: Container[str]) -> frozenset[tuple[str, bool]]:
    """Return the derived predicates in the bodies of rules, each with whether its truth helps (True) or hurts."""
    uses = set()
    for rule in rules:
        uses.update(use for use in predicates_in(rule.body) if use[0] in derived)
    return frozenset(uses)


def _form_of(name: str, forms: Sequence[list[Node]]) -> list[Node]:
    return next(form for form in forms if isinstance(form[1], list) and form[1][0] == name)


def _read_rule(form: list[Node], scope: Scope) -> Rule:
    head = form[1] if len(form) == 3 else None
    if not isinstance(head, list) or not head or not isinstance(head[0], str):
        scope.fail(form, "'(:derived (predicate ?argument ...) (condition))'")
    argument_types = scope.predicates.get(head[0])
    if argument_types is None:
        scope.fail(head, "a predicate declared under ':predicates'")
    parameters = read_parameters(head[1:], scope)
    if len(dict(parameters)) < len(parameters):
        scope.fail(head, "a rule whose arguments have different names")
    if tuple(types for _, types in parameters) != argument_types:
        scope.fail(head, f"the arguments that ':predicates' declares for '{head[0]}'")
    inner = replace(scope, terms={**scope.terms, **dict(parameters)})
    body = read_condition(form[2], inner, may_be_empty=False)
    return Rule(str(head[0]), parameters, body)


def _strata(uses: _Uses, forms: Sequence[list[Node]], scope: Scope) -> dict[str, int]:
    """Return the lowest strata with `s(head) >= s(p)` for every p in a body, and `>` where p stands under a `not`.

    A negated predicate has to be complete before a rule reads it, hence the `>`. All strata start at 0, and each pass
    raises the heads that stand too low. Without a cycle through a `not`, no stratum exceeds the number of predicates
    and the passes end; strata that still rise after as many passes show such a cycle, and then no order exists.
    """
    strata = dict.fromkeys(uses, 0)
    edges = []
    for name, dependencies in uses.items():
        for dependency, positive in dependencies:
            edges.append((name, dependency, 0 if positive else 1))
    for _ in range(len(uses) + 1):
        raised = {}
        for head, dependency, step in edges:
            if strata[head] < strata[dependency] + step:
                raised[head] = strata[dependency] + step
        if not raised:
            return strata
        strata.update(raised)
    name = max(strata, key=lambda predicate: strata[predicate])
    scope.fail(
        _form_of(name, forms),
        f"derived predicates that do not depend on their own negation ('{name}' does)",
    )
