"""Training a reward model: the loss by hand and against torch, a rule learned from pairs, and what a run leaves."""

import dataclasses
import json
import math
import os
import random
import shutil
import signal
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import hf
from jaxppo.config import ExportConfig, RewardModelConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.data import make_chat_template
from jaxppo.data.preferences import PreferenceData, encode_pairs, load_rows
from jaxppo.errors import ConfigError, DataError, ModelError
from jaxppo.export import export
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.reward_functions.reward_model import load_reward_adapter, load_reward_model
from jaxppo.reward_model import RewardModelLearner, load_pairs, preference_loss, start_model, train_reward_model
from jaxppo.rl import update
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.preemption import Preempted
from tests.commands import comparable, run_command, snapshot
from tests.data.tokenizers import word_tokenizer, write_rows
from tests.torch_models import CONFIGS as TWO_LAYERS
from tests.torch_models import random_params, torch, transformers

CONFIGS = {family: dataclasses.replace(config, num_hidden_layers=1) for family, config in TWO_LAYERS.items()}


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
    means = {"accuracy": 0.5, "margin": -0.5, "mean_reward": 0.75}
    assert stats == pytest.approx({"loss": expected} | means, rel=1e-6)
    # The margin is subtracted from the difference, and is not in the metric of that name, which is of the scores.
    loss, stats = loss_of([2.0], [1.0], [3.0])
    assert (loss, stats["margin"]) == (pytest.approx(math.log(1 + math.exp(2.0)), rel=1e-6), 1.0)
    plain, centred = loss_of([2.0, 0.5], [1.0, -0.5])[0], loss_of([2.0, 0.5], [1.0, -0.5], coefficient=0.1)[0]
    assert centred - plain == pytest.approx(0.1 * (9.0 + 0.0) / 2, rel=1e-5)
    assert loss_of([1.0, 1.0, 0.0, 2.0], [1.0, 0.0, 1.0, 2.0])[1]["accuracy"] == 0.25  # ties are wrong


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


@pytest.mark.parametrize("mode", ["shard_map", "pmap"])
def test_preference_loss_adds_up_over_micro_batches_and_devices(mode):
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
        cut = jax.tree.map(lambda x: x.reshape(2, -1), batch)
        found = program(parallel.put(params), parallel.put(cut, 1))
        (_, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, *jax.tree.map(jnp.array, batch))
        assert {name: float(x) for name, x in found.stats.items()} == pytest.approx(
            {name: float(x) for name, x in stats.items()}, rel=1e-5
        )
        np.testing.assert_allclose(found.grads["sign"], grads["sign"], rtol=1e-5)


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
    """A folder with 1,000 pairs to train on and 200 to test on."""
    return write_preferences(tmp_path_factory.mktemp("preferences"), 1000, 200)


@pytest.fixture(scope="module")
def small_preferences(tmp_path_factory):
    return write_preferences(tmp_path_factory.mktemp("small"), 60, 20)


def language_model(folder, config, words=WORDS):
    """Write a random language model with the vocabulary of the preferences; returns its folder."""
    hf.save_pretrained(folder, config, random_params(config), word_tokenizer(words))
    return folder


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory):
    """A language model of no skill to start from."""
    return language_model(tmp_path_factory.mktemp("base") / "lm", CONFIGS["gpt_neox"])


def configure(*args):
    return parse_cli(RewardModelConfig, "reward_model", ["--quiet", *map(str, args)])


FAST = ["--learning_rate", "1e-2", "--batch_size", 32, "--total_episodes", 960]


def transformers_scores(folder, rows, pad_id=0):
    """Scores by transformers of rows of ids, in right-padded batches, as a user would compute them."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with torch.no_grad():
        return model(ids, attention_mask=mask).logits[:, 0].numpy()


def held_out_rows(preferences, count=40):
    pairs = encode_pairs(word_tokenizer(WORDS), load_rows(preferences, "test")[:count], 100, "test").pairs
    return [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]


def as_reward(learned, rows):
    """The scores that PPO gets, of rows without prompts."""
    texts = [""] * len(rows)
    return np.array(learned(texts, texts, rows, prompt_ids=[[]] * len(rows)))


def assert_learned_and_exported(folder, preferences):
    """Nine of ten held-out pairs are ordered right, also by transformers, and PPO's scores are those less the bias."""
    results = json.loads((folder / "eval.json").read_text())
    accuracy = results["after"]["test"]["accuracy"]
    assert accuracy["n"] == 200 and accuracy["low"] <= accuracy["rate"] <= accuracy["high"] + 1e-9
    assert accuracy["rate"] >= 0.9 > 0.8 > results["before"]["test"]["accuracy"]["rate"]
    rows = held_out_rows(preferences)
    theirs = transformers_scores(folder / "reward_model", rows)
    assert np.mean(theirs[:40] > theirs[40:]) >= 0.85
    learned = load_reward_model(str(folder / "reward_model"), word_tokenizer(WORDS), DataParallel())
    assert learned.bias == results["reward_bias"] != 0.0
    np.testing.assert_allclose(as_reward(learned, rows) + learned.bias, theirs, atol=1e-4, rtol=0)
    demonstrations = encode_pairs(word_tokenizer(WORDS), load_rows(preferences, "train"), 100, "train").pairs
    assert abs(as_reward(learned, [pair.chosen for pair in demonstrations]).mean()) < 1e-3


