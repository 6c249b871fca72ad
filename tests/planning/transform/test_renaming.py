"""Renamed, permuted and obfuscated problems: the same plans are valid, and the same steps fail."""

import itertools
import random
import re
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from jaxppo.errors import ConfigError, PddlError
from jaxppo.planning import canonical_form, execute, parse_domain, parse_problem, run_val_many
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.language.scope import BEYOND, RESERVED
from jaxppo.planning.transform.deceptive_words import NOUNS, STATES, VERBS
from jaxppo.planning.transform.renaming import (
    OBFUSCATION_STYLES,
    choose_words,
    inverse,
    permute_atoms,
    rename_objects,
    rename_plan,
    rename_words,
)
from tests.planning.breadth_first import shortest_plan
from tests.planning.families import FAMILIES, change, draw_cases
from tests.planning.val_oracle import needs_val

SOURCES = ["blocksworld", *FAMILIES]

# Words that mean several things, names that are used before they are declared, and everything that has an order.
SHOP = """; a comment that gives the meaning away
(define (domain shop) (:requirements :adl :fluents) (:types Shop item - object box - item)
  (:constants till - item)
  (:predicates (at ?x - item ?s - shop) (shop ?s - shop) (item))
  (:functions (total-cost) - number (price ?x - item) - number)
  (:action shop :parameters (?item - item ?shop - shop) :precondition (and (at ?item ?shop) (not (item)))
    :effect (and (item) (increase (total-cost) (price ?item)))))"""
TYPED = """(define (problem buy) (:domain Shop) (:objects shop at - shop item - item box1 box2 - box)
  (:init (at item shop) (at till at) (shop shop) (= (total-cost) 5) (= (price item) 2) (= (total-cost) 0))
  (:goal (and (item) (forall (?item - item) (imply (at ?item shop) (exists (?x - shop) (at ?item ?x)))) (shop shop)))
  (:metric minimize (total-cost)))"""
SHOPPING = (("shop", "item", "shop"),)


@cache
def cases(source, n):
    rng = random.Random(f"renaming {source}")
    if source == "shop":
        return [(SHOP, TYPED, SHOPPING)] * n
    return list(draw_cases(source, rng, n))


def verdict(domain, problem, plan):
    return execute(parse_problem(problem, parse_domain(domain)), plan)


class Obfuscated(NamedTuple):
    domain_pddl: str
    problem_pddl: str
    plan: tuple
    mapping: dict[str, str]


def obfuscate(domain, problem, plan, style, seed):
    """All three in other words, those of the plan that nothing declares among them."""
    parsed = parse_problem(problem, parse_domain(domain))
    names = [parsed.name, *parsed.objects, *itertools.chain(*plan)]
    mapping = choose_words(domain, names, style, random.Random(seed))
    return Obfuscated(
        rename_words(domain, mapping), rename_words(problem, mapping), rename_plan(plan, mapping), mapping
    )


def expect_same(old, new, mapping):
    """The same verdict, with the failed condition in the new words."""
    condition = old.failed_condition
    if condition is not None:
        condition = re.sub(r"[^\s()]+", lambda match: mapping.get(match[0], match[0]), condition)
    assert new == replace(old, failed_condition=condition)


@cache
def small_case(domain, seed=0):
    module = DOMAINS[domain]
    text = module.generate_problem(module.sizes[0], random.Random(f"{domain} {seed}"), "small")
    return module.pddl, text, shortest_plan(parse_problem(text, parse_domain(module.pddl)))


def parse(case):
    return parse_problem(case[1], parse_domain(case[0]))


def mutated(case, n):
    plan = case[2]
    rng = random.Random(5)
    parsed = parse(case)
    broken = (("no-such-action", *plan[0][1:]), (*plan[0], plan[0][-1]), (plan[0][0], "nobody"))
    return [plan, *(change(plan, parsed, rng) for _ in range(n)), *((*plan[:-1], step) for step in broken)]


