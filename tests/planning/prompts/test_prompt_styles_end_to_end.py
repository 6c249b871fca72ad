"""Every prompt style through tokenizers, models and the real commands: rows of two domains, very small models."""

import json
import random

import jax
import numpy as np
import pytest

from jaxppo import data, hf, models, sft, train
from jaxppo.config import DataConfig, EvalConfig, RewardConfig, SamplingConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.data import make_chat_template
from jaxppo.data.tokens import encode_completions
from jaxppo.errors import DataError
from jaxppo.evaluate.evaluator import Evaluator
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning import parse_domain, parse_problem
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.prompts import PROMPT_STYLES, words_of
from jaxppo.planning.solve.search import solve
from jaxppo.reward_functions import plan as plan_reward
from jaxppo.run.folder import Run
from tests.data.test_chat_template import ASKED, TURN

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


def write_dataset(folder, style):
    splits = {split: make_rows(style, split, 8, seed) for seed, split in enumerate(("train", "rl", "test"))}
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


def tiny_evaluator(tokenizer, folder, **settings):
    return Evaluator(
        tiny_model(tokenizer),
        tokenizer,
        DataParallel(devices=jax.local_devices()[:1]),
        DataConfig(dataset=str(folder), eval_splits=("test",), **settings),
        EvalConfig(eval_batch_size=8, eval_validator="builtin"),
        RewardConfig(),
        SamplingConfig(response_length=8),
        seed=0,
    )


def says(model, token):
    """Parameters of a model that says one token again and again."""
    params = jax.device_get(models.init_params(model, jax.random.key(1)))
    norm = {"scale": np.zeros(16, np.float32), "bias": np.ones(16, np.float32)}
    kernel = np.zeros((16, model.vocab_size), np.float32)
    kernel[:, token] = 1.0
    return {"trunk": params["trunk"] | {"final_layer_norm": norm}, "lm_head": {"kernel": kernel}}


@pytest.mark.parametrize("style", ["pddl", "nl"])  # `atoms` is what other tests use
def test_a_random_model_is_evaluated(style, tmp_path):
    write_dataset(tmp_path, style)
    tokenizer = data.word_tokenizer(data.words_of_dataset(DataConfig(dataset=str(tmp_path), eval_splits=("test",))))
    evaluator = tiny_evaluator(tokenizer, tmp_path)
    result = evaluator(models.init_params(tiny_model(tokenizer), jax.random.key(0)))["test"]
    assert result["validity"]["n"] == 8 and 0 <= result["validity"]["rate"] < 1
    empty = evaluator(says(tiny_model(tokenizer), tokenizer.eos_token_id))["test"]
    assert empty["readable"]["rate"] == empty["ended"]["rate"] == 1.0


def test_an_unknown_word_of_a_row_is_named_when_a_model_is_evaluated(tmp_path):
    splits = write_dataset(tmp_path, "nl")
    names = set(parse_problem(splits["test"][0]["problem_pddl"], parse_domain(DOMAINS["ferry"].pddl)).objects)
    words = words_of(row["prompt"] for row in splits["test"])
    tokenizer = data.word_tokenizer([word for word in words if word not in names])
    with pytest.raises(DataError, match=r"^prompt of row test-\d: expected words that .* knows, got '(.*)'; ") as error:
        tiny_evaluator(tokenizer, tmp_path)
    assert str(error.value).split("'")[-2] in names


# --- words of a data set


def test_words_of_a_dataset_are_those_of_its_file_or_else_of_its_rows(tmp_path):
    splits = write_dataset(tmp_path, "pddl")
    config = DataConfig(dataset=str(tmp_path), eval_splits=("test",))
    expected = words_of(row[column] for row in splits["train"] + splits["test"] for column in ("prompt", "completion"))
    assert data.words_of_dataset(config) == expected
    (tmp_path / "vocabulary.json").write_text(json.dumps(["zebra", "(", "<eos>"]))
    assert data.words_of_dataset(config) == ["zebra", "(", "<eos>"]
    assert set(data.word_tokenizer(data.words_of_dataset(config)).get_vocab()) == {"zebra", "(", "<eos>", "<pad>"}


