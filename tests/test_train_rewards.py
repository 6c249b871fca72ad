"""Training on other rewards than the plan reward alone: functions that fail, servers, learned models, plain prompts."""

import json
import signal
import sys
import types
import warnings

import jax
import numpy as np
import pytest

from jaxppo import data, hf, models, sft, train
from jaxppo.config import DataConfig, EvaluateConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import preset_values, replace
from jaxppo.errors import DataError, ModelError, TrainingError
from jaxppo.evaluate import __main__ as evaluate
from jaxppo.nn import lora
from jaxppo.parallel.devices import DataParallel
from jaxppo.reward_functions.registry import reward_model_loader
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.preemption import Preempted
from tests.data.tokenizers import write_rows
from tests.one_layer import ONE_LAYER
from tests.shared_programs import shared_programs
from tests.small_runs import SAVED, carry_out

FUNCTIONS = "tests.rewards_for_runs"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`train.train` of the preset tiny, two updates, with these settings.

    Completions so short that sequences have one length, and one learning rate: all runs share their compiled programs.
    """

    def run_it(**settings):
        tiny = preset_values("train", "tiny") | {"total_episodes": 32, "num_ppo_epochs": 1, "num_mini_batches": 1}
        tiny |= {"sizes": ("rl=4:24", "test=4:4", "test_longer=5:4"), "response_length": 22, "quiet": True}
        tiny |= {"lr_scheduler_type": "constant", "sft_model_path": ONE_LAYER}
        tiny |= {"value_model": "shared"}
        config = replace(TrainConfig(), **tiny | {"output_dir": str(tmp_path / "run")} | settings)
        train.train(config)
        return tmp_path / "run"

    return run_it


def records_and_samples(folder):
    records, samples = (read_metrics(folder / name) for name in ("metrics.jsonl", "samples.jsonl"))
    return [(record, [s for s in samples if s["step"] == record["step"]]) for record in records]


def write_texts(folder, **columns):
    """Data without plans: twelve rows to train on and eight to test."""
    rows = data.load_split(DataConfig(sizes=("rl=4:20",)), "rl")
    rows = [{"prompt": row["prompt"], "completion": row["completion"]} | columns for row in rows]
    dataset = write_rows(folder, train=rows[:12], test=rows[12:])
    return {"dataset": dataset, "train_split": "train", "eval_splits": ("test",)}


@pytest.mark.full
@pytest.mark.parametrize(
    ("asked", "evaluations"),
    [(False, {}), (True, {}), (False, {"eval_steps": 1, "metric_for_best_model": "none"})],
    ids=["in the second update", "by Ctrl-C", "in the evaluation of the first"],
)
def test_updates_before_a_reward_that_fails_are_not_lost(run, tmp_path, asked, evaluations, monkeypatch):
    """Nor are they where it fails by the Ctrl-C that its own processes got, too."""
    batches = []

    def score(completions):
        batches.append(len(completions))
        if len(batches) == 2:
            if asked:
                signal.raise_signal(signal.SIGINT)
            raise RuntimeError("the server is away")
        return [float(len(text) % 2) for text in completions]

    module = types.ModuleType("fails_late")
    module.score = score
    monkeypatch.setitem(sys.modules, "fails_late", module)
    monkeypatch.setattr(train, "_evaluate", lambda *_: {})
    monkeypatch.setattr(train.evaluation, "eval_metrics", lambda _: {})
    with pytest.raises(Preempted if asked else DataError, match="Ctrl-C" if asked else "server is away"):
        run(reward_funcs=["fails_late:score"], save_steps=50, **evaluations)
    folder = tmp_path / "run"
    assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == [1]
    assert Checkpoints(folder / "checkpoints", 2).latest == 1


@pytest.mark.parametrize(
    "algorithm", ["ppo", pytest.param("rloo", marks=pytest.mark.full), pytest.param("grpo", marks=pytest.mark.full)]
)
def test_an_update_without_any_score_is_left_out_and_too_many_end_the_run_until_it_is_resumed(algorithm, tmp_path):
    """The judge is away in updates 2 and 4 to 5, of six; it knows them by `trainer_state`. Nothing is evaluated."""
    is_away, seen = [1, 3, 4], []

    def judge(completions, trainer_state):
        seen.append(trainer_state)
        if trainer_state.global_step in is_away:
            raise ConnectionError("503")
        return [float(len(text) % 5) for text in completions]

    flags = ["--algorithm", algorithm, "--on_error", "skip", "--total_episodes", "96", *SAVED]
    flags += ["--eval_splits"]
    flags += [] if algorithm == "ppo" else ["--num_generations", "4"]
    with shared_programs():
        with pytest.raises(TrainingError, match=r"^max_bad_updates: .*503"):
            carry_out(tmp_path, *flags, reward=judge, max_bad_updates=2)
        away = seen[-1]
        assert (away.global_step, away.max_steps, away.episode, away.total_episodes) == (4, 6, 64, 96)
        is_away.clear()
        records = read_metrics(
            carry_out(tmp_path, *flags, "--resume", reward=judge, max_bad_updates=2) / "metrics.jsonl"
        )
    assert [record["policy/bad_updates"] for record in records] == [0, 1, 0, 1, 2, 0]
    assert [record["objective/scores"] is None for record in records] == [False, True, False, True, True, False]
    assert [record["reward/not_scorable"] for record in records] == [0, 16, 0, 16, 16, 0]
    assert json.loads((tmp_path / "eval.json").read_text()) == {"headline_split": None, "before": {}, "after": {}}
    with Checkpoints(tmp_path / "checkpoints", 9) as checkpoints:
        params = [jax.tree.leaves(checkpoints.restore_params(step, warnings.warn)[0]) for step in (1, 2, 3)]
    assert all(map(np.array_equal, params[0], params[1])) and not all(map(np.array_equal, params[1], params[2]))


def test_an_adapter_of_a_reward_model_is_no_start_for_a_policy(run, tmp_path, monkeypatch):
    loaded = (lora.LoraConfig(r=2), {"trunk": {}, "score": {}})
    monkeypatch.setattr(hf.peft, "load_adapter", lambda *_: loaded)
    with pytest.raises(ModelError, match=r"^lora_path: "):
        run(use_peft=True, lora_path="somewhere")
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_prompts_without_plans_are_trained_on_a_function(run, tmp_path):
    folder = run(
        **write_texts(tmp_path, topic="towers"),
        eval_steps=1,
        reward_funcs=(f"{FUNCTIONS}:words",),
        metric_for_best_model="eval/test/mean_reward",
    )
    evals = json.loads((folder / "eval.json").read_text())
    assert evals["before"]["test"].keys() == {"mean_reward", "reward", "ended", "mean_tokens"}
    for moment in ("before", "after"):
        reward = evals[moment]["test"]["reward"]
        assert reward["n"] == 8 and reward["low"] <= reward["mean"] == evals[moment]["test"]["mean_reward"]
    first, last = read_metrics(folder / "metrics.jsonl")
    assert 0.0 <= first["eval/test/mean_reward"] <= 1.0
    assert "eval/test/mean_reward" not in last  # it is evaluated after the run
    for record, samples in records_and_samples(folder):
        lengths = [len(sample["completion"].split()) for sample in samples]
        assert record["reward/words"] == pytest.approx(np.mean(lengths))
        assert record["rewards/words/mean"] == pytest.approx(np.mean([min(1, n / 20) for n in lengths if n]))
        assert record["reward/not_scorable"] == lengths.count(0) and "reward/plan_valid" not in record
    assert "mean reward" in (folder / "policy" / "README.md").read_text()


@pytest.fixture(params=["whole", "adapter"])
def reward_model(request, tmp_path):
    """A reward model of the starting policy's family, and one that is an adapter on that policy."""
    policy = hf.load_policy(ONE_LAYER)
    score = {"kernel": jax.random.normal(jax.random.key(2), (policy.config.hidden_size, 1))}
    folder = tmp_path / request.param
    if request.param == "whole":
        params = {"trunk": policy.params["trunk"], "score": score}
        hf.save_pretrained(folder, policy.config, params, policy.tokenizer)
        return folder
    shape = lora.LoraConfig(r=2)
    adapter = lora.init_adapter(policy.config, shape, jax.random.key(3)) | {"score": score}
    hf.peft.save_adapter(folder, policy.config, shape, adapter, policy.params, ONE_LAYER)
    return folder


