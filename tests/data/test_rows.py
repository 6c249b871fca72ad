"""From rows to batches: order, padding, masks, the tokenizer, and bad rows."""

import json
from dataclasses import replace

import numpy as np
import pytest

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.config.paths import cache_dir
from jaxppo.data.chat_template import make_turns
from jaxppo.errors import DataError, PddlError
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXPPO_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tokenizer():
    return data.word_tokenizer()


@pytest.fixture(scope="module")
def rows():
    """Ten rows whose prompts and plans have different lengths."""
    return datasets.build_split("train", sizes={3: 5, 4: 5}, seed=0, unique=True)


# --- order


def test_row_order_covers_every_epoch_exactly_once():
    stream = data.row_order(7, seed=3, start=0, count=28)
    for epoch in stream.reshape(4, 7):
        assert sorted(epoch) == list(range(7))
    assert len({tuple(epoch) for epoch in stream.reshape(4, 7)}) == 4  # each in an order of its own


@pytest.mark.parametrize("size", [1, 3, 7, 10, 28])
def test_row_order_is_one_stream_however_it_is_cut(size):
    """A batch larger than the data set, or across an epoch's end, is nothing special."""
    stream = data.row_order(7, seed=3, start=0, count=28)
    for start in range(0, 28 - size + 1):
        np.testing.assert_array_equal(data.row_order(7, 3, start, size), stream[start : start + size])


def test_row_order_differs_between_seeds():
    assert not np.array_equal(data.row_order(50, 0, 0, 50), data.row_order(50, 1, 0, 50))


# --- prompts


def test_pad_left_puts_the_last_token_of_every_prompt_in_the_last_column():
    batch = data.pad_left([[7, 8], [9], [4, 5, 6]], length=4, pad_id=9)
    np.testing.assert_array_equal(batch.prompt_ids, [[9, 9, 7, 8], [9, 9, 9, 9], [9, 4, 5, 6]])
    # A real token that is the pad id stays real.
    np.testing.assert_array_equal(batch.prompt_mask, [[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1]])
    assert (batch.prompt_ids.dtype, batch.prompt_mask.dtype) == (np.int32, bool)


@pytest.mark.parametrize(("length", "multiple", "expected"), [(1, 8, 8), (8, 8, 8), (9, 8, 16), (256, 3, 258)])
def test_bucket_is_the_next_multiple(length, multiple, expected):
    assert data.bucket(length, multiple) == expected


def make_prompts(rows, tokenizer, seed=0):
    return data.PromptData(rows, tokenizer, batch_size=4, seed=seed, max_prompt_length=64)


def test_prompt_data_batches_are_a_function_of_seed_and_step(rows, tokenizer):
    first, again = make_prompts(rows, tokenizer), make_prompts(rows, tokenizer)
    again.batch(7)  # what was asked before does not matter
    for step in (3, 0, 1):
        a, b = first.batch(step), again.batch(step)
        np.testing.assert_array_equal(a.prompts.prompt_ids, b.prompts.prompt_ids)
        assert (a.texts, a.columns) == (b.texts, b.columns)
    other = make_prompts(rows, tokenizer, seed=1)
    assert other.batch(0).texts + other.batch(1).texts != first.batch(0).texts + first.batch(1).texts


def test_prompt_data_batches_hold_text_ids_and_columns_of_the_same_rows(rows, tokenizer):
    prompts = make_prompts(rows, tokenizer)
    by_id = {row["id"]: row for row in rows}
    seen = []
    for step in range(5):
        batch = prompts.batch(step)
        assert batch.prompts.prompt_ids.shape == (4, prompts.prompt_length) and prompts.prompt_length % 8 == 0
        for i, name in enumerate(batch.columns["id"]):
            real = batch.prompts.prompt_ids[i][batch.prompts.prompt_mask[i]]
            assert tokenizer.decode(real) == batch.texts[i] == by_id[name]["prompt"]
            others = by_id[name].keys() - {"prompt", "completion"}
            assert all(batch.columns[column][i] == by_id[name][column] for column in others)
        seen += batch.columns["id"]
    assert sorted(seen[:10]) == sorted(seen[10:]) == sorted(by_id)


