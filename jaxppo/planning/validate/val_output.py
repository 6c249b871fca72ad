"""From what VAL printed, with `-v`, to a verdict."""

import re

from jaxppo.errors import ValidatorError
from jaxppo.planning.language.plans import TimedAction, format_action
from jaxppo.planning.language.temporal import Plan
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict

_REFUSED_FILE = re.compile(r"(?:Type p|P)roblem in (?:domain|problem) \w+!")
_HAPPENING = re.compile(r"Checking next happening \(time ([^)\n]*+)\)")
_UNSATISFIED = "Plan failed because of unsatisfied precondition in:\n"
# The step that failed, or in temporal plans one of its three moments.
_MOMENT = re.compile(
    r"(?P<invariant>Invariant for )?(?P<step>\([^()\n]*+\))(?: - (?P<end>start|end))?"
)
_ADVICE = re.compile(
    r"(?: has an unsatisfied precondition at time .*|The goal is not satisfied)\n((?:.+\n)*)"
)
_SET = re.compile(r"\(Set (\([^()]*+\)) to (true|false)\)")
_INDEX = re.compile(r"[1-9][0-9]{0,8}")
_TIME = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?")
_WRONG_DURATION = "Failed duration constraint"
# VAL prints times with six digits, and times less
# than a thousandth apart are the same moment for it.
_TIME_PRECISION = 1e-5
_TIME_TOLERANCE = 0.001


def read_verdict(return_code: int, stdout: str, stderr: str, steps: Plan) -> PlanVerdict | None:
    """Read exit status and output together: neither alone is the verdict.

    Args:
        return_code: VAL's exit status: the number of failed plans, but 0 for unreadable ones too.
        stdout: its output.
        stderr: its messages.
        steps: the plan, to find the step that failed.

    Returns:
        The verdict; None where the output holds none.

    Raises:
        ValidatorError: VAL refuses the domain or the problem.
    """
    refused = _REFUSED_FILE.search(stderr)
    if refused:
        raise ValidatorError(
            f"VAL: expected a domain and a problem it can read, got '{refused[0]}'"
        )
    if return_code == 0 and "Plan valid" in stdout and "Successful plans" in stdout:
        return PlanVerdict.executed(goal_reached=True)
    if (
        return_code == 1
        and "Plan executed successfully" in stdout
        and "Goal not satisfied" in stdout
    ):
        return PlanVerdict.executed(goal_reached=False, failed_condition=failed_condition(stdout))
    if return_code == 1 and _UNSATISFIED in stdout:
        return _unsatisfied(stdout, steps)
    # Steps at one time that disturb each other, and
    # constraints on the way: no single step is to blame.
    if return_code == 1 and "Plan failed to execute" in stdout:
        return PlanVerdict.refused(PlanError.PRECONDITION)
    return None


def failed_condition(stdout: str) -> str | None:
    """Read the first false condition of a step, or of the goal, from VAL's advice.

    Returns:
        `(clear a)` or `(not (clear a))`; None where the advice is more than a list of facts to set.
    """
    advice = _ADVICE.search(stdout)
    if advice is None:
        return None
    # VAL also advises on durations that are right, so those lines say nothing about the reason.
    lines = [line.strip() for line in advice[1].splitlines()]
    lines = [line for line in lines if not line.startswith(_WRONG_DURATION)]
    if lines[:1] == ["(Follow each of:"] and lines[-1] == ")":
        lines = [line.removeprefix("and ") for line in lines[1:-1]]
    facts = [_SET.fullmatch(line) for line in lines]
    first = facts[0] if facts and all(facts) else None
    if first is None:
        return None
    condition, truth = first.groups()
    return condition if truth == "true" else f"(not {condition})"


def _unsatisfied(stdout: str, steps: Plan) -> PlanVerdict:
    happenings, _, advice = stdout.partition(_UNSATISFIED)
    times = _HAPPENING.findall(happenings)
    failed_step = _failed_step(times[-1], advice, steps) if times else None
    condition = failed_condition(stdout)
    return PlanVerdict.refused(PlanError.PRECONDITION, failed_step, failed_condition=condition)


def _failed_step(time: str, advice: str, steps: Plan) -> int | None:
    """Find the 1-based index of the step that VAL names; None where it may be one of several."""
    timed_steps = [
        (number, step) for number, step in enumerate(steps, 1) if isinstance(step, TimedAction)
    ]
    if not timed_steps:
        # Without time VAL's times are the numbers of the steps.
        return int(time) if _INDEX.fullmatch(time) and int(time) <= len(steps) else None
    moment = _MOMENT.match(advice)
    if moment is None:
        return None
    candidates = [
        (number, step)
        for number, step in timed_steps
        if format_action(step.action) == moment["step"]
    ]
    # The same action more than once: its time decides.
    if len(candidates) > 1 and _TIME.fullmatch(time):
        candidates = [
            (number, step) for number, step in candidates if _is_at(step, float(time), moment)
        ]
    return candidates[0][0] if len(candidates) == 1 else None


def _is_at(step: TimedAction, time: float, moment: re.Match[str]) -> bool:
    """Return whether that moment of a step may be what VAL prints as `time`."""
    start = float(step.start)
    end = start + float(step.duration or 0)
    tolerance = abs(time) * _TIME_PRECISION + _TIME_TOLERANCE
    if moment["invariant"]:
        return start - tolerance <= time <= end + tolerance
    expected_time = end if moment["end"] == "end" else start
    return abs(time - expected_time) <= tolerance
