"""Rows that are chats: what becomes of their turns, how they reach models and rewards, and malformed ones."""

import json

import pytest

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.data import forms
from jaxppo.data.chats import plain_row
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning.datasets import files as dataset_files
from tests.data.tokenizers import ASKED, TEMPLATE, TURN, chat_tokenizer, words

SYSTEM = {"role": "system", "content": "be brief"}
FIRST, SECOND = {"role": "user", "content": "on b a"}, {"role": "user", "content": "b"}
ANSWER = {"role": "assistant", "content": "stack b a"}
PART = {"type": "text", "text": "on"}
CALL = {"type": "function", "function": {"name": "stack", "arguments": {"top": "b"}}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}
TOOL = {"role": "tool", "content": "on b a"}
DEVELOPER = {"role": "developer", "content": "be brief"}
SCHEMA = {"type": "function", "function": {"name": "stack", "parameters": {"type": "object", "properties": {}}}}


def split_of(tmp_path, *rows, **options):
    dataset_files.write_jsonl(rows, tmp_path / "train.jsonl")
    return DataConfig(dataset=str(tmp_path), **options)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"messages": [SYSTEM, FIRST, ANSWER, SECOND, ANSWER]},
            {"prompt": "b", "completion": "stack b a", "messages": [SYSTEM, FIRST, ANSWER, SECOND]},
        ),
        ({"messages": [FIRST]}, {"prompt": "on b a", "messages": [FIRST]}),
        ({"messages": [FIRST], "completion": "x"}, {"prompt": "on b a", "completion": "x", "messages": [FIRST]}),
        (
            {"prompt": [SYSTEM, FIRST], "completion": [ANSWER]},
            {"prompt": "on b a", "completion": "stack b a", "messages": [SYSTEM, FIRST]},
        ),
        (
            {"prompt": [FIRST, ANSWER], "completion": [ANSWER]},
            {"prompt": "on b a", "completion": "stack b a", "messages": [FIRST]},
        ),
        (
            {"prompt": "old", "messages": [FIRST, ANSWER], "completion": "stack b a"},
            {"prompt": "on b a", "completion": "stack b a", "messages": [FIRST]},
        ),
        ({"prompt": "on b a", "messages": None}, {"prompt": "on b a", "messages": None}),
        (
            {"messages": [FIRST | {"content": [PART, PART | {"text": " b a", "image": None}]}, ANSWER]},
            {"prompt": "on b a", "completion": "stack b a", "messages": [FIRST]},
        ),
        (
            {"messages": [DEVELOPER, FIRST, CALLING | {"content": None}, TOOL, ANSWER], "tools": [SCHEMA]},
            {
                "prompt": "on b a",
                "completion": "stack b a",
                "messages": [DEVELOPER, FIRST, CALLING, TOOL],
                "tools": [SCHEMA],
            },
        ),
        ({"messages": [FIRST | {"name": None, "x": 1}]}, {"prompt": "on b a", "messages": [FIRST | {"x": 1}]}),
    ],
)  # fmt: skip
def test_a_chat_has_a_text_as_prompt_and_the_turns_before_the_completion(row, expected, tmp_path):
    assert plain_row(row, "here") == expected
    assert plain_row(expected, "here") == expected  # a second time, too
    (loaded,) = data.load_split(split_of(tmp_path, row), "train", None)
    assert loaded == {"id": "train-0"} | expected