def test_per_completion_repeats_every_row_next_to_itself():
    batch = data.Batch(prompts=None, texts=["p", "q"], columns={"id": [1, 2], "plan": [["a"], None]})
    texts, columns = batch.per_completion(3)
    assert texts == ["p", "p", "p", "q", "q", "q"]
    assert columns == {"id": [1, 1, 1, 2, 2, 2], "plan": [["a"], ["a"], ["a"], None, None, None]}
    assert batch.per_completion(1) == (batch.texts, batch.columns)


def cut_lengths(rows, tokenizer, text_lengths, seed=0, steps=20):
    """{row id: set of the lengths it was seen with}, checked: ids, text and row hold the same cut of the row."""
    whole = {row["id"]: row["prompt"].split() for row in rows}
    prompts = data.PromptData(rows, tokenizer, 4, seed, max_prompt_length=64, text_lengths=text_lengths)
    assert prompts.prompt_length <= data.bucket(text_lengths[1])
    cut, seen = {row["id"]: row["prompt"] for row in prompts.rows}, {}
    for step in range(steps):
        batch = prompts.batch(step)
        for i, name in enumerate(batch.columns["id"]):
            real = batch.prompts.prompt_ids[i][batch.prompts.prompt_mask[i]]
            assert batch.texts[i] == cut[name] == tokenizer.decode(real) == " ".join(whole[name][: len(real)])
            seen.setdefault(name, set()).add(len(real))
    return seen


@pytest.fixture
def many_rows(rows):
    """Forty rows, so that all of three lengths come out."""
    return [row | {"id": f"{row['id']}-{copy}"} for copy in range(4) for row in rows]


def test_prompt_data_cuts_every_prompt_once_to_a_length_of_the_range(many_rows, tokenizer):
    before = [dict(row) for row in many_rows]
    seen = cut_lengths(many_rows, tokenizer, (5, 7))
    assert len(seen) == 40
    assert {len(lengths) for lengths in seen.values()} == {1}  # drawn once, not in each of the two epochs
    counts = [list(seen.values()).count({length}) for length in (5, 6, 7)]
    assert sum(counts) == 40 and min(counts) >= 5  # both ends come out: 13 expected, 5 is 2.8 deviations below
    assert many_rows == before  # the caller's rows stay whole


def test_prompt_data_cuts_are_decided_by_the_seed(many_rows, tokenizer):
    first, again, other = (cut_lengths(many_rows, tokenizer, (5, 7), seed, steps=10) for seed in (0, 0, 1))
    assert first == again != other


def test_prompt_data_leaves_prompts_shorter_than_the_cut_whole(rows, tokenizer):
    lengths = [len(row["prompt"].split()) for row in rows]
    between = min(lengths) + 1
    assert between < max(lengths)
    expected = {row["id"]: {min(n, between)} for row, n in zip(rows, lengths, strict=True)}
    assert cut_lengths(rows, tokenizer, (between, between), steps=5) == expected


