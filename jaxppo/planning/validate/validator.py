"""Plan execution in this process: typing, ADL, numeric fluents and action costs, derived predicates.

Agrees with VAL on every plan that is a list of known actions, except on purpose (`docs/validator.md` has the table):
what VAL guesses, ignores or crashes on is refused here.

Source: Howey, Long and Fox, VAL: automatic plan validation, ICTAI 2004; Fox and Long, PDDL2.1, JAIR 20 (2003).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

from jaxppo.planning.language.conditions import Binding, Condition, Literal, write_condition
from jaxppo.planning.language.numeric import UndefinedNumberError, UpdateError, evaluate, write_expression, write_update
from jaxppo.planning.language.parse import Atom, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import TOTAL_TIME
from jaxppo.planning.language.task import check_action, compares_numbers
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.ground import Extras, Node, Step
from jaxppo.planning.validate.grounding import Grounder, bindings_of
from jaxppo.planning.validate.states import GROUNDING_WORK, Rules, State, WorkLimitError


class _Goal(NamedTuple):
    """A goal's conditions: the plain ones apart, since they are checked fastest."""

    true: tuple[Atom, ...]
    false: tuple[Atom, ...]
    others: tuple[Node, ...]
    parts: tuple[tuple[Condition, Binding], ...]


class _Task(NamedTuple):
    """What is computed once per problem; `steps` and `grounder` grow with what plans use, in one thread at a time."""

    problem: Problem
    goal: _Goal
    grounder: Grounder
    rules: Rules
    steps: dict[Action, Step]
    lock: Lock


class Visit(NamedTuple):
    """A state of a plan.

    Attributes:
        state: equal for equal states: what holds, and the numbers where conditions compare some.
        goals_reached: how many of the goal's conditions hold.
        goals: how many there are.
    """

    state: tuple[frozenset[Atom], frozenset[tuple[Atom, float]]]
    goals_reached: int
    goals: int


class _Stop(NamedTuple):
    """Why execution ended before the plan did."""

    step: int
    condition: str


def execute(problem: Problem, actions: Sequence[Action]) -> PlanVerdict:
    """Run a plan: `state := (state - delete) | add` at each step, all conditions being read before it.

    As in VAL, every step is checked against the domain first (operator, arity, objects, types): the first wrong one is
    the reason, even behind a step with a false precondition. Steps are applied up to the first that is wrong in either
    way. The empty plan is executable, and valid where the goal holds at once.

    A plan whose evaluation costs too much (see `states.MAX_WORK`; never in STRIPS) gets `VALIDATOR_TIMEOUT`.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.

    Raises:
        UnsupportedPddlError: filling in the objects gives a formula that is too large.
    """
    task = _task(problem)
    with task.lock:
        legal, wrong = _legal_steps(task, actions)
        state = State(problem, task.rules)
        try:
            stop = _run(task, state, actions, legal)
            return _verdict(task, state, len(legal), wrong, stop)
        except WorkLimitError:
            return PlanVerdict.refused(PlanError.VALIDATOR_TIMEOUT)


def visit(problem: Problem, actions: Sequence[Action]) -> list[Visit]:
    """Return the states of a plan, from the start to where `execute` stops, or to where evaluating costs too much.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.

    Raises:
        UnsupportedPddlError: filling in the objects gives a formula that is too large.
    """
    task, numbers_matter = _task(problem), compares_numbers(problem)
    visits: list[Visit] = []
    with task.lock:
        legal, _ = _legal_steps(task, actions)
        state = State(problem, task.rules)
        try:
            for number in range(len(legal) + 1):
                visits.append(_visit(task, state, numbers_matter))
                if number == len(legal) or _run(task, state, actions[number : number + 1], legal[number : number + 1]):
                    break
        except WorkLimitError:
            pass  # the states so far are as good as any
    return visits


def _visit(task: _Task, state: State, numbers_matter: bool) -> Visit:
    values = frozenset(state.values.items()) if numbers_matter else frozenset()
    return Visit((frozenset(state.facts), values), _reached(task, state), len(task.goal.parts))


@lru_cache(maxsize=4096)
def _task(problem: Problem) -> _Task:
    grounder = Grounder(problem)
    return _Task(problem, _goal(problem, grounder), grounder, Rules(problem, grounder), {}, Lock())


def _goal(problem: Problem, grounder: Grounder) -> _Goal:
    parts = tuple(grounder.goal_parts(problem.conditions, {}))
    true: list[Atom] = []
    false: list[Atom] = []
    others: list[Node] = []
    for condition, binding in parts:
        node = grounder.condition(condition, binding)
        if isinstance(node, Literal):
            (true if node.positive else false).append(node.atom)
        else:
            others.append(node)
    return _Goal(tuple(true), tuple(false), tuple(others), parts)


