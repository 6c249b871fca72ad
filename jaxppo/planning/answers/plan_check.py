"""One plan file judged and explained, for `python -m jaxppo.planning validate`."""

from collections.abc import Mapping
from typing import Any

from jaxppo.errors import ValidatorError
from jaxppo.planning.language.temporal import Plan, parse_planner_output, read_names
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.api import validate_actions
from jaxppo.planning.validate.trace import unmet_conditions
from jaxppo.planning.validate.val import find_val, format_plan, run_val


def check_plan(
    domain_pddl: str, problem_pddl: str, plan_text: str, ask_val: bool = False
) -> dict[str, Any]:
    """Judge a plan, and say what is missing where it stops.

    Args:
        domain_pddl: domain text.
        problem_pddl: problem text.
        plan_text: `(action args)` one after another; time stamps may stand before the steps of any problem, but where
            time does not matter no two steps may have the same.
        ask_val: ask VAL, too.

    Returns:
        What `--json` prints: the verdict of the built-in validator, or of VAL where only that covers the problem
        (`validator`), all conditions that do not hold where the plan stops (VAL names the first alone), and VAL's
        verdict, where it was asked for, or why it gave none.

    Raises:
        PddlError: the domain or the problem cannot be read.
        ValidatorError: VAL is needed and gives no verdict, or asked for and missing.
    """
    plan = parse_planner_output(domain_pddl, problem_pddl, plan_text)
    steps = format_plan(plan.steps).splitlines()
    # Read even where the plan is no plan, so that an
    # error of the domain or the problem is raised first.
    names = read_names(domain_pddl, problem_pddl)
    preconditions: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()
    val = None
    val_error = None
    if plan.error is not None:
        verdict = PlanVerdict.refused(plan.error, plan.error_step)
    else:
        verdict = validate_actions(domain_pddl, problem_pddl, plan.steps, "auto")
        if names.beyond is None:
            preconditions, goals = unmet_conditions(names.problem, plan.actions)
        if ask_val:
            val, val_error = _ask_val(domain_pddl, problem_pddl, plan.steps)
    # The one that a verdict names, of VAL or where it is no condition: a number without a value.
    if verdict.failed_condition is not None:
        named = (verdict.failed_condition,)
        if verdict.error is PlanError.PRECONDITION:
            preconditions = preconditions or named
        else:
            goals = goals or named
    failed_action = None
    # Of a text that cannot be read, the step that fails is not among the steps.
    if verdict.failed_step is not None and verdict.failed_step <= len(steps):
        failed_action = steps[verdict.failed_step - 1]
    return {
        "valid": verdict.valid,
        "executable": verdict.executable,
        "goal_reached": verdict.goal_reached,
        "error": verdict.error,
        "failed_step": verdict.failed_step,
        "failed_action": failed_action,
        "unmet_preconditions": preconditions,
        "unmet_goals": goals,
        "steps": len(steps),
        "executed_steps": verdict.executed_steps,
        "goals_reached": verdict.goals_reached,
        "goals": verdict.goals,
        "cost": verdict.cost,
        "validator": "builtin" if names.beyond is None else "val",
        "val": val,
        "val_error": val_error,
    }


def _ask_val(
    domain_pddl: str, problem_pddl: str, steps: Plan
) -> tuple[dict[str, Any] | None, str | None]:
    """Return VAL's verdict, or why it gave none."""
    try:
        verdict = run_val(domain_pddl, problem_pddl, steps)
    except ValidatorError as error:
        # Files that VAL refuses cost nobody the verdict that there is.
        if find_val() is None:
            raise
        return None, str(error)
    if verdict.error in (PlanError.VALIDATOR_CRASH, PlanError.VALIDATOR_TIMEOUT):
        return None, f"VAL: expected a verdict, got: {_words(str(verdict.error))}"
    content = {
        "valid": verdict.valid,
        "error": verdict.error,
        "failed_step": verdict.failed_step,
        "failed_condition": verdict.failed_condition,
    }
    return content, None


def check_as_text(content: Mapping[str, Any]) -> str:
    """Return what the terminal shows of what `check_plan` returns, a line for each thing."""
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
    if content["validator"] == "val":
        lines.append("by VAL: the built-in validator does not cover this problem")
    val = content["val"]
    if val is not None:
        line = "VAL: plan valid"
        if not val["valid"]:
            refusal = PlanVerdict.refused(
                val["error"], val["failed_step"], failed_condition=val["failed_condition"]
            )
            line = f"VAL: plan not valid{refusal.write_fault()}"
        if val["valid"] != content["valid"]:
            line += "  <- not what is said above"
        lines.append(line)
    if content["val_error"] is not None:
        lines.append(f"VAL gave no verdict: {content['val_error'].removeprefix('VAL: ')}")
    return "\n".join(lines)


def _words(error: str) -> str:
    return error.replace("_", " ")
