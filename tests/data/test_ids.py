"""Ids are those of the whole text: the chat templates of 13 models, with four kinds of tokenizer, as in transformers.

And of plain texts, whose completions go on where the prompt ends, whatever a tokenizer puts before a first word.
"""

from functools import cache
from importlib import resources

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.data.preferences import encode_pairs
from jaxppo.errors import ConfigError
from tests.data.test_known_templates import EARLIER, LAST, SYSTEM
from tests.data.tokenizers import KINDS, OPENED, WHOLE, tokenizer_of, write_rows

trl = pytest.importorskip("trl")

SPANNED = ("qwen3_5_think", "byte-level")
"""Its prompt ends in a newline, and an answer without thoughts goes on with another: one token in the whole text."""

ANSWER = "(unstack a b)\n(put-down a)"
SHORT = "(stack b a)"
EXAMPLES = [{"id": str(number), "prompt": f"on b a? {number}", "completion": SHORT} for number in range(3)]


@pytest.fixture(scope="module")
def solved_rows(tmp_path_factory):
    """A data set from which examples are drawn."""
    return write_rows(tmp_path_factory.mktemp("solved"), train=EXAMPLES)


def turns_of(row):
    return [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]


def theirs(tokenizer, turns, **options):
    return tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False, **options)


def up_to_the_end(tokenizer, turns, answer, end_id):
    """transformers' ids of a chat, up to the token that ends its last turn."""
    whole = theirs(tokenizer, [*turns, {"role": "assistant", "content": answer}])
    return whole[: len(whole) - whole[::-1].index(end_id)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WHOLE | OPENED)
def test_ids_of_chats_are_those_of_transformers(name, kind, solved_rows):
    tokenizer = tokenizer_of(kind, name)
    template = data.make_chat_template(tokenizer)
    chats = {"prompt": [LAST], "two earlier turns": [*EARLIER, LAST]}
    if name != "gemma":  # it takes no turn of the system
        chats["system"] = [SYSTEM, *EARLIER, LAST]
    for turns in chats.values():
        row = {"id": "r", "prompt": turns[-1]["content"], "messages": turns, "completion": ANSWER}
        (prompt,) = data.encode_prompts(tokenizer, [row], 9999, template=template)
        assert prompt == theirs(tokenizer, turns, add_generation_prompt=True)
        if name in OPENED:
            with pytest.raises(ConfigError, match="use_chat_template"):
                data.encode_rows(tokenizer, [row], template=template)
            continue
        (encoded,) = data.encode_rows(tokenizer, [row], template=template)
        assert encoded.prompt == prompt
        whole = up_to_the_end(tokenizer, turns, ANSWER, template.end_id)
        if (name, kind) == SPANNED:
            assert tokenizer.decode(encoded.prompt + encoded.completion) == tokenizer.decode(whole)
            continue
        assert encoded.prompt + encoded.completion == whole
        pair = {"prompt": turns, "chosen": turns_of(row)[1:], "rejected": [{"role": "assistant", "content": SHORT}]}
        forms = [pair, {side: [*turns, *pair[side]] for side in ("chosen", "rejected")}]
        if len(turns) == 1:
            forms.append(pair | {"prompt": turns[0]["content"]})
        (kept, *others) = encode_pairs(tokenizer, forms, 9999, "rows").pairs
        assert all(other == kept for other in others)
        assert kept.chosen == encoded.prompt + encoded.completion
        assert kept.rejected == up_to_the_end(tokenizer, turns, SHORT, template.end_id)
    few = data.make_chat_template(tokenizer, DataConfig(dataset=solved_rows, n_shots=2))
    row = {"id": "r", "prompt": "on a b?", "completion": ANSWER}
    shown = [turn for example in few.examples.draw(row) for turn in turns_of(example)]
    (prompt,) = data.encode_prompts(tokenizer, [row], 9999, template=few)
    assert prompt == theirs(tokenizer, [*shown, turns_of(row)[0]], add_generation_prompt=True)
    if name in WHOLE and (name, kind) != SPANNED:
        (encoded,) = data.encode_rows(tokenizer, [row], template=few)
        whole = up_to_the_end(tokenizer, [*shown, turns_of(row)[0]], ANSWER, few.end_id)
        assert encoded.prompt + encoded.completion == whole


