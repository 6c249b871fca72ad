"""A small planner: forward search in this process, for demonstrations and small problems without any other planner.

It covers what fills in to STRIPS: typing, constants, equality, negative preconditions and goals, and quantifiers that
become conjunctions. Changes of numbers that no condition reads (action costs) are ignored. The same problem gives the
same plan in every process and for every order of its facts.
"""

import heapq
from collections.abc import Mapping, Sized
from itertools import count
from typing import TypeVar

from jaxppo.planning.language.parse import Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import TOTAL_TIME
from jaxppo.planning.language.task import compares_numbers
from jaxppo.planning.solve.estimates import INFINITY, landmark_cut, relaxed_plan
from jaxppo.planning.solve.reachability import SearchLimitError, reachable_steps, refuse
from jaxppo.planning.solve.strips import StripsTask, compile_task

__all__ = ["MAX_STATES", "VERSION", "SearchLimitError", "solve"]

VERSION = "2"
"""Grows with every change that may change a plan."""
MAX_STATES = 50_000
"""States that a search keeps: a minute or so, and some hundred MB."""
# How far preferred steps run ahead while they make
# progress. Source: Richter and Helmert (2009), section 4.
_BOOST = 1000
_NO_STEP = -1
"""Before the start."""

StateT = TypeVar("StateT")
StepT = TypeVar("StepT")
_CameFrom = dict[int, tuple[int, int] | None]
"""State to the state before it and the step between."""


def solve(
    problem: Problem,
    *,
    optimal: bool = False,
    max_states: int = MAX_STATES,
    max_length: int | None = None,
) -> tuple[Action, ...] | None:
    """Find a plan.

    By default: greedy best-first search, states being evaluated when they are taken out, with two queues (all steps and
    the helpful ones) and the relaxed plan that additive costs choose; in the end steps that the plan can do without go.
    `optimal`: A* with the landmark cut, which is admissible, where the landmarks do not prove the greedy plan shortest.

    Source: Hoffmann and Nebel, The FF planning system, JAIR 14 (2001); Keyder and Geffner, Heuristics for planning with
    action costs revisited, ECAI 2008; Richter and Helmert, Preferred operators and deferred evaluation in satisficing
    planning, ICAPS 2009; Helmert and Domshlak, Landmarks, critical paths and abstractions: what's the difference
    anyway?, ICAPS 2009; Nakhost and Mueller, Action elimination and plan neighborhood graph search, ICAPS 2010.

    Args:
        problem: from `parse_problem`.
        optimal: whether the plan must be a shortest one.
        max_states: most states to keep.
        max_length: with `optimal`, longer plans are not looked for, which is much faster than to find and refuse them.

    Returns:
        The plan, or None where there is none.

    Raises:
        SearchLimitError: no plan within `max_states`, or too many ways to fill in the operators.
        UnsupportedPddlError: the problem needs more than is covered here; for `optimal` also a metric other than the
            number of steps.
    """
    _check_covered(problem, optimal)
    task = compile_task(problem, reachable_steps(problem))
    if task is None:
        return None
    if optimal:
        numbers = _shortest(task, max_states, INFINITY - 1 if max_length is None else max_length)
    else:
        numbers = _greedy(task, max_states)
    return None if numbers is None else tuple(task.actions[number] for number in numbers)


def _check_covered(problem: Problem, optimal: bool) -> None:
    if problem.domain.rules:
        refuse(problem, "derived predicates")
    if compares_numbers(problem):
        refuse(problem, "conditions that compare numbers")
    if optimal and problem.metric is not None and problem.metric.expression != (TOTAL_TIME,):
        refuse(problem, "shortest plans under a ':metric'")


