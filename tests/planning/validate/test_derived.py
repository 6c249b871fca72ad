"""Derived predicates: tables of verdicts, each checked against VAL as well, and the order of rules."""

from itertools import pairwise

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning import PlanError, execute, parse_domain, parse_problem
from jaxppo.planning.transform.restart import problem_after
from tests.planning.val_oracle import assert_not_valid_for_val, check_both, check_refused, judge

DOMAIN = """(define (domain graphs) (:requirements :adl :derived-predicates :fluents)
  (:predicates (p) (g) (q ?x) (r ?x ?y) (way ?x ?y) (good ?x) (bad ?x) (any) (fine))
  (:functions (h ?x))
  {rules}
  (:action mark :parameters (?x) :precondition () :effect (q ?x))
  (:action go :parameters (?x) :precondition {precondition} :effect {effect}))"""
PROBLEM = "(define (problem few) (:domain graphs) (:objects a b c d) (:init {init}) (:goal {goal}))"
GOOD = "(:derived (good ?x) (q ?x))"
BAD = "(:derived (bad ?x) (not (good ?x)))"
WAY = "(:derived (way ?x ?y) (or (r ?x ?y) (exists (?z) (and (r ?x ?z) (way ?z ?y)))))"
TWO_HALVES = "(:derived (way ?x ?y) (or (r ?x ?y) (exists (?z) (and (way ?x ?z) (way ?z ?y)))))"
SAFE = "(:derived (good ?x) (forall (?y) (imply (r ?x ?y) (good ?y))))"
OVER_THREE = "(:derived (good ?x) (> (h ?x) 3))"
ALL_GOOD = f"{BAD} {GOOD} (:derived (fine) (not (exists (?x) (bad ?x))))"
REACHED = f"{GOOD} {WAY} (:derived (fine) (forall (?x) (imply (good ?x) (way a ?x))))"


def graphs(rules, precondition="()", effect="(g)", init="(p)", goal="(g)") -> tuple[str, str]:
    domain = DOMAIN.format(rules=rules, precondition=precondition, effect=effect)
    return domain, PROBLEM.format(init=init, goal=goal)


@pytest.mark.parametrize(
    ("rules", "init", "precondition", "expected"),
    [
        (GOOD, "(q a)", "(good ?x)", "valid"),
        (GOOD, "(q b)", "(good ?x)", 1),
        (GOOD, "(q a)", "(not (good ?x))", 1),
        (GOOD, "(q b)", "(not (good ?x))", "valid"),
        (GOOD, "(q b)", "(exists (?y) (good ?y))", "valid"),
        (GOOD, "(q b)", "(forall (?y) (good ?y))", 1),
        # What the initial state says about a derived predicate does not count.
        (GOOD, "(good a)", "(good ?x)", 1),
        # Several rules, other names of variables, no variables.
        (f"{GOOD} (:derived (good ?y) (r ?y ?y))", "(r a a)", "(good ?x)", "valid"),
        (f"{GOOD} (:derived (good ?y) (r ?y ?y))", "(r a b)", "(good ?x)", 1),
        ("(:derived (any) (exists (?x) (q ?x)))", "(q c)", "(any)", "valid"),
        # Negation between strata, in either order of the text.
        (f"{GOOD} {BAD}", "(q a)", "(bad ?x)", 1),
        (f"{BAD} {GOOD}", "(q b)", "(bad ?x)", "valid"),
        (ALL_GOOD, "(q a) (q b) (q c)", "(fine)", 1),
        (ALL_GOOD, "(q a) (q b) (q c) (q d)", "(fine)", "valid"),
        (REACHED, "(q c) (r a c)", "(fine)", "valid"),
        (REACHED, "(q c) (r c a)", "(fine)", 1),
        # Recursion: chains, cycles, two recursive calls.
        (WAY, "(r a b) (r b c) (r c d)", "(way ?x d)", "valid"),
        (WAY, "(r a b) (r b a) (r c d)", "(not (way ?x c))", "valid"),
        (TWO_HALVES, "(r a b) (r b c) (r c d)", "(way ?x d)", "valid"),
        (SAFE, "(r a b) (r b c)", "(good ?x)", "valid"),
        # Numbers in rules; only (h a) has a value.
        (OVER_THREE, "(= (h a) 5)", "(good ?x)", "valid"),
        (OVER_THREE, "(= (h a) 2)", "(good ?x)", 1),
        (OVER_THREE, "(= (h a) 5)", "(exists (?y) (good ?y))", "valid"),
        (OVER_THREE, "(= (h a) 2)", "(not (good b))", 1),
    ],
)
def test_preconditions(rules, init, precondition, expected):
    check_both(*graphs(rules, precondition, init=init), "(go a)", expected)


