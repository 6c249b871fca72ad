"""Score one prediction for a planning problem by each measure."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from jaxppo.planning.language.overlap import per_action
from jaxppo.planning.language.plans import lccs_length, lcs_length
from jaxppo.reward_functions import plan as plan_reward

if TYPE_CHECKING:
    from jaxppo.evaluate.predictions import JudgedPrediction, JudgedRow

Score = Callable[["JudgedRow", "JudgedPrediction"], float | None]
"""Score of one prediction; None where it is not measured."""


def prefix_fraction(row: "JudgedRow", judged: "JudgedPrediction") -> float | None:
    """Return steps carried out from the start / steps of the plan: 1 exactly for executable plans, also the empty one.

    0 for text that is no plan; None where the built-in validator does not cover the domain.
    """
    if not judged.is_readable:
        return 0.0
    if judged.progress.goals is None:
        return _score_without_progress(judged)
    # The empty plan is carried out in full.
    steps = len(judged.outcome.actions)
    if not steps:
        return 1.0
    return (judged.progress.executed_steps or 0) / steps


def goal_fraction(row: "JudgedRow", judged: "JudgedPrediction") -> float | None:
    """Return conditions of the goal that hold where the plan stops / conditions that the goal joins by `and`.

    A plan stops at its end or before the first step that cannot be carried out. 0 for text that is no plan,
    whatever holds at the start. A goal without conditions: 1 for executable plans.
    """
    if not judged.is_readable:
        return 0.0
    if judged.progress.goals is None:
        return _score_without_progress(judged)
    return plan_reward.goal_fraction(judged.progress)


def _score_without_progress(judged: "JudgedPrediction") -> float | None:
    """Return 0 where the built-in validator gave up on a plan; None where it does not cover the domain."""
    if judged.progress.error in plan_reward.VALIDATOR_FAILURES:
        return 0.0
    return None


OVERLAPS: tuple[str, ...] = ("lcs", "lccs", "lcs_by_reference", "lccs_by_reference")


def exact_match(row: "JudgedRow", judged: "JudgedPrediction") -> float | None:
    """Return whether the plan is a reference; None where none is known."""
    if not row.references:
        return None
    # Text that is no plan has no actions, which an empty reference would be equal to.
    return judged.is_readable and judged.outcome.actions in row.references


def overlaps(row: "JudgedRow", judged: "JudgedPrediction") -> Mapping[str, float | None]:
    """Return the steps in common with the reference plan (of several the best), as a fraction of a plan's length.

    LCS is the longest common subsequence (gaps allowed), LCCS the longest common contiguous run; divided by max(|plan|,
    |reference|) they are 1 only for the reference. "_by_reference" is the paper's: divided by |reference|, so that junk
    around the common steps costs nothing. 0 for text that is no plan, and where the divisor is 0; None where no
    reference is known.

    Source: "Chasing Progress, Not Perfection" (ICAPS 2025) and its code; `rewards.lccs`.
    """
    if not row.references:
        return dict.fromkeys(OVERLAPS)
    # The best of each: one reference may share the longest
    # run, and another one the longest subsequence.
    best: dict[str, float] = dict.fromkeys(OVERLAPS, 0.0)
    if not judged.is_readable:
        return best
    plan = judged.outcome.actions
    for reference in row.references:
        for name, length_of in (("lcs", lcs_length), ("lccs", lccs_length)):
            # Both take time that grows with the product of the
            # lengths; a plan equal to its reference needs neither.
            length = len(reference) if plan == reference else length_of(plan, reference)
            best[name] = max(best[name], per_action(length, plan, reference, "max"))
            by_reference = f"{name}_by_reference"
            fraction = per_action(length, plan, reference, "reference")
            best[by_reference] = max(best[by_reference], fraction)
    return best


def length_ratio(row: "JudgedRow", judged: "JudgedPrediction") -> float | None:
    """Return steps of a valid plan / steps of the shortest reference; None for others and for an empty reference."""
    if not judged.outcome.verdict.valid or not row.reference_length:
        return None
    return len(judged.outcome.actions) / row.reference_length


def quality(row: "JudgedRow", judged: "JudgedPrediction") -> float | None:
    """Return C* / C of a valid plan with cost C, at most 1; 0 for any other. None where C* or C is not known.

    C is the value of the problem's metric, or the number of steps where there is none; C* is the best cost known: that
    of the cheapest reference, or of the plan itself, if it is cheaper.

    Source: the score of the satisficing tracks of the International Planning Competition since 2008.
    """
    # Also for a plan that is not valid: of such problems the mean would count the failures alone.
    best = row.reference_cost
    if best is None:
        return None
    if not judged.outcome.verdict.valid:
        return 0.0
    cost = judged.progress.cost
    if cost is None:
        return None
    # Compared first: costs may be 0 or below, where the quotient means nothing.
    return 1.0 if cost <= best else best / cost


RATES: Mapping[str, Score] = {
    "validity": lambda row, judged: judged.outcome.verdict.valid,
    "executability": lambda row, judged: judged.outcome.verdict.executable,
    "readable": lambda row, judged: judged.is_readable,
    "exact_match": exact_match,
    "ended": lambda row, judged: judged.prediction.ended,
}
"""Rates: valid plans; plans whose steps can all be carried out; text that is a plan; plans equal to a reference;
completions that ended with a stop token (null where no prediction says)."""

FRACTIONS: Mapping[str, Score] = {
    "prefix": prefix_fraction,
    "goal": goal_fraction,
    "quality": quality,
}
"""Numbers in [0, 1], as are `overlaps`."""


def scores_of(row: "JudgedRow", judged: "JudgedPrediction") -> Mapping[str, float | None]:
    """Return all scores of a prediction by name: `RATES`, `FRACTIONS`, `OVERLAPS` and "length_ratio"."""
    scorers = {**RATES, **FRACTIONS, "length_ratio": length_ratio}
    scores = {name: score(row, judged) for name, score in scorers.items()}
    # Four scores from one comparison with each reference.
    return {**scores, **overlaps(row, judged)}
