"""A trace against `execute` on every prefix, and against states kept by an independent loop."""

import random

import pytest

from jaxppo.planning import execute, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.plans import PlanError
from jaxppo.planning.solve.blocksworld import solve as solve_blocksworld
from jaxppo.planning.validate.trace import ConditionCheck, trace
from tests.planning.towers import towers_problem

CHAIN = parse_domain("""(define (domain chain) (:requirements :derived-predicates :fluents)
  (:predicates (link ?a ?b) (path ?a ?b) (done))
  (:functions (fuel) (used ?a))
  (:derived (path ?a ?b) (or (link ?a ?b) (exists (?c) (and (link ?a ?c) (path ?c ?b)))))
  (:action join :parameters (?a ?b) :precondition (not (link ?a ?b)) :effect (link ?a ?b))
  (:action cut :parameters (?a ?b) :precondition (and (link ?a ?b) (>= (fuel) 1))
    :effect (and (not (link ?a ?b)) (decrease (fuel) 1)))
  (:action finish :parameters (?a ?b) :precondition (path ?a ?b) :effect (done)))""")
CHAIN_PROBLEM = parse_problem(
    """(define (problem p) (:domain chain) (:objects x y z) (:init (link x y) (= (fuel) 1))
    (:goal (and (path x z) (not (link x z)) (>= (fuel) 1))))""",
    CHAIN,
)


UPSIDE_DOWN = towers_problem((("a", "b"),), (("b", "a"),))


def test_trace_of_a_valid_plan_and_of_plans_that_stop_by_hand():
    plan = [("unstack", "b", "a"), ("put-down", "b"), ("pick-up", "a"), ("stack", "a", "b")]
    done = trace(UPSIDE_DOWN, plan)
    assert done.facts == (("clear", "b"), ("handempty",), ("on", "b", "a"), ("ontable", "a"))
    assert done.goals == (ConditionCheck("(ontable b)", False), ConditionCheck("(on a b)", False))
    first, *_, last = done.steps
    assert first.added == (("clear", "a"), ("holding", "b"))
    assert first.deleted == (("clear", "b"), ("handempty",), ("on", "b", "a"))
    assert {check.text for check in first.preconditions} == {"(on b a)", "(clear b)", "(handempty)"}
    assert [step.goals for step in done.steps] == [(False, False), (True, False), (True, False), (True, True)]
    assert all(check.holds for step in done.steps for check in step.preconditions)
    facts = set(done.facts)
    for step in done.steps:
        assert facts.isdisjoint(step.added) and facts.issuperset(step.deleted)
        facts = (facts - set(step.deleted)) | set(step.added)
    assert last.error is None and facts == {("ontable", "b"), ("on", "a", "b"), ("clear", "a"), ("handempty",)}
    # It stops at a step that is wrong by itself, or at a false precondition before it.
    done = trace(UPSIDE_DOWN, [("unstack", "b", "a"), ("pick-up", "zz"), ("put-down", "b")])
    assert [step.error for step in done.steps] == [None, PlanError.UNKNOWN_OBJECT]
    assert done.steps[-1].preconditions == ()
    done = trace(UPSIDE_DOWN, [("pick-up", "a"), ("fly", "a")])
    assert [(step.error, step.failed_condition) for step in done.steps] == [(PlanError.PRECONDITION, "(clear a)")]


def test_trace_of_derived_predicates_and_numbers():
    done = trace(CHAIN_PROBLEM, [("join", "y", "z"), ("finish", "x", "z"), ("cut", "y", "z"), ("finish", "x", "z")])
    assert done.facts == (("link", "x", "y"),) and done.numbers == ((("fuel",), 1.0),)
    assert [step.goals for step in done.steps] == [
        (True, True, True),
        (True, True, True),
        (False, True, False),
        (False, True, False),
    ]
    assert done.steps[2].numbers == ((("fuel",), 0.0),)
    assert done.steps[3].failed_condition == "(path x z)"


@pytest.mark.parametrize("seed", range(8))
def test_trace_agrees_with_execute_on_every_prefix(seed):
    rng = random.Random(seed)
    problem = parse_problem(BLOCKSWORLD.generate_problem(4, rng, "p"), parse_domain(BLOCKSWORLD.pddl))
    plan = list(solve_blocksworld(problem))
    for _ in range(rng.randrange(3)):
        plan.insert(rng.randrange(len(plan) + 1), rng.choice(plan) if plan else ("pick-up", "zz"))
    done, verdict = trace(problem, plan), execute(problem, plan)
    assert verdict.executed_steps is not None
    assert len(done.steps) == min(len(plan), verdict.executed_steps + 1)
    for count, step in enumerate(done.steps, 1):
        prefix = execute(problem, plan[:count])
        assert (step.error is None) == prefix.executable
        assert sum(step.goals) == prefix.goals_reached
    if verdict.error is PlanError.PRECONDITION:
        last = done.steps[-1]
        assert last.failed_condition == verdict.failed_condition and last.added == last.deleted == ()
        assert last.failed_condition in {check.text for check in last.preconditions if not check.holds}
