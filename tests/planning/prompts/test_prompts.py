"""Prompt styles: rendering, strict reading back, and the words of a tokenizer."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from jaxppo.planning.solve.blocksworld import solve
from tests.planning.language.test_parse import DELIVERY, ERRAND

PLAN = (("unstack", "b", "a"), ("stack", "a", "b"))


def test_render_prompt_keeps_the_order_of_atoms():
    text = """(define (problem p) (:domain blocksworld) (:objects a b)
        (:init (on b a) (ontable a) (clear b) (handempty)) (:goal (and (on a b) (not (holding b)))))"""
    prompt = render_prompt(BLOCKSWORLD.pddl, text)
    assert prompt == "<init> on b a ; ontable a ; clear b ; handempty <goal> on a b ; not holding b <plan>"


def test_render_prompt_of_empty_sides():
    assert (
        render_prompt(BLOCKSWORLD.pddl, "(define (problem p) (:domain d) (:init) (:goal ()))") == "<init> <goal> <plan>"
    )


def test_render_completion():
    assert render_completion(PLAN) == "unstack b a ; stack a b"
    assert render_completion(()) == ""


@pytest.mark.parametrize(
    "text", ["unstack b a ; stack a b", "UNSTACK  B a;stack\ta b", " unstack b a\n;\r\nstack a b "]
)
def test_parse_completion_reads_steps(text):
    assert parse_completion(text) == ParsedPlan(PLAN)


@pytest.mark.parametrize("text", ["", " \n"])
def test_parse_completion_reads_the_empty_plan(text):
    assert parse_completion(text) == ParsedPlan(())


@pytest.mark.parametrize(
    ("text", "n_actions"),
    [
        ("unstack b a ;", 1),
        ("unstack b a ; ; stack a b", 1),
        ("; unstack b a", 0),
        ("unstack b a ; <plan>", 1),
        ("unstack b a ; stack a b <eos>", 1),
        ("unstack b a ; (stack a b)", 1),
        ("unstack b a . stack a b", 0),
        ("unstack b 1", 0),
        ("unstack b\u00a0a", 0),
        ("unstack b \u0430", 0),
        ("unstack b a\x00", 0),
        (";" * 1_000_000, 0),
        ("a " * 500_000 + "<", 0),
    ],
)
def test_parse_completion_stops_at_anything_else(text, n_actions):
    plan = parse_completion(text)
    assert (len(plan.actions), plan.error, plan.error_step) == (n_actions, PlanError.SYNTAX, n_actions + 1)


NAME = st.text("ab_-9", max_size=3).map("x".__add__)


@settings(deadline=None)
@given(st.lists(st.lists(NAME, min_size=1, max_size=4).map(tuple)))
def test_parse_completion_inverts_render_completion(actions):
    assert parse_completion(render_completion(actions)) == ParsedPlan(tuple(actions))


def test_vocabulary_holds_every_word_of_prompts_and_completions():
    domain = parse_domain(BLOCKSWORLD.pddl)
    words = vocabulary([BLOCKSWORLD.pddl], BLOCKSWORLD.names)
    assert words == sorted(set(words))
    assert {"<pad>", "<eos>"} < set(words)
    rng = random.Random(0)
    for _ in range(20):
        text = BLOCKSWORLD.generate_problem(6, rng, "p")
        plan = solve(parse_problem(text, domain))
        used = f"{render_prompt(BLOCKSWORLD.pddl, text)} {render_completion(plan)}".split()
        assert set(used) <= set(words)


def test_vocabulary_holds_constants_and_negation():
    names = parse_problem(ERRAND, parse_domain(DELIVERY)).objects
    assert set(render_prompt(DELIVERY, ERRAND).split()) <= set(vocabulary([DELIVERY], names))


def test_unknown_style_is_an_error():
    with pytest.raises(ConfigError, match=r"^prompt_style: expected one of atoms, brief, pddl, nl, got 'haiku'$"):
        parse_completion("", style="haiku")


@pytest.mark.parametrize(
    ("goal", "got"),
    [
        ("(or (in b1 v) (in b2 v))", r"a goal that is a conjunction of literals, got '\(or \(in b1 v\) \(in b2 v\)\)'"),
        ("(and (in b1 v) (> (total-cost) 3))", "conditions without numbers"),
    ],
)
def test_render_prompt_refuses_what_it_cannot_write(goal, got):
    text = ERRAND.replace("(and (in b1 v) (not (at v hub)))", goal)
    with pytest.raises(UnsupportedPddlError, match=f"^problem errand:1: expected {got}"):
        render_prompt(DELIVERY, text)
