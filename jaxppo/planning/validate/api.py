"""Judge a plan: in this process, by VAL, or by whichever of the two covers the problem."""

from collections.abc import Sequence

from jaxppo.errors import ConfigError
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action, ParsedTimedPlan, TimedAction
from jaxppo.planning.language.scope import UncoveredPddlError
from jaxppo.planning.language.temporal import Plan, parse_plan_for
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.val import HOW_TO_GET_VAL, Case, run_val_many
from jaxppo.planning.validate.validator import execute

VALIDATORS = ("builtin", "val", "auto")
"""In this process, by VAL, or by whichever of the two covers the problem."""


def validate_plan(
    domain_pddl: str, problem_pddl: str, plan_text: str, validator: str = "builtin"
) -> PlanVerdict:
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
    _require_validator(validator)
    plan = parse_plan_for(domain_pddl, problem_pddl, plan_text)
    # A timed plan that cannot be read still goes to `builtin`, whose error names the feature it
    # does not cover: that helps more than a syntax error in a plan which it would refuse anyway.
    is_timed = isinstance(plan, ParsedTimedPlan)
    if plan.error is not None and not (is_timed and validator == "builtin"):
        return PlanVerdict.refused(plan.error, plan.error_step)
    return validate_actions(domain_pddl, problem_pddl, plan.steps, validator)


def validate_actions(
    domain_pddl: str, problem_pddl: str, actions: Plan, validator: str = "builtin"
) -> PlanVerdict:
    """Validate a plan given as actions (timed ones where time matters); see `validate_plan`."""
    return validate_many([(domain_pddl, problem_pddl, actions)], validator)[0]


def validate_many(
    cases: Sequence[Case], validator: str = "builtin", val_timeout_s: float = 30.0
) -> list[PlanVerdict]:
    """Validate many plans, each with its domain and problem; see `validate_plan`.

    Args:
        cases: (domain text, problem text, actions) each.
        validator: as for `validate_plan`.
        val_timeout_s: seconds until a VAL process is killed; several run at a time.
    """
    _require_validator(validator)
    verdicts: dict[int, PlanVerdict] = {}
    if validator != "val":
        for index, case in enumerate(cases):
            try:
                verdicts[index] = _execute(*case)
            except UncoveredPddlError:
                # VAL does not cover it either, so the error must not offer VAL as a way out.
                raise
            except UnsupportedPddlError as error:
                if validator == "builtin":
                    fix = f"--validator val or auto may cover it ({HOW_TO_GET_VAL})"
                    raise UnsupportedPddlError(
                        error.source, error.line, f"{error.message}; {fix}"
                    ) from None
    # VAL may not be installed: it is asked only where a plan needs it.
    remaining = [index for index in range(len(cases)) if index not in verdicts]
    if remaining:
        val_verdicts = run_val_many([cases[index] for index in remaining], val_timeout_s)
        verdicts.update(zip(remaining, val_verdicts, strict=True))
    return [verdicts[index] for index in range(len(cases))]


def _require_validator(validator: str) -> None:
    if validator not in VALIDATORS:
        raise ConfigError(f"validator: expected one of {', '.join(VALIDATORS)}, got '{validator}'")


def _execute(domain_pddl: str, problem_pddl: str, plan: Plan) -> PlanVerdict:
    """Run a plan in this process, which covers only problems without time: a timed step is a syntax error in them."""
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    actions: list[Action] = []
    for number, step in enumerate(plan, 1):
        if isinstance(step, TimedAction):
            return PlanVerdict.refused(PlanError.SYNTAX, number)
        actions.append(step)
    return execute(problem, actions)
