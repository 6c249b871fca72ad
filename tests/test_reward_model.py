"""Training a reward model: the loss by hand and against torch, a rule learned from pairs, and what a run leaves."""

import dataclasses
import json
import math
import os
import random
import signal
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import hf, models
from jaxppo.config import ExportConfig, RewardModelConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.data.preferences import PreferenceData, encode_pairs, load_rows
from jaxppo.errors import ConfigError, DataError, ModelError
from jaxppo.export import export
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.reward_functions.reward_model import load_reward_adapter, load_reward_model
from jaxppo.reward_model import Training, preference_loss, start_model, train_reward_model
from jaxppo.rl import update
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.preemption import Preempted
from tests.data.test_preferences import word_tokenizer, write_rows
from tests.test_models import CONFIGS, torch, transformers
from tests.test_train import comparable, run_command, snapshot

# ----------------------------------------------------------------------------------------------------------------- loss


def loss_of(chosen, rejected, margins=None, coefficient=None):
    """Loss and metrics of score pairs that weigh the same."""
    margins = [0.0] * len(chosen) if margins is None else margins
    weights = jnp.full(len(chosen), 1 / len(chosen))
    loss, stats = preference_loss(jnp.array(chosen), jnp.array(rejected), jnp.array(margins), weights, coefficient)
    return float(loss), {name: float(value) for name, value in stats.items()}


def test_preference_loss_by_hand():
    loss, stats = loss_of([2.0, -1.0], [1.0, 1.0])
    expected = 0.5 * (math.log(1 + math.exp(-1.0)) + math.log(1 + math.exp(2.0)))
    assert loss == pytest.approx(expected, rel=1e-6)
    assert stats == pytest.approx(
        {
            "loss": expected,
            "accuracy": 0.5,
            "margin": -0.5,
            "min_reward": -1.0,
            "mean_reward": 0.75,
            "max_reward": 2.0,
        },
        rel=1e-6,
    )


def test_preference_loss_margin_is_subtracted_from_the_difference():
    assert loss_of([2.0], [1.0], [3.0])[0] == pytest.approx(math.log(1 + math.exp(2.0)), rel=1e-6)
    assert loss_of([2.0], [1.0], [3.0])[1]["margin"] == 1.0  # of the scores


def test_preference_loss_centering_by_hand():
    plain, centred = loss_of([2.0, 0.5], [1.0, -0.5])[0], loss_of([2.0, 0.5], [1.0, -0.5], coefficient=0.1)[0]
    assert centred - plain == pytest.approx(0.1 * (9.0 + 0.0) / 2, rel=1e-5)


def test_preference_loss_counts_ties_as_wrong():
    assert loss_of([1.0, 1.0, 0.0, 2.0], [1.0, 0.0, 1.0, 2.0])[1]["accuracy"] == 0.25


