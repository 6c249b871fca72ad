"""Conditions and steps with objects filled in, as plain data; `grounding` makes them, `states` evaluates them."""

from typing import NamedTuple, TypeAlias

from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.numeric import Expression, Update
from jaxppo.planning.language.scope import Atom

# An atom that no state contains: what stands for a condition that is false for good.
NEVER: Atom = ("=",)


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
    updates: tuple[Update, ...]
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
    """Count the parts of a ground condition."""
    return 1 + sum(map(size_of, node.parts)) if isinstance(node, Ground) else 1


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
