"""The in-process validator: a table of verdicts."""

import pytest

from jaxppo.planning import PlanError, PlanVerdict, parse_domain, parse_problem
from jaxppo.planning.language.task import check_action
from tests.planning.val_oracle import judge
from tests.planning.vault import DOMAIN, PROBLEM, SOLUTION

executed = PlanVerdict.executed
refused = PlanVerdict.refused
TAKEN = "(walk attic hall) (take k)"
# What `SOLUTION` gets.
VALID = PlanVerdict(True, True, True, executed_steps=4, goals_reached=2, goals=2, cost=4.0)


def far(executed_steps: int, goals_reached: int, failed_condition: str | None = None) -> dict:
    """How far a plan came."""
    return {
        "executed_steps": executed_steps,
        "goals_reached": goals_reached,
        "goals": 2,
        "failed_condition": failed_condition,
    }


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (SOLUTION, VALID),
        ("", executed(False, cost=0.0, **far(0, 0, "(in vault)"))),
        (f"{TAKEN} (unlock vault k)", executed(False, cost=3.0, **far(3, 1, "(in vault)"))),
        (f"{TAKEN} (walk hall vault)", refused(PlanError.PRECONDITION, 3, **far(2, 0, "(not (locked vault))"))),
        ("(stay attic hall)", refused(PlanError.PRECONDITION, 1, **far(0, 0, "(= attic hall)"))),
        ("(walk attic attic)", refused(PlanError.PRECONDITION, 1, **far(0, 0, "(not (= attic attic))"))),
        (f"{SOLUTION} (take k)", refused(PlanError.PRECONDITION, 5, **far(4, 2, "(in hall)"))),
        (f"{SOLUTION} (fly vault hall)", refused(PlanError.UNKNOWN_ACTION, 5, **far(4, 2))),
        ("(walk attic)", refused(PlanError.WRONG_ARITY, 1, **far(0, 0))),
        (f"{SOLUTION} (rest vault)", refused(PlanError.WRONG_ARITY, 5, **far(4, 2))),
        (f"{SOLUTION} (walk vault moon)", refused(PlanError.UNKNOWN_OBJECT, 5, **far(4, 2))),
        (f"{TAKEN} (unlock vault cup)", refused(PlanError.WRONG_TYPE, 3, **far(2, 0))),
        # A step that is wrong by itself is the reason, wherever execution stopped before it.
        (f"{SOLUTION} (rest) (rest) (fly vault)", refused(PlanError.UNKNOWN_ACTION, 7, **far(6, 2))),
        (f"{TAKEN} (take k) (rest) (rest) (rest) (walk hall moon)", refused(PlanError.UNKNOWN_OBJECT, 7, **far(2, 0))),
        # A step that deletes what it adds keeps it.
        (f"(rest) (rest) {SOLUTION} (stay vault vault)", executed(True, cost=7.0, **far(7, 2))),
    ],
)
def test_execute_says_how_far_a_plan_came_and_why_no_farther(plan, expected):
    assert judge(DOMAIN, PROBLEM, plan) == expected


def test_execute_judges_empty_plans_and_goals_and_is_unchanged_by_earlier_plans():
    problem = PROBLEM.replace("(in attic)", "(in vault)").replace("(locked vault))\n", ")\n")
    assert judge(DOMAIN, problem, "").valid
    problem = PROBLEM.replace("(and (in vault) (not (locked vault)))", "()")
    assert judge(DOMAIN, problem, "(rest)") == executed(True, executed_steps=1, goals_reached=0, goals=0, cost=1.0)
    assert [judge(DOMAIN, PROBLEM, plan).valid for plan in (SOLUTION, "", SOLUTION)] == [True, False, True]


def test_check_action_takes_faults_in_order_and_refuses_what_has_no_type_in_a_typed_domain():
    problem = parse_problem(PROBLEM, parse_domain(DOMAIN))
    assert check_action(problem, ()) is PlanError.UNKNOWN_ACTION
    assert check_action(problem, ("fly", "moon")) is PlanError.UNKNOWN_ACTION
    assert check_action(problem, ("walk", "moon")) is PlanError.WRONG_ARITY
    assert check_action(problem, ("walk", "k", "moon")) is PlanError.UNKNOWN_OBJECT
    assert check_action(problem, ("walk", "k", "hall")) is PlanError.WRONG_TYPE
    assert check_action(problem, ("take", "k")) is None
    domain = DOMAIN.replace("(:action rest :parameters ()", "(:action rest :parameters (?any)")
    problem = parse_problem(PROBLEM.replace("k - key cup - item)", "k - key cup - item thing)"), parse_domain(domain))
    assert check_action(problem, ("rest", "k")) is PlanError.WRONG_TYPE
    assert check_action(problem, ("take", "thing")) is PlanError.WRONG_TYPE
