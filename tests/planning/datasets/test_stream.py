"""Streams: rows that are pure in their number, of one partition, with shortest plans, the same from any process."""

import itertools
import random
import re
from dataclasses import replace

import pytest

from jaxppo.errors import ConfigError, DataError
from jaxppo.planning import canonical_form, execute, parse_action, parse_domain, parse_problem
from jaxppo.planning.datasets import candidates
from jaxppo.planning.datasets.renamed_rows import is_numbered, numbered_row
from jaxppo.planning.datasets.rows import COLUMNS, SPLIT_PARTITIONS, make_row, partition
from jaxppo.planning.datasets.stream import Stream, distinct_rows, stream_row
from jaxppo.planning.datasets.stream_ahead import StreamAhead
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.prompts import split_words
from tests.planning.breadth_first import shortest_plan

STREAM = Stream(
    split="train",
    domains=("blocksworld", "ferry", "gripper", "miconic"),
    sizes=("ferry:1-2", "gripper:2-3"),
    lengths="2-7",
    prompt_style="atoms",
    seed=3,
)


def problem_of(row):
    return parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))


def test_rows_are_a_function_of_their_number():
    backwards = {number: stream_row(STREAM, number) for number in reversed(range(12))}
    rows = [stream_row(STREAM, number) for number in range(12)]
    assert rows == [backwards[number] for number in range(12)]
    assert [row["domain"] for row in rows[:5]] == [*STREAM.domains, "blocksworld"]
    assert len({row["prompt"] for row in rows}) == 12
    assert rows[0] != stream_row(replace(STREAM, seed=4), 0)


def test_rows_have_shortest_plans_within_the_band_and_are_of_the_partition():
    for split in ("train", "rl", "test"):
        for number in range(16):
            row = stream_row(replace(STREAM, split=split), number)
            problem, plan = problem_of(row), [parse_action(action) for action in row["reference_plan"]]
            best = shortest_plan(problem)
            assert best is not None and execute(problem, plan).valid
            assert 2 <= len(plan) == len(best) == row["plan_length"] <= 7
            assert COLUMNS.keys() <= row.keys() and partition(problem) == SPLIT_PARTITIONS[split]


BY_DOMAIN = replace(STREAM, numbered=False)
AUGMENTED = replace(BY_DOMAIN, augment=("names", "order"))


def test_augmented_rows_are_the_same_problems_in_other_words():
    for number in range(8):
        row, other = stream_row(BY_DOMAIN, number), stream_row(AUGMENTED, number)
        assert row["prompt"] != other["prompt"] and row["plan_length"] == other["plan_length"]
        assert canonical_form(problem_of(row)) == canonical_form(problem_of(other))
        assert execute(problem_of(other), [parse_action(action) for action in other["reference_plan"]]).valid


@pytest.mark.parametrize("problems", [None, 6], ids=["endless", "coming again"])
def test_every_other_problem_begins_with_a_state_on_its_plan(problems):
    stream = replace(STREAM, domains=tuple(DOMAINS), sizes=(), lengths="1-5", problems=problems)
    before, after = [], []
    for number in range(10 * len(DOMAINS)):
        whole, row = stream_row(stream, number), stream_row(replace(stream, augment=("states",)), number)
        problem, plan = problem_of(row), [parse_action(action) for action in row["reference_plan"]]
        assert partition(problem) == SPLIT_PARTITIONS["train"] and execute(problem, plan).valid
        names = [parse_action(action)[0] for action in whole["reference_plan"]]
        assert plan and [action[0] for action in plan] == names[-len(plan) :]
        if number // len(DOMAINS) % 2 == 0:
            assert row == whole
        else:
            before.append(len(names))
            after.append(len(plan))
    assert any(map(int.__eq__, before, after)) and 0.4 * sum(before) < sum(after) < 0.9 * sum(before)


def test_begun_problems_may_have_longer_plans_whose_rests_are_of_the_band():
    stream = replace(BY_DOMAIN, lengths="2-4", augment=("states",), begun_lengths="6-8")
    longer = replace(BY_DOMAIN, lengths="6-8")
    rests = []
    for number in range(4 * len(stream.domains)):
        row, whole = stream_row(stream, number), stream_row(longer, number)
        rests.append(row["plan_length"])
        if number // len(stream.domains) % 2:
            assert row["reference_plan"] == whole["reference_plan"][-len(row["reference_plan"]) :]
            assert row["plan_length"] < whole["plan_length"]
    assert {*rests} == {2, 3, 4}


def test_a_later_state_of_another_partition_is_not_taken(monkeypatch):
    stream = replace(STREAM, augment=("states",))
    whole = [stream_row(STREAM, number) for number in range(12)]
    first = {canonical_form(problem_of(row)) for row in whole}

    def partition_of(problem):
        return SPLIT_PARTITIONS["train"] if canonical_form(problem) in first else SPLIT_PARTITIONS["test"]

    monkeypatch.setattr("jaxppo.planning.datasets.stream.partition", partition_of)
    taken = [stream_row(stream, number) for number in range(12)]
    assert [row["plan_length"] for row in taken] == [row["plan_length"] for row in whole]


