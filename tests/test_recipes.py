"""The presets of the recipes: complete, and those of the hub's models run on folders of the hub's layout."""

import json
import random
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GPTNeoXForSequenceClassification,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from jaxppo import toys
from jaxppo.config.sources import preset_values
from jaxppo.planning import render_prompt
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.run.jsonl import read_metrics
from jaxppo.toys import texts
from jaxppo.toys.__main__ import byte_level_bpe
from tests import ROOT
from tests.commands import environment

PRESETS = ROOT / "jaxppo" / "config" / "presets"
RECIPES = "blocksworld planning-multi paper-qwen2-7b qwen3-planning tldr-pythia-1b tldr-rloo imdb-gpt2".split()  # noqa: SIM905
RECIPES += ["lora-reward", "api-reward"]
PLACES = ("dataset", "sft_model_path", "model_path", "reward_model_path", "value_model_path", "sentiment_model_path")
"""Settings that name a model or a data set."""

SMALL = {"hidden": 32, "heads": 4, "inner": 64, "vocabulary": 512}
SIZES = [
    pytest.param(True, id="small", marks=pytest.mark.full),
    pytest.param(False, id="real", marks=pytest.mark.slow),  # everything but the number of layers
]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_page(name):
    assert f"--preset {name}" in (ROOT / "docs" / "recipes" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "planning-multi"])
def test_every_recipe_that_downloads_has_a_twin_that_needs_no_network(name):
    assert f"--preset {name}-offline" in (ROOT / "runs" / "all_recipes.sh").read_text()
    twin = preset_values("train", f"{name}-offline")
    named = [twin[place] for place in PLACES if twin.get(place) is not None]
    assert [value for value in named if value not in (*toys.TOYS, "blocksworld-sft")] == []
    differing = {key for key, value in twin.items() if preset_values("train", name).get(key) != value}
    assert "algorithm" not in differing and "num_generations" not in differing and "partial" not in differing


def hub_folder(home: Path, repo: str) -> Path:
    """Where the hub's client looks for the files of a repository that it has downloaded."""
    folder = home / "hub" / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123456789abcdef")
    (folder / "snapshots" / "0123456789abcdef").mkdir(parents=True)
    return folder / "snapshots" / "0123456789abcdef"


def train(preset: str, home: Path, folder: Path, *flags: str) -> dict:
    """The results of the command, with no hub but what lies in `home`."""
    hub = environment() | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    hub.pop("HF_HUB_CACHE", None)
    command = [sys.executable, "-m", "jaxppo.train", "--preset", preset, "--output_dir", str(folder), *flags]
    done = subprocess.run(command, env=hub, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "eval.json").read_text())


