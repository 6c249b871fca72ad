"""Begun rows: the first steps of the plan stand in the prompt, and a completion is judged as the rest of it."""

import dataclasses

import pytest

from jaxppo import data
from jaxppo.errors import DataError
from jaxppo.planning import execute, parse_action, parse_domain, parse_problem
from jaxppo.planning.datasets.plan_prefixes import plan_prefix_row, plan_prefix_rows
from jaxppo.planning.datasets.rows import COLUMNS
from jaxppo.planning.datasets.stream import Stream, stream_row
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.prompts import PROMPT_STYLES, parse_completion
from jaxppo.planning.transform.restart import problem_after
from tests.planning.dataset_rows import problem_of
from tests.planning.dataset_rows import row as make_row

STREAM = Stream(
    split="rl", domains=tuple(DOMAINS), sizes=(), lengths="3-6", prompt_style="brief", seed=5, numbered=False
)
FLIGHT = """(define (domain flight) (:requirements :typing :fluents) (:predicates (at ?x) (far ?x)) (:functions (fuel))
 (:action go :parameters (?x) :precondition (and (far ?x) (>= (fuel) 1)) :effect (and (at ?x) (decrease (fuel) 1))))"""
FLIGHT_TASK = """(define (problem trip) (:domain flight) (:objects a b)
 (:init (far a) (far b) (= (fuel) 2)) (:goal (and (at a) (at b))))"""


def judged(row, actions):
    return execute(problem_of(row), actions)


STYLES = list(PROMPT_STYLES)


@pytest.mark.parametrize(("style", "number"), [(STYLES[n % 4], n % 12) for n in (*range(12), *range(13, 25))])
def test_prompt_and_completion_are_the_whole_plan_and_the_rest_is_judged_alike(style, number):
    """Each domain in two styles, each style with six domains."""
    row = stream_row(dataclasses.replace(STREAM, prompt_style=style), number)
    plan = [parse_action(action) for action in row["reference_plan"]]
    for done in range(1, len(plan)):
        begun = plan_prefix_row(row, done)
        assert begun["prompt"].startswith(row["prompt"])
        written = begun["prompt"].removeprefix(row["prompt"]) + " " + begun["completion"]
        assert list(parse_completion(written, style, row["domain_pddl"]).actions) == plan
        assert [parse_action(action) for action in begun["reference_plan"]] == plan[done:]
        assert begun["plan_length"] == len(plan) - done and begun.keys() == row.keys() >= COLUMNS.keys()
        others = plan[done:], plan[done + 1 :], [*plan[done:], plan[-1]], [*reversed(plan[done:])], []
        for rest in others:
            whole = judged(row, [*plan[:done], *rest])
            assert judged(begun, rest).valid == whole.valid, rest


def test_tokens_are_those_of_the_whole_plan():
    row = stream_row(dataclasses.replace(STREAM, domains=("blocksworld",), prompt_style="atoms"), 0)
    tokenizer = data.word_tokenizer()

    def tokens(row):
        (prompt,), (completion,) = data.encode_prompts(tokenizer, [row], 512), data.encode_completions(tokenizer, [row])
        return [*prompt, *completion]

    for done in range(1, row["plan_length"]):
        assert tokens(plan_prefix_row(row, done)) == tokens(row)


def test_numbers_of_steps_are_different_and_follow_from_seed_and_row_and_the_first_plan_is_begun():
    row = stream_row(dataclasses.replace(STREAM, lengths="5-6"), 0)
    steps = row["plan_length"]
    rows = plan_prefix_rows(row, 3, 1)
    lengths = [begun["plan_length"] for begun in rows]
    assert len(set(lengths)) == 3 and set(lengths) <= set(range(1, steps)) and rows == plan_prefix_rows(row, 3, 1)
    assert len({begun["id"] for begun in [row, *rows]}) == 4
    drawn = {tuple(begun["plan_length"] for begun in plan_prefix_rows(row, 3, seed)) for seed in range(12)}
    assert len(drawn) > 1 and {length for lengths in drawn for length in lengths} == set(range(1, steps))
    assert [begun["plan_length"] for begun in plan_prefix_rows(row, 99, 1)] == [*range(steps - 1, 0, -1)]
    assert plan_prefix_rows(plan_prefix_row(row, steps - 1), 3, 1) == []
    several = row | {"reference_plan": [row["reference_plan"], ["(put-down zz)"]]}
    assert plan_prefix_row(several, 2) == plan_prefix_row(row, 2)


def test_rows_that_cannot_be_begun_are_named():
    row = stream_row(STREAM, 0)
    first = row["reference_plan"][0]
    with pytest.raises(DataError) as error:
        plan_prefix_row(row | {"reference_plan": [first, first, *row["reference_plan"]]}, 3)
    assert all(word in str(error.value) for word in (row["id"], "reference_plan", first, "step 2"))

    broken = row["problem_pddl"].replace("(:init", "(:init (flies) ")
    with pytest.raises(DataError, match=rf"{row['id']}.*<problem>:\d+: .*flies"):
        plan_prefix_row(row | {"problem_pddl": broken}, 1)

    # Conditions that compare numbers.
    plan = [("go", "a"), ("go", "b")]
    flight = make_row("rl", 0, "flight", domain_pddl=FLIGHT, problem_pddl=FLIGHT_TASK, plan=plan, prompt_style="pddl")
    assert judged(flight, plan).valid
    with pytest.raises(DataError, match=r"flight-rl-0.*problem_pddl"):
        plan_prefix_row(flight, 1)


def test_a_problem_after_no_step_is_the_same_and_after_one_says_only_what_holds():
    row = stream_row(dataclasses.replace(STREAM, domains=("blocksworld",)), 0)
    domain, problem, first = row["domain_pddl"], row["problem_pddl"], parse_action(row["reference_plan"][0])
    parsed = parse_domain(domain)
    assert parse_problem(problem_after(problem, domain, []), parsed).init == parse_problem(problem, parsed).init
    said = problem.replace("(:init ", f"(:init (not (holding {first[1]})) ")
    assert said != problem
    assert problem_after(said, domain, [first]) == problem_after(problem, domain, [first])
