"""One plan file judged and explained, for `python -m jaxppo.planning validate`."""

from typing import Any, NamedTuple

from jaxppo.errors import ValidatorError
from jaxppo.planning.language.plans import (
    ParsedTimedPlan,
    format_action,
    format_timed_action,
)
from jaxppo.planning.language.temporal import parse_planner_output, read_names
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.api import validate_actions
from jaxppo.planning.validate.trace import unmet_conditions
from jaxppo.planning.validate.val import find_val, run_val


class PlanCheck(NamedTuple):
    """The verdict on a plan, and all that explains it.

    Attributes:
        verdict: of the built-in validator, or of VAL where only that covers the problem.
        judge: which of the two: `builtin` or `val`.
        steps: the steps of the plan, as PDDL; of a text that cannot be read those before the one that cannot.
        unmet_preconditions: conditions of the step at which the plan stops that do not hold; VAL names the first alone.
        unmet_goals: the same of the goal.
        val: VAL's verdict, where it was asked for and gave one.
        val_error: why VAL gave none although it was asked for.
    """

    verdict: PlanVerdict
    judge: str
    steps: tuple[str, ...]
    unmet_preconditions: tuple[str, ...]
    unmet_goals: tuple[str, ...]
    val: PlanVerdict | None
    val_error: str | None = None


def check_plan(
    domain_pddl: str, problem_pddl: str, plan_text: str, ask_val: bool = False
) -> PlanCheck:
    """Judge a plan, and say what is missing where it stops.

    Args:
        domain_pddl: domain text.
        problem_pddl: problem text.
        plan_text: `(action args)` one after another; time stamps may stand before the steps of any problem, but where
            time does not matter no two steps may have the same.
        ask_val: ask VAL, too.

    Raises:
        PddlError: the domain or the problem cannot be read.
        ValidatorError: VAL is needed and gives no verdict, or asked for and missing.
    """
    plan = parse_planner_output(domain_pddl, problem_pddl, plan_text)
    if isinstance(plan, ParsedTimedPlan):
        steps = plan.steps
        written_steps = tuple(map(format_timed_action, plan.steps))
    else:
        steps = plan.actions
        written_steps = tuple(map(format_action, plan.actions))
    # Read even where the plan is no plan, so that an
    # error of the domain or the problem is raised first.
    names = read_names(domain_pddl, problem_pddl)
    judge = "builtin" if names.beyond is None else "val"
    preconditions: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()
    if plan.error is not None:
        refusal = PlanVerdict.refused(plan.error, plan.error_step)
        return PlanCheck(refusal, judge, written_steps, preconditions, goals, None)
    verdict = validate_actions(domain_pddl, problem_pddl, steps, "auto")
    if names.beyond is None:
        preconditions, goals = unmet_conditions(names.problem, plan.actions)
    # The one that a verdict names, of VAL or where it is no condition: a number without a value.
    if verdict.failed_condition is not None:
        named = (verdict.failed_condition,)
        if verdict.error is PlanError.PRECONDITION:
            preconditions = preconditions or named
        else:
            goals = goals or named
    val = None
    val_error = None
    if ask_val:
        try:
            val = run_val(domain_pddl, problem_pddl, steps)
        except ValidatorError as error:
            # Files that VAL refuses cost nobody the verdict that there is.
            if find_val() is None:
                raise
            val_error = str(error)
        if val is not None and (
            val.error is PlanError.VALIDATOR_CRASH or val.error is PlanError.VALIDATOR_TIMEOUT
        ):
            val_error = f"VAL: expected a verdict, got: {_words(val.error)}"
            val = None
    return PlanCheck(verdict, judge, written_steps, preconditions, goals, val, val_error)


def check_as_json(check: PlanCheck) -> dict[str, Any]:
    """Return what `--json` prints."""
    verdict = check.verdict
    step = verdict.failed_step
    failed_action = None
    # Of a text that cannot be read, the step that fails is not among the steps.
    if step is not None and step <= len(check.steps):
        failed_action = check.steps[step - 1]
    return {
        "valid": verdict.valid,
        "executable": verdict.executable,
        "goal_reached": verdict.goal_reached,
        "error": verdict.error,
        "failed_step": step,
        "failed_action": failed_action,
        "unmet_preconditions": check.unmet_preconditions,
        "unmet_goals": check.unmet_goals,
        "steps": len(check.steps),
        "executed_steps": verdict.executed_steps,
        "goals_reached": verdict.goals_reached,
        "goals": verdict.goals,
        "cost": verdict.cost,
        "validator": check.judge,
        "val": None if check.val is None else _verdict_as_json(check.val),
        "val_error": check.val_error,
    }


def _verdict_as_json(verdict: PlanVerdict) -> dict[str, Any]:
    return {
        "valid": verdict.valid,
        "error": verdict.error,
        "failed_step": verdict.failed_step,
        "failed_condition": verdict.failed_condition,
    }


def check_as_text(check: PlanCheck) -> str:
    """Return what the terminal shows, a line for each thing."""
    # From the same figures as `--json`, so that the two never differ.
    content = check_as_json(check)
    # The verdict first: the exit status says the same.
    lines = ["plan valid" if content["valid"] else "plan not valid"]
    step = content["failed_step"]
    steps = content["steps"]
    if content["error"] == PlanError.SYNTAX:
        lines.append(
            f"no plan: step {step or 1} cannot be read; expected '(action argument ...)' one after another"
        )
    elif step is not None:
        lines.append(
            f"step {step} of {steps}: {content['failed_action']}: {_words(content['error'])}"
        )
    elif content["error"] is not None:
        lines.append(_words(content["error"]))
    lines += [f"  missing: {condition}" for condition in content["unmet_preconditions"]]
    if content["unmet_goals"]:
        place = "at the end" if content["executable"] else f"after step {content['executed_steps']}"
        lines.append(f"goal conditions that do not hold {place}:")
        lines += [f"  {condition}" for condition in content["unmet_goals"]]
    if content["valid"]:
        cost = "" if content["cost"] is None else f", cost {content['cost']:g}"
        lines.append(f"{steps} steps{cost}")
    if check.judge == "val":
        lines.append("by VAL: the built-in validator does not cover this problem")
    if check.val is not None:
        line = "VAL: plan valid"
        if not check.val.valid:
            line = f"VAL: plan not valid{check.val.write_fault()}"
        if check.val.valid != check.verdict.valid:
            line += "  <- not what is said above"
        lines.append(line)
    if check.val_error is not None:
        lines.append(f"VAL gave no verdict: {check.val_error.removeprefix('VAL: ')}")
    return "\n".join(lines)


def _words(error: PlanError) -> str:
    return str(error).replace("_", " ")
