"""Numeric fluents and costs: tables of verdicts, each checked against VAL as well, and the arithmetic itself."""

import pytest

from jaxppo.planning import UnsupportedPddlError, parse_domain
from tests.planning.val_oracle import assert_not_valid_for_val, check_both, check_refused, forms, judge

DOMAIN = """(define (domain tanks) (:requirements :adl :fluents)
  (:predicates (p) (g) (r ?x ?y))
  (:functions (f) (u) (h ?x) (total-cost))
  (:action go :parameters (?x) :precondition {precondition} :effect {effect}))"""
PROBLEM = """(define (problem few) (:domain tanks) (:objects a b c)
  (:init (p) (r a b) (= (f) 3) (= (h a) 1) (= (h b) 2) (= (h c) 7) (= (total-cost) 0) {init})
  (:goal {goal}) {metric})"""


def tanks(precondition="()", effect="(g)", goal="(g)", metric="", init="") -> tuple[str, str]:
    return DOMAIN.format(precondition=precondition, effect=effect), PROBLEM.format(goal=goal, metric=metric, init=init)


# (f) is 3. VAL takes numbers closer than 0.0001 for equal, and lets equal numbers pass `<` and `>`. Division by zero
# gives infinities and NaN, which equals nothing. (u) has no value: reading it is an error, unless what is read before
# decides.
TRUE = """
(= (f) 3.00009) (not (= (f) 3.00011)) (< (f) 4) (< (f) 2.99991) (<= (f) 2.99991)
(> (f) 2) (> (f) 3.00009) (>= (f) 3.00009)
(= (+ (f) (h ?x)) 4) (= (- (f)) -3) (= (/ (f) (h b)) 1.5) (= (* 2 (+ (f) (- (h c) 1))) 18)
(= f 3.) (= 3 f) (= 2 2)
(> (/ (f) 0) 1000000) (< (/ (- (f)) 0) -1000000) (not (= (/ 0 0) 0))
(forall (?y) (>= (h ?y) 1)) (exists (?y) (and (r ?x ?y) (= (h ?y) 2)))
(or (p) (> (u) 0)) (or (and (not (p)) (> (u) 0)) (p)) (imply (g) (> (u) 0))
"""
FALSE = """
(= (f) 3.00011) (not (= (f) 3.00009)) (< (f) 2.99989) (not (< (f) 3)) (<= (f) 2.99989)
(> (f) 3.00011) (not (> (f) 3)) (>= (f) 3.00011) (<= 3.00011 (f))
(> (h a) (h b)) (< 3 2)
(>= (/ 0 0) 0) (= (/ 1 0) (/ 1 0))
(forall (?y) (>= (h ?y) 2)) (exists (?y) (and (r ?x ?y) (= (h ?y) 7)))
(> (u) 0) (not (> (u) 0))
"""


@pytest.mark.parametrize(
    ("condition", "expected"), [*((form, "valid") for form in forms(TRUE)), *((form, 1) for form in forms(FALSE))]
)
def test_conditions(condition, expected):
    check_both(*tanks(condition), "(go a)", expected)


HUGE = f"1{'0' * 300}.0"


@pytest.mark.parametrize(
    ("value", "condition", "expected"),
    [
        # Closer to the tolerance than a double can say; what is as far away as it counts for `<=` and `>=` only.
        ("1", "(= (u) (+ 1 0.0001))", 1),
        ("0", "(>= (u) (+ 0 0.0001))", "valid"),
        ("0", "(> (u) (+ 0 0.0001))", 1),
        # More digits than a double has, within an expression.
        ("9007199254740992.0", "(= (+ (u) 1) (u))", 1),
        ("100000000000000000.0", "(< (- (+ (u) 1) (u)) 0.5)", 1),
        ("18446744073709551616.0", "(= (+ (u) 1) (u))", "valid"),
        ("0.1", "(> (- (* 10000000000000000.0 (+ (u) 0.2)) (* 10000000000000000.0 0.3)) 0.4)", 1),
        # Larger numbers than a double can hold.
        (HUGE, "(not (>= (- (* (u) (u)) (* (u) (u))) 0))", 1),
        (HUGE, "(= (* (u) (u)) (* (u) (u)))", "valid"),
        # Zero has a sign.
        ("0", "(< (/ 1 (- (u))) 0)", "valid"),
    ],
)
def test_expressions_are_computed_as_long_doubles(value, condition, expected):
    check_both(*tanks(condition, init=f"(= (u) {value})"), "(go a)", expected)


