"""Self-training: rounds end to end, killed after every stage and resumed, and what it refuses."""

import contextlib
import dataclasses
import json
import re
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxppo import self_train
from jaxppo.config import EvaluateConfig, SelfTrainConfig, TrainConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.data import load_split
from jaxppo.errors import ConfigError, JaxppoError, TrainingError
from jaxppo.evaluate import sampled_plans
from jaxppo.evaluate.__main__ import evaluate
from jaxppo.evaluate.evaluator import Evaluator
from jaxppo.evaluate.sampled_plans import PlanSampler
from jaxppo.report.run_page import write_report
from jaxppo.rl.supervised import SFT
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.run.loop import TrainingLoop
from jaxppo.run.metrics import find
from tests.commands import comparable

FLAGS = ["--preset", "tiny", "--quiet", "--report_to", "none", "--total_episodes", "64"]
FLAGS += ["--sft_episodes", "48", "--sizes", "rl=4:24", "train=3:30", "test=4:8"]
FLAGS += ["--sizes", "test_longer=5:8", "--response_length", "48", "--learning_rate", "1e-3", "--warmup_steps", "1"]
FLAGS += ["--sample_batch_size", "4"]
"""2 rounds of 16 problems in four parts, 2 plans each; 3 steps, of which the second is saved."""


def settings(folder, *flags):
    config = parse_cli(SelfTrainConfig, "self_train", [*FLAGS, "--output_dir", str(folder), *map(str, flags)])
    return replace(config, eval_validator="builtin")


class Policies(NamedTuple):
    """The policies that the rounds of a run begin with, and those after them."""

    begun: list
    learned: list


def watched(config):
    """Carry out a run, and note its policies."""
    policies = Policies([], [])
    init_state, run = SFT.init_state, TrainingLoop.run

    def watched_start(self, params):
        policies.begun.append(jax.device_get(params))
        return init_state(self, params)

    def watched_run(self):
        state, meta = run(self)
        policies.learned.append(jax.device_get(state.params["policy"]))
        return state, meta

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SFT, "init_state", watched_start)
        patch.setattr(TrainingLoop, "run", watched_run)
        self_train.self_train(config)
    return policies


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and its policies."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, watched(settings(folder))


@pytest.fixture(scope="module")
def whole(finished):
    """The folder of the finished run."""
    return finished[0]