def test_preference_loss_is_that_of_trl_and_finite_far_out():
    functional = torch.nn.functional
    generator = np.random.default_rng(0)
    chosen, rejected, margins = (generator.normal(size=16).astype(np.float32) * 3 for _ in range(3))
    chosen[0], rejected[0] = -200.0, 200.0
    c, r, m = (torch.tensor(x, requires_grad=True) for x in (chosen, rejected, margins))
    # TRL 1.12 RewardTrainer.compute_loss.
    expected = -functional.logsigmoid(c - r - m).mean() + 0.3 * torch.mean((c + r) ** 2)
    expected.backward()
    assert loss_of(chosen, rejected, margins, 0.3)[0] == pytest.approx(float(expected.detach()), rel=1e-5)
    weights = jnp.full(16, 1 / 16)
    grads = jax.grad(lambda x, y: preference_loss(x, y, jnp.array(margins), weights, 0.3)[0], (0, 1))(chosen, rejected)
    np.testing.assert_allclose(grads[0], c.grad, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(grads[1], r.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("mode", "parts"), [("shard_map", 1), ("shard_map", 2), ("pmap", 2)])
def test_preference_loss_adds_up_over_micro_batches_and_devices(mode, parts):
    generator = np.random.default_rng(1)
    # Far from 0, on either side of it: neither the least nor the largest score may come from anything but a pair.
    chosen, rejected, margins = (generator.normal(size=8).astype(np.float32) + by for by in (5.0, 4.0, 0.0))
    weights = np.full(8, 1 / 8, np.float32)

    def loss(params, pairs, weights):
        return preference_loss(params["sign"] * pairs[0], params["sign"] * pairs[1], pairs[2], weights, 0.2)

    parallel = DataParallel(mode)
    assert parallel.num_devices == 4
    program = parallel.map(partial(update.gradients, loss, axis_name=parallel.axes), (None, 1), None)
    batch = (chosen, rejected, margins), weights
    for sign in (1.0, -1.0):
        params = {"sign": jnp.float32(sign)}
        cut = jax.tree.map(lambda x: x.reshape(parts, -1), batch)
        found = program(parallel.put(params), parallel.put(cut, 1))
        (_, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, *jax.tree.map(jnp.array, batch))
        assert {name: float(x) for name, x in found.stats.items()} == pytest.approx(
            {name: float(x) for name, x in stats.items()}, rel=1e-5
        )
        np.testing.assert_allclose(found.grads["sign"], grads["sign"], rtol=1e-5)


# ------------------------------------------------------------------------------------------------------------- learning

GOOD, BAD = ["kind", "clear", "true"], ["rude", "vague", "false"]
OTHERS = [f"w{i}" for i in range(24)]
WORDS = ["<pad>", "<eos>", *GOOD, *BAD, *OTHERS]


def worth(words):
    """The hidden rule: good words count 1, bad ones -1."""
    return sum(word in GOOD for word in words) - sum(word in BAD for word in words)


def random_pair(rng):
    """Two texts, of which the one worth more by at least 2 is preferred, after a prompt that says nothing."""
    while True:
        first, second = ([rng.choice(rng.choice((GOOD, BAD, OTHERS, OTHERS))) for _ in range(9)] for _ in range(2))
        if worth(first) >= worth(second) + 2:
            prompt = rng.choices(OTHERS, k=rng.randint(1, 6))
            texts = {"prompt": prompt, "chosen": first[: rng.randint(7, 9)], "rejected": second}
            return {name: " ".join(words) for name, words in texts.items()}


def write_preferences(folder, num_train, num_test, seed=0):
    rng = random.Random(seed)
    rows = {"train": [random_pair(rng) for _ in range(num_train)], "test": [random_pair(rng) for _ in range(num_test)]}
    return write_rows(folder, **rows)


@pytest.fixture(scope="module")
def preferences(tmp_path_factory):
    """A folder with 2,000 pairs to train on and 500 to test on."""
    return write_preferences(tmp_path_factory.mktemp("preferences"), 2000, 500)


@pytest.fixture(scope="module")
def small_preferences(tmp_path_factory):
    return write_preferences(tmp_path_factory.mktemp("small"), 60, 20)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    word_tokenizer(WORDS).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def language_models(tmp_path_factory):
    """Family -> folder of a random language model with the vocabulary of the preferences."""
    folders = {}
    for family, config in CONFIGS.items():
        folders[family] = tmp_path_factory.mktemp("lm") / family
        params = models.init_params(config, jax.random.key(3))
        hf.save_pretrained(folders[family], config, params, word_tokenizer(WORDS))
    return folders


def configure(*args):
    return parse_cli(RewardModelConfig, "reward_model", ["--quiet", *map(str, args)])


FRESH = ["--hidden_size", 32, "--num_hidden_layers", 1, "--num_attention_heads", 2]
FAST = ["--learning_rate", "3e-3", "--batch_size", 64, "--total_episodes", 3200]


def transformers_scores(folder, rows, pad_id=0):
    """Scores by transformers of rows of ids, in right-padded batches, as a user would compute them."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with torch.no_grad():
        return model(ids, attention_mask=mask).logits[:, 0].numpy()


def held_out_rows(preferences, count=40):
    pairs = encode_pairs(word_tokenizer(WORDS), load_rows(preferences, "test")[:count], 100, "test").kept
    return [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]


def as_reward(learned, rows):
    """The scores that PPO gets, of rows without prompts."""
    texts = [""] * len(rows)
    return np.array(learned(texts, texts, rows, prompt_ids=[[]] * len(rows)))


def assert_learned_and_exported(folder, preferences):
    """Nine of ten held-out pairs are ordered right, also by transformers, and PPO's scores are those less the bias."""
    results = json.loads((folder / "eval.json").read_text())
    accuracy = results["after"]["test"]["accuracy"]
    assert accuracy["n"] == 500 and accuracy["low"] <= accuracy["rate"] <= accuracy["high"]
    assert accuracy["rate"] >= 0.9 > 0.8 > results["before"]["test"]["accuracy"]["rate"]
    rows = held_out_rows(preferences)
    theirs = transformers_scores(folder / "reward_model", rows)
    assert np.mean(theirs[:40] > theirs[40:]) >= 0.85
    learned = load_reward_model(str(folder / "reward_model"), word_tokenizer(WORDS), DataParallel())
    assert learned.bias == results["reward_bias"] != 0.0
    np.testing.assert_allclose(as_reward(learned, rows) + learned.bias, theirs, atol=1e-4, rtol=0)
    demonstrations = encode_pairs(word_tokenizer(WORDS), load_rows(preferences, "train"), 100, "train").kept
    assert abs(as_reward(learned, [pair.chosen for pair in demonstrations]).mean()) < 1e-3


@pytest.fixture(scope="module")
def finished(tmp_path_factory, preferences, tokenizer_folder):
    """A run of the command that trains a fresh GPT-NeoX."""
    folder = tmp_path_factory.mktemp("runs") / "fresh"
    args = ["--dataset", preferences, "--tokenizer_path", tokenizer_folder, "--output_dir", folder]
    code, out, err = run_command("reward_model", *args, *FRESH, *FAST, "--save_steps", "20", "--eval_steps", "25")
    assert code == 0, err
    return folder, out


@pytest.mark.full
def test_a_fresh_model_learns_the_rule_and_is_exported(finished, preferences):
    folder, out = finished
    assert_learned_and_exported(folder, preferences)
    assert "test: " in out and "pairs ordered right" in out
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"40", "50"}
    assert {path.name for path in folder.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "eval.json",
        "metrics.jsonl",
        "report.html",
        "reward_model",
        "tensorboard",
        "tokenizer",
    }
    card = (folder / "reward_model" / "README.md").read_text()
    assert "A reward model, which gives each text one score, trained from scratch on" in card


