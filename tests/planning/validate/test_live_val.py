"""The built-in validator and VAL on fresh random problems, plans and texts."""

import random
from collections import Counter

import pytest

from jaxppo.planning import (
    PlanError,
    execute,
    parse_domain,
    parse_plan_text,
    parse_problem,
    run_val_many,
    validate_plan,
)
from tests.planning import kiln
from tests.planning.families import FAMILIES, draw_cases
from tests.planning.random_domains import draw_random_case
from tests.planning.random_numbers import draw_numeric_cases
from tests.planning.val_oracle import ask_val, ask_val_often, essence, needs_val

# Of a kind: at least so many of ten cases.
LEAST = {None: 2, PlanError.GOAL_NOT_REACHED: 0.5, PlanError.PRECONDITION: 1}
FULL, SLOW = pytest.mark.full, pytest.mark.slow
SIZES = [60, pytest.param(90, marks=FULL), pytest.param(2000, marks=SLOW)]


@needs_val
@pytest.mark.parametrize("n_cases", SIZES)
@pytest.mark.parametrize("family", ["blocksworld", *FAMILIES, "random domains"])
def test_builtin_agrees_with_val(family, n_cases):
    if family == "random domains":
        compare_with_val([draw_random_case(random.Random(f"{n_cases} {number}")) for number in range(n_cases)])
    else:
        compare_with_val(list(draw_cases(family, random.Random(f"{family} {n_cases}"), n_cases)))


@needs_val
@pytest.mark.parametrize("n_cases", [1_000, pytest.param(4_000, marks=FULL), pytest.param(200_000, marks=SLOW)])
def test_numbers_are_computed_and_compared_as_in_val(n_cases):
    n_valid = 0
    for number in range(n_cases // 100):
        cases = draw_numeric_cases(random.Random(f"{n_cases} {number}"), 100)
        problem = parse_problem(cases.problem, parse_domain(cases.domain))
        ours = [execute(problem, parse_plan_text(plan).actions).valid for plan in cases.plans]
        theirs = ask_val_often(*cases)
        assert ours == theirs, [case for case in zip(ours, theirs, cases.plans, strict=True) if case[0] != case[1]]
        n_valid += sum(ours)
    assert 0.3 < n_valid / n_cases < 0.7


def compare_with_val(cases):
    """Hold our verdicts against VAL's, and see that there were plans of every kind."""
    seen = Counter()
    for (domain, problem, plan), theirs in zip(cases, run_val_many(cases), strict=True):
        ours = execute(parse_problem(problem, parse_domain(domain)), plan)
        assert (ours.valid, ours.executable) == (theirs.valid, theirs.executable), (domain, problem, plan)
        contradicts_itself = theirs.error is PlanError.PRECONDITION and theirs.failed_step is None
        # Changes of a number that contradict each other, or a number without a value, on which VAL gives no verdict.
        if contradicts_itself or theirs.error is PlanError.VALIDATOR_CRASH:
            assert ours.error is PlanError.PRECONDITION, (domain, problem, plan)
        else:
            assert essence(ours) == essence(theirs), (domain, problem, plan)
            seen["failed step compared"] += ours.error is PlanError.PRECONDITION
        seen[ours.error] += 1
    assert all(10 * seen[kind] >= least * len(cases) for kind, least in LEAST.items()), seen
    assert seen["failed step compared"] >= seen[PlanError.PRECONDITION] // 2, seen


# An object that is called like a header of VAL's, and an action that does nothing.
PLAIN = """(define (domain d) (:predicates (q ?x))
  (:action go :parameters (?x) :precondition () :effect (q ?x))
  (:action nop :parameters () :precondition () :effect (and)))"""
PLAIN_PROBLEM = "(define (problem p) (:domain d) (:objects a time) (:init) (:goal (q a)))"
STEPS = ["(go a)", "(nop)", "(go\ntime)", "(GO A)"]
NOISE = [*"();-,:7é\x0c\x00 \n\r\t", "-5", "1:", "[1]", "time", "go", ";a", ";7", ";;", "(go)", "()", "; b\n", "\n;"]
TIMED_STEPS = ["0: (light o)", "1.0: (fire a o) [5.0]", "7: (fire b o) [5]"]
TIMED_NOISE = ["(light o)", "\n", "0.5:", "[5]", "-1: (light o)", "1e1: (light o)", "; x\n", ";", "time 3", "\ntime"]
TIMED_NOISE += ["7: (fire b o)", ".5: (light o)", "0: (light o) [2]"]


def plain_text(rng):
    return "".join(rng.choices(STEPS, k=2) + rng.choices(STEPS + NOISE, k=rng.randint(0, 3)))


def timed_text(rng):
    pieces = TIMED_STEPS + rng.choices(TIMED_STEPS + TIMED_NOISE, k=rng.randint(0, 2))
    return rng.choice([" ", "\n"]).join(rng.sample(pieces, len(pieces)))


@needs_val
@pytest.mark.parametrize("n_texts", [150, pytest.param(3_000, marks=SLOW)])
@pytest.mark.parametrize(
    ("draw_text", "domain", "problem", "validator"),
    [(plain_text, PLAIN, PLAIN_PROBLEM, "builtin"), (timed_text, kiln.DOMAIN, kiln.PROBLEM, "val")],
)
def test_no_text_is_valid_here_that_is_not_for_val(draw_text, domain, problem, validator, n_texts):
    rng = random.Random(n_texts)
    verdicts = set()
    for number in range(n_texts):
        text = draw_text(rng)
        here = validate_plan(domain, problem, text, validator).valid
        if here or number < 50:  # of the others a few are asked, to see that there are all kinds
            for_val = ask_val(domain, problem, text).valid
            assert for_val or not here, repr(text)
            verdicts.add((for_val, here))
    assert verdicts == {(True, True), (True, False), (False, False)}