def _greedy(task: StripsTask, max_states: int) -> list[int] | None:
    """Run greedy best-first search from the start.

    An entry of a queue is a state with a step that may be taken in it, under the estimate of that state: the state
    after the step is only made, and evaluated, when the entry is taken out, as evaluations are what costs time, and
    most entries are never taken out. The second number settles equal estimates by age, so that states and steps are
    never compared, and the search is the same in every process.
    """
    came_from: _CameFrom = {}
    order = count()
    best = INFINITY
    all_steps: list[tuple[int, int, int, int]] = [(0, next(order), task.start, _NO_STEP)]
    helpful_steps: list[tuple[int, int, int, int]] = []
    # The queue that was used less is next; progress lets the second one run ahead.
    n_taken = 0
    n_helpful_taken = 0
    while all_steps or helpful_steps:
        if helpful_steps and (not all_steps or n_helpful_taken <= n_taken):
            n_helpful_taken += 1
            _, _, parent, number = heapq.heappop(helpful_steps)
        else:
            n_taken += 1
            _, _, parent, number = heapq.heappop(all_steps)
        state = parent if number == _NO_STEP else _after(task, parent, number)
        if state in came_from:
            continue
        came_from[state] = None if number == _NO_STEP else (parent, number)
        if state & task.goal == task.goal:
            return _without_detours(task, path_to(state, came_from))
        _check_limit(came_from, max_states)
        estimate, helpful = relaxed_plan(task, state)
        # No plan even if nothing is ever deleted, so none at all.
        if estimate == INFINITY:
            continue
        if estimate < best:
            best = estimate
            n_helpful_taken -= _BOOST
        for next_step in _applicable(task, state):
            entry = (estimate, next(order), state, next_step)
            heapq.heappush(all_steps, entry)
            if next_step in helpful:
                heapq.heappush(helpful_steps, entry)
    return None


def _check_limit(states: Sized, max_states: int) -> None:
    if len(states) >= max_states:
        raise SearchLimitError(f"no plan among {max_states} states")


def path_to(state: StateT, came_from: Mapping[StateT, tuple[StateT, StepT] | None]) -> list[StepT]:
    """List the steps that lead to a state: back to the start, which came from none."""
    steps = []
    while (link := came_from[state]) is not None:
        state, step = link
        steps.append(step)
    return steps[::-1]


def _without_detours(task: StripsTask, plan: list[int]) -> list[int]:
    """Leave out each step, with those that then cannot be taken, where the rest still reaches the goal."""
    position = 0
    state = task.start
    while position < len(plan):
        shorter: list[int] = []
        reached = state
        for number in plan[position + 1 :]:
            if reached & task.need[number] == task.need[number]:
                shorter.append(number)
                reached = _after(task, reached, number)
        if reached & task.goal == task.goal:
            plan = plan[:position] + shorter
        else:
            state = _after(task, state, plan[position])
            position += 1
    return plan


def _shortest(task: StripsTask, max_states: int, max_length: int) -> list[int] | None:
    """Run A* below the length of a greedy plan, which is a shortest one where nothing is found there.

    States are evaluated when they are taken out; until then the landmarks of the state before bound them.
    """
    estimate, cut = landmark_cut(task, task.start, max_length + 1)
    if estimate > max_length:
        return None
    # A first plan, quickly: it bounds the search, and proves that there is one.
    greedy = _greedy(task, max_states)
    if greedy is None:
        return None
    # Only plans that are shorter than the greedy one are
    # looked for, and none that is longer than was asked for.
    bound = min(len(greedy), max_length + 1)
    came_from: _CameFrom = {task.start: None}
    distance = {task.start: 0}
    evaluated = {task.start: (estimate, cut)}
    order = count()
    # Of states with equal sums the one that is further
    # from the start is next, as it is closer to the goal.
    heap = [(estimate, 0, next(order), task.start)]
    while heap and heap[0][0] < bound:
        total, negative_length, _, state = heapq.heappop(heap)
        length = -negative_length
        # An entry from before a shorter way was found.
        if length > distance[state]:
            continue
        if state & task.goal == task.goal:
            return path_to(state, came_from)
        if state not in evaluated:
            _check_limit(evaluated, max_states)
            evaluated[state] = landmark_cut(task, state, bound - length)
        estimate, cut = evaluated[state]
        # Its own landmarks are more than those of the state
        # before it promised: it waits for its turn again.
        if length + estimate > total:
            heapq.heappush(heap, (length + estimate, -length, next(order), state))
            continue
        next_length = length + 1
        for number in _applicable(task, state):
            next_state = _after(task, state, number)
            # A step of the cut lowers the number of landmarks
            # by one at most, any other step not at all.
            lower_bound = (
                evaluated[next_state][0] if next_state in evaluated else estimate - (number in cut)
            )
            next_total = max(total, next_length + lower_bound)
            if next_total < bound and next_length < distance.get(next_state, INFINITY):
                distance[next_state] = next_length
                came_from[next_state] = (state, number)
                heapq.heappush(heap, (next_total, -next_length, next(order), next_state))
    return greedy if len(greedy) <= max_length else None


def _applicable(task: StripsTask, state: int) -> list[int]:
    return [number for number, need in enumerate(task.need) if state & need == need]


def _after(task: StripsTask, state: int, number: int) -> int:
    return state & task.keep[number] | task.give[number]
