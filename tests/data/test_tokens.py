"""Texts into tokens and back: the word-level tokenizer, prompts that do not fit, and special tokens."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.errors import DataError
from tests.data.test_chat_template import chat_tokenizer


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


def test_overlong_prompts_are_left_out_only_where_asked_for(tokenizer):
    rows = [{"id": str(n), "prompt": " ".join(["a"] * n)} for n in (1, 3, 5)]
    template = data.make_chat_template(tokenizer)
    filtering = DataConfig(max_prompt_length=3, filter_overlong_prompts=True)
    assert [row["id"] for row in data.without_overlong(tokenizer, rows, filtering, template)] == ["1", "3"]
    assert data.without_overlong(tokenizer, rows, DataConfig(max_prompt_length=3), template) == rows
    with pytest.raises(DataError, match=r"max_prompt_length: .* at most 3 tokens, got 1 longer ones, .* with 5"):
        data.without_overlong(tokenizer, rows[2:], filtering, template)
    told = []
    data.tell_left_out(told.append, DataConfig(max_prompt_length=3), {"train": 1, "test": 0})
    assert told == ["1 rows of split train left out: prompts longer than 3 tokens"]


def test_plain_prompts_begin_as_the_tokenizer_begins_texts():
    tokenizer = chat_tokenizer(None)  # puts <s> before a text, as Llama's and Mistral's do
    rows = [{"id": "r", "prompt": "on b a"}]
    (whole,) = data.encode_prompts(tokenizer, rows, 4)
    assert whole == tokenizer("on b a")["input_ids"] == [tokenizer.bos_token_id, *whole[1:]]
    with pytest.raises(DataError, match="expected 1 to max_prompt_length=3 tokens, got 4"):
        data.encode_prompts(tokenizer, rows, 3)
    with pytest.raises(DataError, match="got 0"):
        data.encode_prompts(tokenizer, [{"id": "r", "prompt": ""}], 4)
    config = DataConfig(filter_overlong_prompts=True, max_prompt_length=3)
    short = {"id": "s", "prompt": "b a"}
    assert data.without_overlong(tokenizer, [*rows, short], config, data.make_chat_template(tokenizer)) == [short]
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


def test_decode_leaves_out_padding_and_end_of_sequence(tokenizer):
    ids = tokenizer(["unstack b a ; put-down b", "pick-up a"])["input_ids"]
    eos = tokenizer.eos_token_id
    padded = np.array([[*ids[0], eos, eos], [*ids[1], eos, *[ids[0][0]] * 5]])
    mask = np.arange(8)[None, :] < np.array([[7], [3]])
    assert data.decode(tokenizer, padded, mask) == ["unstack b a ; put-down b", "pick-up a"]


def test_decode_leaves_out_any_one_token_that_ends_a_completion():
    tokenizer = data.word_tokenizer()
    pick, a, eos, pad = tokenizer.convert_tokens_to_ids(["pick-up", "a", "<eos>", "<pad>"])
    ids = np.array([[pick, a, eos], [pick, a, pad], [pick, pad, eos], [pick, eos, a]])
    texts = ["pick-up a", "pick-up a", "pick-up <pad>", "pick-up <eos> a"]
    assert data.decode(tokenizer, ids, np.ones((4, 3), bool), (eos, pad)) == texts
    assert data.decode(tokenizer, ids, np.ones((4, 3), bool), (eos,))[1] == "pick-up a <pad>"


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


def test_decode_shows_ids_that_a_tokenizer_leaves_out_and_reads_those_behind_them():
    tokenizer = word_tokenizer_with_a_hole()
    ids = np.array([[3, 4, 6]])
    assert data.decode(tokenizer, ids, np.ones_like(ids, bool), ()) == ["c <4> late"]


def word_tokenizer_with_a_hole():
    core = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "b": 2, "c": 3, "late": 6}))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<eos>")
