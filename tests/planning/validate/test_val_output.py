"""VAL's words to a verdict: excerpts of its real output, and words that only look like it."""

from decimal import Decimal

import pytest

from jaxppo.errors import ValidatorError
from jaxppo.planning import PlanError
from jaxppo.planning.language.plans import TimedAction
from jaxppo.planning.validate.val_output import failed_condition, read_verdict
from tests.planning.val_oracle import essence

PLAN = (("walk", "attic", "hall"), ("take", "k"), ("rest",))
VALID = (
    "Plan executed successfully - checking goal\nPlan valid\nFinal value: 3 \n\nSuccessful plans:\nValue: 3\n plan 3 \n"
)
MISSED = "Plan executed successfully - checking goal\nGoal not satisfied\nPlan invalid\n\nFailed plans:\n plan \n"
FAILED = """Checking next happening (time 1)
Deleting (in attic)

Checking next happening (time 2)
Plan failed because of unsatisfied precondition in:
(take k)

Plan failed to execute

Plan Repair Advice:

(take k) has an unsatisfied precondition at time 2
{advice}


Failed plans:
 plan
"""
FOLLOW = "(Follow each of:\n    (Set (p) to false)\n    and (Set (q a-1 b_2) to true)\n)"
NESTED = FOLLOW.removesuffix(")") + "    and \n    (Follow one of:\n        (Set (r) to true)\n    )\n)"


MUTEX = "Mutex violation: (a)\n\nPlan failed to execute\n"
VERDICTS = {
    (0, VALID): (True, True, True, None, None),
    (1, MISSED): (False, True, False, None, PlanError.GOAL_NOT_REACHED),
    (1, FAILED): (False, False, None, 2, PlanError.PRECONDITION),
    (1, MUTEX): (False, False, None, None, PlanError.PRECONDITION),
}


@pytest.mark.parametrize("code", [0, 1, 255, -11])
@pytest.mark.parametrize(
    "stdout", [VALID, MISSED, FAILED, MUTEX, "Bad plan description!", "Plan valid", "Successful plans:"]
)
def test_read_verdict_wants_status_and_words_to_agree(code, stdout):
    verdict = read_verdict(code, stdout, "", PLAN)
    assert (verdict and essence(verdict)) == VERDICTS.get((code, stdout))


@pytest.mark.parametrize("stderr", ["Problem in domain definition!", "Type problem in problem specification!"])
def test_read_verdict_refuses_to_judge_by_files_that_val_cannot_read(stderr):
    with pytest.raises(ValidatorError, match=stderr):
        read_verdict(0, VALID, f"{stderr}\n", PLAN)


@pytest.mark.parametrize("time", ["2.5", "-1", "0", "4", "\u0662", "9" * 5_000, "x"])
def test_step_of_a_time_that_no_plain_plan_has_is_unknown(time):
    verdict = read_verdict(1, FAILED.replace("(time 2)", f"(time {time})"), "", PLAN)
    assert verdict is not None and (verdict.error, verdict.failed_step) == (PlanError.PRECONDITION, None)


@pytest.mark.parametrize(
    ("moment", "time", "expected"),
    [
        ("(fire a o) - start", "1", 1),
        ("(fire a o) - start", "6.02", 2),
        ("(fire a o) - end", "6", 1),
        ("(fire a o) - end", "11.02", 2),
        ("Invariant for (fire a o)", "4", 1),
        ("Invariant for (fire a o)", "6.02", 2),
        ("(fire a o) - start", "x", None),
        ("(light o)", "99", 3),  # there is only one
        ("(light p)", "0", None),
    ],
)
def test_failed_step_of_a_timed_plan_is_found_by_name_and_moment(moment, time, expected):
    fire = ("fire", "a", "o")
    steps = [TimedAction(Decimal(start), fire, Decimal(5)) for start in ("1", "6.02")]
    steps += [TimedAction(Decimal(0), ("light", "o"))]
    text = f"Checking next happening (time {time})\nPlan failed because of unsatisfied precondition in:\n{moment}\n"
    verdict = read_verdict(1, text, "", steps)
    assert verdict is not None and verdict.failed_step == expected


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        ("(Set (clear a) to true)", "(clear a)"),
        (FOLLOW, "(not (p))"),
        ("Failed duration constraint: Set the duration to 5\n(Set (free o) to true)", "(free o)"),
        (NESTED, None),
        ("(Follow one of:\n    (Set (r) to true)\n    or (Set (q) to true)\n)", None),
        ("(Satisfy (level)[=2] >= 6)", None),
        ("(Set (p) to true) and more", None),
        ("", None),
    ],
)
def test_failed_condition_reads_lists_of_facts_only(advice, expected):
    assert failed_condition(FAILED.format(advice=advice)) == expected


def test_failed_condition_of_a_goal_is_read_too():
    advice = "Plan Repair Advice:\n\nThe goal is not satisfied\n(Set (fired b) to true)\n\nFailed plans:\n"
    assert failed_condition(MISSED.replace("Failed plans:\n", advice)) == "(fired b)"
    assert failed_condition(MISSED) is None
