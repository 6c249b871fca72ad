"""Streams: rows that are pure in their number, of one partition, with shortest plans, the same from any process."""

import random
import re
from dataclasses import replace

import pytest

from jaxppo.errors import ConfigError, DataError
from jaxppo.planning import canonical_form, parse_action
from jaxppo.planning.datasets import candidates
from jaxppo.planning.datasets.renamed_rows import is_numbered, numbered_row
from jaxppo.planning.datasets.rows import COLUMNS, SPLIT_PARTITIONS, partition
from jaxppo.planning.datasets.stream import Stream, distinct_rows, stream_row
from jaxppo.planning.datasets.stream_ahead import StreamAhead
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.prompts import split_words
from tests.planning.breadth_first import shortest_plan
from tests.planning.dataset_rows import plan_of, problem_of
from tests.planning.dataset_rows import row as make_row

STREAM = Stream(
    split="train",
    domains=("blocksworld", "ferry", "gripper", "miconic"),
    sizes=("ferry:1-2", "gripper:2-3"),
    lengths="2-7",
    prompt_style="atoms",
    seed=3,
)


def test_rows_are_a_function_of_their_number_and_come_again_under_other_names_where_limited():
    backwards = {number: stream_row(STREAM, number) for number in reversed(range(12))}
    rows = [stream_row(STREAM, number) for number in range(12)]
    assert rows == [backwards[number] for number in range(12)]
    assert [row["domain"] for row in rows[:5]] == [*STREAM.domains, "blocksworld"]
    assert len({row["prompt"] for row in rows}) == 12
    assert rows[0] != stream_row(replace(STREAM, seed=4), 0)
    limited = [stream_row(replace(STREAM, problems=2), number) for number in range(16)]
    assert limited[:8] == rows[:8]
    forms = [canonical_form(problem_of(row)) for row in limited]
    assert forms[:8] == forms[8:]
    assert not {row["prompt"] for row in limited[:8]} & {row["prompt"] for row in limited[8:]}


def test_rows_have_shortest_plans_within_the_band_and_are_of_the_partition():
    for split in ("train", "rl", "test"):
        for number in range(8):
            row = stream_row(replace(STREAM, split=split), number)
            best = shortest_plan(problem_of(row))
            assert best is not None and 2 <= len(plan_of(row)) == len(best) == row["plan_length"] <= 7
            assert COLUMNS.keys() <= row.keys() and partition(problem_of(row)) == SPLIT_PARTITIONS[split]


BY_DOMAIN = replace(STREAM, numbered=False)
AUGMENTED = replace(BY_DOMAIN, augment=("names", "order"))


def test_augmented_rows_are_the_same_problems_in_other_words():
    for number in range(8):
        row, other = stream_row(BY_DOMAIN, number), stream_row(AUGMENTED, number)
        assert row["prompt"] != other["prompt"] and row["plan_length"] == other["plan_length"]
        names = {*problem_of(row).objects}
        assert names <= {*DOMAINS[row["domain"]].names} and names <= {*BY_DOMAIN.object_names}
        assert canonical_form(problem_of(row)) == canonical_form(problem_of(other))
        assert plan_of(row) and plan_of(other)


@pytest.mark.parametrize(
    ("domains", "problems"), [(STREAM.domains, None), (tuple(DOMAINS), 2)], ids=["endless", "coming again"]
)
def test_every_other_problem_begins_with_a_state_on_its_plan(domains, problems):
    stream = replace(STREAM, domains=domains, sizes=(), lengths="1-5", problems=problems)
    before, after = [], []
    for number in range(6 * len(domains)):
        whole, row = stream_row(stream, number), stream_row(replace(stream, augment=("states",)), number)
        plan = plan_of(row)
        assert partition(problem_of(row)) == SPLIT_PARTITIONS["train"]
        names = [parse_action(action)[0] for action in whole["reference_plan"]]
        assert plan and [action[0] for action in plan] == names[-len(plan) :]
        if number // len(domains) % 2 == 0:
            assert row == whole
        else:
            before.append(len(names))
            after.append(len(plan))
    assert any(map(int.__eq__, before, after)) and 0.3 * sum(before) < sum(after) < sum(before)


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


@pytest.mark.parametrize("style", ["atoms", "brief", "pddl", "nl"])
def test_objects_are_numbered_as_the_prompt_mentions_them(style):
    """In all domains with one style, in three with each."""
    domains = tuple(DOMAINS) if style == "atoms" else ("ferry", "logistics", "childsnack")
    stream = replace(STREAM, domains=domains, sizes=(), lengths="1-5", problems=1, prompt_style=style)
    for number in range(len(domains)):
        row = stream_row(stream, number)
        problem = problem_of(row)
        numbered = [name for name in problem.objects if name not in problem.domain.constants]
        mentioned = list(dict.fromkeys(word for word in split_words(row["prompt"]) if word in numbered))
        assert mentioned == [f"o{n}" for n in range(1, len(mentioned) + 1)] and mentioned
        assert {*numbered} == {f"o{n}" for n in range(1, len(numbered) + 1)}
        assert plan_of(row) and {*problem.objects} <= {*stream.object_names}


def test_more_objects_than_names_are_not_numbered(monkeypatch):
    monkeypatch.setattr("jaxppo.planning.datasets.renamed_rows.NUMBERED", ("o1", "o2"))
    with pytest.raises(DataError, match=r"ferry-train-1.*2"):
        stream_row(STREAM, 1)


