"""The built-in search: plans are valid, shortest where asked for, the same everywhere; what has no plan is said so."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import permutations, product

import pytest

from jaxppo.planning import UnsupportedPddlError, execute, format_action, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD, DOMAINS
from jaxppo.planning.language.parse import Domain, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.estimates import INFINITY, landmark_cut, relaxed_plan
from jaxppo.planning.solve.reachability import reachable_steps
from jaxppo.planning.solve.search import SearchLimitError, solve
from jaxppo.planning.solve.strips import compile_task
from tests.planning.breadth_first import all_moves, shortest_plan
from tests.planning.families import FAMILIES, draw_cases
from tests.planning.towers import all_states, towers_problem

# Balls to carry between rooms with two grippers; one ball is glued.
GRIPPER = """(define (domain gripper) (:requirements :typing :negative-preconditions)
  (:types room ball gripper) (:constants left right - gripper)
  (:predicates (robot ?r - room) (at ?b - ball ?r - room) (held ?b - ball ?g - gripper) (busy ?g - gripper)
    (glued ?b - ball))
  (:action move :parameters (?a ?b - room) :precondition (and (robot ?a) (not (robot ?b)))
    :effect (and (robot ?b) (not (robot ?a))))
  (:action pick :parameters (?b - ball ?r - room ?g - gripper)
    :precondition (and (robot ?r) (at ?b ?r) (not (busy ?g)) (not (glued ?b)))
    :effect (and (held ?b ?g) (busy ?g) (not (at ?b ?r))))
  (:action drop :parameters (?b - ball ?r - room ?g - gripper) :precondition (and (robot ?r) (held ?b ?g))
    :effect (and (at ?b ?r) (not (held ?b ?g)) (not (busy ?g)))))"""


def gripper_problem(n_balls: int, goal: str, more: str = "") -> Problem:
    balls = [f"b{number}" for number in range(n_balls)]
    init = " ".join(f"(at {ball} here)" for ball in balls)
    text = f"""(define (problem carry) (:domain gripper) (:objects here there - room {" ".join(balls)} - ball)
      (:init (robot here) {init} {more}) (:goal {goal}))"""
    return parse_problem(text, parse_domain(GRIPPER))


def blocksworld_problem(n_blocks: int, rng: random.Random) -> Problem:
    return parse_problem(BLOCKSWORLD.generate_problem(n_blocks, rng, "p"), parse_domain(BLOCKSWORLD.pddl))


def with_far_goal(text: str, domain: Domain, rng: random.Random) -> Problem:
    """The problem with a goal from the end of a random walk, and at times with an atom that may never hold."""
    problem = parse_problem(text, domain)
    moves, facts = list(all_moves(problem)), problem.init
    for _ in range(15):
        possible = [move for move in moves if move.is_possible(facts)]
        if possible:
            facts = rng.choice(possible).after(facts)
    changed = [format_action(atom) for atom in sorted(facts - problem.init)]
    changed += [f"(not {format_action(atom)})" for atom in sorted(problem.init - facts)]
    if rng.random() < 0.3:
        changed.append(format_action(rng.choice(sorted(atom for move in moves for atom in move.add))))
    goal = " ".join(rng.sample(changed, min(len(changed), 5)))
    return parse_problem(f"{text[: text.index('(:goal')]} (:goal (and {goal})))", domain)


def draw_problems(source: str, rng: random.Random, n: int) -> Iterator[Problem]:
    if source in FAMILIES:
        for domain, text, _ in draw_cases(source, rng, n):
            yield with_far_goal(text, parse_domain(domain), rng)
    else:
        domain = DOMAINS[source]
        for number in range(n):
            size = domain.train_sizes[number % 2]
            yield parse_problem(domain.generate_problem(size, rng, "p"), parse_domain(domain.pddl))


SOURCES = ["blocksworld", "typing and constants", "either, equality, negation"]
SOURCES += [
    pytest.param(name, marks=pytest.mark.full) for name in ("ferry", "gripper", "miconic", "logistics", "driverlog")
]


@pytest.mark.parametrize("source", SOURCES)
def test_solve_agrees_with_breadth_first_search(source):
    lengths = []
    for problem in draw_problems(source, random.Random(3), 8):
        plan, shortest = solve(problem), solve(problem, optimal=True)
        if plan is None or shortest is None:
            assert plan is None and shortest is None
        else:
            least = len(shortest)
            assert execute(problem, plan).valid and execute(problem, shortest).valid and len(plan) >= least
            assert least == len(solve(problem, optimal=True, max_length=least) or ())
            assert least == 0 or solve(problem, optimal=True, max_length=least - 1) is None
            lengths.append(least)
        with suppress(OverflowError):
            expected = shortest_plan(problem, most_states=1500 if source in FAMILIES else 200_000)
            assert (expected is None) is (shortest is None) and len(expected or ()) == len(shortest or ())
    assert len(lengths) >= 5 and max(lengths) >= 5


def test_solve_takes_quantified_and_negated_conjunctions():
    domain = parse_domain("""(define (domain lamps) (:requirements :adl) (:predicates (lit ?x) (broken ?x))
      (:action light :parameters (?x) :precondition (and (not (lit ?x)) (forall (?y) (not (broken ?y))))
        :effect (lit ?x))
      (:action mend :parameters (?x) :precondition (broken ?x) :effect (forall (?y) (not (broken ?y)))))""")
    objects = "(:objects o0 o1 o2) (:init (lit o0) (broken o1))"
    goal = "(:goal (forall (?x) (and (lit ?x) (not (broken ?x)))))"
    problem = parse_problem(f"(define (problem p) (:domain lamps) {objects} {goal})", domain)
    plan = solve(problem, optimal=True)
    assert plan is not None and execute(problem, plan).valid and len(plan) == 3


def all_there(n_balls: int) -> str:
    return f"(and {' '.join(f'(at b{number} there)' for number in range(n_balls))})"


@pytest.mark.parametrize(
    ("n_balls", "goal", "more", "length"),
    [
        (4, all_there(4), "", 11),  # two trips of 2 + 1 + 2, and one way back
        (1, "(and (not (at b0 here)) (not (busy left)) (not (busy right)) (robot here))", "", 4),
        (1, "(not (busy left))", "", 0),
        (1, "(at b0 there)", "(glued b0)", None),  # the only step that could help is impossible for good
        (1, "(and (robot here) (robot there))", "", None),  # reachable one by one: every state has to be seen
        (1, "(and (at b0 here) (not (at b0 here)))", "", None),
        (1, "(glued b0)", "", None),  # nothing adds it
        (1, "(not (glued b0))", "(glued b0)", None),  # nothing deletes it
    ],
)
def test_solve_finds_shortest_plans_or_says_that_there_is_none(n_balls, goal, more, length):
    problem = gripper_problem(n_balls, goal, more)
    plan, shortest = solve(problem), solve(problem, optimal=True)
    if length is None:
        assert plan is None and shortest is None
    else:
        assert plan is not None and execute(problem, plan).valid
        assert shortest is not None and execute(problem, shortest).valid and len(shortest) == length


def test_solve_leaves_out_detours():
    assert solve(gripper_problem(1, "(robot there)")) == (("move", "here", "there"),)
    assert len(solve(gripper_problem(8, all_there(4))) or ()) <= 15


@pytest.mark.parametrize("optimal", [False, True])
def test_solve_stops_at_its_limits(optimal, monkeypatch):
    with pytest.raises(SearchLimitError, match="5"):
        solve(gripper_problem(6, all_there(6)), optimal=optimal, max_states=5)
    monkeypatch.setattr("jaxppo.planning.solve.reachability.MAX_BINDINGS", 100)
    with pytest.raises(SearchLimitError, match=r"carry.*100"):
        solve(gripper_problem(30, "(robot there)"), optimal=optimal)


SWITCH = """(define (domain switch) (:requirements :adl :fluents :derived-predicates)
  (:predicates (on) (done) (ready)) (:functions (n) (total-cost))
  {derived} (:action press :parameters () :precondition {condition} :effect (and (done) {effect})))"""


def switch_problem(**parts: str) -> Problem:
    texts = {"derived": "", "condition": "(and)", "effect": "", "goal": "(done)", "metric": "", **parts}
    init = "(on) (= (n) 0) (= (total-cost) 0)"
    text = f"(define (problem p) (:domain switch) (:init {init}) (:goal {texts['goal']}) {texts['metric']})"
    return parse_problem(text, parse_domain(SWITCH.format(**texts)))


@pytest.mark.parametrize(
    ("parts", "optimal", "feature"),
    [
        ({"derived": "(:derived (ready) (on))"}, False, "derived predicates"),
        ({"condition": "(> (n) 0)"}, False, "numbers"),
        ({"condition": "(or (done) (on))", "effect": "(not (on))"}, False, "precondition.*'press'"),
        ({"effect": "(when (on) (not (on)))"}, False, "conditional effects.*'press'"),
        ({"goal": "(or (done) (on))", "effect": "(not (on))"}, False, "goal"),
        ({"effect": "(increase (total-cost) 2)", "metric": "(:metric minimize (total-cost))"}, True, ":metric"),
    ],
)
def test_solve_refuses_by_name(parts, optimal, feature):
    with pytest.raises(UnsupportedPddlError, match=feature):
        solve(switch_problem(**parts), optimal=optimal)


def test_solve_ignores_costs():
    assert solve(switch_problem(effect="(increase (total-cost) 2)"), optimal=True) == (("press",),)


def test_landmark_cut_is_admissible_everywhere_and_relaxed_plans_see_the_goal():
    for start, goal in product(all_states("abc"), repeat=2):
        problem = towers_problem(start, goal)
        task = compile_task(problem, reachable_steps(problem))
        assert task is not None
        steps, estimate = len(shortest_plan(problem) or ()), landmark_cut(task, task.start)[0]
        assert estimate <= steps and (estimate > 0) is (steps > 0)
        relaxed = relaxed_plan(task, task.start)[0]
        assert (relaxed > 0) is (steps > 0) and relaxed < INFINITY


def test_solve_does_not_depend_on_the_order_of_facts():
    atoms = ["(on a b)", "(ontable b)", "(ontable c)", "(clear a)", "(clear c)", "(handempty)"]
    plans = set()
    for number, objects in enumerate(permutations("abc")):
        init = " ".join(random.Random(number).sample(atoms, 6))
        text = f"""(define (problem p) (:domain blocksworld) (:objects {" ".join(objects)}) (:init {init})
          (:goal (and (on b c) (on c a))))"""
        plans.add(solve(parse_problem(text, parse_domain(BLOCKSWORLD.pddl))))
    assert len(plans) == 1


def test_version_grows_with_changes_of_plans():
    """A failure means that plans have changed: make `search.VERSION` larger and put the new digest here."""
    rng = random.Random(0)
    plans: list[tuple[Action, ...]] = []
    for n_blocks in (4, 6, 9):
        problem = blocksworld_problem(n_blocks, rng)
        plans.append(solve(problem) or ())
        plans.append(solve(problem, optimal=True) or () if n_blocks < 6 else ())
    plans.append(solve(gripper_problem(5, all_there(5))) or ())
    text = "\n".join(" ".join(map(format_action, plan)) for plan in plans)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "cf64e276620c8328"
