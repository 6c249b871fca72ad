"""Preference rows: what is read, how it is tokenised, what is left out, and in which order it comes."""

import re

import jax
import numpy as np
import pytest

from jaxppo.data import forms, padded_size, right_padded
from jaxppo.data.preferences import Pair, PreferenceData, encode_pairs, load_rows
from jaxppo.errors import DataError
from tests.data.tokenizers import chat_tokenizer, word_tokenizer, words, write_rows

WORDS = ["<pad>", "<eos>", "a", "b", "c", "d"]
END, A, B, C, D = 1, 2, 3, 4, 5


def turn(role, content):
    return {"role": role, "content": content}


def encoded(*rows, max_length=9):
    return encode_pairs(word_tokenizer(WORDS), list(rows), max_length, "here")


@pytest.mark.parametrize(
    ("row", "pair"),
    [
        (
            {"prompt": "a b", "chosen": "c", "rejected": "d d", "margin": 2},
            Pair([A, B, C, END], [A, B, D, D, END], 2.0),
        ),
        # Without a prompt the texts are whole ones.
        ({"chosen": "a c", "rejected": "a"}, Pair([A, C, END], [A, END], 0.0)),
        ({"prompt": "", "chosen": "a c", "rejected": "a"}, Pair([A, C, END], [A, END], 0.0)),
        ({"prompt": None, "chosen": "a c", "rejected": "a"}, Pair([A, C, END], [A, END], 0.0)),
        # Each text ends once; an end inside is none.
        ({"prompt": "a", "chosen": "c <eos>", "rejected": "<eos>", "margin": None}, Pair([A, C, END], [A, END], 0.0)),
        ({"prompt": "a", "chosen": "", "rejected": "<eos> d"}, Pair([A, END], [A, END, D, END], 0.0)),
    ],
)
def test_encode_pairs_puts_prompt_completion_and_end_together(row, pair):
    assert encoded(row).pairs == [pair]


def test_encode_pairs_leaves_out_pairs_of_which_either_text_is_too_long():
    short, long = "b", "b b b b"
    texts = [(short, short), (short, long), (long, short)]
    rows = [{"prompt": "a", "chosen": chosen, "rejected": rejected} for chosen, rejected in texts]
    pairs = encoded(*rows, max_length=5)
    assert (pairs.pairs, pairs.num_too_long) == ([Pair([A, B, END], [A, B, END], 0.0)], 2)
    assert encoded(*rows, max_length=6).num_too_long == 0
    with pytest.raises(DataError, match=r"here.*\b2\b.*\b3\b"):
        encoded(*rows, max_length=2)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"prompt": ["a"]}, "row 1.*prompt.*turn"),
        ({"prompt": 7}, "row 1.*prompt"),
        ({"margin": "1"}, "row 1.*margin"),
        ({"margin": True}, "row 1.*margin"),
        ({"margin": float("nan")}, "row 1.*margin"),
        ({"chosen": "zebra"}, "here"),
        (
            {"prompt": [turn("user", "a")], "chosen": [turn("user", "b"), turn("assistant", "c")]},
            "row 1.*chosen.*begin",
        ),
        ({"chosen": [turn("user", "a")]}, "row 1.*chosen.*assistant.*user"),
    ],
)
def test_encode_pairs_names_the_bad_row(row, named):
    fine = {"chosen": "a", "rejected": "b"}
    with pytest.raises(DataError, match=named):
        encoded(fine, fine | row)


@pytest.mark.parametrize(
    ("rows", "split", "named"),
    [
        ([{"prompt": "a", "rejected": "b"}], "train", "row 0.*chosen"),
        ([{"chosen": "a"}], "train", "row 0.*rejected"),
        ([{"question": "a", "response_j": "b"}], "train", "row 0.*chosen.* among question, response_j; .*rename"),
        ([{"messages": [], "chosen": "b", "rejected": "c"}], "train", "row 0.*messages"),
        ([], "train", "train"),
        ([], "tset", "tset"),
    ],
)
def test_load_rows_says_in_one_line_what_is_wrong(tmp_path, rows, split, named):
    own = [{"chosen": "a", "rejected": "b", "source": 7}]  # rows need no planning columns
    assert load_rows(write_rows(tmp_path / "right", train=own), "train") == own
    with pytest.raises(DataError, match=named) as caught:
        load_rows(write_rows(tmp_path, train=rows), split)
    assert "\n" not in str(caught.value)


WHOLE = {
    side: [turn("user", "on b"), turn("assistant", answer)] for side, answer in (("chosen", "a"), ("rejected", "b"))
}


