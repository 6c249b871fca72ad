"""Disjunctions, quantifiers and conditional effects: tables of verdicts, each checked against VAL as well."""

import pytest

from jaxppo.planning import PlanError
from tests.planning.val_oracle import check_both, check_refused, forms, judge

DOMAIN = """(define (domain shapes) (:requirements :adl)
  (:predicates (p) (g) (q ?x) (r ?x ?y))
  (:action go :parameters (?x) :precondition {precondition} :effect {effect})
  (:action off :parameters () :precondition () :effect (not (p))))"""
PROBLEM = "(define (problem few) (:domain shapes) (:objects a b c) (:init {init}) (:goal {goal}))"


def untyped(precondition="()", effect="(g)", init="(p)", goal="(g)") -> tuple[str, str]:
    return DOMAIN.format(precondition=precondition, effect=effect), PROBLEM.format(init=init, goal=goal)


# Where (p) alone holds, and ?x is a.
TRUE = """
(or (g) (p)) (or (p)) (or (g) (and (p) (not (q ?x))))
(imply (g) (q a)) (imply (p) (not (g))) (not (imply (p) (g)))
(not (not (p))) (not (and (p) (g))) (not (or (g) (q a)))
(not (exists (?y) (q ?y))) (not (forall (?y) (q ?y))) (forall (?y) (not (q ?y)))
(exists (?y) (= ?y ?x)) (exists (?y ?z) (not (= ?y ?z))) (forall (?y) (exists (?z) (not (= ?y ?z))))
; A variable hides an outer one of its name.
(and (= ?x a) (exists (?x) (= ?x b)) (= ?x a)) (exists (?y) (and (= ?y b) (exists (?y) (= ?y a)) (= ?y b)))
(forall () (p)) (forall (?y) ()) (and) (and (and) (p) ())
"""
FALSE = """
(or (g) (q a)) (or (g) (and (p) (q ?x)))
(imply (p) (g)) (not (imply (g) (p))) (not (and (p) (not (g)))) (not (or (g) (p)))
(exists (?y) (q ?y)) (forall (?y) (q ?y)) (exists () (g))
(exists (?y) (and (= ?y ?x) (= ?y b))) (forall (?y ?z) (= ?y ?z)) (exists (?y) (forall (?z) (= ?y ?z)))
(and (p) (and (p) (and (g))))
"""


@pytest.mark.parametrize(
    ("precondition", "expected"), [*((form, "valid") for form in forms(TRUE)), *((form, 1) for form in forms(FALSE))]
)
def test_preconditions(precondition, expected):
    check_both(*untyped(precondition), "(go a)", expected)


@pytest.mark.parametrize(
    ("init", "precondition", "expected"),
    [
        ("(q a)", "(exists (?y) (q ?y))", "valid"),
        ("(q a) (q b)", "(forall (?y) (or (q ?y) (= ?y c)))", "valid"),
        ("(r a b) (q b)", "(forall (?y) (imply (r ?x ?y) (q ?y)))", "valid"),
        ("(r a b) (q c)", "(forall (?y) (imply (r ?x ?y) (q ?y)))", 1),
        ("(r a b) (r b c)", "(exists (?y) (and (r ?x ?y) (exists (?z) (and (r ?y ?z) (not (= ?z c))))))", 1),
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
        # Conditions of several kinds.
        ("(when (forall (?y) (imply (q ?y) (= ?y ?x))) (g))", "(g)", "(go a)", "valid"),
        ("(when (and (p) (and (not (g)))) (and (g) (q b)))", "(and (g) (q b))", "(go a)", "valid"),
        # For all objects, and nested.
        ("(forall (?y) (when (not (= ?y ?x)) (q ?y)))", "(and (q b) (q c) (not (q a)))", "(go a)", "valid"),
        ("(forall (?y ?z) (when (= ?y ?x) (r ?y ?z)))", "(and (r a c) (not (r b c)))", "(go a)", "valid"),
        ("(forall (?y) (and (q ?y) (forall (?z) (r ?y ?z))))", "(and (q b) (r c b))", "(go a)", "valid"),
        (
            "(forall (?y) (when (p) (forall (?z) (when (= ?y ?z) (r ?y ?z)))))",
            "(and (r c c) (not (r c b)))",
            "(go a)",
            "valid",
        ),
        ("(when (p) (when (g) (q ?x)))", "(q a)", "(go a)", "missed"),
        ("(when (p) (when (not (g)) (q ?x)))", "(q a)", "(go a)", "valid"),
        ("(forall (?x) (q ?x))", "(q c)", "(go a)", "valid"),
        ("(and (and (g)) (and) (and (q ?x) (not (p))))", "(and (g) (q a) (not (p)))", "(go a)", "valid"),
    ],
)
def test_effects(effect, goal, plan, expected):
    check_both(*untyped(effect=effect, goal=goal), plan, expected)


REACHED = "(or (q b) (g)) (not (and (g) (q b))) (forall (?y) (or (p) (q ?y))) (forall (?y) ()) (and)"
MISSED = "(or (q b) (q c)) (imply (g) (q b)) (not (g)) (exists (?y) (q ?y))"


