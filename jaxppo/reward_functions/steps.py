"""The plan reward step by step: each action gets a part at its own place, and the parts add up to the reward.

With the states s[0], s[1], ... in front of and behind the actions, a potential Phi in [0, 1] that is 0 for a broken
plan, and the reward R of the completion as a whole:

    an action that can be carried out:   F[t] = Phi(s[t]) - Phi(s[t - 1])
    the action that breaks the plan:     F[t] = 0 - Phi(s[t - 1])
    behind it:                           nothing
    where the completion ends:           R less the sum of all these

So an action on the way to the goal earns, one that leads nowhere earns nothing, one that undoes progress pays for it,
and the one that breaks the plan pays everything back. The return of every completion is R, as before. What was paid up
to the end of an action is Phi - Phi(s[0]), which the text up to there decides: from there on the return of every answer
is R less the same number, whatever follows. So, with gamma 1, no continuation becomes better or worse than another, and
the best policy stays the best: the theorem of potential-based shaping, where the state of the decision process is the
text so far. R itself is not paid at the break, since the text behind it still decides R: it makes a common run longer,
or the answer unreadable.

Source: Ng, Harada and Russell, Policy invariance under reward transformations, ICML 1999, theorem 1.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from jaxppo.planning import ParsedPlan, PlanError, PlanVerdict, Visit, parse_domain, parse_problem, visit
from jaxppo.planning.language.plans import Action
from jaxppo.rewards import Part

VALIDATOR_FAILURES = (PlanError.VALIDATOR_CRASH, PlanError.VALIDATOR_TIMEOUT)
"""Verdicts that say nothing about the plan: it counts as not valid, and the failure is counted too."""

Plan = tuple[Action, ...]


class Steps(NamedTuple):
    """The reward of a completion in parts.

    Attributes:
        parts: one for each action up to the one that breaks the plan, then what is left; in sum, rounded once, the
            reward.
        breaks_at: 1-based index of the first step that cannot be carried out or read; None where there is none.
    """

    parts: tuple[Part, ...]
    breaks_at: int | None

    @property
    def progress(self) -> int:
        """How many actions are on the way."""
        return sum(part.reward > 0 for part in self.parts if part.start < part.end)


def step_rewards(
    text: str,
    plan: ParsedPlan,
    verdict: PlanVerdict,
    reward: float,
    domain_pddl: str,
    problem_pddl: str,
    references: Sequence[Plan],
) -> Steps:
    """Cut the reward of a completion into the parts of its actions, see above.

    Phi is 1 - d / n, at least 0: where a reference plan comes by in d steps of its end, of n from the start; 1 where
    the goal holds; and in other states what it was in the last of these. Where no reference is valid, it is the
    fraction of the goal's conditions that hold.

    Args:
        text: the completion.
        plan: its actions, and where they stand in it.
        verdict: on the plan; one that says nothing about it leaves the reward whole.
        reward: of the completion as a whole.
        domain_pddl: domain text.
        problem_pddl: problem text.
        references: plans for the problem.
    """
    end = len(text)
    if verdict.error in VALIDATOR_FAILURES:
        return Steps((Part(end, end, reward),), None)
    visits = visit(parse_problem(problem_pddl, parse_domain(domain_pddl)), plan.actions)
    executed = _executed(verdict, plan, visits)
    potentials = _potentials(visits[: executed + 1], _progress(domain_pddl, problem_pddl, tuple(references)))
    potentials += [potentials[-1]] * (executed + 1 - len(potentials))
    breaks_at = executed + 1 if executed < len(plan.actions) or plan.error is not None else None
    if breaks_at is not None:
        potentials.append(0.0)
    rewards = [after - before for before, after in pairwise(potentials)]
    parts = [Part(*span, paid) for span, paid in zip(plan.spans, rewards, strict=False)]
    return Steps((*parts, *(Part(end, end, rest) for rest in _rest(reward, rewards))), breaks_at)


def _executed(verdict: PlanVerdict, plan: ParsedPlan, visits: Sequence[Visit]) -> int:
    """Return how many actions can be carried out, for the validator where it says so."""
    if verdict.executable:
        return len(plan.actions)
    if verdict.executed_steps is not None:
        return verdict.executed_steps
    if verdict.error is PlanError.PRECONDITION and verdict.failed_step is not None:
        return verdict.failed_step - 1
    return len(visits) - 1


def _potentials(visits: Sequence[Visit], progress: Mapping[Hashable, float]) -> list[float]:
    """Compute Phi of each state of a plan."""
    potentials: list[float] = []
    for state, reached, goals in visits:
        if reached == goals:
            potentials.append(1.0)
        elif progress:
            potentials.append(progress.get(state, potentials[-1] if potentials else 0.0))
        else:
            potentials.append(reached / goals)
    return potentials


@lru_cache(maxsize=256)
def _progress(domain_pddl: str, problem_pddl: str, references: tuple[Plan, ...]) -> dict[Hashable, float]:
    """Map each state of the valid reference plans to how far on the way it is; nothing where there is no such plan."""
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    steps_left: dict[Hashable, int] = {}
    for reference in references:
        visits = visit(problem, reference)
        if len(visits) == len(reference) + 1 and visits[-1].goals_reached == visits[-1].goals:
            for done, (state, _, _) in enumerate(visits):
                left = len(reference) - done
                steps_left[state] = min(steps_left.get(state, left), left)
    start, _, _ = visit(problem, ())[0]
    of_all = max(1, steps_left.get(start, 1))
    return {state: max(0.0, 1.0 - left / of_all) for state, left in steps_left.items()}


def _rest(reward: float, paid: Sequence[float]) -> list[float]:
    """Compute what is left of a reward; a second number has what rounding takes from the first, where that is any."""
    terms = [reward, *(-part for part in paid)]
    rest = math.fsum(terms)
    lost = math.fsum([*terms, -rest])
    return [rest, lost] if lost else [rest]


def step_metrics(steps: Sequence[Steps], n_actions: Sequence[int]) -> dict[str, float]:
    """Compute means over a batch: the step that breaks a plan, where one does; the fraction of its steps on the way.

    Args:
        steps: of each completion.
        n_actions: how many actions each has.
    """
    breaking = [each.breaks_at for each in steps if each.breaks_at is not None]
    fractions = [each.progress / max(1, count) for each, count in zip(steps, n_actions, strict=True)]
    metrics = {"progress_steps": sum(fractions) / max(1, len(fractions))}
    return metrics | ({"breaking_step": sum(breaking) / len(breaking)} if breaking else {})
