"""What is said about a plan that is not valid, so that its writer can try again: a further turn of a conversation.

A conversation only grows. Each prompt is the one before, the plan as it was written, and a turn that ends where the
next plan begins: the tokens of all turns are one row, in which a mask tells the model's own from the others.
"""

from typing import NamedTuple

from jaxppo.planning.language.conditions import Literal, write_condition
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action, ParsedPlan
from jaxppo.planning.language.verdicts import PlanError
from jaxppo.planning.validate.trace import trace


class Fault(NamedTuple):
    """Why a plan is not valid, as far as that is known.

    Attributes:
        step: 1-based number of the step that is wrong; None where no single step is.
        action: that step; None where it cannot be read.
        missing: as PDDL, what the step needs and does not hold before it; without a step, what the goal needs and does
            not hold at the end. Empty where the step itself is wrong, or where the reason is not known.
    """

    step: int | None = None
    action: Action | None = None
    missing: tuple[str, ...] = ()


UNKNOWN = Fault()
"""All that is known is that the plan is not valid."""


def find_fault(domain_pddl: str, problem_pddl: str, plan: ParsedPlan) -> Fault:
    """Say why a plan is not valid, by the validator in this process; it is not known where that accepts it.

    Args:
        domain_pddl: domain text.
        problem_pddl: problem text.
        plan: as it was read.

    Raises:
        PddlError: the domain or the problem cannot be read.
    """
    # Of a plan that cannot be read, the steps before the error are not judged: that error comes
    # first.
    if plan.error is not None:
        return Fault(plan.error_step)
    try:
        replay = trace(parse_problem(problem_pddl, parse_domain(domain_pddl)), plan.actions)
    except UnsupportedPddlError:
        return UNKNOWN
    if not replay.steps:
        return Fault(missing=tuple(check.text for check in replay.goals if not check.holds))
    last = replay.steps[-1]
    if last.error is not None:
        missing = tuple(check.text for check in last.preconditions if not check.holds)
        # What a change of numbers needs is none of the preconditions.
        if (
            last.error is PlanError.PRECONDITION
            and not missing
            and last.failed_condition is not None
        ):
            missing = (last.failed_condition,)
        return Fault(len(replay.steps), last.action, missing)
    goals = zip(replay.goals, last.goals, strict=True)
    return Fault(missing=tuple(check.text for check, holds in goals if not holds))


# ------------------------------------------------------------------------------------------------ for the styles' turns


def literal_of(condition: str, domain_pddl: str) -> Literal | None:
    """Read a fact `(clear b)`, or its negation `(not (clear b))`; None for any other condition, or a number."""
    words = tuple(condition.removeprefix("(not ").strip("()").split(" "))
    literal = Literal(words, not condition.startswith("(not "))
    # Only the outer parentheses were looked at: a fact is what is the same when it is written
    # again.
    is_fact = words[0] in parse_domain(domain_pddl).predicates or words[0] == "="
    return literal if is_fact and write_condition(literal, {}) == condition else None


def turn(fault: Fault, action: str, missing: str, request: str) -> str:
    """Write `This plan is not valid: step 3: (stack a b): (clear b) does not hold.`, and what is asked for.

    Args:
        fault: why.
        action: the step, in the words of the style.
        missing: what is not so, in its words.
        request: how a prompt of the style ends.
    """
    if fault.step is None:
        reason = f": at its end {missing}" if fault.missing else ""
    elif fault.action is None:
        reason = f": step {fault.step} cannot be read"
    else:
        reason = f": step {fault.step}: {action}: {missing or 'that is no action of this problem'}"
    return f"\n\nThis plan is not valid{reason}.\n{request}\n"
