"""What a domain and a problem say, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from jaxppo.planning.language.axioms import Rule
from jaxppo.planning.language.conditions import Condition, Literal, has_quantifier, is_fallible, write_condition
from jaxppo.planning.language.effects import Effect
from jaxppo.planning.language.numeric import Expression, Update
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import Atom, Parameter, Types, UnsupportedPddlError
from jaxppo.planning.language.verdicts import PlanError

ACTION_PARTS = (":parameters", ":precondition", ":effect")
"""What an operator says behind its name, in the usual order."""


@dataclass(frozen=True, slots=True)
class ActionSchema:
    """An operator.

    Attributes:
        name: its name.
        parameters: its variables.
        precondition: the conditions that must all hold before it.
        add: the atoms that it makes true.
        delete: the atoms that it makes false, unless it makes them true as well.
        updates: its changes of numbers.
        effects: what it does under conditions, or for several objects.
    """

    name: str
    parameters: tuple[Parameter, ...]
    precondition: tuple[Condition, ...] = ()
    add: tuple[Atom, ...] = ()
    delete: tuple[Atom, ...] = ()
    updates: tuple[Update, ...] = ()
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

    def is_of_type(self, types: Types, wanted: Types) -> bool:
        """Return whether an object declared with `types` may stand where one of `wanted` is asked for."""
        return any(not self.ancestors[name].isdisjoint(wanted) for name in types)


class Metric(NamedTuple):
    """What a plan should make small or large; it has no say in whether the plan is valid."""

    direction: str
    expression: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A planning problem; compared by identity like its domain.

    Attributes:
        name: the name it gives itself.
        domain: its domain.
        objects: name to types, in source order behind the domain's constants, which are among them.
        init: the atoms that hold at the start.
        init_order: the same atoms in source order.
        conditions: what must hold at the end, in source order: the conditions that the goal's outer `and` joins.
        values: the functions that have a value at the start, in source order.
        metric: what `:metric` says.
    """

    name: str
    domain: Domain
    objects: Mapping[str, Types]
    init: frozenset[Atom]
    init_order: tuple[Atom, ...]
    conditions: tuple[Condition, ...]
    values: Mapping[Atom, float]
    metric: Metric | None = None

    @property
    def goal(self) -> tuple[Literal, ...]:
        """The goal as the literals that it joins.

        Raises:
            UnsupportedPddlError: the goal is more than a conjunction of literals; see `conditions`.
        """
        literals = tuple(condition for condition in self.conditions if isinstance(condition, Literal))
        if len(literals) < len(self.conditions):
            first = next(condition for condition in self.conditions if not isinstance(condition, Literal))
            message = f"expected a goal that is a conjunction of literals, got '{write_condition(first, {}):.60}'"
            raise UnsupportedPddlError(f"problem {self.name}", 1, message)
        return literals


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
    if problem.domain.typed:
        for name, (_, wanted) in zip(action[1:], schema.parameters, strict=True):
            own = objects[name]
            if (own != wanted or not own) and not problem.domain.is_of_type(own, wanted):
                return PlanError.WRONG_TYPE
    return None


def compares_numbers(problem: Problem) -> bool:
    """Return whether some condition of the domain or goal compares numbers; elsewhere they only make costs."""
    return _domain_compares_numbers(problem.domain) or any(is_fallible(part, _NONE) for part in problem.conditions)


_NONE: frozenset[str] = frozenset()


@lru_cache(maxsize=256)
def _domain_compares_numbers(domain: Domain) -> bool:
    return any(is_fallible(condition, _NONE) for condition in _conditions_of(domain))


@lru_cache(maxsize=256)
def has_quantifiers(domain: Domain) -> bool:
    """Return whether an operator or rule of the domain ranges over all objects of some types."""
    effects = [effect for schema in domain.actions.values() for effect in schema.effects]
    return any(effect.parameters for effect in effects) or any(map(has_quantifier, _conditions_of(domain)))


def _conditions_of(domain: Domain) -> list[Condition]:
    conditions = [rule.body for rules in domain.rules.values() for rule in rules]
    for schema in domain.actions.values():
        conditions += schema.precondition
        conditions += [condition for effect in schema.effects for condition in effect.conditions]
    return conditions
