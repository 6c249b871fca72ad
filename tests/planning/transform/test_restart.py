"""Problems that begin later: in the state that the first steps of a plan lead to."""

import pytest

from jaxppo.errors import DataError
from jaxppo.planning import execute, parse_action, parse_domain, parse_problem
from jaxppo.planning.datasets.stream import Stream, stream_row
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.transform.restart import problem_after

STREAM = Stream(
    split="rl", domains=tuple(DOMAINS), sizes=(), lengths="3-6", prompt_style="brief", seed=5, numbered=False
)
FLIGHT = """(define (domain flight) (:requirements :typing :fluents) (:predicates (at ?x) (far ?x)) (:functions (fuel))
 (:action go :parameters (?x) :precondition (and (far ?x) (>= (fuel) 1)) :effect (and (at ?x) (decrease (fuel) 1))))"""
FLIGHT_TASK = """(define (problem trip) (:domain flight) (:objects a b)
 (:init (far a) (far b) (= (fuel) 2)) (:goal (and (at a) (at b))))"""


@pytest.mark.parametrize("number", range(12))
def test_the_rest_of_a_plan_is_judged_as_the_whole(number):
    row = stream_row(STREAM, number)
    domain = parse_domain(row["domain_pddl"])
    whole = parse_problem(row["problem_pddl"], domain)
    plan = [parse_action(action) for action in row["reference_plan"]]
    for done in range(1, len(plan)):
        later = parse_problem(problem_after(row["problem_pddl"], row["domain_pddl"], plan[:done]), domain)
        rest = plan[done:]
        for actions in (rest, rest[1:], [*rest, plan[-1]], [*reversed(rest)], []):
            assert execute(later, actions).valid == execute(whole, [*plan[:done], *actions]).valid, actions


def test_a_problem_after_no_step_is_the_same_and_after_one_says_only_what_holds():
    row = stream_row(STREAM, list(DOMAINS).index("blocksworld"))
    domain, problem, first = row["domain_pddl"], row["problem_pddl"], parse_action(row["reference_plan"][0])
    parsed = parse_domain(domain)
    assert parse_problem(problem_after(problem, domain, []), parsed).init == parse_problem(problem, parsed).init
    said = problem.replace("(:init ", f"(:init (not (holding {first[1]})) ")
    assert said != problem
    assert problem_after(said, domain, [first]) == problem_after(problem, domain, [first])


def test_problems_that_cannot_begin_later_are_refused():
    row = stream_row(STREAM, 0)
    first = parse_action(row["reference_plan"][0])
    with pytest.raises(DataError, match=rf"step 2.*{first[0]}|{first[0]}.*step 2"):
        problem_after(row["problem_pddl"], row["domain_pddl"], [first, first])
    with pytest.raises(DataError, match="problem_pddl"):  # a condition that compares numbers
        problem_after(FLIGHT_TASK, FLIGHT, [("go", "a")])
