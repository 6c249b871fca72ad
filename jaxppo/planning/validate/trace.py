"""A plan step by step: what each step needs, adds and deletes, and which conditions of the goal hold after it."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxppo.planning.language.conditions import Binding, Condition, write_condition
from jaxppo.planning.language.parse import Atom, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.task import check_action
from jaxppo.planning.language.verdicts import PlanError
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


def trace(problem: Problem, actions: Sequence[Action]) -> Trace:
    """Carry out a plan and write down each step; it stops where `execute` does.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.

    Raises:
        UnsupportedPddlError: filling in the objects gives a formula that is too large.
    """
    num_executed = execute(problem, actions).executed_steps or 0
    replay = _Replay(problem)
    facts = tuple(sorted(replay.state.facts))
    numbers = tuple(replay.state.values.items())
    goals = replay.goals()
    steps = [replay.applied(action) for action in actions[:num_executed]]
    if num_executed < len(actions):
        steps.append(replay.failing(actions[: num_executed + 1]))
    return Trace(facts, numbers, goals, tuple(steps))


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
    replay = _Replay(problem)
    for action in actions[:num_executed]:
        replay.apply(action)
    preconditions: tuple[ConditionCheck, ...] = ()
    if verdict.error is PlanError.PRECONDITION:
        preconditions = replay.preconditions(actions[num_executed])
    return Unmet(_false_conditions(preconditions), _false_conditions(replay.goals()))


class _Replay:
    """Runs the steps that `execute` has found applicable once more, and writes down what each one does.

    `execute` itself keeps no record, because it is what rewards wait for.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        # Not the cached one of `execute`, which other threads may be using.
        self._grounder = Grounder(problem)
        self.state = State(problem, Rules(problem, self._grounder))
        self._goal: _Parts = list(self._grounder.goal_parts(problem.conditions, {}))

    def apply(self, action: Action) -> None:
        # Also for a plain step, unlike in `execute`: here derived
        # atoms were read before it and have to be forgotten.
        self.state.apply(self._grounder.step(action))

    def applied(self, action: Action) -> TraceStep:
        preconditions = self.preconditions(action)
        state = self.state
        old_facts = set(state.facts)
        old_values = dict(state.values)
        self.apply(action)
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
            goals=tuple(check.holds for check in self.goals()),
        )

    def failing(self, actions: Sequence[Action]) -> TraceStep:
        action = actions[-1]
        # Of the plan up to here: the verdict on the whole
        # plan may name a wrong step after this one.
        verdict = execute(self._problem, actions)
        is_legal = check_action(self._problem, action) is None
        preconditions = self.preconditions(action) if is_legal else ()
        return TraceStep(
            action,
            preconditions,
            added=(),
            deleted=(),
            numbers=(),
            goals=tuple(check.holds for check in self.goals()),
            error=verdict.error,
            failed_condition=verdict.failed_condition,
        )

    def preconditions(self, action: Action) -> tuple[ConditionCheck, ...]:
        return self._checks(self._grounder.precondition_parts(action))

    def goals(self) -> tuple[ConditionCheck, ...]:
        return self._checks(self._goal)

    def _checks(self, parts: _Parts) -> tuple[ConditionCheck, ...]:
        return tuple(ConditionCheck(write_condition(*part), self._holds(*part)) for part in parts)

    def _holds(self, condition: Condition, binding: Binding) -> bool:
        """Return whether a condition holds; one that reads a function without a value does not."""
        self._grounder.start()
        return self.state.holds_if_defined(self._grounder.condition(condition, binding)) is True


def _false_conditions(checks: Sequence[ConditionCheck]) -> tuple[str, ...]:
    return tuple(check.text for check in checks if not check.holds)
