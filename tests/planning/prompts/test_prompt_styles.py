"""The styles: what they write, that they read it back, and that they read nothing else."""

import itertools
import random
from functools import cache
from string import Formatter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo.errors import ConfigError, DataError, PddlError
from jaxppo.planning import (
    ParsedPlan,
    PlanError,
    UnsupportedPddlError,
    canonical_form,
    parse_completion,
    parse_domain,
    parse_problem,
    render_completion,
    render_prompt,
    vocabulary,
)
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.prompts import PROMPT_STYLES, words_of
from jaxppo.planning.prompts.phrases import general_phrases, phrases_of
from jaxppo.planning.prompts.words import split_words
from tests.planning import kiln
from tests.planning.delivery import DELIVERY, ERRAND

BLOCKSWORLD = DOMAINS["blocksworld"].pddl
SWAP = """(define (problem swap) (:domain blocksworld) (:objects a b)
  (:init (on b a) (ontable a) (clear b) (handempty)) (:goal (and (on a b) (not (holding b)))))"""

each_domain = pytest.mark.parametrize("name", DOMAINS)
each_style = pytest.mark.parametrize("style", PROMPT_STYLES)


def problems(name, count=4, seed=0):
    module, rng = DOMAINS[name], random.Random(seed)
    sizes = list(module.sizes)
    return [module.generate_problem(rng.choice(sizes), rng, f"p-{number}") for number in range(count)]


def names_of_types(name):
    """Every name that a problem of the domain may use, with its types; untyped domains have one type."""
    module = DOMAINS[name]
    domain = parse_domain(module.pddl)
    if not domain.typed:
        return domain, {name: ("object",) for name in module.names}
    pools = {name: (kind,) for kind, pool in module.pools.items() for name in pool}
    return domain, pools | dict(domain.constants)


@cache
def ground_actions(name):
    """Actions on names of the pools: all on single names, and 300 others."""
    domain, names = names_of_types(name)
    actions = []
    for schema in domain.actions.values():
        fitting = [
            [name for name, types in names.items() if domain.is_of_type(types, parameter.types)]
            for parameter in schema.parameters
        ]
        actions += ((schema.name, *arguments) for arguments in itertools.product(*fitting))
    short = [action for action in actions if len(action) <= 2]
    longer = [action for action in actions if len(action) > 2]
    return tuple(short + random.Random(0).sample(longer, min(300, len(longer))))


@each_domain
@each_style
def test_ground_actions_are_read_back_and_no_two_are_written_alike(name, style):
    actions, domain_pddl = ground_actions(name), DOMAINS[name].pddl
    text = render_completion(actions, style, domain_pddl)
    assert parse_completion(text, style, domain_pddl) == ParsedPlan(actions)
    steps = text.split(" ; ") if style in ("atoms", "brief") else text.split("\n")
    assert len(steps) == len(set(steps)) == len(actions) > 10


def template(phrase):
    """The words of a phrase, empty ones for arguments, and the numbers of these."""
    words, arguments = [], []
    for text, argument, _, _ in Formatter().parse(phrase):
        words += split_words(text)
        if argument is not None:
            arguments.append(int(argument))
            words.append("")
    return words, arguments


