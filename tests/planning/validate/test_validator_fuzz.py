"""Hostile plans and hostile PDDL: an answer or a declared error, soon, and never a plan that VAL would not accept."""

import os
import random
import resource
from collections import Counter
from functools import cache

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning import PlanVerdict, UnsupportedPddlError, find_val, validate_plan
from jaxppo.planning.language.plans import ParsedTimedPlan, format_action, parse_plan_text
from jaxppo.planning.language.temporal import check_step, parse_plan_for, read_names
from tests.planning import kiln
from tests.planning.cpu_time import within
from tests.planning.families import FAMILIES, draw_cases
from tests.planning.val_oracle import ask_val, deviation, outcome
from tests.planning.vault import DOMAIN, PROBLEM, SOLUTION

Texts = tuple[str, str, str]
"""Domain, problem and plan."""

SOLVED: Texts = (DOMAIN, PROBLEM, SOLUTION)
pytestmark = pytest.mark.clock
LIMIT_S, LIMIT_MIB, MOST_ASKED = 1.0, 500, 2_000
N_TEXTS = int(os.environ.get("JAXPPO_FUZZ_TEXTS", "100000"))
"""For each of 20 seeds."""
JUNK = [
    *"()();-?:=<>.,'\"0123 \n\t\r\x00\x0c{}[]#é\u212a\u00a0",
    *("and", "or", "not", "forall", "exists", "imply", "when", "either", "increase", "assign", "time", "object"),
    *("(and)", "()", "(or)", "(not (p))", "?x", "- t", "- object", ";c\n", "; (x", "1.5", "-2", "99999999999"),
    "total-cost",
    *(":init", ":goal", ":types", ":action", "(:derived (q ?x) (p))", "(:metric minimize (f))", "(= (f) 1)", "#t"),
]


def judge(texts: Texts) -> PlanVerdict | PddlError:
    """Validate, within the CPU time that any input may take; only errors of one line that name file and line pass."""
    with within(LIMIT_S, texts):
        try:
            answer: PlanVerdict | PddlError = validate_plan(*texts)
        except PddlError as error:
            answer = _checked(error, texts)
    return answer


def check_names(texts: Texts) -> None:
    """Read a plan as for VAL, within the same limits."""
    with within(LIMIT_S, texts):
        try:
            names, plan = read_names(*texts[:2]), parse_plan_for(*texts)
        except PddlError as error:
            _checked(error, texts)
        else:
            for step in plan.steps if isinstance(plan, ParsedTimedPlan) else plan.actions:
                check_step(names, step)


def _checked(error: PddlError, texts: Texts) -> PddlError:
    assert "\n" not in str(error) and str(error).isprintable(), texts
    files = dict(zip(("<domain>", "<problem>"), texts[:2], strict=True))
    if error.source in files:
        assert 1 <= error.line <= files[error.source].count("\n") + 1, texts
    else:  # what is too large once objects are filled in stands in no line
        assert isinstance(error, UnsupportedPddlError), texts
    return error


@pytest.mark.full
def test_hostile_sizes_are_answered_soon():
    names = " ".join(f"o{i}" for i in range(300))
    deep = "(not " * 300 + "(p)" + ")" * 300
    quantifiers = "(forall (?a ?b ?c ?d ?e) (exists (?f ?g ?h) (or (r ?a ?f) (not (r ?b ?g)) (r ?c ?h) (r ?d ?e))))"
    domain = """(define (domain d) (:requirements :adl) (:predicates (p) (r ?x ?y) (s ?x ?y))
      (:derived (s ?x ?y) (or (r ?x ?y) (exists (?z) (and (s ?x ?z) (s ?z ?y)))))
      (:action go :parameters (?x ?y) :precondition {precondition} :effect {effect}))"""
    problem = f"(define (problem p) (:domain d) (:objects {names}) (:init (p)) (:goal {{goal}}))"

    def texts(plan="(go o1 o2)", precondition="(p)", effect="(r ?x ?y)", goal="(p)"):
        return domain.format(precondition=precondition, effect=effect), problem.format(goal=goal), plan

    everywhere = "(forall (?a ?b ?c) (r ?a ?b))"
    distinct = "".join(f"(go o{i % 300} o{i // 300})" for i in range(5000))
    answers = {
        "thousands of steps": judge(texts("(go o1 o2)" * 5000)),
        "thousands of different steps": judge(texts(distinct)),
        "deep condition": judge(texts(precondition=deep)),
        "nested quantifiers": judge(texts(precondition=quantifiers)),
        "nested quantifiers in the goal": judge(texts(goal=quantifiers)),
        "outer forall in the goal": judge(texts(goal=everywhere)),
        "forall effects": judge(texts(effect=everywhere)),
        "rules for everything": judge(texts(precondition="(s ?x ?y)")),
        "open domain": judge(("(" * 1_000_000, PROBLEM, "")),
        "huge problem": judge((DOMAIN, PROBLEM.replace("(in attic)", "(in attic) " * 40_000), SOLUTION)),
        "huge comment": judge((DOMAIN + ";" + "x" * 400_000, PROBLEM, SOLUTION)),
        "error at the end": judge((DOMAIN, PROBLEM.replace("(in attic)", "(in attic)\n" * 30_000 + "(in moon)"), "")),
    }
    too_large = "nested quantifiers", "nested quantifiers in the goal", "outer forall in the goal", "forall effects"
    for name in (*too_large, "rules for everything"):
        assert isinstance(answers[name], UnsupportedPddlError), (name, answers[name])
    valid = "thousands of steps", "thousands of different steps", "huge problem", "huge comment"
    for name in valid:
        assert isinstance(answers[name], PlanVerdict) and answers[name].valid, (name, answers[name])


