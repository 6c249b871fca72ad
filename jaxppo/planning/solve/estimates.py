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
    cost, cheapest_step, step_cost = _additive_costs(task, state)
    if any(cost[fact] == INFINITY for fact in task.goals):
        return INFINITY, set()
    plan: set[int] = set()
    visited = set(task.goals)
    stack = list(task.goals)
    # From the goals backwards: each fact that does not
    # hold yet adds its step, and what that step needs.
    while stack:
        fact = stack.pop()
        number = cheapest_step[fact]
        if cost[fact] > 0 and number not in plan:
            plan.add(number)
            new_facts = [need for need in task.needs[number] if need not in visited]
            visited.update(new_facts)
            stack.extend(new_facts)
    # A step that costs no more than itself needs nothing that does not hold.
    return len(plan), {number for number in plan if step_cost[number] == 1}


def _additive_costs(task: StripsTask, state: int) -> tuple[list[int], list[int], list[int]]:
    """Compute per fact its cost and the step it comes from, per step its cost, by Dijkstra's algorithm.

    A step is a node that waits until the last fact it needs has its final cost; `n_missing` counts down to that.
    """
    cost = [INFINITY] * len(task.users)
    cheapest_step = [-1] * len(task.users)
    step_cost = [1] * len(task.needs)
    n_missing = list(map(len, task.needs))
    heap = [(0, fact) for fact in facts_of(state)]
    for _, fact in heap:
        cost[fact] = 0
    while heap:
        fact_cost, fact = heapq.heappop(heap)
        # An entry from before the fact became cheaper.
        if fact_cost > cost[fact]:
            continue
        for number in task.users[fact]:
            step_cost[number] += fact_cost
            n_missing[number] -= 1
            if not n_missing[number]:
                price = step_cost[number]
                for effect in task.gives[number]:
                    if price < cost[effect]:
                        cost[effect] = price
                        cheapest_step[effect] = number
                        heapq.heappush(heap, (price, effect))
    return cost, cheapest_step, step_cost


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
    prices = [1] * len(task.needs)
    n_landmarks = 0
    landmark_steps: set[int] = set()
    # Each landmark costs 1 at first and nothing once it is counted, so no step is counted twice.
    while True:
        cost, costliest_need = _max_costs(task, state, prices)
        costliest_goal = max(task.goals, key=cost.__getitem__, default=0)
        if cost[costliest_goal] == INFINITY:
            return INFINITY, set()
        if cost[costliest_goal] == 0 or n_landmarks >= enough:
            return n_landmarks, landmark_steps
        n_landmarks += 1
        for number in _cut(task, prices, costliest_need, costliest_goal):
            prices[number] = 0
            landmark_steps.add(number)


def _max_costs(task: StripsTask, state: int, prices: Sequence[int]) -> tuple[list[int], list[int]]:
    """Compute per fact its `hmax` cost, per step its costliest need: the last to be reached (-1: never).

    As a step costs 0 or 1, no heap is needed: the facts of one cost after the other, each cost a list that grows while
    it is read.
    """
    cost = [INFINITY] * len(task.users)
    costliest_need = [-1] * len(task.needs)
    n_missing = list(map(len, task.needs))
    # Looked up once, as the loops below run for every state of an optimal search.
    users = task.users
    gives = task.gives
    layer_cost = 0
    layer = list(facts_of(state))
    for fact in layer:
        cost[fact] = 0
    while layer:
        next_layer: list[int] = []
        for fact in layer:
            # Reached at a lower cost after it was put into this layer.
            if cost[fact] < layer_cost:
                continue
            for number in users[fact]:
                n_missing[number] -= 1
                if not n_missing[number]:
                    costliest_need[number] = fact
                    if prices[number]:
                        price = layer_cost + 1
                        effect_layer = next_layer
                    else:
                        price = layer_cost
                        effect_layer = layer
                    for effect in gives[number]:
                        if price < cost[effect]:
                            cost[effect] = price
                            effect_layer.append(effect)
        layer_cost += 1
        layer = next_layer
    return cost, costliest_need


def _cut(
    task: StripsTask, prices: Sequence[int], costliest_need: Sequence[int], goal: int
) -> list[int]:
    """Find the steps that lead into what leads to the goal at no cost."""
    free_sources: dict[int, list[int]] = {}  # fact to the facts that give it at no cost
    for number, fact in enumerate(costliest_need):
        if fact >= 0 and not prices[number]:
            for effect in task.gives[number]:
                free_sources.setdefault(effect, []).append(fact)
    goal_zone = {goal}
    zone_bits = 1 << goal
    stack = [goal]
    while stack:
        for fact in free_sources.get(stack.pop(), ()):
            if fact not in goal_zone:
                goal_zone.add(fact)
                zone_bits |= 1 << fact
                stack.append(fact)
    cut: list[int] = []
    for number, effects in enumerate(task.give):
        # A step that is never reached (-1) enters nothing.
        if (
            effects & zone_bits
            and costliest_need[number] >= 0
            and costliest_need[number] not in goal_zone
        ):
            cut.append(number)
    return cut
