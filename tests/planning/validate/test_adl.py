"""Disjunctions, quantifiers and conditional effects: tables of verdicts, each checked against VAL as well."""

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning import PlanError, execute, parse_domain, parse_plan_text, parse_problem
from tests.planning.val_oracle import ask_val, check_both, needs_val

DOMAIN = """(define (domain shapes) (:requirements :adl)
  (:predicates (p) (g) (q ?x) (r ?x ?y))
  (:action go :parameters (?x) :precondition {precondition} :effect {effect})
  (:action off :parameters () :precondition () :effect (not (p))))"""
PROBLEM = "(define (problem few) (:domain shapes) (:objects a b c) (:init {init}) (:goal {goal}))"


def untyped(precondition="()", effect="(g)", init="(p)", goal="(g)") -> tuple[str, str]:
    return DOMAIN.format(precondition=precondition, effect=effect), PROBLEM.format(init=init, goal=goal)


@pytest.mark.parametrize(
    ("precondition", "expected"),
    [
        # Disjunction.
        ("(or (g) (p))", "valid"),
        ("(or (g) (q a))", 1),
        ("(or (p))", "valid"),
        ("(and (or (g)) (p))", 1),
        ("(or (g) (and (p) (not (q ?x))))", "valid"),
        ("(or (g) (and (p) (q ?x)))", 1),
        ("(or (not (p)) (not (g)))", "valid"),
        # Implication.
        ("(imply (g) (q a))", "valid"),
        ("(imply (p) (g))", 1),
        ("(imply (p) (not (g)))", "valid"),
        ("(not (imply (p) (g)))", "valid"),
        ("(not (imply (g) (p)))", 1),
        # Negation.
        ("(not (not (p)))", "valid"),
        ("(not (not (not (g))))", "valid"),
        ("(not (and (p) (g)))", "valid"),
        ("(not (and (p) (not (g))))", 1),
        ("(not (or (g) (q a)))", "valid"),
        ("(not (or (g) (p)))", 1),
        # Quantifiers; the init of these rows is (p) alone.
        ("(exists (?y) (q ?y))", 1),
        ("(not (exists (?y) (q ?y)))", "valid"),
        ("(forall (?y) (q ?y))", 1),
        ("(not (forall (?y) (q ?y)))", "valid"),
        ("(forall (?y) (not (q ?y)))", "valid"),
        ("(not (forall (?y) (not (q ?y))))", 1),
        ("(exists (?y) (= ?y ?x))", "valid"),
        ("(exists (?y) (and (= ?y ?x) (= ?y b)))", 1),
        ("(exists (?y ?z) (not (= ?y ?z)))", "valid"),
        ("(forall (?y ?z) (= ?y ?z))", 1),
        ("(forall (?y) (exists (?z) (not (= ?y ?z))))", "valid"),
        ("(exists (?y) (forall (?z) (= ?y ?z)))", 1),
        ("(exists (?x) (= ?x b))", "valid"),  # hides the action's ?x, which is a
        ("(and (= ?x a) (exists (?x) (= ?x b)) (= ?x a))", "valid"),
        ("(exists (?y) (and (= ?y b) (exists (?y) (= ?y a)) (= ?y b)))", "valid"),
        ("(forall () (p))", "valid"),
        ("(exists () (g))", 1),
        ("(forall (?y) ())", "valid"),
        # Empty and nested conjunctions.
        ("(and)", "valid"),
        ("(and (and) (p) ())", "valid"),
        ("(and (p) (and (p) (and (g))))", 1),
    ],
)
def test_preconditions(precondition, expected):
    check_both(*untyped(precondition), "(go a)", expected)


@pytest.mark.parametrize(
    ("init", "precondition", "expected"),
    [
        ("(q a)", "(exists (?y) (q ?y))", "valid"),
        ("(q a)", "(forall (?y) (q ?y))", 1),
        ("(q a) (q b) (q c)", "(forall (?y) (q ?y))", "valid"),
        ("(q a) (q b)", "(forall (?y) (or (q ?y) (= ?y c)))", "valid"),
        ("(r a b) (q b)", "(forall (?y) (imply (r ?x ?y) (q ?y)))", "valid"),
        ("(r a b) (q c)", "(forall (?y) (imply (r ?x ?y) (q ?y)))", 1),
        ("(r b a)", "(forall (?y) (imply (r ?x ?y) (q ?y)))", "valid"),
        ("(r a b) (r b c)", "(exists (?y ?z) (and (r ?x ?y) (r ?y ?z) (= ?z c)))", "valid"),
        ("(r a b) (r b c)", "(exists (?y) (and (r ?x ?y) (exists (?z) (and (r ?y ?z) (not (= ?z c))))))", 1),
        ("(r a b) (r b b) (r c b)", "(exists (?y) (forall (?z) (r ?z ?y)))", "valid"),
        ("(r a b) (r b b) (r c a)", "(exists (?y) (forall (?z) (r ?z ?y)))", 1),
        ("(r a b) (r b b) (r c a)", "(forall (?z) (exists (?y) (r ?z ?y)))", "valid"),
    ],
)
def test_quantifiers_over_facts(init, precondition, expected):
    check_both(*untyped(precondition, init=init), "(go a)", expected)


