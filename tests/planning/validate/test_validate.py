"""The public entry points of the planning room."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from jaxppo.errors import ConfigError
from jaxppo.planning import PlanError, PlanVerdict, UnsupportedPddlError, validate_actions, validate_many, validate_plan
from jaxppo.planning.language.plans import parse_plan_text
from jaxppo.planning.validate import api
from tests.planning.vault import DOMAIN, PROBLEM, SOLUTION

refused = PlanVerdict.refused
VALID = PlanVerdict.executed(True, executed_steps=4, goals_reached=2, goals=2, cost=4.0)


@pytest.mark.parametrize("validator", ["builtin", "auto"])
def test_validate_plan_and_actions_agree(validator):
    assert validate_plan(DOMAIN, PROBLEM, SOLUTION.upper(), validator=validator) == VALID
    assert validate_actions(DOMAIN, PROBLEM, parse_plan_text(SOLUTION).actions, validator=validator) == VALID
    assert validate_plan(DOMAIN, PROBLEM, f"{SOLUTION} and so on", validator) == refused(PlanError.SYNTAX, 5)


def test_unknown_validator_is_an_error():
    for validate, plan in ((validate_plan, "not a plan"), (validate_actions, ())):
        with pytest.raises(ConfigError, match="validator"):
            validate(DOMAIN, PROBLEM, plan, validator="oracle")


def test_many_plans_are_judged_like_each_alone_and_val_gets_what_is_left(monkeypatch):
    """Together, within the given time; without VAL where the other validator covers all."""
    asked = []

    def by_val(cases, timeout_s):
        asked.append((list(cases), timeout_s))
        return [refused(PlanError.SYNTAX, number) for number in range(len(cases))]

    monkeypatch.setattr(api, "run_val_many", by_val)
    plan = parse_plan_text(SOLUTION).actions
    plain, beyond = (DOMAIN, PROBLEM, plan), (DOMAIN, PROBLEM.replace("(:goal", "(:constraints (and)) (:goal"), plan)
    assert validate_many([plain, plain]) == validate_many([plain, plain], "auto") == [VALID, VALID]
    assert asked == []
    judged = validate_many([beyond, plain, beyond], "auto", 2.5)
    assert judged == [refused(PlanError.SYNTAX, 0), VALID, refused(PlanError.SYNTAX, 1)]
    assert validate_many([plain], "val") == [refused(PlanError.SYNTAX, 0)]
    assert asked == [([beyond, beyond], 2.5), ([plain], 30.0)]
    with pytest.raises(UnsupportedPddlError, match="--validator val or auto"):
        validate_many([plain, beyond])


def test_threads_judge_the_same_problem():
    """A condition about all pairs of 150 objects takes a while, so that they do so at the same time."""
    domain = """(define (domain d) (:requirements :adl) (:predicates (on ?a ?b) (done)) (:action finish :parameters ()
      :precondition (forall (?a ?b) (not (on ?a ?b))) :effect (done))
      (:action put :parameters (?a ?b) :precondition (and) :effect (on ?a ?b)))"""
    objects = " ".join(f"o{number}" for number in range(150))
    problem = f"(define (problem p) (:domain d) (:objects {objects}) (:init) (:goal (done)))"
    assert not validate_actions(domain, problem, []).valid  # from here on the problem is known
    together = Barrier(8)

    def judge(_):
        together.wait()
        return validate_actions(domain, problem, [("finish",)]).valid

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(judge, range(8))) == [True] * 8
    finally:
        sys.setswitchinterval(before)
