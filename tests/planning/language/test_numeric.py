"""Numeric fluents and costs: tables of verdicts, each checked against VAL as well, and the arithmetic itself."""

import math

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning import PlanError, execute, find_val, parse_domain, parse_plan_text, parse_problem
from jaxppo.planning.language.numeric import compare
from tests.planning.cpu_time import within
from tests.planning.val_oracle import ask_val, check_both, needs_val

DOMAIN = """(define (domain tanks) (:requirements :adl :fluents)
  (:predicates (p) (g) (r ?x ?y))
  (:functions (f) (u) (h ?x) (total-cost))
  (:action go :parameters (?x) :precondition {precondition} :effect {effect}))"""
PROBLEM = """(define (problem few) (:domain tanks) (:objects a b c)
  (:init (p) (r a b) (= (f) 3) (= (h a) 1) (= (h b) 2) (= (h c) 7) (= (total-cost) 0) {init})
  (:goal {goal}) {metric})"""


def tanks(precondition="()", effect="(g)", goal="(g)", metric="", init="") -> tuple[str, str]:
    return DOMAIN.format(precondition=precondition, effect=effect), PROBLEM.format(goal=goal, metric=metric, init=init)


def judge(parts: tuple[str, str], plan: str = "(go a)"):
    domain, problem = parts
    return execute(parse_problem(problem, parse_domain(domain)), parse_plan_text(plan).actions)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        # (f) is 3. VAL takes numbers closer than 0.0001 for equal, and lets equal numbers pass `<` and `>`.
        ("(= (f) 3)", "valid"),
        ("(= (f) 3.00009)", "valid"),
        ("(= (f) 3.00011)", 1),
        ("(not (= (f) 3.00009))", 1),
        ("(not (= (f) 3.00011))", "valid"),
        ("(< (f) 4)", "valid"),
        ("(< (f) 3)", "valid"),
        ("(< (f) 2.99991)", "valid"),
        ("(< (f) 2.99989)", 1),
        ("(not (< (f) 3))", 1),
        ("(not (< (f) 2))", "valid"),
        ("(<= (f) 3)", "valid"),
        ("(<= (f) 2.99991)", "valid"),
        ("(<= (f) 2.99989)", 1),
        ("(> (f) 2)", "valid"),
        ("(> (f) 3)", "valid"),
        ("(> (f) 3.00009)", "valid"),
        ("(> (f) 3.00011)", 1),
        ("(not (> (f) 3))", 1),
        ("(>= (f) 3)", "valid"),
        ("(>= (f) 3.00009)", "valid"),
        ("(>= (f) 3.00011)", 1),
        ("(>= 3.00011 (f))", "valid"),
        ("(<= 3.00011 (f))", 1),
        # Expressions.
        ("(= (+ (f) (h ?x)) 4)", "valid"),
        ("(= (- (f) (h ?x)) 2)", "valid"),
        ("(= (- (f)) -3)", "valid"),
        ("(= (- 3) (- (f)))", "valid"),
        ("(= (* (f) (h b)) 6)", "valid"),
        ("(= (/ (f) (h b)) 1.5)", "valid"),
        ("(= (/ (f) (h b)) 1)", 1),
        ("(= (* 2 (+ (f) (- (h c) 1))) 18)", "valid"),
        ("(> (h a) (h b))", 1),
        ("(= f 3.)", "valid"),
        ("(= 3 f)", "valid"),
        ("(= 2 2)", "valid"),
        ("(< 3 2)", 1),
        # Division by zero gives infinities and NaN, which equals nothing.
        ("(> (/ (f) 0) 1000000)", "valid"),
        ("(< (/ (f) 0) 0)", 1),
        ("(< (/ (- (f)) 0) -1000000)", "valid"),
        ("(= (/ 0 0) (/ 0 0))", 1),
        ("(not (= (/ 0 0) 0))", "valid"),
        ("(>= (/ 0 0) 0)", 1),
        ("(= (/ 1 0) (/ 1 0))", 1),
        # Quantifiers.
        ("(forall (?y) (>= (h ?y) 1))", "valid"),
        ("(forall (?y) (>= (h ?y) 2))", 1),
        ("(exists (?y) (= (h ?y) 7))", "valid"),
        ("(exists (?y) (and (r ?x ?y) (= (h ?y) 2)))", "valid"),
        ("(exists (?y) (and (r ?x ?y) (= (h ?y) 7)))", 1),
        # (u) has no value: reading it is an error, unless what is read before decides.
        ("(> (u) 0)", 1),
        ("(not (> (u) 0))", 1),
        ("(or (p) (> (u) 0))", "valid"),
        ("(or (and (not (p)) (> (u) 0)) (p))", "valid"),
        ("(imply (g) (> (u) 0))", "valid"),
    ],
)
def test_conditions(condition, expected):
    check_both(*tanks(condition), "(go a)", expected)