@pytest.mark.parametrize(
    ("effect", "goal", "plan", "expected"),
    [
        # Deleted and added in one step: it holds.
        ("(and (g) (not (g)))", "(g)", "(go a)", "valid"),
        ("(and (g) (when (p) (not (g))))", "(g)", "(go a)", "valid"),
        ("(and (when (p) (g)) (not (g)))", "(g)", "(go a)", "valid"),
        ("(forall (?y) (and (q ?y) (not (q ?x))))", "(q a)", "(go a)", "valid"),
        ("(and (g) (when (p) (q ?x)) (forall (?y) (not (q ?y))))", "(q a)", "(go a)", "valid"),
        # Conditions are read in the old state.
        ("(and (g) (not (p)) (when (p) (q ?x)))", "(q a)", "(go a)", "valid"),
        ("(and (q ?x) (when (q ?x) (g)))", "(g)", "(go a)", "missed"),
        ("(and (q ?x) (when (q ?x) (g)))", "(g)", "(go a) (go a)", "valid"),
        ("(and (when (p) (not (p))) (when (not (p)) (p)))", "(p)", "(go a)", "missed"),
        ("(and (when (p) (not (p))) (when (not (p)) (p)))", "(p)", "(go a) (go a)", "valid"),
        # Conditions of every kind.
        ("(when (or (g) (p)) (q ?x))", "(q a)", "(go a)", "valid"),
        ("(when (exists (?y) (q ?y)) (g))", "(g)", "(go a)", "missed"),
        ("(when (not (exists (?y) (q ?y))) (g))", "(g)", "(go a)", "valid"),
        ("(when (forall (?y) (imply (q ?y) (= ?y ?x))) (g))", "(g)", "(go a)", "valid"),
        ("(when (and (p) (and (not (g)))) (and (g) (q b)))", "(and (g) (q b))", "(go a)", "valid"),
        ("(when (= ?x a) (g))", "(g)", "(go b)", "missed"),
        ("(when (= ?x a) (g))", "(g)", "(go a)", "valid"),
        # For all objects, and nested.
        ("(forall (?y) (q ?y))", "(forall (?y) (q ?y))", "(go a)", "valid"),
        ("(forall (?y) (when (not (= ?y ?x)) (q ?y)))", "(and (q b) (q c) (not (q a)))", "(go a)", "valid"),
        ("(forall (?y ?z) (when (= ?y ?x) (r ?y ?z)))", "(and (r a c) (not (r b c)))", "(go a)", "valid"),
        ("(forall (?y) (and (q ?y) (forall (?z) (r ?y ?z))))", "(and (q b) (r c b))", "(go a)", "valid"),
        ("(forall (?y) (when (p) (forall (?z) (when (= ?y ?z) (r ?y ?z)))))", "(r c c)", "(go a)", "valid"),
        ("(forall (?y) (when (p) (forall (?z) (when (= ?y ?z) (r ?y ?z)))))", "(r c b)", "(go a)", "missed"),
        ("(when (p) (when (g) (q ?x)))", "(q a)", "(go a)", "missed"),
        ("(when (g) (when (p) (q ?x)))", "(q a)", "(go a)", "missed"),
        ("(when (p) (when (not (g)) (q ?x)))", "(q a)", "(go a)", "valid"),
        ("(when (p) (forall (?y) (q ?y)))", "(q c)", "(off) (go a)", "missed"),
        ("(forall (?x) (q ?x))", "(q c)", "(go a)", "valid"),
        ("(and (and (g)) (and) (and (q ?x) (not (p))))", "(and (g) (q a) (not (p)))", "(go a)", "valid"),
        ("(and)", "(p)", "(go a)", "valid"),
    ],
)
def test_effects(effect, goal, plan, expected):
    check_both(*untyped(effect=effect, goal=goal), plan, expected)


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ("(or (q b) (g))", "valid"),
        ("(or (q b) (q c))", "missed"),
        ("(imply (g) (p))", "valid"),
        ("(imply (g) (q b))", "missed"),
        ("(not (and (g) (q b)))", "valid"),
        ("(not (g))", "missed"),
        ("(exists (?y) (q ?y))", "missed"),
        ("(forall (?y) (or (p) (q ?y)))", "valid"),
        ("(forall (?y) ())", "valid"),
        ("(and)", "valid"),
        ("(and (g) (forall (?y) (exists (?z) (not (= ?y ?z)))))", "valid"),
    ],
)
def test_goals(goal, expected):
    check_both(*untyped(goal=goal), "(go a)", expected)


