"""Plan execution in this process: typing, ADL, numeric fluents and action costs, derived predicates.

Agrees with VAL on every plan that is a list of the domain's actions, with the exceptions in `docs/validator.md`: what
VAL guesses, ignores or crashes on is refused here.

A training run judges thousands of plans for the same problems. So what a problem and its steps demand is filled in once
and cached, and running a plan is set operations on what the cache holds.

Source: Howey, Long and Fox, VAL: automatic plan validation, ICTAI 2004; Fox and Long, PDDL2.1, JAIR 20 (2003).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

from jaxppo.planning.language.conditions import Binding, Condition, Literal, write_condition
from jaxppo.planning.language.numeric import (
    UndefinedNumberError,
    UpdateError,
    evaluate,
    write_expression,
    write_update,
)
from jaxppo.planning.language.parse import Atom, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import TOTAL_TIME
from jaxppo.planning.language.task import check_action
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.ground import NO_EXTRAS, GroundStep, Node
from jaxppo.planning.validate.grounding import Grounder
from jaxppo.planning.validate.states import Rules, State


class _Task(NamedTuple):
    """What is computed once per problem, and shared by all its plans.

    `steps`, `rules` and `grounder` grow with what plans use; `lock` keeps other threads out of them.

    Attributes:
        goal: the conditions of the goal, filled in.
        goal_parts: the same as they are written, to name the first that does not hold.
    """

    problem: Problem
    goal: list[Node]
    goal_parts: list[tuple[Condition, Binding]]
    grounder: Grounder
    rules: Rules
    steps: dict[Action, GroundStep]
    lock: Lock


def execute(problem: Problem, actions: Sequence[Action]) -> PlanVerdict:
    """Run a plan: `state := (state - delete) | add` at each step, all conditions being read before it.

    As in VAL, every step is checked against the domain first (operator, arity, objects, types): the first wrong one is
    the reason, even after a step with a false precondition. Steps are applied up to the first that is wrong in either
    way. The empty plan is executable, and valid where the goal holds at once.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.

    Raises:
        UnsupportedPddlError: filling in the objects gives a formula that is too large.
    """
    task = _task(problem)
    with task.lock:
        num_legal, error = _count_legal(task, actions)
        state = State(problem, task.rules)
        num_executed, failed_condition = _run(task, state, actions[:num_legal])
        num_reached = _count_reached(task, state)
        progress: dict[str, Any] = {
            "executed_steps": num_executed,
            "goals_reached": num_reached,
            "goals": len(task.goal),
        }
        # First, for VAL checks the whole plan against the domain before it runs any step.
        if error is not None:
            return PlanVerdict.refused(error, num_legal + 1, **progress)
        if failed_condition is not None:
            progress["failed_condition"] = failed_condition
            return PlanVerdict.refused(PlanError.PRECONDITION, num_executed + 1, **progress)
        cost, failed_condition = _cost(problem, state, num_executed)
        if num_reached < len(task.goal):
            failed_condition = _first_false(task, state, task.goal_parts)
    progress["failed_condition"] = failed_condition
    return PlanVerdict.executed(failed_condition is None, cost=cost, **progress)


def final_facts(problem: Problem, actions: Sequence[Action]) -> frozenset[Atom]:
    """Return the atoms that hold where `execute` stops; those of derived predicates are not among them.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.

    Raises:
        UnsupportedPddlError: filling in the objects gives a formula that is too large.
    """
    task = _task(problem)
    with task.lock:
        num_legal, _ = _count_legal(task, actions)
        state = State(problem, task.rules)
        _run(task, state, actions[:num_legal])
    return frozenset(state.facts)


# As many as `parse_problem` keeps: there equal texts
# give the same object, and so the same task here.
@lru_cache(maxsize=4096)
def _task(problem: Problem) -> _Task:
    grounder = Grounder(problem)
    goal_parts = list(grounder.goal_parts(problem.conditions, {}))
    goal = [grounder.condition(condition, binding) for condition, binding in goal_parts]
    return _Task(problem, goal, goal_parts, grounder, Rules(problem, grounder), {}, Lock())


def _count_legal(task: _Task, actions: Sequence[Action]) -> tuple[int, PlanError | None]:
    """Return how many steps come before the first one that is wrong by itself, and what is wrong with that."""
    for number, action in enumerate(actions):
        # An action in the cache has passed this check before.
        error = None if action in task.steps else check_action(task.problem, action)
        if error is not None:
            return number, error
    return len(actions), None


def _run(task: _Task, state: State, actions: Sequence[Action]) -> tuple[int, str | None]:
    """Apply steps up to the first that cannot be applied; return their number, and what fails that one, as PDDL.

    The whole of judging STRIPS is this loop: two set comparisons and two set operations a step, on sets that the cache
    holds ready.
    """
    facts = state.facts
    for number, action in enumerate(actions):
        # Filled in, unless an earlier step, of this plan or of another, has done so.
        step = task.steps.get(action)
        if step is None:
            step = task.grounder.step(action)
            task.steps[action] = step
        true, false, delete, add, extras = step
        if not (true <= facts and false.isdisjoint(facts)):
            parts = task.grounder.precondition_parts(action)
            return number, _first_false(task, state, parts)
        if extras is NO_EXTRAS:
            # Derived atoms need not be forgotten: only steps with
            # extras read any, and those forget them at their end.
            facts -= delete
            facts |= add
        elif reason := _apply(task, state, action, step):
            return number, reason
    return len(actions), None


def _apply(task: _Task, state: State, action: Action, step: GroundStep) -> str | None:
    """Apply a step that goes beyond STRIPS; where it cannot be applied, say why."""
    if not all(map(state.holds_if_defined, step.extras.conditions)):
        return _first_false(task, state, task.grounder.precondition_parts(action))
    try:
        state.apply(step)
    except UndefinedNumberError as error:
        return write_expression(error.args[0])
    except UpdateError as error:
        return write_update(error.args[0])
    return None


def _first_false(task: _Task, state: State, parts: Sequence[tuple[Condition, Binding]]) -> str:
    """Write the first of these conditions that does not hold."""
    # Filled in anew from the text: the cached steps have
    # lost the order of conditions, and their words.
    for condition, binding in parts:
        task.grounder.start()
        if not state.holds_if_defined(task.grounder.condition(condition, binding)):
            return write_condition(condition, binding)
    raise AssertionError("expected a condition that does not hold")


def _count_reached(task: _Task, state: State) -> int:
    """Count the conditions of the goal that hold."""
    # Most are literals, and looking one up here is faster than a call; every plan comes here.
    facts = state.facts
    reached = 0
    for node in task.goal:
        if isinstance(node, Literal):
            reached += (node.atom in facts) is node.positive
        else:
            reached += state.holds_if_defined(node) is True
    return reached


def _cost(problem: Problem, state: State, num_steps: int) -> tuple[float | None, str | None]:
    """Compute the metric, or name the function without a value that it reads, which makes a plan invalid."""
    if problem.metric is None:
        return float(num_steps), None
    try:
        # `total-time` is no function of the problem:
        # without time a plan takes as long as it has steps.
        values = {**state.values, (TOTAL_TIME,): float(num_steps)}
        cost = float(evaluate(problem.metric.expression, values))
    except UndefinedNumberError as error:
        return None, write_expression(error.args[0])
    return (cost if math.isfinite(cost) else None), None
