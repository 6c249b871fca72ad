"""Rows that are made when their step comes: other names in every epoch, and streams."""

from functools import partial

import numpy as np
import pytest

from jaxppo import data
from jaxppo.config import DataConfig, SFTConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning import canonical_form, execute, parse_action, parse_domain, parse_problem
from jaxppo.planning.datasets.rows import make_row, partition
from jaxppo.planning.datasets.stream import stream_row
from tests.planning.dataset_rows import problem_of

STREAM = DataConfig(dataset="stream:blocksworld,ferry", sizes=("ferry=1-2",), stream_rows=("test=3",))


def of_epoch(rows_of, epoch, steps=5):
    rows = [row for step in range(epoch * steps, (epoch + 1) * steps) for row in rows_of(step)]
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize(
    ("augment", "numbered"),
    [(("names",), False), (("order",), False), (("names", "order"), False), (("order",), True)],
)
def test_rows_are_drawn_anew_in_every_epoch(rows, augment, numbered):
    first, second = (
        of_epoch(data.renamed_in_every_epoch(rows, 2, 7, augment, numbered=numbered), epoch) for epoch in (0, 1)
    )
    assert first.keys() == second.keys() == {row["id"] for row in rows}
    plain = {row["id"]: row for row in rows}
    changed = 0
    for name, row in first.items():
        assert canonical_form(problem_of(row)) == canonical_form(problem_of(plain[name]))
        assert execute(problem_of(row), [*map(parse_action, row["reference_plan"])]).valid
        names = problem_of(row).objects.keys()
        if numbered:
            assert names == {f"o{n}" for n in range(1, row["n_objects"] + 1)}
        elif "names" not in augment:
            assert names == problem_of(plain[name]).objects.keys()
            assert row["completion"] == plain[name]["completion"]
        assert numbered or "order" in augment or len(row["prompt"]) == len(plain[name]["prompt"])
        changed += row["prompt"] != second[name]["prompt"]
    assert changed >= 6
    assert of_epoch(data.renamed_in_every_epoch(rows, 2, 7, augment, numbered=numbered), 1) == second
    assert of_epoch(data.renamed_in_every_epoch(rows, 2, 8, augment, numbered=numbered), 1) != second


def test_renamed_rows_take_the_names_of_their_data_where_the_domain_is_not_ours(rows):
    domain = rows[0]["domain_pddl"].replace("blocksworld", "towers")
    texts = [row["problem_pddl"].replace("blocksworld", "towers") for row in rows]
    own = [
        make_row(**{name: row[name] for name in ("id", "split", "prompt_style", "planner")}, domain="towers",
                 domain_pddl=domain, problem_pddl=text, plans=[list(map(parse_action, row["reference_plan"]))])
        for row, text in zip(rows, texts, strict=True)
    ]  # fmt: skip
    known = {name for row in own for name in problem_of(row).objects}
    found = of_epoch(data.renamed_in_every_epoch(own, 2, 0, ("names",)), 0)
    assert {name for row in found.values() for name in problem_of(row).objects} <= known
    with pytest.raises(DataError, match=r"augment.*\b0\b"):
        data.renamed_in_every_epoch([{"id": "0", "prompt": "a"}], 1, 0, ("names",))


def test_fresh_data_packs_as_fixed_rows_do(rows, tokenizer):
    fixed = data.SupervisedData(rows, tokenizer, 4, 0, 64)
    order = [data.row_order(len(rows), 0, 4 * step, 4) for step in range(3)]
    encode = partial(data.encode_rows, tokenizer)
    fresh = data.FreshData(lambda step: encode([rows[at] for at in order[step]]), tokenizer.pad_token_id)
    for step in range(3):
        expected, got = fixed.batch(step), fresh.batch(step)
        np.testing.assert_array_equal(got.prompt_lengths, expected.prompt_lengths)
        length = got.completion_ids.shape[1]
        kept = [row[: sum(mask)].tolist() for row, mask in zip(got.completion_ids, got.completion_mask, strict=True)]
        wanted = zip(expected.completion_ids, expected.completion_mask, strict=True)
        assert length % 32 == 0 and kept == [row[: sum(mask)].tolist() for row, mask in wanted]
        for row, other, n in zip(got.input_ids, expected.input_ids, got.prompt_lengths, strict=True):
            np.testing.assert_array_equal(row[:n], other[:n])
    short = data.FreshData(lambda step: encode(rows), tokenizer.pad_token_id, max_length=fresh.longest - 1)
    with pytest.raises(DataError, match=f"train_split.*{fresh.longest - 1}"):
        short.batch(1)
    assert fresh.longest_batch().input_ids.shape == (4, data.bucket(fresh.longest))


def test_splits_of_a_stream_are_drawn_once_and_its_words_are_known(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXPPO_CACHE", str(tmp_path))
    rows = data.load_split(STREAM, "test")
    assert [row["domain"] for row in rows] == ["blocksworld"] * 3 + ["ferry"] * 3
    monkeypatch.setattr("jaxppo.data.stream.distinct_rows", None)  # a second call reads the cache
    assert data.load_split(STREAM, "test") == rows
    tokenizer = data.word_tokenizer(data.words_of_dataset(STREAM))
    stream = data.stream_of(STREAM, "train")
    data.SupervisedData([*rows, *(stream_row(stream, number) for number in range(40))], tokenizer, 4, 0, 512)
    with pytest.raises(DataError, match="stream_rows"):
        data.load_split(STREAM, "train")
    with pytest.raises(DataError, match="dev"):
        data.load_split(STREAM, "dev")
    config = replace(STREAM, stream_lengths=("rl=6-8",))  # the augmentation `states` begins plans of these lengths
    assert data.stream_of(config, "train", ["states"]).begun_lengths == "6-8"
    assert data.stream_of(config, "train").begun_lengths is None
    with pytest.raises(ConfigError, match="stream_lengths"):
        data.stream_of(replace(STREAM, stream_lengths=("test_longer=9-20",)), "test")


def test_train_of_a_stream_is_finite_with_a_number_of_problems(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXPPO_CACHE", str(tmp_path))
    rows = data.load_split(replace(STREAM, stream_rows=("train=20", "test=3")), "train")  # so many draws have one twice
    assert [row["domain"] for row in rows] == ["blocksworld"] * 20 + ["ferry"] * 20
    problems = [parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"])) for row in rows]
    assert len({canonical_form(problem) for problem in problems}) == 40
    assert {partition(problem) for problem in problems} == {"train"}
    endless = data.stream_of(STREAM, "train")
    assert [rows[0], rows[20]] == [stream_row(endless, 0), stream_row(endless, 1)]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stream_lengths", {"stream_lengths": ("train=1-9",)}),
        ("n_shots", {"dataset": "stream:ferry", "n_shots": 1}),
        ("augment", {"augment": "names", "number_objects": True}),
        ("augment", {"augment": "names", "dataset": "stream:ferry"}),
        ("augment", {"augment": "names,colours"}),
        ("augment", {"augment": "states"}),
        ("augment", {"augment": "order,states", "dataset": "stream:ferry", "train_split": "rl"}),
    ],
)
def test_settings_that_do_not_fit_are_refused(name, changes):
    with pytest.raises(ConfigError, match=name):
        replace(SFTConfig(), **changes)
