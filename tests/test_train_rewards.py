"""Training on other rewards than the plan reward alone: functions that fail, servers, learned models, plain prompts."""

import json
import signal
import sys
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jax
import numpy as np
import pytest

from jaxppo import data, hf, models, sft, train
from jaxppo.config import DataConfig, EvaluateConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import preset_values, replace
from jaxppo.errors import DataError, ModelError
from jaxppo.evaluate import __main__ as evaluate
from jaxppo.nn import lora
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.reward_functions.registry import reward_model_loader
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.preemption import Preempted
from tests.one_layer import ONE_LAYER

FUNCTIONS = '''
import os, time

def fate(text):
    """A pure function of the completion, so that a test can say what must have happened."""
    return sum(map(ord, text)) % 6

def troubled(completions):
    (text,) = completions
    if fate(text) == 1:
        raise ValueError("bad luck")
    if fate(text) == 2:
        os._exit(3)
    if fate(text) == 3:
        time.sleep(600)
    if fate(text) == 4:
        return [None]
    return [1.0]

def clumsy(completions):
    if any(fate(text) < 3 for text in completions):
        raise ValueError("bad luck")
    return [1.0] * len(completions)

def unlucky(completions):
    raise ValueError("bad luck")

def on_topic(completions, topic):
    return [1.0 for text in completions]

def words(prompts, completions, completion_ids, prompt_ids, log_metric, **columns):
    assert all(len(ids) > 0 for ids in prompt_ids) and "reference_plan" not in columns
    log_metric("reward/words", sum(len(text.split()) for text in completions) / len(completions))
    return [None if not text else min(1.0, len(text.split()) / 20) for text in completions]
'''


SMALL = DataConfig(rl_sizes="4:20")


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    (folder / "train_rewards_functions.py").write_text(FUNCTIONS)
    return folder


@pytest.fixture
def run(tmp_path, functions, monkeypatch):
    """`train.train` of the preset tiny, two updates, with these settings.

    Completions so short that sequences have one length, and one learning rate: all runs share their compiled programs.
    """
    monkeypatch.syspath_prepend(str(functions))
    monkeypatch.setenv("PYTHONPATH", str(functions))

    def run_it(**settings):
        tiny = preset_values("train", "tiny") | {"total_episodes": 32, "num_ppo_epochs": 1, "num_mini_batches": 1}
        tiny |= {"test_sizes": "4:4", "test_longer_sizes": "5:4", "response_length": 22, "quiet": True}
        tiny |= {"lr_scheduler_type": "constant", "sft_model_path": ONE_LAYER}
        config = replace(TrainConfig(), **tiny | {"output_dir": str(tmp_path / "run")} | settings)
        train.train(config)
        return tmp_path / "run"

    return run_it


def records_and_samples(folder):
    records, samples = (read_metrics(folder / name) for name in ("metrics.jsonl", "samples.jsonl"))
    return [(record, [s for s in samples if s["step"] == record["step"]]) for record in records]


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


def test_an_adapter_of_a_reward_model_is_no_start_for_a_policy(run, tmp_path, monkeypatch):
    loaded = (lora.LoraConfig(r=2), {"trunk": {}, "score": {}})
    monkeypatch.setattr(hf.peft, "load_adapter", lambda *_: loaded)
    with pytest.raises(ModelError, match="lora_path: expected an adapter of a language model, got one with a score h"):
        run(use_peft=True, lora_path="somewhere")
    assert not (tmp_path / "run").exists()