@pytest.mark.parametrize("n_cases", [8, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("source", [*SOURCES, "shop"])
def test_verdicts_stay_whatever_is_renamed_or_permuted(source, n_cases):
    rng = random.Random(source)
    seen, is_moved = set(), set()
    for domain, problem, plan in cases(source, n_cases):
        old, parsed = verdict(domain, problem, plan), parse_problem(problem, parse_domain(domain))
        seen.add(old.valid)
        for style in OBFUSCATION_STYLES:
            new = obfuscate(domain, problem, plan, style, rng.random())
            expect_same(old, verdict(new.domain_pddl, new.problem_pddl, new.plan), new.mapping)

        kinds = set(itertools.chain(*parsed.objects.values()))
        pools = {kind: [f"{kind}-{number}" for number in range(60)] for kind in sorted(kinds)}
        text, mapping = rename_objects(problem, parsed.domain, rng, pools)
        renamed = tuple((step[0], *rename_plan([step], mapping)[0][1:]) for step in plan)
        expect_same(old, verdict(domain, text, renamed), mapping)
        assert canonical_form(parse_problem(text, parsed.domain)) == canonical_form(parsed)
        assert not set(mapping) & set(mapping.values())

        permuted = parse_problem(permute_atoms(problem, rng), parsed.domain)
        assert canonical_form(permuted) == canonical_form(parsed)
        assert (permuted.objects, permuted.init, permuted.values) == (parsed.objects, parsed.init, parsed.values)
        assert sorted(map(str, permuted.conditions)) == sorted(map(str, parsed.conditions))
        assert permuted.metric == parsed.metric
        assert replace(execute(permuted, plan), failed_condition=None) == replace(old, failed_condition=None)
        is_moved.add(permuted.init_order != parsed.init_order)
    assert source == "shop" or seen == {True, False}
    assert True in is_moved


@pytest.mark.parametrize("style", OBFUSCATION_STYLES)
@pytest.mark.parametrize("domain", sorted(DOMAINS))
def test_obfuscate_keeps_verdicts_and_leaves_no_word(domain, style):
    case = small_case(domain)
    seen = set()
    for plan in mutated(case, 3):
        new = obfuscate(*case[:2], plan, style, 3)
        expect_same(verdict(*case[:2], plan), verdict(new.domain_pddl, new.problem_pddl, new.plan), new.mapping)
        seen.add(verdict(new.domain_pddl, new.problem_pddl, new.plan).valid)
    assert seen == {True, False}
    known = new.mapping
    words = {
        *re.findall(r"[^\s()]+", new.domain_pddl + new.problem_pddl),
        *(word for step in new.plan for word in step),
    }
    allowed = {"define", "domain", "problem", "and", "not", "object", "-"}
    assert not {word for word in words if word[0] != ":"} & known.keys() - allowed
    assert len(set(known.values())) == len(known) and "nobody" in known
    assert not {*known.values()} & {*known, *RESERVED, *BEYOND, "object"}


@needs_val
def test_val_gives_the_same_verdicts():
    cases = []
    for number, domain in enumerate(DOMAINS):
        new = obfuscate(*small_case(domain), OBFUSCATION_STYLES[number % 2], number)
        cases += [(new.domain_pddl, new.problem_pddl, plan) for plan in (new.plan, new.plan[:-1])]
    assert [verdict.valid for verdict in run_val_many(cases)] == [True, False] * len(DOMAINS)


@pytest.mark.parametrize("style", OBFUSCATION_STYLES)
def test_obfuscate_renames_words_of_several_meanings_and_keeps_those_of_the_language(style):
    assert verdict(SHOP, TYPED, SHOPPING).valid
    new = obfuscate(SHOP, TYPED, SHOPPING, style, 1)
    parsed = parse_problem(new.problem_pddl, parse_domain(new.domain_pddl))
    expect_same(verdict(SHOP, TYPED, SHOPPING), execute(parsed, new.plan), new.mapping)
    assert new.mapping["shop"] in {*parsed.domain.types, *parsed.domain.actions, *parsed.domain.predicates}
    assert "total-cost" in parsed.domain.functions and "object" not in new.mapping
    assert "away" not in new.domain_pddl and not re.search(
        r"shop|item|buy|box|price|till|\(at ", repr(new.problem_pddl)
    )


def test_obfuscate_chooses_words_by_their_role():
    new = obfuscate(*small_case("ferry"), "deceptive", 1)
    parsed = parse_problem(new.problem_pddl, parse_domain(new.domain_pddl))
    assert parsed.domain.actions.keys() <= set(VERBS) and parsed.domain.predicates.keys() <= set(STATES)
    assert {*parsed.objects, *parsed.domain.types} <= set(NOUNS)
    strange = obfuscate(*small_case("ferry"), "random", 1)
    assert all(re.fullmatch(r"[a-z]{8}", new) for old, new in strange.mapping.items() if old[0] != "?")
    words = [*VERBS, *STATES, *NOUNS]
    assert len(set(words)) == len(words) and not RESERVED & set(words) and all(map(str.isalpha, words))


@pytest.mark.parametrize("style", OBFUSCATION_STYLES)
def test_obfuscate_with_the_inverse_mapping_undoes_it(style):
    for domain in DOMAINS:
        case = small_case(domain)
        new = obfuscate(*case, style, 1)
        old_words = inverse(new.mapping)
        # The old texts as they are written anew.
        for old_text, new_text in zip(case[:2], new[:2], strict=True):
            assert rename_words(new_text, old_words) == rename_words(old_text, {})
        assert rename_plan(new.plan, old_words) == case[2]
        problem = rename_words(new.problem_pddl, old_words)
        assert parse_problem(problem, parse_domain(case[0])).init_order == parse(case).init_order


def test_what_does_not_fit_is_refused_by_name():
    domain, problem, _ = small_case("ferry")
    with pytest.raises(PddlError):
        choose_words(domain[:-3], [], "random", random.Random(1))
    with pytest.raises(PddlError):
        rename_words(problem[:-3], {})
    for pools, named in (({"boat": ["b1"]}, "boat"), ({**DOMAINS["ferry"].pools, "shore": ["s1"]}, "shore")):
        with pytest.raises(ConfigError, match=f"pools.*{named}"):
            rename_objects(problem, parse_domain(domain), random.Random(1), pools)
    with pytest.raises(PddlError):
        permute_atoms("(hello)", random.Random(1))


def test_rename_objects_leaves_other_words_alone():
    text, mapping = rename_objects(
        TYPED, parse_domain(SHOP), random.Random(1), {"object": ["u1", "u2", "u3"], "shop": ["s1", "s2"]}
    )
    assert mapping.keys() == {"shop", "at", "item", "box1", "box2"} and mapping["shop"] in ("s1", "s2")
    problem = parse_problem(text, parse_domain(SHOP))
    item, shop, other = mapping["item"], mapping["shop"], mapping["at"]
    assert problem.init == {("at", item, shop), ("at", "till", other), ("shop", shop)}
    assert problem.objects[item] == ("item",) and problem.objects[mapping["box1"]] == ("box",)
    assert verdict(SHOP, text, [("shop", item, shop)]).cost == 2
