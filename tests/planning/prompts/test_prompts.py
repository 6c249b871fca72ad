"""Prompt styles: rendering, strict reading back, and the words of a tokenizer."""

import pytest

from jaxppo.errors import ConfigError
from jaxppo.planning import (
    ParsedPlan,
    PlanError,
    UnsupportedPddlError,
    parse_completion,
    parse_domain,
    parse_problem,
    render_completion,
    render_prompt,
    vocabulary,
)
from jaxppo.planning.domains import BLOCKSWORLD
from tests.planning.delivery import DELIVERY, ERRAND

PLAN = (("unstack", "b", "a"), ("stack", "a", "b"))


def test_atoms_are_written_in_their_order():
    text = """(define (problem p) (:domain blocksworld) (:objects a b)
        (:init (on b a) (ontable a) (clear b) (handempty)) (:goal (and (on a b) (not (holding b)))))"""
    prompt = render_prompt(BLOCKSWORLD.pddl, text)
    assert prompt == "<init> on b a ; ontable a ; clear b ; handempty <goal> on a b ; not holding b <plan>"
    empty = render_prompt(BLOCKSWORLD.pddl, "(define (problem p) (:domain d) (:init) (:goal ()))")
    assert empty == "<init> <goal> <plan>"
    assert render_completion(PLAN) == "unstack b a ; stack a b"
    assert render_completion(()) == ""


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("unstack b a ; stack a b", PLAN),
        ("UNSTACK  B a;stack\ta b", PLAN),
        (" unstack b a\n;\r\nstack a b ", PLAN),
        ("", ()),
        (" \n", ()),
    ],
)
def test_parse_completion_reads_steps(text, plan):
    assert parse_completion(text) == ParsedPlan(plan)


@pytest.mark.parametrize(
    ("text", "n_actions"),
    [
        ("unstack b a ;", 1),
        ("unstack b a ; ; stack a b", 1),
        ("unstack b a ; stack a b <eos>", 1),
        ("unstack b a ; (stack a b)", 1),
        ("unstack b 1", 0),
        ("unstack b\u00a0a", 0),
        ("unstack b \u0430", 0),
        ("a " * 500_000 + "<", 0),
    ],
)
def test_parse_completion_stops_at_anything_else(text, n_actions):
    plan = parse_completion(text)
    with pytest.raises(ConfigError, match=r"prompt_style.*haiku"):
        parse_completion(text, style="haiku")
    assert (len(plan.actions), plan.error, plan.error_step) == (n_actions, PlanError.SYNTAX, n_actions + 1)


def test_vocabulary_holds_constants_and_negation():
    names = parse_problem(ERRAND, parse_domain(DELIVERY)).objects
    assert set(render_prompt(DELIVERY, ERRAND).split()) <= set(vocabulary([DELIVERY], names))


@pytest.mark.parametrize(
    ("goal", "named"),
    [("(or (in b1 v) (in b2 v))", r"\(in b2 v\)"), ("(and (in b1 v) (> (total-cost) 3))", "numbers")],
)
def test_render_prompt_refuses_what_it_cannot_write(goal, named):
    text = ERRAND.replace("(and (in b1 v) (not (at v hub)))", goal)
    with pytest.raises(UnsupportedPddlError, match=rf"errand:1.*{named}"):
        render_prompt(DELIVERY, text)
