"""Texts into tokens and back: the word-level tokenizer, prompts that do not fit, and special tokens."""

import json
import random

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
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
    assert DataConfig(filter_overlong_prompts=True).longest_prompt == 512
    with pytest.raises(DataError, match=rf"{longest['id']}.*max_prompt_length={tokens - 1}\b.*\b{tokens}\b"):
        data.encode_prompts(tokenizer, [rows[0], longest], tokens - 1)
    with pytest.raises(DataError, match=r"empty-1.*\b0$"):
        data.encode_prompts(tokenizer, [rows[0], rows[1] | {"prompt": " ", "id": "empty-1"}], 64)


@pytest.mark.parametrize("column", ["prompt", "completion"])
def test_encoding_says_which_column_holds_an_unknown_word(rows, tokenizer, column):
    bad = [rows[0], rows[1] | {column: "<init> hello <goal> world"}]
    with pytest.raises(DataError, match=rf"{column}.*{rows[1]['id']}.*'hello'"):
        data.SupervisedData(bad, tokenizer, 1, 0, 64)


def test_overlong_prompts_are_left_out_only_where_asked_for(tokenizer):
    rows = [{"id": str(n), "prompt": " ".join(["a"] * n)} for n in (1, 3, 5)]
    template = data.make_chat_template(tokenizer)
    filtering = DataConfig(max_prompt_length=3, filter_overlong_prompts=True)
    assert [row["id"] for row in data.without_overlong(tokenizer, rows, filtering, template)] == ["1", "3"]
    assert data.without_overlong(tokenizer, rows, DataConfig(max_prompt_length=3), template) == rows
    with pytest.raises(DataError, match=r"max_prompt_length.*\b3\b.*\b1\b.*\b5\b"):
        data.without_overlong(tokenizer, rows[2:], filtering, template)
    lines = []
    data.tell_left_out(lines.append, DataConfig(max_prompt_length=3), {"train": 1, "test": 0})
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


# --- parts of scores at their tokens


def byte_tokenizer(*words):
    """Byte-level BPE: 256 bytes, and words of several bytes, which may end in the middle of a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({token: place for place, token in enumerate([*alphabet, *words])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>")


def written_as_bytes(tokenizer, pieces):
    """Token ids of pieces of bytes, each one token."""
    letters = {byte: token for token, byte in BYTES.items()}
    names = ["".join(letters[byte] for byte in piece) for piece in pieces]
    ids = tokenizer.convert_tokens_to_ids(names)
    assert None not in ids
    return ids


def bytes_of_byte_level():
    """GPT-2's table: printable bytes stand for themselves, the others for characters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES = bytes_of_byte_level()
TEXTS = [
    "on \xe9 b",
    "\u20ac\u20ac",
    "a\U0001f642b\xfc",
    "e\u0301 \ufffd x",
]


def spread(tokenizer, ids, parts, end_ids=()):
    """The only row's rewards by token, and its text."""
    ids, mask = np.array([ids]), np.ones((1, len(ids)), bool)
    (text,) = data.decode(tokenizer, ids, mask, end_ids)
    return np.nan_to_num(data.token_scores(tokenizer, [parts], ids, mask, end_ids)[0]).tolist(), text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(4))
