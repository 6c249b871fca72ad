"""Planning problems and plans: read, judged, solved, generated and written as prompts; nothing here imports jax."""

from jaxppo.planning.language.parse import (
    Domain,
    Problem,
    UnsupportedPddlError,
    parse_domain,
    parse_problem,
)
from jaxppo.planning.language.plans import (
    Action,
    ParsedPlan,
    ParsedTimedPlan,
    TimedAction,
    format_action,
    format_timed_action,
    lccs_length,
    lcs_length,
    parse_action,
    parse_plan_text,
    parse_timed_plan_text,
)
from jaxppo.planning.language.temporal import Plan, needs_time_stamps, parse_plan_for
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.prompts import (
    parse_completion,
    render_completion,
    render_prompt,
    vocabulary,
    words_of,
)
from jaxppo.planning.subprocesses import connection_of, kill_group, start_module, wait_for_any
from jaxppo.planning.transform.canonical import canonical_form
from jaxppo.planning.validate.api import VALIDATORS, validate_actions, validate_many, validate_plan
from jaxppo.planning.validate.audit import Audit, AuditResult
from jaxppo.planning.validate.val import HOW_TO_GET_VAL, find_val, run_val, run_val_many
from jaxppo.planning.validate.validator import execute

__all__ = [
    "HOW_TO_GET_VAL",
    "VALIDATORS",
    "Action",
    "Audit",
    "AuditResult",
    "Domain",
    "ParsedPlan",
    "ParsedTimedPlan",
    "Plan",
    "PlanError",
    "PlanVerdict",
    "Problem",
    "TimedAction",
    "UnsupportedPddlError",
    "canonical_form",
    "connection_of",
    "execute",
    "find_val",
    "format_action",
    "format_timed_action",
    "kill_group",
    "lccs_length",
    "lcs_length",
    "needs_time_stamps",
    "parse_action",
    "parse_completion",
    "parse_domain",
    "parse_plan_for",
    "parse_plan_text",
    "parse_problem",
    "parse_timed_plan_text",
    "render_completion",
    "render_prompt",
    "run_val",
    "run_val_many",
    "start_module",
    "validate_actions",
    "validate_many",
    "validate_plan",
    "vocabulary",
    "wait_for_any",
    "words_of",
]