def test_no_object_gets_the_name_of_a_constant():
    domain = """(define (domain d) (:constants o1) (:predicates (at ?x ?y))
      (:action go :parameters (?x ?y) :precondition (not (at ?x ?y)) :effect (at ?x ?y)))"""
    problem = "(define (problem p) (:domain d) (:objects a b) (:init (at b o1)) (:goal (and (at a o1))))"
    texts = {"domain_pddl": domain, "problem_pddl": problem, "prompt_style": "brief"}
    numbered = numbered_row(make_row("test", 0, "d", plan=[("go", "a", "o1")], **texts), random.Random(0))
    assert numbered["prompt"] == "<init> at o2 o1 <goal> at o3 o1 <plan>" and numbered["completion"] == "go o3 o1"


def test_words_of_a_sentence_are_no_objects():
    problem = "(define (problem p) (:domain blocksworld) (:objects {}) (:init (handempty) {}) (:goal (and (on {} {}))))"
    facts = "(clear {0}) (ontable {0}) (clear {1}) (ontable {1})"
    prompts = set()
    for names in (("a", "b"), ("b", "a"), ("is", "x"), ("c", "d")):
        text = problem.format(" ".join(names), facts.format(*names), *names[::-1])
        row = make_row("test", 0, "blocksworld", problem_pddl=text, prompt_style="nl")
        numbered = numbered_row(row, random.Random(0))
        prompts.add(numbered["prompt"])
        assert is_numbered(numbered)
    assert len(prompts) == 1


@pytest.mark.parametrize("constants", ["(:constants home)", ""])
def test_what_is_numbered_is_told_from_what_has_other_names_or_another_order(constants, monkeypatch):
    domain = f"""(define (domain d) {constants} (:predicates (at ?x ?y))
      (:action go :parameters (?x) :precondition (not (at ?x home)) :effect (at ?x home)))"""
    problem = "(define (problem p) (:domain d) (:objects o1 o2 HOME) (:init (at o1 o2)) (:goal (at o1 home)))"
    texts = {"domain_pddl": domain, "problem_pddl": problem, "prompt_style": "brief"}
    row = make_row("test", 0, "d", plan=[("go", "o1")], **texts)
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


def test_splits_share_no_problem_with_the_stream():
    small = replace(STREAM, domains=("blocksworld", "ferry"), sizes=("blocksworld:2-4", "ferry:1-2"))
    test = distinct_rows(replace(small, split="test"), 6)
    forms = [canonical_form(problem_of(row)) for row in test]
    assert len(set(forms)) == len({row["id"] for row in test}) == 12
    assert [row["domain"] for row in test] == ["blocksworld"] * 6 + ["ferry"] * 6
    assert not {*forms} & {canonical_form(problem_of(stream_row(small, number))) for number in range(60)}


def test_another_process_gives_the_rows_of_the_stream_wherever_it_begins():
    """Its sets are ordered by other hashes."""
    stream = AUGMENTED
    ahead = StreamAhead(stream, 3)
    processes = []
    for step in (0, 1, 2, 1):
        rows = ahead.batch(step)
        if ahead._process not in processes:
            processes.append(ahead._process)
        expected = [stream_row(stream, number) for number in range(3 * step, 3 * step + 3)]
        assert rows == [{name: row[name] for name in ("id", "domain", "prompt", "completion")} for row in expected]
    ahead.close()
    assert len(processes) == 2 and all(process.returncode is not None for process in processes)


def test_what_cannot_be_drawn_is_said(monkeypatch):
    monkeypatch.setattr("jaxppo.planning.datasets.stream._MAX_DRAWS", 20)
    impossible = replace(STREAM, domains=("blocksworld",), sizes=("blocksworld:2-2",), lengths="9-9")
    with pytest.raises(DataError, match=r"blocksworld.*9-9.*2-2.*20.*--sizes"):
        stream_row(impossible, 0)
    with pytest.raises(DataError, match=r"train_split.*blocksworld"):
        StreamAhead(impossible, 2).batch(0)
    monkeypatch.setattr(candidates, "_WINDOW", 100)
    few = replace(STREAM, domains=("blocksworld", "ferry"), sizes=("blocksworld:2-3", "ferry:1-1"), lengths="1-20")
    with pytest.raises(DataError, match=r"train of blocksworld.*90.*train of ferry.*90"):
        distinct_rows(few, 90)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dataset", {"domains": ("blocks",)}),
        ("dataset", {"domains": ("ferry", "ferry"), "sizes": ()}),
        ("sizes", {"sizes": ("ferry:1-99",)}),
        ("sizes", {"sizes": ("hanoi:2-3",)}),
        ("prompt_style", {"prompt_style": "prose"}),
        ("stream_lengths", {"lengths": "5"}),
        ("stream_lengths", {"begun_lengths": "1-6"}),
    ],
)
def test_check_refuses_what_does_not_exist(name, changes):
    with pytest.raises(ConfigError, match=f"^{name}: "):
        replace(STREAM, **changes).check()


def test_a_supply_is_exhausted_where_hardly_any_draw_is_new():
    supply = candidates.Supply()
    for number in range(candidates._WINDOW):
        assert not supply.is_exhausted
        supply.record(number < candidates._LEAST_NEW - 1)
    assert supply.is_exhausted
    for is_new in [True] * candidates._LEAST_NEW:
        supply.record(is_new)
    assert not supply.is_exhausted
