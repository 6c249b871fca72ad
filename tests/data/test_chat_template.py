"""Prompts as turns of a chat: what the template puts around them, where completions end, and unfit templates."""

import pytest

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.data import ChatTemplate, make_chat_template
from jaxppo.data.encoding import encode_completions
from jaxppo.errors import ConfigError, DataError
from tests.data.tokenizers import TEMPLATE, chat_tokenizer, words

ROWS = [{"id": "r-0", "prompt": "on b a", "completion": "unstack b a"}, {"id": "r-1", "prompt": "b", "completion": ""}]
CONTINUED = {"input_text_length": (2, 3)}


def test_prompts_become_the_users_turn_with_one_start_token_and_the_system_prompt_before_it():
    tokenizer = chat_tokenizer()
    template = make_chat_template(tokenizer, DataConfig())
    assert template.prompt_text(ROWS[0]) == "<s> <|user|>\non b a <|end|>\n<|assistant|>\n"
    first, second = data.encode_prompts(tokenizer, ROWS, 64, template=template)
    assert words(tokenizer, first) == "<s> <|user|> on b a <|end|> <|assistant|>"
    assert words(tokenizer, second) == "<s> <|user|> b <|end|> <|assistant|>"
    template = make_chat_template(tokenizer, DataConfig(system_prompt="be brief"))
    (ids,) = data.encode_prompts(tokenizer, ROWS[:1], 64, template=template)
    assert words(tokenizer, ids) == "<s> <|system|> be brief <|end|> <|user|> on b a <|end|> <|assistant|>"
    assert "be brief" in template.describe()


@pytest.mark.parametrize("eos", ["<eos>", "<|end|>"])
def test_completions_end_with_the_first_special_token_after_the_assistants_turn(eos):
    tokenizer = chat_tokenizer(eos=eos)
    template = make_chat_template(tokenizer, DataConfig())
    encoded = encode_completions(tokenizer, ROWS, template)
    assert [words(tokenizer, ids) for ids in encoded] == ["unstack b a <|end|>", "<|end|>"]
    assert (template.end_id == tokenizer.eos_token_id) == (eos == "<|end|>")


def test_texts_of_rows_are_those_of_each_row_from_about_one_rendering(monkeypatch):
    template = make_chat_template(chat_tokenizer(), DataConfig(system_prompt="be brief"))
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "on"}]
    rows = [{"id": i, "prompt": "on " * (i % 5), "completion": "b " * (i % 4)} for i in range(200)]
    rows[60] |= {"messages": [turns[0], {"role": "assistant", "content": "<think>b</think> a"}, turns[2]]}
    rows[70] |= {"completion": "", "completion_turn": {"role": "assistant", "content": "b", "tool_calls": []}}
    rows[80] |= {"prompt": template.prompt_text(ROWS[0])}  # carries the template already
    rows[90] |= {"messages": turns[:1], "tools": [{"parameters": {}}]}
    expected, rendered = [template.row_texts(row) for row in rows], []
    render = ChatTemplate._render_all
    monkeypatch.setattr(
        ChatTemplate,
        "_render_all",
        lambda self, chats, **options: rendered.extend(chats) or render(self, chats, **options),
    )
    assert template.texts_of_rows(rows) == expected and len(rendered) < 300
    # Where the turn of the assistant is not opened in all prompts, it belongs to the completions of the others.
    some = TEMPLATE.replace(
        "if add_generation_prompt", "if add_generation_prompt and 'unstack' not in messages[-1].content"
    )
    some, unopened = make_chat_template(chat_tokenizer(some)), {"id": "u", "prompt": "unstack", "completion": "b"}
    assert some.texts_of_rows([*rows[:3], unopened])[-1].completion == "<|assistant|>\nb <|end|>"
    refusing = "{% if messages[0].content == 'unstack' %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE
    with pytest.raises(ConfigError, match=r"use_chat_template.* of row u\b"):
        make_chat_template(chat_tokenizer(refusing)).texts_of_rows([*rows[:3], unopened])
    # A prompt that is written in another way where its completion follows is noticed among the first rows.
    mark = "{{ '!' if 'unstack' in message['content'] and messages[-1].role == 'assistant' }}"
    odd = make_chat_template(chat_tokenizer(TEMPLATE.replace(" <|end|>", mark + " <|end|>")))
    with pytest.raises(ConfigError, match="use_chat_template"):
        odd.texts_of_rows([*rows[:3], unopened])