TYPED = """(define (domain ports) (:requirements :adl :typing)
  (:types ship port - object tanker - ship pier - port ghost - object)
  (:constants atlas - tanker)
  (:predicates (in ?s - ship ?p - port) (clean ?s - ship) (seen ?x - (either ship port)) (done))
  (:action look :parameters (?x - (either tanker pier)) :precondition {precondition} :effect {effect}))"""
HARBOUR = """(define (problem harbour) (:domain ports)
  (:objects boat - ship oiler - tanker home - port quay - pier)
  (:init (clean boat) (clean oiler) (in boat home)) (:goal {goal}))"""


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ("(forall (?s - tanker) (clean ?s))", "missed"),  # the constant atlas is not clean
        ("(exists (?s - tanker) (clean ?s))", "valid"),
        ("(forall (?s - ship) (or (clean ?s) (= ?s atlas)))", "valid"),
        ("(exists (?p - pier) (= ?p home))", "missed"),
        ("(exists (?p - port) (= ?p quay))", "valid"),  # a subtype
        ("(exists (?o - object) (= ?o quay))", "valid"),
        ("(exists (?e - (either pier tanker)) (= ?e oiler))", "valid"),
        ("(exists (?e - (either pier tanker)) (= ?e boat))", "missed"),
        ("(exists (?e - (either pier tanker)) (seen ?e))", "missed"),
        ("(forall (?g - ghost) (done))", "valid"),  # nothing is a ghost
        ("(exists (?g - ghost) (= ?g ?g))", "missed"),
        ("(not (exists (?s - ship ?p - port) (and (in ?s ?p) (not (clean ?s)))))", "valid"),
        ("(exists (?s - ship) (and (in ?s home) (= ?s boat)))", "valid"),
        ("(forall (?s - ship) (imply (in ?s home) (= ?s oiler)))", "missed"),
    ],
)
def test_typed_quantifiers(goal, expected):
    domain = TYPED.format(precondition="()", effect="(done)")
    check_both(domain, HARBOUR.format(goal=goal), "(look oiler)", expected)


@pytest.mark.parametrize(
    ("precondition", "expected"),
    [
        ("(forall (?s - tanker) (clean ?s))", 1),
        ("(exists (?s - tanker) (clean ?s))", "valid"),
        ("(exists (?s - tanker) (and (clean ?s) (not (= ?s ?x))))", 1),
        ("(exists (?g - ghost) (= ?g ?g))", 1),
        ("(forall (?s - ship) (or (clean ?s) (= ?s atlas)))", "valid"),
    ],
)
def test_typed_quantifiers_in_preconditions(precondition, expected):
    domain = TYPED.format(precondition=precondition, effect="(done)")
    check_both(domain, HARBOUR.format(goal="(done)"), "(look oiler)", expected)


@pytest.mark.parametrize(
    ("effect", "goal", "expected"),
    [
        ("(forall (?s - tanker) (seen ?s))", "(and (seen atlas) (seen oiler) (not (seen boat)))", "valid"),
        ("(forall (?s - ship) (seen ?s))", "(forall (?s - ship) (seen ?s))", "valid"),
        ("(forall (?s - ship) (when (clean ?s) (seen ?s)))", "(forall (?s - ship) (seen ?s))", "missed"),
        ("(forall (?g - ghost) (done))", "(done)", "missed"),
        ("(seen ?x)", "(exists (?s - ship) (seen ?s))", "valid"),
        ("(seen ?x)", "(exists (?p - port) (seen ?p))", "missed"),
    ],
)
def test_typed_effects_and_goals(effect, goal, expected):
    domain = TYPED.format(precondition="()", effect=effect)
    check_both(domain, HARBOUR.format(goal=goal), "(look oiler)", expected)


def judge(domain: str, problem: str, plan: str):
    return execute(parse_problem(problem, parse_domain(domain)), parse_plan_text(plan).actions)


