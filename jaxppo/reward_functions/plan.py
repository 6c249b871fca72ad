"""The plan reward: 1.0 where a validator accepts the plan, else partial credit below that of any valid plan.

A completion is parsed strictly, judged and compared with its reference plans. A text that does not parse gets 0, also
where its beginning is a plan: otherwise a plan followed by junk would be rewarded as one.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, NamedTuple

from jaxppo.errors import ValidatorError
from jaxppo.planning import (
    PlanVerdict,
    UnsupportedPddlError,
    find_val,
    parse_action,
    parse_completion,
    parse_domain,
    parse_problem,
    validate_actions,
    validate_many,
)
from jaxppo.planning.datasets.rows import reference_plans
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.overlap import NormaliseBy, lccs, lcs, per_action
from jaxppo.planning.language.plans import Action, ParsedPlan, PlanError
from jaxppo.planning.solve.blocksworld import solve as solve_blocksworld
from jaxppo.planning.validate.audit import Audit

VALIDATOR_FAILURES = (PlanError.VALIDATOR_CRASH, PlanError.VALIDATOR_TIMEOUT)
"""Verdicts that say nothing about the plan: it counts as not valid, and the failure is counted too."""

Plan = tuple[Action, ...]

BEST_INVALID = 0.999
"""Cap of the partial reward: no invalid plan ties with a valid one, in float32 and float16 too."""

LONG = 3
"""A plan of more than this many times the steps of its reference counts as overlong."""

Partial = Literal["lccs", "lcs", "prefix", "goal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanScoring:
    """How plans are judged and rewarded.

    Attributes:
        validator: `builtin`, `val` or `auto`.
        partial: credit of an invalid plan: overlap with the reference without (lccs) or with gaps (lcs), the steps
            that can be carried out (prefix), or the fraction of the goal's conditions that hold where it stops (goal).
        normalise_by: which plan length divides lccs, lcs and prefix.
        partial_scale: factor of the partial credit, in [0, 1].
        val_timeout_s: limit of one VAL process.
    """

    validator: str = "builtin"
    partial: Partial = "lccs"
    normalise_by: NormaliseBy = "max"
    partial_scale: float = 1.0
    val_timeout_s: float = 30.0


class PlanOutcome(NamedTuple):
    """A completion read as a plan, judged and compared with its references."""

    actions: Plan
    verdict: PlanVerdict
    lccs: float
    partial: float  # in [0, 1], of the kind that the reward uses, not yet scaled
    reward: float  # in [0, 1]; 1.0 only for a valid plan
    reference_steps: int  # of the shortest reference
    holds_reference: bool  # the steps of a reference are among its own, in their order


class _Case(NamedTuple):
    """What decides an outcome; hashable."""

    text: str
    domain_pddl: str
    problem_pddl: str
    references: tuple[tuple[str, ...], ...]
    prompt_style: str


class PlanJudge:
    """Judges completions, and caches the latest outcomes, since models repeat themselves; safe for threads.

    Args:
        scoring: how plans are judged and rewarded.
        cache_size: number of outcomes kept; 0 for none. The least recently used is dropped first.
    """

    def __init__(self, scoring: PlanScoring, cache_size: int = 0):
        self._scoring = scoring
        self._cache_size = cache_size
        self._outcomes: OrderedDict[_Case, PlanOutcome] = OrderedDict()
        self._lock = Lock()

    def __call__(
        self,
        completions: Sequence[str],
        *,
        domain_pddl: Sequence[str],
        problem_pddl: Sequence[str],
        reference_plan: Sequence[Sequence[Any]],
        prompt_style: Sequence[str],
    ) -> tuple[list[PlanOutcome], int]:
        """Judge completions; return their outcomes, and how many were cached or equal to another of the batch."""
        references = map(reference_plans, reference_plan)
        rows = zip(completions, domain_pddl, problem_pddl, references, prompt_style, strict=True)
        cases = [_Case(*row) for row in rows]
        with self._lock:
            # Copied, as another thread may drop them before they are returned.
            outcomes = {case: self._outcomes[case] for case in cases if case in self._outcomes}
        # Equal rows of a batch are judged once.
        new_cases = [case for case in dict.fromkeys(cases) if case not in outcomes]
        # Without the lock: other threads would wait for VAL.
        outcomes |= zip(new_cases, _judge(new_cases, self._scoring), strict=True)
        with self._lock:
            # Those that were cached become the latest, too.
            for case, outcome in outcomes.items():
                # Where VAL gave no verdict, it may do so the next time;
                # the limits of the built-in validator do not change.
                has_verdict = outcome.verdict.error not in VALIDATOR_FAILURES
                if has_verdict or self._scoring.validator == "builtin":
                    self._outcomes[case] = outcome
                    self._outcomes.move_to_end(case)
            while len(self._outcomes) > self._cache_size:
                self._outcomes.popitem(last=False)
        return [outcomes[case] for case in cases], len(cases) - len(new_cases)


def judge_plans(
    completions: Sequence[str], scoring: PlanScoring | None = None, **columns: Any
) -> list[PlanOutcome]:
    """Judge completions; a bad completion is an outcome with a reason, never an exception.

    Args:
        completions: model text, in the prompt style of its row.
        scoring: how; default `PlanScoring()`.
        columns: `domain_pddl`, `problem_pddl`, `reference_plan` and `prompt_style`, one entry per completion; a
            reference plan is a list of "(action args)" strings, or a list of such lists, of which the best counts.
    """
    outcomes, _ = PlanJudge(scoring or PlanScoring())(completions, **columns)
    return outcomes


def _judge(cases: Sequence[_Case], scoring: PlanScoring) -> list[PlanOutcome]:
    """Judge cases; only texts that could be parsed reach a validator, all of them at once."""
    plans = [parse_completion(case.text, case.prompt_style, case.domain_pddl) for case in cases]
    tasks = [
        (case.domain_pddl, case.problem_pddl, plan.actions)
        for case, plan in zip(cases, plans, strict=True)
        if plan.error is None
    ]
    # At once, since VAL's processes run beside each other.
    verdicts = iter(validate_many(tasks, scoring.validator, scoring.val_timeout_s))
    outcomes = []
    for case, plan in zip(cases, plans, strict=True):
        verdict = (
            next(verdicts)
            if plan.error is None
            else PlanVerdict.refused(plan.error, plan.error_step)
        )
        outcomes.append(_outcome(case, plan, verdict, scoring))
    return outcomes


def _outcome(
    case: _Case, plan: ParsedPlan, verdict: PlanVerdict, scoring: PlanScoring
) -> PlanOutcome:
    actions = plan.actions
    references = [tuple(map(parse_action, reference)) for reference in case.references]
    steps = min(map(len, references), default=0)
    # No credit for its beginning: a plan followed by junk would be rewarded as one.
    if plan.error is not None:
        return PlanOutcome(actions, verdict, 0.0, 0.0, 0.0, steps, False)

    def best_overlap(measure: Callable[..., float]) -> float:
        overlaps = [measure(actions, reference, scoring.normalise_by) for reference in references]
        return max(overlaps, default=0.0)

    overlap = best_overlap(lccs)
    if scoring.partial == "lccs":
        partial = overlap
    elif scoring.partial == "lcs":
        partial = best_overlap(lcs)
    else:
        partial = _progress(case, actions, verdict, references, scoring)
    # Junk around a reference costs no overlap with it, so such plans are counted.
    holds_reference = any(
        reference and lcs(actions, reference, "reference") == 1.0 for reference in references
    )
    reward = 1.0 if verdict.valid else min(scoring.partial_scale * partial, BEST_INVALID)
    return PlanOutcome(actions, verdict, overlap, partial, reward, steps, holds_reference)


def _progress(
    case: _Case,
    actions: Plan,
    verdict: PlanVerdict,
    references: Sequence[Plan],
    scoring: PlanScoring,
) -> float:
    """Compute how far a plan gets, in [0, 1], for `prefix` and `goal`."""
    # VAL does not say how far a plan gets.
    if verdict.executed_steps is None:
        verdict = validate_actions(case.domain_pddl, case.problem_pddl, actions)
    if scoring.partial == "goal":
        return goal_fraction(verdict)
    shortest = min(references, key=len, default=())
    return per_action(verdict.executed_steps or 0, actions, shortest, scoring.normalise_by)


def goal_fraction(verdict: PlanVerdict) -> float:
    """Return conditions of the goal that hold where a plan stops / conditions that the goal joins by `and`."""
    # A goal without conditions is reached by whatever can be carried out.
    if not verdict.goals:
        return float(verdict.executable)
    return (verdict.goals_reached or 0) / verdict.goals


def reference_cost(domain_pddl: str, problem_pddl: str, references: Iterable[Plan]) -> float | None:
    """Return the lowest cost of a valid reference plan; without a metric, a plan costs its number of steps.

    None where there is no such plan, where the metric is maximised or negative, or where the built-in validator does
    not cover the domain: then C* / C means nothing or is not known.
    """
    try:
        metric = parse_problem(problem_pddl, parse_domain(domain_pddl)).metric
        verdicts = [validate_actions(domain_pddl, problem_pddl, plan) for plan in references]
    except UnsupportedPddlError:
        return None
    costs = [verdict.cost for verdict in verdicts if verdict.valid and verdict.cost is not None]
    is_cost = metric is None or metric.direction == "minimize"
    return min(costs) if costs and is_cost and min(costs) >= 0 else None


def default_validator() -> Literal["val", "builtin"]:
    """Return `val` where VAL's binary is installed, else `builtin`."""
    return "builtin" if find_val() is None else "val"