@pytest.mark.parametrize("text", ["", "{}", "[]", '["a", 1]', '["a", ""]', '"ab"', "[" * 100_000, "\xff"])
def test_a_broken_list_of_words_is_an_error(tmp_path, text):
    (tmp_path / "vocabulary.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"vocabulary\.json: expected a JSON list of words, got"):
        data.words_of_dataset(DataConfig(dataset=str(tmp_path)))


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


# --- chats


def chat_tokenizer(rows):
    """A word-level tokenizer whose chat template ends a turn with another token than the end of sequence."""
    words = words_of(row[column] for row in rows for column in ("prompt", "completion"))
    tokenizer = data.word_tokenizer([*words, "completion"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|end|>"]})
    tokenizer.chat_template = "{% for message in messages %}" + TURN + "{% endfor %}" + ASKED
    return tokenizer


def test_a_chat_model_ends_its_plans_with_the_marker_of_its_template(tmp_path):
    splits = write_dataset(tmp_path, "atoms")
    tokenizer = chat_tokenizer(splits["test"])
    model, end = tiny_model(tokenizer), make_chat_template(tokenizer).end_id
    assert end == tokenizer.convert_tokens_to_ids("<|end|>") != tokenizer.eos_token_id
    evaluator = tiny_evaluator(tokenizer, tmp_path)
    for token, ended, text in ((end, True, ""), (tokenizer.eos_token_id, False, " ".join(["<eos>"] * 8))):
        completions = evaluator.complete(says(model, token), "test")
        assert {(completion.ended, completion.text) for completion in completions} == {(ended, text)}


@pytest.mark.full
def test_sft_and_train_go_through_a_chat_template(tmp_path):
    splits = write_dataset(tmp_path, "atoms")
    tokenizer = chat_tokenizer([row for rows in splits.values() for row in rows])
    model = tiny_model(tokenizer)
    hf.save_pretrained(tmp_path / "base", model, models.init_params(model, jax.random.key(0)), tokenizer)
    common = {"dataset": str(tmp_path), "eval_splits": ("test",), "eval_validator": "builtin", "eval_batch_size": 8}
    common |= {"batch_size": 8, "response_length": 16, "quiet": True, "max_prompt_length": 600}
    common |= {"output_dir": str(tmp_path / "sft")}
    sft.sft(replace(SFTConfig(), model_path=str(tmp_path / "base"), total_episodes=16, **common))
    policy = hf.load_policy(str(tmp_path / "sft" / "policy"))
    end, eos = policy.tokenizer.convert_tokens_to_ids("<|end|>"), policy.tokenizer.eos_token_id
    assert json.loads((tmp_path / "sft" / "policy" / "generation_config.json").read_text())["eos_token_id"] == [
        end,
        eos,
    ]
    common |= {"output_dir": str(tmp_path / "ppo"), "sft_model_path": str(tmp_path / "sft" / "policy")}
    common |= {"train_split": "rl", "headline_split": "test", "validator": "builtin"}
    config = replace(TrainConfig(), total_episodes=8, num_mini_batches=1, **common)
    setup, _ = train.set_up(Run(command="train", config=config, folder=tmp_path / "ppo"))
    assert (setup.template.end_id, setup.ppo.stop_ids) == (end, (end, eos))
    batch = setup.prompts.batch(0)
    plain = {row["prompt"] for row in splits["rl"]}
    assert {*batch.texts} == plain  # what rewards see
    shown = [policy.tokenizer.decode(ids).split() for ids in batch.columns["prompt_ids"]]
    assert {" ".join(words[:1] + words[-2:]) for words in shown} == {"<|user|> <|end|> <|assistant|>"}


@pytest.mark.full
def test_all_commands_give_chats_with_examples_and_arguments_to_the_model(tmp_path):
    splits = write_dataset(tmp_path, "pddl")
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
    common = {"dataset": str(tmp_path), "eval_splits": ("test",), "eval_validator": "builtin", "eval_batch_size": 8}
    common |= {"response_length": 8, "quiet": True, "max_prompt_length": 2048, "n_shots": 2}
    common |= {"chat_template_kwargs": {"marked": True}}
    tuned = {"model_path": str(tmp_path / "base"), "batch_size": 8, "total_episodes": 8}
    sft.sft(replace(SFTConfig(), output_dir=str(tmp_path / "sft"), **tuned, **common))
    policy = str(tmp_path / "sft" / "policy")
    common |= {"output_dir": str(tmp_path / "ppo"), "batch_size": 8, "num_mini_batches": 1, "total_episodes": 8}
    common |= {"train_split": "rl", "headline_split": "test", "validator": "builtin", "sft_model_path": policy}
    setup, _ = train.set_up(Run(command="train", config=replace(TrainConfig(), **common), folder=tmp_path / "ppo"))
    batch = setup.prompts.batch(0)
    assert {*batch.texts} == {row["prompt"] for row in splits["rl"]}
    assert all(turns[0] == system for turns in batch.columns["messages"])
    for encoded in (batch.columns["prompt_ids"], setup.evaluator._encoded["test"]):
        for ids in encoded:
            text = setup.tokenizer.decode(ids)
            assert text.startswith("<|mark|>") and text.count("<|system|>") == 1 and text.count("<|assistant|>") == 3
            assert text.count("Planning domain :") == 1 and text.count("Problem :") == 3
