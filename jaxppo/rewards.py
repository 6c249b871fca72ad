"""Rewards computed on the host, with TRL's calling convention.

A reward function is called as `fn(prompts=..., completions=..., completion_ids=..., **columns)`, where every
argument is a list with one entry per completion and `columns` holds every column of the data set, and returns one
number per completion. It may take `log_metric(name, value)` and `log_extra(column, values)` to report
its parts.
"""

import inspect
import math
import random
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Literal, NamedTuple, Protocol

from jaxppo.errors import ConfigError, DataError, ValidatorError
from jaxppo.planning import (
    PlanVerdict,
    find_val,
    parse_action,
    parse_completion,
    parse_domain,
    parse_problem,
    run_val_many,
    validate_actions,
)
from jaxppo.planning.domains import blocksworld
from jaxppo.planning.plans import Action, ParsedPlan, PlanError, lccs_length, lcs_length

BEST_INVALID = 0.999
"""Cap of the partial reward: no invalid plan ties with a valid one, in float32 and float16 too."""

VALIDATOR_FAILURES = (PlanError.VALIDATOR_CRASH, PlanError.VALIDATOR_TIMEOUT)
"""Verdicts that say nothing about the plan: it counts as not valid, and the failure is counted too."""

NormaliseBy = Literal["max", "reference", "prediction"]
Partial = Literal["lccs", "lcs"]


class RewardFunction(Protocol):
    """TRL's reward function: one number per completion."""

    def __call__(
        self, prompts: list[str], completions: list[str], completion_ids: list[list[int]], **columns: Any
    ) -> Sequence[float]:
        """Score every completion."""
        ...


class Scores(NamedTuple):
    """Rewards of a batch and what the reward function reported about it."""

    values: list[float]
    metrics: dict[str, float]


def lccs(predicted: Sequence[Any], reference: Sequence[Any], normalise_by: NormaliseBy = "max") -> float:
    """Length of the longest contiguous common run of actions, divided by a plan length.

    LCCS = |longest run| / n with n = max(|predicted|, |reference|), |reference| or |predicted|. With `max` it is in
    [0, 1] and 1 only for the reference itself; with `reference`, junk around the common run costs nothing.

    Args:
        predicted: actions, compared by equality: tuples or "(action args)" strings.
        reference: the same for the reference plan.
        normalise_by: which length divides.

    Returns:
        A number in [0, 1]; 0.0 where the divisor is 0.

    Source: "Chasing Progress, Not Perfection" (ICAPS 2025), whose code divides by the reference.
    """
    return _normalised(lccs_length(predicted, reference), predicted, reference, normalise_by)


def lcs(predicted: Sequence[Any], reference: Sequence[Any], normalise_by: NormaliseBy = "max") -> float:
    """Length of the longest common subsequence of actions (gaps allowed), divided as in `lccs`."""
    return _normalised(lcs_length(predicted, reference), predicted, reference, normalise_by)


def _normalised(length: int, predicted: Sequence[Any], reference: Sequence[Any], normalise_by: NormaliseBy) -> float:
    divisors = {
        "max": max(len(predicted), len(reference)),
        "reference": len(reference),
        "prediction": len(predicted),
    }
    if normalise_by not in divisors:
        raise ConfigError(f"normalise_by: expected max, reference or prediction, got {normalise_by!r}")
    divisor = divisors[normalise_by]
    return min(1.0, length / divisor) if divisor else 0.0


class PlanOutcome(NamedTuple):
    """A completion read as a plan, judged and compared with its reference."""

    actions: tuple[Action, ...]
    verdict: PlanVerdict
    lccs: float
    partial: float  # lccs or lcs, whichever the reward uses

    @property
    def reward(self) -> float:
        """1.0 for a valid plan, else the partial reward, at most `BEST_INVALID`."""
        return 1.0 if self.verdict.valid else min(self.partial, BEST_INVALID)


def default_validator() -> Literal["val", "builtin"]:
    """VAL where its binary is installed, else the in-process validator."""
    return "builtin" if find_val() is None else "val"


def check_validator(validator: str) -> None:
    """Try a validator on a plan that is valid, before a run depends on it.

    Raises:
        ValidatorError: it is missing, does not start, or does not say "valid".
    """
    problem_pddl = blocksworld.generate_problem(2, random.Random(0), "self-test")
    problem = parse_problem(problem_pddl, parse_domain(blocksworld.DOMAIN_PDDL))
    verdict = validate_actions(blocksworld.DOMAIN_PDDL, problem_pddl, blocksworld.solve(problem), validator)
    if not verdict.valid:
        raise ValidatorError(f"validator {validator}: expected 'valid' for a valid plan, got '{describe(verdict)}'")


def judge_plans(
    completions: Sequence[str],
    *,
    domain_pddl: Sequence[str],
    problem_pddl: Sequence[str],
    reference_plan: Sequence[Sequence[str]],
    prompt_style: Sequence[str],
    validator: str = "builtin",
    partial: Partial = "lccs",
    normalise_by: NormaliseBy = "max",
    val_timeout_s: float = 30.0,
) -> list[PlanOutcome]:
    """Parse, validate and compare completions; a bad completion is an outcome with a reason, never an exception.

    Args:
        completions: model text, in the prompt style of its row.
        domain_pddl: PDDL domain of each row.
        problem_pddl: PDDL problem of each row.
        reference_plan: "(action args)" strings of each row.
        prompt_style: style of each row.
        validator: "builtin", "val" or "auto".
        partial: "lccs" or "lcs".
        normalise_by: see `lccs`.
        val_timeout_s: limit of one VAL process.
    """
    plans = [parse_completion(text, style) for text, style in zip(completions, prompt_style, strict=True)]
    verdicts = _verdicts(plans, domain_pddl, problem_pddl, validator, val_timeout_s)
    references = [[parse_action(action) for action in reference] for reference in reference_plan]
    outcomes = []
    for plan, verdict, reference in zip(plans, verdicts, references, strict=True):
        contiguous = lccs(plan.actions, reference, normalise_by)
        overlap = contiguous if partial == "lccs" else lcs(plan.actions, reference, normalise_by)
        outcomes.append(PlanOutcome(plan.actions, verdict, contiguous, overlap))
    return outcomes