def check_validator(validator: str) -> None:
    """Try a validator on a plan that is valid, before a run depends on it.

    Raises:
        ValidatorError: it is missing, does not start, or does not say "valid".
    """
    # The smallest task that needs a plan, since every run with this validator begins with it.
    problem_pddl = BLOCKSWORLD.generate_problem(2, random.Random(0), "self-test")
    problem = parse_problem(problem_pddl, parse_domain(BLOCKSWORLD.pddl))
    verdict = validate_actions(
        BLOCKSWORLD.pddl, problem_pddl, solve_blocksworld(problem), validator
    )
    # A binary that starts and reads nothing says no to every plan, which no run would notice.
    if not verdict.valid:
        raise ValidatorError(
            f"validator {validator}: expected 'valid' for a valid plan, got '{describe(verdict)}'"
        )


def make_plan_reward(
    scoring: PlanScoring | None = None, *, cache_size: int = 0, audit: Audit | None = None
) -> Callable[..., list[Any]]:
    """Make the plan reward as a reward function.

    Other trainers may call it too (docs/rewards_elsewhere.md): a completion that is a chat counts by its last turn.

    Args:
        scoring: how plans are judged; default `PlanScoring()`.
        cache_size: outcomes kept for repeated completions.
        audit: has VAL judge a sample of the plans again; None for no audit.
    """
    judge = PlanJudge(scoring or PlanScoring(), cache_size)

    def plan(
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        domain_pddl: list[str],
        problem_pddl: list[str],
        reference_plan: list[list[Any]],
        prompt_style: list[str],
        **columns: Any,
    ) -> list[Any]:
        outcomes, num_cached = judge(
            [_text(completion) for completion in completions],
            domain_pddl=domain_pddl,
            problem_pddl=problem_pddl,
            reference_plan=reference_plan,
            prompt_style=prompt_style,
        )
        if log_metric is not None:
            metrics = plan_metrics(outcomes)
            if audit is not None:
                metrics |= _audit_metrics(audit, outcomes, domain_pddl, problem_pddl)
            for name, value in metrics.items():
                log_metric(f"reward/{name}", value)
            log_metric("cache/reward_hits", num_cached)
        if log_extra is not None:
            log_extra("verdict", [describe(outcome.verdict) for outcome in outcomes])
            log_extra("lccs", [outcome.lccs for outcome in outcomes])
        return [outcome.reward for outcome in outcomes]

    return plan


