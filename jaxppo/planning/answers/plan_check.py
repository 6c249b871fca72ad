"""One plan file judged and explained, for `python -m jaxppo.planning validate`."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.language.plans import (
    Action,
    ParsedPlan,
    ParsedTimedPlan,
    TimedAction,
    format_action,
    format_timed_action,
    parse_plan_text,
    parse_timed_plan_text,
)
from jaxppo.planning.language.temporal import Plan, needs_time_stamps, read_names
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.api import validate_actions
from jaxppo.planning.validate.trace import Unmet, unmet_conditions
from jaxppo.planning.validate.val import run_val

_NOTHING_UNMET = Unmet((), ())


class PlanCheck(NamedTuple):
    """The verdict on a plan, and all that explains it.

    Attributes:
        verdict: of the built-in validator, or of VAL where only that covers the problem.
        judge: which of the two: `builtin` or `val`.
        steps: the steps of the plan, as PDDL; of a text that cannot be read those in front of where it ends.
        unmet: what does not hold where the plan stops; empty where VAL is the judge, which names the first alone.
        val: VAL's verdict, where it was asked for.
    """

    verdict: PlanVerdict
    judge: str
    steps: tuple[str, ...]
    unmet: Unmet
    val: PlanVerdict | None


def check_plan(domain_pddl: str, problem_pddl: str, plan_text: str, ask_val: bool = False) -> PlanCheck:
    """Judge a plan, and say what is missing where it stops.

    Args:
        domain_pddl: domain text.
        problem_pddl: problem text.
        plan_text: `(action args)` one after another; time stamps may stand before the steps of any problem, but where
            time does not matter no two steps may have the same.
        ask_val: ask VAL, too.

    Raises:
        PddlError: the domain or the problem cannot be read.
        ValidatorError: VAL is needed, or asked for, and missing or broken.
    """
    plan = _read(domain_pddl, problem_pddl, plan_text)
    steps: Plan = plan.steps if isinstance(plan, ParsedTimedPlan) else plan.actions
    is_builtin = read_names(domain_pddl, problem_pddl).beyond is None
    unmet = _NOTHING_UNMET
    if plan.error is not None:
        verdict = PlanVerdict.refused(plan.error, plan.error_step)
    else:
        verdict = validate_actions(domain_pddl, problem_pddl, steps, "auto")
    if is_builtin and plan.error is None and verdict.error is not PlanError.VALIDATOR_TIMEOUT:
        unmet = unmet_conditions(parse_problem(problem_pddl, parse_domain(domain_pddl)), plan.actions)
    val = run_val(domain_pddl, problem_pddl, steps) if ask_val and plan.error is None else None
    return PlanCheck(verdict, "builtin" if is_builtin else "val", tuple(_written(steps)), unmet, val)


def _read(domain_pddl: str, problem_pddl: str, plan_text: str) -> ParsedPlan | ParsedTimedPlan:
    """Read a plan strictly; where time does not matter, stamps give the order of the steps and nothing more."""
    timed = parse_timed_plan_text(plan_text)
    if needs_time_stamps(domain_pddl, problem_pddl):
        return timed
    starts = {step.start for step in timed.steps}
    if timed.error is None and timed.steps and len(starts) == len(timed.steps):
        return ParsedPlan(tuple(step.action for step in sorted(timed.steps, key=lambda step: step.start)))
    return parse_plan_text(plan_text)


def _written(steps: Sequence[Action | TimedAction]) -> Iterator[str]:
    for step in steps:
        yield format_timed_action(step) if isinstance(step, TimedAction) else format_action(step)


def check_as_json(check: PlanCheck) -> dict[str, Any]:
    """Return what `--json` prints."""
    verdict = check.verdict
    step = verdict.failed_step
    return {
        "valid": verdict.valid,
        "executable": verdict.executable,
        "goal_reached": verdict.goal_reached,
        "error": verdict.error,
        "failed_step": step,
        "failed_action": check.steps[step - 1] if step is not None and step <= len(check.steps) else None,
        "unmet_preconditions": check.unmet.preconditions or _named(check, PlanError.PRECONDITION),
        "unmet_goals": check.unmet.goals or _named(check, PlanError.GOAL_NOT_REACHED),
        "steps": len(check.steps),
        "executed_steps": verdict.executed_steps,
        "goals_reached": verdict.goals_reached,
        "goals": verdict.goals,
        "cost": verdict.cost,
        "validator": check.judge,
        "val": None if check.val is None else _short_json(check.val),
    }


def _named(check: PlanCheck, error: PlanError) -> tuple[str, ...]:
    """Return the one condition that a verdict names, where it is one of these."""
    condition = check.verdict.failed_condition
    return (condition,) if condition is not None and check.verdict.error is error else ()


def _short_json(verdict: PlanVerdict) -> dict[str, Any]:
    condition = verdict.failed_condition
    return {
        "valid": verdict.valid,
        "error": verdict.error,
        "failed_step": verdict.failed_step,
        "failed_condition": condition,
    }


def check_as_text(check: PlanCheck) -> str:
    """Return what the terminal shows, a line for each thing."""
    content = check_as_json(check)
    lines = ["plan valid" if content["valid"] else "plan not valid"]
    step, steps = content["failed_step"], content["steps"]
    if content["error"] == PlanError.SYNTAX:
        lines.append(f"no plan: step {step or 1} cannot be read; expected '(action argument ...)' one after another")
    elif step is not None:
        lines.append(f"step {step} of {steps}: {content['failed_action']}: {_words(content['error'])}")
    elif content["error"] is not None:
        lines.append(_words(content["error"]))
    lines += [f"  missing: {condition}" for condition in content["unmet_preconditions"]]
    if content["unmet_goals"]:
        where = "at the end" if content["executable"] else f"behind step {content['executed_steps']}"
        lines.append(f"goal conditions that do not hold {where}:")
        lines += [f"  {condition}" for condition in content["unmet_goals"]]
    if content["valid"]:
        cost = "" if content["cost"] is None else f", cost {content['cost']:g}"
        lines.append(f"{steps} steps{cost}")
    if check.judge == "val":
        lines.append("by VAL: the built-in validator does not cover this problem")
    if check.val is not None:
        same = check.val.valid == check.verdict.valid
        verdict = "plan valid" if check.val.valid else f"plan not valid{check.val.write_fault()}"
        lines.append(f"VAL: {verdict}" + ("" if same else "  <- not what is said above"))
    return "\n".join(lines)


def _words(error: PlanError) -> str:
    return str(error).replace("_", " ")