@pytest.fixture(scope="module")
def finished(tmp_path_factory, preferences, base_folder):
    """A run of the command, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    args = ["--dataset", preferences, "--model_path", base_folder, "--output_dir", folder]
    code, out, err = run_command("reward_model", *args, *FAST, "--save_steps", "20", "--eval_steps", "15")
    assert code == 0, err
    return folder, out


def test_a_model_learns_the_rule_is_exported_and_logs_the_metrics_of_trl(finished, preferences, base_folder, tmp_path):
    folder, out = finished
    assert_learned_and_exported(folder, preferences)
    accuracy = json.loads((folder / "eval.json").read_text())["after"]["test"]["accuracy"]
    assert f"{accuracy['rate']:.1%}" in out
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"20", "30"}
    files = {"checkpoints", "config.yaml", "eval.json", "metrics.jsonl", "report.html", "reward_model"}
    assert {path.name for path in folder.iterdir()} == files | {"tensorboard", "tokenizer"}
    assert f"trained from `{base_folder}`" in (folder / "reward_model" / "README.md").read_text()
    # A checkpoint of before the end has no bias yet.
    for step, has_bias in ((20, False), (30, True)):
        args = ["--run_dir", folder, "--quiet", "--output_dir", tmp_path / str(step), "--step", step]
        exported = export(parse_cli(ExportConfig, "export", list(map(str, args))))
        assert ("reward_bias" in json.loads((exported / "reward_model" / "config.json").read_text())) == has_bias
    records = read_metrics(finished[0] / "metrics.jsonl")
    names = {"loss", "accuracy", "margin", "mean_reward"}
    assert [record["step"] for record in records] == list(range(1, 31))
    assert all(names <= set(record) for record in records)
    evaluated = [record["step"] for record in records if "eval_accuracy" in record]
    assert evaluated == [15]
    assert {f"eval_{name}" for name in names} | {"eval/test/accuracy"} <= set(records[14])
    assert records[14]["eval/test/accuracy"] == records[14]["eval_accuracy"] > 0.7
    assert records[-1]["accuracy"] > 0.8 and records[-1]["loss"] < 0.5 * records[0]["loss"]


def test_training_goes_on_from_a_centred_model(finished, small_preferences, tmp_path, capsys, monkeypatch):
    """Here on short pairs alone, with the end of sequence as padding."""
    model_folder = shutil.copytree(finished[0] / "reward_model", tmp_path / "model")
    word_tokenizer(WORDS, pad="<eos>").save_pretrained(model_folder)
    start = start_model(configure("--model_path", model_folder))
    jax.tree.map(np.testing.assert_array_equal, start.params, hf.load_pretrained(model_folder)[1])
    args = ["--dataset", small_preferences, "--model_path", model_folder, "--output_dir", tmp_path / "run"]
    args += ["--max_length", 13, "--num_train_epochs", 1, "--batch_size", 8]
    seeds = []

    def note_seed(pairs, batch_size, seed, *others):
        seeds.append(seed)
        return PreferenceData(pairs, batch_size, seed, *others)

    monkeypatch.setattr("jaxppo.reward_model.PreferenceData", note_seed)
    folder = train_reward_model(configure(*args, "--seed", 7))
    assert seeds == [7]  # the order of the pairs
    results = json.loads((folder / "eval.json").read_text())
    kept = 60 - results["too_long"]["train"]
    assert 0 < kept < 60 and results["too_long"]["test"] == 20 - results["after"]["test"]["accuracy"]["n"]
    assert len(read_metrics(folder / "metrics.jsonl")) == math.ceil(kept / 8)
    assert f"{60 - kept} of 60 pairs" in capsys.readouterr().out
    config = json.loads((folder / "reward_model" / "config.json").read_text())
    assert results["reward_bias"] == config["reward_bias"] != 0.0
    # With a pad id transformers would take the end of each row for padding.
    assert config["pad_token_id"] is None
    rows = held_out_rows(small_preferences, 5)
    learned = load_reward_model(str(folder / "reward_model"), word_tokenizer(WORDS), DataParallel())
    alone = [transformers_scores(folder / "reward_model", [row])[0] for row in rows]
    np.testing.assert_allclose(as_reward(learned, rows) + learned.bias, alone, atol=1e-4, rtol=0)


@pytest.mark.full
def test_lora_on_a_language_model_trains_adapter_and_head_alone(preferences, tmp_path):
    """With centering, and evaluated on a further split."""
    peft = pytest.importorskip("peft")
    base_folder = language_model(tmp_path / "lm", CONFIGS["gpt2"])
    args = ["--dataset", preferences, "--model_path", base_folder, "--output_dir", tmp_path / "run", *FAST]
    args += ["--use_peft", "--lora_r", 8, "--center_rewards_coefficient", "0.01", "--eval_steps", 15]
    args += ["--eval_splits", "test", "train", "--metric_for_best_model", "eval/train/accuracy"]
    folder = train_reward_model(configure(*args))
    assert_learned_and_exported(folder, preferences)
    results = json.loads((folder / "eval.json").read_text())
    assert results["headline_split"] == "test" and set(results["after"]) == set(results["before"]) == {"test", "train"}
    record = read_metrics(folder / "metrics.jsonl")[14]
    assert record["eval_train_accuracy"] == record["eval/train/accuracy"]
    assert {"eval_loss", "eval_train_loss", "eval/test/accuracy"} <= set(record)

    config, base = hf.load_pretrained(base_folder)
    adapter_folder = folder / "adapters" / "reward_model"
    shape, adapter = hf.peft.load_adapter(adapter_folder, config, base)
    assert (shape.r, set(adapter)) == (8, {"trunk", "score"})
    parallel = DataParallel()
    learned = load_reward_adapter(str(adapter_folder), config, parallel.put(base), word_tokenizer(WORDS), parallel)
    rows = held_out_rows(preferences)
    merged = transformers_scores(folder / "reward_model", rows)
    np.testing.assert_allclose(as_reward(learned, rows) + learned.bias, merged, atol=1e-4, rtol=0)
    assert learned.bias == results["reward_bias"]

    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(base_folder, num_labels=1, pad_token_id=0)
    theirs = peft.PeftModel.from_pretrained(theirs, adapter_folder).eval()
    with torch.no_grad():
        alone = [float(theirs(torch.tensor([row])).logits[0, 0]) for row in rows[:10]]
    np.testing.assert_allclose(alone, merged[:10], atol=1e-4, rtol=0)

    exported = export(parse_cli(ExportConfig, "export", ["--run_dir", str(folder), "--quiet"]))
    assert {path.name for path in exported.iterdir()} == {"reward_model", "adapters"}
    np.testing.assert_allclose(transformers_scores(exported / "reward_model", rows), merged, atol=1e-5, rtol=0)


def small_run(folder, dataset, base_folder, *args):
    return configure(
        *("--dataset", dataset, "--model_path", base_folder, "--output_dir", folder),
        *("--batch_size", 8, "--total_episodes", 40, "--eval_steps", 2, *args),
    )


@pytest.fixture(scope="module")
def whole(small_preferences, base_folder, tmp_path_factory):
    """A short run, uninterrupted."""
    return train_reward_model(small_run(tmp_path_factory.mktemp("runs") / "x", small_preferences, base_folder))


def test_pairs_of_equal_texts_are_counted_in_one_line(tmp_path):
    rows = [{"prompt": "a", "chosen": "b", "rejected": rejected} for rejected in ("b", "a", "b")]
    config = RewardModelConfig(dataset=write_rows(tmp_path, train=rows), eval_splits=("train",))
    lines = []
    console = SimpleNamespace(warn=lines.append)
    load_pairs(config, make_chat_template(word_tokenizer(["<pad>", "<eos>", "a", "b"])), 64, console)
    (line,) = lines
    assert "split train: 2 of 3 pairs have the same text" in line


@pytest.mark.full
def test_a_resumed_run_equals_the_uninterrupted_one(whole, small_preferences, base_folder, tmp_path, monkeypatch):
    batch = PreferenceData.batch

    def strike(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(self, step)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(PreferenceData, "batch", strike)
        train_reward_model(small_run(folder, small_preferences, base_folder))
    assert len(comparable(folder)) == 3
    assert not (folder / "reward_model").exists()
    again = small_run(folder, small_preferences, base_folder, "--resume")
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
def test_other_modes_give_the_same_run(whole, small_preferences, base_folder, tmp_path, flags):
    folder = train_reward_model(small_run(tmp_path, small_preferences, base_folder, *flags.split()))
    for ours, theirs in zip(comparable(folder), comparable(whole), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("use_peft", [False, True])
def test_micro_batches_and_devices_change_nothing(small_preferences, monkeypatch, use_peft):
    pairs = encode_pairs(word_tokenizer(WORDS), load_rows(small_preferences, "train"), 100, "train").pairs
    model = CONFIGS["gpt_neox"]
    params = random_params(model, "score")
    config = replace(RewardModelConfig(), batch_size=8, learning_rate=1e-2, center_rewards_coefficient=0.1)

    def one_step(num_devices):
        parallel = DataParallel(devices=jax.devices()[:num_devices])
        adapter = LoraConfig(r=2, lora_alpha=4.0) if use_peft else None
        training = RewardModelLearner(config, model, parallel, adapter=adapter)
        batch = training.weighted(PreferenceData(pairs, 8, 0).batch(0))
        state = parallel.put(training.init_state(jax.tree.map(np.copy, params)))
        after, stats = training.make_step(10)(state, parallel.put(batch, 2))
        return batch, jax.device_get(after.params), jax.device_get(stats)

    (rows, weights), learned, stats = one_step(1)
    assert weights.shape == (1, 1, 8) and stats["grad_norm"] > 0.01
    monkeypatch.setattr(memory, "rows_at_once", lambda *_: 5)  # texts, two of a pair
    (cut, _), cut_learned, cut_stats = one_step(2)
    assert cut.chosen_ids.shape[:3] == (1, 2, 4)
    np.testing.assert_array_equal(cut.chosen_ids.reshape(8, -1), rows.chosen_ids.reshape(8, -1))
    for name, value in stats.items():
        np.testing.assert_allclose(cut_stats[name], value, rtol=0, atol=1e-5, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), cut_learned, learned)


def test_a_language_model_gives_its_trunk_and_a_fresh_head(tmp_path):
    folder = language_model(tmp_path / "lm", CONFIGS["llama"])
    start = start_model(configure("--model_path", folder))
    jax.tree.map(np.testing.assert_array_equal, start.params["trunk"], hf.load_pretrained(folder)[1]["trunk"])
    assert set(start.params) == {"trunk", "score"}
    kernel = np.asarray(start.params["score"]["kernel"])
    assert kernel.shape == (32, 1) and 0.5 < kernel.std() * 33**0.5 < 1.5
    assert start.loaded is not None and start.loaded.fresh == ("score.weight",)
    # A tokenizer that does not fit, and no data, are refused.
    folder = language_model(tmp_path / "more", CONFIGS["gpt_neox"], [*WORDS, *[f"x{i}" for i in range(61)]])
    with pytest.raises(ModelError, match="vocab_size=61"):
        start_model(configure("--model_path", folder))
    with pytest.raises(DataError, match=r"^dataset: "):
        train_reward_model(configure("--output_dir", tmp_path / "run"))


def test_gpt2_leaves_out_pairs_beyond_its_positions_and_a_dry_run_writes_nothing(small_preferences, tmp_path, capsys):
    folder = language_model(tmp_path / "lm", dataclasses.replace(CONFIGS["gpt2"], max_position_embeddings=12))
    args = ["--dataset", small_preferences, "--model_path", folder, "--output_dir", tmp_path / "run"]
    train_reward_model(configure(*args, "--batch_size", 8, "--dry_run"))
    assert "of 60 pairs are longer than 12 tokens" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


BAD_INPUT = {
    "no such split": (["--eval_splits", "tset"], DataError, r"tset\.jsonl.*test\.jsonl, train\.jsonl"),
    "batch": (["--batch_size", "6"], ConfigError, "^batch_size: .*4"),
    "too long": (["--max_length", "3"], DataError, "split train: .*3 tokens, got 60"),
    "no model": (["--model_path", "None"], ConfigError, "^model_path: "),
    "centering": (["--center_rewards_coefficient", "-1"], ConfigError, "^center_rewards_coefficient: "),
    "a metric of another split": (
        ["--eval_steps", "1", "--metric_for_best_model", "eval/dev/accuracy"],
        ConfigError,
        "^metric_for_best_model: .*eval/test/accuracy.*'eval/dev/accuracy'",
    ),
    "length": (["--max_length", "0"], ConfigError, "^max_length: "),
    "sizes of a fresh model": (["--hidden_size", "30"], ConfigError, "--model_path"),
}


@pytest.mark.parametrize(("args", "error", "named"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(
    args, error, named, small_preferences, base_folder, tmp_path
):
    common = ["--dataset", small_preferences, "--model_path", base_folder, "--output_dir", tmp_path / "run"]
    with pytest.raises(error, match=named) as caught:
        train_reward_model(configure(*common, *args))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
