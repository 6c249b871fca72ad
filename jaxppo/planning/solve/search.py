"""A small planner: forward search in this process, for demonstrations and small problems without any other planner.

It covers what fills in to STRIPS: typing, constants, equality, negative preconditions and goals, and quantifiers that
become conjunctions. Changes of numbers that no condition reads (action costs) are ignored. The same problem gives the
same plan in every process and for every order of its facts.
"""

import heapq
from collections.abc import Sized
from itertools import count

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
# How far preferred steps run ahead while they make progress. Source: Richter and Helmert (2009), section 4.
_BOOST = 1000

_CameFrom = dict[int, tuple[int, int] | None]
"""State to the state before it and the step between."""


def solve(
    problem: Problem, *, optimal: bool = False, max_states: int = MAX_STATES, longest: int | None = None
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
        longest: with `optimal`, longer plans are not looked for, which is much faster than to find and refuse them.

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
        numbers = _shortest(task, max_states, INFINITY - 1 if longest is None else longest)
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
    came_from: _CameFrom = {}
    order, best = count(), INFINITY
    queues: tuple[list[tuple[int, int, int, int]], ...] = ([(0, next(order), task.start, -1)], [])
    credit = [0, 0]  # the queue that has less of it is next; the second one holds the helpful steps
    while any(queues):
        turn = int(bool(queues[1]) and (not queues[0] or credit[1] <= credit[0]))
        credit[turn] += 1
        _, _, before, number = heapq.heappop(queues[turn])
        state = before if number < 0 else _after(task, before, number)
        if state in came_from:
            continue
        came_from[state] = None if number < 0 else (before, number)
        if state & task.goal == task.goal:
            return _without_detours(task, _path(came_from, state))
        _check_limit(came_from, max_states)
        estimate, helpful = relaxed_plan(task, state)
        if estimate == INFINITY:
            continue
        if estimate < best:
            best = estimate
            credit[1] -= _BOOST
        for following in _applicable(task, state):
            entry = (estimate, next(order), state, following)
            heapq.heappush(queues[0], entry)
            if following in helpful:
                heapq.heappush(queues[1], entry)
    return None


def _check_limit(states: Sized, max_states: int) -> None:
    if len(states) >= max_states:
        raise SearchLimitError(f"no plan among {max_states} states")


def _path(came_from: _CameFrom, state: int) -> list[int]:
    steps = []
    while (link := came_from[state]) is not None:
        state, number = link
        steps.append(number)
    return steps[::-1]


def _without_detours(task: StripsTask, plan: list[int]) -> list[int]:
    """Leave out each step, with those that then cannot be taken, where the rest still reaches the goal."""
    position, state = 0, task.start
    while position < len(plan):
        shorter, reached = [], state
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


def _shortest(task: StripsTask, max_states: int, longest: int) -> list[int] | None:
    """Run A* below the length of a greedy plan, which is a shortest one where nothing is found there.

    States are evaluated when they are taken out; until then the landmarks of the state before bound them.
    """
    estimate, cut = landmark_cut(task, task.start, longest + 1)
    if estimate > longest:
        return None
    greedy = _greedy(task, max_states)
    if greedy is None:
        return None
    bound = min(len(greedy), longest + 1)
    came_from: _CameFrom = {task.start: None}
    distance, evaluated = {task.start: 0}, {task.start: (estimate, cut)}
    order = count()
    heap = [(estimate, 0, next(order), task.start)]
    while heap and heap[0][0] < bound:
        total, behind, _, state = heapq.heappop(heap)
        if -behind > distance[state]:
            continue
        if state & task.goal == task.goal:
            return _path(came_from, state)
        if state not in evaluated:
            _check_limit(evaluated, max_states)
            evaluated[state] = landmark_cut(task, state, bound + behind)
        estimate, cut = evaluated[state]
        if estimate - behind > total:
            heapq.heappush(heap, (estimate - behind, behind, next(order), state))
            continue
        length = 1 - behind
        for number in _applicable(task, state):
            following = _after(task, state, number)
            least = evaluated[following][0] if following in evaluated else estimate - (number in cut)
            following_total = max(total, length + least)
            if following_total < bound and length < distance.get(following, INFINITY):
                distance[following], came_from[following] = length, (state, number)
                heapq.heappush(heap, (following_total, -length, next(order), following))
    return greedy if len(greedy) <= longest else None


def _applicable(task: StripsTask, state: int) -> list[int]:
    return [number for number, need in enumerate(task.need) if state & need == need]


def _after(task: StripsTask, state: int, number: int) -> int:
    return state & task.keep[number] | task.give[number]