HUGE = f"1{'0' * 300}.0"


@pytest.mark.parametrize(
    ("value", "condition", "expected"),
    [
        # Closer to the tolerance than a double can say; what is as far away as it counts for `<=` and `>=` only.
        ("1", "(= (u) (+ 1 0.0001))", 1),
        ("0", "(= (u) (+ 0 0.0001))", 1),
        ("0", "(>= (u) (+ 0 0.0001))", "valid"),
        ("0", "(<= (+ 0 0.0001) (u))", "valid"),
        ("0", "(> (u) (+ 0 0.0001))", 1),
        # More digits than a double has, within an expression.
        ("9007199254740992.0", "(= (+ (u) 1) (u))", 1),
        ("100000000000000000.0", "(< (- (+ (u) 1) (u)) 0.5)", 1),
        ("18446744073709551616.0", "(= (+ (u) 1) (u))", "valid"),
        ("0.1", "(> (- (* 10000000000000000.0 (+ (u) 0.2)) (* 10000000000000000.0 0.3)) 0.4)", 1),
        # Larger numbers than a double can hold.
        (HUGE, "(not (>= (- (* (u) (u)) (* (u) (u))) 0))", 1),
        (HUGE, "(> (* (u) (u)) (u))", "valid"),
        (HUGE, "(= (* (u) (u)) (* (u) (u)))", "valid"),
        # Zero has a sign.
        ("0", "(< (/ 1 (- (u))) 0)", "valid"),
        ("0", "(< (/ 1 (* (u) -1)) 0)", "valid"),
    ],
)
def test_expressions_are_computed_as_long_doubles(value, condition, expected):
    check_both(*tanks(condition, init=f"(= (u) {value})"), "(go a)", expected)


@pytest.mark.parametrize(
    ("value", "amount", "steps", "goal"),
    [
        # What a step computes is kept in full: 2^53 + 1 is no double. Reading it gives a double.
        ("9007199254740992.0", "1", 1, "(= (- (u) 9007199254740992.0) 0)"),
        ("9007199254740992.0", "1", 2, "(= (- (u) 9007199254740992.0) 2)"),
        ("0.1", "0.2", 1, "(> (- (* 10000000000000000.0 (u)) (* 10000000000000000.0 0.3)) 0.4)"),
    ],
)
def test_functions_are_kept_as_long_doubles_and_read_as_doubles(value, amount, steps, goal):
    parts = tanks(effect=f"(and (g) (increase (u) {amount}))", goal=goal, init=f"(= (u) {value})")
    check_both(*parts, steps * "(go a)\n", "valid")


@pytest.mark.parametrize(
    "effect",
    [
        "(and (g) (increase (u) 1) (when (p) (and (decrease (u) {huge}))))",
        "(and (g) (forall (?y) (and (increase (u) 0.5))) (decrease (u) {huge}))",
        "(and (g) (forall (?y) (and (increase (u) 0.5))) (when (p) (and (decrease (u) {huge}))))",
    ],
)
def test_conditional_changes_come_before_the_others_and_those_for_many_objects_last(effect):
    parts = tanks(effect=effect.format(huge=HUGE), goal="(> (u) 0.4)", init=f"(= (u) {HUGE})")
    check_both(*parts, "(go a)", "valid")


@pytest.mark.parametrize(
    "condition",
    [
        "(or (> (u) 0) (p))",
        "(imply (> (u) 0) (p))",
        "(forall (?y) (or (> (u) 0) (p)))",
        "(exists (?y) (or (> (u) 0) (= ?y c)))",
        "(or (= a b) (> (f) (* 0 (u))))",
        "(= (u) (u))",
    ],
)
def test_reading_a_function_without_a_value_fails_the_step(condition):
    parts = tanks(condition)
    verdict = judge(parts)
    assert (verdict.valid, verdict.executable, verdict.failed_condition) == (False, False, condition)
    _assert_not_valid_for_val(parts)


