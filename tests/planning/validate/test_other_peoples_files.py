"""Files as other people write them: what VAL reads is read as VAL means it, and what it cannot is named or listed."""

import logging

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning import (
    Audit,
    AuditResult,
    UnsupportedPddlError,
    execute,
    parse_domain,
    parse_problem,
    validate_plan,
)
from jaxppo.planning.answers.plan_check import check_as_text, check_plan
from jaxppo.planning.language.plans import format_action, parse_plan_text
from jaxppo.planning.validate.val import with_preconditions
from tests.planning.val_oracle import check_both, deviation, judge, needs_val

KEY = """(define (domain safe) (:requirements :adl :typing) (:types thing key)
  (:constants spare - key)
  (:predicates (shut ?t - thing) (fits ?k - key ?t - thing) (got))
  (:action open :parameters (?t - thing ?k - key) :precondition (and (shut ?t) (fits ?k ?t))
    :effect (and (not (shut ?t)) (got))))"""
BOX = """(define (problem box) (:domain safe)
  (:objects b - thing k - key)
  (:init (shut b) (fits k b))
  (:goal (got)))"""
PLAN = "(open b k)"


def changed(text, old, new):
    assert old in text
    return text.replace(old, new)


def key(old, new):
    return changed(KEY, old, new), BOX


def box(old, new):
    return KEY, changed(BOX, old, new)


READ = {
    "no blanks": key("(and (shut ?t) (fits ?k ?t))", "(and(shut?t)(fits?k?t))"),
    "no blanks at types": box("b - thing k - key", "b -thing k -key"),
    "blank in a variable": key("(shut ?t - thing)", "(shut ?\n t - thing)"),
    "types without names": box("b - thing", "- key b - thing - thing"),
    "one variable twice": key("(fits ?k - key ?t - thing)", "(fits ?t - key ?t - thing)"),
    "byte order mark": ("\ufeff" + KEY, "\ufeff" + BOX),
    "foreign blanks": box("b - thing", "b\u00a0- thing"),
    "spare parenthesis": (KEY + ")", BOX + "\n)\n"),
    "text behind": (KEY + " (define (domain other))", BOX + " the end"),
    "constant declared again": box("k - key)", "k - key spare - key)"),
    "object without a type is harmless": box("k - key)", "k - key stray)"),
    "a length": box("(:goal (got))", "(:length :serial 3 :parallel 2) (:goal (got))"),
    "a function of a predicate's name": key("(got))\n", "(got) (size ?t - thing)) (:functions (size ?t - thing))\n"),
    "no precondition": (KEY[:-1] + "(:action wait :parameters (?t - thing) :effect (shut ?t)))", BOX),
}


@pytest.mark.parametrize(("domain", "problem"), READ.values(), ids=READ)
def test_what_val_reads_is_read(domain, problem):
    check_both(domain, problem, PLAN, "valid")
    check_both(domain, problem, "", "missed")


# Types of one name, as they are declared, and those that an object of it can stand for.
TYPES = """(define (domain kinds) (:requirements :typing) (:types a b c) (:constants z - a) (:predicates (g))
  (:action as-a :parameters (?x - a) :precondition () :effect (g))
  (:action as-b :parameters (?x - b) :precondition () :effect (g))
  (:action as-c :parameters (?x - c) :precondition () :effect (g)))"""


@pytest.mark.parametrize(
    ("objects", "fitting"),
    [
        ("o - a o - b", "ab"),
        ("o - a o - a", "a"),
        ("o o - b", "b"),
        ("o - a o - (either b c)", "abc"),
        ("o - (either b c) o - a", "a"),
        ("o - a o - b o - c", "abc"),
        ("z - b z - c", "abc"),
        ("z", "a"),
    ],
)
def test_an_object_declared_again_has_the_types_that_val_gives_it(objects, fitting):
    problem = f"(define (problem p) (:domain kinds) (:objects {objects}) (:init) (:goal (g)))"
    assert list(parse_problem(problem, parse_domain(TYPES)).objects) == list(dict.fromkeys(["z", objects[0]]))
    for kind in "abc":
        plan = f"(as-{kind} {objects[0]})"
        if kind in fitting:
            check_both(TYPES, problem, plan, "valid")
        else:
            assert not judge(TYPES, problem, plan).valid


def test_of_parameters_with_one_name_the_last_object_counts():
    action = "(:action take :parameters (?x ?x) :precondition (q ?x) :effect (and (not (q ?x)) (g)))"
    domain = f"(define (domain d) (:predicates (q ?x) (g)) {action})"
    problem = "(define (problem p) (:domain d) (:objects a b) (:init (q b)) (:goal (g)))"
    check_both(domain, problem, "(take a b)", "valid")
    check_both(domain, problem, "(take b a)", 1)
    forall = changed(domain, "(and (not (q ?x)) (g))", "(forall (?y ?y) (g))")
    forall = changed(forall, "(q ?x) :", "(exists (?z ?z) (q ?z)) :")
    check_both(forall, problem, "(take b a)", "valid")


def test_text_behind_the_definition_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        parse_domain(KEY + " ; a comment\n ", "quiet.pddl")
        assert not caplog.records
        parse_domain(KEY + ")", "loud.pddl")
    (record,) = caplog.records
    assert "loud.pddl" in record.getMessage()