def _legal_steps(task: _Task, actions: Sequence[Action]) -> tuple[list[Step | None], PlanError | None]:
    """Take the steps in front of the first wrong one (None for one not filled in yet), and what is wrong with that."""
    steps: list[Step | None] = []
    known = task.steps.get
    for action in actions:
        step = known(action)
        if step is None:
            error = check_action(task.problem, action)
            if error is not None:
                return steps, error
        steps.append(step)
    return steps, None


def _run(task: _Task, state: State, actions: Sequence[Action], steps: list[Step | None]) -> _Stop | None:
    """Apply steps up to the first that cannot be applied."""
    facts = state.facts
    for number, step in enumerate(steps):
        if step is None:
            step = _step(task, state, actions[number])
        true, false, delete, add, extras, _ = step
        if not (true <= facts and false.isdisjoint(facts)):
            return _Stop(number, _false_condition(task, state, actions[number]))
        if extras is None:
            facts -= delete
            facts |= add  # nothing derived is known here: only steps with extras ask, and forget in the end
        elif reason := _apply(task, state, actions[number], step, extras):
            return _Stop(number, reason)
    return None


def _step(task: _Task, state: State, action: Action) -> Step:
    """Fill in an operator, unless an earlier step of the plan has done so."""
    step = task.steps.get(action)
    if step is None:
        step = task.steps[action] = task.grounder.step(action)
        state.spend(GROUNDING_WORK * step.cost)
    return step


def _apply(task: _Task, state: State, action: Action, step: Step, extras: Extras) -> str | None:
    """Apply a step that goes beyond STRIPS; where it cannot be applied, say why."""
    state.spend(extras.size)
    try:
        if not all(map(state.holds, extras.conditions)):
            return _false_condition(task, state, action)
    except UndefinedNumberError:
        return _false_condition(task, state, action)
    try:
        state.apply(extras, step.delete, step.add)
    except UndefinedNumberError as error:
        return write_expression(error.args[0])
    except UpdateError as error:
        return write_update(error.args[0])
    return None


def _false_condition(task: _Task, state: State, action: Action) -> str:
    """Write the first condition that a precondition joins and that does not hold."""
    schema = task.problem.domain.actions[action[0]]
    binding = bindings_of(schema.parameters, action[1:])
    return _first_false(task, state, [(condition, binding) for condition in schema.precondition])


def _first_false(task: _Task, state: State, parts: Sequence[tuple[Condition, Binding]]) -> str:
    for condition, binding in parts:
        task.grounder.start()
        if not _surely(state, task.grounder.condition(condition, binding)):
            return write_condition(condition, binding)
    raise AssertionError("expected a condition that does not hold")


def _surely(state: State, node: Node) -> bool:
    """Return whether a condition holds; one that reads a function without a value does not."""
    try:
        return state.holds(node)
    except UndefinedNumberError:
        return False


def _verdict(task: _Task, state: State, n_legal: int, wrong: PlanError | None, stop: _Stop | None) -> PlanVerdict:
    reached = _reached(task, state)
    executed = n_legal if stop is None else stop.step
    progress = {"executed_steps": executed, "goals_reached": reached, "goals": len(task.goal.parts)}
    if wrong is not None:
        return PlanVerdict.refused(wrong, n_legal + 1, **progress)
    if stop is not None:
        return PlanVerdict.refused(PlanError.PRECONDITION, stop.step + 1, failed_condition=stop.condition, **progress)
    cost, without_value = _cost(task.problem, state, executed)
    missed = without_value if reached == len(task.goal.parts) else _first_false(task, state, task.goal.parts)
    return PlanVerdict.executed(missed is None, failed_condition=missed, cost=cost, **progress)


def _reached(task: _Task, state: State) -> int:
    """Count the goal's conditions that hold."""
    facts, goal = state.facts, task.goal
    reached = sum([atom in facts for atom in goal.true]) + sum([atom not in facts for atom in goal.false])
    if goal.others:
        reached += sum([_surely(state, node) for node in goal.others])
    return reached


def _cost(problem: Problem, state: State, n_steps: int) -> tuple[float | None, str | None]:
    """Compute the metric, or name the function without a value that it reads."""
    if problem.metric is None:
        return float(n_steps), None
    try:
        cost = float(evaluate(problem.metric.expression, {**state.values, (TOTAL_TIME,): float(n_steps)}))
    except UndefinedNumberError as error:
        return None, write_expression(error.args[0])
    return (cost if math.isfinite(cost) else None), None
