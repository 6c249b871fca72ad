"""Model cards: read back by huggingface_hub, by a Markdown parser, and by running the code that they show."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from safetensors.numpy import save_file

import jaxppo
from jaxppo.config import TrainConfig
from jaxppo.config.sources import CALL_ONLY, flatten
from jaxppo.hf.card import TRIED_WITH, license_of, model_card
from jaxppo.hf.export import models_meta

ASSET = f"{jaxppo.__path__[0]}/hf/assets/blocksworld-sft"
WORDS = [word for word in json.loads(Path(ASSET, "tokenizer.json").read_text())["model"]["vocab"] if word.isalpha()][:5]
PLACES = "base_model base_license dataset dataset_license algorithm command".split()  # noqa: SIM905
KINDS = ["policy", "value", "reward", "adapter", "value_adapter", "reward_adapter", "value_head"]


SECRET = "hf_" + "aB3dE6gH9jK2mN5pQ8sT"


def rate(successes, n):
    return {"rate": successes / n, "low": successes / n - 0.05, "high": successes / n + 0.05, "n": n}


def result(successes, n, reward):
    rates = {"validity": rate(successes, n), "executability": rate(successes + 10, n)}
    return rates | {"mean_reward": reward, "lccs": 0.5, "validator": "val"}


EVALS = {
    "headline_split": "test_longer",
    "before": {"test": result(20, 100, 0.25), "test_longer": result(40, 400, 0.5)},
    "after": {"test": result(30, 100, 0.375), "test_longer": result(80, 400, 0.625)},
}
GIVEN = {
    "kind": "policy",
    "base_model": "EleutherAI/pythia-70m",
    "base_license": "apache-2.0",
    "dataset": "blocksworld",
    "dataset_license": None,
    "texts": "texts as they are, ended by <eos>",
    "algorithm": "ppo",
    "config": flatten(TrainConfig()),
    "evals": EVALS,
    "command": "python -m jaxppo.train --preset tiny",
}


def card_of(**changes):
    given = GIVEN | changes
    info = {"base": given["base_model"], "license": given["base_license"]}
    models = {name: given[name] for name in ("dataset", "dataset_license", "texts", "command")} | {"policy": info}
    meta = {"step": 60, "config": given["config"] | {"algorithm": given["algorithm"]}, "models": models}
    return model_card(given["kind"], info, meta, given["evals"])


def metadata(text):
    """Metadata as huggingface_hub reads it."""
    card = ModelCard(text)
    assert card.data.to_dict() == yaml.safe_load(text.split("---\n")[1])
    return card.data.to_dict()


def tokens_of(text):
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(ModelCard(text).text)


def shown(token):
    """What a reader sees of an inline token."""
    return "".join(child.content for child in token.children or ())


def tables(text):
    """Rows of cells of every table, as shown."""
    found = []
    for before, token in zip([None, *tokens_of(text)], tokens_of(text), strict=False):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and before is not None and before.type in ("th_open", "td_open"):
            found[-1][-1].append(shown(token))
    return found


def blocks(text):
    return {token.info: token.content for token in tokens_of(text) if token.type == "fence"}


@pytest.mark.parametrize("kind", KINDS)
def test_model_card_metadata_is_what_the_hub_expects(kind):
    card = card_of(kind=kind, dataset="user/plans")
    found = metadata(card)
    library = "peft" if "adapter" in kind else "jaxppo" if kind == "value_head" else "transformers"
    expected = {
        "base_model": "EleutherAI/pythia-70m",
        "datasets": "user/plans",
        "library_name": library,
        "license": "apache-2.0",
        "tags": ["jaxppo", "ppo", kind],
    }
    assert ("model-index" in found) == (not kind.startswith("value"))  # the figures are theirs
    found.pop("model-index", None)
    assert found == expected | ({"pipeline_tag": "text-generation"} if kind in ("policy", "adapter") else {})
    for version in TRIED_WITH:
        assert (f" {version}" in card) == (kind in ("policy", "value", "reward"))  # the versions are of whole models
        assert f" {version}" in Path(ASSET, "README.md").read_text()


def test_model_card_metadata_has_the_figures_after_training_and_names_what_was_evaluated():
    card = ModelCard(card_of())
    assert card.data.model_name == "policy after update 60"
    found = [(entry.dataset_split, entry.metric_type, entry.metric_value) for entry in card.data.eval_results]
    longer = [("validity", 0.2), ("executability", 0.225), ("mean_reward", 0.625)]
    plain = [("validity", 0.3), ("executability", 0.4), ("mean_reward", 0.375)]
    assert found == [*(("test_longer", *each) for each in longer), *(("test", *each) for each in plain)]
    kinds = {(entry.task_type, entry.dataset_type, entry.dataset_name) for entry in card.data.eval_results}
    assert kinds == {("text-generation", "blocksworld", "blocksworld")}
    after = {"after": {"test": {"accuracy": rate(3, 4), "loss": 0.5, "mean_reward": float("nan")}}}
    entry, loss = ModelCard(card_of(kind="reward", evals=after, dataset="user/pairs")).data.eval_results
    assert (loss.metric_type, loss.metric_value) == ("loss", 0.5)
    assert (entry.task_type, entry.dataset_type, entry.dataset_name) == ("text-classification", "user/pairs", "pairs")
    assert (entry.metric_type, entry.metric_value) == ("accuracy", 0.75)
    (entry,) = ModelCard(card_of(evals={"test": {"validity": rate(1, 3)}}, dataset="/home/me/plans")).data.eval_results
    assert (entry.dataset_type, entry.metric_value) == ("plans", 0.333333)
    assert "model-index" not in metadata(card_of(evals={"before": {"test": {"validity": rate(1, 3)}}}))


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("Apache 2.0", {"license": "apache-2.0"}),
        ("unknown", {"license": "unknown"}),
        (None, {"license": "unknown"}),
        ("Our Own Licence (v2)", {"license": "other", "license_name": "our-own-licence-v2"}),
        ("mit, ours", {"license": "other", "license_name": "mit-ours"}),
    ],
)
def test_model_card_names_a_licence_that_the_hub_accepts(stated, expected):
    found = metadata(card_of(base_license=stated))
    assert {name: value for name, value in found.items() if name.startswith("license")} == expected


def test_model_card_calls_hub_id_only_what_can_be_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    names = {"user/name": "user/name", "user/name@v1.0": "user/name", "gpt2": "gpt2"}
    names |= dict.fromkeys(
        ["runs/first", "/a/b", "a/b/c", "../a", "user/na me", "a--b/c", "x\n/y", "blocksworld-sft", "toy-reviews-gpt2"]
    )
    assert {name: metadata(card_of(base_model=name)).get("base_model") for name in names} == names
    names |= {"gpt2": None, "blocksworld": None}  # data sets without a user are built in
    assert {name: metadata(card_of(dataset=name)).get("datasets") for name in names} == names


def test_a_relative_path_of_data_is_no_hub_id_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "mine").mkdir(parents=True)
    (tmp_path / "blocksworld").mkdir()
    policy = {"base": None, "generation_config": {}}
    names = {
        name: models_meta(policy, None, None, (), name, "")["dataset"] for name in ("data/mine", "a/b", "blocksworld")
    }
    assert names == {"data/mine": "./data/mine", "a/b": "a/b", "blocksworld": "blocksworld"}
    monkeypatch.chdir("/")
    assert "datasets" not in metadata(card_of(dataset=names["data/mine"]))


def test_model_card_shows_results_before_and_after_the_headline_split_first():
    head, *rows = tables(card_of())[0]
    assert head == ["split", "measure", "before", "after"]
    assert rows == [
        ["test_longer", "valid plans", "10.0% [5.0%, 15.0%], n = 400", "20.0% [15.0%, 25.0%], n = 400"],
        ["test_longer", "executable plans", "12.5% [7.5%, 17.5%], n = 400", "22.5% [17.5%, 27.5%], n = 400"],
        ["test_longer", "mean reward", "0.5", "0.625"],
        ["test", "valid plans", "20.0% [15.0%, 25.0%], n = 100", "30.0% [25.0%, 35.0%], n = 100"],
        ["test", "executable plans", "30.0% [25.0%, 35.0%], n = 100", "40.0% [35.0%, 45.0%], n = 100"],
        ["test", "mean reward", "0.25", "0.375"],
    ]
    assert "`test_longer`" in card_of() and "`val`" in card_of()  # what the run is about, and who judged


def test_model_card_shows_what_evaluations_have():
    def results_of(evals):
        return [row[1:] for row in tables(card_of(evals=evals))[0][1:]]

    assert results_of({"headline_split": "test", "before": {"test": {"validity": rate(20, 100)}}}) == [
        ["valid plans", "20.0% [15.0%, 25.0%], n = 100", "-"]
    ]
    alone = {"test": {"validity": {"rate": 0.5, "low": None, "high": None, "n": 1}, "mean_reward": 0.25}}
    assert results_of(alone) == [["valid plans", "-", "50.0%"], ["mean reward", "-", "0.25"]]
    for empty in ({}, {"headline_split": "test"}, {"before": {}, "after": None}):
        assert tables(card_of(evals=empty)) == []


def test_model_card_holds_the_command_and_the_settings():
    text = card_of()
    assert blocks(text)["bash"] == "python -m jaxppo.train --preset tiny\n"
    saved = yaml.safe_load(blocks(text)["yaml"])
    assert saved == {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in flatten(TrainConfig()).items()
        if name not in CALL_ONLY
    }
    folded = [token.content for token in tokens_of(text) if token.type == "html_block"]
    assert folded == ["<details>\n<summary>config.yaml</summary>\n", "</details>\n"]


def test_model_card_holds_no_secret():
    text = f"https://me:{SECRET}@host/?token={SECRET}"
    config = {"name": text, "a": [text], "api_key": "hunter2hunter2"}
    card = card_of(kind="adapter", config=config, **dict.fromkeys(PLACES, text))
    unfolded = (card, re.sub(r"\\\n\s*", "", card))
    assert not any(secret in read for read in unfolded for secret in (SECRET, "hunter2"))


def python_of(text, folder):
    """The code of a card with a folder and words of this model's vocabulary."""
    code = blocks(text)["python"].replace("path/to/this/folder", str(folder))
    return code.replace('"some text"', repr(" ".join(WORDS)))


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """name of an auto class -> (such a model of the shipped one's size, its folder with the tokenizer)."""
    import transformers

    def make(name):
        config = transformers.AutoConfig.from_pretrained(ASSET, num_labels=1)
        model, folder = getattr(transformers, name).from_config(config), tmp_path_factory.mktemp("model")
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(ASSET).save_pretrained(folder)
        return model, folder

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_code_of_a_card_computes_values_or_a_score(tmp_path, small_model, kind):
    import torch

    auto = "AutoModelForCausalLM" if kind in ("policy", "adapter") else "AutoModelForSequenceClassification"
    model, folder = small_model(auto)
    code = python_of(card_of(kind=kind, base_model=str(folder)), tmp_path if "adapter" in kind else folder)
    if "adapter" in kind:
        peft = pytest.importorskip("peft")
        task = "CAUSAL_LM" if kind == "adapter" else "SEQ_CLS"
        lora = peft.LoraConfig(r=2, target_modules=["query_key_value"], task_type=task)
        peft.get_peft_model(model, lora).save_pretrained(tmp_path)
    if kind == "value_head":
        head = {"v_head.summary.weight": np.ones((1, 96), np.float32), "v_head.summary.bias": np.ones(1, np.float32)}
        save_file(head, tmp_path / "value_head.safetensors")
        code = python_of(card_of(kind=kind), tmp_path).replace("path/to/policy", ASSET)
    names = {}
    exec(code, names)
    assert type(names["model"]).__name__.startswith("PeftModel" if "adapter" in kind else "GPTNeoXFor")
    assert len(names["tokenizer"]) > 10 if "tokenizer" in names else kind not in ("policy", "adapter")
    if kind == "value_head":
        torch.testing.assert_close(names["values"], names["hidden"].sum(-1, keepdim=True) + 1.0)
    elif kind.startswith("value"):
        assert names["values"].shape == (1, names["inputs"]["input_ids"].shape[1], 1)
        torch.testing.assert_close(names["values"][0, -1, 0], names["model"](**names["inputs"]).logits[0, 0])
    elif kind.startswith("reward"):
        assert names["score"].shape == ()