@pytest.mark.parametrize(
    ("precondition", "condition"),
    [
        ("(and (p) (or (q ?x) (= ?x b)))", "(or (q a) (= a b))"),
        ("(and (q ?x) (or (q ?x) (= ?x b)))", "(q a)"),
        ("(not (p))", "(not (p))"),
        ("(not (or (p) (q ?x)))", "(not (or (p) (q a)))"),
        ("(imply (p) (not (p)))", "(imply (p) (not (p)))"),
        ("(forall (?y ?z) (imply (q ?x) (r ?y ?z)))", None),
        ("(exists (?x ?z) (and (q ?x) (r ?z ?x)))", "(exists (?x ?z) (and (q ?x) (r ?z ?x)))"),
        ("(not (= ?x a))", "(not (= a a))"),
    ],
)
def test_failed_condition_is_the_first_false_one_as_ground_pddl(precondition, condition):
    verdict = judge(*untyped(precondition), "(off) (go b) (go a)" if condition is None else "(go a)")
    assert verdict.failed_condition == condition


def test_failed_condition_of_a_typed_quantifier_keeps_its_types():
    domain = TYPED.format(precondition="(forall (?e - (either pier ship)) (seen ?e))", effect="(done)")
    verdict = judge(domain, HARBOUR.format(goal="(done)"), "(look oiler)")
    assert verdict.failed_condition == "(forall (?e - (either pier ship)) (seen ?e))"


def test_goals_count_the_instances_of_an_outer_forall():
    goal = "(and (g) (forall (?y) (and (q ?y) (or (p) (r ?y a)))) (not (q c)))"
    verdict = judge(*untyped(effect="(and (q ?x) (g))", goal=goal), "(go a) (off) (go b)")
    assert (verdict.goals_reached, verdict.goals) == (4, 8)  # g, q of a and b, not q of c; no `or` without p
    assert (verdict.error, verdict.failed_condition) == (PlanError.GOAL_NOT_REACHED, "(or (p) (r a a))")


# Right or nearly right PDDL that VAL loses actions over, refuses or crashes on.
UNREADABLE = [
    {"precondition": "(or)"},
    {"precondition": "(not ())"},
    {"precondition": "(not (and))"},
    {"precondition": "(or (and) (p))"},
    {"precondition": "(imply (p) ())"},
    {"precondition": "(imply (p))"},
    {"precondition": "(exists (?y) ())"},
    {"precondition": "(exists ?y (p))"},
    {"precondition": "(forall (?y) (p) (p))"},
    {"precondition": "(not (p) (g))"},
    {"precondition": "(forall (y) (p))"},
    {"effect": "(not (and (g)))"},
    {"effect": "(not (not (g)))"},
    {"effect": "(or (g) (p))"},
    {"effect": "(and ())"},
    {"effect": "(when () (g))"},
    {"effect": "(when (p) ())"},
    {"effect": "(when (p) (and (g) (and (q a))))"},
    {"effect": "(when (p) (and (g) (when (p) (q a))))"},
    {"effect": "(and (g) (and (q a) (and (q b))))"},
    {"effect": "(and (g) (and (when (p) (g))))"},
    {"effect": "(forall (?y) (q ?y) (g))"},
    {"effect": "(forall (?y) ())"},
    {"goal": "(or)"},
    {"goal": "(g) (p)"},
    {"goal": ""},
    {"goal": "(not ())"},
]


@pytest.mark.parametrize("parts", UNREADABLE, ids=lambda parts: " ".join(parts.values()))
def test_what_val_cannot_read_is_an_error(parts):
    domain, problem = untyped(**parts)
    with pytest.raises(PddlError, match=r"^<(?:domain|problem)>:[134]: expected .*, got "):
        parse_problem(problem, parse_domain(domain))


@needs_val
@pytest.mark.parametrize("parts", UNREADABLE, ids=lambda parts: " ".join(parts.values()))
def test_val_cannot_read_it_indeed(parts):
    assert not ask_val(*untyped(**parts), "(go a)").valid


@pytest.mark.parametrize(
    "parts",
    [
        {"precondition": "(exists (?y ?y) (p))"},
        {"effect": "(when (p) (forall (?x) (q ?x)))"},
        {"effect": "(when (p))"},
        {"effect": "(and (g) (= ?x a))"},
    ],
    ids=lambda parts: " ".join(parts.values()),
)
def test_stricter_than_val(parts):
    with pytest.raises(PddlError):
        parse_domain(untyped(**parts)[0])


def test_preferences_are_refused_by_name():
    with pytest.raises(PddlError, match="got 'preference', which is not supported by the built-in validator"):
        parse_domain(untyped("(preference x (p))")[0])
