"""The in-process validator: a table of verdicts."""

import pytest

from jaxppo.planning import PlanError, PlanVerdict, execute, parse_domain, parse_plan_text, parse_problem
from jaxppo.planning.language.task import check_action

DOMAIN = """(define (domain rooms)
  (:requirements :strips :typing :equality :negative-preconditions)
  (:types room item - object key - item)
  (:constants hall - room)
  (:predicates (in ?r - room) (has ?i - item) (lies ?i - item ?r - room) (locked ?r - room) (seen ?r - room))
  (:action walk :parameters (?a ?b - room)
    :precondition (and (in ?a) (not (= ?a ?b)) (not (locked ?b)))
    :effect (and (in ?b) (not (in ?a)) (seen ?b)))
  (:action stay :parameters (?a ?b - room) :precondition (and (in ?a) (= ?a ?b)) :effect (and (in ?a) (not (in ?b))))
  (:action take :parameters (?i - item) :precondition (and (in hall) (lies ?i hall))
    :effect (and (has ?i) (not (lies ?i hall))))
  (:action unlock :parameters (?r - room ?k - key) :precondition (has ?k) :effect (not (locked ?r)))
  (:action rest :parameters () :precondition () :effect (and)))
"""
PROBLEM = """(define (problem p) (:domain rooms)
  (:objects vault attic - room k - key cup - item)
  (:init (in attic) (lies k hall) (lies cup vault) (locked vault))
  (:goal (and (in vault) (not (locked vault)))))
"""
SOLUTION = "(walk attic hall) (take k) (unlock vault k) (walk hall vault)"


def verdict(plan: str, domain: str = DOMAIN, problem: str = PROBLEM) -> PlanVerdict:
    return execute(parse_problem(problem, parse_domain(domain)), parse_plan_text(plan).actions)


def refused(error: PlanError, step: int, **details) -> PlanVerdict:
    return PlanVerdict.refused(error, step, **details)


def outcome(verdict: PlanVerdict):
    """What VAL says as well."""
    return verdict.valid, verdict.executable, verdict.goal_reached, verdict.failed_step, verdict.error


# What `SOLUTION` gets.
VALID = PlanVerdict(True, True, True, executed_steps=4, goals_reached=2, goals=2, cost=4.0)
GOAL_MISSED = PlanVerdict(valid=False, executable=True, goal_reached=False, error=PlanError.GOAL_NOT_REACHED)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (SOLUTION, VALID),
        (f"(rest) (rest) {SOLUTION} (stay vault vault)", VALID),
        ("", GOAL_MISSED),
        ("(walk attic hall) (take k)", GOAL_MISSED),
        ("(walk attic hall) (take cup)", refused(PlanError.PRECONDITION, 2)),
        ("(walk attic vault)", refused(PlanError.PRECONDITION, 1)),
        ("(walk attic attic)", refused(PlanError.PRECONDITION, 1)),
        ("(stay attic hall)", refused(PlanError.PRECONDITION, 1)),
        (f"{SOLUTION} (walk vault vault)", refused(PlanError.PRECONDITION, 5)),
        (f"{SOLUTION} (fly vault hall)", refused(PlanError.UNKNOWN_ACTION, 5)),
        ("(walk attic)", refused(PlanError.WRONG_ARITY, 1)),
        (f"{SOLUTION} (rest vault)", refused(PlanError.WRONG_ARITY, 5)),
        (f"{SOLUTION} (walk vault moon)", refused(PlanError.UNKNOWN_OBJECT, 5)),
        ("(walk attic hall) (take k) (unlock vault cup)", refused(PlanError.WRONG_TYPE, 3)),
        # The whole plan is checked against the domain before any step is applied.
        ("(take cup) (walk attic moon)", refused(PlanError.UNKNOWN_OBJECT, 2)),
        # A repeated step, a constant, a subtype where its parent is asked for.
        ("(walk attic hall) (walk hall attic) (walk attic hall) (take k)", GOAL_MISSED),
    ],
)
def test_execute_verdicts(plan, expected):
    assert outcome(verdict(plan)) == outcome(expected)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (SOLUTION, VALID),
        (
            "",
            PlanVerdict.executed(
                False, executed_steps=0, failed_condition="(in vault)", goals_reached=0, goals=2, cost=0.0
            ),
        ),
        (
            "(walk attic hall) (take k) (unlock vault k)",
            PlanVerdict.executed(
                False, executed_steps=3, failed_condition="(in vault)", goals_reached=1, goals=2, cost=3.0
            ),
        ),
        (
            "(walk attic hall) (take k) (walk hall vault)",
            refused(
                PlanError.PRECONDITION,
                3,
                executed_steps=2,
                failed_condition="(not (locked vault))",
                goals_reached=0,
                goals=2,
            ),
        ),
        (
            "(walk attic attic)",
            refused(
                PlanError.PRECONDITION,
                1,
                executed_steps=0,
                failed_condition="(not (= attic attic))",
                goals_reached=0,
                goals=2,
            ),
        ),
        (
            f"{SOLUTION} (take k)",
            refused(
                PlanError.PRECONDITION, 5, executed_steps=4, failed_condition="(in hall)", goals_reached=2, goals=2
            ),
        ),
        # A step that is wrong by itself is the reason, wherever execution stopped before it.
        (
            f"{SOLUTION} (rest) (rest) (fly vault)",
            refused(PlanError.UNKNOWN_ACTION, 7, executed_steps=6, goals_reached=2, goals=2),
        ),
        (
            "(walk attic hall) (take k) (take k) (rest) (rest) (rest) (walk hall moon)",
            refused(PlanError.UNKNOWN_OBJECT, 7, executed_steps=2, goals_reached=0, goals=2),
        ),
    ],
)
def test_execute_says_how_far_a_plan_came(plan, expected):
    assert verdict(plan) == expected


