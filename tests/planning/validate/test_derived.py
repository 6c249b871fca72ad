"""Derived predicates: tables of verdicts, each checked against VAL as well, and the order of rules."""

from itertools import pairwise

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning import PlanError, execute, parse_domain, parse_plan_text, parse_problem
from jaxppo.planning.language.parse import UnsupportedPddlError
from tests.planning.cpu_time import within
from tests.planning.val_oracle import ask_val, check_both, needs_val

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
        (GOOD, "(good a)", "(not (good ?x))", "valid"),
        # Several rules, other names of variables, no variables.
        (f"{GOOD} (:derived (good ?y) (r ?y ?y))", "(r a a)", "(good ?x)", "valid"),
        (f"{GOOD} (:derived (good ?y) (r ?y ?y))", "(r a b)", "(good ?x)", 1),
        ("(:derived (any) (exists (?x) (q ?x)))", "(q c)", "(any)", "valid"),
        ("(:derived (any) (exists (?x) (q ?x)))", "(p)", "(any)", 1),
        # Negation between strata, in either order of the text.
        (f"{GOOD} {BAD}", "(q a)", "(bad ?x)", 1),
        (f"{BAD} {GOOD}", "(q b)", "(bad ?x)", "valid"),
        (f"{BAD} {GOOD} (:derived (fine) (not (exists (?x) (bad ?x))))", "(q a) (q b) (q c)", "(fine)", 1),
        (f"{BAD} {GOOD} (:derived (fine) (not (exists (?x) (bad ?x))))", "(q a) (q b) (q c) (q d)", "(fine)", "valid"),
        (
            f"{GOOD} {WAY} (:derived (fine) (forall (?x) (imply (good ?x) (way a ?x))))",
            "(q c) (r a c)",
            "(fine)",
            "valid",
        ),
        (f"{GOOD} {WAY} (:derived (fine) (forall (?x) (imply (good ?x) (way a ?x))))", "(q c) (r c a)", "(fine)", 1),
        # Recursion: chains, cycles, two recursive calls.
        (WAY, "(r a b) (r b c) (r c d)", "(way ?x d)", "valid"),
        (WAY, "(r a b) (r b c) (r d c)", "(way ?x d)", 1),
        (WAY, "(r a b) (r b a)", "(way ?x a)", "valid"),
        (WAY, "(r a b) (r b a)", "(way ?x c)", 1),
        (WAY, "(r a b) (r b a) (r c d)", "(not (way ?x c))", "valid"),
        (TWO_HALVES, "(r a b) (r b c) (r c d)", "(way ?x d)", "valid"),
        (SAFE, "(r a b) (r b c)", "(good ?x)", "valid"),
        (SAFE, "(r a b) (r b a)", "(good ?x)", 1),
        (SAFE, "(r a b) (r b a)", "(not (good ?x))", "valid"),
        # Numbers in rules; only (h a) has a value.
        ("(:derived (good ?x) (> (h ?x) 3))", "(= (h a) 5)", "(good ?x)", "valid"),
        ("(:derived (good ?x) (> (h ?x) 3))", "(= (h a) 2)", "(good ?x)", 1),
        ("(:derived (good ?x) (> (h ?x) 3))", "(= (h a) 5)", "(exists (?y) (good ?y))", "valid"),
        ("(:derived (good ?x) (> (h ?x) 3))", "(= (h a) 2)", "(exists (?y) (good ?y))", 1),
        ("(:derived (good ?x) (> (h ?x) 3))", "(= (h a) 2)", "(not (good b))", 1),
    ],
)
def test_preconditions(rules, init, precondition, expected):
    check_both(*graphs(rules, precondition, init=init), "(go a)", expected)


@pytest.mark.parametrize(
    ("rules", "effect", "goal", "plan", "expected"),
    [
        (GOOD, "(q ?x)", "(good a)", "(go a)", "valid"),
        (GOOD, "(q ?x)", "(not (good a))", "(go a)", "missed"),
        (GOOD, "(not (q ?x))", "(good b)", "(go a)", "valid"),
        (GOOD, "(not (q ?x))", "(good b)", "(go b)", "missed"),
        # Conditions of effects read what followed before the step.
        (GOOD, "(and (q ?x) (when (good ?x) (g)))", "(g)", "(go a)", "missed"),
        (GOOD, "(and (q ?x) (when (good ?x) (g)))", "(g)", "(go a) (go a)", "valid"),
        (f"{GOOD} {BAD}", "(and (q ?x) (when (bad ?x) (g)))", "(g)", "(go a)", "valid"),
        (GOOD, "(forall (?y) (when (good ?y) (r ?x ?y)))", "(and (r a b) (not (r a a)))", "(go a)", "valid"),
        (WAY, "(forall (?y) (when (q ?y) (r ?x ?y)))", "(way c b)", "(go a) (go c)", "valid"),
        (WAY, "(forall (?y) (when (q ?y) (r ?x ?y)))", "(way c a)", "(go a) (go c)", "missed"),
        (f"{GOOD} {BAD}", "(q ?x)", "(and (bad c) (not (bad a)))", "(go a)", "valid"),
    ],
)
def test_effects_and_goals(rules, effect, goal, plan, expected):
    check_both(*graphs(rules, effect=effect, goal=goal, init="(p) (q b)"), plan, expected)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("(go a) (go a)", "valid"),
        ("(go a) (mark a) (go a)", 3),
        ("(go a) (mark b) (go a)", "valid"),
        ("(mark a) (go a)", 2),
    ],
)
def test_rules_are_applied_anew_after_every_step(plan, expected):
    check_both(*graphs(GOOD, "(not (good ?x))"), plan, expected)