def may_be_the_same(first, second):
    """Whether names could make two templates one sentence: they differ in no word that both fix."""
    return len(first) == len(second) and all(a == b or "" in (a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("make_phrases", [phrases_of, general_phrases])
@each_domain
def test_no_sentence_can_mean_two_actions_whatever_the_names(name, make_phrases):
    domain = parse_domain(DOMAINS[name].pddl)
    templates = {name: template(phrase)[0] for name, phrase in make_phrases(domain).actions.items()}
    for first, second in itertools.combinations(templates, 2):
        assert not may_be_the_same(templates[first], templates[second]), (first, second)


@each_domain
def test_phrases_cover_the_domain_with_each_argument_once(name):
    domain = parse_domain(DOMAINS[name].pddl)
    phrases = phrases_of(domain)
    assert phrases.about != general_phrases(domain).about
    assert phrases.kinds.keys() >= domain.ancestors.keys()
    arities = {name: len(schema.parameters) for name, schema in domain.actions.items()}
    assert phrases.actions.keys() == arities.keys()
    assert phrases.predicates.keys() == domain.predicates.keys()
    arities |= {f"{name} (predicate)": len(types) for name, types in domain.predicates.items()}
    texts = dict(phrases.actions) | {f"{name} (predicate)": phrase for name, phrase in phrases.predicates.items()}
    for name, phrase in texts.items():
        words, arguments = template(phrase)
        assert sorted(arguments) == list(range(arities[name])), name
        assert "." not in words and "," not in words


NAME = st.text("ab_-9", max_size=3).map("x".__add__) | st.sampled_from(["on", "and", "use", "drive", "a", "the"])
STEP = (
    st.tuples(st.just("drive"), NAME, NAME, NAME)
    | st.tuples(st.just("open"), NAME)
    | st.tuples(st.just("load"), NAME, NAME)
)


@each_style
@settings(deadline=None, max_examples=30)
@given(plan=st.lists(STEP).map(tuple))
def test_plans_of_other_domains_are_read_back_whatever_the_names(style, plan):
    assert parse_completion(render_completion(plan, style, DELIVERY), style, DELIVERY) == ParsedPlan(plan)


PLAN = (("unstack", "b", "a"), ("put-down", "b"))


@pytest.mark.parametrize(
    ("text", "style", "plan"),
    [
        ("unstack block b from block a.\nput down block b.", "nl", PLAN),
        ("unstack block b from block a . put down block b .", "nl", PLAN),
        ("Unstack  BLOCK b\tfrom\r\nblock A.put down block b.\n", "nl", PLAN),
        (" \n", "nl", ()),
        (" \n", "pddl", ()),
        ("UNSTACK  B a;put-down\tb", "atoms", PLAN),
        (" unstack b a\n;\r\nput-down b ", "atoms", PLAN),
        (" \n", "atoms", ()),
    ],
)
def test_plans_are_read_with_any_blanks_and_case(text, style, plan):
    assert parse_completion(text, style, BLOCKSWORLD) == ParsedPlan(plan)
    assert parse_completion(render_completion(plan, style, BLOCKSWORLD), style, BLOCKSWORLD) == ParsedPlan(plan)


@pytest.mark.parametrize(
    ("style", "domain", "text", "n_actions"),
    [
        ("nl", BLOCKSWORLD, "unstack block b from block a. put down block b", 1),  # no full stop
        ("nl", BLOCKSWORLD, "unstack block b from block a put down block b.", 0),
        ("nl", BLOCKSWORLD, ". put down block b.", 0),
        ("nl", BLOCKSWORLD, "first unstack block b from block a.", 0),
        ("nl", BLOCKSWORLD, "unstack block b from block.", 0),
        ("nl", BLOCKSWORLD, "unstack block b off block a.", 0),
        ("nl", BLOCKSWORLD, "unstack block b from block ,.", 0),
        ("nl", BLOCKSWORLD, "unstack block 1 from block a.", 0),
        ("nl", BLOCKSWORLD, "pick-up block b.", 0),
        ("nl", BLOCKSWORLD, "put down block b. (stack b a)", 1),
        ("nl", BLOCKSWORLD, "put down block\u00a0b.", 0),
        ("nl", BLOCKSWORLD, "put down block \u0430.", 0),
        ("nl", BLOCKSWORLD, "put down \u212alock b.", 0),
        ("nl", BLOCKSWORLD, "put down block b" * 60_000 + "!", 0),
        ("pddl", BLOCKSWORLD, "(unstack b a) put-down b", 1),
        ("pddl", BLOCKSWORLD, "(unstack b a) (put-down b", 1),
        ("pddl", BLOCKSWORLD, "1. (unstack b a)", 0),
        ("pddl", BLOCKSWORLD, "(unstack b a).", 1),
        ("atoms", BLOCKSWORLD, "unstack b a ;", 1),
        ("atoms", BLOCKSWORLD, "unstack b a ; ; stack a b", 1),
        ("atoms", BLOCKSWORLD, "unstack b a ; stack a b <eos>", 1),
        ("atoms", BLOCKSWORLD, "unstack b a ; (stack a b)", 1),
        ("atoms", BLOCKSWORLD, "unstack b 1", 0),
        ("atoms", BLOCKSWORLD, "unstack b\u00a0a", 0),
        ("atoms", BLOCKSWORLD, "unstack b \u0430", 0),
        ("atoms", BLOCKSWORLD, "a " * 500_000 + "<", 0),
        ("nl", DELIVERY, "use drive on v and home and hub.", 0),
        ("nl", DELIVERY, "use fly on v, home and hub.", 0),
        ("nl", DELIVERY, "drive on v, home and hub.", 0),
    ],
)
def test_reading_stops_at_anything_else(style, domain, text, n_actions):
    plan = parse_completion(text, style, domain)
    assert (len(plan.actions), plan.error, plan.error_step) == (n_actions, PlanError.SYNTAX, n_actions + 1)


@pytest.mark.parametrize("step", [("fly", "b"), ("stack", "b"), ("pick-up", "a", "b")])
def test_nl_refuses_to_write_what_the_domain_does_not_have(step):
    with pytest.raises(DataError, match=rf"plan.*{step[0]}"):
        render_completion([("pick-up", "a"), step], "nl", BLOCKSWORLD)


def test_atoms_are_the_style_where_none_is_named_and_are_written_in_their_order():
    assert render_prompt(BLOCKSWORLD, SWAP) == (
        "<init> on b a ; ontable a ; clear b ; handempty <goal> on a b ; not holding b <plan>"
    )
    empty = render_prompt(BLOCKSWORLD, "(define (problem p) (:domain d) (:init) (:goal ()))")
    assert empty == "<init> <goal> <plan>"
    assert (render_completion(PLAN), render_completion(())) == ("unstack b a ; put-down b", "")
    assert parse_completion("unstack b a ; put-down b") == ParsedPlan(PLAN)
    with pytest.raises(ConfigError, match=r"prompt_style.*haiku"):
        parse_completion("", style="haiku")


@pytest.mark.parametrize(
    ("goal", "named"), [("(or (in b1 v) (in b2 v))", r"\(in b2 v\)"), ("(and (in b1 v) (> (total-cost) 3))", "numbers")]
)
def test_atoms_refuse_what_they_cannot_write(goal, named):
    text = ERRAND.replace("(and (in b1 v) (not (at v hub)))", goal)
    with pytest.raises(UnsupportedPddlError, match=rf"errand:1.*{named}"):
        render_prompt(DELIVERY, text)


def test_nl_prompt_of_our_own_domain():
    assert render_prompt(BLOCKSWORLD, SWAP, "nl") == (
        "Blocks stand on a table or on one another, and one hand moves them. The hand holds one block at most.\n"
        "You can pick up block X. Needed: nothing is on block X; block X is on the table; the hand is empty. Then true:"
        " the hand holds block X. Then false: block X is on the table; nothing is on block X; the hand is empty.\n"
        "You can put down block X. Needed: the hand holds block X. Then true: block X is on the table; nothing is on"
        " block X; the hand is empty. Then false: the hand holds block X.\n"
        "You can stack block X on block Y. Needed: the hand holds block X; nothing is on block Y. Then true: block X is"
        " on block Y; nothing is on block X; the hand is empty. Then false: the hand holds block X; nothing is on"
        " block Y.\n"
        "You can unstack block X from block Y. Needed: block X is on block Y; nothing is on block X; the hand is empty."
        " Then true: the hand holds block X; nothing is on block Y. Then false: block X is on block Y; nothing is on"
        " block X; the hand is empty.\n"
        "Objects: a and b are blocks.\n"
        "At the start: block b is on block a; block a is on the table; nothing is on block b; the hand is empty; and"
        " nothing else is true.\n"
        "Goal: block a is on block b; it is not true that the hand holds block b.\n"
        "Write a plan: for each action a sentence such as those after You can, with names in place of the capitals.\n"
        "Plan:\n"
    )


def test_nl_prompt_tells_kinds_constants_equality_negation_and_costs():
    lines = render_prompt(DELIVERY, ERRAND, "nl").split("\n")
    assert lines[1:5] == [
        "Whatever is of kind truck is of kind thing.",
        "Whatever is of kind box is of kind thing.",
        "Whatever is of kind van is of kind truck.",
        "Whatever is of kind raft is of kind truck or of kind box.",
    ]
    assert lines[5] == (
        "You can use drive on T, FROM and TO, where T is of kind truck, FROM is of kind place and TO is of kind place."
        " Needed: at holds for T and FROM; it is not true that FROM and TO are the same; it is not true that shut holds"
        " for TO. Then true: at holds for T and TO. Then false: at holds for T and FROM. Then the total cost rises by"
        " length of FROM and TO."
    )
    assert lines[6] == "You can use open on P, where P is of kind place. Then false: shut holds for P."
    assert lines[7].startswith("You can use load on B and T, where B is of kind box or of kind raft and T is of kind")
    assert lines[8:12] == [
        "Objects: hub and home are of kind place; v is of kind van; b1 and b2 are of kind box.",
        "At the start: at holds for v and home; at holds for b1 and hub; length of home and hub is 3; and nothing else"
        " is true.",
        "Goal: in holds for b1 and v; it is not true that at holds for v and hub.",
        "The lower the total cost, the better.",
    ]


ADL = """(define (domain lamps) (:requirements :adl :fluents :derived-predicates)
  (:types lamp room) (:predicates (lit ?l - lamp) (in ?l - lamp ?r - room) (bright ?r - room))
  (:functions (power) - number)
  (:derived (bright ?r - room) (exists (?l - lamp) (and (in ?l ?r) (lit ?l))))
  (:action flip :parameters (?r - room)
    :precondition (and (>= (power) 2) (or (not (bright ?r)) (forall (?l - lamp) (imply (in ?l ?r) (lit ?l)))))
    :effect (and (decrease (power) (* 2 1.5))
      (forall (?l - lamp) (when (in ?l ?r) (lit ?l))) (when (bright ?r) (not (bright2 ?r))))))"""


def test_nl_prompt_has_general_words_for_everything_that_can_be_read():
    domain_pddl = ADL.replace("(bright ?r - room))", "(bright ?r - room) (bright2 ?r - room))", 1)
    problem_pddl = """(define (problem p) (:domain lamps) (:objects a - lamp r - room) (:init (= (power) 5))
        (:goal (or (bright r) (not (and (lit a) (in a r))))) (:metric maximize (- (power) 1)))"""
    lines = render_prompt(domain_pddl, problem_pddl, "nl").split("\n")
    assert lines[1] == (
        "You can use flip on R, where R is of kind room. Needed: power is at least 2; (it is not true that bright holds"
        " for R or (for every L that is of kind lamp: (if in holds for L and R, then lit holds for L)))."
        " Then power falls by (2 * 1.5). For every L that is of kind lamp, if in holds for L and R, then true: lit"
        " holds for L. If bright holds for R, then false: bright2 holds for R."
    )
    assert lines[2] == (
        "Always true: bright holds for R if (for some L that is of kind lamp: (in holds for L and R and lit holds"
        " for L))."
    )
    assert lines[4:7] == [
        "At the start: power is 5; and nothing else is true.",
        "Goal: (bright holds for r or it is not true that (lit holds for a and in holds for a and r)).",
        "The higher (power - 1), the better.",
    ]


@each_domain
def test_nl_prompts_say_all_facts_and_goals_in_their_order(name):
    domain_pddl = DOMAINS[name].pddl
    for text in problems(name):
        problem = parse_problem(text, parse_domain(domain_pddl))
        prompt = render_prompt(domain_pddl, text, "nl")
        phrases = phrases_of(problem.domain).predicates
        facts = [phrases[atom[0]].format(*atom[1:]) for atom in problem.init_order]
        goals = [phrases[literal.atom[0]].format(*literal.atom[1:]) for literal in problem.goal]
        assert f"At the start: {'; '.join(facts)}; and" in prompt
        assert f"Goal: {'; '.join(goals)}." in prompt
        assert text.split()[2].rstrip(")") not in prompt  # the problem's name


@each_domain
def test_pddl_prompt_holds_the_domain_and_the_problem(name):
    domain_pddl = DOMAINS[name].pddl
    for text in problems(name, 2):
        prompt = render_prompt(domain_pddl, text, "pddl")
        first, second = prompt.removeprefix("Planning domain:\n").split("\n\nProblem:\n")
        second = second.removesuffix("\n\nPlan, one action a line:\n")
        domain, problem = parse_domain(first), parse_problem(text, parse_domain(domain_pddl))
        assert domain.actions == problem.domain.actions and domain.predicates == problem.domain.predicates
        again = parse_problem(second, domain)
        for part in ("init_order", "conditions", "objects"):
            assert getattr(again, part) == getattr(problem, part)
        assert canonical_form(again) == canonical_form(problem)
        assert problem.name not in prompt


def test_pddl_prompt_is_written_in_one_way():
    domain_pddl = (
        "; two\n(DEFINE (domain D)(:predicates(p))  (:action  GO\n:parameters ()\n:precondition()\n:effect (p)))"
    )
    problem_pddl = "(define (problem Long-Name-7) (:domain d) ; start\n (:init)\t(:goal (P)))"
    assert render_prompt(domain_pddl, problem_pddl, "pddl") == (
        "Planning domain:\n"
        "(define (domain d)\n"
        "  (:predicates (p))\n"
        "  (:action go :parameters () :precondition () :effect (p)))\n"
        "\n"
        "Problem:\n"
        "(define (problem task)\n"
        "  (:domain d)\n"
        "  (:init)\n"
        "  (:goal (p)))\n"
        "\n"
        "Plan, one action a line:\n"
    )


def test_pddl_prompts_may_be_of_what_only_other_validators_cover_and_those_of_broken_text_are_errors():
    with pytest.raises(UnsupportedPddlError):
        parse_domain(kiln.DOMAIN)
    assert "(:durative-action" in render_prompt(kiln.DOMAIN, "(define (problem p) (:domain kiln))", "pddl")
    for style in ("pddl", "nl"):
        with pytest.raises(PddlError, match=r"<problem>:2\b"):
            render_prompt(BLOCKSWORLD, "(define (problem p)\n (:domain", style)


@each_domain
@each_style
def test_vocabulary_holds_the_words_of_all_problems(name, style):
    module = DOMAINS[name]
    words = vocabulary([module.pddl], module.names, style)
    assert words == sorted(set(words))
    texts = [render_prompt(module.pddl, text, style) for text in problems(name, 8)]
    texts.append(render_completion(random.Random(0).sample(ground_actions(name), 50), style, module.pddl))
    assert set(words_of(texts)) <= set(words)
    assert "{}" not in "".join(words)


def test_vocabulary_holds_constants_and_negation_split_at_blanks_and_punctuation():
    names = parse_problem(ERRAND, parse_domain(DELIVERY)).objects
    assert set(render_prompt(DELIVERY, ERRAND).split()) <= set(vocabulary([DELIVERY], names))
    assert words_of(["Goal: (on a b), b.", "a;b <plan> x-1?y"]) == sorted(
        ["<pad>", "<eos>", "Goal", ":", "(", "on", "a", "b", ")", ",", ".", ";", "<plan>", "x-1?y"]
    )