class Scores(BaseHTTPRequestHandler):
    """Answers like LLaMA-Factory's server; fails 3 times in 10, or hangs."""

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.seen += 1
        if server.hangs:
            server.over.wait(60)
            return
        if server.seen % 10 in (2, 5, 9):
            server.failed += 1
            self.send_error(503)
            return
        answer = json.dumps({"scores": [float(len(text) % 3) for text in body["messages"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    """A server of its own for each test, with what it saw."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), Scores)
    made.seen, made.failed, made.hangs, made.over = 0, 0, False, threading.Event()
    made.url = f"http://127.0.0.1:{made.server_port}/"
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.over.set()
    made.shutdown()
    made.server_close()


@pytest.mark.full
def test_a_run_goes_on_without_the_completions_whose_reward_fails(run):
    folder = run(
        reward_funcs=("plan", "train_rewards_functions:troubled"),
        reward_weights=(1.0, 0.5),
        reward_timeout_s=1.0,
        on_error=-1.0,
        on_timeout="skip",
    )
    for record, samples in records_and_samples(folder):
        fates = [sum(map(ord, sample["completion"])) % 6 for sample in samples]
        assert len(samples) == 16 and len(set(fates)) >= 4
        assert record["reward/errors"] == sum(fate in (1, 2) for fate in fates)
        assert record["reward/timeouts"] == fates.count(3)
        assert record["reward/not_scorable"] == 0  # each has its plan reward
        for sample, fate in zip(samples, fates, strict=True):
            expected = {1: -1.0, 2: -1.0, 3: None, 4: None}.get(fate, 1.0)
            assert sample["reward_troubled"] == expected
            assert sample["score"] == pytest.approx(sample["reward_plan"] + 0.5 * (expected or 0.0))
        assert record["rewards/plan/mean"] == pytest.approx(record["reward/mean"])
        assert np.isfinite(record["loss/policy_avg"])


@pytest.mark.full
def test_reasons_of_failures_are_in_the_samples_of_updates_without_others(run):
    folder = run(reward_funcs=("train_rewards_functions:clumsy",), on_error="skip", num_sample_generations=0)
    for record, samples in records_and_samples(folder):
        assert len(samples) == record["reward/errors"] > 0
        assert {sample["clumsy_failed"] for sample in samples} == {"ValueError: bad luck"}


def test_a_run_stops_where_that_is_asked_for(run, tmp_path):
    with pytest.raises(DataError, match=r"reward troubled: expected a number for row \d+, got (Value|its process)"):
        run(reward_funcs=("train_rewards_functions:troubled",), reward_timeout_s=2.0, on_error="stop")
    assert not (tmp_path / "run" / "eval.json").exists()  # it failed in the evaluation before the first update


@pytest.mark.full
def test_a_flaky_server_is_asked_again_and_counted(run, server):
    folder = run(reward_funcs=("plan", "server"), reward_server_url=server.url)
    records = [record for record, _ in records_and_samples(folder)]
    assert sum(record["reward_server/requests"] + record["reward_server/retries"] for record in records) <= server.seen
    assert sum(record["reward/errors"] for record in records) == 0
    for record, samples in records_and_samples(folder):
        expected = [len(sample["prompt"] + sample["completion"]) % 3 for sample in samples]
        assert [sample["reward_server"] for sample in samples] == expected
        assert record["rewards/server/mean"] == pytest.approx(np.mean(expected))


@pytest.mark.full
@pytest.mark.parametrize("on_timeout", ["skip", "stop"])
def test_a_hanging_server_costs_its_time_limit(run, server, on_timeout):
    server.hangs = True
    began = time.monotonic()
    settings = {"reward_funcs": ("plan", "server"), "reward_server_url": server.url, "reward_timeout_s": 0.2}
    settings |= {"on_timeout": on_timeout, "on_error": "skip", "total_episodes": 16, "eval_splits": ("test_longer",)}
    if on_timeout == "stop":
        with pytest.raises(DataError, match=r"expected a complete answer within 0\.2 s"):
            run(**settings)
    else:
        ((record, samples),) = records_and_samples(run(**settings))
        assert record["reward/timeouts"] == 16 and record["reward_server/failures"] == 1
        assert all(sample["score"] == sample["reward_plan"] for sample in samples)
    assert time.monotonic() - began < 300


@pytest.mark.full
def test_prompts_without_plans_are_trained_on_a_function(run, tmp_path):
    rows = data.load_split(SMALL, "rl")
    for split, part in (("train", rows[:12]), ("test", rows[12:])):
        dataset_files.write_jsonl(
            [{"prompt": row["prompt"], "topic": "towers"} for row in part], tmp_path / f"{split}.jsonl"
        )
    folder = run(
        dataset=str(tmp_path),
        train_split="train",
        eval_splits=("test",),
        headline_split="test",
        eval_steps=1,
        reward_funcs=("train_rewards_functions:words",),
        metric_for_best_model="eval/test/mean_reward",
    )
    evals = json.loads((folder / "eval.json").read_text())
    assert evals["before"]["test"].keys() == {"mean_reward", "reward", "ended", "mean_tokens"}
    for moment in ("before", "after"):
        reward = evals[moment]["test"]["reward"]
        assert reward["n"] == 8 and reward["low"] <= reward["mean"] == evals[moment]["test"]["mean_reward"]
    first, last = read_metrics(folder / "metrics.jsonl")
    assert 0.0 <= first["eval/test/mean_reward"] <= 1.0
    assert "eval/test/mean_reward" not in last  # it is evaluated behind the run
    for record, samples in records_and_samples(folder):
        lengths = [len(sample["completion"].split()) for sample in samples]
        assert record["reward/words"] == pytest.approx(np.mean(lengths))
        assert record["rewards/words/mean"] == pytest.approx(np.mean([min(1, n / 20) for n in lengths if n]))
        assert record["reward/not_scorable"] == lengths.count(0) and "reward/plan_valid" not in record
    assert "mean reward" in (folder / "policy" / "README.md").read_text()
    assert (folder / "curves.png").stat().st_size > 10_000


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
    settings = {"reward_funcs": ("model", "plan"), "reward_weights": (0.1, 1.0), "use_score_scaling": True}
    folder = run(**settings, reward_model_path=str(reward_model))
    policy = hf.load_policy(ONE_LAYER)
    learned = reward_model_loader(policy.config, policy.params, policy.tokenizer, DataParallel())(str(reward_model))
    encode, eos = policy.tokenizer.encode, policy.tokenizer.eos_token_id
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


@pytest.mark.full
def test_other_commands_report_the_mean_reward_of_data_without_plans(functions, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(functions))
    rows = [{"prompt": row["prompt"], "completion": row["completion"]} for row in data.load_split(SMALL, "rl")]
    for split in ("train", "test"):
        dataset_files.write_jsonl(rows, tmp_path / f"{split}.jsonl")
    common = {"dataset": str(tmp_path), "eval_splits": ("test",), "reward_funcs": ("train_rewards_functions:words",)}
    common |= {"quiet": True, "response_length": 8}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "batch_size": 4, "total_episodes": 8, "warmup_steps": 0}
    trained = sft.sft(replace(SFTConfig(), **common, **sizes, output_dir=str(tmp_path / "sft")))
    judged = evaluate.evaluate(
        replace(EvaluateConfig(), **common, model=str(trained / "policy"), output_dir=str(tmp_path / "evaluate"))
    )
    first, second = (json.loads((folder / "eval.json").read_text()) for folder in (trained, judged))
    assert first == second and set(first["test"]) == {"mean_reward", "reward", "ended", "mean_tokens"}
    assert "mean reward" in (trained / "policy" / "README.md").read_text()


def short_model(tmp_path, head):
    """The folder of a GPT-2 with 40 positions and the words of the starting policy."""
    tokenizer = hf.load_policy(ONE_LAYER).tokenizer
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, "vocab_size": len(tokenizer)}
    config = hf.config_from_hf({"model_type": "gpt2"} | sizes)
    hf.save_pretrained(tmp_path / "short", config, models.init_params(config, jax.random.key(0), head), tokenizer)
    return str(tmp_path / "short")


@pytest.fixture
def tune(tmp_path, functions, monkeypatch):
    """`sft.sft` on text for two steps, with these settings."""
    monkeypatch.syspath_prepend(str(functions))
    rows = [{"prompt": row["prompt"], "completion": row["completion"]} for row in data.load_split(SMALL, "rl")]
    for split in ("train", "test"):
        dataset_files.write_jsonl(rows[:8], tmp_path / f"{split}.jsonl")
    common = {"dataset": str(tmp_path), "eval_splits": ("test",), "quiet": True, "response_length": 8}
    common |= {"model_path": ONE_LAYER, "batch_size": 4, "total_episodes": 8, "warmup_steps": 0}
    return lambda **settings: sft.sft(replace(SFTConfig(), **common | settings | {"output_dir": str(tmp_path / "sft")}))


@pytest.mark.full
def test_supervised_training_is_scored_by_a_reward_that_shares_its_start(tune, reward_model):
    folder = tune(reward_funcs=("model",), reward_model_path=str(reward_model), eval_steps=1)
    assert np.isfinite(json.loads((folder / "eval.json").read_text())["test"]["mean_reward"])


@pytest.mark.full
def test_steps_before_an_evaluation_that_fails_are_not_lost(tune, tmp_path, capsys):
    with pytest.raises(DataError, match="bad luck"):
        tune(reward_funcs=("train_rewards_functions:unlucky",), eval_steps=1, metric_for_best_model="none")
    assert "update 1 is saved without its evaluation" in "".join(capsys.readouterr())
    assert [record["step"] for record in read_metrics(tmp_path / "sft" / "metrics.jsonl")] == [1]
    assert Checkpoints(tmp_path / "sft" / "checkpoints", 2).latest == 1


def test_supervised_training_asks_for_columns_of_the_reward_before_it_starts(tune, tmp_path):
    with pytest.raises(DataError, match="reward on_topic: expected a data column 'topic'"):
        tune(reward_funcs=("train_rewards_functions:on_topic",))
    assert not (tmp_path / "sft").exists()


def test_supervised_training_refuses_texts_that_are_longer_than_the_model(tune, tmp_path):
    folder = short_model(tmp_path, "lm")
    with pytest.raises(ModelError, match="longest prompt and completion of train_split: expected at most 40 tokens"):
        tune(model_path=folder, reward_funcs=("train_rewards_functions:words",))


def test_a_value_model_with_too_few_positions_is_refused(run, tmp_path):
    with pytest.raises(ModelError, match="longest prompt and response_length: expected at most 40 tokens"):
        run(value_model_path=short_model(tmp_path, "score"))