def _assert_not_valid_for_val(parts, plan="(go a)"):
    assert find_val() is None or not ask_val(*parts, plan).valid


@pytest.mark.parametrize(
    ("effect", "goal", "expected"),
    [
        ("(and (g) (increase (f) 2))", "(= (f) 5)", "valid"),
        ("(and (g) (decrease (f) 2))", "(= (f) 1)", "valid"),
        ("(and (g) (assign (f) 2))", "(= (f) 2)", "valid"),
        ("(and (g) (scale-up (f) 2))", "(= (f) 6)", "valid"),
        ("(and (g) (scale-down (f) 2))", "(= (f) 1.5)", "valid"),
        ("(and (g) (scale-down (f) 0))", "(> (f) 1000)", "valid"),
        ("(and (g) (increase f (h ?x)))", "(= (f) 4)", "valid"),
        ("(and (g) (increase (f) (* 2 (+ (f) (h ?x)))))", "(= (f) 11)", "valid"),
        # Amounts and conditions are read in the old state.
        ("(and (increase (f) 1) (assign (h ?x) (f)))", "(and (= (f) 4) (= (h a) 3))", "valid"),
        ("(and (increase (f) 1) (when (= (f) 4) (g)))", "(g)", "missed"),
        # Increases and decreases of one function add up, everything else contradicts itself.
        ("(and (increase (f) 5) (increase (f) 7))", "(= (f) 15)", "valid"),
        ("(and (increase (f) 5) (increase (f) 5))", "(= (f) 13)", "valid"),
        ("(and (increase (f) 5) (decrease (f) 7))", "(= (f) 1)", "valid"),
        ("(and (increase (f) (f)) (increase (f) (f)))", "(= (f) 9)", "valid"),
        ("(and (increase (h ?x) 1) (increase (h a) 1))", "(= (h a) 3)", "valid"),
        ("(and (assign (f) 1) (assign (f) 1))", "(p)", 1),
        ("(and (assign (f) 1) (assign (f) 2))", "(p)", 1),
        ("(and (assign (f) 1) (increase (f) 2))", "(p)", 1),
        ("(and (increase (f) 2) (assign (f) 1))", "(p)", 1),
        ("(and (scale-up (f) 2) (scale-up (f) 2))", "(p)", 1),
        ("(and (scale-up (f) 2) (scale-down (f) 2))", "(p)", 1),
        ("(and (increase (f) 2) (scale-up (f) 2))", "(p)", 1),
        ("(and (assign (h ?x) 1) (assign (h a) 2))", "(p)", 1),
        ("(and (assign (h ?x) 1) (assign (h b) 2))", "(= (h b) 2)", "valid"),
        # Under conditions and for all objects.
        ("(when (p) (increase (f) 1))", "(= (f) 4)", "valid"),
        ("(when (g) (increase (f) 1))", "(= (f) 3)", "valid"),
        ("(and (when (p) (assign (f) 1)) (when (g) (assign (f) 2)))", "(= (f) 1)", "valid"),
        ("(and (when (p) (assign (f) 1)) (when (p) (assign (f) 2)))", "(p)", 1),
        ("(and (when (p) (increase (f) 1)) (when (p) (increase (f) 1)))", "(= (f) 5)", "valid"),
        ("(forall (?y) (and (increase (h ?y) 1)))", "(and (= (h a) 2) (= (h c) 8))", "valid"),
        ("(forall (?y) (and (increase (f) (h ?y))))", "(= (f) 13)", "valid"),
        ("(forall (?y) (and (assign (f) 1)))", "(p)", 1),
        ("(forall (?y) (when (r ?x ?y) (assign (f) (h ?y))))", "(= (f) 2)", "valid"),
        ("(forall (?y) (when (> (h ?y) 1.5) (increase (f) 1)))", "(= (f) 5)", "valid"),
        # A function without a value is changed as if it were 0, but not read.
        ("(and (g) (increase (u) 1))", "(= (u) 1)", "valid"),
        ("(and (g) (decrease (u) 1))", "(= (u) -1)", "valid"),
        ("(and (g) (scale-up (u) 2))", "(= (u) 0)", "valid"),
        ("(and (g) (assign (u) 2))", "(= (u) 2)", "valid"),
        ("(and (g) (when (not (p)) (increase (f) (u))))", "(g)", "valid"),
    ],
)
def test_effects(effect, goal, expected):
    check_both(*tanks(effect=effect, goal=goal), "(go a)", expected)