def test_a_later_problem_keeps_to_the_band():
    stream = replace(STREAM, lengths="4-7", augment=("states",))
    lengths = [stream_row(stream, number)["plan_length"] for number in range(40)]
    assert min(lengths) == 4 and len({*lengths}) > 2


@pytest.mark.parametrize("numbered", [True, False])
def test_objects_are_named_alike_in_all_domains_or_by_the_domain(numbered):
    stream = replace(STREAM, domains=tuple(DOMAINS), sizes=(), numbered=numbered)
    for number in range(len(DOMAINS)):
        row = stream_row(stream, number)
        problem, plan = problem_of(row), [parse_action(action) for action in row["reference_plan"]]
        assert {*problem.objects} <= {*stream.object_names} and execute(problem, plan).valid
        generators = DOMAINS[row["domain"]].names
        assert ({*problem.objects} <= {*generators}) == (not numbered)


@pytest.mark.parametrize("style", ["atoms", "brief", "pddl", "nl"])
def test_objects_are_numbered_as_the_prompt_mentions_them(style):
    stream = replace(STREAM, domains=("ferry", "logistics", "childsnack"), sizes=(), prompt_style=style)
    for number in range(9):
        row = stream_row(stream, number)
        problem = problem_of(row)
        numbered = [name for name in problem.objects if name not in problem.domain.constants]
        mentioned = list(dict.fromkeys(word for word in split_words(row["prompt"]) if word in numbered))
        assert mentioned == [f"o{n}" for n in range(1, len(mentioned) + 1)] and mentioned
        assert {*numbered} == {f"o{n}" for n in range(1, len(numbered) + 1)}
        assert execute(problem, [parse_action(action) for action in row["reference_plan"]]).valid


def test_no_object_gets_the_name_of_a_constant():
    row = make_row(
        id="r", domain="d", split="test", prompt_style="brief", planner="p", plan=[("go", "a", "o1")],
        domain_pddl="""(define (domain d) (:constants o1) (:predicates (at ?x ?y))
          (:action go :parameters (?x ?y) :precondition (not (at ?x ?y)) :effect (at ?x ?y)))""",
        problem_pddl="(define (problem p) (:domain d) (:objects a b) (:init (at b o1)) (:goal (and (at a o1))))",
    )  # fmt: skip
    numbered = numbered_row(row, random.Random(0))
    assert numbered["prompt"] == "<init> at o2 o1 <goal> at o3 o1 <plan>" and numbered["completion"] == "go o3 o1"


def test_words_of_a_sentence_are_no_objects():
    problem = "(define (problem p) (:domain blocksworld) (:objects {}) (:init (handempty) {}) (:goal (and (on {} {}))))"
    facts = "(clear {0}) (ontable {0}) (clear {1}) (ontable {1})"
    prompts = set()
    for names in (("a", "b"), ("b", "a"), ("is", "x"), ("c", "d")):
        row = make_row(
            id="r", domain="blocksworld", split="test", prompt_style="nl", planner="p",
            domain_pddl=DOMAINS["blocksworld"].pddl, plan=[("pick-up", names[1]), ("stack", *names[::-1])],
            problem_pddl=problem.format(" ".join(names), facts.format(*names), *names[::-1]),
        )  # fmt: skip
        numbered = numbered_row(row, random.Random(0))
        prompts.add(numbered["prompt"])
        assert is_numbered(numbered)
    assert len(prompts) == 1


def test_more_objects_than_names_are_refused(monkeypatch):
    monkeypatch.setattr("jaxppo.planning.datasets.renamed_rows.NUMBERED", ("o1", "o2"))
    with pytest.raises(DataError, match=r"row ferry-train-1: expected at most 2 objects to be numbered, got [3-9]"):
        stream_row(STREAM, 1)


@pytest.mark.parametrize("constants", ["(:constants home)", ""])
def test_what_is_numbered_is_told_from_what_has_other_names_or_another_order(constants, monkeypatch):
    row = make_row(
        id="r", domain="d", split="test", prompt_style="brief", planner="p", plan=[("go", "o1")],
        domain_pddl=f"""(define (domain d) {constants} (:predicates (at ?x ?y))
          (:action go :parameters (?x) :precondition (not (at ?x home)) :effect (at ?x home)))""",
        problem_pddl="(define (problem p) (:domain d) (:objects o1 o2 HOME) (:init (at o1 o2)) (:goal (at o1 home)))",
    )  # fmt: skip
    if constants:
        row["problem_pddl"] = row["problem_pddl"].replace("HOME", "")
    others = {"o1": "o2", "o2": "o1"}
    swapped = row | {"problem_pddl": re.sub("o[12]", lambda name: others[name[0]], row["problem_pddl"])}
    named = row | {"problem_pddl": row["problem_pddl"].replace("o2", "depot")}
    assert [is_numbered(each) for each in (row, swapped, named)] == [True, False, False]
    assert is_numbered(numbered_row(named, random.Random(0)))
    assert is_numbered(stream_row(STREAM, 1)) and not is_numbered(stream_row(BY_DOMAIN, 1))
    monkeypatch.setattr("jaxppo.planning.datasets.renamed_rows.NUMBERED", ("o1",))
    assert not is_numbered(row)  # more objects than names


