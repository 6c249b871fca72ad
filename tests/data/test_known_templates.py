"""The chat templates that people's models come with, from the wheel of TRL, against `apply_chat_template` itself."""

import re

import pytest

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.data import template_layout
from jaxppo.data.encoding import encode_completions
from jaxppo.errors import ConfigError
from tests.data.tokenizers import OPENED, WHOLE, tokenizer_of

trl = pytest.importorskip("trl")

ARGUMENTS = [None, {"enable_thinking": True}, {"enable_thinking": False}]

SYSTEM = {"role": "system", "content": "You plan."}
EARLIER = [{"role": "user", "content": "on a b?"}, {"role": "assistant", "content": "(pick-up a)\n(stack a b)"}]
LAST = {"role": "user", "content": " Now: on b a\n"}
ANSWER = "(unstack a b)\n(put-down a)\n(pick-up b)"
CHATS = {
    "one turn": [LAST],
    "two answers": [*EARLIER, LAST],
    "system": [SYSTEM, LAST],
    "system and three answers": [SYSTEM, *EARLIER, *EARLIER, LAST],
}


def chats_of(name):
    return {what: turns for what, turns in CHATS.items() if not (name == "gemma" and turns[0] is SYSTEM)}


def row_of(turns, completion=ANSWER):
    return {"id": "r", "prompt": turns[-1]["content"], "messages": turns, "completion": completion}


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("name", WHOLE | OPENED)
def test_prompts_and_supervised_rows_are_those_of_apply_chat_template_up_to_the_end_of_the_turn(name, arguments):
    tokenizer = tokenizer_of("byte-level", name)
    template = data.make_chat_template(tokenizer, DataConfig(chat_template_kwargs=arguments))
    options = {"return_dict": False, **(arguments or {})}
    for turns in chats_of(name).values():
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)
        assert template.prompt_text(row_of(turns)) == text
        (prompt,) = data.encode_prompts(tokenizer, [row_of(turns)], 4096, template=template)
        assert prompt == tokenizer.apply_chat_template(turns, tokenize=True, add_generation_prompt=True, **options)
        for completion in (ANSWER, f"  {ANSWER}\n", "") if name in WHOLE else ():
            answer = encode_completions(tokenizer, [row_of(turns, completion)], template)[0]
            chat = [*turns, {"role": "assistant", "content": completion}]
            whole = tokenizer.apply_chat_template(chat, tokenize=True, **options)
            end = len(whole) - whole[::-1].index(template.end_id)
            assert tokenizer.decode([*prompt, *answer]) == tokenizer.decode(whole[:end])
            # Of thinking that is opened and closed at once the prompt has one of two newlines, which are one token.
            if completion == ANSWER and not text.endswith("<think>\n"):
                assert [*prompt, *answer] == whole[:end]
            assert not tokenizer.decode(whole[end:]).replace(tokenizer.eos_token, "").strip()


@pytest.mark.parametrize("name", WHOLE | OPENED)
def test_a_turn_that_the_prompt_begins_is_left_open_and_learned_from_there(name):
    tokenizer = tokenizer_of("byte-level", name)
    template = data.make_chat_template(tokenizer)
    turns = [*EARLIER, LAST, {"role": "assistant", "content": "(unstack a b)"}]
    row = row_of(turns, "\n(pick-up b)") | {"prompt": LAST["content"]}
    prompt = tokenizer.apply_chat_template(turns, tokenize=False, continue_final_message=True)
    assert prompt.endswith("(unstack a b)")
    assert template.row_texts(row) == template.texts_of_rows([row])[0]
    assert template.row_texts(row).prompt == prompt
    assert template.row_texts(row).completion.strip() == "(pick-up b)" + template.end_text


