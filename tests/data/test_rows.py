"""Rows of data sets: folders, files, copies of hub repositories, and what is wrong with bad rows."""

import datetime
import decimal
import json
import uuid
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.data import rows as row_module
from jaxppo.errors import ConfigError, DataError, JaxppoError, PddlError
from jaxppo.parallel import processes
from jaxppo.planning import canonical_form, execute, parse_action, parse_domain, parse_problem
from jaxppo.planning.datasets import files as dataset_files

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 988097824\n"
SMALL = DataConfig(sizes=("train=3:4", "rl=3:2", "test=3:3", "test_longer=4:2"))


@pytest.mark.parametrize(
    "other", [[{"prompt": "p", "plan": "(b)"}], [{"prompt": "p"}], [{"prompt": "p", "plan": "(a)"}] * 2]
)
def test_check_same_looks_at_all_columns_of_all_rows(other, monkeypatch):
    rows = [{"prompt": "p", "plan": "(a)"}]
    for read_there, same in ((other, False), ([{"plan": "(a)", "prompt": "p"}], True)):
        asked = []
        monkeypatch.setattr(processes, "is_alone", lambda: False)
        monkeypatch.setattr(processes, "gather", lambda value, asked=asked: asked.append(value) or [value])
        data.check_same("folder", "rl", read_there)
        monkeypatch.setattr(processes, "gather", lambda value, asked=asked: [value, *asked])
        with nullcontext() if same else pytest.raises(ConfigError, match="folder, split rl"):
            data.check_same("folder", "rl", rows)


