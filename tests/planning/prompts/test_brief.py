"""The style `brief`: fewer words than `atoms`, and nothing lost."""

import itertools
import random

import pytest

from jaxppo.planning import parse_domain, parse_problem, render_prompt, vocabulary
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.transform.renaming import rename_objects

TOLD = {
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


def parts(prompt):
    """Objects, facts and goals of a prompt, each a list of lists of words."""
    head, goal = prompt.removesuffix("<plan>").split("<goal>")
    objects, init = head.split("<init>")
    return [
        [fact.split() for fact in part.split(";") if fact.strip()]
        for part in (objects.removeprefix("<objects>"), init, goal)
    ]


@pytest.mark.parametrize("name", DOMAINS)
def test_every_fact_can_be_told_from_the_prompt(name):
    domain = parse_domain(DOMAINS[name].pddl)
    for text in problems(name):
        problem = parse_problem(text, domain)
        objects, facts, goals = parts(render_prompt(DOMAINS[name].pddl, text, "brief"))
        said = {
            (predicate, *pair)
            for predicate, *line in facts
            if len(line) > 2
            for pair in itertools.combinations(line, 2)
        }
        said |= {tuple(fact) for fact in facts if len(fact) <= 3 or len(domain.predicates[fact[0]]) == len(fact) - 1}
        if name == "gripper":
            said |= {
                (TOLD[fact[0], place], word)
                for fact in (*facts, *goals)
                for place, word in enumerate(fact[1:])
                if (fact[0], place) in TOLD
            }
        assert said == problem.init
        assert {tuple(goal) for goal in goals} == {literal.atom for literal in problem.goal}
        for kind, *names in objects:
            assert names and all(problem.objects[word] == (kind,) for word in names)


@pytest.mark.parametrize(
    ("name", "open_kinds"),
    [
        ("blocksworld", set()),
        ("ferry", set()),
        ("gripper", set()),
        ("miconic", set()),
        ("logistics", {"airplane", "airport", "location", "package", "truck"}),
        ("driverlog", {"driver", "package"}),
    ],
)
def test_objects_are_listed_where_their_places_leave_the_type_open(name, open_kinds):
    listed = set()
    for text in problems(name, 12):
        problem = parse_problem(text, parse_domain(DOMAINS[name].pddl))
        named = {word for atom in (*problem.init, *(goal.atom for goal in problem.goal)) for word in atom[1:]}
        for kind, *names in parts(render_prompt(DOMAINS[name].pddl, text, "brief"))[0]:
            if named.intersection(names):  # the others stand in no fact, which leaves everything open
                listed.add(kind)
    perhaps = {"truck"} if name == "driverlog" else set()  # its trucks are `empty`, or somebody drives them
    assert open_kinds <= listed <= open_kinds | perhaps


def test_a_relation_in_a_line_is_written_once():
    domain = DOMAINS["miconic"]
    problem = """(define (problem p) (:domain miconic) (:objects a b c - floor p - passenger)
      (:init (lift-at a) (above a b) (origin p b) (above a c) (destin p c) (above b c)) (:goal (and (served p))))"""
    assert render_prompt(domain.pddl, problem, "brief") == (
        "<init> lift-at a ; above a b c ; origin p b ; destin p c <goal> served p <plan>"
    )
    partial = problem.replace("(above b c)", "")
    assert "above a b ; origin p b ; above a c" in render_prompt(domain.pddl, partial, "brief")


def test_kinds_that_change_the_plan_stay():
    text = problems("childsnack")[0]
    facts = {fact[0] for fact in parts(render_prompt(DOMAINS["childsnack"].pddl, text, "brief"))[1]}
    assert facts >= {"allergic", "not_allergic"} & {
        atom[0] for atom in parse_problem(text, parse_domain(DOMAINS["childsnack"].pddl)).init
    }


@pytest.mark.parametrize("name", DOMAINS)
def test_a_tokenizer_knows_all_words_and_prompts_are_shorter(name):
    words = {*vocabulary([DOMAINS[name].pddl], DOMAINS[name].names, "brief")}
    for text in problems(name):
        brief, plain = (render_prompt(DOMAINS[name].pddl, text, style).split() for style in ("brief", "atoms"))
        assert words >= {*brief}
        listed = len(" ".join(brief).split("<init>")[0].split())
        assert len(brief) - listed <= len(plain)


def test_other_names_give_the_same_prompt_in_other_names():
    for text in problems("logistics"):
        domain = parse_domain(DOMAINS["logistics"].pddl)
        pools = {"object": [f"o{n}" for n in range(1, 60)]}
        renamed, mapping = rename_objects(text, domain, random.Random(1), pools)
        prompt = render_prompt(DOMAINS["logistics"].pddl, text, "brief")
        again = render_prompt(DOMAINS["logistics"].pddl, renamed, "brief")
        assert sorted(mapping.get(word, word) for word in prompt.split()) == sorted(again.split())
