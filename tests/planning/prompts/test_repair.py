"""Turns that say what is wrong with a plan: the reason, the words of every style, and conversations that only grow."""

import pytest

from jaxppo.planning import prompts
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.prompts import Fault, conversation, find_fault, parse_completion, render_fault

PROBLEM = """(define (problem p) (:domain blocksworld) (:objects a b c)
  (:init (ontable a) (on b a) (clear b) (ontable c) (clear c) (handempty)) (:goal (and (on a b) (ontable c))))"""
LOCKED = """(define (domain locks) (:predicates (locked ?x) (open ?x) (odd ?x))
  (:action enter :parameters (?x ?y) :precondition (and (not (locked ?x)) (or (open ?x) (odd ?x)) (not (= ?x ?y)))
   :effect (open ?x)))"""
DOOR = "(define (problem d) (:domain locks) (:objects d e) (:init (locked d)) (:goal (open d)))"

CASES = {
    "unstack b a ; put-down b ; pick-up b ; stack b c": Fault(missing=("(on a b)",)),
    "": Fault(missing=("(on a b)",)),
    "unstack b a ; pick-up c": Fault(2, ("pick-up", "c"), ("(handempty)",)),
    "stack b a": Fault(1, ("stack", "b", "a"), ("(holding b)", "(clear a)")),
    "unstack a c": Fault(1, ("unstack", "a", "c"), ("(on a c)", "(clear a)")),
    "unstack b a ; pick-up z": Fault(2, ("pick-up", "z")),
    "pick-up": Fault(1, ("pick-up",)),
    "unstack b a ; ;": Fault(2),
    "unstack b a ; put-down b ; pick-up a ; stack a b": Fault(),  # nothing is wrong
}


@pytest.mark.parametrize(("text", "fault"), CASES.items())
def test_find_fault_says_which_step_and_everything_that_it_lacks(text, fault):
    assert find_fault(BLOCKSWORLD.pddl, PROBLEM, parse_completion(text)) == fault


@pytest.mark.parametrize(
    ("fault", "atoms", "pddl", "nl"),
    [
        (
            Fault(3, ("stack", "a", "b"), ("(clear b)",)),
            " not stack a b ; clear b <plan>",
            "This plan is not valid: step 3: (stack a b): (clear b) does not hold.",
            "This plan is not valid: step 3: stack block a on block b: this is not so: nothing is on block b.",
        ),
        (
            Fault(missing=("(on a b)", "(ontable c)")),
            " not <goal> on a b ; ontable c <plan>",
            "This plan is not valid: at its end (on a b) and (ontable c) do not hold.",
            "This plan is not valid: at its end this is not so: block a is on block b; block c is on the table.",
        ),
        (
            Fault(1, ("fly", "a")),
            " not fly a <plan>",
            "This plan is not valid: step 1: (fly a): that is no action of this problem.",
            "This plan is not valid: step 1: fly a: that is no action of this problem.",
        ),
        (
            Fault(2),
            " not <plan>",
            "This plan is not valid: step 2 cannot be read.",
            "This plan is not valid: step 2 cannot be read.",
        ),
        (Fault(), " not <plan>", "This plan is not valid.", "This plan is not valid."),
    ],
)
def test_every_style_has_its_words_for_a_fault(fault, atoms, pddl, nl):
    said = {style: render_fault(fault, style, BLOCKSWORLD.pddl) for style in prompts.PROMPT_STYLES}
    assert said == {
        "atoms": atoms,
        "brief": atoms,
        "pddl": f"\n\n{pddl}\nPlan, one action a line:\n",
        "nl": f"\n\n{nl}\nWrite the whole plan again.\nPlan:\n",
    }


def test_conditions_that_are_no_facts_are_left_out_of_atoms_and_written_as_they_are_elsewhere():
    fault = find_fault(LOCKED, DOOR, parse_completion("enter d d"))
    assert fault.missing == ("(not (locked d))", "(or (open d) (odd d))", "(not (= d d))")
    assert render_fault(fault, "atoms", LOCKED) == " not enter d d ; not locked d <plan>"
    lacks = "this is not so: it is not true that locked holds for d; (or (open d) (odd d))"
    assert f"{lacks}; it is not true that d and d are the same." in render_fault(fault, "nl", LOCKED)
    assert "(not (locked d)) and (or (open d) (odd d)) and (not (= d d)) do not hold" in render_fault(fault, "pddl")


@pytest.mark.parametrize("style", prompts.PROMPT_STYLES)
def test_a_conversation_is_the_beginning_of_every_longer_one_and_its_plans_can_be_read_back(style):
    prompt = prompts.render_prompt(BLOCKSWORLD.pddl, PROBLEM, style)
    plans = [(("pick-up", "c"),), (("unstack", "b", "a"), ("stack", "b", "c"))]
    texts = [prompts.render_completion(plan, style, BLOCKSWORLD.pddl) for plan in plans]
    read = [parse_completion(text, style, BLOCKSWORLD.pddl) for text in texts]
    said = [render_fault(find_fault(BLOCKSWORLD.pddl, PROBLEM, p), style, BLOCKSWORLD.pddl) for p in read]
    turns = list(zip(texts, said, strict=True))
    first, second = (conversation(prompt, turns[:count], style) for count in (1, 2))
    assert conversation(prompt, [], style) == prompt
    assert first.startswith(prompt) and second.startswith(first)
    plan = second.removeprefix(first).removesuffix(said[1])
    assert parse_completion(plan, style, BLOCKSWORLD.pddl).actions == plans[1]
    assert len({text[-6:] for text in (prompt, first, second)}) == 1  # each ends where a plan begins
