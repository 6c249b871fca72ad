"""Solved examples before a prompt: which rows they are, how they are written, and who sees them."""

import dataclasses
import json

import pytest

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.data import few_shot
from jaxppo.data.few_shot import load_examples, shown_after
from jaxppo.errors import ConfigError, DataError
from jaxppo.parallel import processes
from jaxppo.planning.datasets.rows import build_split
from tests.data.tokenizers import chat_tokenizer, words, write_rows

SMALL = DataConfig(sizes=("train=3:6,4:6", "rl=4:5"), n_shots=2)


def text_split(folder, rows, split="train"):
    return DataConfig(dataset=write_rows(folder, **{split: rows}), n_shots=2)


def plain(number):
    return {"id": f"r-{number}", "prompt": f"on {'b a '[: number % 4]}{'a ' * number}", "completion": "stack b a"}


def test_examples_depend_on_nothing_but_the_seed_and_the_id():
    rows = data.load_split(SMALL, "rl")
    chosen = {row["id"]: [example["id"] for example in load_examples(SMALL).draw(row)] for row in rows}
    again = load_examples(dataclasses.replace(SMALL))
    for row in reversed(rows):
        assert [example["id"] for example in again.draw({**row, "split": "other"})] == chosen[row["id"]]
    assert len({tuple(ids) for ids in chosen.values()}) > 1  # not the same ones for every row
    assert all(len(set(ids)) == 2 and all("-train-" in name for name in ids) for ids in chosen.values())
    pool = load_examples(SMALL)
    other = pool._replace(seed=1)
    assert any([e["id"] for e in other.draw(row)] != chosen[row["id"]] for row in rows)


def test_examples_are_other_problems_of_the_same_domain_and_prompt_style(tmp_path):
    rows = [plain(n) | {"domain": "ab"[n % 2], "prompt_style": ("atoms", "nl")[n % 3 > 0]} for n in range(24)]
    rows += [rows[1] | {"id": "twin"}]
    examples = load_examples(text_split(tmp_path, rows))
    for row in rows:
        shown = examples.draw(row)
        for example in shown:
            assert (example["domain"], example["prompt_style"]) == (row["domain"], row["prompt_style"])
        prompts = [example["prompt"] for example in shown]
        assert len(set(prompts)) == 2 and row["prompt"] not in prompts

    # Chats that end alike are different problems.
    def chat(number):
        turns = [("user", "on b a" * number), ("assistant", "ok"), ("user", "go on"), ("assistant", "stack b a")]
        return {"messages": [{"role": role, "content": text} for role, text in turns]}

    config = text_split(tmp_path, [chat(number) for number in (1, 2, 3)])
    rows = data.load_split(config, "train", None)
    for row in rows:
        shown = {example["id"] for example in load_examples(config).draw(row)}
        assert shown == {other["id"] for other in rows} - {row["id"]}


def test_too_few_examples_rows_without_completion_and_a_missing_split_are_one_error(tmp_path):
    rows = [plain(1) | {"domain": "x"}, plain(2) | {"domain": "y"}]
    template = data.make_chat_template(chat_tokenizer(None), text_split(tmp_path, rows))
    with pytest.raises(DataError, match=r"n_shots.*r-1"):
        template.prompt_text(rows[0])
    with pytest.raises(DataError, match=r"n_shots.*completion"):
        load_examples(text_split(tmp_path, [{"prompt": "a"}]))
    with pytest.raises(DataError, match=r"n_shots.*train\.jsonl"):
        load_examples(text_split(tmp_path / "other", [plain(1)], split="rl"))
    assert load_examples(DataConfig(dataset="/none")) is None


def test_processes_compare_what_they_draw_examples_from_of_which_few_are_built(tmp_path, monkeypatch):
    """The first ones of every size: rows of the split `train`, whatever its length."""
    monkeypatch.setattr(few_shot, "MAX_ROWS_PER_SIZE", 4)
    pool = load_examples(SMALL).pool[("blocksworld", "atoms")]
    whole = build_split("train", sizes={3: 6, 4: 6}, seed=0, unique=False)
    assert list(pool) == [row for row in whole if int(row["id"][-5:]) < 4]
    config = text_split(tmp_path, [plain(number) for number in range(4)])
    monkeypatch.setattr(processes, "is_alone", lambda: False)
    monkeypatch.setattr(processes, "gather", lambda value: [value, value | {next(iter(value)): "3 rows 00000000"}])
    with pytest.raises(ConfigError, match="split train"):
        load_examples(config)


def test_without_a_template_prompt_plan_and_end_of_text_stand_one_after_the_other(rows, tokenizer, tmp_path):
    plain_rows = [plain(n) for n in range(4)]
    template = data.make_chat_template(chat_tokenizer(None), text_split(tmp_path, plain_rows))
    first, second = template.examples.draw(plain_rows[0])
    shown = "".join(f"{row['prompt']}{row['completion']}<eos>\n\n" for row in (first, second))
    assert template.prompt_text(plain_rows[0]) == shown + plain_rows[0]["prompt"]
    assert template.row_texts(plain_rows[0]).completion == "stack b a"
    # The words of the style atoms stay apart.
    template = data.make_chat_template(tokenizer, SMALL)
    first, second = template.examples.draw(rows[0])
    texts = [first["prompt"], first["completion"], "<eos>", second["prompt"], second["completion"], "<eos>"]
    expected = tokenizer(" ".join([*texts, rows[0]["prompt"]]))["input_ids"]
    assert data.encode_prompts(tokenizer, rows[:1], 512, template=template)[0] == expected