@pytest.mark.parametrize(
    ("value", "effect", "steps", "goal"),
    [
        # What a step computes is kept in full: 2^53 + 1 is no double. Reading it gives a double.
        ("9007199254740992.0", "(increase (u) 1)", 1, "(= (- (u) 9007199254740992.0) 0)"),
        ("0.1", "(increase (u) 0.2)", 1, "(> (- (* 10000000000000000.0 (u)) (* 10000000000000000.0 0.3)) 0.4)"),
        # Conditional changes come before the others, and those for many objects last.
        (HUGE, f"(increase (u) 1) (when (p) (and (decrease (u) {HUGE})))", 1, "(> (u) 0.4)"),
        (HUGE, f"(forall (?y) (and (increase (u) 0.5))) (decrease (u) {HUGE})", 1, "(> (u) 0.4)"),
        (HUGE, f"(forall (?y) (and (increase (u) 0.5))) (when (p) (and (decrease (u) {HUGE})))", 1, "(> (u) 0.4)"),
    ],
)
def test_functions_are_kept_as_long_doubles_and_read_as_doubles(value, effect, steps, goal):
    parts = tanks(effect=f"(and (g) {effect})", goal=goal, init=f"(= (u) {value})")
    check_both(*parts, steps * "(go a)\n", "valid")


@pytest.mark.parametrize(
    ("effect", "goal", "expected"),
    [
        ("(and (g) (increase (f) 2))", "(= (f) 5)", "valid"),
        ("(and (g) (assign (f) 2))", "(= (f) 2)", "valid"),
        ("(and (g) (scale-up (f) 2))", "(= (f) 6)", "valid"),
        ("(and (g) (scale-down (f) 0))", "(> (f) 1000)", "valid"),
        ("(and (g) (increase f (* 2 (+ (f) (h ?x)))))", "(= (f) 11)", "valid"),
        # Amounts and conditions are read in the old state.
        ("(and (increase (f) 1) (assign (h ?x) (f)))", "(and (= (f) 4) (= (h a) 3))", "valid"),
        ("(and (increase (f) 1) (when (= (f) 4) (g)))", "(g)", "missed"),
        # Increases and decreases of one function add up, everything else contradicts itself.
        ("(and (increase (f) 5) (decrease (f) 7))", "(= (f) 1)", "valid"),
        ("(and (assign (f) 1) (increase (f) 2))", "(p)", 1),
        ("(and (increase (f) 2) (scale-up (f) 2))", "(p)", 1),
        ("(and (assign (h ?x) 1) (assign (h a) 2))", "(p)", 1),
        # Under conditions and for all objects.
        ("(when (p) (increase (f) 1))", "(= (f) 4)", "valid"),
        ("(and (when (p) (assign (f) 1)) (when (p) (assign (f) 2)))", "(p)", 1),
        ("(forall (?y) (and (increase (h ?y) 1)))", "(and (= (h a) 2) (= (h c) 8))", "valid"),
        ("(forall (?y) (and (increase (f) (h ?y))))", "(= (f) 13)", "valid"),
        ("(forall (?y) (and (assign (f) 1)))", "(p)", 1),
        ("(forall (?y) (when (r ?x ?y) (assign (f) (h ?y))))", "(= (f) 2)", "valid"),
        # A function without a value is changed as if it were 0, but not read.
        ("(and (g) (decrease (u) 1))", "(= (u) -1)", "valid"),
        ("(and (g) (when (not (p)) (increase (f) (u))))", "(g)", "valid"),
    ],
)
def test_effects(effect, goal, expected):
    check_both(*tanks(effect=effect, goal=goal), "(go a)", expected)


WITHOUT_VALUE = """(or (> (u) 0) (p)) (imply (> (u) 0) (p)) (forall (?y) (or (> (u) 0) (p)))
    (exists (?y) (or (> (u) 0) (= ?y c))) (or (= a b) (> (f) (* 0 (u)))) (= (u) (u))"""


@pytest.mark.parametrize(
    ("part", "form", "blamed"),
    [
        *(("precondition", condition, condition) for condition in forms(WITHOUT_VALUE)),
        ("effect", "(and (g) (assign (f) (u)))", "(assign (f) (u))"),
        ("effect", "(and (g) (increase (f) (+ 1 (u))))", "(increase (f) (+ 1 (u)))"),
        ("effect", "(and (g) (when (> (u) 0) (not (p))))", "(u)"),
        ("effect", "(and (assign (u) 1) (increase (f) (u)))", "(increase (f) (u))"),
        ("effect", "(and (assign (h ?x) 4) (increase (h a) 2))", "(increase (h a) 2)"),
    ],
)
def test_what_reads_no_value_or_contradicts_itself_fails_the_step(part, form, blamed):
    texts = tanks(**{part: form, "goal": "(p)"})
    verdict = judge(*texts, "(go a)")
    assert (verdict.executable, verdict.failed_step, verdict.failed_condition) == (False, 1, blamed)
    assert_not_valid_for_val(*texts)


@pytest.mark.parametrize(
    ("init", "goal"),
    [
        ("(= (u) 1) (= (u) 2)", "(= (u) 2)"),  # the last one counts
        ("(= (u) -1.5)", "(= (u) -1.5)"),
        ("(= (u) 2147483647)", "(> (u) 2147483646)"),
    ],
)
def test_initial_values(init, goal):
    check_both(*tanks(init=init, goal=goal), "", "valid")


def test_the_goal_may_read_what_has_no_value_only_where_it_does_not_matter():
    check_both(*tanks(goal="(or (g) (> (u) 0))"), "(go a)", "valid")
    texts = tanks(goal="(and (g) (> (u) 0))")
    verdict = judge(*texts, "(go a)")
    assert (verdict.valid, verdict.goals_reached, verdict.failed_condition) == (False, 1, "(> (u) 0)")
    assert_not_valid_for_val(*texts)


