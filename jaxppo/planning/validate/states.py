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
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import Atom
from jaxppo.planning.language.task import Problem
from jaxppo.planning.validate.ground import (
    DerivedLiteral,
    Extras,
    GroundComparison,
    GroundJunction,
    Node,
)
from jaxppo.planning.validate.grounding import MAX_RULES, Grounder

# How much one plan may cost: about a second of evaluating conditions and effects beyond STRIPS.
MAX_WORK = 2_000_000
# Filling in a part of a formula takes about as long as evaluating this many.
GROUNDING_WORK = 4


class WorkLimitError(Exception):
    """A plan needs more than `MAX_WORK`."""


class AtomBatch(NamedTuple):
    """Derived atoms that are computed together.

    Attributes:
        strata: the atoms, stratum after stratum, each after those that it uses.
        uses: the batches that must be computed before.
        cost: the work of filling in their rules.
    """

    strata: tuple[tuple[Atom, ...], ...]
    uses: frozenset[int]
    cost: int


class Rules:
    """The ground rules of a problem, as far as plans have asked for them.

    An atom that is asked for makes a batch, with all atoms that it depends on and that are in no batch yet. So a batch
    depends on older batches only, and of a problem with many derived atoms only those are computed that a plan reads.

    Attributes:
        grounder: fills in the bodies of rules.
        batches: the batches so far; their numbers are their places here.
    """

    def __init__(self, problem: Problem, grounder: Grounder):
        self.grounder = grounder
        self.batches: list[AtomBatch] = []
        self._strata = problem.domain.strata
        self._batch_numbers: dict[Atom, int] = {}

    def batch_of(self, atom: Atom) -> int:
        """Return the number of the batch that a derived atom belongs to.

        Raises:
            UnsupportedPddlError: it depends on too many others.
        """
        if atom not in self._batch_numbers:
            atoms, uses, cost = self._depth_first(atom)
            # A stable sort: within a stratum the depth-first order stays, so that few passes reach
            # the fixed point.
            atoms.sort(key=lambda member: self._strata[member[0]])
            strata = groupby(atoms, key=lambda member: self._strata[member[0]])
            batch = AtomBatch(tuple(tuple(members) for _, members in strata), frozenset(uses), cost)
            self._batch_numbers.update(dict.fromkeys(atoms, len(self.batches)))
            self.batches.append(batch)
        return self._batch_numbers[atom]

    def _depth_first(self, atom: Atom) -> tuple[list[Atom], set[int], int]:
        """List the atoms of a new batch, each after those that it uses; the older batches used; the work."""
        order: list[Atom] = []
        uses: set[int] = set()
        visited = {atom}
        body = self.grounder.body(atom)
        cost = body.cost
        # With a stack of its own: a chain of rules may be longer than Python recurses.
        stack = [(atom, _derived_in(body.node))]
        while stack:
            current, unvisited = stack[-1]
            used = next(unvisited, None)
            if used is None:
                order.append(current)
                stack.pop()
            elif used in self._batch_numbers:
                uses.add(self._batch_numbers[used])
            elif used not in visited:
                visited.add(used)
                body = self.grounder.body(used)
                stack.append((used, _derived_in(body.node)))
                cost += body.cost
                if cost > MAX_RULES:
                    self.grounder.refuse()
        return order, uses, cost


class State:
    """A state that steps change in place.

    Derived atoms are no part of it. A batch of them is computed when a condition first reads one, as the least fixed
    point of its rules: all atoms begin as false, and the rules are applied until nothing changes. This goes stratum by
    stratum, because a rule may read the negation of an atom only once that atom is final. `apply` forgets all of it.

    Attributes:
        facts: the atoms that hold; those of derived predicates are not among them.
        values: the functions that have a value.
        work: what evaluating has cost so far.
    """

    __slots__ = ("_computed", "_derived", "_paid", "_rules", "facts", "values", "work")

    def __init__(self, problem: Problem, rules: Rules):
        self.facts = set(problem.init)
        self.values = dict(problem.values)
        self.work = 0
        self._rules = rules
        # None: the rules of the atom read a function without a value.
        self._derived: dict[Atom, bool | None] = {}
        self._computed: set[int] = set()
        # A plan pays for filling in a batch or a step once, although it may need them again, and
        # whether or not another plan has had them filled in before.
        self._paid: set[int | Action] = set()

    def holds(self, node: Node) -> bool:
        """Return whether a ground condition holds; parts are read from left to right, and no further than needed.

        Raises:
            UndefinedNumberError: it reads a function without a value.
            UnsupportedPddlError: it depends on too many derived atoms.
            WorkLimitError: the plan has cost too much.
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

    def apply(self, extras: Extras, delete: frozenset[Atom], add: frozenset[Atom]) -> None:
        """Apply a step: the effects of its extras, and the atoms that it always deletes and adds.

        Raises:
            UndefinedNumberError: a condition of an effect reads a function without a value.
            UpdateError: its changes of numbers contradict each other or read a function without a value.
        """
        # All conditions and amounts are read in the old state, and all deletions come before any
        # addition.
        effects = [effect for effect in extras.effects if self.holds(effect.condition)]
        updates: list[Update] = []
        for effect in effects:
            updates.extend(effect.updates)
        if updates:
            self.values.update(updated(updates, self.values))
        self.facts -= delete
        for effect in effects:
            self.facts.difference_update(effect.delete)
        self.facts |= add
        for effect in effects:
            self.facts.update(effect.add)
        # What the rules gave before the step may be wrong after it.
        self._derived.clear()
        self._computed.clear()

    def spend(self, work: int) -> None:
        """Count work.

        Raises:
            WorkLimitError: the plan has cost too much.
        """
        self.work += work
        if self.work > MAX_WORK:
            raise WorkLimitError

    def pay_once(self, item: int | Action, cost: int) -> None:
        """Count the work of filling in a batch (its number) or a step, when the plan first needs it.

        Raises:
            WorkLimitError: the plan has cost too much.
        """
        if item not in self._paid:
            self._paid.add(item)
            self.spend(GROUNDING_WORK * cost)

    def _holds_derived(self, atom: Atom) -> bool:
        # While a batch is computed all its atoms have a value, so this does not start to compute it
        # again.
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
                self._compute(number, batch)

    def _compute(self, number: int, batch: AtomBatch) -> None:
        """Compute the least fixed point of the rules of a batch, stratum after stratum."""
        self.pay_once(number, batch.cost)
        for stratum in batch.strata:
            self._derived.update(dict.fromkeys(stratum, False))
            while self._apply_rules(stratum):
                pass

    def _apply_rules(self, stratum: Sequence[Atom]) -> bool:
        """Apply the rules of these atoms once; return whether anything changed."""
        changed = False
        for atom in stratum:
            previous = self._derived[atom]
            # What holds once holds for good: within a stratum no rule reads the negation of its
            # atoms.
            if previous:
                continue
            body = self._rules.grounder.body(atom)
            self.spend(body.size)
            value = self._holds_if_defined(body.node)
            self._derived[atom] = value
            changed = changed or value is not previous
        return changed

    def _holds_if_defined(self, node: Node) -> bool | None:
        try:
            return self.holds(node)
        except UndefinedNumberError:
            return None


def _derived_in(node: Node) -> Iterator[Atom]:
    if isinstance(node, DerivedLiteral):
        yield node.atom
    elif isinstance(node, GroundJunction):
        for part in node.parts:
            yield from _derived_in(part)
