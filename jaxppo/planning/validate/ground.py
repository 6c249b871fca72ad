"""Conditions and steps with objects filled in, as plain data; `grounding` makes them, `states` evaluates them."""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.numeric import Expression, Operation, Update
from jaxppo.planning.language.scope import Atom

# An atom that no state contains: it stands for a condition that is always false.
NEVER: Atom = ("=",)
# An operation of `long double` takes as long as reading this many atoms.
_OPERATION_WORK = 8


class DerivedLiteral(NamedTuple):
    """An atom that rules define, or its negation."""

    atom: Atom
    positive: bool


class GroundComparison(NamedTuple):
    """A comparison of ground expressions, or its negation."""

    operator: str
    left: Expression
    right: Expression
    positive: bool


class GroundJunction(NamedTuple):
    """`and` or `or` of ground conditions."""

    word: str
    parts: tuple["Node", ...]


Node: TypeAlias = bool | Literal | DerivedLiteral | GroundComparison | GroundJunction
"""A ground condition; negations stand at its leaves only."""


class GroundEffect(NamedTuple):
    """What happens where a condition held before the step."""

    condition: Node
    add: tuple[Atom, ...]
    delete: tuple[Atom, ...]
    updates: tuple[Update, ...]


class Extras(NamedTuple):
    """What a step has beyond STRIPS; `size` is the work of evaluating it."""

    conditions: tuple[Node, ...]
    effects: tuple[GroundEffect, ...]
    size: int


class RuleBody(NamedTuple):
    """When a derived atom holds; `cost` is the work of filling in, `size` that of evaluating."""

    node: Node
    cost: int
    size: int


class Step(NamedTuple):
    """An operator with its arguments filled in.

    Attributes:
        true: atoms that must hold before it.
        false: atoms that must not.
        delete: atoms that it removes, before it adds any.
        add: atoms that it adds.
        extras: what it has beyond STRIPS.
        cost: the work of filling it in, where that is more than a look-up.
    """

    true: frozenset[Atom]
    false: frozenset[Atom]
    delete: frozenset[Atom]
    add: frozenset[Atom]
    extras: Extras | None = None
    cost: int = 0


def size_of(node: Node) -> int:
    """Return the work of evaluating a ground condition: one for each part, and that of its arithmetic."""
    if isinstance(node, GroundComparison):
        return 1 + _arithmetic_work(node.left) + _arithmetic_work(node.right)
    if isinstance(node, GroundJunction):
        return 1 + sum(map(size_of, node.parts))
    return 1


def size_of_updates(updates: Iterable[Update]) -> int:
    """Return the work of computing the new values of functions."""
    return sum([1 + _arithmetic_work(update.amount) for update in updates])


def _arithmetic_work(expression: Expression) -> int:
    if not isinstance(expression, Operation):
        return 0
    return _OPERATION_WORK + sum(map(_arithmetic_work, expression.arguments))


def sort_in(node: Node, true: set[Atom], false: set[Atom], compound: list[Node]) -> None:
    """Add a ground condition to the collection that checks it fastest.

    Args:
        node: the condition.
        true: atoms that must hold.
        false: atoms that must not.
        compound: conditions that are no conjunction of literals.
    """
    if isinstance(node, Literal):
        atoms = true if node.positive else false
        atoms.add(node.atom)
    elif (
        isinstance(node, GroundJunction)
        and node.word == "and"
        and all(isinstance(part, Literal) for part in node.parts)
    ):
        for part in node.parts:
            sort_in(part, true, false, compound)
    # The step stays, so that a plan which uses it fails by its precondition.
    elif node is False:
        true.add(NEVER)
    elif node is not True:
        compound.append(node)
