"""How far a state is from the goal at least or about, when nothing is ever deleted.

Source: Bonet and Geffner, Planning as heuristic search, Artificial Intelligence 129 (2001), for both kinds of costs.
"""

import heapq
from collections.abc import Sequence

from jaxppo.planning.solve.strips import StripsTask, facts_of

INFINITY = 1 << 60
"""The estimate of a state from which there is no plan."""


def relaxed_plan(task: StripsTask, state: int) -> tuple[int, set[int]]:
    """Find a plan that ignores what steps delete: its length, and its steps that can be taken at once.

    Every fact comes from the step with the lowest additive cost, `1 + sum of the costs of what it needs`.
    """
    cost, chosen, step_cost = _additive_costs(task, state)
    if any(cost[fact] == INFINITY for fact in task.goals):
        return INFINITY, set()
    plan: set[int] = set()
    seen, stack = set(task.goals), list(task.goals)
    while stack:
        fact = stack.pop()
        if cost[fact] > 0 and chosen[fact] not in plan:
            plan.add(chosen[fact])
            new = [need for need in task.needs[chosen[fact]] if need not in seen]
            seen.update(new)
            stack.extend(new)
    return len(plan), {number for number in plan if step_cost[number] == 1}


def _additive_costs(task: StripsTask, state: int) -> tuple[list[int], list[int], list[int]]:
    """Compute per fact its cost and the step it comes from, per step its cost, by Dijkstra's algorithm."""
    cost, chosen = [INFINITY] * len(task.users), [-1] * len(task.users)
    step_cost, missing = [1] * len(task.needs), list(map(len, task.needs))
    heap = [(0, fact) for fact in facts_of(state)]
    for _, fact in heap:
        cost[fact] = 0
    while heap:
        now, fact = heapq.heappop(heap)
        if now > cost[fact]:
            continue
        for number in task.users[fact]:
            step_cost[number] += now
            missing[number] -= 1
            if not missing[number]:
                price = step_cost[number]
                for given in task.gives[number]:
                    if price < cost[given]:
                        cost[given], chosen[given] = price, number
                        heapq.heappush(heap, (price, given))
    return cost, chosen, step_cost


def landmark_cut(task: StripsTask, state: int, enough: int = INFINITY) -> tuple[int, set[int]]:
    """Count disjoint sets of steps, of each of which every plan has one; returns the number, and the steps in them.

    Round after round: costs of facts by `hmax`; the facts from which the goal costs nothing more; the steps that enter
    them are the landmark, and cost nothing from then on.

    A step in none of the sets leads to a state whose number is no lower, since a plan from there still has a step of
    each set; a step in one of them lowers it by one at most.

    Args:
        task: the problem.
        state: where plans begin.
        enough: the count ends here.
    """
    prices, total = [1] * len(task.needs), 0
    used: set[int] = set()
    while True:
        cost, hardest = _max_costs(task, state, prices)
        last = max(task.goals, key=cost.__getitem__, default=0)
        if cost[last] == INFINITY:
            return INFINITY, set()
        if cost[last] == 0 or total >= enough:
            return total, used
        total += 1
        for number in _cut(task, prices, hardest, last):
            prices[number] = 0
            used.add(number)


def _max_costs(task: StripsTask, state: int, prices: Sequence[int]) -> tuple[list[int], list[int]]:
    """Compute per fact its `hmax` cost, per step its costliest need: the last to become known (-1: never)."""
    cost, hardest = [INFINITY] * len(task.users), [-1] * len(task.needs)
    missing, users, gives = list(map(len, task.needs)), task.users, task.gives
    now, known = 0, list(facts_of(state))
    for fact in known:
        cost[fact] = 0
    while known:  # the facts of one cost after the other: a step costs 0 or 1
        later: list[int] = []
        for fact in known:  # it grows
            if cost[fact] < now:
                continue
            for number in users[fact]:
                missing[number] -= 1
                if not missing[number]:
                    hardest[number] = fact
                    price, found = (now + 1, later) if prices[number] else (now, known)
                    for given in gives[number]:
                        if price < cost[given]:
                            cost[given] = price
                            found.append(given)
        now, known = now + 1, later
    return cost, hardest


def _cut(task: StripsTask, prices: Sequence[int], hardest: Sequence[int], last: int) -> list[int]:
    """Find the steps that lead into what leads to the goal at no cost."""
    free: dict[int, list[int]] = {}  # fact to the facts that give it at no cost
    for number, fact in enumerate(hardest):
        if fact >= 0 and not prices[number]:
            for given in task.gives[number]:
                free.setdefault(given, []).append(fact)
    zone, bits, stack = {last}, 1 << last, [last]
    while stack:
        for fact in free.get(stack.pop(), ()):
            if fact not in zone:
                zone.add(fact)
                bits |= 1 << fact
                stack.append(fact)
    return [number for number, give in enumerate(task.give) if give & bits and 0 <= hardest[number] not in zone]
