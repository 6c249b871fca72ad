"""A problem as search sees it: a state is a whole number whose bits are facts.

Fact 0 always holds; a fact that is asked for negatively has a second bit for its absence, so that conditions are
positive everywhere. Facts that no condition asks for are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from jaxppo.planning.language.parse import Atom, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.reachability import refuse
from jaxppo.planning.validate.ground import GroundStep, Node, sort_in
from jaxppo.planning.validate.grounding import Grounder


class StripsTask(NamedTuple):
    """Steps over numbered facts.

    Attributes:
        actions: what each step is called.
        needs: per step, the facts that must hold; 0 where there is none.
        gives: per step, the facts that it makes true.
        need, keep, give: the same as bits; `keep` are those that it does not delete.
        users: per fact, the steps that need it.
        start: the bits of the start.
        goals: the facts that must hold in the end; `goal` their bits.
    """

    actions: tuple[Action, ...]
    needs: list[tuple[int, ...]]
    gives: list[tuple[int, ...]]
    need: list[int]
    keep: list[int]
    give: list[int]
    users: list[list[int]]
    start: int
    goals: tuple[int, ...]
    goal: int


def compile_task(problem: Problem, steps: Mapping[Action, GroundStep]) -> StripsTask | None:
    """Number the facts that conditions ask for; None where the goal is out of reach."""
    goal_true, goal_false = _goal(problem)
    added: set[Atom] = set()
    deleted: set[Atom] = set()
    for step in steps.values():
        added |= step.add
        # An atom that a step deletes and adds holds after it.
        deleted |= step.delete - step.add
    always_true = problem.init - deleted
    ever_true = problem.init | added
    if not goal_true <= ever_true or not always_true.isdisjoint(goal_false):
        return None
    # A step that asks for the contrary of what always holds can never be taken.
    steps = {action: step for action, step in steps.items() if always_true.isdisjoint(step.false)}
    # What always holds, or never does, needs no bit.
    true_atoms = goal_true.union(*(step.true for step in steps.values())) - always_true
    false_atoms = goal_false.union(*(step.false for step in steps.values())) & ever_true
    # Sorted, so that the numbers, and with them the plan, do not depend on the order of a set.
    number_if_true: dict[Atom, int] = {}
    number_if_false: dict[Atom, int] = {}
    num_facts = 1  # with fact 0, which always holds
    for atom in sorted(true_atoms):
        number_if_true[atom] = num_facts
        num_facts += 1
    for atom in sorted(false_atoms):
        number_if_false[atom] = num_facts
        num_facts += 1

    def numbers(true: Iterable[Atom], false: Iterable[Atom]) -> tuple[int, ...]:
        """Number the facts that say that these atoms hold and those do not, as far as conditions ask for them."""
        facts = [number_if_true[atom] for atom in true if atom in number_if_true]
        facts += [number_if_false[atom] for atom in false if atom in number_if_false]
        return tuple(sorted(facts))

    needs: list[tuple[int, ...]] = []
    gives: list[tuple[int, ...]] = []
    keep: list[int] = []
    for step in steps.values():
        removed = step.delete - step.add
        # A step that needs nothing needs fact 0, so that searches have no special case.
        needs.append(numbers(step.true, step.false) or (0,))
        gives.append(numbers(step.add, removed))
        # Where an atom becomes true, the fact that it is false goes.
        keep.append(~bits_of(numbers(removed, step.add)))
    users: list[list[int]] = [[] for _ in range(num_facts)]
    for number, facts in enumerate(needs):
        for fact in facts:
            users[fact].append(number)
    goals = numbers(goal_true, goal_false)
    return StripsTask(
        actions=tuple(steps),
        needs=needs,
        gives=gives,
        need=list(map(bits_of, needs)),
        keep=keep,
        give=list(map(bits_of, gives)),
        users=users,
        start=bits_of(numbers(problem.init, false_atoms - problem.init)) | 1,
        goals=goals,
        goal=bits_of(goals),
    )


def _goal(problem: Problem) -> tuple[frozenset[Atom], frozenset[Atom]]:
    """Return the atoms that must hold in the end and those that must not."""
    grounder = Grounder(problem)
    true: set[Atom] = set()
    false: set[Atom] = set()
    compound: list[Node] = []
    for condition, binding in grounder.goal_parts(problem.conditions, {}):
        sort_in(grounder.condition(condition, binding), true, false, compound)
    if compound:
        refuse(problem, "a goal that is no conjunction of literals")
    return frozenset(true), frozenset(false)


def bits_of(facts: Iterable[int]) -> int:
    """Return the number whose bits are these facts."""
    return sum(1 << fact for fact in facts)


def facts_of(bits: int) -> Iterator[int]:
    """Yield the facts whose bits a number has, in order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