def test_tools_and_arguments_in_json_are_read_as_templates_want_them():
    flat = {"name": "stack", "arguments": '{"top": "b"}'}
    row = {"messages": [FIRST, CALLING | {"tool_calls": [flat]}, TOOL], "tools": json.dumps([SCHEMA])}
    read = plain_row(row, "here")
    assert read["tools"] == [SCHEMA]
    assert read["messages"][1]["tool_calls"] == [{"name": "stack", "arguments": {"top": "b"}}]
    with pytest.raises(DataError, match="arguments"):
        plain_row({"messages": [FIRST, CALLING | {"tool_calls": [flat | {"arguments": "b"}]}, TOOL]}, "here")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"conversations": [{"from": "human", "value": "on b a"}, {"from": "gpt", "value": "stack b a"}]},
            {"prompt": "on b a", "completion": "stack b a", "messages": [FIRST]},
        ),
        (
            {"conversations": [FIRST, {"from": "observation", "value": "on b a"}], "system": "be brief"},
            {"prompt": "on b a", "messages": [SYSTEM, FIRST, TOOL]},
        ),
        ({"instruction": "on", "input": "b", "output": "x"}, {"prompt": "on\n\nb", "completion": "x"}),
        ({"instruction": "b", "input": "", "output": "x", "system": None}, {"prompt": "b", "completion": "x"}),
        (
            {"instruction": "b", "output": "x", "system": "be brief", "history": [["on b a", "stack b a"]]},
            {"prompt": "b", "completion": "x", "messages": [SYSTEM, FIRST, ANSWER, SECOND]},
        ),
    ],
)
def test_rows_of_sharegpt_and_alpaca_are_read_as_ours(row, expected, tmp_path):
    (loaded,) = data.load_split(split_of(tmp_path, row), "train", None, {"prompt": str})
    assert {name: loaded.get(name) for name in ("prompt", "completion", "messages") if name in loaded} == expected


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "hub"])
def test_messages_are_read_from_every_kind_of_file(ending, tmp_path):
    import datasets as hugging_face

    table = hugging_face.Dataset.from_list([{"messages": [FIRST, ANSWER]}, {"messages": [SYSTEM, SECOND, ANSWER]}])
    if ending == "jsonl":
        table.to_json(tmp_path / "train.jsonl")
    elif ending == "parquet":
        table.to_parquet(tmp_path / "train.parquet")
    else:
        hugging_face.DatasetDict({"train": table}).save_to_disk(tmp_path)
        with pytest.raises(DataError, match="dataset_config"):
            data.load_split(DataConfig(dataset=str(tmp_path), dataset_config="long"), "train", None)
    rows = data.load_split(DataConfig(dataset=str(tmp_path)), "train", None, {"prompt": str, "completion": str})
    assert [row["messages"] for row in rows] == [[FIRST], [SYSTEM, SECOND]]
    assert [(row["prompt"], row["completion"]) for row in rows] == [("on b a", "stack b a"), ("b", "stack b a")]


def test_a_chat_may_stand_in_another_column_beside_which_messages_are_left_alone(tmp_path):
    for column in ("conversation", "messages"):
        config = split_of(tmp_path, {column: [FIRST, ANSWER]}, prompt_column=column)
        (row,) = data.load_split(config, "train", None)
        assert (row["prompt"], row["messages"]) == ("on b a", [FIRST])
    row = {"question": "stack b a", "messages": [FIRST, ANSWER], "completion": "x"}
    (loaded,) = data.load_split(split_of(tmp_path, row, prompt_column="question"), "train", None)
    assert loaded == {"id": "train-0", "question": "stack b a", "prompt": "stack b a", "completion": "x"}
    # A column that is named is no form of others.
    row = {"instruction": "b", "input": "on", "output": "x"}
    (loaded,) = data.load_split(split_of(tmp_path, row, prompt_column="instruction"), "train", None)
    assert (loaded["prompt"], "completion" in loaded) == ("b", False)
    # Short prompts are those with a short last turn.
    config = split_of(tmp_path, {"messages": [FIRST]}, {"messages": [SYSTEM, SECOND]}, min_prompt_characters=3)
    assert [row["prompt"] for row in data.load_split(config, "train", None)] == ["on b a"]