@pytest.mark.parametrize(
    ("goal", "expected"), [*((form, "valid") for form in forms(REACHED)), *((form, "missed") for form in forms(MISSED))]
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


def ports(precondition="()", effect="(done)", goal="(done)") -> tuple[str, str]:
    return TYPED.format(precondition=precondition, effect=effect), HARBOUR.format(goal=goal)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"goal": "(forall (?s - tanker) (clean ?s))"}, "missed"),  # the constant atlas is not clean
        ({"goal": "(exists (?p - port) (= ?p quay))"}, "valid"),  # a subtype
        ({"goal": "(exists (?o - object) (= ?o quay))"}, "valid"),
        ({"goal": "(exists (?e - (either pier tanker)) (= ?e oiler))"}, "valid"),
        ({"goal": "(forall (?g - ghost) (in boat quay))"}, "valid"),  # nothing is a ghost
        ({"goal": "(not (exists (?s - ship ?p - port) (and (in ?s ?p) (not (clean ?s)))))"}, "valid"),
        ({"precondition": "(forall (?s - tanker) (clean ?s))"}, 1),
        ({"precondition": "(exists (?s - tanker) (and (clean ?s) (not (= ?s ?x))))"}, 1),
        ({"precondition": "(exists (?g - ghost) (= ?g ?g))"}, 1),
        (
            {"effect": "(forall (?s - tanker) (seen ?s))", "goal": "(and (seen atlas) (seen oiler) (not (seen boat)))"},
            "valid",
        ),
        (
            {"effect": "(forall (?s - ship) (when (clean ?s) (seen ?s)))", "goal": "(forall (?s - ship) (seen ?s))"},
            "missed",
        ),
        ({"effect": "(seen ?x)", "goal": "(exists (?p - port) (seen ?p))"}, "missed"),
    ],
)
def test_typed_quantifiers_and_effects(parts, expected):
    check_both(*ports(**parts), "(look oiler)", expected)


@pytest.mark.parametrize(
    ("precondition", "condition"),
    [
        ("(and (p) (or (q ?x) (= ?x b)))", "(or (q a) (= a b))"),
        ("(and (q ?x) (or (q ?x) (= ?x b)))", "(q a)"),
        ("(not (p))", "(not (p))"),
        ("(not (or (p) (q ?x)))", "(not (or (p) (q a)))"),
        ("(imply (p) (not (p)))", "(imply (p) (not (p)))"),
        ("(exists (?x ?z) (and (q ?x) (r ?z ?x)))", "(exists (?x ?z) (and (q ?x) (r ?z ?x)))"),
        ("(not (= ?x a))", "(not (= a a))"),
    ],
)
def test_failed_condition_is_the_first_false_one_as_ground_pddl(precondition, condition):
    assert judge(*untyped(precondition), "(go a)").failed_condition == condition


def test_failed_condition_of_a_typed_quantifier_keeps_its_types():
    condition = "(forall (?e - (either pier ship)) (seen ?e))"
    assert judge(*ports(condition), "(look oiler)").failed_condition == condition


def test_goals_count_the_instances_of_an_outer_forall():
    goal = "(and (g) (forall (?y) (and (q ?y) (or (p) (r ?y a)))) (not (q c)))"
    verdict = judge(*untyped(effect="(and (q ?x) (g))", goal=goal), "(go a) (off) (go b)")
    assert (verdict.goals_reached, verdict.goals) == (4, 8)  # g, q of a and b, not q of c; no `or` without p
    assert (verdict.error, verdict.failed_condition) == (PlanError.GOAL_NOT_REACHED, "(or (p) (r a a))")


UNREADABLE = {
    # What must not be empty, and wrong numbers of parts.
    "precondition": """(or) (not ()) (not (and)) (or (and) (p)) (imply (p) ()) (exists (?y) ())
        (imply (p)) (not (p) (g)) (exists ?y (p)) (forall (?y) (p) (p))""",
    # Effects that are none, or too deep.
    "effect": """(and ()) (when () (g)) (forall (?y) (q ?y) (g)) (not (and (g))) (not (not (g))) (or (g) (p))
        (when (p) (and (g) (and (q a)))) (when (p) (and (g) (when (p) (q a)))) (and (g) (and (q a) (and (q b))))""",
}


LENIENT = {"effect": "(when (p) (forall (?x) (q ?x))) (when (p)) (and (g) (= ?x a))"}
ERRORS = [(part, form, False) for part, text in UNREADABLE.items() for form in forms(text)]
ERRORS += [(part, form, True) for part, text in LENIENT.items() for form in forms(text)]
ERRORS.append(("goal", "(g) (p)", False))  # it is one condition


@pytest.mark.parametrize(("part", "form", "val_reads_on"), ERRORS)
def test_what_val_cannot_read_and_some_of_what_it_reads_on_through_is_an_error(part, form, val_reads_on):
    check_refused(*untyped(**{part: form}), val_reads_on=val_reads_on)
