"""Leaks that were planted on purpose are counted; what is paired on purpose is not one."""

import random

import pytest

from jaxppo.errors import DataError
from jaxppo.planning import canonical_form, parse_action, parse_domain, parse_problem
from jaxppo.planning.datasets.leaks import find_leaks
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.transform.renaming import choose_words, permute_atoms, rename_objects, rename_plan, rename_words
from tests.planning.dataset_rows import row

FERRY = DOMAINS["ferry"]


def ferry_problems(count):
    """Problems of which no two are the same up to renaming."""
    problems, seed = {}, 0
    while len(problems) < count:
        text = FERRY.generate_problem(3, random.Random(seed), "task")
        form = canonical_form(parse_problem(text, parse_domain(FERRY.pddl)))
        problems.setdefault(form, text)
        seed += 1
    return list(problems.values())


PROBLEMS = ferry_problems(8)


def ferry_row(split, problem_pddl, number=0, **others):
    return row(split, number, "ferry", problem_pddl=problem_pddl, id=f"{split}-{number}", **others)


def in_other_names(problem_pddl):
    rng = random.Random(5)
    renamed, _ = rename_objects(problem_pddl, parse_domain(FERRY.pddl), rng, FERRY.pools)
    return permute_atoms(renamed, rng)


def in_other_words(original, split="test_obfuscated", style="random"):
    mapping = choose_words(FERRY.pddl, ["task", *FERRY.names], style, random.Random(1))
    made = ferry_row(
        split,
        rename_words(original["problem_pddl"], mapping),
        domain_pddl=rename_words(FERRY.pddl, mapping),
        plan=rename_plan(map(parse_action, original["reference_plan"]), mapping),
        obfuscation=style,
        paired_id="x",
    )
    return made, {"ferry": {style: mapping}}


@pytest.fixture
def splits():
    return {
        "train": [ferry_row("train", text, number) for number, text in enumerate(PROBLEMS[:3])],
        "rl": [ferry_row("rl", PROBLEMS[3])],
        "test": [ferry_row("test", text, number) for number, text in enumerate(PROBLEMS[4:6])],
    }


def test_find_leaks_finds_nothing_where_there_is_nothing_and_names_unseen_domains_that_were_seen(splits):
    found = find_leaks(splits, {})
    none = {"problems": 0, "prompts": 0}
    assert found == {
        "leaks": 0,
        "pairs": {"train / rl": none, "train / test": none, "rl / test": none},
        "touching_bands": [],
        "seen_domains": [],
    }
    for domain, seen in (("ferry", ["ferry"]), ("hanoi", [])):
        splits["test_unseen"] = [ferry_row("test_unseen", PROBLEMS[6]) | {"domain": domain}]
        assert find_leaks(splits, {})["seen_domains"] == seen


def test_find_leaks_counts_equal_prompts_and_problems_whatever_the_names_and_each_problem_once(splits):
    splits["rl"].append(splits["train"][1] | {"split": "rl", "id": "rl-1"})
    found = find_leaks(splits, {})
    assert found["pairs"]["train / rl"] == {"problems": 1, "prompts": 1} and found["leaks"] == 2
    splits["rl"] = [ferry_row("rl", in_other_names(PROBLEMS[0]), 1)]
    found = find_leaks(splits, {})
    assert found["pairs"]["train / rl"] == {"problems": 1, "prompts": 0} and found["leaks"] == 1
    splits["rl"].append(ferry_row("rl", PROBLEMS[0], 2))
    found = find_leaks(splits, {})
    assert found["pairs"]["train / rl"]["problems"] == 1


@pytest.mark.parametrize("style", ["random", "deceptive"])
def test_find_leaks_turns_obfuscated_rows_back_whose_words_it_needs(splits, style):
    splits["test_obfuscated"], mappings = [None], None
    splits["test_obfuscated"][0], mappings = in_other_words(splits["test"][1], style=style)
    found = find_leaks(splits, mappings)
    assert found["leaks"] == 0 and "test / test_obfuscated" not in found["pairs"]
    splits["test_obfuscated"][0], mappings = in_other_words(splits["train"][0], style=style)
    found = find_leaks(splits, mappings)
    assert found["pairs"]["train / test_obfuscated"]["problems"] == found["leaks"] == 1
    with pytest.raises(DataError, match=rf"test_obfuscated-0.*'{style}'"):
        find_leaks(splits, {})


@pytest.mark.parametrize(("shortest", "touching"), [(30, ["train"]), (31, ["train"]), (32, [])])
def test_find_leaks_compares_the_bands_of_plan_lengths(splits, shortest, touching):
    assert max(row["plan_length"] for own in splits.values() for row in own) < 25
    splits["train"][0]["plan_length"] = 30
    splits["test_longer"] = [ferry_row("test_longer", PROBLEMS[6]) | {"plan_length": shortest}]
    found = find_leaks(splits, {})
    assert found["touching_bands"] == touching and found["leaks"] == len(touching)
