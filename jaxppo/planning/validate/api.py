"""Judge a plan: in this process, by VAL, or by whichever of the two covers the problem."""

from collections.abc import Sequence

from jaxppo.errors import ConfigError
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.language.plans import ParsedTimedPlan, TimedAction
from jaxppo.planning.language.scope import UncoveredPddlError
from jaxppo.planning.language.temporal import Plan, parse_plan_for
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.val import HOW_TO_GET_VAL, Case, run_val_many
from jaxppo.planning.validate.validator import execute

VALIDATORS = ("builtin", "val", "auto")
"""In this process, by VAL, or by whichever of the two covers the problem."""


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
    _check(validator)
    plan = parse_plan_for(domain_pddl, problem_pddl, plan_text)
    steps = plan.steps if isinstance(plan, ParsedTimedPlan) else plan.actions
    # `builtin` says which plans it cannot judge at all.
    if plan.error is None or (validator == "builtin" and isinstance(plan, ParsedTimedPlan)):
        return validate_actions(domain_pddl, problem_pddl, steps, validator)
    return PlanVerdict.refused(plan.error, plan.error_step)


def validate_actions(domain_pddl: str, problem_pddl: str, actions: Plan, validator: str = "builtin") -> PlanVerdict:
    """Validate a plan given as actions (timed ones where time matters); see `validate_plan`."""
    return validate_many([(domain_pddl, problem_pddl, actions)], validator)[0]


def validate_many(cases: Sequence[Case], validator: str = "builtin", val_timeout_s: float = 30.0) -> list[PlanVerdict]:
    """Validate many plans, each with its domain and problem; see `validate_plan`.

    Args:
        cases: (domain text, problem text, actions) each.
        validator: see there.
        val_timeout_s: limit of a VAL process, of which several run beside each other.
    """
    _check(validator)
    verdicts: dict[int, PlanVerdict] = {}
    for number, case in enumerate(cases) if validator != "val" else ():
        try:
            verdicts[number] = _execute(*case)
        except UncoveredPddlError:
            raise
        except UnsupportedPddlError as error:
            if validator == "builtin":
                fix = f"--validator val or auto may cover it ({HOW_TO_GET_VAL})"
                raise UnsupportedPddlError(error.source, error.line, f"{error.message}; {fix}") from None
    left = [number for number in range(len(cases)) if number not in verdicts]
    by_val = run_val_many([cases[number] for number in left], val_timeout_s) if left else []
    verdicts |= zip(left, by_val, strict=True)
    return [verdicts[number] for number in range(len(cases))]


def _check(validator: str) -> None:
    if validator not in VALIDATORS:
        raise ConfigError(f"validator: expected one of {', '.join(VALIDATORS)}, got '{validator}'")


def _execute(domain_pddl: str, problem_pddl: str, plan: Plan) -> PlanVerdict:
    """Run a plan in this process; a timed step has no place in a problem without time."""
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    actions = [step for step in plan if not isinstance(step, TimedAction)]
    if len(actions) < len(plan):
        first = next(number for number, step in enumerate(plan, 1) if isinstance(step, TimedAction))
        return PlanVerdict.refused(PlanError.SYNTAX, first)
    return execute(problem, actions)