@pytest.fixture
def write_parquet(tmp_path, monkeypatch):
    """Write texts as the column `prompt` of a Parquet file in a folder of the hub's layout; returns the folder."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")

    def write(path, *texts):
        file = tmp_path / "copy" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict({"prompt": texts}).to_parquet(file)
        return tmp_path / "copy"

    return write


@pytest.mark.parametrize("folder", ["", "data/", "plain_text/"])
def test_a_copy_of_a_hub_data_set_is_read(write_parquet, folder):
    write_parquet(f"{folder}test-00000-of-00001.parquet", "of test")
    write_parquet(f"{folder}train-00000-of-00002.parquet", "a", "b")
    copy = write_parquet(f"{folder}train-00001-of-00002.parquet", "c")
    assert [row["prompt"] for row in data.read_rows(str(copy), "train", {"prompt": str})] == ["a", "b", "c"]
    with pytest.raises(DataError, match=r"valid.*copy"):
        data.read_rows(str(copy), "valid", {"prompt": str})


def test_of_several_data_sets_of_a_hub_id_one_is_named(write_parquet):
    write_parquet("short/train.parquet", "a")
    copy = write_parquet("long/train.parquet", "a b")
    with pytest.raises(DataError, match=r"train\.jsonl"):  # a folder of data sets is none
        data.read_rows(str(copy), "train", {"prompt": str})
    entries = "".join(f"- config_name: {name}\n  data_files: {name}/*.parquet\n" for name in ("short", "long"))
    (copy / "README.md").write_text(f"---\nconfigs:\n{entries}---\n")
    config = DataConfig(dataset=str(copy), dataset_config="long")
    assert [row["prompt"] for row in data.load_split(config, "train", validator=None)] == ["a b"]
    with pytest.raises(DataError, match=r"dataset_config.*short, long"):
        data.load_split(replace(config, dataset_config=None), "train", validator=None)
    with pytest.raises(DataError, match="middle"):
        data.load_split(replace(config, dataset_config="middle"), "train", validator=None)
    with pytest.raises(DataError, match=r"valid.*copy"):
        data.load_split(config, "valid", validator=None)
    with pytest.raises(DataError, match="dataset_config"):
        data.load_split(replace(config, dataset="blocksworld"), "train")


@pytest.fixture
def write_split(rows, tmp_path):
    """Write a data set folder of two good rows and then these lines; returns its configuration."""

    def write(*lines):
        good = [json.dumps(row) for row in rows[:2]]
        (tmp_path / "dev.jsonl").write_text("\n".join([*good, *lines]) + "\n", encoding="utf-8")
        return DataConfig(dataset=str(tmp_path))

    return write


def test_load_split_reads_a_folder_keeps_unknown_columns_and_names_an_unknown_split_or_data_set(write_split, rows):
    loaded = data.load_split(write_split("", json.dumps(rows[2] | {"note": {"any": 1}})), "dev")
    assert loaded == [rows[0], rows[1], rows[2] | {"note": {"any": 1}}]
    with pytest.raises(DataError, match=r"eval_splits.*dev"):
        data.load_split(SMALL, "dev")
    with pytest.raises(DataError, match=r"dataset.*/no/such/folder"):
        data.load_split(replace(SMALL, dataset="/no/such/folder"), "test")


def test_the_objects_of_any_planning_rows_can_be_numbered(write_split, rows, tmp_path):
    config = replace(write_split(json.dumps(rows[2] | {"note": 3})), number_objects=True)
    for config_, split in ((config, "dev"), (replace(SMALL, number_objects=True), "test")):
        loaded, plain = data.load_split(config_, split), data.load_split(replace(config_, number_objects=None), split)
        assert [row["id"] for row in loaded] == [row["id"] for row in plain] and len(loaded) == 3
        assert data.load_split(config_, split) == loaded
        for row, before in zip(loaded, plain, strict=True):
            problem, old = (
                parse_problem(which["problem_pddl"], parse_domain(which["domain_pddl"])) for which in (row, before)
            )
            assert canonical_form(problem) == canonical_form(old)
            assert problem.objects.keys() == {f"o{n}" for n in range(1, row["n_objects"] + 1)}
            assert execute(problem, [*map(parse_action, row["reference_plan"])]).valid
            assert row.keys() == before.keys()
        words = {*data.words_of_dataset(replace(config_, train_split=split, eval_splits=(split,)))}
        assert words >= {"o1", "o48", *loaded[0]["prompt"].split()}
    text = replace(config, dataset=text_split(tmp_path, "a", column="prompt"))
    with pytest.raises(DataError, match=r"number_objects.*train-0"):
        data.load_split(text, "train", None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": None}, r"dev\.jsonl:3.*prompt"),
        ({"reference_plan": "(pick-up a)"}, r"dev\.jsonl:3.*reference_plan"),
        ({"plan_length": True}, r"dev\.jsonl:3.*plan_length"),
        ({"id": [1, 2]}, r"dev\.jsonl:3: field 'id'.*\[1, 2\]"),
        ({"reference_plan": ["(pick-up a)", ["(pick-up a)"]]}, r"row {id}, reference_plan"),
        ({"reference_plan": ["pick-up a"]}, r"row {id}, reference_plan"),
        ({"prompt_style": "haiku"}, r"row {id}, prompt_style"),
        ({"domain_pddl": "(define (domain d) (:durative-action a))"}, r"row {id}, domain_pddl"),
        ({"problem_pddl": "(define (problem p)\n(:domain blocksworld)\n(:objects a b"}, r"row {id}, problem_pddl"),
        *((line, r"dev\.jsonl:3") for line in ('{"prompt": "\\ud800"}', '{"id": "x"', "null", "{}")),
    ],
)
def test_load_split_names_row_and_field_of_a_wrong_value_or_the_line_that_is_no_row(write_split, rows, change, named):
    line = change if isinstance(change, str) else json.dumps(rows[2] | change)
    with pytest.raises(JaxppoError, match=named.format(id=rows[2]["id"])):
        data.load_split(write_split(line), "dev", validator="val")


def test_load_split_wants_domains_that_sentences_can_be_read_with(write_split, rows, monkeypatch):
    """VAL may judge plans for a domain that is too much for our own validator, where the style can read them."""
    monkeypatch.setattr(row_module, "find_val", lambda: "Validate")
    constraint = "(:goal (holding a)) (:constraints (always (clear a)))"
    beyond = rows[2] | {"problem_pddl": f"(define (problem p) (:domain d) (:objects a) (:init) {constraint})"}
    for style in ("atoms", "pddl"):
        config = write_split(json.dumps(beyond | {"prompt_style": style}))
        assert data.load_split(config, "dev", "auto")[2]["prompt_style"] == style
    with pytest.raises(PddlError, match=rf"row {rows[2]['id']}, problem_pddl.*:constraints"):
        data.load_split(write_split(json.dumps(beyond | {"prompt_style": "nl"})), "dev", "auto")


def text_split(tmp_path, *texts, column="text"):
    rows = [{column: text, "label": i} for i, text in enumerate(texts)]
    dataset_files.write_jsonl(rows, tmp_path / "train.jsonl")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (datetime.datetime(2026, 1, 2, 3), "2026-01-02T03:00:00"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=7).bytes, uuid.UUID(int=7).hex),
        (b"row 1", "row 1"),
        ("row", "row"),
        ([7], None),
    ],
)
def test_an_id_is_what_files_of_a_run_can_hold(name, text, tmp_path):
    table = pa.table({"prompt": ["a", "b"], "id": [name, None], "other": [name, name]})
    pq.write_table(table, tmp_path / "train.parquet")
    if text is None:
        with pytest.raises(DataError, match="'id'"):
            data.load_split(DataConfig(dataset=str(tmp_path)), "train", None)
        return
    first, second = data.load_split(DataConfig(dataset=str(tmp_path)), "train", None)
    assert (first["id"], second["id"]) == (text, "train-1")
    assert first["other"] == name  # reward functions have the others as they are
    assert json.loads(json.dumps(first["id"])) == text


TWO_ROWS = [{"prompt": "a, b", "label": "x"}, {"prompt": "c\nd", "label": None}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.json", json.dumps(TWO_ROWS, indent=1)),
        ("train.json", "".join(json.dumps(row) + "\n" for row in TWO_ROWS)),
        ("train.jsonl", "\ufeff" + "".join(json.dumps(row) + "\n" for row in TWO_ROWS)),
        ("train.csv", '\ufeffprompt,label\r\n"a, b",x\r\n"c\nd",\r\n'),
    ],
)
def test_a_split_may_be_json_or_csv(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert data.read_rows(str(tmp_path), "train", {"prompt": str}) == TWO_ROWS


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("train.json", '[{"prompt": "a"}, 1]', r"train\.json, row 2"),
        ("train.json", '[{"prompt": "a"}', r"train\.json"),
        ("train.json", '{"data": [\n{"prompt": "a"}]}', r"train\.json:1"),
        ("train.csv", "prompt,label\na,b\na\n", r"train\.csv:3"),
        ("train.csv", "prompt,prompt\na,b\n", r"train\.csv:1.*prompt"),
        ("train.csv", 'prompt\n"a', r"train\.csv"),
        ("train.csv", "text\na\n", r"train\.csv:2.*prompt"),
        ("train.tsv", "prompt\na\n", r"\.json\b.*train\.tsv"),
        ("test.json", "[]", r"\.json\b.*test\.json"),
        ("train.jsonl", POINTER, r"train\.jsonl: .*git lfs pull"),
        ("train.csv", POINTER, r"train\.csv: .*git lfs pull"),
        ("train.parquet", POINTER, r"train\.parquet: .*git lfs pull"),
    ],
)
def test_a_file_that_is_no_split_is_named(name, text, named, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=named):
        data.read_rows(str(tmp_path), "train", {"prompt": str})


def test_default_splits_that_are_missing_are_left_out_and_named_ones_stay(tmp_path):
    (tmp_path / "test.jsonl").write_text('{"prompt": "a"}\n')
    config = DataConfig(dataset=str(tmp_path))
    fitting, line = data.without_missing_splits(config)
    assert fitting == replace(config, eval_splits=("test",)) and "eval_splits: test_longer left out" in str(line)
    named = replace(config, eval_splits=("test", "test_longer", "dev")[:2])
    assert data.without_missing_splits(named) == (named, None)
    for config in (DataConfig(), DataConfig(dataset="stream:ferry"), DataConfig(dataset="no-such-folder")):
        assert data.without_missing_splits(config) == (config, None)
    (tmp_path / "test.jsonl").rename(tmp_path / "train.jsonl")
    config = DataConfig(dataset=str(tmp_path))
    fitting, line = data.without_missing_splits(config)
    assert fitting.eval_splits == () and "nothing is evaluated" in str(line)
    with pytest.raises(DataError, match=r"^eval_splits: .*test, test_longer; --eval_splits"):
        data.without_missing_splits(config, needs_one=True)


def test_a_file_beside_the_one_that_is_read_is_named(tmp_path, caplog):
    for name in ("train.jsonl", "train.json"):
        (tmp_path / name).write_text(json.dumps({"prompt": name}) + "\n")
    assert data.read_rows(str(tmp_path), "train", {"prompt": str}) == [{"prompt": "train.jsonl"}]
    assert "train.jsonl is read; train.json" in caplog.text


def test_prompts_may_stand_in_another_column_and_short_ones_are_left_out(tmp_path):
    folder = text_split(tmp_path, "pick-up a", "a", "stack a b")
    config = DataConfig(dataset=folder, prompt_column="text", min_prompt_characters=9)
    rows = data.load_split(config, "train", None)
    assert [(row["id"], row["prompt"], row["text"], row["label"]) for row in rows] == [
        ("train-0", "pick-up a", "pick-up a", 0),
        ("train-2", "stack a b", "stack a b", 2),
    ]
    (tmp_path / "prompts").mkdir()
    prompts = text_split(tmp_path / "prompts", "a", "b", column="prompt")
    with pytest.raises(DataError, match="text"):
        data.load_split(replace(config, dataset=prompts), "train", None)
    with pytest.raises(DataError, match="min_prompt_characters"):
        data.load_split(DataConfig(dataset=prompts, min_prompt_characters=2), "train", None)