def test_a_column_of_few_rows_is_in_every_batch(many_rows, tokenizer):
    rows = [row | ({"hint": "x"} if i == 0 else {}) for i, row in enumerate(many_rows)]
    prompts = data.PromptData(rows, tokenizer, batch_size=2, seed=0, max_prompt_length=64)
    hints = [prompts.batch(step).columns["hint"] for step in range(len(rows) // 2)]
    assert sorted(hint or "" for batch in hints for hint in batch) == [""] * (len(rows) // 2 * 2 - 1) + ["x"]


def test_columns_of_fills_up_with_none_and_leaves_the_prompt_out():
    columns = data.columns_of([{"prompt": "p", "id": 1}, {"prompt": "q", "id": 2, "extra": "x"}])
    assert columns == {"id": [1, 2], "extra": [None, "x"]}


def test_encode_prompts_names_the_row_of_a_prompt_that_is_too_long(rows, tokenizer):
    longest = max(rows, key=lambda row: len(row["prompt"].split()))
    tokens = len(longest["prompt"].split())
    assert max(map(len, data.encode_prompts(tokenizer, rows, tokens))) == tokens
    with pytest.raises(DataError, match=rf"row .*: expected 1 to max_prompt_length={tokens - 1} tokens, got {tokens}"):
        data.encode_prompts(tokenizer, [longest], tokens - 1)
    with pytest.raises(DataError, match=longest["id"]):
        data.encode_prompts(tokenizer, [rows[0], longest], len(rows[0]["prompt"].split()))


def test_encode_prompts_names_the_row_of_an_empty_prompt(rows, tokenizer):
    with pytest.raises(DataError, match=r"row empty-1: expected 1 to .* got 0"):
        data.encode_prompts(tokenizer, [rows[0], rows[1] | {"prompt": " ", "id": "empty-1"}], 64)


@pytest.mark.parametrize("column", ["prompt", "completion"])
def test_encoding_says_which_column_holds_an_unknown_word(rows, tokenizer, column):
    bad = [rows[0], rows[1] | {column: "<init> hello <goal> world"}]
    known = "words that the model's tokenizer knows"
    expected = f"{column} of row {rows[1]['id']}: expected {known}, got 'hello'; use another model"
    with pytest.raises(DataError, match=f"^{expected}"):
        data.SupervisedData(bad, tokenizer, 1, 0, 64)


@pytest.mark.parametrize("kind", [data.PromptData, data.SupervisedData])
def test_data_without_rows_is_an_error(tokenizer, kind):
    with pytest.raises(DataError, match="expected at least one row"):
        kind([], tokenizer, 4, 0, 64)


# --- tokenizer


def test_word_tokenizer_gives_back_prompts_and_completions(rows, tokenizer):
    for row in rows:
        for text in (row["prompt"], row["completion"]):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert len(ids) == len(text.split())
            assert tokenizer.decode(ids) == text
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id}) == 2
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_decode_leaves_out_padding_and_end_of_sequence(tokenizer):
    ids = tokenizer(["unstack b a ; put-down b", "pick-up a"])["input_ids"]
    eos = tokenizer.eos_token_id
    padded = np.array([[*ids[0], eos, eos], [*ids[1], eos, *[ids[0][0]] * 5]])
    mask = np.arange(8)[None, :] < np.array([[7], [3]])
    assert data.decode(tokenizer, padded, mask) == ["unstack b a ; put-down b", "pick-up a"]


# --- supervised batches


def test_supervised_data_packs_prompts_and_completions_with_their_masks(rows, tokenizer):
    supervised = data.SupervisedData(rows, tokenizer, batch_size=10, seed=0, max_prompt_length=64)
    batch = supervised.batch(0)
    assert batch.input_ids.shape == (10, supervised.length) and supervised.length % 8 == 0
    for i, row in enumerate(data.row_order(10, 0, 0, 10)):
        prompt = tokenizer(rows[row]["prompt"])["input_ids"]
        completion = [*tokenizer(rows[row]["completion"])["input_ids"], tokenizer.eos_token_id]
        p, c = len(prompt), len(completion)
        assert batch.prompt_lengths[i] == p
        assert list(batch.input_ids[i, : p + c]) == prompt + completion
        assert set(batch.input_ids[i, p + c :]) <= {tokenizer.pad_token_id}
        assert list(batch.completion_ids[i, :c]) == completion  # the end of sequence is learned too
        np.testing.assert_array_equal(batch.completion_mask[i], np.arange(supervised.completion_length) < c)


def test_supervised_data_batches_are_a_function_of_seed_and_step(rows, tokenizer):
    batches = [data.SupervisedData(rows, tokenizer, 4, 0, 64).batch(2) for _ in range(2)]
    np.testing.assert_array_equal(batches[0].input_ids, batches[1].input_ids)


# --- splits and files

SMALL = DataConfig(train_sizes="3:4", rl_sizes="3:2", test_sizes="3:3", test_longer_sizes="4:2")


def test_load_split_builds_once_and_then_reads_the_cache(monkeypatch):
    built = data.load_split(SMALL, "test")
    assert [row["n_objects"] for row in built] == [3, 3, 3]
    with monkeypatch.context() as patch:
        patch.setattr(data.datasets, "build_split", lambda **_: pytest.fail("built again"))
        assert data.load_split(SMALL, "test") == built
    other = data.load_split(DataConfig(test_sizes="3:4"), "test")  # another request, another file
    assert len(other) == 4
    assert data.load_split(SMALL, "test") == built


@pytest.mark.parametrize("split", [pytest.param("rl", marks=pytest.mark.slow), "test", "test_longer"])
def test_the_shipped_splits_are_what_would_be_built(split, monkeypatch):
    config = DataConfig()
    built = data.build_request(data.built_in_request(config, split))
    with monkeypatch.context() as patch:
        patch.setattr(data.datasets, "build_split", lambda **_: pytest.fail("built"))
        assert data.load_split(config, split) == built
    with monkeypatch.context() as patch:
        patch.setattr(data.dataset_files, "read_split", lambda *_: pytest.fail("another request was read"))
        assert data.load_split(
            DataConfig(data_seed=1, rl_sizes="3:2", test_sizes="3:2", test_longer_sizes="3:2"), split
        )


def test_load_split_builds_again_when_the_code_that_builds_it_changes(monkeypatch, tmp_path):
    data.load_split(SMALL, "rl")
    (tmp_path / "planning").mkdir()
    (tmp_path / "planning" / "prompts.py").write_text("changed")
    monkeypatch.setattr(data.prompts, "__file__", str(tmp_path / "planning" / "prompts.py"))
    calls = []
    build_split = datasets.build_split
    monkeypatch.setattr(data.datasets, "build_split", lambda **request: calls.append(request) or build_split(**request))
    data.load_split(SMALL, "rl")
    (tmp_path / "planning" / "__pycache__").mkdir()
    (tmp_path / "planning" / "__pycache__" / "prompts.pyc").write_text("compiled code is no source")
    data.load_split(SMALL, "rl")
    assert len(calls) == 1


def test_load_split_names_an_unknown_split_and_data_set(tmp_path):
    with pytest.raises(
        DataError, match=r"eval_splits: expected one of train, rl, test, test_longer for blocksworld, got 'dev'"
    ):
        data.load_split(SMALL, "dev")
    with pytest.raises(DataError, match=r"dataset: expected a folder or a hub id .*/no/such/folder"):
        data.load_split(DataConfig(dataset="/no/such/folder"), "test")


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
    with pytest.raises(DataError, match=r"expected a split 'valid' in .*copy, got .*Unknown split"):
        data.read_rows(str(copy), "valid", {"prompt": str})


def test_of_several_data_sets_of_a_hub_id_one_is_named(write_parquet):
    write_parquet("short/train.parquet", "a")
    copy = write_parquet("long/train.parquet", "a b")
    entries = "".join(f"- config_name: {name}\n  data_files: {name}/*.parquet\n" for name in ("short", "long"))
    (copy / "README.md").write_text(f"---\nconfigs:\n{entries}---\n")
    config = DataConfig(dataset=str(copy), dataset_config="long")
    assert [row["prompt"] for row in data.load_split(config, "train", validator=None)] == ["a b"]
    with pytest.raises(DataError, match=r"^dataset_config: expected one of short, long for .*copy, got none$"):
        data.load_split(replace(config, dataset_config=None), "train", validator=None)
    with pytest.raises(DataError, match=r"'middle' not found. Available: \['short', 'long'\]"):
        data.load_split(replace(config, dataset_config="middle"), "train", validator=None)
    with pytest.raises(DataError, match=r"expected a split 'valid' in .*copy, got .*Unknown split"):
        data.load_split(config, "valid", validator=None)
    with pytest.raises(DataError, match="dataset_config: expected none for blocksworld, got 'long'"):
        data.load_split(replace(config, dataset="blocksworld"), "train")


def test_a_saved_data_set_has_no_configurations(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"prompt": ["a"]})}).save_to_disk(tmp_path / "saved")
    assert data.read_rows(str(tmp_path / "saved"), "train", {"prompt": str}) == [{"prompt": "a"}]
    with pytest.raises(DataError, match=r"dataset_config: expected none for the saved data set .*saved, got 'long'"):
        data.read_rows(str(tmp_path / "saved"), "train", {"prompt": str}, "long")


