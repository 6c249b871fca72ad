"""Every prompt style through tokenizers and the real commands: rows of two domains, a very small model."""

import dataclasses
import json

import jax
import pytest

from jaxppo import data, hf, models, sft, train
from jaxppo.config import SFTConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.prompts import words_of
from jaxppo.run.folder import Run
from tests.data.tokenizers import ASKED, TURN
from tests.evaluate.small_models import MODEL
from tests.planning.dataset_rows import row


def make_rows(style, split, count):
    return [row(split, number, ("ferry", "gripper")[number % 2], prompt_style=style) for number in range(count)]


def write_dataset(folder, style, num_train=4):
    splits = {split: make_rows(style, split, count) for split, count in (("train", num_train), ("rl", 4), ("test", 4))}
    for split, rows in splits.items():
        dataset_files.write_jsonl(rows, folder / f"{split}.jsonl")
    return splits


def test_the_tokenizer_of_the_built_in_domain_is_that_of_the_shipped_model(tmp_path):
    data.word_tokenizer().save_pretrained(tmp_path)
    shipped = hf.find_model("blocksworld-sft")
    assert (tmp_path / "tokenizer.json").read_bytes() == (shipped / "tokenizer.json").read_bytes()


@pytest.mark.full
def test_sft_and_train_give_chats_with_examples_and_arguments_to_the_model(tmp_path):
    splits = write_dataset(tmp_path, "pddl", num_train=6)  # three of a domain: two are examples of the third
    system = {"role": "system", "content": "domain"}
    for split, rows in splits.items():
        turns = [[system, {"role": "user", "content": row["prompt"]}] for row in rows]
        chats = [row | {"prompt": None, "messages": own} for row, own in zip(rows, turns, strict=True)]
        dataset_files.write_jsonl(chats, tmp_path / f"{split}.jsonl")
    words = words_of(row[column] for rows in splits.values() for row in rows for column in ("prompt", "completion"))
    tokenizer = data.word_tokenizer([*words, "completion"])
    # A turn ends with another token than the end of sequence.
    special = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|mark|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = (
        "{% if marked %}<|mark|>{% endif %}{% for message in messages %}" + TURN + "{% endfor %}" + ASKED
    )
    ends_and_pad = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    vocab_size = data.bucket(len(tokenizer))
    model = dataclasses.replace(MODEL, vocab_size=vocab_size, bos_token_id=tokenizer.eos_token_id, **ends_and_pad)
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
    common |= {"train_split": "rl", "validator": "builtin", "num_mini_batches": 1}
    config = replace(TrainConfig(), sft_model_path=tuned, output_dir=str(tmp_path / "ppo"), **common)
    setup, _ = train.set_up(Run(command="train", config=config, folder=tmp_path / "ppo"))
    assert setup.learner.stop_ids == ends  # that of the template first
    batch = setup.prompts.batch(0)
    assert {*batch.prompt_texts} == {row["prompt"] for row in splits["rl"]}  # what rewards see
    assert all(turns[0] == system for turns in batch.columns["messages"])
    for encoded in (batch.columns["prompt_ids"], setup.evaluator._encoded["test"]):
        for ids in encoded:
            text = setup.tokenizer.decode(ids)
            assert text.startswith("<|mark|>") and text.endswith("<|assistant|>")
            assert text.count("<|system|>") == 1 and text.count("<|assistant|>") == 3
            assert text.count("Planning domain :") == 1 and text.count("Problem :") == 3