@pytest.mark.parametrize(
    ("metric", "plan", "cost"),
    [
        ("", "(go a) (go a)", 2.0),
        ("(:metric minimize (total-cost))", "(go a) (go b)", 3.0),
        ("(:metric minimize (+ total-time (* 2 (f))))", "(go a) (go a)", 8.0),
        ("(:metric maximize (+ (f) 1 (h c)))", "(go a)", 11.0),
        ("(:metric minimize (/ (f) 0))", "(go a)", None),
    ],
)
def test_cost_is_the_metric_at_the_end(metric, plan, cost):
    parts = tanks(effect="(and (g) (increase (total-cost) (h ?x)))", metric=metric)
    assert check_both(*parts, plan, "valid").cost == cost


def test_cost_is_unknown_where_the_plan_does_not_run_or_the_metric_has_no_value():
    texts = tanks(metric="(:metric minimize (+ (total-cost) (u)))")
    verdict = judge(*texts, "(go a)")
    assert (verdict.valid, verdict.executable, verdict.cost) == (False, True, None)
    assert (verdict.goals_reached, verdict.goals, verdict.failed_condition) == (1, 1, "(u)")
    assert_not_valid_for_val(*texts)
    assert judge(*tanks("(> (f) 9)", metric="(:metric minimize (f))"), "(go a)").cost is None


@pytest.mark.parametrize("typed", [True, False])
def test_total_cost_needs_no_declaration_where_nothing_is_typed(typed):
    domain = f"""(define (domain d) {"(:types t)" * typed} (:predicates (g))
      (:action go :parameters () :precondition () :effect (and (g) (increase (total-cost) 1))))"""
    problem = "(define (problem p) (:domain d) (:init) (:goal (g)) (:metric minimize (total-cost)))"
    if typed:
        check_refused(domain, problem, "(go)")
    else:
        assert check_both(domain, problem, "(go)", "valid").cost == 1.0


# Numbers and arithmetic that VAL has not; what is no function, or not with these arguments; wrong numbers of parts; a
# change of numbers that stands neither inside `and` nor inside `when`.
UNREADABLE = {
    "precondition": """(= (f) (+ 1 1 1)) (= (f) (+ 3)) (= (f) 3e0) (= (f) .3) (= (total-time) 0)
        (> (f) ?x) (= ?x 3) (> (h) 1) (f) (> (f))""",
    "effect": """(and (g) (increase (f) total-time)) (and (g) (increase 3 1)) (and (g) (increase (f)))
        (increase (f) 1) (forall (?y) (increase (f) 1))""",
    "init": "(= (u) (f)) (= (u) 1 2)",
}
LENIENT = {
    "effect": "(and (g) (increase (nope) 1))",
    "init": "(= (h) 1) (= u 1) (= (u) 4294967296)",
    "metric": "(:metric maximise (f)) (:metric minimize (- 1 2 3)) (:metric)",
}


ERRORS = [(part, form, False) for part, text in UNREADABLE.items() for form in forms(text)]
ERRORS += [(part, form, True) for part, text in LENIENT.items() for form in forms(text)]


@pytest.mark.parametrize(("part", "form", "val_reads_on"), ERRORS)
def test_what_val_cannot_read_and_some_of_what_it_reads_on_through_is_an_error(part, form, val_reads_on):
    check_refused(*tanks(**{part: form}), val_reads_on=val_reads_on)


def test_whole_numbers_have_32_bits_and_there_is_one_metric():
    check_refused(*tanks("(< (f) 4294967296)", goal="(not (g))"))
    check_refused(*tanks(metric="(:metric minimize 1) (:metric minimize 2)"), val_reads_on=True)


def test_functions_whose_values_are_objects_are_refused():
    with pytest.raises(UnsupportedPddlError, match=r"^<domain>:1: "):
        parse_domain("(define (domain d) (:functions (spot) - object) (:derived (p) (p)))")


def test_sums_over_many_objects_are_in_the_order_of_their_declaration():
    """As VAL computes them; beside 1e20 a 1 is lost, so that hardly any other order has this result."""
    domain = """(define (domain d) (:requirements :adl :fluents)
      (:predicates (part ?x) (g)) (:functions (sum) (size ?x))
      (:action add :parameters () :precondition ()
        :effect (and (g) (forall (?x) (when (part ?x) (and (increase (sum) (size ?x))))))))"""
    sizes = ["100000000000000000000.0", *["1"] * 9, "-100000000000000000000.0"]
    values = " ".join(f"(part o{number}) (= (size o{number}) {size})" for number, size in enumerate(sizes))
    objects = " ".join(f"o{number}" for number in range(len(sizes)))
    problem = f"""(define (problem p) (:domain d) (:objects {objects}) (:init (= (sum) 0) {values}) (:goal (g))
      (:metric minimize (sum)))"""
    assert judge(domain, problem, "(add)").cost == 0
