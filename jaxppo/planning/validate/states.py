"""A state: which atoms hold, which numbers functions have, and what follows by the rules of derived predicates."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.numeric import UndefinedNumberError, compare, evaluate, updated
from jaxppo.planning.language.scope import Atom
from jaxppo.planning.language.task import Problem
from jaxppo.planning.validate.ground import Body, Derived, Extras, Ground, Node, Test
from jaxppo.planning.validate.grounding import MAX_RULES, Grounder

# How much one plan may cost: about a second of evaluating what goes beyond STRIPS.
MAX_WORK = 2_000_000
# Filling in a part of a formula takes about as long as evaluating this many.
GROUNDING_WORK = 4


class WorkLimitError(Exception):
    """A plan needs more than `MAX_WORK`."""


class Batch(NamedTuple):
    """Derived atoms that are computed together.

    Attributes:
        strata: the atoms, stratum after stratum, and those that others use in front of these.
        uses: the batches that must be computed before.
        cost: the work of filling in their rules.
    """

    strata: tuple[tuple[Atom, ...], ...]
    uses: frozenset[int]
    cost: int


class Rules:
    """The ground rules of a problem, as far as plans have asked for them.

    An atom that is asked for makes a batch, with all that it depends on and that is in no batch yet.
    """

    def __init__(self, problem: Problem, grounder: Grounder):
        self._strata = problem.domain.strata
        self._grounder = grounder
        self._batch_of: dict[Atom, int] = {}
        self._batches: list[Batch] = []

    def body(self, atom: Atom) -> Body:
        """Return when a derived atom holds."""
        return self._grounder.body(atom)

    def batch(self, number: int) -> Batch:
        """Return a batch by its number."""
        return self._batches[number]

    def batch_of(self, atom: Atom) -> int:
        """Return the number of the batch that a derived atom belongs to.

        Raises:
            UnsupportedPddlError: it depends on too many others.
        """
        if atom not in self._batch_of:
            atoms, uses, cost = self._depth_first(atom)
            atoms.sort(key=lambda member: self._strata[member[0]])
            strata = groupby(atoms, key=lambda member: self._strata[member[0]])
            batch = Batch(tuple(tuple(members) for _, members in strata), frozenset(uses), cost)
            self._batch_of.update(dict.fromkeys(atoms, len(self._batches)))
            self._batches.append(batch)
        return self._batch_of[atom]

    def _depth_first(self, atom: Atom) -> tuple[list[Atom], set[int], int]:
        """List the atoms of a new batch, those used in front of those that use them; the older batches; the work."""
        order: list[Atom] = []
        uses: set[int] = set()
        seen = {atom}
        cost = self.body(atom).cost
        stack = [(atom, _derived_in(self.body(atom).node))]
        while stack:
            current, waiting = stack[-1]
            used = next(waiting, None)
            if used is None:
                order.append(current)
                stack.pop()
            elif used in self._batch_of:
                uses.add(self._batch_of[used])
            elif used not in seen:
                seen.add(used)
                stack.append((used, _derived_in(self.body(used).node)))
                cost += self.body(used).cost
                if cost > MAX_RULES:
                    self._grounder.refuse()
        return order, uses, cost


class State:
    """A state that steps change in place.

    Attributes:
        facts: the atoms that hold; those of derived predicates are not among them.
        values: the functions that have a value.
        work: what evaluating has cost so far.
    """

    __slots__ = ("_computed", "_known", "_paid", "_rules", "facts", "values", "work")

    def __init__(self, problem: Problem, rules: Rules):
        self.facts = set(problem.init)
        self.values = dict(problem.values)
        self.work = 0
        self._rules = rules
        self._known: dict[Atom, bool | None] = {}
        self._computed: set[int] = set()
        self._paid: set[int] = set()

    def holds(self, node: Node) -> bool:
        """Return whether a ground condition holds; parts are read from left to right, and no further than needed.

        Raises:
            UndefinedNumberError: it reads a function without a value.
            UnsupportedPddlError: it depends on too many derived atoms.
            WorkLimitError: the plan has cost too much.
        """
        if isinstance(node, Literal):  # no `match`: this is where the time goes
            return (node.atom in self.facts) is node.positive
        if isinstance(node, Derived):
            return self._derived(node.atom) is node.positive
        if isinstance(node, Ground):
            decided = node.word == "or"
            for part in node.parts:
                if self.holds(part) is decided:
                    return decided
            return not decided
        if isinstance(node, Test):
            operator, left, right, positive = node
            return compare(operator, evaluate(left, self.values), evaluate(right, self.values)) is positive
        return node

    def apply(self, extras: Extras, delete: frozenset[Atom], add: frozenset[Atom]) -> None:
        """Do what a step does, beside its effect on atoms that is given: all conditions are read before.

        Raises:
            UndefinedNumberError: a condition of an effect reads a function without a value.
            UpdateError: its changes of numbers contradict each other or read a function without a value.
        """
        effects = [effect for effect in extras.effects if self.holds(effect.condition)]
        updates = [update for effect in effects for update in effect.updates]
        if updates:
            self.values.update(updated(updates, self.values))
        self.facts -= delete
        for effect in effects:
            self.facts.difference_update(effect.delete)
        self.facts |= add
        for effect in effects:
            self.facts.update(effect.add)
        self._known.clear()  # what followed by the rules may follow no longer
        self._computed.clear()

    def spend(self, work: int) -> None:
        """Count work.

        Raises:
            WorkLimitError: the plan has cost too much.
        """
        self.work += work
        if self.work > MAX_WORK:
            raise WorkLimitError

    def _derived(self, atom: Atom) -> bool:
        if atom not in self._known:  # of the batch that is being computed all atoms are known, as far as it got
            self._derive(atom)
        known = self._known[atom]
        if known is None:
            raise UndefinedNumberError(atom)
        return known

    def _derive(self, atom: Atom) -> None:
        """Compute an atom's batch, and those that it uses, first."""
        stack = [self._rules.batch_of(atom)]
        while stack:
            batch = self._rules.batch(stack[-1])
            missing = batch.uses - self._computed
            if missing:
                stack.extend(missing)
                continue
            number = stack.pop()
            if number not in self._computed:
                self._computed.add(number)
                self._compute(number, batch)

    def _compute(self, number: int, batch: Batch) -> None:
        """Compute the least fixed point of the rules of a batch, stratum after stratum."""
        if number not in self._paid:
            self._paid.add(number)
            self.spend(GROUNDING_WORK * batch.cost)
        for stratum in batch.strata:
            self._known.update(dict.fromkeys(stratum, False))
            while self._advance(stratum):
                pass

    def _advance(self, pending: Sequence[Atom]) -> bool:
        """Apply the rules of these atoms once; whether a new one holds."""
        changed = False
        for atom in pending:
            if not self._known[atom]:
                node, _, size = self._rules.body(atom)
                self.spend(size)
                before, self._known[atom] = self._known[atom], self._try(node)
                changed = changed or self._known[atom] is not before
        return changed

    def _try(self, node: Node) -> bool | None:
        try:
            return self.holds(node)
        except UndefinedNumberError:
            return None


def _derived_in(node: Node) -> Iterator[Atom]:
    if isinstance(node, Derived):
        yield node.atom
    elif isinstance(node, Ground):
        for part in node.parts:
            yield from _derived_in(part)