@pytest.mark.parametrize(
    ("effect", "blamed"),
    [
        ("(and (g) (assign (f) (u)))", "(assign (f) (u))"),
        ("(and (g) (increase (f) (+ 1 (u))))", "(increase (f) (+ 1 (u)))"),
        ("(and (g) (when (> (u) 0) (not (p))))", "(u)"),
        ("(and (assign (u) 1) (increase (f) (u)))", "(increase (f) (u))"),
        ("(and (assign (h ?x) 4) (increase (h a) 2))", "(increase (h a) 2)"),
    ],
)
def test_changes_that_cannot_be_made_fail_the_step(effect, blamed):
    parts = tanks(effect=effect, goal="(p)")
    verdict = judge(parts)
    assert (verdict.executable, verdict.failed_step, verdict.failed_condition) == (False, 1, blamed)
    _assert_not_valid_for_val(parts)


@pytest.mark.parametrize(
    ("init", "goal"),
    [
        ("(= (u) 1) (= (u) 2)", "(= (u) 2)"),  # the last one counts
        ("(= (u) -1.5)", "(= (u) -1.5)"),
        ("(= (u) 2147483647)", "(> (u) 2147483646)"),
        ("(= (u) 3000000000.0)", "(> (u) 2999999999.0)"),
    ],
)
def test_initial_values(init, goal):
    check_both(*tanks(init=init, goal=goal), "", "valid")


def test_the_goal_may_read_what_has_no_value_only_where_it_does_not_matter():
    check_both(*tanks(goal="(or (g) (> (u) 0))"), "(go a)", "valid")
    verdict = judge(tanks(goal="(and (g) (> (u) 0))"))
    assert (verdict.valid, verdict.goals_reached, verdict.failed_condition) == (False, 1, "(> (u) 0)")
    _assert_not_valid_for_val(tanks(goal="(and (g) (> (u) 0))"))


@pytest.mark.parametrize(
    ("metric", "plan", "cost"),
    [
        ("", "(go a) (go a)", 2.0),
        ("(:metric minimize (total-cost))", "(go a) (go b)", 3.0),
        ("(:metric minimize total-cost)", "(go b)", 2.0),
        ("(:metric minimize (+ total-time (* 2 (f))))", "(go a) (go a)", 8.0),
        ("(:metric maximize (+ (f) 1 (h c)))", "(go a)", 11.0),
        ("(:metric maximize (- (f)))", "(go a)", -3.0),
        ("(:metric minimize (/ (f) 0))", "(go a)", None),
    ],
)
def test_cost_is_the_metric_at_the_end(metric, plan, cost):
    parts = tanks(effect="(and (g) (increase (total-cost) (h ?x)))", metric=metric)
    assert check_both(*parts, plan, "valid").cost == cost


def test_cost_is_unknown_where_the_plan_does_not_run_or_the_metric_has_no_value():
    metric = "(:metric minimize (+ (total-cost) (u)))"
    verdict = judge(tanks(metric=metric))
    assert (verdict.valid, verdict.executable, verdict.cost) == (False, True, None)
    assert (verdict.goals_reached, verdict.goals, verdict.failed_condition) == (1, 1, "(u)")
    _assert_not_valid_for_val(tanks(metric=metric))
    assert judge(tanks("(> (f) 9)", metric="(:metric minimize (f))")).cost is None


@pytest.mark.parametrize("typed", [True, False])
def test_total_cost_needs_no_declaration_where_nothing_is_typed(typed):
    domain = f"""(define (domain d) {"(:types t)" * typed} (:predicates (g))
      (:action go :parameters () :precondition () :effect (and (g) (increase (total-cost) 1))))"""
    problem = "(define (problem p) (:domain d) (:init) (:goal (g)) (:metric minimize (total-cost)))"
    if typed:
        with pytest.raises(PddlError, match="a function declared under ':functions'"):
            parse_domain(domain)
        _assert_not_valid_for_val((domain, problem), "(go)")
    else:
        assert check_both(domain, problem, "(go)", "valid").cost == 1.0


