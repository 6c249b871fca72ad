"""Hostile plans and hostile PDDL: an answer or a declared error, soon, and never a plan that VAL would not accept."""

import os
import random
import resource
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo.errors import PddlError
from jaxppo.planning import PlanError, PlanVerdict, UnsupportedPddlError, parse_plan_text, validate_plan
from jaxppo.planning.language.plans import ParsedTimedPlan, format_action
from jaxppo.planning.language.temporal import check_step, parse_plan_for, read_names
from tests.planning.cpu_time import within
from tests.planning.families import FAMILIES, draw_cases
from tests.planning.grown import Texts, regrown
from tests.planning.val_oracle import ask_val, needs_val, outcome
from tests.planning.validate.test_validator import DOMAIN, PROBLEM, SOLUTION

SOLVED: Texts = (DOMAIN, PROBLEM, SOLUTION)
LIMIT_S, LIMIT_MIB = 1.0, 500
N_GROWN = int(os.environ.get("JAXPPO_FUZZ_TEXTS", "100000"))
"""For each of 20 seeds."""
JUNK = [
    *"()();-?:=<>.,'\"0123 \n\t\r\x00\x0c{}[]#é\u212a\u00a0",
    *("and", "or", "not", "forall", "exists", "imply", "when", "either", "increase", "assign", "time", "object"),
    *(
        "(and)",
        "()",
        "(or)",
        "(not (p))",
        "?x",
        "- t",
        "- object",
        ";c\n",
        "; (x",
        "1.5",
        "-2",
        "99999999999",
        "total-cost",
    ),
    *(":init", ":goal", ":types", ":action", "(:derived (q ?x) (p))", "(:metric minimize (f))", "(= (f) 1)", "#t"),
]


def judge(texts: Texts) -> PlanVerdict | PddlError:
    """Validate, within the CPU time that any input may take; only the declared errors pass."""
    with within(LIMIT_S, texts):
        try:
            answer: PlanVerdict | PddlError = validate_plan(*texts)
        except PddlError as error:
            assert "\n" not in str(error) and str(error).isprintable(), texts
            answer = error
    return answer


def check_names(texts: Texts) -> None:
    """Read a plan as for VAL, within the same limits."""
    with within(LIMIT_S, texts):
        try:
            names, plan = read_names(*texts[:2]), parse_plan_for(*texts)
        except PddlError as error:
            assert "\n" not in str(error) and str(error).isprintable(), texts
        else:
            for step in plan.steps if isinstance(plan, ParsedTimedPlan) else plan.actions:
                check_step(names, step)


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
        "deep plan": judge(texts("(" * 500_000)),
        "one line": judge(texts("(go o1 o2)" + "x" * 1_000_000)),
        "thousands of steps": judge(texts("(go o1 o2)" * 5000)),
        "thousands of different steps": judge(texts(distinct)),
        "long names": judge(texts(f"(go {'o' * 1_000_000} o2)")),
        "deep condition": judge(texts(precondition=deep)),
        "nested quantifiers": judge(texts(precondition=quantifiers)),
        "nested quantifiers in the goal": judge(texts(goal=quantifiers)),
        "outer forall in the goal": judge(texts(goal=everywhere)),
        "forall effects": judge(texts(effect=everywhere)),
        "rules for everything": judge(texts(precondition="(s ?x ?y)")),
        "a costly condition in every step": judge(texts(distinct, precondition="(forall (?a) (imply (r ?x ?a) (p)))")),
        "huge domain": judge(("(" + "a " * 10_000_000, PROBLEM, "")),
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
    assert answers["a costly condition in every step"].error in (None, PlanError.VALIDATOR_TIMEOUT)


def test_plans_of_thousands_of_steps_with_conditions_are_quick():
    for name in ("adl", "numbers", "derived"):
        domain, problem, plan = next(case for case in draw_cases(name, random.Random(name), 50) if len(case[2]) > 2)
        verdict = judge((domain, problem, "".join(map(format_action, plan[:1])) * 5000))
        assert isinstance(verdict, PlanVerdict)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(), st.text("()go ab;\n\t-?1", max_size=60), st.lists(st.sampled_from([*JUNK, "(take k)"])).map("".join)
    )
)
def test_plan_text_is_never_an_exception(text):
    plan = parse_plan_text(text)
    assert (plan.error is None) == (plan.error_step is None)
    judge((DOMAIN, PROBLEM, text))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_broken_pddl_is_an_error_with_file_and_line(data):
    which = data.draw(st.sampled_from([0, 1]))
    texts = [DOMAIN, PROBLEM, SOLUTION]
    position = data.draw(st.integers(0, len(texts[which])))
    length = data.draw(st.integers(0, 12))
    junk = data.draw(st.lists(st.sampled_from(JUNK), max_size=3).map(" ".join))
    texts[which] = texts[which][:position] + junk + texts[which][position + length :]
    answer = judge((texts[0], texts[1], texts[2]))
    if isinstance(answer, PddlError):
        assert answer.source == ("<domain>", "<problem>")[which] or which == 0
        assert 1 <= answer.line <= texts[0].count("\n") + texts[1].count("\n") + 2


