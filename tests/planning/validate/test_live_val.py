"""The built-in validator and VAL on fresh random problems and plans of each family of features."""

import random
from collections import Counter

import pytest

from jaxppo.planning import PlanError, execute, parse_domain, parse_plan_text, parse_problem, run_val_many
from tests.planning.families import FAMILIES, draw_cases
from tests.planning.random_domains import draw_random_case
from tests.planning.random_numbers import draw_numeric_cases
from tests.planning.val_oracle import ask_val_often, needs_val

# Of a kind: at least so many of ten cases.
LEAST = {None: 2, PlanError.GOAL_NOT_REACHED: 0.5, PlanError.PRECONDITION: 1}
FULL, SLOW = pytest.mark.full, pytest.mark.slow
SIZES = [100, pytest.param(200, marks=FULL), pytest.param(2000, marks=SLOW)]


@needs_val
@pytest.mark.parametrize("n_cases", SIZES)
@pytest.mark.parametrize("family", ["blocksworld", *FAMILIES])
def test_builtin_agrees_with_val(family, n_cases):
    compare_with_val(list(draw_cases(family, random.Random(f"{family} {n_cases}"), n_cases)))


@needs_val
@pytest.mark.parametrize("n_cases", SIZES)
def test_builtin_agrees_with_val_on_random_domains(n_cases):
    compare_with_val([draw_random_case(random.Random(f"{n_cases} {number}")) for number in range(n_cases)])


@needs_val
@pytest.mark.parametrize("n_cases", [1_000, pytest.param(20_000, marks=FULL), pytest.param(200_000, marks=SLOW)])
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
        if theirs.error is PlanError.PRECONDITION and theirs.failed_step is not None:
            assert ours.failed_step == theirs.failed_step, (domain, problem, plan)
            seen["failed step compared"] += 1
        seen[ours.error] += 1
    assert all(10 * seen[kind] >= least * len(cases) for kind, least in LEAST.items()), seen
    assert seen["failed step compared"] >= seen[PlanError.PRECONDITION] // 2, seen
