"""What a validator says about a plan: a record, never an exception, because a bad plan is data."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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

    The fields after `error` are None where they are unknown: VAL reports only the first five.

    Attributes:
        valid: every step is applicable and the goal holds at the end.
        executable: every step is applicable.
        goal_reached: whether the goal holds at the end; None where the end was not reached.
        failed_step: 1-based index of the step that is wrong; None where no single step is.
        error: the reason when not valid, else None.
        executed_steps: how many steps, from the start, were applied before the first that cannot be applied. All names
            and arguments are checked first, so execution may have stopped before `failed_step`.
        failed_condition: where a step fails by its precondition, the first of the conditions it joins that does not
            hold, as PDDL with objects filled in: `(clear b)`, `(not (locked r1))`, `(>= (fuel t1) 3)`; where only a
            change of numbers fails, that effect (or the function without a value). For a missed goal, the first of the
            goal's conditions that does not hold.
        goals_reached: how many of the goal's conditions hold where execution stopped.
        goals: how many conditions the goal joins by `and`, and by an outer `forall`, whose instances count one by one.
        cost: of a plan that ran to its end, the value of the problem's metric, or the number of steps where there is no
            metric; None where that is no finite number.
    """

    valid: bool
    executable: bool
    goal_reached: bool | None
    failed_step: int | None = None
    error: PlanError | None = None
    executed_steps: int | None = None
    failed_condition: str | None = None
    goals_reached: int | None = None
    goals: int | None = None
    cost: float | None = None

    def write_fault(self) -> str:
        """Say where and why a plan fails: ` at step 3: precondition (clear b)`, to follow `invalid plan`."""
        step = "" if self.failed_step is None else f" at step {self.failed_step}"
        condition = "" if self.failed_condition is None else f" {self.failed_condition}"
        return f"{step}: {self.error}{condition}"

    @classmethod
    def refused(
        cls, error: PlanError, failed_step: int | None = None, **details: Any
    ) -> "PlanVerdict":
        """Make the verdict on a plan that did not run to its end; `details` are the fields after `error`."""
        return cls(False, False, None, failed_step, error, **details)

    @classmethod
    def executed(cls, goal_reached: bool, **details: Any) -> "PlanVerdict":
        """Make the verdict on a plan whose steps were all applicable; `details` are the fields after `error`."""
        error = None if goal_reached else PlanError.GOAL_NOT_REACHED
        return cls(goal_reached, True, goal_reached, None, error, **details)