@pytest.mark.parametrize(
    ("kind", "prompt", "completion", "tokens"),
    [
        ("byte-level", "on a b", " ab", ["\u0120a", "b"]),
        ("byte-level", "on a b ", "ab", ["a", "b"]),  # "\u0120a" of the joined text would span the boundary
        ("byte-level", "on a", "ca", ["c", "a"]),  # and "ac"
        ("metaspace", "on a b", " ac", ["\u2581a", "c"]),
        ("metaspace", "on a b:", "ac", ["ac"]),  # without the blank of a first word
        ("metaspace", "on a b ", "ac", ["ac"]),
        ("metaspace", "on a b\n", "b", ["b"]),
        ("prepend", "on a b", " ac", ["\u2581a", "c"]),
        ("prepend", "on a b:", "ac", ["ac"]),
        ("prepend", "on a b ", "ac", ["ac"]),
        ("word pieces", "on a b", " a", ["a"]),
        ("word pieces", "play", "ing", ["##ing"]),  # inside of a word, though "playing" is one piece
        ("word pieces", "play ", "ing", ["i", "##n", "##g"]),
    ],
)
def test_a_completion_goes_on_where_its_prompt_ends(kind, prompt, completion, tokens):
    tokenizer = tokenizer_of(kind)
    row = {"id": "r", "prompt": prompt, "completion": completion}
    (encoded,) = data.encode_rows(tokenizer, [row])
    assert encoded.prompt == tokenizer(prompt)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(encoded.completion) == [*tokens, "</s>"]


