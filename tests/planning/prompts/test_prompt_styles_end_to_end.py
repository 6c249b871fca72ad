"""Every prompt style through tokenizers and the real commands: rows of two domains, a very small model."""

import json
import random

import jax
import numpy as np
import pytest

from jaxppo import data, hf, models, sft, train
from jaxppo.config import DataConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.data.tokens import encode_completions
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.planning import parse_domain, parse_problem
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.prompts import PROMPT_STYLES, words_of
from jaxppo.planning.solve.search import solve
from jaxppo.reward_functions import plan as plan_reward
from jaxppo.run.folder import Run
from tests.data.tokenizers import ASKED, TURN

each_style = pytest.mark.parametrize("style", PROMPT_STYLES)


def make_rows(style, split, count, seed=0):
    """Problems of ferry and gripper, one after the other, with plans of the built-in search."""
    rng, rows = random.Random(seed), []
    for number in range(count):
        name = ("ferry", "gripper")[number % 2]
        domain_pddl = DOMAINS[name].pddl
        text = DOMAINS[name].generate_problem(2, rng, f"{split}-{number}")
        plan = solve(parse_problem(text, parse_domain(domain_pddl)))
        assert plan
        shared = {"domain": name, "split": split, "domain_pddl": domain_pddl, "problem_pddl": text}
        identity = {"id": f"{split}-{number}", "prompt_style": style, "planner": "builtin"}
        rows.append(datasets.make_row(plan=plan, **identity, **shared))
    return rows


def write_dataset(folder, style, num_train=4):
    counts = {"train": num_train, "rl": 4, "test": 4}
    splits = {split: make_rows(style, split, count, seed) for seed, (split, count) in enumerate(counts.items())}
    for split, rows in splits.items():
        dataset_files.write_jsonl(rows, folder / f"{split}.jsonl")
    return splits


@each_style
def test_completions_are_valid_plans_after_encoding_and_decoding(style):
    rows = make_rows(style, "test", 12)
    tokenizer = data.word_tokenizer(words_of(row[column] for row in rows for column in ("prompt", "completion")))
    encoded = encode_completions(tokenizer, rows)
    length = max(map(len, encoded))
    ids = np.array([ids + [tokenizer.pad_token_id] * (length - len(ids)) for ids in encoded])
    mask = np.arange(length)[None, :] < np.array([[len(ids)] for ids in encoded])
    names = ("domain_pddl", "problem_pddl", "reference_plan", "prompt_style")
    columns = {name: [row[name] for row in rows] for name in names}
    outcomes = plan_reward.judge_plans(data.decode(tokenizer, ids, mask), None, **columns)
    assert [outcome.reward for outcome in outcomes] == [1.0] * len(rows)
    assert [outcome.lccs for outcome in outcomes] == [1.0] * len(rows)
    prompts = data.encode_prompts(tokenizer, rows, 2048)
    assert [len(ids) for ids in prompts] == [len(words_of_text(row["prompt"])) for row in rows]


def words_of_text(text):
    """Words as a plain loop finds them."""
    for mark in "().,:;":
        text = text.replace(mark, f" {mark} ")
    return text.split()


def tiny_model(tokenizer):
    return GPTNeoXConfig(
        vocab_size=data.bucket(len(tokenizer)),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=1.0,
        rotary_pct=1.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


@each_style
def test_the_built_in_domain_has_the_words_of_all_its_problems(style, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXPPO_CACHE", str(tmp_path))
    config = DataConfig(prompt_style=style, test_sizes="4:5", test_longer_sizes="7:3")
    tokenizer = data.word_tokenizer(data.words_of_dataset(config))
    for split in ("test", "test_longer"):
        rows = data.load_split(config, split)
        assert {row["prompt_style"] for row in rows} == {style}
        assert len(data.encode_prompts(tokenizer, rows, 512)) == len(rows)


def test_the_tokenizer_of_the_built_in_domain_is_that_of_the_shipped_model(tmp_path):
    data.word_tokenizer().save_pretrained(tmp_path)
    shipped = hf.find_model("blocksworld-sft")
    assert (tmp_path / "tokenizer.json").read_bytes() == (shipped / "tokenizer.json").read_bytes()


def chat_tokenizer(rows):
    """A word-level tokenizer whose chat template ends a turn with another token than the end of sequence."""
    words = words_of(row[column] for row in rows for column in ("prompt", "completion"))
    tokenizer = data.word_tokenizer([*words, "completion"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|end|>"]})
    tokenizer.chat_template = "{% for message in messages %}" + TURN + "{% endfor %}" + ASKED
    return tokenizer


@pytest.mark.full
def test_sft_and_train_give_chats_with_examples_and_arguments_to_the_model(tmp_path):
    splits = write_dataset(tmp_path, "pddl", num_train=6)  # three of a domain: two are examples of the third
    system = {"role": "system", "content": "domain"}
    for split, rows in splits.items():
        turns = [[system, {"role": "user", "content": row["prompt"]}] for row in rows]
        chats = [row | {"prompt": None, "messages": own} for row, own in zip(rows, turns, strict=True)]
        dataset_files.write_jsonl(chats, tmp_path / f"{split}.jsonl")
    tokenizer = chat_tokenizer([row for rows in splits.values() for row in rows])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|system|>", "<|mark|>"]})
    tokenizer.chat_template = "{% if marked %}<|mark|>{% endif %}" + tokenizer.chat_template
    model = tiny_model(tokenizer)
    hf.save_pretrained(tmp_path / "base", model, models.init_params(model, jax.random.key(0)), tokenizer)
    common = {"dataset": str(tmp_path), "eval_splits": ("test",), "eval_validator": "builtin", "eval_batch_size": 4}
    common |= {"response_length": 8, "quiet": True, "max_prompt_length": 2048, "n_shots": 2}
    common |= {"chat_template_kwargs": {"marked": True}, "batch_size": 4, "total_episodes": 4}
    base, tuned = str(tmp_path / "base"), str(tmp_path / "sft" / "policy")
    sft.sft(replace(SFTConfig(), model_path=base, output_dir=str(tmp_path / "sft"), **common))
    saved = hf.load_policy(tuned).tokenizer
    ends = (saved.convert_tokens_to_ids("<|end|>"), saved.eos_token_id)
    generation = json.loads((tmp_path / "sft" / "policy" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == list(ends)
    common |= {"train_split": "rl", "headline_split": "test", "validator": "builtin", "num_mini_batches": 1}
    config = replace(TrainConfig(), sft_model_path=tuned, output_dir=str(tmp_path / "ppo"), **common)
    setup, _ = train.set_up(Run(command="train", config=config, folder=tmp_path / "ppo"))
    assert (setup.template.end_id, setup.ppo.stop_ids) == (ends[0], ends)
    batch = setup.prompts.batch(0)
    assert {*batch.texts} == {row["prompt"] for row in splits["rl"]}  # what rewards see
    assert all(turns[0] == system for turns in batch.columns["messages"])
    for encoded in (batch.columns["prompt_ids"], setup.evaluator._encoded["test"]):
        for ids in encoded:
            text = setup.tokenizer.decode(ids)
            assert text.startswith("<|mark|>") and text.endswith("<|assistant|>")
            assert text.count("<|system|>") == 1 and text.count("<|assistant|>") == 3
            assert text.count("Planning domain :") == 1 and text.count("Problem :") == 3