def equal(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def outcome(folder):
    """Everything that a run leaves behind, but for what may differ between two equal runs."""
    rounds = sorted((folder / "rounds").iterdir())
    files = [folder / name for name in ("policy/model.safetensors", "eval.json", "eval_samples.json")]
    files += sorted(folder.rglob("samples.jsonl")) + sorted(folder.rglob("kept.jsonl"))
    return {
        "records": comparable(folder),
        "steps": [comparable(each) for each in rounds],
        **{path.relative_to(folder).as_posix(): path.read_bytes() for path in files},
    }


def test_a_run_leaves_a_record_and_valid_plans_of_every_round_which_trains_the_start(finished):
    whole, policies = finished
    assert equal(*policies.begun)
    assert not equal(policies.begun[0], policies.learned[0]) and not equal(*policies.learned)
    first, last = comparable(whole)
    assert [first["step"], last["step"]] == [1, 2] and [first["episode"], last["episode"]] == [32, 64]
    assert last["epoch"] == 64 / (24 * 2)
    for number, record in enumerate((first, last), 1):
        plans = sampled_plans.read_plans(whole / "rounds" / str(number) / "samples.jsonl")
        assert len(plans) == 32 and record["self_train/valid"] == sum(plan.valid for plan in plans) / 32
        assert 0 < record["self_train/valid"] < 1 and record["self_train/valid"] <= record["self_train/solved"]
        assert 0 < record["self_train/kept"] <= record["self_train/distinct"]
        assert record["self_train/start_rows"] == min(30, record["self_train/kept"])
        assert record["self_train/loss"] == comparable(whole / "rounds" / str(number))[-1]["loss"] > 0
    whole_record = read_metrics(whole / "metrics.jsonl")[-1]
    assert {"time/rollout_s", "time/reward_s", "time/update_s", "time/eval_s"} <= whole_record.keys()
    assert [name for name in whole_record if find(name) is None] == []
    for number in (1, 2):
        folder = whole / "rounds" / str(number)
        config = dataclasses.replace(settings(whole).data, dataset=str(folder))
        rows = load_split(config, "kept")  # checks every column
        plans = sampled_plans.read_plans(folder / "samples.jsonl")
        valid = {(plan.id, plan.completion): plan for plan in plans if plan.valid}
        assert len(rows) == comparable(whole)[number - 1]["self_train/kept"]
        for row in rows:
            assert valid[row["id"], row["completion"]].actions == row["reference_plan"]
        assert max(sum(row["id"] == each["id"] for each in rows) for row in rows) <= 2


def test_what_is_evaluated_is_what_is_exported_and_reported(whole):
    evals = json.loads((whole / "eval.json").read_text())
    assert evals["headline_split"] == "test_longer" and evals.keys() == {"headline_split", "before", "after"}
    for moment in ("before", "after"):
        assert {split: cell["validity"]["n"] for split, cell in evals[moment].items()} == {"test": 8, "test_longer": 8}
    last = comparable(whole)[-1]
    assert last["eval/test/validity"] == evals["after"]["test"]["validity"]["rate"]
    sizes = {"sizes": ("test=4:8", "test_longer=5:8"), "eval_validator": "builtin", "response_length": 48}
    config = replace(EvaluateConfig(), model=[str(whole / "policy")], output_dir=str(whole.parent / "judged"), **sizes)
    evaluate(config)
    again = json.loads((whole.parent / "judged" / "eval.json").read_text())
    assert again["test"]["validity"] == evals["after"]["test"]["validity"]
    assert again["test_longer"]["mean_reward"] == pytest.approx(evals["after"]["test_longer"]["mean_reward"])
    card = (whole / "policy" / "README.md").read_text()
    assert "self-training" in card.lower() and "after update 2" in card
    text = write_report(whole).read_text()
    (table,) = [part for part in text.split("<table ") if part.startswith('id="rounds-table"')]
    lines = table.split("</table>")[0].replace("\n", "").split("<tr")[2:]
    assert len(lines) == 2
    for line, record in zip(lines, comparable(whole), strict=True):
        assert f"<td>{record['episode']}</td><td>{record['self_train/valid']:.1%}</td>" in line
        assert line.endswith(f"<td>{record['eval/test_longer/validity']:.1%}</td></tr>") or "</tbody>" in line
    assert "2 rounds" in text
    assert "python -m jaxppo.self_train --config" in text


def test_a_finished_run_is_left_as_it_is_and_other_settings_and_rounds_without_a_plan_are_refused(whole, tmp_path):
    before = outcome(whole)
    self_train.self_train(settings(whole, "--resume"))
    assert outcome(whole) == before
    with pytest.raises(ConfigError, match="start_ratio"):
        self_train.self_train(settings(whole, "--resume", "--start_ratio", "0"))
    # Where no plan of a round is valid, it is named.
    plans = read_metrics(whole / "rounds/1/samples.jsonl")
    lines = [json.dumps(plan | {"valid": False}) + "\n" for plan in plans]
    (tmp_path / "samples.jsonl").write_text("".join(lines))
    this = self_train.Round(1, tmp_path)
    with pytest.raises(TrainingError, match=r"round 1: .* 32 "):
        self_train.keep(SimpleNamespace(config=settings(tmp_path)), this)


class Killed(BaseException):
    """As SIGKILL: nothing that handles errors sees it."""


class Fate:
    """Kills the run when it comes to a place for the n-th time, and lists what was done until then."""

    def __init__(self, patch):
        self.place, self.left, self.work = "", 0, []
        append, complete, step = JsonlLog.append, PlanSampler._complete, SFT.step
        with_samples, write_models = Evaluator.with_samples, self_train.write_models

        def logged(log, record):
            append(log, record)
            if "completion" in record:
                self.pass_by("a sampled plan")
            elif "self_train/loss" in record:
                self.pass_by("a record")

        def completed(sampler, params, part):
            self.work.append("part")
            return complete(sampler, params, part)

        def stepped(sft, rows):
            inner = step(sft, rows)

            def one(state, host, number):
                self.work.append("step")
                return inner(state, host, number)

            return one

        def evaluated(evaluator, params, **options):
            self.pass_by("an evaluation")
            self.work.append("evaluation")
            return with_samples(evaluator, params, **options)

        def written(*args, **kwargs):
            write_models(*args, **kwargs)
            self.pass_by("export")

        patch.setattr(JsonlLog, "append", logged)
        patch.setattr(PlanSampler, "_complete", completed)
        patch.setattr(SFT, "step", stepped)
        patch.setattr(Evaluator, "with_samples", evaluated)
        patch.setattr(self_train, "write_models", written)

    def pass_by(self, place):
        if place == self.place:
            self.left -= 1
            if self.left == 0:
                raise Killed(place)


KILLS = [
    # Where, the n-th time, and what is done until then.
    ("a sampled plan", 13, ["evaluation", "part", "part"]),  # in the second of four parts
    ("an evaluation", 1, ["part", "part", "part", "step", "step", "step"]),  # of the first round
    ("a record", 1, ["evaluation"]),  # from the last checkpoint
    ("a sampled plan", 1, ["part"]),  # of the second round
    ("an evaluation", 1, ["part", "part", "part", "part", "step", "step", "step"]),
    ("export", 1, ["evaluation"]),
    ("never", 1, ["evaluation"]),  # its answers are in no file but that of the finished run
]


@pytest.mark.full
def test_a_run_killed_everywhere_equals_the_uninterrupted_one(whole, tmp_path, monkeypatch):
    """One run, killed further on each time; only what a kill has interrupted is done twice."""
    fate = Fate(monkeypatch)
    folder = tmp_path / "run"
    for place, count, work in KILLS:
        fate.place, fate.left, fate.work = place, count, []
        stop = contextlib.nullcontext() if place == "never" else pytest.raises(Killed, match=place)
        with stop:
            self_train.self_train(settings(folder, *(["--resume"] if folder.exists() else [])))
        assert fate.work == work, place
    assert outcome(folder) == outcome(whole)
    assert not (folder / "rounds/1/checkpoints").exists()  # nobody goes on from there


def test_the_default_samples_as_many_plans_as_train():
    config = parse_cli(SelfTrainConfig, "self_train", [])
    ppo = parse_cli(TrainConfig, "train", [])
    problems = config.problems_per_round(3000)
    assert config.num_rounds * problems * config.num_generations == ppo.total_episodes == config.total_episodes
    assert config.sft_model_path == ppo.sft_model_path and config.data.train_split == ppo.data.train_split
    assert config.sampling.response_length == ppo.sampling.response_length
    # Plans are sampled for whole problems.
    for total, problems in ((None, 50), (1, 1), (24, 4), (25, 5), (6000, 1000)):
        config = replace(SelfTrainConfig(), num_rounds=3, num_generations=2, total_episodes=total)
        assert config.problems_per_round(50) == problems


def test_a_dry_run_says_how_many_plans_are_sampled(tmp_path, capsys):
    config = settings(tmp_path / "run", "--dry_run", "--num_rounds", "3", "--num_generations", "5")
    self_train.self_train(replace(config, quiet=False))
    plan = capsys.readouterr().out.split("run: ")[1].split("size: ")[0]
    # 3 rounds x 5 problems x 5 plans = 75 episodes, 0.62 passes over 24 problems; 3 optimizer steps of 16 rows.
    assert re.findall(r"\d+(?:\.\d+)?", plan)[:8] == ["3", "5", "5", "75", "0.62", "24", "3", "16"]
    assert not (tmp_path / "run").exists()


POSITIVE = ("num_rounds", "num_generations", "max_plans_per_problem", "total_episodes", "sft_episodes")
BAD = {name: [f"--{name}", "0"] for name in POSITIVE} | {
    "start_ratio": ["--start_ratio", "-1"],
    "pool": ["--pool", "all"],
    "temperature": ["--temperature", "0"],
    "min_p": ["--min_p", "0.1"],
    "output_min_length": ["--output_min_length", "3"],
    "stop_token": ["--stop_token", "none"],
    "vocabulary": ["--stop_token", "999999"],
    "start_split": ["--start_split", "rl"],
    "reward_funcs": ["--reward_funcs", "server"],
    "value_learning_rate": ["--value_learning_rate", "1"],
    "target": ["--dry_run", "--target", "tpu-v5e-4"],
    "train_split": ["--train_split", "nowhere"],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_setting_is_one_line_that_names_it(name, tmp_path):
    with pytest.raises(JaxppoError) as refused:
        self_train.self_train(settings(tmp_path / "run", *BAD[name]))
    assert name in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()