@pytest.mark.parametrize(
    ("beside", "warned"),
    [
        ({}, []),
        # UltraFeedback's layout, with the chosen chat once more.
        ({"prompt": "on b", "messages": WHOLE["chosen"], "prompt_id": "x"}, []),
        ({"prompt": "on b "}, []),
        ({"prompt": [turn("user", "on b")]}, []),
        ({"prompt": "stack"}, ["prompt is not read"]),
    ],
)
def test_whole_chats_beside_a_prompt_are_read_alone_as_by_trl(beside, warned, tmp_path, caplog):
    forms.warn_once.cache_clear()
    rows = load_rows(write_rows(tmp_path, train=[WHOLE | beside] * 2), "train")
    tokenizer = chat_tokenizer()
    pairs = encode_pairs(tokenizer, rows, 64, "here").pairs
    assert [words(tokenizer, ids) for ids in pairs[1][:2]] == [
        f"<s> <|user|> on b <|end|> <|assistant|> {answer} <|end|>" for answer in ("a", "b")
    ]
    assert all(text in record.getMessage() for text, record in zip(warned, caplog.records, strict=True))


@pytest.mark.parametrize(
    ("row", "unread"),
    [
        ({"system": "s", "question": "q", "chosen": "a", "rejected": "b"}, "not read: system, question;.*prompt"),
        ({"context": [turn("user", "a")], "chosen": "a", "rejected": "b"}, "not read: context;"),
        ({"system": "s", "prompt": "q", "chosen": "a", "rejected": "b"}, "column system; .*--system_prompt"),
        ({"system": "s", "prompt": "q", "messages": None, **WHOLE}, "column system; "),
        ({"id": "x", "score": 1.0, "chosen": "a", "rejected": "b"}, None),
        ({"source": "x", "prompt": "q", "chosen": "a", "rejected": "b"}, None),
        ({"source": "x", **WHOLE}, None),
    ],
)
def test_texts_that_may_be_the_question_and_are_not_read_are_named_once(row, unread, tmp_path, caplog):
    forms.warn_once.cache_clear()
    load_rows(write_rows(tmp_path, train=[row] * 2), "train")
    assert len(caplog.records) == (unread is not None)
    assert all(re.search(unread, record.getMessage()) for record in caplog.records)


def test_pairs_of_equal_texts_are_counted():
    rows = [{"chosen": "a", "rejected": rejected} for rejected in ("a", "b", " a ")]
    assert encoded(*rows).num_equal == 2


def test_padded_size_has_few_values_at_most_half_too_large_and_padding_keeps_rows_and_lengths():
    sizes = [padded_size(n) for n in range(1, 1025)]
    assert sorted(set(sizes)) == [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert all(n <= size for n, size in enumerate(sizes, 1))
    assert all(size <= 1.5 * n for n, size in enumerate(sizes, 1) if n >= 16)
    assert (padded_size(70, limit=80), padded_size(60, limit=80), padded_size(3, limit=4)) == (80, 64, 4)
    ids, lengths = right_padded([[5, 6], [7]], 3)
    np.testing.assert_array_equal(ids, [[5, 6, 0], [7, 0, 0]])
    np.testing.assert_array_equal(lengths, [2, 1])
    assert ids.dtype == lengths.dtype == np.int32


def some_pairs(count):
    return [Pair([2] * (i + 2), [3] * (i + 1), float(i)) for i in range(count)]


def test_preference_data_shows_each_pair_once_per_epoch_with_its_own_lengths_and_margin():
    data = PreferenceData(some_pairs(6), 4, seed=3)
    batches = [data.batch(step) for step in range(3)]  # two epochs
    assert jax.tree.map(np.shape, data.longest_batch()) == jax.tree.map(np.shape, batches[0])
    margins = np.concatenate([batch.margins for batch in batches])
    assert sorted(margins[:6]) == sorted(margins[6:]) == [0, 1, 2, 3, 4, 5]
    assert list(margins[:6]) != list(margins[6:])
    for batch in batches:
        np.testing.assert_array_equal(batch.chosen_lengths, batch.margins + 2)
        np.testing.assert_array_equal(batch.rejected_lengths, batch.margins + 1)
        for ids, lengths, token in (
            (batch.chosen_ids, batch.chosen_lengths, 2),
            (batch.rejected_ids, batch.rejected_lengths, 3),
        ):
            np.testing.assert_array_equal(ids, np.where(np.arange(16) < np.asarray(lengths)[:, None], token, 0))
    # It is a function of seed and step.
    first, again = (PreferenceData(some_pairs(20), 8, seed=1).batch(5) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(PreferenceData(some_pairs(20), 8, seed=2).batch(5).margins, first.margins)
    assert PreferenceData(some_pairs(20), 8, seed=1, max_length=21).batch(0).chosen_ids.shape[1] <= 21