def test_planning_problems_may_be_chats(rows, tmp_path):
    row = {name: value for name, value in rows[0].items() if name not in ("prompt", "completion")}
    turns = [SYSTEM, {"role": "user", "content": "x"}, {"role": "assistant", "content": rows[0]["completion"]}]
    (loaded,) = data.load_split(split_of(tmp_path, row | {"messages": turns}), "train")
    assert (loaded["prompt"], loaded["completion"], loaded["messages"]) == ("x", rows[0]["completion"], turns[:2])


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [FIRST, "hi"]}, "messages.*2"),
        ({"messages": [{"content": "hi"}]}, "messages.*1.*role"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages.*1.*role.*robot"),
        ({"messages": [TOOL]}, "messages.*user.*tool"),
        ({"messages": [FIRST | {"content": [{"type": "image", "image": "x"}]}]}, "messages.*1.*part 1.*image"),
        ({"messages": [FIRST | {"content": [PART, {"text": "x"}]}]}, "messages.*1.*part 2"),
        ({"messages": [FIRST, CALLING | {"tool_calls": [{"name": 1}]}, TOOL]}, "messages.*2.*tool_calls"),
        ({"messages": [FIRST, ANSWER], "tools": "stack"}, "tools"),
        ({"messages": [FIRST, ANSWER], "tools": ["stack"]}, "tools"),
        ({"instruction": 1, "output": "x"}, "instruction"),
        ({"instruction": "b", "output": "x", "history": ["b"]}, "history"),
        ({"messages": [{"role": "user"}]}, "messages.*1.*content"),
        ({"messages": [FIRST, SYSTEM, FIRST]}, "messages.*2.*system"),
        ({"messages": [SYSTEM, ANSWER]}, "messages.*system"),
        ({"messages": [FIRST, ANSWER, ANSWER]}, "messages.*assistant"),
        ({"messages": [FIRST, ANSWER], "completion": "x"}, "completion"),
        ({"messages": [FIRST, ANSWER | {"reasoning_content": "so"}]}, "messages.*2.*reasoning_content"),
        ({"prompt": [FIRST], "completion": [ANSWER | {"tool_calls": [1]}]}, "completion.*1.*tool_calls"),
        ({"messages": [FIRST, CALLING], "completion": "stack b a"}, "completion"),
        ({"prompt": [1]}, "prompt.*1"),
        ({"prompt": [FIRST, CALLING]}, "prompt.*2.*tool_calls"),
        ({"prompt": [FIRST], "completion": [FIRST]}, "completion"),
        ({"prompt": [FIRST], "completion": [ANSWER] * 2}, "completion"),
        ({"messages": [FIRST], "completion_turn": "x"}, "completion_turn"),
        ({"text": "x"}, "prompt.*messages"),
    ],
)
def test_malformed_turns_are_one_error_that_names_row_and_field(row, named, tmp_path):
    config = split_of(tmp_path, {"prompt": "fine"}, row)
    with pytest.raises(DataError, match=rf"train\.jsonl:2\b.*\b{named}\b"):
        data.load_split(config, "train", None)


CHAT = {"id": "r", "prompt": "b", "messages": [FIRST, ANSWER, SECOND], "completion": "stack b a"}


@pytest.mark.parametrize(
    ("validator", "turns", "named"),
    [
        ("builtin", 2, r"'id'.* among messages, animal; rows that are not planning problems need --reward_funcs"),
        (None, 1, r"'completion'.* among messages, animal; .*assistant's turn: rename"),
    ],
)
def test_a_missing_column_is_named_with_those_of_the_file(validator, turns, named, tmp_path):
    config = split_of(tmp_path, {"messages": [FIRST, ANSWER][:turns], "animal": "cat"})
    with pytest.raises(DataError, match=named):
        data.load_split(config, "train", validator, {"prompt": str, "completion": str})


def test_all_turns_are_given_to_the_model_and_the_last_one_is_the_prompt_for_rewards():
    tokenizer = chat_tokenizer()
    template = data.make_chat_template(tokenizer)
    prompts = data.PromptData([CHAT], tokenizer, 1, 0, 64, template=template)
    batch = prompts.batch(0)
    seen = "<s> <|user|> on b a <|end|> <|assistant|> stack b a <|end|> <|user|> b <|end|> <|assistant|>"
    assert words(tokenizer, batch.columns["prompt_ids"][0]) == seen
    assert batch.prompt_texts == ["b"]
    assert batch.columns["messages"] == [[FIRST, ANSWER, SECOND]]
    supervised = data.SupervisedData([CHAT], tokenizer, 1, 0, 64, template).batch(0)
    length = int(supervised.prompt_lengths[0]) + int(supervised.completion_mask.sum())
    assert words(tokenizer, supervised.input_ids[0][:length].tolist()) == f"{seen} stack b a <|end|>"