def test_plans_of_thousands_of_steps_with_conditions_are_quick():
    for name in ("adl", "numbers", "derived"):
        domain, problem, plan = next(case for case in draw_cases(name, random.Random(name), 50) if len(case[2]) > 2)
        verdict = judge((domain, problem, "".join(map(format_action, plan[:1])) * 5000))
        assert isinstance(verdict, PlanVerdict)


def parts_of(text: str) -> list[str]:
    """Everything in parentheses."""
    starts, found = [], []
    for place, character in enumerate(text):
        if character == "(":
            starts.append(place)
        elif character == ")" and starts:
            found.append(text[starts.pop() : place + 1])
    return found


def with_other_parts(text: str, own: Texts, bases: list[Texts], rng: random.Random) -> str:
    """Put parts of the same files, and now and then of others, in the place of some."""
    for _ in range(rng.choice([1, 1, 2])):
        source = rng.choice(own[:2] if rng.random() < 0.9 else rng.choice(bases)[:2])
        old, new = rng.choice(parts_of(text) or [text]), rng.choice(parts_of(source))
        text = text.replace(old, rng.choice([new, new, f"{old} {new}", f"(not {old})", ""]), 1)
    return text


def changed(texts: Texts, bases: list[Texts], rng: random.Random) -> Texts:
    """Put other parts into one of the texts, or change some words and characters there."""
    which = rng.randrange(3)
    text = texts[which]
    if which < 2 and rng.random() < 0.6:
        text = with_other_parts(text, texts, bases, rng)
        return (text, *texts[1:]) if which == 0 else (texts[0], text, texts[2])
    for _ in range(rng.choice([1, 1, 2, 3])):
        kind, place = rng.choice(["insert", "drop", "swap", "swap"]), rng.randrange(len(text) + 1)
        if kind == "insert":
            text = f"{text[:place]} {rng.choice(JUNK)}{rng.choice([' ', ''])}{text[place:]}"
        elif kind == "drop":
            text = text[:place] + text[place + rng.choice([1, 1, 2, 10]) :]
        else:
            words = text.split(" ")
            i, j = rng.randrange(len(words)), rng.randrange(len(words))
            words[i], words[j] = words[j], words[i]
            text = " ".join(words)
    domain, problem, plan = (text if number == which else old for number, old in enumerate(texts))
    return domain, problem, plan


@cache
def base_texts(n: int, seed: int) -> list[Texts]:
    """Domains, problems and plans of all families, most of them valid, the vault, and a domain with durations."""
    rng = random.Random(seed)
    cases = [case for family in ("blocksworld", *FAMILIES) for case in draw_cases(family, rng, n)]
    texts = [(domain, problem, "\n".join(map(format_action, plan))) for domain, problem, plan in cases]
    valid = [text for text in texts if rng.random() < 0.2 or outcome(validate_plan(*text)) == "valid"]
    return [*valid, SOLVED, (kiln.DOMAIN, kiln.PROBLEM, kiln.PLAN)]


def fuzz(n_inputs: int, seed: int, bases: list[Texts]) -> None:
    """Judge changed texts, of which none takes much memory; ask VAL about those valid here, and some others."""
    rng, before = random.Random(seed), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = Counter()
    for number in range(n_inputs):
        texts = changed(rng.choice(bases), bases, rng)
        check_names(texts)
        plan = parse_plan_text(texts[2])
        assert (plan.error is None) == (plan.error_step is None), texts
        assert parse_plan_text("\n".join(map(format_action, plan.actions))).actions == plan.actions, texts
        answer = judge(texts)
        valid = isinstance(answer, PlanVerdict) and answer.valid
        seen["valid" if valid else type(answer).__name__] += 1
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < LIMIT_MIB, texts
        if (valid or number % 20 == 0) and find_val() is not None and seen["asked"] < MOST_ASKED:
            seen["asked"] += 1
            theirs = ask_val(*texts).valid
            assert theirs or not valid or deviation(texts[0], texts[1], ()), texts
            seen["agreed"] += theirs == valid
    least = min(seen[kind] for kind in ("valid", "PlanVerdict", "PddlError", "UnsupportedPddlError"))
    assert least > n_inputs // 50 and seen["agreed"] >= seen["asked"] // 2, seen


@pytest.mark.parametrize(("n_inputs", "n_base"), [(500, 6), pytest.param(1_500, 12, marks=pytest.mark.full)])
def test_changed_texts_are_answered_and_none_is_valid_that_is_not_for_val(n_inputs, n_base):
    fuzz(n_inputs, 0, base_texts(n_base, 0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_two_million_changed_texts(seed):
    fuzz(N_TEXTS, seed, base_texts(20, seed))
