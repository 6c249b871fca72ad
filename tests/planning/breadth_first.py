"""Breadth-first search over the states of a small STRIPS problem, written without the package's grounding."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from jaxppo.planning import Action, Problem
from jaxppo.planning.language.conditions import bound_atom
from jaxppo.planning.language.parse import ActionSchema, Atom


class Move(NamedTuple):
    action: Action
    needs: frozenset[Atom]
    forbids: frozenset[Atom]
    delete: frozenset[Atom]
    add: frozenset[Atom]

    def is_possible(self, state: frozenset[Atom]) -> bool:
        return self.needs <= state and self.forbids.isdisjoint(state)

    def after(self, state: frozenset[Atom]) -> frozenset[Atom]:
        return (state - self.delete) | self.add


def shortest_plan(problem: Problem, most_states: int = 200_000) -> tuple[Action, ...] | None:
    """A plan with the least number of steps; None where there is none.

    Raises:
        OverflowError: more states than allowed.
    """
    moves = list(all_moves(problem))
    came_from: dict[frozenset[Atom], tuple[frozenset[Atom], Action] | None] = {problem.init: None}
    queue = deque([problem.init])
    while queue:
        state = queue.popleft()
        if all((literal.atom in state) is literal.positive for literal in problem.goal):
            return _plan_to(state, came_from)
        for move in moves:
            if move.is_possible(state):
                following = move.after(state)
                if following not in came_from:
                    came_from[following] = (state, move.action)
                    queue.append(following)
        if len(came_from) > most_states:
            raise OverflowError(f"more than {most_states} states")
    return None


def all_moves(problem: Problem) -> Iterator[Move]:
    """Every instance of every operator whose equalities, and preconditions that nothing changes, hold."""
    schemas = problem.domain.actions.values()
    effects = [effect for schema in schemas for effect in schema.effects]
    changing = {atom[0] for effect in effects for atom in (*effect.add, *effect.delete)}
    for schema in schemas:
        [always] = schema.effects
        positive = [literal.atom for literal in schema.precondition if literal.positive and literal.atom[0] != "="]
        negative = [literal.atom for literal in schema.precondition if not literal.positive and literal.atom[0] != "="]
        equalities = [literal for literal in schema.precondition if literal.atom[0] == "="]
        static = [atom for atom in positive if atom[0] not in changing]
        for binding in _bindings(problem, schema, {}, static):
            sides = [(bound_atom(literal.atom, binding), literal.positive) for literal in equalities]
            if all((left == right) is expected for (_, left, right), expected in sides):
                filled = [
                    frozenset(bound_atom(atom, binding) for atom in atoms)
                    for atoms in (positive, negative, always.delete, always.add)
                ]
                yield Move((schema.name, *binding.values()), *filled)


def _bindings(
    problem: Problem, schema: ActionSchema, binding: dict[str, str], static: list[Atom]
) -> Iterator[dict[str, str]]:
    bound = [bound_atom(atom, binding) for atom in static]
    if any(atom not in problem.init for atom in bound if not any(term.startswith("?") for term in atom)):
        return
    if len(binding) == len(schema.parameters):
        yield binding
        return
    variable, types = schema.parameters[len(binding)]
    for name, own in problem.objects.items():
        if problem.domain.is_of_type(own, types):
            yield from _bindings(problem, schema, {**binding, variable: name}, static)


def _plan_to(state, came_from) -> tuple[Action, ...]:
    steps = []
    while came_from[state] is not None:
        state, action = came_from[state]
        steps.append(action)
    return tuple(reversed(steps))