def test_a_system_turn_of_the_row_wins():
    tokenizer = chat_tokenizer()
    template = data.make_chat_template(tokenizer, DataConfig(system_prompt="on on"))
    own = CHAT | {"messages": [SYSTEM, SECOND]}
    first, second = data.encode_prompts(tokenizer, [CHAT, own], 64, template=template)
    assert words(tokenizer, first).startswith("<s> <|system|> on on <|end|> <|user|> on b a")
    assert words(tokenizer, second) == "<s> <|system|> be brief <|end|> <|user|> b <|end|> <|assistant|>"


def test_a_prompt_that_ends_with_the_assistants_turn_is_continued_in_it_as_by_transformers(tmp_path, caplog):
    tokenizer = chat_tokenizer()
    template = data.make_chat_template(tokenizer)
    begun = ANSWER | {"content": "unstack"}
    blank = ANSWER | {"content": " \n"}
    chats = [[FIRST, begun], [SYSTEM, FIRST, ANSWER, SECOND, begun], [FIRST, blank]]
    forms.warn_once.cache_clear()
    config = split_of(tmp_path, *({"prompt": chat, "completion": "b a"} for chat in chats))
    rows = data.load_split(config, "train", None)
    assert ["goes on in that turn" in record.getMessage() for record in caplog.records] == [True]
    assert [(row["prompt"], row["completion"]) for row in rows] == [("on b a", "b a"), ("b", "b a"), ("on b a", "b a")]
    assert [row["messages"] for row in rows] == [*chats[:2], [FIRST]]
    for row, chat in zip(rows[:2], chats, strict=False):
        expected = tokenizer.apply_chat_template(chat, tokenize=False, continue_final_message=True)
        assert expected.endswith("<|assistant|>\nunstack")
        assert template.prompt_text(row) == expected
    assert template.prompt_text(rows[2]).endswith("<|assistant|>\n")
    encoded = data.encode_rows(tokenizer, [row | {"completion": " b a"} for row in rows], template=template)
    assert [words(tokenizer, row.prompt).split()[-1] for row in encoded] == ["unstack", "unstack", "<|assistant|>"]
    assert [words(tokenizer, row.completion) for row in encoded] == ["b a <|end|>"] * 3
    whole, _, _ = data.encode_rows(
        tokenizer, [row | {"completion": " b a"} for row in rows], template=template, assistant_only=True
    )
    assert words(tokenizer, whole.completion) == "unstack b a <|end|>" and whole.num_learned == 4


def test_the_assistants_last_turn_is_the_completion_in_another_column_which_is_said_once(tmp_path, caplog):
    forms.warn_once.cache_clear()
    config = split_of(tmp_path, {"chat": [FIRST, ANSWER]}, {"chat": [FIRST, ANSWER]}, prompt_column="chat")
    assert [row["completion"] for row in data.load_split(config, "train", None)] == ["stack b a"] * 2
    assert ["chat ends" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("row", "options", "is_warned"),
    [
        ({"prompt": "b", "system": "be brief"}, {}, True),
        ({"messages": [SECOND], "system": "be brief"}, {}, True),
        ({"question": "b", "system": "be brief"}, {"prompt_column": "question"}, True),
        ({"prompt": "b", "system": None}, {}, False),
        ({"messages": [SYSTEM, SECOND], "system": "be brief"}, {}, False),
        ({"conversations": [SECOND], "system": "be brief"}, {}, False),
    ],
)
def test_a_column_system_that_is_not_read_is_warned_of_once(row, options, is_warned, tmp_path, caplog):
    forms.warn_once.cache_clear()
    data.load_split(split_of(tmp_path, row, row, **options), "train", None)
    assert sum("column system" in record.getMessage() for record in caplog.records) == is_warned


