"""Texts into tokens and back: the word-level tokenizer, prompts that do not fit, and special tokens."""

import dataclasses
import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.data.overlong import RowLimit, within_limit
from jaxppo.errors import DataError
from jaxppo.planning.prompts import words_of
from tests.data.tokenizers import chat_tokenizer, write_rows


def test_encode_prompts_names_the_row_of_a_prompt_that_is_too_long_or_empty(rows, tokenizer):
    longest = max(rows, key=lambda row: len(row["prompt"].split()))
    tokens = len(longest["prompt"].split())
    assert max(map(len, data.encode_prompts(tokenizer, rows, tokens))) == tokens
    assert data.encode_prompts(tokenizer, rows) == data.encode_prompts(tokenizer, rows, 512)
    with pytest.raises(DataError, match=rf"{longest['id']}.*max_prompt_length={tokens - 1}\b.*\b{tokens}\b"):
        data.encode_prompts(tokenizer, [rows[0], longest], tokens - 1)
    with pytest.raises(DataError, match=r"empty-1.*\b0$"):
        data.encode_prompts(tokenizer, [rows[0], rows[1] | {"prompt": " ", "id": "empty-1"}], 64)


@pytest.mark.parametrize("column", ["prompt", "completion"])
def test_encoding_says_which_column_holds_an_unknown_word(rows, tokenizer, column):
    bad = [rows[0], rows[1] | {column: "<init> hello <goal> world"}]
    with pytest.raises(DataError, match=rf"{column}.*{rows[1]['id']}.*'hello'"):
        data.SupervisedData(bad, tokenizer, 1, 0, 64)


def test_prompts_above_a_limit_are_left_out_and_without_one_none(tokenizer):
    rows = [{"id": str(n), "prompt": " ".join(["a"] * n)} for n in (1, 3, 5)]
    template = data.make_chat_template(tokenizer)
    filtering = DataConfig(max_prompt_length=3)
    assert [row["id"] for row in data.without_overlong(tokenizer, rows, filtering, template, "train")] == ["1", "3"]
    # Lengths that prompts are cut to take the place of the limit; the rows of a stream are not all there yet.
    for other in ({"max_prompt_length": None}, {"input_text_length": (1, 2)}, {"dataset": "stream:ferry"}):
        whole = dataclasses.replace(filtering, **other)
        assert data.without_overlong(tokenizer, rows, whole, template, "train") == rows
    with pytest.raises(DataError, match=r"max_prompt_length.*\b3\b.*split train.*\b1\b.*\b5\b"):
        data.without_overlong(tokenizer, rows[2:], filtering, template, "train")
    lines = []
    data.report_left_out(lines.append, DataConfig(max_prompt_length=3), {"train": 1, "test": 0})
    assert len(lines) == 1 and "train" in lines[0]


def test_plain_prompts_begin_as_the_tokenizer_begins_texts():
    tokenizer = chat_tokenizer(None)  # puts <s> before a text, as Llama's and Mistral's do
    rows = [{"id": "r", "prompt": "on b a"}]
    (whole,) = data.encode_prompts(tokenizer, rows, 4)
    assert whole == tokenizer("on b a")["input_ids"] == [tokenizer.bos_token_id, *whole[1:]]
    with pytest.raises(DataError, match=r"max_prompt_length=3\b.*\b4\b"):
        data.encode_prompts(tokenizer, rows, 3)
    with pytest.raises(DataError, match=r"\b0$"):
        data.encode_prompts(tokenizer, [{"id": "r", "prompt": ""}], 4)
    config = DataConfig(max_prompt_length=3)
    short = {"id": "s", "prompt": "b a"}
    assert data.without_overlong(tokenizer, [*rows, short], config, data.make_chat_template(tokenizer), "train") == [
        short
    ]
    (cut,), (ids,) = data.cut_prompts(tokenizer, rows, 4, (2, 2), seed=0)
    assert (cut["prompt"], ids) == ("on b", whole[:3])