def test_token_scores_find_the_last_token_of_every_character_of_bytes(text, seed):
    """Against the bytes themselves: characters cut anywhere, tokens with ends and beginnings of several."""
    rng, encoded = random.Random(seed), text.encode()
    cuts = range(1, len(encoded))
    if seed:
        cuts = sorted(rng.sample(cuts, rng.randrange(len(encoded) - 1)))
    pieces = [encoded[i:j] for i, j in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    letters = {byte: token for token, byte in BYTES.items()}
    words = {"".join(letters[byte] for byte in piece) for piece in pieces if len(piece) > 1}
    tokenizer = byte_tokenizer(*sorted(words))
    ids = written_as_bytes(tokenizer, pieces)
    ends = np.cumsum([len(piece) for piece in pieces])
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            last_byte = len(text[:end].encode()) - 1
            expected = int(np.searchsorted(ends, last_byte, side="right"))
            scores, decoded = spread(tokenizer, ids, [(start, end, 1.0, "characters")])
            assert decoded == text
            assert scores.index(1.0) == expected and sum(scores) == 1.0


def test_token_scores_of_bytes_that_are_no_text():
    tokenizer = byte_tokenizer()
    pieces = [b"a", b"\xe2", b"\x82", b"b", b"\xff"]
    ids = written_as_bytes(tokenizer, pieces)
    for part, token in {(0, 1): 0, (1, 2): 2, (2, 3): 3, (3, 4): 4, (0, 4): 4, (1, 3): 3}.items():
        scores, text = spread(tokenizer, ids, [(*part, 1.0, "characters")])
        assert text == "a\ufffdb\ufffd" and scores.index(1.0) == token


def test_token_scores_of_a_tokenizer_that_falls_back_to_bytes_and_strips_the_first_blank():
    """As Llama's: bytes in tokens of their own, each a replacement mark until the character is whole."""
    euro, marks = ["<0xE2>", "<0x82>", "<0xAC>"], ["<0xEF>", "<0xBF>", "<0xBD>"]
    vocabulary = {
        token: place for place, token in enumerate(["<unk>", "\u2581on", "\u2581a", "b", *euro, *marks, "\u2581"])
    }
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    ids = tokenizer.convert_tokens_to_ids(["\u2581", "\u2581on", *euro, "\u2581a", "b"])
    scores, text = spread(tokenizer, tokenizer.convert_tokens_to_ids(["b", *marks, "b"]), [(0, 2, 1.0, "characters")])
    assert text == "b\ufffdb" and scores.index(1.0) == 3
    expected = {(0, 1): 0, (1, 2): 1, (2, 4): 1, (4, 5): 4, (0, 5): 4, (5, 6): 5, (6, 7): 5, (7, 8): 6, (3, 8): 6}
    for part, token in expected.items():
        scores, text = spread(tokenizer, ids, [(*part, 1.0, "characters")])
        assert text == "  on\u20ac ab" and scores.index(1.0) == token, part


def test_token_scores_of_words(tokenizer):
    ids = tokenizer("unstack b a ; put-down b")["input_ids"]
    parts = [(0, 11, 0.25, "characters"), (14, 24, 0.5, "characters"), (24, 24, 2.0, "characters")]
    scores, text = spread(tokenizer, [*ids, tokenizer.eos_token_id], parts, None)
    assert text == "unstack b a ; put-down b"
    assert scores == [0, 0, 0.25, 0, 0, 0.5, 2.0]  # what is after the text goes to the end of sequence
    # A blank between words is of neither; special tokens that do not end the text are in it.
    scores, text = spread(tokenizer, [*ids[:2], tokenizer.pad_token_id, *ids[2:3]], [(10, 15, 1.0, "characters")], None)
    assert text == "unstack b <pad> a" and scores == [0, 0, 1.0, 0]


def test_token_scores_lose_nothing(tokenizer):
    ids = np.array([tokenizer("pick-up a ; stack a b")["input_ids"]] * 3)
    mask = np.array([[True] * 6, [True] * 2 + [False] * 4, [False] * 6])
    parts = [
        [(0, 9, 1.0, "characters"), (9, 9, 2.0, "characters"), (90, 99, 4.0, "characters"), (0, 9, 0.5, "characters")],
        [(12, 17, 1.0, "characters"), (0, 7, 2.0, "characters"), (1, 1, 4.0, "tokens"), (7, 9, 8.0, "tokens")],
        [(0, 3, 1.0, "characters")],  # a completion without a token has nothing that could be learned
    ]
    scores = data.token_scores(tokenizer, parts, ids, mask)
    assert scores.dtype == np.float32 and np.isnan(scores[2]).all()
    assert np.nan_to_num(scores).tolist() == [[0, 1.5, 0, 0, 0, 6.0], [2.0, 13.0, 0, 0, 0, 0], [0] * 6]
    # Tokens are counted with the one that ends the completion.
    ids = [*tokenizer("pick-up a ; stack a b")["input_ids"], tokenizer.eos_token_id]
    parts = [(0, 1, 1.0, "tokens"), (1, 3, 2.0, "tokens"), (6, 7, 4.0, "tokens"), (3, 99, 8.0, "tokens")]
    parts += [(0, 0, 16.0, "characters")]
    assert spread(tokenizer, ids, parts, None)[0] == [1.0, 0, 2.0, 0, 0, 0, 28.0]


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
    with pytest.raises(DataError, match=r"^max_length: "):
        within_limit(rows, encoded, RowLimit(2, "drop"))
    limited = data.SupervisedData(rows, tokenizer, 2, 0, 64, limit=RowLimit(5, "drop"))
    assert (len(limited), limited.longest, limited.overlong, limited.left_out) == (1, 5, 2, 2)
