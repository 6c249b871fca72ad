"""Conditions and steps with objects filled in, as plain data; `grounding` makes them, `states` evaluates them."""

from typing import NamedTuple, TypeAlias

from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.numeric import Expression, Update
from jaxppo.planning.language.scope import Atom

# An atom that no state contains: it stands for a condition that is always false.
NEVER: Atom = ("=",)


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
    """What a step has beyond STRIPS."""

    conditions: tuple[Node, ...]
    effects: tuple[GroundEffect, ...]


NO_EXTRAS = Extras((), ())
"""Of a step that is plain STRIPS: this very object."""


class GroundStep(NamedTuple):
    """An operator with its arguments filled in.

    Attributes:
        true: atoms that must hold before it.
        false: atoms that must not.
        delete: atoms that it removes, before it adds any.
        add: atoms that it adds.
        extras: what it has beyond STRIPS.
    """

    true: frozenset[Atom]
    false: frozenset[Atom]
    delete: frozenset[Atom]
    add: frozenset[Atom]
    extras: Extras


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
