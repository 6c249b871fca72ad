"""A plan step by step: what each step needs, adds and deletes, and which conditions of the goal hold behind it."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxppo.planning.language.conditions import Binding, Condition, write_condition
from jaxppo.planning.language.numeric import UndefinedNumberError, Values
from jaxppo.planning.language.parse import Atom, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.task import check_action
from jaxppo.planning.language.verdicts import PlanError
from jaxppo.planning.validate.ground import Extras
from jaxppo.planning.validate.grounding import Grounder, bindings_of
from jaxppo.planning.validate.states import Rules, State
from jaxppo.planning.validate.validator import execute


class Check(NamedTuple):
    """A condition, as PDDL, and whether it holds."""

    text: str
    holds: bool


class TraceStep(NamedTuple):
    """One step of a plan.

    Attributes:
        action: the operator and its arguments.
        preconditions: the conditions it joins, in the state before it; none where the step is wrong by itself.
        added: atoms that hold behind it and did not before.
        deleted: atoms that held before and do not behind it.
        numbers: functions that it changes, with their new values.
        goals: whether each condition of the goal holds behind it.
        error: why it cannot be applied; None where it was. Only the last step of a trace has one.
        failed_condition: what does not hold, where a precondition fails; see `PlanVerdict.failed_condition`.
    """

    action: Action
    preconditions: tuple[Check, ...]
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
    goals: tuple[Check, ...]
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
_NO_EXTRAS = Extras((), (), 0)


def trace(problem: Problem, actions: Sequence[Action]) -> Trace:
    """Carry out a plan and write down each step; it stops where `execute` does.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.

    Raises:
        UnsupportedPddlError: filling in the objects gives a formula that is too large.
    """
    executed = execute(problem, actions).executed_steps or 0  # None: evaluating it costs too much
    return _Replay(problem).run(actions[: executed + 1], executed)


def unmet_conditions(problem: Problem, actions: Sequence[Action]) -> Unmet:
    """Carry out a plan and list all that does not hold where it stops; a verdict names only the first of it.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.

    Raises:
        UnsupportedPddlError: filling in the objects gives a formula that is too large.
    """
    verdict = execute(problem, actions)
    executed = verdict.executed_steps or 0  # None: evaluating it costs too much
    failing = actions[executed] if verdict.error is PlanError.PRECONDITION else None
    return _Replay(problem).stopped(actions[:executed], failing)


class _Replay:
    def __init__(self, problem: Problem):
        self._problem, self._grounder = problem, Grounder(problem)
        self._state = State(problem, Rules(problem, self._grounder))
        self._goal: _Parts = list(self._grounder.goal_parts(problem.conditions, {}))

    def run(self, actions: Sequence[Action], executed: int) -> Trace:
        """Apply the first `executed` actions; one behind them is the step that fails."""
        facts, numbers = tuple(sorted(self._state.facts)), tuple(self._state.values.items())
        goals = self._goal_checks()
        steps = [self._applied(action) for action in actions[:executed]]
        if len(actions) > executed:
            steps.append(self._failing(actions))
        return Trace(facts, numbers, goals, tuple(steps))

    def stopped(self, executed: Sequence[Action], failing: Action | None) -> Unmet:
        """Apply actions, and look at the state behind them."""
        for action in executed:
            self._apply(action)
        preconditions = self._preconditions(failing) if failing is not None else ()
        missing = [
            tuple(check.text for check in checks if not check.holds) for checks in (preconditions, self._goal_checks())
        ]
        return Unmet(*missing)

    def _apply(self, action: Action) -> None:
        step = self._grounder.step(action)
        self._state.apply(step.extras or _NO_EXTRAS, step.delete, step.add)  # which forgets what followed by the rules

    def _applied(self, action: Action) -> TraceStep:
        preconditions, state = self._preconditions(action), self._state
        facts, values = set(state.facts), dict(state.values)
        self._apply(action)
        return TraceStep(
            action,
            preconditions,
            tuple(sorted(state.facts - facts)),
            tuple(sorted(facts - state.facts)),
            _changed(values, state.values),
            self._goals(),
        )

    def _failing(self, actions: Sequence[Action]) -> TraceStep:
        action, verdict = actions[-1], execute(self._problem, actions)
        legal = check_action(self._problem, action) is None
        preconditions = self._preconditions(action) if legal else ()
        reason = (verdict.error, verdict.failed_condition)
        return TraceStep(action, preconditions, (), (), (), self._goals(), *reason)

    def _preconditions(self, action: Action) -> tuple[Check, ...]:
        schema = self._problem.domain.actions[action[0]]
        binding = bindings_of(schema.parameters, action[1:])
        return self._checks([(condition, binding) for condition in schema.precondition])

    def _goals(self) -> tuple[bool, ...]:
        return tuple(check.holds for check in self._goal_checks())

    def _goal_checks(self) -> tuple[Check, ...]:
        return self._checks(self._goal)

    def _checks(self, parts: _Parts) -> tuple[Check, ...]:
        return tuple(Check(write_condition(*part), self._holds(*part)) for part in parts)

    def _holds(self, condition: Condition, binding: Binding) -> bool:
        """Return whether a condition holds; one that reads a function without a value does not."""
        self._grounder.start()
        self._state.work = 0  # `execute` has said that the plan is not too much; here more is asked, step by step
        try:
            return self._state.holds(self._grounder.condition(condition, binding))
        except UndefinedNumberError:
            return False


def _false_ones(checks: Sequence[Check]) -> tuple[str, ...]:
    return tuple(check.text for check in checks if not check.holds)


def _changed(before: Values, after: Values) -> tuple[tuple[Atom, float], ...]:
    return tuple((function, float(value)) for function, value in after.items() if before.get(function) != value)
