"""Domains and problems as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from jaxppo.planning.language.axioms import Rule
from jaxppo.planning.language.conditions import (
    Condition,
    Literal,
    has_quantifier,
    is_fallible,
    write_condition,
)
from jaxppo.planning.language.effects import Effect
from jaxppo.planning.language.numeric import Expression
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import Atom, Parameter, Types, UnsupportedPddlError
from jaxppo.planning.language.verdicts import PlanError

ACTION_PARTS = (":parameters", ":precondition", ":effect")
"""The parts of an operator after its name, in the usual order."""


@dataclass(frozen=True, slots=True)
class ActionSchema:
    """An operator.

    Attributes:
        name: its name.
        parameters: its variables.
        precondition: the conditions that must all hold before it.
        effects: what it does: the first always, the others under conditions or for several objects.
    """

    name: str
    parameters: tuple[Parameter, ...]
    precondition: tuple[Condition, ...] = ()
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """A planning domain; compared by identity, because equal texts give the same object.

    Attributes:
        name: the name it gives itself.
        typed: whether it has a section `:types`.
        types: declared type to its parents; empty for an untyped domain.
        ancestors: type to itself and everything above it.
        constants: name to types, shared by all problems.
        late_constants: names that the actions of an untyped domain use and each problem must declare.
        predicates: name to the types of its arguments.
        functions: the same for numeric functions.
        actions: name to operator.
        rules: derived predicate to the rules that define it.
        strata: derived predicate to its stratum; it is computed after the lower ones.
        fallible: the derived predicates that may read a function without a value.
    """

    name: str
    typed: bool
    types: Mapping[str, Types]
    ancestors: Mapping[str, frozenset[str]]
    constants: Mapping[str, Types]
    late_constants: frozenset[str]
    predicates: Mapping[str, tuple[Types, ...]]
    functions: Mapping[str, tuple[Types, ...]]
    actions: Mapping[str, ActionSchema]
    rules: Mapping[str, tuple[Rule, ...]]
    strata: Mapping[str, int]
    fallible: frozenset[str]

    def is_of_type(self, types: Types, argument_types: Types) -> bool:
        """Return whether an object declared with `types` may stand for an argument of one of `argument_types`."""
        return any(not self.ancestors[name].isdisjoint(argument_types) for name in types)


class ProblemMetric(NamedTuple):
    """The expression that a plan should minimize or maximize; validity does not depend on it."""

    direction: str
    expression: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A planning problem; compared by identity like its domain.

    Attributes:
        name: the name it gives itself.
        domain: its domain.
        objects: name to types: the domain's constants, then the problem's objects in source order.
        init: the atoms that hold at the start.
        init_order: the same atoms in source order.
        conditions: what must hold at the end, in source order: the conditions that the goal's outer `and` joins.
        values: the functions that have a value at the start, in source order.
        metric: the section `:metric`.
    """

    name: str
    domain: Domain
    objects: Mapping[str, Types]
    init: frozenset[Atom]
    init_order: tuple[Atom, ...]
    conditions: tuple[Condition, ...]
    values: Mapping[Atom, float]
    metric: ProblemMetric | None = None

    @property
    def goal(self) -> tuple[Literal, ...]:
        """The literals of a goal that is a conjunction of literals.

        Raises:
            UnsupportedPddlError: the goal is more than a conjunction of literals; see `conditions`.
        """
        literals = []
        for condition in self.conditions:
            if not isinstance(condition, Literal):
                text = write_condition(condition, {})
                message = f"expected a goal that is a conjunction of literals, got '{text:.60}'"
                raise UnsupportedPddlError(f"problem {self.name}", 1, message)
            literals.append(condition)
        return tuple(literals)


def check_action(problem: Problem, action: Action) -> PlanError | None:
    """Check one step against the domain: operator, number of arguments, objects, types, in this order."""
    schema = problem.domain.actions.get(action[0]) if action else None
    if schema is None:
        return PlanError.UNKNOWN_ACTION
    if len(action) - 1 != len(schema.parameters):
        return PlanError.WRONG_ARITY
    objects = problem.objects
    for name in action[1:]:
        if name not in objects:
            return PlanError.UNKNOWN_OBJECT
    for name, (_, argument_types) in zip(action[1:], schema.parameters, strict=True):
        types = objects[name]
        if not problem.domain.is_of_type(types, argument_types):
            return PlanError.WRONG_TYPE
    return None


def compares_numbers(problem: Problem) -> bool:
    """Return whether some condition of the domain or goal compares numbers; elsewhere they only make costs."""
    conditions = (*_conditions_of(problem.domain), *problem.conditions)
    # Comparisons in the bodies of rules are looked for there, not where derived atoms are read.
    return any(is_fallible(condition, frozenset()) for condition in conditions)


def has_quantifiers(domain: Domain) -> bool:
    """Return whether an operator or rule of the domain ranges over all objects of some types."""
    for schema in domain.actions.values():
        if any(effect.parameters for effect in schema.effects):
            return True
    return any(map(has_quantifier, _conditions_of(domain)))


# Asked for each problem, and a data set has few domains.
@lru_cache(maxsize=256)
def _conditions_of(domain: Domain) -> list[Condition]:
    conditions: list[Condition] = []
    for rules in domain.rules.values():
        conditions += [rule.body for rule in rules]
    for schema in domain.actions.values():
        conditions += schema.precondition
        for effect in schema.effects:
            conditions += effect.conditions
    return conditions