def mutated(texts: Texts, rng: random.Random) -> Texts:
    """One of the three texts changed in one to three places."""
    changed = list(texts)
    which = rng.randrange(3)
    for _ in range(rng.choice([1, 1, 2, 3])):
        changed[which] = rng.choice(CHANGES)(changed[which], rng)
    return changed[0], changed[1], changed[2]


def _insert(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice([" ", ""]) + rng.choice(JUNK) + rng.choice([" ", ""]) + text[place:]


def _drop_characters(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + text[place + rng.choice([1, 1, 2, 10]) :]


def _swap_words(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    i, j = rng.randrange(len(words)), rng.randrange(len(words))
    words[i], words[j] = words[j], words[i]
    return " ".join(words)


def _copy_word(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    words[rng.randrange(len(words))] = rng.choice(words)
    return " ".join(words)


def _repeat_part(text: str, rng: random.Random) -> str:
    """Copy a parenthesised part somewhere else, or drop it."""
    start = text.find("(", rng.randrange(len(text) + 1))
    end = _end_of_part(text, start)
    if start < 0 or end < 0:
        return text
    if rng.random() < 0.4:
        return text[:start] + text[end:]
    place = text.find("(", rng.randrange(len(text)))
    return text[:place] + text[start:end] + text[place:] if place >= 0 else text


def _end_of_part(text: str, start: int) -> int:
    depth = 0
    for place in range(max(start, 0), min(len(text), start + 300)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return -1


CHANGES: list[Callable[[str, random.Random], str]] = [_insert, _drop_characters, _swap_words, _copy_word, _repeat_part]


def base_texts(rng: random.Random, n: int) -> list[Texts]:
    """Domains, problems and plans of all families, most of them valid, and the rooms of `test_validator`."""
    cases = [case for family in ("blocksworld", *FAMILIES) for case in draw_cases(family, rng, n)]
    texts = [(domain, problem, "\n".join(map(format_action, plan))) for domain, problem, plan in cases]
    return [*(text for text in texts if rng.random() < 0.2 or outcome(validate_plan(*text)) == "valid"), SOLVED]


def fuzz(n_inputs: int, n_asked: int, seed: int) -> Counter:
    """Judge mutated texts; ask VAL about some of those that are valid here, and about a few others."""
    rng = random.Random(seed)
    bases = base_texts(rng, 20)
    seen = Counter()
    for number in range(n_inputs):
        texts = mutated(rng.choice(bases), rng)
        answer = judge(texts)
        valid = isinstance(answer, PlanVerdict) and answer.valid
        seen["valid" if valid else type(answer).__name__] += 1
        if seen["asked"] < n_asked and (valid or number % 10 == 0) and rng.random() < 8 * n_asked / n_inputs:
            seen["asked"] += 1
            theirs = ask_val(*texts).valid
            assert theirs or not valid, texts
            seen["agreed" if theirs == valid else "stricter"] += 1
    return seen


@pytest.mark.parametrize("count", [450, pytest.param(1_500, marks=pytest.mark.full)])
def test_mutated_texts_are_answered(count):
    seen = fuzz(count, 0, seed=1)
    assert min(seen["valid"], seen["PlanVerdict"], seen["PddlError"]) > count // 15, seen


@needs_val
@pytest.mark.parametrize("asked", [45, pytest.param(150, marks=pytest.mark.full)])
def test_no_mutated_text_is_valid_here_that_is_not_for_val(asked):
    seen = fuzz(10 * asked, asked, seed=2)
    assert seen["asked"] == asked and seen["agreed"] > asked // 3, seen


def fuzz_grown(n_inputs: int, seed: int) -> Counter:
    """Judge texts of which parts are grown from a grammar; the whole takes no more memory than one may."""
    rng, before = random.Random(seed), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bases = base_texts(rng, 20)
    seen = Counter()
    for _ in range(n_inputs):
        texts = regrown(rng.choice(bases), rng)
        check_names(texts)
        answer = judge(texts)
        seen["valid" if isinstance(answer, PlanVerdict) and answer.valid else type(answer).__name__] += 1
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < LIMIT_MIB, texts
    return seen


@pytest.mark.parametrize("count", [400, pytest.param(4_000, marks=pytest.mark.full)])
def test_grown_texts_are_answered(count):
    seen = fuzz_grown(count, seed=0)
    assert min(seen["valid"], seen["PlanVerdict"], seen["UnsupportedPddlError"]) > count // 50, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_two_million_grown_texts(seed):
    seen = fuzz_grown(N_GROWN, seed)
    assert min(seen["valid"], seen["PlanVerdict"], seen["UnsupportedPddlError"]) > N_GROWN // 50, seen


@pytest.mark.slow
def test_two_hundred_thousand_mutated_texts():
    seen = fuzz(200_000, 0, seed=3)
    assert min(seen["valid"], seen["PlanVerdict"], seen["PddlError"]) > 10_000, seen


@needs_val
@pytest.mark.slow
def test_two_thousand_mutated_texts_against_val():
    seen = fuzz(30_000, 2_000, seed=4)
    assert seen["asked"] == 2_000 and seen["agreed"] > 500, seen