@pytest.mark.full
def test_a_learned_reward_scores_what_was_sampled(run, reward_model):
    settings = {"reward_funcs": ("model", "plan"), "reward_weights": (0.1, 1.0), "score_scaling": "scale"}
    folder = run(**settings, reward_model_path=str(reward_model))
    policy = hf.load_policy(ONE_LAYER)
    encode, eos = policy.tokenizer.encode, policy.tokenizer.eos_token_id
    load = reward_model_loader(policy.config, policy.params, policy.tokenizer, DataParallel(), (eos,), None)
    learned = load(str(reward_model))
    for record, samples in records_and_samples(folder):
        texts = [sample["completion"] for sample in samples]
        cut = [encode(text) for text in texts]
        prompts = [encode(sample["prompt"]) for sample in samples]
        as_cut, as_ended = (
            learned([""] * 16, texts, ids, prompt_ids=prompts) for ids in (cut, [[*ids, eos] for ids in cut])
        )
        scores = np.array([sample["reward_model"] for sample in samples])
        distances = np.minimum(np.abs(scores - as_cut), np.abs(scores - as_ended))
        assert distances.max() < 1e-4 and np.std(scores) > 1e-3
        assert record["rewards/model/mean"] == pytest.approx(scores.mean(), abs=1e-5)
        total = 0.1 * scores + np.array([sample["reward_plan"] for sample in samples])
        np.testing.assert_allclose([sample["score"] for sample in samples], total, atol=1e-6)
        assert record["reward/truncated"] == 0