def test_word_tokenizer_gives_back_prompts_and_completions(rows, tokenizer):
    for row in rows:
        for text in (row["prompt"], row["completion"]):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert len(ids) == len(text.split())
            assert tokenizer.decode(ids) == text
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id}) == 2
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_decode_leaves_out_padding_and_the_token_that_ends_a_completion_and_nothing_else():
    """A plan with padding tokens between its words is no plan: left out, they would be free junk."""
    tokenizer = data.word_tokenizer()
    pick, a, eos, pad = tokenizer.convert_tokens_to_ids(["pick-up", "a", "<eos>", "<pad>"])
    unknown = len(tokenizer)
    ids = np.array([[pick, a, eos], [pick, a, pad], [pick, pad, eos], [pick, eos, a], [pick, unknown, a]])
    whole = np.ones_like(ids, bool)
    texts = ["pick-up a", "pick-up a", "pick-up <pad>", "pick-up <eos> a", f"pick-up <{unknown}> a"]
    assert data.decode(tokenizer, ids, whole, (eos, pad)) == texts
    assert data.decode(tokenizer, ids, whole, (eos,))[1] == "pick-up a <pad>"
    assert data.decode(tokenizer, ids, whole) == data.decode(tokenizer, ids, whole, (eos,))
    assert data.decode(tokenizer, ids[:1, 2:], whole[:1, 2:]) == [""]
    lengths = np.array([3, 2, 1, 2, 0])
    masked = ["pick-up a", "pick-up a", "pick-up", "pick-up", ""]
    assert data.decode(tokenizer, ids, np.arange(3) < lengths[:, None]) == masked
    # Ids that a tokenizer leaves out are shown, and those after them are read.
    core = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "b": 2, "c": 3, "late": 6}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<eos>")
    ids = np.array([[3, 4, 6]])
    assert data.decode(tokenizer, ids, np.ones_like(ids, bool), ()) == ["c <4> late"]
    with pytest.raises(DataError, match=r"^prompt: "):  # without a splitter no word is to blame
        data.encode_prompts(tokenizer, [{"id": "r", "prompt": "d"}])


def test_words_of_a_dataset_are_those_of_its_file_or_else_of_its_rows(rows, tmp_path):
    write_rows(tmp_path, train=rows[:4], test=rows[4:])
    config = DataConfig(dataset=str(tmp_path), eval_splits=("test",))
    assert data.words_of_dataset(config) == words_of(row[name] for row in rows for name in ("prompt", "completion"))
    (tmp_path / "vocabulary.json").write_text(json.dumps(["zebra", "(", "<eos>"]))
    assert data.words_of_dataset(config) == ["zebra", "(", "<eos>"]
    assert set(data.word_tokenizer(data.words_of_dataset(config)).get_vocab()) == {"zebra", "(", "<eos>", "<pad>"}
    for broken in ("", "{}", "[]", '["a", 1]', '["a", ""]'):
        (tmp_path / "vocabulary.json").write_text(broken)
        with pytest.raises(DataError, match=r"vocabulary\.json"):
            data.words_of_dataset(config)


def test_rows_beyond_a_limit_are_cut_or_left_out_and_counted(tokenizer):
    rows = [
        {"id": "long", "prompt": "on a", "completion": "stack b a ; unstack a b"},
        {"id": "prompt", "prompt": "on a on a on a on a", "completion": "stack"},
        {"id": "short", "prompt": "on b", "completion": "stack a"},
    ]
    encoded = data.encode_rows(tokenizer, rows)
    kept = within_limit(rows, encoded, RowLimit(5, "cut"))
    assert (kept.overlong, kept.left_out) == (2, 1)
    assert kept.rows == [encoded[0]._replace(completion=encoded[0].completion[:3]), encoded[2]]
    kept = within_limit(rows, encoded, RowLimit(5, "drop"))
    assert kept == ([encoded[2]], 2, 2)
    marked = [encoded[0]._replace(loss_mask=[False] * 6 + [True] * 2), encoded[2]._replace(loss_mask=[True] * 3)]
    assert within_limit(rows[::2], marked, RowLimit(5, "cut")) == ([marked[1]], 1, 1)  # what is learned was cut off
    with pytest.raises(DataError, match=r"^max_length: .*\blong$"):
        within_limit(rows, encoded, RowLimit(5, "error"))
    assert within_limit(rows, encoded, RowLimit(2, "drop")) == ([], 3, 3)
    with pytest.raises(DataError, match=r"^max_length: "):
        data.SupervisedData(rows, tokenizer, 2, 0, 64, limit=RowLimit(2, "drop"))
    limited = data.SupervisedData(rows, tokenizer, 2, 0, 64, limit=RowLimit(5, "drop"))
    assert (len(limited), limited.longest, limited.overlong, limited.left_out) == (1, 5, 2, 2)
