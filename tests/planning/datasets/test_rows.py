"""Splits without leaks, rows that hold what they say, files that are whole or absent."""

import json
from collections import Counter

import pytest

from jaxppo.errors import ConfigError, DataError
from jaxppo.planning import canonical_form, parse_completion, parse_plan_text, validate_plan
from jaxppo.planning.datasets.rows import COLUMNS, build_split, partition
from tests.planning.dataset_rows import problem_of
from tests.planning.towers import all_states, towers_problem


@pytest.fixture(scope="module")
def splits():
    sizes = {"train": {3: 20, 5: 30}, "rl": {5: 20}, "test": {5: 40}, "test_longer": {6: 10}}
    return {
        name: build_split(name, sizes=size, seed=seed, unique=name != "train")
        for seed, (name, size) in enumerate(sizes.items())
    }


def test_rows_hold_every_column_and_a_valid_plan_and_are_different_within_and_between_splits(splits):
    for name, rows in splits.items():
        for row in rows:
            assert row.keys() == COLUMNS.keys() and row["split"] == name
            plan_text = "\n".join(row["reference_plan"])
            assert validate_plan(row["domain_pddl"], row["problem_pddl"], plan_text).valid
            assert parse_completion(row["completion"]) == parse_plan_text(plan_text)
            assert row["plan_length"] == len(row["reference_plan"]) > 0
            assert row["n_objects"] == len(problem_of(row).objects)
            assert row["id"] == problem_of(row).name
    assert Counter(row["n_objects"] for row in splits["train"]) == {3: 20, 5: 30}
    ids = [row["id"] for rows in splits.values() for row in rows]
    assert len(set(ids)) == len(ids)
    forms = {name: {canonical_form(problem_of(row)) for row in rows} for name, rows in splits.items()}
    assert sum(map(len, forms.values())) == len(set().union(*forms.values()))
    # A split that need not be unique may have a problem twice, but no prompt.
    train = splits["train"]
    assert len(forms["test"]) == 40
    assert len(forms["train"]) < len({row["prompt"] for row in train}) == len(train)


def test_the_same_arguments_give_the_same_rows_whatever_other_sizes_there_are(splits):
    assert json.dumps(build_split("rl", sizes={5: 20}, seed=1, unique=True)) == json.dumps(splits["rl"])
    assert build_split("rl", sizes={5: 20}, seed=9, unique=True) != splits["rl"]
    assert build_split("train", sizes={5: 30}, seed=0, unique=False) == splits["train"][20:]


def test_partition_shares_are_60_20_20():
    shapes = {tuple(sorted(map(len, start))): start for start in all_states("abcde")}
    problems = {
        canonical_form(problem): problem
        for start in shapes.values()
        for problem in (towers_problem(start, goal) for goal in all_states("abcde"))
    }
    assert len(problems) == 2111
    counts = Counter(map(partition, problems.values()))
    # Binomial over 2,111 forms: standard deviations 22.5 and 18.4; four of them.
    assert abs(counts["train"] - 0.6 * 2111) < 90
    assert abs(counts["rl"] - 0.2 * 2111) < 74 and abs(counts["test"] - 0.2 * 2111) < 74


def test_a_partition_that_holds_too_few_is_an_error(monkeypatch):
    monkeypatch.setattr("jaxppo.planning.datasets.rows._MAX_DRAWS_WITHOUT_NEW", 500)
    with pytest.raises(DataError, match=r"'test', 2 objects.*50.*\d;"):
        build_split("test", sizes={2: 50}, seed=0, unique=True)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("split", {"split": "tset"}),
        ("prompt_style", {"prompt_style": "haiku"}),
        ("sizes", {"sizes": {1: 1}}),
    ],
)
def test_build_split_refuses_unknown_choices(name, changes):
    arguments = {"split": "train", "sizes": {3: 1}, "seed": 0, "unique": True} | changes
    with pytest.raises(ConfigError, match=f"^{name}: "):
        build_split(arguments.pop("split"), **arguments)
