"""Everything about planning problems and plans; no jax in here."""

from collections.abc import Callable, Sequence

from jaxppo.errors import ConfigError
from jaxppo.planning.canonical import canonical_form
from jaxppo.planning.pddl import Domain, Problem, UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.plans import (
    Action,
    ParsedPlan,
    format_action,
    lccs_length,
    lcs_length,
    parse_action,
    parse_plan_text,
)
from jaxppo.planning.prompts import parse_completion, render_completion, render_prompt, vocabulary
from jaxppo.planning.val import find_val, run_val, run_val_many
from jaxppo.planning.validator import execute
from jaxppo.planning.verdicts import PlanError, PlanVerdict

__all__ = [
    "VALIDATORS",
    "Action",
    "Domain",
    "ParsedPlan",
    "PlanError",
    "PlanVerdict",
    "Problem",
    "UnsupportedPddlError",
    "canonical_form",
    "execute",
    "find_val",
    "format_action",
    "lccs_length",
    "lcs_length",
    "parse_action",
    "parse_completion",
    "parse_domain",
    "parse_plan_text",
    "parse_problem",
    "render_completion",
    "render_prompt",
    "run_val",
    "run_val_many",
    "validate_actions",
    "validate_plan",
    "vocabulary",
]


def validate_plan(domain_pddl: str, problem_pddl: str, plan_text: str, validator: str = "builtin") -> PlanVerdict:
    """Validate a plan written as PDDL text.

    Args:
        domain_pddl: domain text.
        problem_pddl: problem text.
        plan_text: one `(action args)` after another, read strictly; see `parse_plan_text`.
        validator: `builtin` (in this process), `val` (VAL itself), or `auto` (`builtin` where it covers the domain,
            else `val`).

    Raises:
        ConfigError: an unknown validator.
        PddlError: the domain or the problem cannot be read.
        ValidatorError: VAL is asked for and missing or broken.
    """
    validate = _validator(validator)
    plan = parse_plan_text(plan_text)
    if plan.error is not None:
        return PlanVerdict.refused(plan.error, plan.error_step)
    return validate(domain_pddl, problem_pddl, plan.actions)


def validate_actions(
    domain_pddl: str, problem_pddl: str, actions: Sequence[Action], validator: str = "builtin"
) -> PlanVerdict:
    """Validate a plan given as actions; arguments and errors as for `validate_plan`."""
    return _validator(validator)(domain_pddl, problem_pddl, actions)


def _validator(name: str) -> Callable[[str, str, Sequence[Action]], PlanVerdict]:
    if name not in VALIDATORS:
        raise ConfigError(f"validator: expected one of {', '.join(VALIDATORS)}, got '{name}'")
    return VALIDATORS[name]


def _validate_builtin(domain_pddl: str, problem_pddl: str, actions: Sequence[Action]) -> PlanVerdict:
    return execute(parse_problem(problem_pddl, parse_domain(domain_pddl)), actions)


def _validate_auto(domain_pddl: str, problem_pddl: str, actions: Sequence[Action]) -> PlanVerdict:
    try:
        return _validate_builtin(domain_pddl, problem_pddl, actions)
    except UnsupportedPddlError:
        return run_val(domain_pddl, problem_pddl, actions)


VALIDATORS = {"builtin": _validate_builtin, "val": run_val, "auto": _validate_auto}