def test_a_conversation_is_not_numbered():
    with pytest.raises(DataError, match="expected a prompt to write anew, got a conversation"):
        numbered_row(stream_row(BY_DOMAIN, 0) | {"failures": ["wrong"]}, random.Random(0))


def test_a_limited_stream_repeats_its_problems_under_other_names():
    endless = [stream_row(STREAM, number) for number in range(12)]
    limited = [stream_row(replace(STREAM, problems=2), number) for number in range(16)]
    assert limited[:8] == endless[:8]
    forms = [canonical_form(problem_of(row)) for row in limited]
    assert forms[:8] == forms[8:]
    assert not {row["prompt"] for row in limited[:8]} & {row["prompt"] for row in limited[8:]}


def test_splits_share_no_problem_with_the_stream():
    small = replace(STREAM, domains=("blocksworld", "ferry"), sizes=("blocksworld:2-4", "ferry:1-2"))
    test = distinct_rows(replace(small, split="test"), 6)
    forms = [canonical_form(problem_of(row)) for row in test]
    assert len(set(forms)) == len({row["id"] for row in test}) == 12
    assert [row["domain"] for row in test] == ["blocksworld"] * 6 + ["ferry"] * 6
    assert not {*forms} & {canonical_form(problem_of(stream_row(small, number))) for number in range(100)}


def test_processes_give_the_rows_of_the_stream_wherever_they_begin():
    one, two = StreamAhead(STREAM, 5, 1), StreamAhead(STREAM, 5, 2)
    expected = [[stream_row(STREAM, number)["prompt"] for number in range(5 * at, 5 * at + 5)] for at in range(4)]
    assert [[row["prompt"] for row in two.batch(step)] for step in range(4)] == expected
    assert [row["prompt"] for row in one.batch(2)] == expected[2]
    assert [row["completion"] for row in two.batch(1)] == [stream_row(STREAM, n)["completion"] for n in range(5, 10)]
    processes = [*one._processes, *two._processes]
    one.close()
    two.close()
    assert all(process.returncode is not None for process in processes)


def test_what_cannot_be_drawn_is_said(monkeypatch):
    monkeypatch.setattr("jaxppo.planning.datasets.stream._MAX_DRAWS", 20)
    impossible = replace(STREAM, domains=("blocksworld",), sizes=("blocksworld:2-2",), lengths="9-9")
    with pytest.raises(DataError, match="expected plans of 9-9 steps from sizes 2-2, got none in 20 draws"):
        stream_row(impossible, 0)
    with pytest.raises(DataError, match="train_split: expected rows of the stream, got stream of blocksworld"):
        StreamAhead(impossible, 2, 1).batch(0)
    few = replace(STREAM, split="train", domains=("blocksworld",), sizes=("blocksworld:2-3",), lengths="1-20")
    with pytest.raises(DataError, match="train of blocksworld: expected 90 different problems, got hardly any new one"):
        distinct_rows(few, 90)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domains": ("blocks",)}, "dataset: expected stream: and some of blocksworld, .*, got 'blocks'"),
        ({"domains": ("ferry", "ferry"), "sizes": ()}, "dataset: expected each domain once"),
        ({"sizes": ("ferry:1-99",)}, "stream_sizes: expected a domain of the stream, and sizes .*, got ferry:1-99"),
        ({"sizes": ("hanoi:2-3",)}, "stream_sizes: expected a domain of the stream"),
        ({"sizes": ("ferry",)}, "stream_sizes: expected DOMAIN:LOW-HIGH"),
        ({"prompt_style": "prose"}, "prompt_style: expected one of atoms, brief, pddl, nl, got 'prose'"),
        ({"lengths": "5"}, "stream_lengths: expected a band"),
        (
            {"begun_lengths": "1-6"},
            "stream_rl_lengths: expected lengths of at least 2, .* with augment states, got 1-6",
        ),
    ],
)
def test_check_refuses_what_there_is_not(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(STREAM, **changes).check()


def test_a_supply_is_exhausted_where_hardly_any_draw_is_new():
    supply = candidates.Supply()
    for number in range(candidates._WINDOW):
        assert not supply.is_exhausted
        supply.saw(number < candidates._LEAST_NEW - 1)
    assert supply.is_exhausted
    for is_new in [True] * candidates._LEAST_NEW:
        supply.saw(is_new)
    assert not supply.is_exhausted


@pytest.mark.full
def test_every_domain_has_a_stream():
    for name in DOMAINS:
        stream = replace(STREAM, domains=(name,), sizes=(), lengths="1-10")
        rows = [stream_row(stream, number) for number in range(8)]
        assert all(execute(problem_of(row), [*map(parse_action, row["reference_plan"])]).valid for row in rows)
        assert all(a["prompt"] != b["prompt"] for a, b in itertools.pairwise(rows))
