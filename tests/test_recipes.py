"""The presets of the recipes: complete, and those of the hub's models run on folders of the hub's layout."""

import json
import random
from importlib.resources import files
from pathlib import Path

import pytest
import torch
import transformers

from jaxppo import toys, train
from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli, preset_values
from jaxppo.planning import render_prompt
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.run.jsonl import read_metrics
from jaxppo.toys import texts
from jaxppo.toys.__main__ import byte_level_bpe
from tests import ROOT

RECIPES = "blocksworld planning-multi paper-qwen2-7b qwen3-planning tldr-pythia-1b tldr-rloo imdb-gpt2".split()  # noqa: SIM905
RECIPES += ["lora-reward", "api-reward"]
PLACES = ("dataset", "sft_model_path", "model_path", "reward_model_path", "value_model_path")
"""Settings that name a model or a data set."""

HIDDEN, VOCABULARY = 32, 512
ONE_LAYER = {"hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_page_and_a_twin_that_needs_no_network(name):
    assert f"--preset {name}" in (ROOT / "docs" / "recipes" / f"{name}.md").read_text()
    if name == "planning-multi":  # ships its model
        return
    assert f"--preset {name}-offline" in (ROOT / "runs" / "all_recipes.sh").read_text()
    twin = preset_values("train", f"{name}-offline")
    named = [twin[place] for place in PLACES if twin.get(place) is not None]
    assert [value for value in named if value not in (*toys.TOYS, "blocksworld-sft")] == []
    differing = {key for key, value in twin.items() if preset_values("train", name).get(key) != value}
    assert not differing & {"algorithm", "num_generations", "partial"}


def hub_folder(home: Path, repo: str) -> Path:
    """Where the hub's client looks for the files of a repository that it has downloaded."""
    folder = home / "hub" / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123456789abcdef")
    (folder / "snapshots" / "0123456789abcdef").mkdir(parents=True)
    return folder / "snapshots" / "0123456789abcdef"


@pytest.fixture
def carry_out(tmp_path, monkeypatch):
    """The results of a preset, with no hub but what lies in `home`."""

    def run(preset: str, *flags: object) -> dict:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
        argv = ["--preset", preset, "--output_dir", tmp_path / "run", *flags]
        train.train(parse_cli(TrainConfig, "train", list(map(str, argv))))
        return json.loads((tmp_path / "run" / "eval.json").read_text())

    return run


@pytest.mark.full
def test_tldr_pythia_1b_runs_on_folders_of_the_hubs_layout(tmp_path, carry_out):
    splits = {split: texts.summary_rows(split, 8, 0) for split in ("train", "validation")}
    splits["train"].append(splits["train"][0] | {"prompt": "post : " * 600})  # to be left out
    for split, rows in splits.items():
        write_jsonl(rows, tmp_path / "data" / f"{split}.jsonl")
    tokenizer = byte_level_bpe([row["prompt"] for row in splits["train"]], pad_token="[PAD]")
    config = transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY,
        **ONE_LAYER,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=1,
    )
    torch.manual_seed(0)
    for kind, name in (("sft", "GPTNeoXForCausalLM"), ("reward", "GPTNeoXForSequenceClassification")):
        folder = hub_folder(tmp_path / "home", f"cleanrl/EleutherAI_pythia-1b-deduped__{kind}__tldr")
        getattr(transformers, name)(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    run = tmp_path / "run"
    flags = "--batch_size 4 --total_episodes 4 --gradient_accumulation_steps 1 --eval_batch_size 8 --eval_steps None"
    flags += " --metric_for_best_model none --save_steps 1 --dtype float32"
    results = carry_out("tldr-pythia-1b", "--dataset", tmp_path / "data", *flags.split())
    assert results["after"]["validation"]["reward"]["n"] == 8
    (record,) = read_metrics(run / "metrics.jsonl")
    assert record["policy/nonfinite_steps"] == 0 and abs(record["objective/kl"]) < 1e-3
    exported = transformers.GPTNeoXForCausalLM.from_pretrained(run / "policy")
    assert exported.state_dict().keys() == transformers.GPTNeoXForCausalLM(config).state_dict().keys()
    critic = transformers.GPTNeoXForSequenceClassification.from_pretrained(run / "value")
    assert critic.score.weight.shape == (1, HIDDEN)


@pytest.mark.full
def test_imdb_gpt2_runs_on_folders_of_the_hubs_layout(tmp_path, carry_out):
    for split in ("train", "test"):
        rows = texts.review_rows(split, 16, 0)
        # The columns of stanfordnlp/imdb; the last review is too short.
        columns = [{"text": row["prompt"] + " " * 200, "label": row["label"]} for row in rows]
        write_jsonl([*columns, {"text": "too short", "label": 0}], tmp_path / "data" / f"{split}.jsonl")
    tokenizer = byte_level_bpe([row["prompt"] for row in rows], pad_token=None)
    torch.manual_seed(0)
    policy = hub_folder(tmp_path / "home", "lvwerra/gpt2-imdb")
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=1, n_head=4, **ends)
    transformers.GPT2LMHeadModel(config).save_pretrained(policy)
    tokenizer.save_pretrained(policy)
    judge = hub_folder(tmp_path / "home", "lvwerra/distilbert-imdb")
    judging = byte_level_bpe([row["prompt"] for row in rows], pad_token="[PAD]")
    labels = {"id2label": {0: "NEGATIVE", 1: "POSITIVE"}, "label2id": {"NEGATIVE": 0, "POSITIVE": 1}}
    sizes = {"dim": HIDDEN, "hidden_dim": 64, "n_layers": 1, "n_heads": 4, "pad_token_id": judging.pad_token_id}
    config = transformers.DistilBertConfig(vocab_size=len(judging), **sizes, **labels)
    transformers.DistilBertForSequenceClassification(config).save_pretrained(judge)
    judging.save_pretrained(judge)
    run = tmp_path / "run"
    flags = ["--dataset", tmp_path / "data", "--batch_size", "8", "--total_episodes", "8"]
    results = carry_out("imdb-gpt2", *flags)
    assert results["after"]["test"]["reward"]["n"] == 16
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 8
    assert all(2 <= len(tokenizer(sample["prompt"])["input_ids"]) <= 7 for sample in samples)
    (record,) = read_metrics(run / "metrics.jsonl")
    assert 4 <= record["completions/mean_length"] <= 15 and record["policy/nonfinite_steps"] == 0
    assert transformers.GPT2LMHeadModel.from_pretrained(run / "policy").config.n_embd == HIDDEN
    assert (run / "value" / "value_head.safetensors").exists()