@pytest.mark.parametrize("small", SIZES)
def test_tldr_pythia_1b_runs_on_folders_of_the_hubs_layout(small, tmp_path):
    shape = {"hidden": 2048, "heads": 8, "inner": 8192, "vocabulary": 50304} if not small else SMALL
    splits = {split: texts.summary_rows(split, 8, 0) for split in ("train", "validation")}
    splits["train"].append(splits["train"][0] | {"prompt": "post : " * 600})  # to be left out
    for split, rows in splits.items():
        write_jsonl(rows, tmp_path / "data" / f"{split}.jsonl")
    tokenizer = byte_level_bpe([row["prompt"] for row in splits["train"]], pad_token="[PAD]")
    config = GPTNeoXConfig(
        vocab_size=shape["vocabulary"],
        hidden_size=shape["hidden"],
        num_hidden_layers=1,
        num_attention_heads=shape["heads"],
        intermediate_size=shape["inner"],
        rotary_pct=0.25,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=1,
    )
    torch.manual_seed(0)
    for kind, model in (("sft", GPTNeoXForCausalLM), ("reward", GPTNeoXForSequenceClassification)):
        folder = hub_folder(tmp_path / "home", f"cleanrl/EleutherAI_pythia-1b-deduped__{kind}__tldr")
        model(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    run = tmp_path / "run"
    flags = "--batch_size 2 --total_episodes 2 --gradient_accumulation_steps 1 --eval_batch_size 8 --eval_steps None"
    flags += " --metric_for_best_model none --save_steps 1 --dtype float32"
    results = train("tldr-pythia-1b", tmp_path / "home", run, "--dataset", str(tmp_path / "data"), *flags.split())
    assert results["after"]["validation"]["reward"]["n"] == 8
    (record,) = read_metrics(run / "metrics.jsonl")
    assert record["policy/nonfinite_steps"] == 0 and abs(record["objective/kl"]) < 1e-3
    exported = GPTNeoXForCausalLM.from_pretrained(run / "policy")
    assert exported.config.hidden_size == shape["hidden"]
    start = GPTNeoXForCausalLM(config).state_dict().keys()
    assert exported.state_dict().keys() == start
    critic = GPTNeoXForSequenceClassification.from_pretrained(run / "value")
    assert critic.score.weight.shape == (1, shape["hidden"])


@pytest.mark.parametrize("small", SIZES)
def test_imdb_gpt2_runs_on_folders_of_the_hubs_layout(small, tmp_path):
    shape = {"hidden": 768, "heads": 12, "inner": 3072, "vocabulary": 50257} if not small else SMALL
    for split in ("train", "test"):
        rows = texts.review_rows(split, 16, 0)
        # The columns of stanfordnlp/imdb; the last review is too short.
        columns = [{"text": row["prompt"] + " " * 200, "label": row["label"]} for row in rows]
        write_jsonl([*columns, {"text": "too short", "label": 0}], tmp_path / "data" / f"{split}.jsonl")
    tokenizer = byte_level_bpe([row["prompt"] for row in rows], pad_token=None)
    torch.manual_seed(0)
    policy = hub_folder(tmp_path / "home", "lvwerra/gpt2-imdb")
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = GPT2Config(
        vocab_size=shape["vocabulary"], n_embd=shape["hidden"], n_layer=1, n_head=shape["heads"], **ends
    )
    GPT2LMHeadModel(config).save_pretrained(policy)
    tokenizer.save_pretrained(policy)
    judge = hub_folder(tmp_path / "home", "lvwerra/distilbert-imdb")
    judging = byte_level_bpe([row["prompt"] for row in rows], pad_token="[PAD]")
    DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=30522 if not small else len(judging),
            dim=shape["hidden"],
            hidden_dim=shape["inner"],
            n_layers=1,
            n_heads=shape["heads"],
            pad_token_id=judging.pad_token_id,
            id2label={0: "NEGATIVE", 1: "POSITIVE"},
            label2id={"NEGATIVE": 0, "POSITIVE": 1},
        )
    ).save_pretrained(judge)
    judging.save_pretrained(judge)
    run = tmp_path / "run"
    flags = ["--dataset", str(tmp_path / "data"), "--batch_size", "8", "--total_episodes", "8"]
    results = train("imdb-gpt2", tmp_path / "home", run, *flags)
    assert results["after"]["test"]["reward"]["n"] == 16
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 8
    assert all(2 <= len(tokenizer(sample["prompt"])["input_ids"]) <= 7 for sample in samples)
    (record,) = read_metrics(run / "metrics.jsonl")
    assert 4 <= record["completions/mean_length"] <= 15 and record["policy/nonfinite_steps"] == 0
    assert GPT2LMHeadModel.from_pretrained(run / "policy").config.n_embd == shape["hidden"]
    assert (run / "value" / "value_head.safetensors").exists()


CHATS = {
    "paper-qwen2-7b": ("Qwen/Qwen2-7B-Instruct", Qwen2Config, Qwen2ForCausalLM, "qwen2_5"),
    "qwen3-planning": ("Qwen/Qwen3-0.6B", Qwen3Config, Qwen3ForCausalLM, "qwen3"),
}
"""Preset -> model of the hub, its classes, and the name of its chat template in TRL."""


@pytest.mark.full
@pytest.mark.parametrize("preset", CHATS)
def test_planning_recipes_of_chat_models_run_on_folders_of_the_hubs_layout(preset, tmp_path):
    repo, config, model, template = CHATS[preset]
    style = preset_values("train", preset).get("prompt_style", "nl")
    problems = [
        render_prompt(BLOCKSWORLD.pddl, BLOCKSWORLD.generate_problem(4, random.Random(i), "p"), style)
        for i in range(20)
    ]
    tokenizer = byte_level_bpe(problems, pad_token=None)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = (files("trl") / "chat_templates" / f"{template}.jinja").read_text()
    folder = hub_folder(tmp_path / "home", repo)
    torch.manual_seed(0)
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|endoftext|>")]
    start = model(
        config(
            vocab_size=len(tokenizer) + 24,  # padded, as theirs
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=48,
            eos_token_id=ends[0],
            bos_token_id=ends[1],
        )
    )
    start.generation_config.eos_token_id = ends
    start.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    run = tmp_path / "run"
    flags = f"--dataset blocksworld --train_split rl --prompt_style {style} --train_sizes 3:20 --rl_sizes 4:8 "
    flags += "--eval_splits test --headline_split test --test_sizes 4:4 --batch_size 4 --total_episodes 4 "
    flags += "--num_mini_batches 1 --gradient_accumulation_steps 2 --local_rollout_forward_batch_size 2 "
    flags += "--response_length 8 --max_prompt_length 4096"
    results = train(preset, tmp_path / "home", run, *flags.split())
    assert results["after"]["test"]["validity"]["n"] == 4
    (record,) = read_metrics(run / "metrics.jsonl")
    assert record["policy/nonfinite_steps"] == 0 and abs(record["objective/kl"]) < 1e-2
    exported = model.from_pretrained(run / "policy")
    assert exported.state_dict().keys() == start.state_dict().keys()
    assert sorted(exported.generation_config.eos_token_id) == sorted(ends)
    targets = json.loads((run / "adapters" / "policy" / "adapter_config.json").read_text())["target_modules"]
    assert {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"} == {
        name.rpartition(".")[2] for name in targets
    }