def test_execute_calls_the_empty_plan_valid_where_the_goal_holds():
    assert verdict("", problem=PROBLEM.replace("(in attic)", "(in vault)").replace("(locked vault))\n", ")\n")).valid


def test_execute_deletes_before_it_adds():
    plan = "(walk attic hall) (take k) (unlock vault k) (walk hall vault) (stay vault vault)"
    assert verdict(plan).goal_reached


def test_execute_takes_an_empty_goal_as_reached():
    problem = PROBLEM.replace("(and (in vault) (not (locked vault)))", "()")
    assert verdict("(rest)", problem=problem) == PlanVerdict.executed(
        True, executed_steps=1, goals_reached=0, goals=0, cost=1.0
    )


def test_execute_is_unchanged_by_earlier_plans():
    assert [verdict(plan).valid for plan in (SOLUTION, "", SOLUTION)] == [True, False, True]


@pytest.mark.parametrize(
    ("goal", "plan", "expected"),
    [
        ("(= a a)", "", VALID),
        ("(= a b)", "", GOAL_MISSED),
        ("(not (= a b))", "", VALID),
        ("(not (q a))", "(go a)", GOAL_MISSED),
    ],
)
def test_execute_decides_equalities_and_negations_in_goals(goal, plan, expected):
    domain = "(define (domain d) (:predicates (q ?x)) (:action go :parameters (?x) :precondition () :effect (q ?x)))"
    problem = f"(define (problem p) (:domain d) (:objects a b) (:init) (:goal {goal}))"
    assert outcome(verdict(plan, domain, problem)) == outcome(expected)


COSTS = """(define (domain d) (:predicates (q ?x)) (:functions (total-cost) (len ?x))
  (:action go :parameters (?x) :precondition () :effect (and (q ?x) (increase (total-cost) (+ 1 (len ?x))))))"""


@pytest.mark.parametrize(
    ("init", "metric", "plan", "expected"),
    [
        ("(= (total-cost) 0) (= (len a) 3)", "(:metric minimize (total-cost))", "(go a)", VALID),
        ("(= (len a) 3)", "(:metric minimize (+ total-cost (* 2 total-time)))", "(go a)", VALID),
        ("(= (len a) 3)", "", "(go a) (go b)", refused(PlanError.PRECONDITION, 2)),
        ("(q a)", "(:metric minimize (total-cost))", "", GOAL_MISSED),
    ],
)
def test_execute_refuses_costs_without_a_value_as_val_does(init, metric, plan, expected):
    problem = f"(define (problem p) (:domain d) (:objects a b) (:init {init}) (:goal (q a)) {metric})"
    assert outcome(verdict(plan, COSTS, problem)) == outcome(expected)


def test_check_action_takes_faults_in_order():
    problem = parse_problem(PROBLEM, parse_domain(DOMAIN))
    assert check_action(problem, ()) is PlanError.UNKNOWN_ACTION
    assert check_action(problem, ("fly", "moon")) is PlanError.UNKNOWN_ACTION
    assert check_action(problem, ("walk", "moon")) is PlanError.WRONG_ARITY
    assert check_action(problem, ("walk", "k", "moon")) is PlanError.UNKNOWN_OBJECT
    assert check_action(problem, ("walk", "k", "hall")) is PlanError.WRONG_TYPE
    assert check_action(problem, ("take", "k")) is None


def test_check_action_refuses_what_has_no_type_in_a_typed_domain():
    domain = DOMAIN.replace("(:action rest :parameters ()", "(:action rest :parameters (?any)")
    problem = parse_problem(PROBLEM.replace("k - key cup - item)", "k - key cup - item thing)"), parse_domain(domain))
    assert check_action(problem, ("rest", "k")) is PlanError.WRONG_TYPE
    assert check_action(problem, ("take", "thing")) is PlanError.WRONG_TYPE


def test_verdicts_can_be_made_without_the_new_fields():
    assert PlanVerdict.refused(PlanError.SYNTAX, 3) == PlanVerdict(False, False, None, 3, PlanError.SYNTAX)
    assert PlanVerdict.executed(goal_reached=True).executed_steps is None
