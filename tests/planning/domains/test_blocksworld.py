"""Blocksworld: uniform states, well-formed problems, optimal plans."""

import random
from collections import Counter

import pytest

from jaxppo.errors import DataError
from jaxppo.planning import execute, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.domains.blocksworld import random_towers
from jaxppo.planning.solve.blocksworld import solve
from tests.planning.breadth_first import shortest_plan
from tests.planning.towers import all_states, towers_problem


def test_random_towers_are_uniform():
    rng = random.Random(3)
    drawn = Counter(frozenset(map(tuple, random_towers("abc", rng))) for _ in range(6_500))
    assert drawn.keys() == set(map(frozenset, all_states("abc")))
    # Each of the 13 states is binomial with mean 500 and standard deviation 21.5; five of them is 1 in 10^5.
    assert all(abs(count - 500) < 5 * 21.5 for count in drawn.values())


@pytest.mark.parametrize("n_blocks", [2, 3, 6, 16])
def test_generate_problem_is_complete_and_solvable(n_blocks):
    rng = random.Random(n_blocks)
    for _ in range(10):
        problem = parse_problem(BLOCKSWORLD.generate_problem(n_blocks, rng, "p"), parse_domain(BLOCKSWORLD.pddl))
        assert len(problem.objects) == n_blocks and set(problem.objects) <= set(BLOCKSWORLD.names)
        goal = {literal.atom for literal in problem.goal}
        assert sorted(atom[1] for atom in goal) == sorted(problem.objects)
        assert not goal <= problem.init
        assert ("handempty",) in problem.init
        assert execute(problem, solve(problem)).valid


@pytest.mark.parametrize("blocks", ["ab", "abc", pytest.param("abcd", marks=pytest.mark.full)])
def test_solve_is_optimal(blocks):
    """Starts are taken once per shape, for others are renamings."""
    shapes = {tuple(sorted(map(len, start))): start for start in all_states(blocks)}
    for start in shapes.values():
        for goal in all_states(blocks):
            problem = towers_problem(start, goal)
            plan = solve(problem)
            assert execute(problem, plan).valid and len(plan) == len(shortest_plan(problem))


@pytest.mark.parametrize(
    ("init", "goal", "named"),
    [
        ("(holding a) (ontable b)", "(ontable a) (ontable b)", r"init.*\(on a "),
        ("(ontable a) (ontable b)", "(on a b)", r"goal.*\(on b "),
        ("(ontable a) (ontable b)", "(on a b) (on b a)", "goal.*cycle"),
    ],
)
def test_solve_refuses_incomplete_or_impossible_problems(init, goal, named):
    text = f"(define (problem p) (:domain b) (:objects a b) (:init {init} (clear b) (clear a)) (:goal (and {goal})))"
    with pytest.raises(DataError, match=named):
        solve(parse_problem(text, parse_domain(BLOCKSWORLD.pddl)))