@pytest.mark.parametrize(
    ("rules", "effect", "goal", "plan", "expected"),
    [
        (GOOD, "(q ?x)", "(good a)", "(go a)", "valid"),
        (GOOD, "(not (q ?x))", "(good b)", "(go b)", "missed"),
        # Conditions of effects read what followed before the step.
        (GOOD, "(and (q ?x) (when (good ?x) (g)))", "(g)", "(go a)", "missed"),
        (GOOD, "(and (q ?x) (when (good ?x) (g)))", "(g)", "(go a) (go a)", "valid"),
        (f"{GOOD} {BAD}", "(and (q ?x) (when (bad ?x) (g)))", "(g)", "(go a)", "valid"),
        (GOOD, "(forall (?y) (when (good ?y) (r ?x ?y)))", "(and (r a b) (not (r a a)))", "(go a)", "valid"),
        (WAY, "(forall (?y) (when (q ?y) (r ?x ?y)))", "(way c b)", "(go a) (go c)", "valid"),
        (f"{GOOD} {BAD}", "(q ?x)", "(and (bad c) (not (bad a)))", "(go a)", "valid"),
    ],
)
def test_effects_and_goals(rules, effect, goal, plan, expected):
    check_both(*graphs(rules, effect=effect, goal=goal, init="(p) (q b)"), plan, expected)


@pytest.mark.parametrize(
    ("plan", "expected"), [("(go a) (mark a) (go a)", 3), ("(go a) (mark b) (go a)", "valid"), ("(mark a) (go a)", 2)]
)
def test_rules_are_applied_anew_after_every_step(plan, expected):
    check_both(*graphs(GOOD, "(not (good ?x))"), plan, expected)


def test_failed_conditions_name_derived_atoms():
    texts = graphs(f"{GOOD} {BAD}", "(and (p) (not (bad ?x)))", init="(p) (q a)", goal="(and (g) (good b))")
    verdict = judge(*texts, "(go a) (go c)")
    assert (verdict.failed_step, verdict.failed_condition, verdict.executed_steps) == (2, "(not (bad c))", 1)
    assert (verdict.goals_reached, verdict.goals) == (1, 2)
    verdict = judge(*texts, "(go a)")
    assert (verdict.error, verdict.failed_condition) == (PlanError.GOAL_NOT_REACHED, "(good b)")


@pytest.mark.parametrize(
    "rules",
    [
        "(:derived (good ?x) (not (good ?x)))",
        f"{BAD} (:derived (good ?x) (bad ?x))",
        "(:derived (good ?x) (imply (bad ?x) (p))) (:derived (bad ?x) (good ?x))",
        f"{BAD} (:derived (fine) (exists (?x) (bad ?x))) (:derived (good ?x) (or (q ?x) (fine)))",
    ],
)
def test_rules_that_depend_on_their_own_negation_are_an_error(rules):
    with pytest.raises(PddlError, match=r"^<domain>:4: "):
        parse_domain(graphs(rules)[0])


def test_recursive_rules_that_compare_numbers_are_an_error():
    """VAL gets them wrong."""
    rules = WAY.replace("(r ?x ?z) (way", "(> (h ?z) 0) (r ?x ?z) (way")
    with pytest.raises(PddlError, match="'way'"):
        parse_domain(graphs(rules)[0])
    values = " ".join(f"(= (h {name}) 1)" for name in "abcd")
    assert_not_valid_for_val(*graphs(rules, "(way a b)", init=f"(r a b) (r b a) {values}"))
    apart = WAY.replace("(r ?x ?z) (way", "(r ?x ?z) (good ?z) (way")
    parse_domain(graphs(f"{apart} (:derived (good ?x) (> (h ?x) 0))")[0])


