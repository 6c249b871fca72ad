"""A problem as search sees it: a state is a whole number whose bits are facts.

Fact 0 always holds; a fact that is asked for negatively has a second bit for its absence, so that conditions are
positive everywhere. Facts that no condition asks for are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from jaxppo.planning.language.parse import Atom, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.reachability import refuse
from jaxppo.planning.validate.ground import Node, Step, sort_in
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


def compile_task(problem: Problem, steps: Mapping[Action, Step]) -> StripsTask | None:
    """Number the facts that conditions ask for; None where the goal is out of reach."""
    goal_true, goal_false = _goal(problem)
    added = frozenset[Atom]().union(*(step.add for step in steps.values()))
    deleted = frozenset[Atom]().union(*(step.delete - step.add for step in steps.values()))
    always, never = problem.init - deleted, lambda atom: atom not in problem.init and atom not in added
    if any(map(never, goal_true)) or not always.isdisjoint(goal_false):
        return None
    steps = {action: step for action, step in steps.items() if always.isdisjoint(step.false)}
    true = goal_true.union(*(step.true for step in steps.values())) - always
    false = {atom for atom in goal_false.union(*(step.false for step in steps.values())) if not never(atom)}
    holds = {atom: number for number, atom in enumerate(sorted(true), 1)}
    lacks = {atom: number for number, atom in enumerate(sorted(false), 1 + len(holds))}

    def numbers(true: Iterable[Atom], false: Iterable[Atom]) -> tuple[int, ...]:
        """Number the facts that say that these atoms hold and those do not, as far as conditions ask for them."""
        return tuple(
            sorted([holds[atom] for atom in true if atom in holds] + [lacks[atom] for atom in false if atom in lacks])
        )

    needs = [numbers(step.true, step.false) or (0,) for step in steps.values()]
    gives = [numbers(step.add, step.delete - step.add) for step in steps.values()]
    takes = [numbers(step.delete - step.add, step.add) for step in steps.values()]
    users: list[list[int]] = [[] for _ in range(1 + len(holds) + len(lacks))]
    for number, facts in enumerate(needs):
        for fact in facts:
            users[fact].append(number)
    goals = numbers(goal_true, goal_false)
    start = bits_of(numbers(problem.init, [atom for atom in false if atom not in problem.init])) | 1
    need, give, keep = list(map(bits_of, needs)), list(map(bits_of, gives)), [~bits_of(facts) for facts in takes]
    return StripsTask(tuple(steps), needs, gives, need, keep, give, users, start, goals, bits_of(goals))


def _goal(problem: Problem) -> tuple[frozenset[Atom], frozenset[Atom]]:
    """Return the atoms that must hold in the end and those that must not."""
    grounder = Grounder(problem)
    true: set[Atom] = set()
    false: set[Atom] = set()
    others: list[Node] = []
    for condition, binding in grounder.goal_parts(problem.conditions, {}):
        sort_in(grounder.condition(condition, binding), true, false, others)
    if others:
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
