"""Every domain's generator: well-formed, consistent, solvable, varied problems that depend on the seed alone."""

import random
from functools import cache
from itertools import product

import pytest

from jaxppo.errors import ConfigError
from jaxppo.planning import PlanError, canonical_form, execute, parse_domain, parse_problem, run_val_many
from jaxppo.planning.domains import DOMAINS
from tests.planning.breadth_first import shortest_plan
from tests.planning.val_oracle import needs_val
from tests.planning.world_checks import CHECKS, World

NEW = sorted(DOMAINS.keys() - {"blocksworld"})


def draw(domain, size, seed):
    return DOMAINS[domain].generate_problem(size, random.Random(f"{domain} {size} {seed}"), "p")


def parse(domain, text):
    return parse_problem(text, parse_domain(DOMAINS[domain].pddl))


def some_sizes(domain):
    sizes = DOMAINS[domain].sizes
    return sizes[0], sizes[len(sizes) // 2], sizes[-1]


def check_problem(domain, text):
    problem = parse(domain, text)
    goal = [literal.atom for literal in problem.goal]
    assert set(problem.objects) <= set(DOMAINS[domain].names)
    assert goal and len(set(goal)) == len(goal) and all(literal.positive for literal in problem.goal)
    assert not set(goal) <= problem.init
    assert len(problem.init_order) == len(set(problem.init_order)) == text.partition("(:goal")[0].count("(") - 5
    pools = DOMAINS[domain].pools
    for name in problem.objects.keys() - problem.domain.constants.keys():
        kind = problem.objects[name][0]
        assert kind not in pools or name in pools[kind]
        assert (kind in pools) is problem.domain.typed
    CHECKS[domain](World(problem))


@pytest.mark.parametrize("domain", DOMAINS)
def test_names_are_single_words_that_nothing_else_has_and_sizes_have_a_range(domain):
    module = DOMAINS[domain]
    parsed = parse_domain(module.pddl)
    assert parsed.name == domain == module.name
    pool_names = [name for pool in module.pools.values() for name in pool]
    assert len(set(module.names)) == len(module.names) < 80
    assert all(name == name.lower() and name.isalnum() for name in module.names)
    assert set(module.names) == {*pool_names, *parsed.constants}
    assert not {*parsed.predicates, *parsed.actions, *parsed.types} & set(module.names)
    if parsed.typed:
        assert module.pools.keys() <= parsed.types.keys()
    assert {*module.train_sizes, *module.larger_sizes} <= {*module.sizes}
    assert module.train_sizes[0] <= module.train_sizes[-1] + 1 == module.larger_sizes[0] <= module.larger_sizes[-1]
    for size in (-1, module.sizes[0] - 1, module.sizes[-1] + 1):
        with pytest.raises(ConfigError, match=f"sizes: .*{module.name}"):
            draw(domain, size, 0)


@pytest.mark.parametrize("n_seeds", [2, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("domain", NEW)
def test_problems_are_consistent(domain, n_seeds):
    for size, seed in product(DOMAINS[domain].sizes, range(n_seeds)):
        check_problem(domain, draw(domain, size, seed))


@cache
def solved(domain):
    text = draw(domain, DOMAINS[domain].sizes[0], 0)
    return text, shortest_plan(parse(domain, text))


@pytest.mark.parametrize("domain", NEW)
def test_problems_vary_beyond_names_and_order_and_the_smallest_are_solvable(domain):
    problems = [parse(domain, draw(domain, some_sizes(domain)[1], seed)) for seed in range(10)]
    assert len({canonical_form(problem) for problem in problems}) == 10
    assert len({tuple(problem.objects) for problem in problems}) == 10
    assert len({len(problem.goal) for problem in problems}) > 1
    text, plan = solved(domain)
    assert plan and execute(parse(domain, text), plan).valid
    assert not execute(parse(domain, text), plan[:-1]).valid


@needs_val
@pytest.mark.parametrize("n_seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_val_accepts_domains_problems_and_plans(n_seeds):
    """VAL raises where it cannot read a domain or problem; no goal holds at the start."""
    drawn = []
    for name in NEW:
        sizes = DOMAINS[name].sizes if n_seeds > 1 else some_sizes(name)[-1:]
        drawn += [(DOMAINS[name].pddl, draw(name, size, seed), ()) for size in sizes for seed in range(n_seeds)]
    assert {verdict.error for verdict in run_val_many(drawn)} == {PlanError.GOAL_NOT_REACHED}
    planned = [(DOMAINS[name].pddl, *solved(name)) for name in NEW]
    assert all(verdict.valid for verdict in run_val_many(planned))
