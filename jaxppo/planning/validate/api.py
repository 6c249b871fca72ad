"""Judge a plan: in this process, by VAL, or by whichever of the two covers the problem."""

from collections.abc import Callable

from jaxppo.errors import ConfigError
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.language.plans import ParsedTimedPlan, TimedAction
from jaxppo.planning.language.temporal import Plan, parse_plan_for
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.val import HOW_TO_GET_VAL, run_val
from jaxppo.planning.validate.validator import execute


def validate_plan(domain_pddl: str, problem_pddl: str, plan_text: str, validator: str = "builtin") -> PlanVerdict:
    """Validate a plan written as PDDL text.

    Args:
        domain_pddl: domain text.
        problem_pddl: problem text.
        plan_text: one `(action args)` after another, read strictly (see `parse_plan_text`); where time matters
            (durative actions, processes, events, timed initial literals) `time: (action args) [duration]` (see
            `parse_timed_plan_text`).
        validator: `builtin` (in this process), `val` (VAL itself), or `auto` (`builtin` where it covers the domain,
            else `val`).

    Raises:
        ConfigError: an unknown validator.
        PddlError: the domain or the problem cannot be read; `UnsupportedPddlError` where only VAL may cover it.
        ValidatorError: VAL is needed and missing or broken.
    """
    validate = _validator(validator)
    plan = parse_plan_for(domain_pddl, problem_pddl, plan_text)
    steps = plan.steps if isinstance(plan, ParsedTimedPlan) else plan.actions
    if plan.error is None or (validator == "builtin" and isinstance(plan, ParsedTimedPlan)):
        return validate(domain_pddl, problem_pddl, steps)  # `builtin` says which plans it cannot judge at all
    return PlanVerdict.refused(plan.error, plan.error_step)


def validate_actions(domain_pddl: str, problem_pddl: str, actions: Plan, validator: str = "builtin") -> PlanVerdict:
    """Validate a plan given as actions (timed ones where time matters); see `validate_plan`."""
    return _validator(validator)(domain_pddl, problem_pddl, actions)


def _validator(name: str) -> Callable[[str, str, Plan], PlanVerdict]:
    if name not in VALIDATORS:
        raise ConfigError(f"validator: expected one of {', '.join(VALIDATORS)}, got '{name}'")
    return VALIDATORS[name]


def _validate_builtin(domain_pddl: str, problem_pddl: str, plan: Plan) -> PlanVerdict:
    try:
        return _execute(domain_pddl, problem_pddl, plan)
    except UnsupportedPddlError as error:
        fix = f"--validator val or auto may cover it ({HOW_TO_GET_VAL})"
        raise UnsupportedPddlError(error.source, error.line, f"{error.message}; {fix}") from None


def _validate_auto(domain_pddl: str, problem_pddl: str, plan: Plan) -> PlanVerdict:
    try:
        return _execute(domain_pddl, problem_pddl, plan)
    except UnsupportedPddlError:
        return run_val(domain_pddl, problem_pddl, plan)


def _execute(domain_pddl: str, problem_pddl: str, plan: Plan) -> PlanVerdict:
    """Run a plan in this process; a timed step has no place in a problem without time."""
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    actions = [step for step in plan if not isinstance(step, TimedAction)]
    if len(actions) < len(plan):
        first = next(number for number, step in enumerate(plan, 1) if isinstance(step, TimedAction))
        return PlanVerdict.refused(PlanError.SYNTAX, first)
    return execute(problem, actions)


VALIDATORS: dict[str, Callable[[str, str, Plan], PlanVerdict]] = {
    "builtin": _validate_builtin,
    "val": run_val,
    "auto": _validate_auto,
}