CHATS = {
    "paper-qwen2-7b": ("Qwen/Qwen2-7B-Instruct", transformers.Qwen2Config, transformers.Qwen2ForCausalLM, "qwen2_5"),
    "qwen3-planning": ("Qwen/Qwen3-0.6B", transformers.Qwen3Config, transformers.Qwen3ForCausalLM, "qwen3"),
}
"""Preset -> model of the hub, its classes, and the name of its chat template in TRL."""


@pytest.mark.full
@pytest.mark.parametrize("preset", CHATS)
def test_planning_recipes_of_chat_models_run_on_folders_of_the_hubs_layout(preset, tmp_path, carry_out):
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
    special = {"eos_token_id": ends[0], "bos_token_id": ends[1], "num_key_value_heads": 2, "head_dim": 8}
    start = model(config(vocab_size=len(tokenizer) + 24, **ONE_LAYER, **special))  # padded, as theirs
    start.generation_config.eos_token_id = ends
    start.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    run = tmp_path / "run"
    flags = f"--dataset blocksworld --train_split rl --prompt_style {style} --sizes train=3:20 rl=4:8 "
    flags += "--eval_splits test --sizes test=4:4 --batch_size 8 --total_episodes 8 "
    flags += "--num_mini_batches 1 --gradient_accumulation_steps 2 --local_rollout_forward_batch_size 4 "
    flags += "--response_length 8 --max_prompt_length 4096"
    results = carry_out(preset, *flags.split())
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
