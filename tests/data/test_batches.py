"""From rows to batches: order, padding and masks."""

import numpy as np
import pytest

from jaxppo.data import PromptData, SupervisedData, bucket, chunks, pad_left
from jaxppo.data.batches import row_order
from jaxppo.errors import DataError
from jaxppo.types import Batch


def test_row_order_covers_every_epoch_exactly_once_in_another_order_and_is_one_stream_however_it_is_cut():
    stream = row_order(7, seed=3, start=0, count=28)
    for epoch in stream.reshape(4, 7):
        assert sorted(epoch) == list(range(7))
    assert len({tuple(epoch) for epoch in stream.reshape(4, 7)}) == 4
    assert not np.array_equal(row_order(50, 0, 0, 50), row_order(50, 1, 0, 50))
    # A batch larger than the data set, or across an epoch's end, is nothing special.
    for size in (1, 3, 7, 10, 28):
        for start in range(0, 28 - size + 1):
            np.testing.assert_array_equal(row_order(7, 3, start, size), stream[start : start + size])


def test_chunks_cover_all_items_in_order_and_bucket_is_the_next_multiple():
    assert list(chunks([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert [bucket(1, 8), bucket(8, 8), bucket(9, 8), bucket(256, 3)] == [8, 8, 16, 258]


def test_pad_left_puts_the_last_token_of_every_prompt_in_the_last_column():
    batch = pad_left([[7, 8], [9], [4, 5, 6]], length=4, pad_id=9)
    np.testing.assert_array_equal(batch.prompt_ids, [[9, 9, 7, 8], [9, 9, 9, 9], [9, 4, 5, 6]])
    # A real token that is the pad id stays real.
    np.testing.assert_array_equal(batch.prompt_mask, [[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1]])
    assert (batch.prompt_ids.dtype, batch.prompt_mask.dtype) == (np.int32, bool)


def test_prompt_data_batches_hold_text_ids_and_columns_of_the_same_rows(rows, tokenizer):
    rows = [row | ({"hint": "x"} if i == 0 else {}) for i, row in enumerate(rows)]  # a column of one row alone
    prompts = PromptData(rows, tokenizer, batch_size=4, seed=0, max_prompt_length=64)
    by_id = {row["id"]: {"hint": None} | row for row in rows}
    seen = []
    for step in range(5):
        batch = prompts.batch(step)
        assert batch.prompts.prompt_ids.shape == (4, prompts.prompt_length) and prompts.prompt_length % 8 == 0
        for i, name in enumerate(batch.columns["id"]):
            real = batch.prompts.prompt_ids[i][batch.prompts.prompt_mask[i]]
            assert tokenizer.decode(real) == batch.prompt_texts[i] == by_id[name]["prompt"]
            others = by_id[name].keys() - {"prompt", "completion"}
            assert all(batch.columns[column][i] == by_id[name][column] for column in others)
        seen += batch.columns["id"]
    assert sorted(seen[:10]) == sorted(seen[10:]) == sorted(by_id)


def test_per_completion_repeats_every_row_next_to_itself():
    batch = Batch(prompts=None, prompt_texts=["p", "q"], columns={"id": [1, 2], "plan": [["a"], None]})
    texts, columns = batch.per_completion(3)
    assert texts == ["p", "p", "p", "q", "q", "q"]
    assert columns == {"id": [1, 1, 1, 2, 2, 2], "plan": [["a"], ["a"], ["a"], None, None, None]}
    assert batch.per_completion(1) == (batch.prompt_texts, batch.columns)


def cut_lengths(rows, tokenizer, text_lengths, seed=0, steps=20):
    """{row id: set of the lengths it was seen with}, checked: ids, text and row hold the same cut of the row."""
    whole = {row["id"]: row["prompt"].split() for row in rows}
    prompts = PromptData(rows, tokenizer, 4, seed, max_prompt_length=64, text_lengths=text_lengths)
    assert prompts.prompt_length <= bucket(text_lengths[1])
    cut, seen = {row["id"]: row["prompt"] for row in prompts.rows}, {}
    for step in range(steps):
        batch = prompts.batch(step)
        for i, name in enumerate(batch.columns["id"]):
            real = batch.prompts.prompt_ids[i][batch.prompts.prompt_mask[i]]
            assert batch.prompt_texts[i] == cut[name] == tokenizer.decode(real) == " ".join(whole[name][: len(real)])
            seen.setdefault(name, set()).add(len(real))
    return seen


def test_prompt_data_cuts_every_prompt_once_to_a_length_of_the_range(rows, tokenizer):
    many_rows = [row | {"id": f"{row['id']}-{copy}"} for copy in range(4) for row in rows]
    before = [dict(row) for row in many_rows]
    seen = cut_lengths(many_rows, tokenizer, (5, 7))
    assert len(seen) == 40
    assert {len(lengths) for lengths in seen.values()} == {1}  # drawn once, not in each of the two epochs
    counts = [list(seen.values()).count({length}) for length in (5, 6, 7)]
    assert sum(counts) == 40 and min(counts) >= 5  # both ends come out: 13 expected, 5 is 2.8 deviations below
    assert many_rows == before  # the caller's rows stay whole
    again, other = (cut_lengths(many_rows, tokenizer, (5, 7), seed) for seed in (0, 1))
    assert seen == again != other
    # Prompts shorter than the cut stay whole.
    lengths = [len(row["prompt"].split()) for row in rows]
    between = min(lengths) + 1
    assert between < max(lengths)
    expected = {row["id"]: {min(n, between)} for row, n in zip(rows, lengths, strict=True)}
    assert cut_lengths(rows, tokenizer, (between, between), steps=5) == expected


def test_supervised_data_packs_prompts_and_completions_with_their_masks(rows, tokenizer):
    supervised = SupervisedData(rows, tokenizer, batch_size=10, seed=0, max_prompt_length=64)
    batch = supervised.batch(0)
    assert batch.input_ids.shape == (10, supervised.length) and supervised.length % 8 == 0
    lengths = batch.prompt_lengths + batch.completion_mask.sum(axis=1)
    assert list(lengths) == sorted(lengths)  # rows of similar length stand side by side
    tokens = [
        len(tokenizer(row["prompt"])["input_ids"]) + len(tokenizer(row["completion"])["input_ids"]) for row in rows
    ]
    for i, row in enumerate(sorted(row_order(10, 0, 0, 10), key=lambda row: tokens[row])):
        prompt = tokenizer(rows[row]["prompt"])["input_ids"]
        completion = [*tokenizer(rows[row]["completion"])["input_ids"], tokenizer.eos_token_id]
        p, c = len(prompt), len(completion)
        assert batch.prompt_lengths[i] == p
        assert list(batch.input_ids[i, : p + c]) == prompt + completion
        assert set(batch.input_ids[i, p + c :]) <= {tokenizer.pad_token_id}
        assert list(batch.completion_ids[i, :c]) == completion  # the end of sequence is learned too
        np.testing.assert_array_equal(batch.completion_mask[i], np.arange(supervised.completion_length) < c)
    again = SupervisedData(rows, tokenizer, batch_size=10, seed=0, max_prompt_length=64)
    np.testing.assert_array_equal(again.batch(0).input_ids, batch.input_ids)
    for kind in (PromptData, SupervisedData):
        with pytest.raises(DataError, match="row"):
            kind([], tokenizer, 4, 0, 64)
