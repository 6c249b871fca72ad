"""A state: which atoms hold, which numbers functions have, and what follows by the rules of derived predicates."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.numeric import (
    UndefinedNumberError,
    Update,
    compare,
    evaluate,
    updated,
)
from jaxppo.planning.language.scope import Atom
from jaxppo.planning.language.task import Problem
from jaxppo.planning.validate.ground import (
    DerivedLiteral,
    GroundComparison,
    GroundJunction,
    GroundStep,
    Node,
)
from jaxppo.planning.validate.grounding import Grounder


class AtomBatch(NamedTuple):
    """Derived atoms that are computed together.

    Attributes:
        strata: the atoms and when each holds, stratum after stratum, each after those that it uses.
        uses: the batches that must be computed before.
    """

    strata: tuple[tuple[tuple[Atom, Node], ...], ...]
    uses: frozenset[int]


class Rules:
    """The ground rules of a problem, as far as plans have asked for them.

    An atom that is asked for makes a batch, with all atoms that it depends on and that are in no batch yet. So a batch
    depends on older batches only, and of a problem with many derived atoms only those are computed that a plan reads.

    Attributes:
        batches: the batches so far; their numbers are their places here.
    """

    def __init__(self, problem: Problem, grounder: Grounder):
        self._grounder = grounder
        self.batches: list[AtomBatch] = []
        self._strata = problem.domain.strata
        self._batch_numbers: dict[Atom, int] = {}

    def batch_of(self, atom: Atom) -> int:
        """Return the number of the batch that a derived atom belongs to.

        Raises:
            UnsupportedPddlError: it depends on too many others.
        """
        if atom not in self._batch_numbers:
            members, uses = self._depth_first(atom)
            # A stable sort: within a stratum the depth-first order
            # stays, so that few passes reach the fixed point.
            members.sort(key=self._stratum_of)
            strata = groupby(members, key=self._stratum_of)
            for member, _ in members:
                self._batch_numbers[member] = len(self.batches)
            batch = AtomBatch(tuple(tuple(stratum) for _, stratum in strata), frozenset(uses))
            self.batches.append(batch)
        return self._batch_numbers[atom]

    def _stratum_of(self, member: tuple[Atom, Node]) -> int:
        atom, _ = member
        return self._strata[atom[0]]

    def _depth_first(self, atom: Atom) -> tuple[list[tuple[Atom, Node]], set[int]]:
        """List the atoms of a new batch and when each holds, each after those that it uses; and the older batches."""
        members: list[tuple[Atom, Node]] = []
        uses: set[int] = set()
        self._grounder.start()
        bodies = {atom: self._grounder.body(atom)}
        # With a stack of its own: a chain of rules may be longer than Python recurses.
        stack = [(atom, _derived_in(bodies[atom]))]
        while stack:
            current, unvisited = stack[-1]
            used = next(unvisited, None)
            if used is None:
                members.append((current, bodies[current]))
                stack.pop()
            elif used in self._batch_numbers:
                uses.add(self._batch_numbers[used])
            elif used not in bodies:
                bodies[used] = self._grounder.body(used)
                stack.append((used, _derived_in(bodies[used])))
        return members, uses


class State:
    """A state that steps change in place.

    Derived atoms are no part of it. A batch of them is computed when a condition first reads one, as the least fixed
    point of its rules: all atoms begin as false, and the rules are applied until nothing changes. This goes stratum by
    stratum, because a rule may read the negation of an atom only once that atom is final. `apply` forgets all of it.

    Attributes:
        facts: the atoms that hold; those of derived predicates are not among them.
        values: the functions that have a value.
    """

    __slots__ = ("_computed", "_derived", "_rules", "facts", "values")

    def __init__(self, problem: Problem, rules: Rules):
        self.facts = set(problem.init)
        self.values = dict(problem.values)
        self._rules = rules
        # None: the rules of the atom read a function without a value.
        self._derived: dict[Atom, bool | None] = {}
        self._computed: set[int] = set()

    def holds(self, node: Node) -> bool:
        """Return whether a ground condition holds; parts are read from left to right, and no further than needed.

        Raises:
            UndefinedNumberError: it reads a function without a value.
            UnsupportedPddlError: it depends on too many derived atoms.
        """
        # The most frequent first, and no `match`, which is slower: this is where the time goes.
        if isinstance(node, Literal):
            return (node.atom in self.facts) is node.positive
        if isinstance(node, DerivedLiteral):
            return self._holds_derived(node.atom) is node.positive
        if isinstance(node, GroundJunction):
            decisive = node.word == "or"
            for part in node.parts:
                if self.holds(part) is decisive:
                    return decisive
            return not decisive
        if isinstance(node, GroundComparison):
            left_value = evaluate(node.left, self.values)
            right_value = evaluate(node.right, self.values)
            return compare(node.operator, left_value, right_value) is node.positive
        return node

    def apply(self, step: GroundStep) -> None:
        """Apply a step.

        Raises:
            UndefinedNumberError: a condition of an effect reads a function without a value.
            UpdateError: its changes of numbers contradict each other or read a function without a value.
        """
        # All conditions and amounts are read in the old
        # state, and all deletions come before any addition.
        effects = [effect for effect in step.extras.effects if self.holds(effect.condition)]
        updates: list[Update] = []
        for effect in effects:
            updates.extend(effect.updates)
        if updates:
            self.values.update(updated(updates, self.values))
        self.facts -= step.delete
        for effect in effects:
            self.facts.difference_update(effect.delete)
        self.facts |= step.add
        for effect in effects:
            self.facts.update(effect.add)
        # What the rules gave before the step may be wrong after it.
        self._derived.clear()
        self._computed.clear()

    def holds_if_defined(self, node: Node) -> bool | None:
        """Return whether a ground condition holds; None where it reads a function without a value."""
        try:
            return self.holds(node)
        except UndefinedNumberError:
            return None

    def _holds_derived(self, atom: Atom) -> bool:
        # While a batch is computed all its atoms have a
        # value, so this does not start to compute it again.
        if atom not in self._derived:
            self._derive(atom)
        value = self._derived[atom]
        if value is None:
            raise UndefinedNumberError(atom)
        return value

    def _derive(self, atom: Atom) -> None:
        """Compute the batch of an atom, after those that it uses."""
        stack = [self._rules.batch_of(atom)]
        while stack:
            number = stack[-1]
            batch = self._rules.batches[number]
            missing = batch.uses - self._computed
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            # Two batches may use the same one, which is on the stack twice then.
            if number not in self._computed:
                self._computed.add(number)
                self._compute(batch)

    def _compute(self, batch: AtomBatch) -> None:
        """Compute the least fixed point of the rules of a batch, stratum after stratum."""
        for stratum in batch.strata:
            self._derived.update((atom, False) for atom, _ in stratum)
            while self._apply_rules(stratum):
                pass

    def _apply_rules(self, stratum: Sequence[tuple[Atom, Node]]) -> bool:
        """Apply the rules of these atoms once; return whether anything changed."""
        changed = False
        for atom, body in stratum:
            previous = self._derived[atom]
            # What holds once holds for good: within a stratum
            # no rule reads the negation of its atoms.
            if not previous:
                value = self.holds_if_defined(body)
                self._derived[atom] = value
                changed = changed or value is not previous
        return changed


def _derived_in(node: Node) -> Iterator[Atom]:
    if isinstance(node, DerivedLiteral):
        yield node.atom
    elif isinstance(node, GroundJunction):
        for part in node.parts:
            yield from _derived_in(part)
