"""A problem played through step by step: which actions apply in a state, and where they lead."""

from jaxppo.planning.language.parse import Atom, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.reachability import reachable_steps

State = frozenset[Atom]
"""The atoms that hold."""


class StateSpace:
    """The states of a problem and the actions between them.

    Args:
        problem: from `parse_problem`.

    Attributes:
        start: the first state.

    Raises:
        SearchLimitError: there are too many actions to list.
        UnsupportedPddlError: a precondition, an effect or the goal goes beyond STRIPS.
    """

    def __init__(self, problem: Problem):
        self._steps = reachable_steps(problem)
        self._goal = problem.goal
        self.start = problem.init

    def successor(self, state: State, action: Action) -> State | None:
        """Return the state after an action; None where it does not apply."""
        # Steps that can never be reached are not listed, and apply in no state of this problem.
        step = self._steps.get(action)
        if step is None or not (step.true <= state and step.false.isdisjoint(state)):
            return None
        # As in PDDL, what a step both deletes and adds holds after it.
        return (state - step.delete) | step.add

    def is_goal(self, state: State) -> bool:
        """Return whether the goal holds."""
        return all((literal.atom in state) is literal.positive for literal in self._goal)