def test_metrics_have_the_names_of_trl(finished):
    records = read_metrics(finished[0] / "metrics.jsonl")
    names = {"loss", "accuracy", "margin", "min_reward", "mean_reward", "max_reward"}
    assert [record["step"] for record in records] == list(range(1, 51))
    assert all(names <= set(record) for record in records)
    evaluated = [record["step"] for record in records if "eval_accuracy" in record]
    assert evaluated == [25]
    assert {f"eval_{name}" for name in names} | {"eval/test/accuracy"} <= set(records[24])
    assert records[24]["eval/test/accuracy"] == records[24]["eval_accuracy"] > 0.7
    assert records[-1]["accuracy"] > 0.8 and records[-1]["loss"] < 0.5 * records[0]["loss"]
    assert all(r["min_reward"] < r["mean_reward"] < r["max_reward"] for r in records)


@pytest.mark.full
def test_gpt2_learns_the_rule_from_the_trunk_of_a_language_model(language_models, preferences, tmp_path):
    args = ["--dataset", preferences, "--model_path", language_models["gpt2"], "--output_dir", tmp_path / "run"]
    folder = train_reward_model(configure(*args, *FAST, "--center_rewards_coefficient", "0.01"))
    assert_learned_and_exported(folder, preferences)


@pytest.mark.full
def test_lora_trains_adapter_and_head_alone(language_models, preferences, tmp_path):
    peft = pytest.importorskip("peft")
    base_folder = language_models["gpt_neox"]
    args = ["--dataset", preferences, "--model_path", base_folder, "--output_dir", tmp_path / "run", "--use_peft"]
    folder = train_reward_model(configure(*args, *FAST, "--lora_r", 8, "--learning_rate", "1e-2"))
    assert_learned_and_exported(folder, preferences)

    config, base = hf.load_pretrained(base_folder)
    adapter_folder = folder / "adapters" / "reward_model"
    shape, adapter = hf.peft.load_adapter(adapter_folder, config, base)
    assert (shape.r, set(adapter)) == (8, {"trunk", "score"})
    parallel = DataParallel()
    learned = load_reward_adapter(str(adapter_folder), config, parallel.put(base), word_tokenizer(WORDS), parallel)
    rows = held_out_rows(preferences)
    merged = transformers_scores(folder / "reward_model", rows)
    np.testing.assert_allclose(as_reward(learned, rows) + learned.bias, merged, atol=1e-4, rtol=0)
    assert learned.bias == json.loads((folder / "eval.json").read_text())["reward_bias"]

    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(base_folder, num_labels=1, pad_token_id=0)
    theirs = peft.PeftModel.from_pretrained(theirs, adapter_folder).eval()
    with torch.no_grad():
        alone = [float(theirs(torch.tensor([row])).logits[0, 0]) for row in rows[:10]]
    np.testing.assert_allclose(alone, merged[:10], atol=1e-4, rtol=0)

    exported = export(parse_cli(ExportConfig, "export", ["--run_dir", str(folder), "--quiet"]))
    assert {path.name for path in exported.iterdir()} == {"reward_model", "adapters"}
    np.testing.assert_allclose(transformers_scores(exported / "reward_model", rows), merged, atol=1e-5, rtol=0)