TOOLS_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for message in messages %}<|{{ message.role }}|>\n"
    "{{ message.content }}{% for call in message.tool_calls %}{{ call.function.name }} "
    "{{ call.function.arguments.top }}{% endfor %} <|end|>\n{% endfor %}" + ASKED
)


def test_tools_calls_and_turns_of_tools_and_developers_go_to_the_template():
    tokenizer = chat_tokenizer(TOOLS_TEMPLATE)
    turns = [DEVELOPER, FIRST, CALLING, TOOL]
    row = {"id": "r", "prompt": "on b a", "messages": turns, "completion": "stack b a", "tools": [SCHEMA]}
    template = data.make_chat_template(tokenizer, DataConfig(system_prompt="on on"))
    expected = tokenizer.apply_chat_template(turns, tools=[SCHEMA], add_generation_prompt=True, tokenize=False)
    assert template.prompt_text(row) == expected
    assert expected.startswith("stack <|developer|>\nbe brief <|end|>") and "stack b <|end|>\n<|tool|>" in expected
    texts = template.row_texts(row)
    assert (texts.prompt, texts.completion) == (expected, "stack b a <|end|>")
    # A column called tools of a row that is no chat is its own affair.
    plain = {"id": "r", "prompt": "b", "tools": "hammer"}
    assert template.prompt_text(plain).startswith("<|system|>\non on <|end|>")


def test_an_answer_that_calls_a_tool_is_learned_as_the_template_writes_it(tmp_path):
    tokenizer = chat_tokenizer(TOOLS_TEMPLATE)
    template = data.make_chat_template(tokenizer)
    answers = [{"messages": [FIRST, CALLING], "tools": [SCHEMA]}]
    answers += [{"prompt": [FIRST], "completion": [CALLING | {"content": "unstack "}], "tools": [SCHEMA]}]
    rows = data.load_split(split_of(tmp_path, *answers), "train", None, {"prompt": str, "completion": str})
    called, said = data.encode_rows(tokenizer, rows, template=template)
    assert words(tokenizer, called.prompt) == "stack <|user|> on b a <|end|> <|assistant|>"
    assert words(tokenizer, called.completion) == "stack b <|end|>"
    assert words(tokenizer, said.completion) == "unstack stack b <|end|>"
    assert data.column_names(rows) == ["id", "messages", "tools"]
    with pytest.raises(ConfigError, match=r"tool call\b.*train-0"):
        data.encode_rows(tokenizer, [rows[0] | {"tools": None}], template=data.make_chat_template(chat_tokenizer()))


ONE_TURN = "{% if messages|length > 2 %}{{ raise_exception('too many') }}{% endif %}" + TEMPLATE
USUAL_ROLES = "{% for message in messages if message.role in ('system', 'user', 'assistant') %}" + TURN + "{% endfor %}"


@pytest.mark.parametrize(
    ("template", "changes", "named"),
    [
        (USUAL_ROLES + ASKED, {"messages": [DEVELOPER, SECOND]}, "developer"),
        (USUAL_ROLES + ASKED, {"messages": [SECOND, ANSWER, TOOL]}, "tool"),
        (TEMPLATE, {"messages": [SECOND, CALLING, TOOL]}, "tool call"),
        (TEMPLATE, {"messages": [SECOND], "tools": [SCHEMA]}, "tool"),
        (ONE_TURN, {"messages": [FIRST, ANSWER, SECOND]}, "too many"),
    ],
)
def test_a_template_that_refuses_a_row_or_would_leave_something_out_in_silence_is_refused(template, changes, named):
    made = data.make_chat_template(chat_tokenizer(template))
    with pytest.raises(ConfigError, match=rf"use_chat_template(?=.*\b{named}\b).*\br\b"):
        made.prompt_text({"id": "r", "prompt": "b"} | changes)
