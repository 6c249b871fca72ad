"""The in-process validator: a table of verdicts."""

import pytest

from jaxppo.planning import PlanError, PlanVerdict, execute, parse_domain, parse_plan_text, parse_problem
from jaxppo.planning.validator import check_action

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


def refused(error: PlanError, step: int) -> PlanVerdict:
    return PlanVerdict(valid=False, executable=False, goal_reached=None, failed_step=step, error=error)


VALID = PlanVerdict(valid=True, executable=True, goal_reached=True)
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
    assert verdict(plan) == expected


def test_execute_calls_the_empty_plan_valid_where_the_goal_holds():
    assert verdict("", problem=PROBLEM.replace("(in attic)", "(in vault)").replace("(locked vault))\n", ")\n")) == VALID


def test_execute_deletes_before_it_adds():
    plan = "(walk attic hall) (take k) (unlock vault k) (walk hall vault) (stay vault vault)"
    assert verdict(plan).goal_reached


def test_execute_takes_an_empty_goal_as_reached():
    problem = PROBLEM.replace("(and (in vault) (not (locked vault)))", "()")
    assert verdict("(rest)", problem=problem) == VALID


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
    assert verdict(plan, domain, problem) == expected


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
    assert verdict(plan, COSTS, problem) == expected


def test_check_action_takes_faults_in_order():
    problem = parse_problem(PROBLEM, parse_domain(DOMAIN))
    assert check_action(problem, ()) is PlanError.UNKNOWN_ACTION
    assert check_action(problem, ("fly", "moon")) is PlanError.UNKNOWN_ACTION
    assert check_action(problem, ("walk", "moon")) is PlanError.WRONG_ARITY
    assert check_action(problem, ("walk", "k", "moon")) is PlanError.UNKNOWN_OBJECT
    assert check_action(problem, ("walk", "k", "hall")) is PlanError.WRONG_TYPE
    assert check_action(problem, ("take", "k")) is None