EVERY = "(forall (?x - thing) (not (shut ?x)))"


@pytest.mark.parametrize(
    ("domain", "problem"),
    [
        (KEY, changed(changed(BOX, "(got)", EVERY), "k - key)", "k - key stray)")),
        (changed(KEY, "(got))))", f"(got) {EVERY})))"), changed(BOX, "k - key)", "k - key stray)")),
        (
            changed(changed(KEY, "(and (shut ?t)", "(and (exists (?x - key) (fits ?x ?t))"), "spare - key", "spare"),
            changed(BOX, "b - thing", "b - thing\n"),
        ),
    ],
)
def test_objects_without_a_type_are_an_error_where_something_asks_for_all_of_a_type(domain, problem):
    with pytest.raises(PddlError) as caught:
        validate_plan(domain, problem, PLAN)
    assert type(caught.value) is PddlError and ("stray" in str(caught.value) or "spare" in str(caught.value))


def switch(extra="", names="a", text="(up a)"):
    """A switch and a plan for it; VAL reads the domain as it is."""
    domain = f"""(define (domain switch) (:predicates (off ?l) (on ?l)) {extra}
      (:action up :parameters (?l) :precondition (off ?l) :effect (and (on ?l) (not (off ?l))))
      (:action down :parameters (?l) :precondition (on ?l) :effect (and (off ?l) (not (on ?l)))))"""
    problem = f"(define (problem p) (:domain switch) (:objects {names}) (:init (off a)) (:goal (on a)))"
    return domain, problem, parse_plan_text(text).actions


DEVIATIONS = {
    "after": switch(names="a after"),
    "supply-demand": switch(names="a supply-demand"),
    "at start": switch(names="a at start b"),
    "time": switch(names="a\ntime"),
    "long plan": switch(text="(up a)(down a)" * 5000 + "(up a)"),
    "many objects": switch(names=" ".join(["a", *(f"o{n}" for n in range(10_001))])),
    "no parameters": switch("(:action set :precondition (off a) :effect (on a))", text="(set)"),
    "no effect": switch("(:action nop :precondition (off a) :parameters ())", text="(nop) (up a)"),
}


@needs_val
@pytest.mark.parametrize("case", DEVIATIONS.values(), ids=DEVIATIONS)
def test_what_only_val_cannot_read_has_no_verdict_and_is_no_disagreement(case):
    verdict = execute(parse_problem(case[1], parse_domain(case[0])), case[2])
    assert verdict.valid and deviation(*case)
    assert Audit(1, 0, None).check([case], [verdict]) == AuditResult(1, 0, 1, [])


@needs_val
@pytest.mark.parametrize(
    "parameters",
    ["(?l)", "( ?l - (either object) )", "()", "(?l ; (a lamp)\n) ; :precondition (on a)"],
)
def test_val_judges_operators_without_a_precondition(parameters):
    extra = f"; (:action\n(:ACTION set\n:parameters {parameters}\n:effect (on a))"
    case = switch(extra, text="(set)" if parameters == "()" else "(set a)")
    verdict = execute(parse_problem(case[1], parse_domain(case[0])), case[2])
    assert verdict.valid and deviation(*case) is None
    assert Audit(1, 0, None).check([case], [verdict]) == AuditResult(1, 0, 0, [])
    check = check_plan(case[0], case[1], "".join(map(format_action, case[2])), ask_val=True)
    assert check["val"] is not None and check["val"]["valid"] and check["val_error"] is None


def test_val_is_handed_no_second_precondition():
    text = "(:action set :parameters (?l) :effect (on ?l) :precondition (off ?l))"
    assert with_preconditions(text) == text


@needs_val
@pytest.mark.parametrize("case", [DEVIATIONS["no effect"], DEVIATIONS["after"]])
def test_a_plan_that_val_says_nothing_about_keeps_its_verdict(case):
    check = check_plan(case[0], case[1], "".join(map(format_action, case[2])), ask_val=True)
    assert check["valid"] and check["val"] is None
    lines = check_as_text(check).splitlines()
    assert lines[0] == "plan valid"
    assert lines[-1].startswith("VAL gave no verdict: expected")


def test_other_plans_do_not_deviate():
    assert deviation(*switch(names="a afterwards at starting-point timer")) is None
    assert deviation(*switch("(:action nop :parameters () :precondition () :effect (and))")) is None


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("(:action open", "(:method m :parameters () :task (t) :subtasks (and)) (:action open", "HDDL"),
        ("(got)))", "(oneof (got) (shut ?t))))", "non-deterministic"),
        ("(got)))", "(probabilistic 0.5 (got))))", "PPDDL"),
        ("(:action open", "(:functions (owner ?t - thing) - key) (:action open", "object fluents"),
        ("(:action open", "(:axiom :vars () :context (got) :implies (got)) (:action open", "PDDL 1"),
    ],
)
def test_what_no_validator_covers_is_named_and_not_sent_to_val(old, new, named):
    for validator in ("builtin", "auto"):
        with pytest.raises(UnsupportedPddlError, match="nor by VAL") as caught:
            validate_plan(*key(old, new), PLAN, validator)
        assert named in str(caught.value) and "--validator" not in str(caught.value)