@pytest.mark.parametrize(
    ("style", "of_domain", "of_problem"),
    [("pddl", "Planning domain:", "Problem:"), ("nl", "You can stack", "Objects:")],
)
def test_the_domain_is_shown_once(style, of_domain, of_problem):
    config = dataclasses.replace(SMALL, prompt_style=style)
    (row, *_) = data.load_split(config, "rl")
    template = data.make_chat_template(chat_tokenizer(None), config)
    text, (first, second) = template.prompt_text(row), template.examples.draw(row)
    assert text.count(of_domain) == 1 and text.count(of_problem) == 3
    parts = text.split("<eos>\n\n")
    assert parts[0] == first["prompt"] + first["completion"]
    for part, whole in zip(parts[1:], (second["prompt"] + second["completion"], row["prompt"]), strict=True):
        assert part.startswith(of_problem) and whole.endswith(part)
    # As it is in a chat.
    as_chat = row | {"messages": [{"role": "user", "content": row["prompt"]}]}
    template = data.make_chat_template(chat_tokenizer(), config)
    text = template.prompt_text(row)
    assert text.count(of_domain) == 1 and text.count(f"<|user|>\n{of_problem}") == 2
    assert template.prompt_text(as_chat) == text
    # Another domain is shown again.
    (first,) = build_split("train", sizes={3: 1}, seed=0, prompt_style="pddl", unique=True)
    other = first | {"prompt": first["prompt"].replace("stack", "heap")}
    assert shown_after(other, first)["prompt"] == other["prompt"]
    assert shown_after(first, first)["prompt"].startswith("Problem:\n")
    plain_style = first | {"prompt_style": "atoms"}
    assert shown_after(plain_style, first)["prompt"] == first["prompt"]
    without_mark = first | {"prompt": "Solve this."}
    assert shown_after(without_mark, first)["prompt"] == "Solve this."


def test_in_a_chat_examples_are_earlier_turns_after_the_system_turn(tmp_path):
    rows = [plain(n) for n in range(4)]
    config = dataclasses.replace(text_split(tmp_path, rows), system_prompt="be brief")
    tokenizer = chat_tokenizer()
    template = data.make_chat_template(tokenizer, config)
    own = {"role": "system", "content": "on on"}
    user = {"role": "user", "content": rows[0]["prompt"]}
    for row, system in ((rows[0], "be brief"), (rows[0] | {"messages": [own, user]}, "on on")):
        turns = [{"role": "system", "content": system}]
        for example in template.examples.draw(row):
            turns += [{"role": "user", "content": example["prompt"]}]
            turns += [{"role": "assistant", "content": example["completion"]}]
        expected = tokenizer.apply_chat_template([*turns, user], tokenize=False, add_generation_prompt=True)
        assert template.prompt_text(row) == expected
        answer = {"role": "assistant", "content": "stack b a"}
        whole = tokenizer.apply_chat_template([*turns, user, answer], tokenize=False)
        assert "".join(template.row_texts(row)) + "\n" == whole


def test_examples_that_are_chats_bring_all_their_turns_but_the_system_turn(tmp_path):
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "on"}]
    turns += [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]
    rows = [{"messages": [*turns, {"role": "assistant", "content": "stack"}]}]
    config = dataclasses.replace(text_split(tmp_path, rows), n_shots=1)
    template = data.make_chat_template(chat_tokenizer(), config)
    text = " ".join(template.prompt_text({"id": "x", "prompt": "b"}).split())
    shown = "<|user|> on <|end|> <|assistant|> b <|end|> <|user|> a <|end|> <|assistant|> stack <|end|>"
    assert text == f"<s> {shown} <|user|> b <|end|> <|assistant|>"
    with pytest.raises(DataError, match=r"train-0.*use_chat_template"):
        data.make_chat_template(chat_tokenizer(None), config).prompt_text({"id": "x", "prompt": "b"})


def test_rewards_see_the_plain_prompt_and_lengths_count_the_examples(rows, tokenizer):
    template = data.make_chat_template(tokenizer, SMALL)
    before = json.dumps(rows)
    prompts = data.PromptData(rows, tokenizer, 2, 0, 512, template=template)
    batch = prompts.batch(0)
    by_id = {row["id"]: row for row in rows}
    for name, text, ids in zip(batch.columns["id"], batch.prompt_texts, batch.columns["prompt_ids"], strict=True):
        assert text == by_id[name]["prompt"]
        assert words(tokenizer, ids).endswith(text) and words(tokenizer, ids).count("<plan>") == 3
    assert set(batch.columns) == {*data.column_names(rows), "prompt_ids"}
    assert json.dumps(rows) == before
    config = dataclasses.replace(SMALL, max_prompt_length=prompts.longest - 1)
    kept = data.without_overlong(tokenizer, rows, config, template, "train")
    assert 0 < len(kept) < len(rows)
    with pytest.raises(DataError, match=rf"max_prompt_length={prompts.longest - 1}\b.*\b{prompts.longest}\b"):
        data.encode_prompts(tokenizer, rows, prompts.longest - 1, template=template)