@pytest.mark.parametrize(("name", "warned"), [("qwen3", True), ("llama3", False)])
def test_thoughts_that_a_prompt_begins_behind_empty_ones_of_the_template_are_warned_of(name, warned, caplog):
    template_layout.warn_once.cache_clear()
    begun = row_of([LAST, {"role": "assistant", "content": "<think>\nHm"}]) | {"prompt": LAST["content"]}
    template = data.make_chat_template(tokenizer_of("byte-level", name))
    assert template.prompt_text(begun).endswith("<think>\nHm") and template.prompt_text(row_of([LAST]))
    assert ["empty thinking part" in record.getMessage() for record in caplog.records] == [True] * warned


@pytest.mark.parametrize("name", OPENED)
def test_thoughts_of_a_completion_stand_where_the_template_has_them(name):
    row = row_of([LAST], f"<think>\nHm.\n</think>\n\n{ANSWER}")
    texts = data.make_chat_template(tokenizer_of("byte-level", "qwen3")).row_texts(row)
    assert texts.completion == row["completion"] + "<|im_end|>"
    without = data.make_chat_template(
        tokenizer_of("byte-level", "qwen3"), DataConfig(chat_template_kwargs={"enable_thinking": False})
    )
    with pytest.raises(ConfigError, match=r"use_chat_template.*\br\b"):
        without.row_texts(row)
    # Thinking that the prompt opens can be continued, but not learned from.
    tokenizer = tokenizer_of("byte-level", name)
    template = data.make_chat_template(tokenizer)
    assert template.prompt_text(row_of([LAST])).endswith("<think>\n")
    assert template.end_id == tokenizer.eos_token_id
    with pytest.raises(ConfigError, match=r"use_chat_template.*<think>"):
        template.row_texts(row_of([LAST]))


@pytest.mark.parametrize(
    ("name", "arguments", "warned"),
    [
        ("llama3_2", None, "date"),
        ("llama3_2", {"date_string": "26 Jul 2024"}, None),
        ("qwen3", {"enable_thinking": False}, None),
        ("qwen3", {"enable_thinkng": False}, "chat_template_kwargs.*enable_thinkng"),
    ],
)
def test_templates_that_write_the_date_and_arguments_that_none_reads_are_warned_of_once(
    name, arguments, warned, caplog
):
    template_layout.warn_once.cache_clear()
    for _ in range(2):
        data.make_chat_template(tokenizer_of("byte-level", name), DataConfig(chat_template_kwargs=arguments))
    assert len(caplog.records) == (warned is not None)
    assert all(re.search(warned, record.getMessage()) for record in caplog.records)


CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"block": "b"}}}
PARAMETERS = {"type": "object", "properties": {"block": {"type": "string", "description": "which"}}}
TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "Look.", "parameters": PARAMETERS}}]
CALLED = [LAST, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "name": "look_up", "content": 'on "a"'}]
DEVELOPER = {"role": "developer", "content": "You plan."}
BEYOND = {
    "tools": ([LAST], TOOLS, "look_up"),
    "a call": (CALLED, TOOLS, "look_up"),
    "a developer": ([DEVELOPER, LAST], None, "You plan."),
}
"""Turns, tools, and what a template that knows of none leaves out."""
WRITTEN = {
    "tools": ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "llama3_1", "llama3_2"),
    "a developer": ("llama3", "llama3_1", "llama3_2"),
}
WRITTEN["a call"] = WRITTEN["tools"]


@pytest.mark.parametrize("what", BEYOND)
@pytest.mark.parametrize("name", WHOLE | OPENED)
def test_tools_and_developers_are_written_as_by_transformers_or_refused(name, what):
    tokenizer, (turns, tools, said) = tokenizer_of("byte-level", name), BEYOND[what]
    template, row = data.make_chat_template(tokenizer), row_of(turns) | {"tools": tools}
    if name in WRITTEN[what]:
        theirs = tokenizer.apply_chat_template(turns, tools=tools, tokenize=False, add_generation_prompt=True)
        assert said in theirs and template.prompt_text(row | {"prompt": "x"}) == theirs
    else:
        with pytest.raises(ConfigError, match=r"use_chat_template.* of row r"):
            template.prompt_text(row | {"prompt": "x"})