def _text(completion: Any) -> str:
    """Return the text of a completion; TRL's are lists of turns where its prompts are chats."""
    return completion if isinstance(completion, str) else completion[-1]["content"] or ""


def _audit_metrics(
    audit: Audit, outcomes: Sequence[PlanOutcome], domains: Sequence[str], problems: Sequence[str]
) -> dict[str, float]:
    # Text that is no plan was not judged by a validator, so there is nothing to compare.
    rows = [
        row for row, outcome in enumerate(outcomes) if outcome.verdict.error is not PlanError.SYNTAX
    ]
    cases = [(domains[row], problems[row], outcomes[row].actions) for row in rows]
    result = audit.check(cases, [outcomes[row].verdict for row in rows])
    return {
        "val_audited": result.audited,
        "val_disagreements": result.disagreements,
        "val_failed": result.failed,
    }


def plan_metrics(outcomes: Sequence[PlanOutcome]) -> dict[str, float]:
    """Compute means over a batch: fractions of plans of each kind, overlap and reward."""
    count = max(1, len(outcomes))

    def mean(values: Iterable[float]) -> float:
        return sum(values) / count

    return {
        "plan_valid": mean(outcome.verdict.valid for outcome in outcomes),
        "plan_executable": mean(outcome.verdict.executable for outcome in outcomes),
        "plan_unreadable": mean(outcome.verdict.error is PlanError.SYNTAX for outcome in outcomes),
        "validator_failed": mean(
            outcome.verdict.error in VALIDATOR_FAILURES for outcome in outcomes
        ),
        "lccs": mean(outcome.lccs for outcome in outcomes),
        "partial": mean(outcome.partial for outcome in outcomes),
        "mean": mean(outcome.reward for outcome in outcomes),
        # How the partial reward is gamed; the run warns of both.
        "invalid_with_reference": mean(
            outcome.holds_reference and not outcome.verdict.valid for outcome in outcomes
        ),
        "overlong": mean(
            len(outcome.actions) > LONG * max(1, outcome.reference_steps) for outcome in outcomes
        ),
    }


def describe(verdict: PlanVerdict) -> str:
    """Describe a verdict in a few words: "valid", or what went wrong, at which step and which condition failed."""
    if verdict.valid:
        return "valid"
    reason = "invalid" if verdict.error is None else verdict.error.value.replace("_", " ")
    if verdict.failed_step is not None:
        reason += f" at step {verdict.failed_step}"
    if verdict.failed_condition is not None:
        reason += f": {verdict.failed_condition}"
    return reason
