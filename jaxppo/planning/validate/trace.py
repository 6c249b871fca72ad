"""A plan step by step: what each step needs, adds and deletes, and which conditions of the goal hold after it."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxppo.planning.language.conditions import Binding, Condition, write_condition
from jaxppo.planning.language.parse import Atom, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.task import check_action
from jaxppo.planning.language.verdicts import PlanError
from jaxppo.planning.validate.ground import Extras
from jaxppo.planning.validate.grounding import Grounder
from jaxppo.planning.validate.states import Rules, State
from jaxppo.planning.validate.validator import execute


class ConditionCheck(NamedTuple):
    """A condition, as PDDL, and whether it holds."""

    text: str
    holds: bool


class TraceStep(NamedTuple):
    """One step of a plan.

    Attributes:
        action: the operator and its arguments.
        preconditions: the conditions it joins, in the state before it; none where the step is wrong by itself.
        added: atoms that hold after it and did not before.
        deleted: atoms that held before and do not after it.
        numbers: functions that it changes, with their new values.
        goals: whether each condition of the goal holds after it.
        error: why it cannot be applied; None where it was. Only the last step of a trace has one.
        failed_condition: what does not hold, where a precondition fails; see `PlanVerdict.failed_condition`.
    """

    action: Action
    preconditions: tuple[ConditionCheck, ...]
    added: tuple[Atom, ...]
    deleted: tuple[Atom, ...]
    numbers: tuple[tuple[Atom, float], ...]
    goals: tuple[bool, ...]
    error: PlanError | None = None
    failed_condition: str | None = None


class Trace(NamedTuple):
    """A plan as far as it can be carried out, with the step at which it stops.

    Attributes:
        facts: the atoms that hold at the start, sorted; those of derived predicates are not among them.
        numbers: the functions that have a value at the start.
        goals: the conditions of the goal, and whether they hold at the start.
        steps: those carried out, and the first that cannot be.
    """

    facts: tuple[Atom, ...]
    numbers: tuple[tuple[Atom, float], ...]
    goals: tuple[ConditionCheck, ...]
    steps: tuple[TraceStep, ...]


class Unmet(NamedTuple):
    """What does not hold where a plan stops, as PDDL.

    Attributes:
        preconditions: of the step that fails by its precondition; none where no step does.
        goals: of the conditions that the goal joins.
    """

    preconditions: tuple[str, ...]
    goals: tuple[str, ...]


_Parts = Sequence[tuple[Condition, Binding]]
# What a step of plain STRIPS has beyond STRIPS.
_NO_EXTRAS = Extras((), ())


def trace(problem: Problem, actions: Sequence[Action]) -> Trace:
    """Carry out a plan and write down each step; it stops where `execute` does.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.

    Raises:
        UnsupportedPddlError: filling in the objects gives a formula that is too large.
    """
    num_executed = execute(problem, actions).executed_steps or 0
    return _Replay(problem).run(actions[: num_executed + 1], num_executed)


def unmet_conditions(problem: Problem, actions: Sequence[Action]) -> Unmet:
    """Carry out a plan and list all conditions that do not hold where it stops; a verdict names only the first.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.

    Raises:
        UnsupportedPddlError: filling in the objects gives a formula that is too large.
    """
    verdict = execute(problem, actions)
    num_executed = verdict.executed_steps or 0
    failing = actions[num_executed] if verdict.error is PlanError.PRECONDITION else None
    return _Replay(problem).unmet(actions[:num_executed], failing)


class _Replay:
    """Runs the steps that `execute` has found applicable once more, and writes down what each one does.

    `execute` itself keeps no record, because it is what rewards wait for.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        # Not the cached one of `execute`, which other threads may be using.
        self._grounder = Grounder(problem)
        self._state = State(problem, Rules(problem, self._grounder))
        self._goal: _Parts = list(self._grounder.goal_parts(problem.conditions, {}))

    def run(self, actions: Sequence[Action], num_executed: int) -> Trace:
        """Apply the first `num_executed` actions; one after them is the step that fails."""
        facts = tuple(sorted(self._state.facts))
        numbers = tuple(self._state.values.items())
        goals = self._checks(self._goal)
        steps = [self._applied(action) for action in actions[:num_executed]]
        if len(actions) > num_executed:
            steps.append(self._failing(actions))
        return Trace(facts, numbers, goals, tuple(steps))

    def unmet(self, executed: Sequence[Action], failing: Action | None) -> Unmet:
        """Apply actions, and look at the state after them."""
        for action in executed:
            self._apply(action)
        preconditions = self._preconditions(failing) if failing is not None else ()
        return Unmet(_false_conditions(preconditions), _false_conditions(self._checks(self._goal)))

    def _apply(self, action: Action) -> None:
        step = self._grounder.step(action)
        # Also for a plain step, unlike in `execute`: here derived
        # atoms were read before it and have to be forgotten.
        self._state.apply(step.extras or _NO_EXTRAS, step.delete, step.add)

    def _applied(self, action: Action) -> TraceStep:
        preconditions = self._preconditions(action)
        state = self._state
        old_facts = set(state.facts)
        old_values = dict(state.values)
        self._apply(action)
        numbers = [
            (name, float(value))
            for name, value in state.values.items()
            if old_values.get(name) != value
        ]
        return TraceStep(
            action,
            preconditions,
            added=tuple(sorted(state.facts - old_facts)),
            deleted=tuple(sorted(old_facts - state.facts)),
            numbers=tuple(numbers),
            goals=self._goals(),
        )

    def _failing(self, actions: Sequence[Action]) -> TraceStep:
        action = actions[-1]
        # Of the plan up to here: the verdict on the whole
        # plan may name a wrong step after this one.
        verdict = execute(self._problem, actions)
        is_legal = check_action(self._problem, action) is None
        preconditions = self._preconditions(action) if is_legal else ()
        return TraceStep(
            action,
            preconditions,
            (),
            (),
            (),
            self._goals(),
            verdict.error,
            verdict.failed_condition,
        )

    def _preconditions(self, action: Action) -> tuple[ConditionCheck, ...]:
        return self._checks(self._grounder.precondition_parts(action))

    def _goals(self) -> tuple[bool, ...]:
        return tuple(check.holds for check in self._checks(self._goal))

    def _checks(self, parts: _Parts) -> tuple[ConditionCheck, ...]:
        return tuple(ConditionCheck(write_condition(*part), self._holds(*part)) for part in parts)

    def _holds(self, condition: Condition, binding: Binding) -> bool:
        """Return whether a condition holds; one that reads a function without a value does not."""
        self._grounder.start()
        return self._state.holds_if_defined(self._grounder.condition(condition, binding)) is True


def _false_conditions(checks: Sequence[ConditionCheck]) -> tuple[str, ...]:
    return tuple(check.text for check in checks if not check.holds)
