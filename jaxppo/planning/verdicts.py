"""What a validator says about a plan: a record, never an exception, because a bad plan is data."""

from dataclasses import dataclass
from enum import StrEnum


class PlanError(StrEnum):
    """Why a plan is not valid."""

    SYNTAX = "syntax"
    UNKNOWN_ACTION = "unknown_action"
    WRONG_ARITY = "wrong_arity"
    UNKNOWN_OBJECT = "unknown_object"
    WRONG_TYPE = "wrong_type"
    PRECONDITION = "precondition"
    GOAL_NOT_REACHED = "goal_not_reached"
    VALIDATOR_CRASH = "validator_crash"
    VALIDATOR_TIMEOUT = "validator_timeout"


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """The outcome of validating one plan.

    Attributes:
        valid: every step is applicable and the goal holds at the end.
        executable: every step is applicable.
        goal_reached: whether the goal holds at the end; None where the end was not reached.
        failed_step: 1-based index of the step that is wrong; None where no single step is.
        error: the reason when not valid, else None.
    """

    valid: bool
    executable: bool
    goal_reached: bool | None
    failed_step: int | None = None
    error: PlanError | None = None

    @classmethod
    def refused(cls, error: PlanError, failed_step: int | None = None) -> "PlanVerdict":
        """The verdict on a plan that did not run to its end."""
        return cls(valid=False, executable=False, goal_reached=None, failed_step=failed_step, error=error)

    @classmethod
    def executed(cls, goal_reached: bool) -> "PlanVerdict":
        """The verdict on a plan whose steps were all applicable."""
        error = None if goal_reached else PlanError.GOAL_NOT_REACHED
        return cls(valid=goal_reached, executable=True, goal_reached=goal_reached, failed_step=None, error=error)