@pytest.mark.parametrize(
    ("base", "argument"),
    [
        ("user/name", '"user/name"'),
        ("user/name@v1", '"user/name", revision="v1"'),
        ("/models/a b", '"/models/a b"'),
        ("blocksworld-sft", '"path/to/blocksworld-sft"'),
        (None, '"path/to/its/base/model"'),
    ],
)
def test_code_of_an_adapter_card_names_the_base_as_one_literal(base, argument):
    code = blocks(card_of(kind="adapter", base_model=base))["python"]
    assert f"base = AutoModelForCausalLM.from_pretrained({argument})\n" in code
    compile(code, "card", "exec")


LICENSES = {
    "---\nlicense: apache-2.0\n---\n# x": "apache-2.0",
    "---\r\nlicense: mit\r\n---\r\n# x": "mit",
    "---\ntags: [a]\nlicense:\n- mit\n- cc-by-4.0\n---\n": "mit, cc-by-4.0",
    "---\nlicense: other\nlicense_name: ours\n---\n": "ours",
    "---\nlicense: other\n---\n": "other",
    "---\ntags: [a]\n---\nlicense: mit": None,
    "---\nlicense: [\n---\n": None,
    "no metadata": None,
}


def test_license_of_reads_the_metadata(tmp_path):
    for text, expected in LICENSES.items():
        (tmp_path / "README.md").write_text(text, encoding="utf-8", newline="")
        assert license_of(tmp_path) == expected, text
    assert license_of(tmp_path / "missing") is None
    (tmp_path / "folder" / "README.md").mkdir(parents=True)
    assert license_of(tmp_path / "folder") is None