def test_a_folder_of_data_sets_is_none(write_parquet):
    write_parquet("one/train.parquet", "a")
    folder = write_parquet("other/train.parquet", "b")
    with pytest.raises(DataError, match=r"train.jsonl: expected this file or train.parquet, got no splits in the fold"):
        data.read_rows(str(folder), "train", {"prompt": str})


def test_a_parquet_file_may_be_a_folder_of_parts(write_parquet):
    write_parquet("train.parquet/part-0.parquet", "a")
    folder = write_parquet("train.parquet/part-1.parquet", "b")
    assert [row["prompt"] for row in data.read_rows(str(folder), "train", {"prompt": str})] == ["a", "b"]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8-sig")
    assert data.read_rows(str(tmp_path), "train", {"prompt": str}) == [{"prompt": "a"}]


@pytest.fixture
def write_split(rows, tmp_path):
    """Write a data set folder of two good rows and then these lines; returns its configuration."""

    def write(*lines):
        good = [json.dumps(row) for row in rows[:2]]
        (tmp_path / "dev.jsonl").write_text("\n".join([*good, *lines]) + "\n", encoding="utf-8")
        return DataConfig(dataset=str(tmp_path))

    return write


def test_load_split_reads_a_folder_and_keeps_unknown_columns(write_split, rows):
    loaded = data.load_split(write_split("", json.dumps(rows[2] | {"note": {"any": 1}})), "dev")
    assert loaded == [rows[0], rows[1], rows[2] | {"note": {"any": 1}}]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": None}, r"field 'prompt': expected str, got None"),
        ({"reference_plan": "(pick-up a)"}, r"field 'reference_plan': expected list, got '\(pick-up a\)'"),
        ({"plan_length": "4"}, r"field 'plan_length': expected int, got '4'"),
        ({"plan_length": True}, r"field 'plan_length': expected int, got True"),
    ],
)
def test_load_split_names_file_line_and_field_of_a_wrong_value(write_split, rows, change, named):
    with pytest.raises(DataError, match=rf"dev\.jsonl:3: {named}"):
        data.load_split(write_split(json.dumps(rows[2] | change)), "dev")