def _verdicts(
    plans: list[ParsedPlan], domains: Sequence[str], problems: Sequence[str], validator: str, val_timeout_s: float
) -> list[PlanVerdict]:
    """Text that does not parse never reaches a validator."""
    verdicts = [_unreadable(plan) for plan in plans]
    readable = [i for i, plan in enumerate(plans) if plan.error is None]
    cases = [(domains[i], problems[i], plans[i].actions) for i in readable]
    if validator == "val":
        judged = run_val_many(cases, timeout_s=val_timeout_s)
    else:
        judged = [validate_actions(*case, validator=validator) for case in cases]
    for i, verdict in zip(readable, judged, strict=True):
        verdicts[i] = verdict
    return verdicts


def _unreadable(plan: ParsedPlan) -> PlanVerdict:
    return PlanVerdict.refused(PlanError.SYNTAX if plan.error is None else plan.error, plan.error_step)


def make_plan_reward(
    validator: str = "builtin",
    partial: Partial = "lccs",
    normalise_by: NormaliseBy = "max",
    val_timeout_s: float = 30.0,
) -> RewardFunction:
    """The plan reward: 1.0 where the plan is valid, else LCCS (or LCS) with the reference plan."""

    def plan(
        prompts: list[str],
        completions: list[str],
        completion_ids: list[list[int]],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        domain_pddl: list[str],
        problem_pddl: list[str],
        reference_plan: list[list[str]],
        prompt_style: list[str],
        **columns: Any,
    ) -> list[float]:
        outcomes = judge_plans(
            completions,
            domain_pddl=domain_pddl,
            problem_pddl=problem_pddl,
            reference_plan=reference_plan,
            prompt_style=prompt_style,
            validator=validator,
            partial=partial,
            normalise_by=normalise_by,
            val_timeout_s=val_timeout_s,
        )
        if log_metric is not None:
            for name, value in plan_metrics(outcomes).items():
                log_metric(f"reward/{name}", value)
        if log_extra is not None:
            log_extra("verdict", [describe(outcome.verdict) for outcome in outcomes])
        return [outcome.reward for outcome in outcomes]

    return plan


def plan_metrics(outcomes: Sequence[PlanOutcome]) -> dict[str, float]:
    """Means over a batch: fractions valid, executable and left without a verdict by the validator; LCCS, reward."""
    count = max(1, len(outcomes))
    return {
        "plan_valid": sum(o.verdict.valid for o in outcomes) / count,
        "plan_executable": sum(o.verdict.executable for o in outcomes) / count,
        "validator_failed": sum(o.verdict.error in VALIDATOR_FAILURES for o in outcomes) / count,
        "lccs": sum(o.lccs for o in outcomes) / count,
        "mean": sum(o.reward for o in outcomes) / count,
    }


def describe(verdict: PlanVerdict) -> str:
    """A verdict in a few words: "valid", or what went wrong and at which step."""
    if verdict.valid:
        return "valid"
    reason = "invalid" if verdict.error is None else verdict.error.value.replace("_", " ")
    return reason if verdict.failed_step is None else f"{reason} at step {verdict.failed_step}"


def score(
    reward: RewardFunction,
    prompts: list[str],
    completions: list[str],
    completion_ids: list[list[int]],
    columns: dict[str, list[Any]],
) -> tuple[Scores, dict[str, list[Any]]]:
    """Call a reward function and check what it returns.

    Returns:
        The scores with the reported metrics, and the per-completion extras it reported.

    Raises:
        DataError: a column that the function needs is missing, or it returned the wrong number of values, a
            non-number or NaN; the message names the function and the row.
    """
    metrics: dict[str, float] = {}
    extras: dict[str, list[Any]] = {}
    name = getattr(reward, "__name__", type(reward).__name__)
    batch = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids}
    arguments: dict[str, Any] = columns | batch
    parameters = inspect.signature(reward).parameters
    arguments |= {"log_metric": metrics.__setitem__, "log_extra": extras.__setitem__}
    for needed, parameter in parameters.items():
        named = parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if named and parameter.default is inspect.Parameter.empty and needed not in arguments:
            raise DataError(f"reward {name}: expected a data column {needed!r}, got {', '.join(sorted(columns))}")
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        arguments = {needed: arguments[needed] for needed in parameters if needed in arguments}
    values = reward(**arguments)
    return Scores(_checked(name, values, len(completions)), metrics), extras


def _checked(name: str, values: Sequence[float], expected: int) -> list[float]:
    count = len(values) if hasattr(values, "__len__") else type(values).__name__
    if count != expected:
        raise DataError(f"reward {name}: expected {expected} values, got {count}")
    for row, value in enumerate(values):
        if not isinstance(value, Real) or not math.isfinite(value):
            raise DataError(f"reward {name}: expected a finite number for row {row}, got {value!r}")
    return [float(value) for value in values]