def test_failed_conditions_name_derived_atoms():
    domain, problem = graphs(f"{GOOD} {BAD}", "(and (p) (not (bad ?x)))", init="(p) (q a)", goal="(and (g) (good b))")
    run = parse_problem(problem, parse_domain(domain))
    verdict = execute(run, parse_plan_text("(go a) (go c)").actions)
    assert (verdict.failed_step, verdict.failed_condition, verdict.executed_steps) == (2, "(not (bad c))", 1)
    assert (verdict.goals_reached, verdict.goals) == (1, 2)
    verdict = execute(run, parse_plan_text("(go a)").actions)
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
    message = r"^<domain>:4: expected derived predicates that do not depend on their own negation \('\w+' does\), got '"
    with pytest.raises(PddlError, match=message):
        parse_domain(graphs(rules)[0])


def test_recursive_rules_that_compare_numbers_are_an_error():
    rules = WAY.replace("(r ?x ?z) (way", "(> (h ?z) 0) (r ?x ?z) (way")
    with pytest.raises(PddlError, match="no comparison of numbers in the rules of 'way', which is recursive"):
        parse_domain(graphs(rules)[0])
    parse_domain(
        graphs(f"{WAY.replace('(r ?x ?z) (way', '(r ?x ?z) (good ?z) (way')} (:derived (good ?x) (> (h ?x) 0))")[0]
    )


@needs_val
def test_val_gets_numbers_in_recursive_rules_wrong():
    rules = WAY.replace("(r ?x ?z) (way", "(> (h ?z) 0) (r ?x ?z) (way")
    values = " ".join(f"(= (h {name}) 1)" for name in "abcd")
    assert not ask_val(*graphs(rules, "(way a b)", init=f"(r a b) (r b a) {values}"), "(go a)").valid


# What VAL cannot read or crashes on.
UNREADABLE = [
    {"rules": "(:derived (good ?x) ())"},
    {"rules": "(:derived (good ?x) (and))"},
    {"rules": "(:derived (good ?x))"},
    {"rules": "(:derived (good ?x) (q ?x) (p))"},
    {"rules": "(:derived (good a) (q a))"},
    {"rules": "(:derived (good ?x) (q ?z))", "precondition": "(good ?x)"},
    {"rules": "(:derived (way ?x ?x) (q ?x))", "precondition": "(way ?x ?x)"},
    {"rules": GOOD, "effect": "(and (g) (good a))"},
    {"rules": GOOD, "effect": "(and (g) (not (good ?x)))"},
]
LENIENT = [
    {"rules": "(:derived (fresh ?x) (q ?x))"},
    {"rules": "(:derived (good) (p))"},
    {"rules": "(:derived good (p))"},
]


@pytest.mark.parametrize("parts", [*UNREADABLE, *LENIENT], ids=lambda parts: " ".join(parts.values()))
def test_malformed_rules_are_an_error(parts):
    with pytest.raises(PddlError, match=r"^<domain>:[456]: expected .*, got "):
        parse_domain(graphs(**parts)[0])


@needs_val
@pytest.mark.parametrize("parts", UNREADABLE, ids=lambda parts: " ".join(parts.values()))
def test_val_cannot_read_them_indeed(parts):
    assert not ask_val(*graphs(**parts, init="(p) (q a)"), "(go a)").valid


TYPED = """(define (domain d) (:requirements :typing :derived-predicates) (:types t u)
  (:predicates (q ?x - t) (good ?x - t)) (:derived (good {parameter}) (exists (?y - t) (q ?y)))
  (:action go :parameters (?x - t) :precondition (good ?x) :effect (q ?x)))"""


@pytest.mark.parametrize("parameter", ["?x", "?x - u", "?x - (either t u)"])
def test_rules_have_the_types_of_their_predicate(parameter):
    with pytest.raises(PddlError, match=r"^<domain>:2: expected the 1 argument\(s\) of 'good', of the types declared"):
        parse_domain(TYPED.format(parameter=parameter))


def test_typed_rules():
    problem = "(define (problem p) (:domain d) (:objects a b - t c - u) (:init (q b)) (:goal (q a)))"
    check_both(TYPED.format(parameter="?y - t"), problem, "(go a)", "valid")


def chain(n: int) -> str:
    names = [f"n{i}" for i in range(n)]
    edges = " ".join(f"(r {x} {y})" for x, y in pairwise(names))
    objects = " ".join(names)
    return f"(define (problem p) (:domain graphs) (:objects {objects}) (:init {edges}) (:goal (way n0 n{n - 1})))"


def test_long_chains_of_rules_do_not_overflow():
    domain = parse_domain(graphs(WAY, effect="(r ?x ?x)")[0])
    problem = parse_problem(chain(120), domain)
    assert execute(problem, ()).valid
    assert execute(problem, (("go", "n7"),) * 20).valid


def chain_of_rules(condition: str, length: int) -> str:
    """A domain whose derived predicates each depend on the next."""
    rules = " ".join(f"(:derived (d{n}) {condition.format(f'(d{n + 1})')})" for n in range(length))
    names = " ".join(f"(d{n})" for n in range(length + 1))
    return f"""(define (domain d) (:requirements :adl :derived-predicates :fluents) (:predicates (p) {names})
      (:functions (f)) {rules} (:derived (d{length}) (p)) (:action a :parameters () :precondition (p) :effect (p)))"""


@pytest.mark.parametrize("condition", ["(not {})", "(and (< (f) 1) {})"])
def test_a_long_chain_is_refused_soon_and_a_shorter_one_is_read(condition):
    with within(2), pytest.raises(UnsupportedPddlError, match="got 'derived predicates in a chain as long as "):
        parse_domain(chain_of_rules(condition, 3_000))
    assert len(parse_domain(chain_of_rules(condition, 300)).rules) == 301
