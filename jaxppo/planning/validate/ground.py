"""Conditions and steps with objects filled in, as plain data; `grounding` makes them, `states` evaluates them."""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.numeric import Expression, Operation, Update
from jaxppo.planning.language.scope import Atom

# An atom that no state contains: what stands for a condition that is false for good.
NEVER: Atom = ("=",)
# An operation of `long double` takes as long as reading this many atoms.
_OPERATION_WORK = 8


class Derived(NamedTuple):
    """An atom that rules define, or its negation."""

    atom: Atom
    positive: bool


class Test(NamedTuple):
    """A comparison of ground expressions, or its negation."""

    operator: str
    left: Expression
    right: Expression
    positive: bool


class Ground(NamedTuple):
    """`and` or `or` of ground conditions."""

    word: str
    parts: tuple["Node", ...]


Node: TypeAlias = bool | Literal | Derived | Test | Ground
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


class Body(NamedTuple):
    """When a derived atom holds; `cost` is the work of filling in, `size` that of evaluating."""

    node: Node
    cost: int
    size: int


class Step(NamedTuple):
    """An operator with its arguments filled in: atoms that must hold and must not, and what becomes of the state.

    `cost` is the work that filling in took, where it was more than a look-up.
    """

    true: frozenset[Atom]
    false: frozenset[Atom]
    delete: frozenset[Atom]
    add: frozenset[Atom]
    extras: Extras | None = None
    cost: int = 0


def size_of(node: Node) -> int:
    """Return the work of evaluating a ground condition: one for each part, and that of its arithmetic."""
    if isinstance(node, Test):
        return 1 + _arithmetic(node.left) + _arithmetic(node.right)
    return 1 + sum(map(size_of, node.parts)) if isinstance(node, Ground) else 1


def size_of_updates(updates: Iterable[Update]) -> int:
    """Return the work of computing what functions become."""
    return sum([1 + _arithmetic(update.amount) for update in updates])


def _arithmetic(expression: Expression) -> int:
    if not isinstance(expression, Operation):
        return 0
    return _OPERATION_WORK + sum(map(_arithmetic, expression.arguments))


def sort_in(node: Node, true: set[Atom], false: set[Atom], others: list[Node]) -> None:
    """Put what a precondition demands where it is checked fastest."""
    if isinstance(node, Literal):
        (true if node.positive else false).add(node.atom)
    elif isinstance(node, Ground) and node.word == "and" and all(isinstance(part, Literal) for part in node.parts):
        for part in node.parts:
            sort_in(part, true, false, others)
    elif node is False:
        true.add(NEVER)
    elif node is not True:
        others.append(node)