def test_load_split_names_file_line_and_field_of_a_missing_value(write_split, rows):
    incomplete = {name: value for name, value in rows[2].items() if name != "problem_pddl"}
    with pytest.raises(DataError, match=r"dev\.jsonl:3: field 'problem_pddl': expected str, got nothing"):
        data.load_split(write_split(json.dumps(incomplete)), "dev")


@pytest.mark.parametrize("line", ['{"id": "x"', "[1, 2]", "null", '"row"', "{'id': 1}"])
def test_load_split_names_file_and_line_of_a_line_that_is_no_json_object(write_split, line):
    with pytest.raises(DataError, match=r"dev\.jsonl:3: expected a JSON object"):
        data.load_split(write_split(line), "dev")


def test_load_split_names_the_row_and_line_of_a_syntax_error_in_pddl(write_split, rows):
    broken = rows[2] | {"problem_pddl": "(define (problem p)\n(:domain blocksworld)\n(:objects a b"}
    with pytest.raises(PddlError, match=rf"row {rows[2]['id']}, problem_pddl"):
        data.load_split(write_split(json.dumps(broken)), "dev")


@pytest.mark.parametrize(("environment", "expected"), [("/some/where", "/some/where"), ("", "jaxppo")])
def test_cache_dir_is_the_environments_or_the_users(monkeypatch, environment, expected):
    monkeypatch.setenv("JAXPPO_CACHE", environment)
    assert str(cache_dir()).endswith(expected)


