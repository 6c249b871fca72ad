"""The rules that cut a plan out of an answer, and sentences, against plans worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo.planning import parse_domain, parse_problem
from jaxppo.planning.answers.extraction import RULES, PlanReader
from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.language.plans import PlanError, format_action

STACKS = """(define (domain stacks) (:predicates (on ?x ?y) (clear ?x) (holding ?x))
  (:action pick-up :parameters (?x) :precondition (clear ?x) :effect (holding ?x))
  (:action put-down :parameters (?x) :precondition (holding ?x) :effect (clear ?x))
  (:action stack :parameters (?x ?y) :precondition (holding ?x) :effect (on ?x ?y)))"""
PROBLEM = "(define (problem p) (:domain stacks) (:objects a b) (:init (clear a) (clear b)) (:goal (on a b)))"
CONFIG = {
    "actions": {"pick-up": "pick up the {}", "put-down": "put down the {}", "stack": "stack the {} on top of the {}"},
    "encoded_objects": {"a": "red block", "b": "dark blue block"},
    "encoded_objects_compact": {"a": "red", "b": "blue"},
}


def reader(with_sentences=True):
    problem = parse_problem(PROBLEM, parse_domain(STACKS))
    return PlanReader(problem.domain.actions, Sentences(CONFIG, problem) if with_sentences else None)


SHORT = "(pick-up a)"
FULL = "(pick-up a) (stack a b)"
PROSE = "First (as you know) think.\n(pick-up b)\nWrong, since\n1. (pick-up a),\n2. (stack a b)\nCheck (pick-up a)."

CASES = [
    # text, what strict, fenced, longest and last read; None: nothing
    (FULL, FULL, FULL, FULL, FULL),
    (f"; a comment (stack b a)\n{FULL}\n", FULL, FULL, FULL, FULL),
    ("", "", "", "", ""),
    ("I do not know.", None, None, None, None),
    (f"```pddl\n{FULL}\n```", None, FULL, FULL, FULL),
    (f"```\n{FULL}", None, FULL, FULL, FULL),  # never closed
    (f"```\n{SHORT}\n```\nNo:\n```\n{FULL}\n```", None, FULL, FULL, FULL),
    (f"```\n{FULL}\n```\nand then\n```\nno plan\n```", None, FULL, FULL, FULL),
    (f"[PLAN]\n{FULL}\n[PLAN END] as asked", None, FULL, FULL, FULL),
    (f"<plan>{FULL}</plan>.", None, FULL, FULL, FULL),
    ("| (pick-up a) | (stack a b) |", None, None, FULL, FULL),
    (PROSE, None, None, FULL, SHORT),
    # No step of these is the domain's: then any will do.
    ("Go: (move a b) (move b a)", None, None, "(move a b) (move b a)", "(move a b) (move b a)"),
    ("pick up the red block\nstack the red block on top of the dark blue block\n", FULL, FULL, FULL, FULL),
    ("[PLAN]\npick up the red block\n[PLAN END]\n", SHORT, SHORT, SHORT, SHORT),
    ("1. Pick up the red block.\n2. **Stack the red block on top of the dark blue block.**", None, None, FULL, FULL),
    ("1. pick up red block\n2. stack RED on blue", None, None, FULL, FULL),
    ("Pick up a. Stack a on top of b!", None, None, FULL, FULL),
    ("Pick up the green block. Put down the red block onto it.", None, None, "(put-down a)", "(put-down a)"),
    ("unstack the red block on top of the dark blue block", None, None, None, None),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_read_cuts_a_plan_out_by_each_rule(case):
    text, *expected = case
    for rule, wanted in zip(RULES, expected, strict=True):
        read = reader().read(text, rule)
        if wanted is None:
            assert read.error is PlanError.SYNTAX, rule
        else:
            assert (read.error, " ".join(map(format_action, read.actions))) == (None, wanted), rule
    if "pick up" in text.lower():  # sentences, which only a configuration has
        assert reader(with_sentences=False).read(text, "last").error is PlanError.SYNTAX


PIECES = ["(pick-up a)", "(stack a b)", "x", "\n", " ", "```\n", "1.", ",", "pick up the red", "(", "[PLAN]"]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(PIECES)))
def test_rules_leave_plans_alone_and_find_no_step_that_is_not_there(parts):
    text = "".join(parts)
    strict = reader().read(text, "strict")
    for rule in RULES[1:]:
        read = reader().read(text, rule)
        assert read == strict or strict.error is not None
        assert read.actions.count(("stack", "a", "b")) <= text.count("(stack a b)")
        assert read.error is not None or len(read.actions) <= text.count("(") + text.count("pick up the red")


LOADS = """(define (domain loads) (:predicates (truck ?t) (airplane ?t) (in ?p ?t) (box ?p))
  (:action load-truck :parameters (?p ?t) :precondition (and (truck ?t) (box ?p)) :effect (in ?p ?t))
  (:action load-airplane :parameters (?p ?t) :precondition (and (airplane ?t) (box ?p)) :effect (in ?p ?t)))"""


def test_objects_decide_where_two_actions_have_one_sentence():
    problem = parse_problem(
        "(define (problem p) (:domain loads) (:objects p0 t0 a0) (:init (truck t0) (airplane a0) (box p0))"
        " (:goal (in p0 t0)))",
        parse_domain(LOADS),
    )
    config = {
        "actions": {"load-truck": "load {} into {}", "load-airplane": "load {} into {}"},
        "encoded_objects": {"p": "package_{}", "t": "truck_{}", "a": "airplane_{}"},
    }
    sentences = Sentences(config, problem)
    text = "load package_0 into airplane_0\nload package_0 into truck_0\nload truck_0 into package_0\n"
    expected = [("load-airplane", "p0", "a0"), ("load-truck", "p0", "t0"), ("load-truck", "t0", "p0")]
    assert list(sentences.read(text)) == expected
    assert [action for _, action in sentences.find(text)] == expected


def test_find_takes_letters_that_are_alike_in_one_case_for_other_letters():
    problem = parse_problem(PROBLEM, parse_domain(STACKS))
    config = CONFIG | {"encoded_objects": {"a": "silver block", "b": "pink block"}}
    sentences = Sentences(config, problem)
    for name in ("\u017filver block", "p\u0131nk block"):
        assert list(sentences.find(f"pick up the {name}")) == []
    assert [action for _, action in sentences.find("PICK UP THE SILVER BLOCK")] == [("pick-up", "a")]