def test_a_completion_that_merges_with_whatever_stands_before_it_is_tokenized_alone():
    befores = ["x", "\n", "a", "."]
    letters = {letter: number for number, letter in enumerate([*befores, "b", *(before + "b" for before in befores)])}
    core = Tokenizer(models.BPE(letters, [(before, "b") for before in befores]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")
    (encoded,) = data.encode_rows(tokenizer, [{"id": "r", "prompt": "ax", "completion": "b"}])
    assert tokenizer.convert_ids_to_tokens(encoded.prompt + encoded.completion) == ["a", "x", "b", "</s>"]


def test_special_tokens_that_overlap_in_a_prompt_are_those_of_the_prompt_alone():
    tokenizer = tokenizer_of.__wrapped__("byte-level")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|>", "a<|"]})
    (encoded,) = data.encode_rows(tokenizer, [{"id": "r", "prompt": "ba<|>", "completion": "c"}])
    assert tokenizer.convert_ids_to_tokens(encoded.prompt + encoded.completion) == ["<s>", "b", "a<|", ">", "c", "</s>"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_sequence_is_learned_once(kind):
    tokenizer = tokenizer_of(kind)
    (encoded,) = data.encode_rows(tokenizer, [{"id": "r", "prompt": "on a", "completion": " b</s>"}])
    assert encoded.completion.count(tokenizer.eos_token_id) == 1 and encoded.completion[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("kind", ["metaspace", "prepend"])
def test_a_blank_before_the_first_word_of_a_completion_is_decoded(kind):
    import numpy as np

    tokenizer = tokenizer_of(kind)
    for completion in (" ac", "ac", "\na"):
        (encoded,) = data.encode_rows(tokenizer, [{"id": "r", "prompt": "on b:", "completion": completion}])
        ids = np.array([encoded.completion])
        assert data.decode(tokenizer, ids, np.ones_like(ids, bool)) == [completion]


# --- prompts that carry a template, or a beginning of sequence, already


@pytest.mark.parametrize("name", WHOLE | OPENED)
def test_a_prompt_that_carries_the_template_is_taken_as_it_is(name, caplog):
    tokenizer = tokenizer_of("byte-level", name)
    template = data.make_chat_template(tokenizer)
    rendered = tokenizer.apply_chat_template([LAST], tokenize=False, add_generation_prompt=True)
    for text in (rendered, rendered.removeprefix(tokenizer.bos_token or "")):
        row = {"id": f"{name} {len(text)}", "prompt": text, "completion": ANSWER}
        (prompt,) = data.encode_prompts(tokenizer, [row], 9999, template=template)
        assert prompt == theirs(tokenizer, [LAST], add_generation_prompt=True)
        ids, learned = learned_of(tokenizer, row)
        assert learned == [False] * len(prompt) + [True] * (len(ids) - len(prompt))
    assert [row["id"] in record.message for record in caplog.records].count(True) <= 1


def test_a_prompt_that_begins_with_the_beginning_of_sequence_gets_no_second():
    tokenizer = tokenizer_of("metaspace")
    rows = [{"id": "r", "prompt": text, "completion": " a"} for text in ("<s>on b", "on b")]
    first, second = data.encode_prompts(tokenizer, rows, 99)
    assert first[0] == tokenizer.bos_token_id and first.count(tokenizer.bos_token_id) == 1
    assert second.count(tokenizer.bos_token_id) == 1
    assert [row.prompt for row in data.encode_rows(tokenizer, rows)] == [first, second]


@cache
def learning_tokenizer(kind, name):
    """The same with the template that TRL trains with, which has the turns of the assistant in generation blocks."""
    tokenizer = tokenizer_of.__wrapped__(kind, name)
    folder = resources.files("trl") / "chat_templates"
    tokenizer.chat_template = (folder / f"{name}_training.jinja").read_text("utf-8")
    return tokenizer


def chat_of(turns):
    return {"id": "r", "prompt": turns[-1]["content"], "messages": turns, "completion": ANSWER}


def learned_of(tokenizer, row):
    """Ids of a chat, and which of them are learned where all turns of the assistant are."""
    template = data.make_chat_template(tokenizer)
    (encoded,) = data.encode_rows(tokenizer, [row], template=template, assistant_only=True)
    return encoded.prompt + encoded.completion, [False] * len(encoded.prompt) + encoded.loss_mask


LEARNED = ["llama3", "gemma", "gemma3", "phi3", "qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_nothink"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LEARNED)
def test_turns_of_the_assistant_are_those_of_generation_blocks_as_in_transformers(name, kind):
    tokenizer = learning_tokenizer(kind, name)
    for turns in ([LAST], [*EARLIER, LAST], [*EARLIER, *EARLIER, LAST]):
        ids, learned = learned_of(tokenizer, chat_of(turns))
        options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        whole = tokenizer.apply_chat_template([*turns, {"role": "assistant", "content": ANSWER}], **options)
        assert ids == whole["input_ids"][: len(ids)]
        assert learned == [bool(flag) for flag in whole["assistant_masks"][: len(ids)]]
        assert not tokenizer.decode(whole["input_ids"][len(ids) :]).replace(tokenizer.eos_token, "").strip()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WHOLE)
def test_turns_of_the_assistant_are_found_in_templates_without_such_blocks(name, kind):
    tokenizer = tokenizer_of(kind, name)
    template = data.make_chat_template(tokenizer)
    # A question that is the answer, and an answer that is the name of a role, are no other turns.
    asked = [{"role": "user", "content": ANSWER}, {"role": "assistant", "content": "user"}]
    for turns in ([LAST], [*EARLIER, LAST], [*asked, *EARLIER, LAST]):
        ids, learned = learned_of(tokenizer, chat_of(turns))
        (whole,) = data.encode_rows(tokenizer, [chat_of(turns)], template=template)
        if (name, kind) != SPANNED:
            assert ids == whole.prompt + whole.completion
        runs, before = [], False
        for token, flag in zip(ids, learned, strict=True):
            if flag and not before:
                runs.append([])
            if flag:
                runs[-1].append(token)
            before = flag
        assert [run[-1] for run in runs] == [template.end_id] * len(runs)
        texts = [tokenizer.decode(run[:-1]).rpartition("</think>")[2].strip() for run in runs]
        answers = [turn["content"] for turn in turns if turn["role"] == "assistant"]
        plain = tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
        assert texts[:-1] == [tokenizer.decode(tokenizer(a, add_special_tokens=False)["input_ids"]) for a in answers]
        assert texts[-1] == tokenizer.decode(plain)


def test_chats_of_which_no_turn_can_be_told_are_refused():
    tokenizer = tokenizer_of.__wrapped__("byte-level", "qwen2_5")
    changed = "(message.content if loop.last or message.role == 'user' else message.content | upper)"
    tokenizer.chat_template = tokenizer.chat_template.replace("message.content", changed)
    with pytest.raises(ConfigError, match=r"^assistant_only_loss: "):
        learned_of(tokenizer, chat_of([*EARLIER, LAST]))
    tokenizer.chat_template = "{% generation %}{% endgeneration %}" + tokenizer.chat_template
    with pytest.raises(ConfigError, match=r"^assistant_only_loss: .*none"):
        learned_of(tokenizer, chat_of([LAST]))
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}
    with pytest.raises(ConfigError, match=r"^assistant_only_loss: .*tools"):
        learned_of(tokenizer_of("byte-level", "qwen2_5"), chat_of([LAST, call, {"role": "tool", "content": "b"}, LAST]))