# What VAL cannot read, reads as something else, or crashes on.
UNREADABLE = [
    {"precondition": "(= (f) (+ 1 1 1))"},
    {"precondition": "(= (f) (+ 3))"},
    {"precondition": "(= (f) 3e0)"},
    {"precondition": "(= (f) .3)"},
    {"precondition": "(> (f) ?x)"},
    {"precondition": "(= ?x 3)"},
    {"precondition": "(> (f))"},
    {"precondition": "(> (f) 1 2)"},
    {"precondition": "(> (nope) 1)"},
    {"precondition": "(> (h) 1)"},
    {"precondition": "(= (total-time) 0)"},
    {"precondition": "(f)"},
    {"precondition": "(< (f) 4294967296)"},
    {"effect": "(increase (f) 1)"},
    {"effect": "(forall (?y) (increase (f) 1))"},
    {"effect": "(and (g) (increase (f)))"},
    {"effect": "(and (g) (increase 3 1))"},
    {"effect": "(and (g) (increase (f) total-time))"},
    {"init": "(= (u) (+ 1 2))"},
    {"init": "(= (u) (f))"},
    {"init": "(= (u) 1 2)"},
]
# What VAL reads on through.
LENIENT = [
    {"effect": "(and (g) (increase (nope) 1))"},
    {"init": "(= (nope) 1)"},
    {"init": "(= (h) 1)"},
    {"init": "(= u 1)"},
    {"metric": "(:metric maximise (f))"},
    {"metric": "(:metric minimize (nope)) "},
    {"metric": "(:metric minimize (- 1 2 3))"},
    {"metric": "(:metric)"},
    {"metric": "(:metric minimize 1) (:metric minimize 2)"},
    {"init": "(= (u) 4294967296)"},
    {"effect": "(and (g) (assign (r a b) 3))"},
]


@pytest.mark.parametrize("parts", [*UNREADABLE, *LENIENT], ids=lambda parts: " ".join(parts.values()))
def test_malformed_numbers_are_an_error(parts):
    domain, problem = tanks(**parts)
    with pytest.raises(PddlError, match=r"^<(?:domain|problem)>:[1-4]: expected .*, got "):
        parse_problem(problem, parse_domain(domain))


@needs_val
@pytest.mark.parametrize("parts", UNREADABLE, ids=lambda parts: " ".join(parts.values()))
def test_val_cannot_read_them_indeed(parts):
    goal = "(g)" if "init" in parts or "effect" in parts or "4294967296" not in parts["precondition"] else "(not (g))"
    assert not ask_val(*tanks(**parts, goal=goal), "(go a)").valid


@pytest.mark.parametrize(
    ("domain", "feature"),
    [
        (
            "(define (domain d) (:functions (spot) - object) (:derived (p) (p)))",
            "functions whose values are no numbers",
        ),
        ("(define (domain d) (:predicates (p)) (:functions (f)) (:process x :parameters ()))", ":process"),
    ],
)
def test_other_kinds_of_functions_and_changes_are_refused_by_name(domain, feature):
    with pytest.raises(PddlError, match=f"got '{feature}', which is not supported"):
        parse_domain(domain)


@pytest.mark.parametrize(("operator", "below", "equal", "above"), [("<", 1, 1, 0), ("<=", 1, 1, 0), ("=", 0, 1, 0)])
def test_compare(operator, below, equal, above):
    assert [compare(operator, 1.0, other) for other in (2.0, 1.00005, 0.0)] == [below, equal, above]
    assert not compare(operator, math.nan, 1.0)


def test_compare_mirrors():
    for left, right in ((1.0, 2.0), (1.0, 1.00005), (2.0, 1.0), (math.inf, 1.0), (math.inf, math.inf)):
        assert compare(">", left, right) == compare("<", right, left)
        assert compare(">=", left, right) == compare("<=", right, left)


@pytest.mark.parametrize("effect", ["(assign (f) {})", "(when (p) (and (assign (f) {})))"])
def test_long_arithmetic_in_every_step_ends_soon(effect):
    def tree(depth):
        return f"(+ {tree(depth - 1)} (* 0.3 {tree(depth - 1)}))" if depth else "(f)"

    with within(5):
        verdict = judge(tanks(effect=f"(and (g) {effect.format(tree(9))})"), "(go a)\n" * 3_000)
    assert verdict.error is PlanError.VALIDATOR_TIMEOUT
    assert judge(tanks(effect=f"(and (g) {effect.format(tree(3))})"), "(go a)\n" * 300).valid
