"""Canonical forms: equal exactly where a renaming maps one problem to the other."""

import random
from itertools import permutations

import pytest

from jaxppo.planning import Problem, canonical_form, parse_domain, parse_problem
from jaxppo.planning.transform import canonical
from tests.planning.delivery import DELIVERY, ERRAND


def brute_force_form(problem: Problem) -> tuple:
    """The smallest relabelling over all permutations of the objects."""
    names = sorted(problem.objects)
    sides = [problem.init, [literal.atom for literal in problem.goal]]
    return min(
        tuple(tuple(sorted(tuple(renaming.get(word, word) for word in atom) for atom in side)) for side in sides)
        for order in permutations(names)
        for renaming in [dict(zip(names, order, strict=True))]
    )


RICH = """(define (problem p) (:domain delivery)
  (:objects home - place v - van b1 b2 - box)
  (:init (at v home) (at b1 hub) (at b2 hub) (= (length home hub) 3))
  (:goal (and (or (in b1 v) (forall (?x - box) (in ?x v))) (in b2 v))))"""
ALIKE = RICH.replace(" (in b2 v)", "")
NUMERIC = RICH.replace("(in b2 v)", "(> (length home hub) 1)")


@pytest.mark.parametrize(
    ("text", "old", "new", "is_same"),
    [
        (ERRAND, "v - van b1 b2 - box", "b2 - box v - van b1 - box", True),
        (ERRAND, "v - van", "v - truck", False),
        (ERRAND, "(not (at v hub))", "(at v hub)", False),
        (ERRAND, "(= (length home hub) 3)", "", True),
        (ERRAND, "(:goal (and (in b1 v)", "(:goal (and (in b1 v) (in b1 v)", True),
        (ALIKE, "(or (in b1 v)", "(or (in b2 v)", True),  # the boxes are alike
        (RICH, "(or (in b1 v)", "(or (in b2 v)", False),
        (RICH, "forall", "exists", False),
        (RICH, "?x - box", "?x - truck", False),
        (RICH, "hub) 3)", "hub) 4)", True),  # a cost
        (NUMERIC, "hub) 3)", "hub) 4)", False),  # a number that decides
    ],
)
def test_canonical_form_keeps_types_constants_signs_and_all_that_matters(text, old, new, is_same):
    assert old in text
    domain = parse_domain(DELIVERY.replace("(in ?b - box ?t - truck)", "(in ?b - thing ?t - truck)"))
    forms = {canonical_form(parse_problem(other, domain)) for other in (text, text.replace(old, new))}
    assert len(forms) == (1 if is_same else 2)


PLAIN = parse_domain(
    "(define (domain d) (:predicates (p ?x) (q ?x ?y)) (:action a :parameters () :precondition () :effect (and)))"
)


def _plain_problem(objects, init, goal) -> Problem:
    sides = [" ".join(f"({' '.join(atom)})" for atom in side) for side in (init, goal)]
    text = (
        f"(define (problem x) (:domain d) (:objects {' '.join(objects)}) (:init {sides[0]}) (:goal (and {sides[1]})))"
    )
    return parse_problem(text, PLAIN)


def test_canonical_form_tells_all_relations_on_three_objects_apart():
    """All 2^9 of them; there are 104 up to renaming (OEIS A000595)."""
    pairs = [("q", x, y) for x in "abc" for y in "abc"]
    forms = set()
    for number in range(2**9):
        facts = [pair for place, pair in enumerate(pairs) if number >> place & 1]
        problem = _plain_problem("abc", facts, [])
        forms.add((canonical_form(problem), brute_force_form(problem)))
    assert len(forms) == len({form for form, _ in forms}) == len({brute for _, brute in forms}) == 104


def test_canonical_form_copes_with_groups_of_objects_that_are_alike():
    """Four equal tables with four equal children each, ten equal breads: 4! (4!)^4 10! symmetries."""
    children = [f"c{number}" for number in range(16)]
    objects = [*children, *"wxyz", *(f"bread{number}" for number in range(10))]
    forms = set()
    for seed in range(3):
        rng = random.Random(seed)
        seated = rng.sample(children, 16)
        init = [("q", child, "wxyz"[number // 4]) for number, child in enumerate(seated)]
        init += [("p", name) for name in objects if name.startswith("bread")]
        forms.add(canonical_form(_plain_problem(rng.sample(objects, len(objects)), init, [("p", "w")])))
        moved = [("q", seated[0], "z"), *init[1:]]
        assert canonical_form(_plain_problem(objects, moved, [("p", "w")])) not in forms
    assert len(forms) == 1


def test_constants_and_names_that_the_actions_of_an_untyped_domain_use_are_no_objects():
    domain = parse_domain("""(define (domain roads) (:constants k) (:predicates (at ?x) (road ?x ?y))
      (:action home :parameters (?x) :precondition (and (at ?x) (road ?x hub)) :effect (at hub)))""")
    task = "(define (problem p) (:domain roads) (:objects hub {0}) (:init (at {1}) (road {1} {2})) (:goal (at {2})))"
    to_hub, from_hub, from_c, from_constant = (
        canonical_form(parse_problem(task.format(*names), domain))
        for names in (("b", "b", "hub"), ("b", "hub", "b"), ("c", "c", "hub"), ("b", "k", "hub"))
    )
    assert to_hub == from_c and len({to_hub, from_hub, from_constant}) == 3


def _couples(rng, n_couples, stranger=False):
    """Objects that are related in pairs, all alike; a stranger is related to somebody of another pair."""
    names = [f"x{number}" for number in range(2 * n_couples)]
    rng.shuffle(names)
    couples = list(zip(names[::2], names[1::2], strict=True))
    facts = [("q", *pair) for couple in couples for pair in (couple, couple[::-1])]
    if stranger:
        facts[0] = ("q", couples[0][0], couples[1][1])
    return _plain_problem(names, facts, [])


def test_two_hundred_objects_that_look_alike_are_little_work_and_too_much_is_said(monkeypatch, caplog):
    """A hundred couples: 100! 2^100 symmetries, told with work that grows with the square of their number."""
    monkeypatch.setattr(canonical, "_MAX_WORK", 200_000)
    forms = [canonical_form(_couples(random.Random(seed), 100)) for seed in range(2)]
    assert forms[0] == forms[1] and "undecided" not in forms[0]
    assert canonical_form(_couples(random.Random(0), 100, stranger=True)) != forms[0]
    # A form that takes too much work says so, and is that of renamed copies.
    monkeypatch.setattr(canonical, "_MAX_WORK", 1_000)
    forms = {canonical_form(_couples(random.Random(seed), 50)) for seed in range(2)}
    (form,) = forms
    assert form.startswith("undecided: ") and len(caplog.records) == 2
    assert form != canonical_form(_couples(random.Random(0), 51))