def test_chunks_cover_all_items_in_order():
    assert list(data.chunks([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(data.chunks([], 2)) == []


def test_decode_keeps_special_tokens_inside_a_completion():
    """A plan with padding tokens between its words is no plan: left out, they would be free junk."""
    tokenizer = data.word_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["pick-up", "<pad>", "a", "<eos>", "<pad>"])
    mask = np.array([[True, True, True, True, False]])
    assert data.decode(tokenizer, np.array([ids]), mask) == ["pick-up <pad> a"]


def test_decode_shows_ids_that_the_tokenizer_lacks():
    tokenizer = data.word_tokenizer()
    ids = np.array([[*tokenizer.convert_tokens_to_ids(["pick-up"]), len(tokenizer)]])
    assert data.decode(tokenizer, ids, np.ones((1, 2), bool)) == [f"pick-up <{len(tokenizer)}>"]


def test_load_split_refuses_plans_with_time_stamps(write_split, rows):
    timed = "(define (domain d) (:predicates (p)) (:durative-action a :parameters () :duration (= ?duration 1)))"
    with pytest.raises(DataError, match="domain_pddl: expected plans that are lists of actions, got durative actions"):
        data.load_split(write_split(json.dumps(rows[2] | {"domain_pddl": timed})), "dev", validator="val")


def test_load_split_wants_domains_that_sentences_can_be_read_with(write_split, rows, monkeypatch):
    """VAL may judge plans for a domain that is too much for our own validator, where the style can read them."""
    monkeypatch.setattr(data, "find_val", lambda: "Validate")
    constraint = "(:goal (holding a)) (:constraints (always (clear a)))"
    beyond = rows[2] | {"problem_pddl": f"(define (problem p) (:domain d) (:objects a) (:init) {constraint})"}
    for style in ("atoms", "pddl"):
        config = write_split(json.dumps(beyond | {"prompt_style": style}))
        assert data.load_split(config, "dev", "auto")[2]["prompt_style"] == style
    with pytest.raises(PddlError, match=rf"row {rows[2]['id']}, problem_pddl:1: got ':constraints', which is not"):
        data.load_split(write_split(json.dumps(beyond | {"prompt_style": "nl"})), "dev", "auto")


# --- data that are no planning problems


def text_split(tmp_path, *texts, column="text"):
    rows = [{column: text, "label": i} for i, text in enumerate(texts)]
    dataset_files.write_jsonl(rows, tmp_path / "train.jsonl")
    return str(tmp_path)


def test_prompts_may_stand_in_another_column_and_short_ones_are_left_out(tmp_path):
    folder = text_split(tmp_path, "pick-up a", "a", "stack a b")
    config = DataConfig(dataset=folder, prompt_column="text", min_prompt_characters=9)
    rows = data.load_split(config, "train", None)
    assert [(row["id"], row["prompt"], row["text"], row["label"]) for row in rows] == [
        ("train-0", "pick-up a", "pick-up a", 0),
        ("train-2", "stack a b", "stack a b", 2),
    ]
    with pytest.raises(DataError, match="'text'"):
        data.load_split(
            DataConfig(dataset=text_split(tmp_path, "a", column="prompt"), prompt_column="text"), "train", None
        )


def test_no_row_that_is_long_enough_is_an_error(tmp_path):
    config = DataConfig(dataset=text_split(tmp_path, "a", "b", column="prompt"), min_prompt_characters=2)
    with pytest.raises(DataError, match=r"min_prompt_characters: .* at least 2, got none of 2"):
        data.load_split(config, "train", None)


def test_overlong_prompts_are_left_out_only_where_asked_for(tokenizer):
    rows = [{"id": str(n), "prompt": " ".join(["a"] * n)} for n in (1, 3, 5)]
    turns = make_turns(tokenizer)
    kept = lambda **settings: data.without_overlong(tokenizer, rows, DataConfig(**settings), turns)  # noqa: E731
    assert [row["id"] for row in kept(max_prompt_length=3, filter_overlong_prompts=True)] == ["1", "3"]
    assert kept(max_prompt_length=3) == rows
    with pytest.raises(DataError, match=r"max_prompt_length: .* at most 3 tokens, got 1 longer ones, .* with 5"):
        data.without_overlong(tokenizer, rows[2:], DataConfig(max_prompt_length=3, filter_overlong_prompts=True), turns)
    told = []
    data.tell_left_out(told.append, DataConfig(max_prompt_length=3), {"train": 1, "test": 0})
    assert told == ["1 rows of split train left out: prompts longer than 3 tokens"]