def test_export_of_an_earlier_checkpoint_has_no_bias_yet(finished, tmp_path):
    args = ["--run_dir", finished[0], "--quiet"]
    for step, has_bias in ((40, False), (50, True)):
        folder = export(
            parse_cli(
                ExportConfig,
                "export",
                [*map(str, args), "--output_dir", str(tmp_path / str(step)), "--step", str(step)],
            )
        )
        config = json.loads((folder / "reward_model" / "config.json").read_text())
        assert ("reward_bias" in config) == has_bias


# --------------------------------------------------------------------------------------------------------- one run more


def small_run(folder, dataset, tokenizer_folder, *args):
    return configure(
        *("--dataset", dataset, "--tokenizer_path", tokenizer_folder, "--output_dir", folder, *FRESH),
        *("--batch_size", 8, "--total_episodes", 40, "--eval_steps", 2, *args),
    )


@pytest.fixture(scope="module")
def whole(small_preferences, tokenizer_folder, tmp_path_factory):
    """A short run, uninterrupted."""
    return train_reward_model(small_run(tmp_path_factory.mktemp("runs") / "x", small_preferences, tokenizer_folder))


@pytest.mark.full
def test_a_resumed_run_equals_the_uninterrupted_one(whole, small_preferences, tokenizer_folder, tmp_path, monkeypatch):
    batch = PreferenceData.batch

    def strike(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(self, step)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(PreferenceData, "batch", strike)
        train_reward_model(small_run(folder, small_preferences, tokenizer_folder))
    assert len(comparable(folder)) == 3
    assert not (folder / "reward_model").exists()
    again = small_run(folder, small_preferences, tokenizer_folder, "--resume")
    train_reward_model(again)
    assert comparable(folder) == comparable(whole) and len(comparable(whole)) == 5
    assert (folder / "eval.json").read_text() == (whole / "eval.json").read_text()
    for name in ("model.safetensors", "config.json"):
        assert (folder / "reward_model" / name).read_bytes() == (whole / "reward_model" / name).read_bytes()
    before = snapshot(folder)
    train_reward_model(again)  # finished
    assert snapshot(folder) == before


@pytest.mark.full
@pytest.mark.parametrize("flags", ["--parallel pmap", "--parallel fsdp --mesh fsdp=2,tensor=2"])
def test_other_modes_give_the_same_run(whole, small_preferences, tokenizer_folder, tmp_path, flags):
    folder = train_reward_model(small_run(tmp_path, small_preferences, tokenizer_folder, *flags.split()))
    for ours, theirs in zip(comparable(folder), comparable(whole), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_long_pairs_are_left_out_and_counted(small_preferences, tokenizer_folder, tmp_path, capsys):
    args = ["--max_length", 13, "--center_on", "none", "--num_train_epochs", 1, "--total_episodes", "None"]
    folder = train_reward_model(small_run(tmp_path / "run", small_preferences, tokenizer_folder, *args))
    results = json.loads((folder / "eval.json").read_text())
    kept = 60 - results["too_long"]["train"]
    assert 0 < kept < 60 and results["too_long"]["test"] == 20 - results["after"]["test"]["accuracy"]["n"]
    assert len(read_metrics(folder / "metrics.jsonl")) == math.ceil(kept / 8)
    assert f"split train: {60 - kept} of 60 pairs are longer than 13 tokens" in capsys.readouterr().out
    assert "reward_bias" not in results
    assert "reward_bias" not in json.loads((folder / "reward_model" / "config.json").read_text())


@pytest.mark.full
def test_further_splits_are_evaluated_too_and_the_seed_decides(whole, small_preferences, tokenizer_folder, tmp_path):
    args = ["--seed", 7, "--eval_splits", "test", "train", "--metric_for_best_model", "eval/train/accuracy"]
    folder = train_reward_model(small_run(tmp_path / "run", small_preferences, tokenizer_folder, *args))
    results = json.loads((folder / "eval.json").read_text())
    assert results["headline_split"] == "test" and set(results["after"]) == set(results["before"]) == {"test", "train"}
    record = read_metrics(folder / "metrics.jsonl")[1]
    assert record["eval_train_accuracy"] == record["eval/train/accuracy"]
    assert {"eval_loss", "eval_train_loss", "eval/test/accuracy"} <= set(record)
    assert comparable(folder)[0]["loss"] != comparable(whole)[0]["loss"]


@pytest.mark.full
@pytest.mark.parametrize(("num_devices", "use_peft"), [(1, False), (2, False), (2, True)])
def test_micro_batches_change_nothing(small_preferences, monkeypatch, num_devices, use_peft):
    pairs = encode_pairs(word_tokenizer(WORDS), load_rows(small_preferences, "train"), 100, "train").kept
    model = CONFIGS["gpt_neox"]
    params = jax.device_get(models.init_params(model, jax.random.key(0), "score"))
    config = replace(RewardModelConfig(), batch_size=8, learning_rate=1e-2, center_rewards_coefficient=0.1)

    def one_step(num_devices):
        parallel = DataParallel(devices=jax.devices()[:num_devices])
        training = Training(config, model, LoraConfig(r=2, lora_alpha=4.0) if use_peft else None, parallel)
        batch = training.weighted(PreferenceData(pairs, 8, 0).batch(0))
        state = parallel.put(training.init_state(jax.tree.map(np.copy, params)))
        after, stats = training.make_step(10)(state, parallel.put(batch, 2))
        return batch, jax.device_get(after.params), jax.device_get(stats)

    (rows, weights), learned, stats = one_step(1)
    assert weights.shape == (1, 1, 8) and stats["grad_norm"] > 0.01
    monkeypatch.setattr(memory, "rows_at_once", lambda *_: 5)  # texts, two of a pair
    (cut, _), cut_learned, cut_stats = one_step(num_devices)
    assert cut.chosen_ids.shape[:3] == (1, 4 // num_devices, 2 * num_devices)
    np.testing.assert_array_equal(cut.chosen_ids.reshape(8, -1), rows.chosen_ids.reshape(8, -1))
    for name, value in stats.items():
        np.testing.assert_allclose(cut_stats[name], value, rtol=0, atol=1e-5, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), cut_learned, learned)


def test_dry_run_writes_nothing(small_preferences, tokenizer_folder, tmp_path):
    train_reward_model(small_run(tmp_path / "run", small_preferences, tokenizer_folder, "--dry_run"))
    assert not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------------------------- start, errors


@pytest.mark.parametrize("family", CONFIGS)
def test_a_language_model_gives_its_trunk_and_a_fresh_head(family, language_models):
    start = start_model(configure("--model_path", language_models[family]))
    trunk = hf.load_pretrained(language_models[family])[1]["trunk"]
    jax.tree.map(np.testing.assert_array_equal, start.params["trunk"], trunk)
    assert set(start.params) == {"trunk", "score"}
    kernel = np.asarray(start.params["score"]["kernel"])
    assert kernel.shape == (32, 1) and 0.5 < kernel.std() * 33**0.5 < 1.5
    assert start.loaded is not None and start.loaded.fresh == ("score.weight",)


def test_a_reward_model_is_trained_on(finished):
    folder = finished[0] / "reward_model"
    start = start_model(configure("--model_path", folder))
    jax.tree.map(np.testing.assert_array_equal, start.params, hf.load_pretrained(folder)[1])


def test_a_run_from_a_centred_model_drops_its_bias(finished, small_preferences, tmp_path):
    args = ["--dataset", small_preferences, "--model_path", finished[0] / "reward_model", "--center_on", "none"]
    folder = train_reward_model(
        configure(*args, "--output_dir", tmp_path / "run", "--total_episodes", 8, "--batch_size", 8)
    )
    assert "reward_bias" not in json.loads((folder / "reward_model" / "config.json").read_text())


def test_pad_equal_to_end_leaves_the_end_to_be_scored(small_preferences, tmp_path):
    word_tokenizer(WORDS, pad="<eos>").save_pretrained(tmp_path / "tokenizer")
    folder = train_reward_model(small_run(tmp_path / "run", small_preferences, tmp_path / "tokenizer"))
    assert json.loads((folder / "reward_model" / "config.json").read_text())["pad_token_id"] is None
    rows = held_out_rows(small_preferences, 5)
    learned = load_reward_model(str(folder / "reward_model"), word_tokenizer(WORDS), DataParallel())
    alone = [transformers_scores(folder / "reward_model", [row])[0] for row in rows]
    np.testing.assert_allclose(as_reward(learned, rows) + learned.bias, alone, atol=1e-4, rtol=0)


def test_gpt2_leaves_out_pairs_beyond_its_positions(small_preferences, tmp_path, capsys):
    config = dataclasses.replace(CONFIGS["gpt2"], max_position_embeddings=12)
    hf.save_pretrained(tmp_path / "lm", config, models.init_params(config, jax.random.key(0)), word_tokenizer(WORDS))
    args = ["--dataset", small_preferences, "--model_path", tmp_path / "lm", "--output_dir", tmp_path / "run"]
    train_reward_model(configure(*args, "--batch_size", 8, "--dry_run"))
    assert "of 60 pairs are longer than 12 tokens" in capsys.readouterr().out


BAD_INPUT = {
    "no data": ([], DataError, "dataset: expected a folder with preference data or a hub id, got None"),
    "no such split": (
        ["--eval_splits", "tset"],
        DataError,
        "tset.jsonl: expected this file or tset.parquet, got test, train",
    ),
    "no such model": (["--model_path", "no/such/model/folder"], ModelError, "no/such/model/folder"),
    "batch": (["--batch_size", "6"], ConfigError, "batch_size: expected a multiple of data x fsdp devices (4), got 6"),
    "too long": (["--max_length", "3"], DataError, "split train: expected a pair of at most 3 tokens, got 60 longer"),
    "adapter on nothing": (["--use_peft"], ConfigError, "model_path: expected a model under the adapter with use_peft"),
    "adapter to start from": (["--use_peft", "--lora_path", "x"], ConfigError, "lora_path: expected None"),
    "two rates": (["--value_learning_rate", "1"], ConfigError, "value_learning_rate: expected None: a reward model"),
    "centering": (["--center_rewards_coefficient", "-1"], ConfigError, "center_rewards_coefficient: expected a finite"),
    "a metric of another split": (
        ["--eval_steps", "1", "--metric_for_best_model", "eval/dev/accuracy"],
        ConfigError,
        "metric_for_best_model: expected one of eval/test/accuracy, or a metric of training, got 'eval/dev/accuracy'",
    ),
    "no splits": (["--eval_splits"], ConfigError, "eval_splits: expected at least one split, got ()"),
    "epochs": (["--num_train_epochs", "0"], ConfigError, "num_train_epochs: expected a finite number above 0, got 0.0"),
    "length": (["--max_length", "0"], ConfigError, "max_length: expected a number above 0, got 0"),
    "heads": (["--hidden_size", "30"], ConfigError, "hidden_size: expected a multiple of num_attention_heads (4)"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(
    case, small_preferences, tokenizer_folder, tmp_path
):
    args, error, message = BAD_INPUT[case]
    data = [] if case == "no data" else ["--dataset", small_preferences]
    with pytest.raises(error) as caught:
        train_reward_model(
            configure(*data, "--tokenizer_path", tokenizer_folder, "--output_dir", tmp_path / "run", *args)
        )
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_does_not_fit_is_refused(language_models, tmp_path):
    word_tokenizer([*WORDS, *[f"x{i}" for i in range(61)]]).save_pretrained(language_models["gpt2"].parent / "more")
    with pytest.raises(ModelError, match="expected at most vocab_size=61 tokens, got 93"):
        folder = tmp_path / "lm"
        config, params = hf.load_pretrained(language_models["gpt_neox"])
        hf.save_pretrained(folder, config, params, word_tokenizer([*WORDS, *[f"x{i}" for i in range(61)]]))
        start_model(configure("--model_path", folder))
