"""The states of a problem against the validator, and problems that begin in them."""

import random

import pytest

from jaxppo.planning import parse_domain, parse_problem, validate_actions
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.solve.walk import StateSpace
from jaxppo.planning.transform.restart import from_state
from jaxppo.planning.validate.validator import final_facts


@pytest.mark.parametrize("name", sorted(DOMAINS))
def test_states_and_what_applies_in_them_are_what_the_validator_says(name):
    domain = DOMAINS[name]
    text = domain.generate_problem(5, random.Random(0), name)
    problem = parse_problem(text, parse_domain(domain.pddl))
    space, rng = StateSpace(problem), random.Random(1)
    state, plan = space.start, []
    for _ in range(6):
        applicable = [action for action in space._steps if space.successor(state, action) is not None]
        for action in rng.sample(list(space._steps), 8):
            verdict = validate_actions(domain.pddl, text, [*plan, action])
            assert (verdict.failed_step is None) is (action in applicable)
        plan.append(rng.choice(applicable))
        state = space.successor(state, plan[-1])
        assert state == final_facts(problem, plan)
        assert validate_actions(domain.pddl, text, plan).valid is space.is_goal(state)
    # A plan is valid where its rest is from the state between.
    between = from_state(text, final_facts(problem, plan[:3]))
    whole, rest = validate_actions(domain.pddl, text, plan), validate_actions(domain.pddl, between, plan[3:])
    assert (rest.valid, rest.goals_reached, rest.goals) == (whole.valid, whole.goals_reached, whole.goals)


def test_facts_keep_their_place_and_new_ones_come_last():
    problem = """(define (problem p) (:domain blocksworld) (:objects a b)
      (:init (clear b) (= (total-cost) 3) (on b a) (ontable a) (handempty)) (:goal (and (on a b))))"""
    text = from_state(problem, {("ontable", "a"), ("clear", "a"), ("holding", "b")})
    assert "(:init (= (total-cost) 3) (ontable a) (clear a) (holding b))" in text
    assert "(:goal (and (on a b)))" in text


def test_what_must_not_hold_counts():
    domain = parse_domain(
        """(define (domain d) (:requirements :negative-preconditions) (:predicates (lit) (seen))
        (:action light :parameters () :precondition (not (lit)) :effect (lit))
        (:action look :parameters () :precondition (lit) :effect (and (seen) (not (lit)))))"""
    )
    problem = parse_problem("(define (problem p) (:domain d) (:init) (:goal (and (seen) (not (lit)))))", domain)
    space = StateSpace(problem)
    lit = space.successor(space.start, ("light",))
    assert space.successor(space.start, ("look",)) is None
    assert space.successor(lit, ("light",)) is None
    assert [space.is_goal(state) for state in (space.start, lit, space.successor(lit, ("look",)))] == [
        False,
        False,
        True,
    ]
