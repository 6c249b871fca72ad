"""A run from a folder as people have them: a vocabulary padded beyond the tokenizer, and several ends of a text."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxppo import hf, train
from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from tests import one_layer
from tests.commands import comparable

TOKENS, ROWS = 32, 40
ENDS = [1, 5]
ARGV = ["--preset", "tiny", "--response_length", "16", "--test_sizes", "4:4", "--test_longer_sizes", "5:4"]
ARGV += ["--num_ppo_epochs", "1", "--num_mini_batches", "1", "--total_episodes", "32", "--save_steps", "1", "--quiet"]
ARGV += ["--num_sample_generations", "2", "--kl_estimator", "full", "--missing_eos_penalty", "1.0"]


def pad_vocabulary(folder):
    """Give the shipped model eight more rows, of the largest logits whatever was said before."""
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"vocab_size": ROWS, "eos_token_id": ENDS}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 1], "max_new_tokens": 9}))
    tensors = load_file(folder / "model.safetensors")
    embedding, head = tensors["gpt_neox.embed_in.weight"], tensors["embed_out.weight"]
    # Of each two rows one has a large logit: hidden states are never orthogonal to their difference.
    far = 50 * np.concatenate([head[:4], -head[:4]])
    tensors["gpt_neox.embed_in.weight"] = np.concatenate([embedding, embedding[:8]])
    tensors["embed_out.weight"] = np.concatenate([head, far])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def run(folder, *args):
    train.train(parse_cli(TrainConfig, "train", [*ARGV, "--output_dir", str(folder), *map(str, args)]))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "model"
    one_layer.write(folder)
    pad_vocabulary(folder)
    return folder


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "whole", "--sft_model_path", base)


@pytest.mark.full
def test_a_run_samples_none_of_the_padded_rows_and_leaves_them_alone(base, whole):
    samples = [json.loads(line) for line in (whole / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 32
    unknown = {f"<{token}>" for token in range(TOKENS, ROWS)}
    assert not any(unknown & set(sample["completion"].split()) for sample in samples)
    first = comparable(whole)[0]
    assert abs(first["val/ratio_first"] - 1.0) < 1e-5 and abs(first["objective/kl"]) < 1e-4
    before, after = (load_file(folder / "model.safetensors") for folder in (base, whole / "policy"))
    for name in ("embed_out.weight", "gpt_neox.embed_in.weight"):
        np.testing.assert_array_equal(after[name][TOKENS:], before[name][TOKENS:])
        assert np.any(after[name][:TOKENS] != before[name][:TOKENS])


@pytest.mark.full
def test_a_run_writes_the_ends_as_they_were(base, whole):
    for folder in (base, whole / "policy"):
        assert json.loads((folder / "config.json").read_text())["eos_token_id"] == ENDS
        generation = json.loads((folder / "generation_config.json").read_text())
        assert (generation["eos_token_id"], generation["max_new_tokens"]) == ([5, 1], 9)
    assert hf.load_policy(whole / "policy").config == hf.load_policy(base).config


@pytest.mark.full
def test_a_resumed_run_equals_the_uninterrupted_one(whole, tmp_path):
    folder = tmp_path / "resumed"
    shutil.copytree(whole, folder)
    for name in ("checkpoints/2", "policy", "value"):
        shutil.rmtree(folder / name)
    evals = json.loads((folder / "eval.json").read_text())
    (folder / "eval.json").write_text(json.dumps({name: evals[name] for name in ("headline_split", "before")}))
    train.train(parse_cli(TrainConfig, "train", ["--output_dir", str(folder), "--resume"]))
    assert len(comparable(folder)) == 2 and comparable(folder) == comparable(whole)
    ours, theirs = (load_file(run / "policy" / "model.safetensors") for run in (folder, whole))
    assert {key: x.tobytes() for key, x in ours.items()} == {key: x.tobytes() for key, x in theirs.items()}