def test_thinking_that_the_prompt_opens_is_learned_where_the_answer_has_it():
    opening = TEMPLATE.replace("<|assistant|>\n{% endif %}", "<|assistant|>\n<think>\n{% endif %}")
    template = make_chat_template(chat_tokenizer(opening))
    row = {"id": "r-2", "prompt": "b", "completion": "<think>\non </think> a"}
    assert template.row_texts(row) == (template.prompt_text(row), "on </think> a <|end|>")
    with pytest.raises(ConfigError, match=r"use_chat_template.*\(row r-0\)"):
        template.row_texts(ROWS[0])


def test_blanks_before_a_completion_are_kept_and_a_turn_without_an_end_marker_ends_with_the_end_of_sequence():
    template = "{% for m in messages %}<|{{ m.role }}|>\t{{ m.content }}<|end|>{% endfor %}"
    template = make_chat_template(chat_tokenizer(template + "{% if add_generation_prompt %}<|assistant|>{% endif %}"))
    assert template.row_texts(ROWS[0]).completion == "\tunstack b a<|end|>"
    for tail in ("", "\n"):
        unended = "{% for m in messages %}<|{{ m.role }}|> {{ m.content }}" + tail + "{% endfor %}"
        tokenizer = chat_tokenizer(unended + "{% if add_generation_prompt %}<|assistant|> {% endif %}")
        assert make_chat_template(tokenizer).end_id == tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("template", "config"),
    [
        (None, DataConfig()),
        (None, DataConfig(use_chat_template=False)),
        (TEMPLATE, DataConfig(use_chat_template=False)),
        (TEMPLATE, DataConfig(**CONTINUED)),
    ],
)
def test_texts_stay_as_they_are_without_a_chat_template(template, config):
    tokenizer = chat_tokenizer(template)
    template = make_chat_template(tokenizer, config)
    prompts, completions = data.encode_prompts(tokenizer, ROWS, 64), encode_completions(tokenizer, ROWS)
    assert data.encode_prompts(tokenizer, ROWS, 64, template=template) == prompts
    assert encode_completions(tokenizer, ROWS, template) == completions
    # As the tokenizer itself begins a text.
    assert [words(tokenizer, ids) for ids in prompts] == ["<s> on b a", "<s> b"]
    assert [words(tokenizer, ids) for ids in completions] == ["unstack b a <eos>", "<eos>"]
    assert not template.is_used and template.end_id == tokenizer.eos_token_id
    # A chat needs a template.
    chat = ROWS[0] | {"messages": [{"role": "user", "content": "on b a"}]}
    with pytest.raises(DataError, match=r"r-0\b.*use_chat_template"):
        data.PromptData([chat], tokenizer, 1, 0, 64, config.input_text_length, template)


REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + TEMPLATE
OTHER_START = "{% if messages|length > 1 %}### {% endif %}" + TEMPLATE
SHOUTING = TEMPLATE.replace("message['content']", "message['content']|upper")
WORDY_END = "{% for m in messages %}{{ m.content }} ### {% endfor %}"
WORDS_BEFORE_END = TEMPLATE.replace(" <|end|>", " ### <|end|>")


@pytest.mark.parametrize(
    ("name", "template", "config"),
    [
        ("use_chat_template", None, {"use_chat_template": True}),
        ("system_prompt", None, {"system_prompt": "be brief"}),
        ("system_prompt", TEMPLATE, {"use_chat_template": False, "system_prompt": "be brief"}),
        ("no system turn", REFUSING, {"system_prompt": "be brief"}),
        ("use_chat_template", OTHER_START, {}),
        ("use_chat_template", SHOUTING, {}),
        ("use_chat_template", WORDY_END, {}),
        ("use_chat_template", WORDS_BEFORE_END, {}),
        # Text to be continued is no chat.
        ("use_chat_template", TEMPLATE, CONTINUED | {"use_chat_template": True}),
    ],
)
def test_templates_that_cannot_do_are_refused(name, template, config):
    with pytest.raises(ConfigError, match=name):
        make_chat_template(chat_tokenizer(template), DataConfig(**config))


def test_errors_of_prompts_name_the_row_and_count_the_template():
    tokenizer = chat_tokenizer()
    template = make_chat_template(tokenizer)
    with pytest.raises(DataError, match=r"r-0.*max_prompt_length=6.*\b7\b"):
        data.encode_prompts(tokenizer, ROWS, 6, template=template)