@pytest.mark.parametrize(
    "parts",
    [
        {"rules": "(:derived (good ?x) ())"},
        {"rules": "(:derived (good ?x))"},
        {"rules": "(:derived (good a) (q a))"},
        {"rules": "(:derived (good ?x) (q ?z))", "precondition": "(good ?x)"},
        {"rules": "(:derived (way ?x ?x) (q ?x))", "precondition": "(way ?x ?x)"},
        {"rules": GOOD, "effect": "(and (g) (good a))"},
        {"rules": GOOD, "effect": "(and (g) (not (good ?x)))"},
    ],
    ids=lambda parts: " ".join(parts.values()),
)
def test_what_val_cannot_read_is_an_error(parts):
    check_refused(*graphs(**parts, init="(p) (q a)"))


TYPED = """(define (domain d) (:requirements :typing :derived-predicates) (:types t u)
  (:predicates (q ?x - t) (good ?x - t)) (:derived (good {parameter}) (exists (?y - t) (q ?y)))
  (:action go :parameters (?x - t) :precondition (good ?x) :effect (q ?x)))"""


@pytest.mark.parametrize(
    "domain",
    [
        graphs("(:derived (fresh ?x) (q ?x))")[0],
        graphs("(:derived (good) (p))")[0],
        graphs("(:derived good (p))")[0],
        TYPED.format(parameter="?x"),
        TYPED.format(parameter="?x - u"),
        TYPED.format(parameter="?x - (either t u)"),
    ],
)
def test_rules_define_predicates_with_arguments_as_declared(domain):
    with pytest.raises(PddlError, match=r"^<domain>:[24]: expected"):
        parse_domain(domain)


def test_rules_may_be_typed():
    problem = "(define (problem p) (:domain d) (:objects a b - t c - u) (:init (q b)) (:goal (q a)))"
    check_both(TYPED.format(parameter="?y - t"), problem, "(go a)", "valid")


def test_long_chains_of_rules_do_not_overflow():
    names = [f"n{number}" for number in range(120)]
    edges = " ".join(f"(r {x} {y})" for x, y in pairwise(names))
    text = f"(define (problem p) (:domain d) (:objects {' '.join(names)}) (:init {edges}) (:goal (way n0 n119)))"
    problem = parse_problem(text, parse_domain(graphs(WAY, effect="(r ?x ?x)")[0]))
    assert execute(problem, ()).valid
    assert execute(problem, (("go", "n7"),) * 20).valid


def chain_of_rules(condition: str, length: int) -> str:
    """A domain whose derived predicates each depend on the next."""
    rules = " ".join(f"(:derived (d{n}) {condition.format(f'(d{n + 1})')})" for n in range(length))
    names = " ".join(f"(d{n})" for n in range(length + 1))
    return f"""(define (domain d) (:requirements :adl :derived-predicates :fluents) (:predicates (p) {names})
      (:functions (f)) {rules} (:derived (d{length}) (p)) (:action a :parameters () :precondition (p) :effect (p)))"""


@pytest.mark.parametrize("condition", ["(not {})", "(and (< (f) 1) {})"])
def test_a_chain_of_rules_is_read(condition):
    assert len(parse_domain(chain_of_rules(condition, 100)).rules) == 101


@pytest.mark.full
def test_a_problem_after_a_step_does_not_depend_on_how_much_work_its_goal_is():
    """Rules with some hundred thousand parts, which the first state already needs."""
    names = [f"way{number}" for number in range(4)]
    rules = " ".join(TWO_HALVES.replace("way", name) for name in names)
    domain = f"""(define (domain d) (:predicates (r ?x ?y) {" ".join(f"({name} ?x ?y)" for name in names)}) {rules}
      (:action cut :parameters (?x) :precondition (r ?x ?x) :effect (not (r ?x ?x))))"""
    objects = " ".join(f"n{number}" for number in range(29))
    problem = f"""(define (problem p) (:domain d) (:objects {objects}) (:init (r n0 n1) (r n0 n0))
      (:goal (and {" ".join(f"({name} n0 n1)" for name in names)})))"""
    later = parse_problem(problem_after(problem, domain, [("cut", "n0")]), parse_domain(domain))
    assert later.init == {("r", "n0", "n1")}
