"""The style `brief`: fewer words than `atoms`, what belongs together side by side, and nothing lost."""

import itertools
import random
import re

import pytest

from jaxppo.planning import UnsupportedPddlError, parse_domain, parse_problem, render_prompt
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.transform.renaming import rename_objects

KIND_OF_PLACE = {
    ("at", 0): "ball",
    ("at", 1): "room",
    ("at-robby", 0): "room",
    ("carry", 0): "ball",
    ("carry", 1): "gripper",
    ("free", 0): "gripper",
}
"""What a place of a predicate says of its object in Gripper, whose kinds are facts."""


def problems(name, count=6):
    module, rng = DOMAINS[name], random.Random(7)
    return [module.generate_problem(rng.choice(list(module.sizes)), rng, f"p-{number}") for number in range(count)]


def parts(prompt, domain):
    """Kinds of objects, facts, goals, and goals that hold, of a prompt; facts and goals as lists of words."""
    kinds, said = {}, {"<init>": [], "<goal>": [], "<kept>": []}
    for mark, text in re.findall(r"(<\w+>)([^<]*)", prompt.removesuffix("<plan>")):
        first, *words = text.split()
        if mark == "<objects>":
            kinds |= dict.fromkeys(words, first)
            continue
        if first == "not":
            first, words = f"not {words[0]}", words[1:]
        names = []
        for before, word in itertools.pairwise(["", *words, ""]):
            if before in domain.ancestors:
                kinds[word] = before
            elif before:
                names.append(before)
        said[mark].append((first, *names))
    return kinds, *said.values()


@pytest.mark.parametrize("name", DOMAINS)
def test_every_fact_can_be_read_from_the_prompt(name):
    domain = parse_domain(DOMAINS[name].pddl)
    for text in problems(name):
        problem = parse_problem(text, domain)
        kinds, facts, goals, kept = parts(render_prompt(DOMAINS[name].pddl, text, "brief"), domain)
        said = {
            (predicate, *pair)
            for predicate, *line in facts
            if len(line) > 2
            for pair in itertools.combinations(line, 2)
        }
        said |= {fact for fact in facts if len(fact) <= 3 or len(domain.predicates[fact[0]]) == len(fact) - 1}
        if name == "gripper":
            said |= {
                (KIND_OF_PLACE[fact[0], place], word)
                for fact in (*facts, *goals, *kept)
                for place, word in enumerate(fact[1:])
                if (fact[0], place) in KIND_OF_PLACE
            }
        assert said | {*kept} == problem.init and not said & {*kept}
        assert {*goals, *kept} == {literal.atom for literal in problem.goal}
        assert {*goals} == {literal.atom for literal in problem.goal} - problem.init
        assert all(problem.objects[word] == (kind,) for word, kind in kinds.items())


def test_an_object_without_a_type_is_an_object():
    domain = DOMAINS["driverlog"].pddl
    objects, rest = problems("driverlog", 1)[0].split("(:init")
    problem = f"{objects.rstrip().removesuffix(')')} spare) (:init{rest}"
    assert parse_problem(problem, parse_domain(domain)).objects["spare"] == ()
    assert "object spare" in render_prompt(domain, problem, "brief")


def test_a_relation_in_a_line_is_written_once():
    domain = DOMAINS["miconic"]
    problem = """(define (problem p) (:domain miconic) (:objects a b c - floor p - passenger)
      (:init (lift-at a) (above a b) (origin p b) (above a c) (destin p c) (above b c)) (:goal (and (served p))))"""
    assert render_prompt(domain.pddl, problem, "brief") == (
        "<init> above a b c <init> lift-at a <goal> served p <init> origin p b <init> destin p c <plan>"
    )
    partial = problem.replace("(above b c)", "")
    assert "<init> above a b <init> above a c <init> lift-at a" in render_prompt(domain.pddl, partial, "brief")


def test_a_goal_stands_before_the_facts_about_its_first_object_and_types_at_the_first_mention():
    domain = """(define (domain d) (:requirements :typing :negative-preconditions) (:types place crate box - object)
      (:predicates (at ?x - object ?p - place) (open ?x - object) (near ?p ?q - place) (lit))
      (:action push :parameters (?x - object ?p ?q - place) :precondition (at ?x ?p) :effect (at ?x ?q)))"""
    problem = """(define (problem p) (:domain d) (:objects p q - place c d - crate b e - box)
      (:init (open c) (near q p) (at c q) (at d p) (open d) (lit) (at b q))
      (:goal (and (at c p) (at d p) (not (open d)) (not (at b p)) (lit))))"""
    assert render_prompt(domain, problem, "brief") == (
        "<objects> box e <init> near q p <goal> at crate c p <init> open c <init> at c q "
        "<kept> at crate d p <init> open d <goal> not open d <kept> not at box b p <init> at b q <kept> lit <plan>"
    )


def test_facts_of_objects_that_share_a_third_follow_one_another():
    problem = """(define (problem p) (:domain logistics) (:objects a b c d - location x y - city k - package)
      (:init (in-city a x) (in-city b y) (in-city c x) (in-city d y) (at k a)) (:goal (and (at k c))))"""
    assert render_prompt(DOMAINS["logistics"].pddl, problem, "brief") == (
        "<init> in-city location a x <init> in-city location c x <init> in-city location b y "
        "<init> in-city location d y <goal> at package k c <init> at k a <plan>"
    )


def test_a_kind_that_is_not_among_the_facts_is_refused():
    facts = "(room r1) (room r2) {} (gripper g) (at-robby r1) (free g) (at x r1)"
    text = f"(define (problem p) (:domain gripper) (:objects r1 r2 x g) (:init {facts}) (:goal (and (at x r2))))"
    pddl = DOMAINS["gripper"].pddl
    assert "ball" not in render_prompt(pddl, text.format("(ball x)"), "brief")
    with pytest.raises(UnsupportedPddlError, match=r"p:1.*\(ball x\)"):
        render_prompt(pddl, text.format(""), "brief")


def test_other_names_give_the_same_prompt_in_other_names():
    for text in problems("logistics"):
        domain = parse_domain(DOMAINS["logistics"].pddl)
        pools = {"object": [f"o{n}" for n in range(1, 60)]}
        renamed, mapping = rename_objects(text, domain, random.Random(1), pools)
        prompt = render_prompt(DOMAINS["logistics"].pddl, text, "brief")
        again = render_prompt(DOMAINS["logistics"].pddl, renamed, "brief")
        assert [mapping.get(word, word) for word in prompt.split()] == again.split()