@pytest.fixture
def tune(tmp_path):
    """`sft.sft` on text for two steps, with these settings."""
    common = write_texts(tmp_path) | {"quiet": True, "response_length": 8}
    common |= {"model_path": ONE_LAYER, "batch_size": 4, "total_episodes": 8, "warmup_steps": 0}
    return lambda **settings: sft.sft(replace(SFTConfig(), **common | settings | {"output_dir": str(tmp_path / "sft")}))


@pytest.mark.full
def test_other_commands_report_the_mean_reward_of_data_without_plans(tune, tmp_path):
    words = {"reward_funcs": (f"{FUNCTIONS}:words",)}
    trained = tune(**words)
    common = {"dataset": str(tmp_path), "eval_splits": ("test",), "quiet": True, "response_length": 8} | words
    config = replace(EvaluateConfig(), **common, model=str(trained / "policy"), output_dir=str(tmp_path / "evaluate"))
    judged = evaluate.evaluate(config)
    first, second = (json.loads((folder / "eval.json").read_text()) for folder in (trained, judged))
    # `sft` also measures the loss of the reference completions.
    assert np.isfinite(first["test"].pop("loss")) and first["test"].pop("loss_tokens") > 0
    assert first == second and set(first["test"]) == {"mean_reward", "reward", "ended", "mean_tokens"}
    assert "mean reward" in (trained / "policy" / "README.md").read_text()


@pytest.mark.full
@pytest.mark.parametrize("reward_model", ["adapter"], indirect=True)
def test_supervised_training_is_scored_by_a_reward_that_shares_its_start(tune, reward_model):
    folder = tune(reward_funcs=("model",), reward_model_path=str(reward_model), eval_steps=1)
    assert np.isfinite(json.loads((folder / "eval.json").read_text())["test"]["mean_reward"])


@pytest.mark.full
def test_steps_before_an_evaluation_that_fails_are_not_lost(tune, tmp_path):
    with pytest.raises(DataError, match="bad luck"):
        tune(reward_funcs=(f"{FUNCTIONS}:unlucky",), eval_steps=1, metric_for_best_model="none")
    assert [record["step"] for record in read_metrics(tmp_path / "sft" / "metrics.jsonl")] == [1]
    assert Checkpoints(tmp_path / "sft" / "checkpoints", 2).latest == 1


def test_supervised_training_asks_for_columns_of_the_reward_before_it_starts(tune, tmp_path):
    with pytest.raises(DataError, match=r"on_topic: .*'topic'"):
        tune(reward_funcs=(f"{FUNCTIONS}:on_topic",))
    assert not (tmp_path / "sft").exists()


def test_models_with_too_few_positions_are_refused(tune, run, tmp_path):
    """A policy that cannot answer the prompts of an evaluation, and a value model that cannot read what is sampled."""
    tokenizer = hf.load_policy(ONE_LAYER).tokenizer
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, "vocab_size": len(tokenizer)}
    config = hf.config_from_hf({"model_type": "gpt2"} | sizes)
    for head in ("lm", "score"):
        hf.save_pretrained(tmp_path / head, config, models.init_params(config, jax.random.key(0), head), tokenizer)
    with pytest.raises(ModelError, match=r"eval_splits.*40 tokens"):
        tune(model_path=str(tmp_path / "lm"), reward_funcs=(f"{FUNCTIONS}:words",))
    with pytest.raises(ModelError, match=r"response_length: .*40 tokens"):
        run(value_model="separate", value_model_path=str(tmp_path / "score"))
