"""Self-training: rounds end to end, killed after every stage and resumed, and what it refuses."""

import contextlib
import dataclasses
import json
import re
import shutil
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxppo import self_train
from jaxppo.config import EvaluateConfig, SelfTrainConfig, TrainConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.data import load_split
from jaxppo.errors import ConfigError, DataError, JaxppoError, TrainingError
from jaxppo.evaluate import sampled_plans
from jaxppo.evaluate.__main__ import evaluate
from jaxppo.report.run_page import write_report
from jaxppo.rl.supervised import SFT
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.run.loop import TrainingLoop
from jaxppo.run.metrics import MAY_DIFFER, find
from jaxppo.run.stages import Stages
from tests.commands import comparable
from tests.small_runs import cut_back

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


def same(record):
    return {name: value for name, value in record.items() if not name.startswith(MAY_DIFFER)}


def equal(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def outcome(folder):
    """Everything that a run leaves behind, but for what may differ between two equal runs."""
    rounds = sorted((folder / "rounds").iterdir())
    stages = [json.loads((each / "stages.json").read_text()) for each in rounds]
    files = [folder / name for name in ("policy/model.safetensors", "eval.json", "eval_samples.json")]
    files += sorted(folder.rglob("samples.jsonl")) + sorted(folder.rglob("kept.jsonl"))
    return {
        "records": comparable(folder),
        "steps": [comparable(each) for each in rounds],
        "stages": [{name: same(stage) for name, stage in each.items()} for each in stages],
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
    this = self_train.Round(1, tmp_path, Stages(tmp_path))
    with pytest.raises(TrainingError, match=r"round 1: .* 32 "):
        self_train.keep(SimpleNamespace(config=settings(tmp_path)), this, [])


@pytest.mark.full
def test_a_round_may_go_on_from_the_last_and_learn_from_all_rounds(tmp_path):
    policies = watched(settings(tmp_path / "run", "--start_from", "last", "--pool", "all"))
    assert equal(policies.begun[1], policies.learned[0]) and not equal(*policies.learned)
    earlier, both = ({row["id"] for row in read_metrics(tmp_path / "run/rounds" / n / "kept.jsonl")} for n in "12")
    assert earlier < both


class Killed(BaseException):
    """As SIGKILL: nothing that handles errors sees it."""


class Fate:
    """Kills the run when it comes to a place for the n-th time, and lists the stages and steps done until then."""

    def __init__(self, patch):
        self.place, self.left, self.work = "", 0, []
        append, once, step = JsonlLog.append, Stages.once, SFT.step
        write_models = self_train.write_models

        def logged(log, record):
            append(log, record)
            self.pass_by("a sampled plan" if "completion" in record else "a record")

        def staged(stages, name, do):
            def done():
                result = do()
                self.work.append(f"{stages._path.parent.name} {name}")
                self.pass_by(f"{name}, not noted")
                return result

            was_done = name in stages
            result = once(stages, name, done)
            if not was_done:
                self.pass_by(f"{name}, noted")
            return result

        def stepped(sft, rows):
            inner = step(sft, rows)

            def one(state, host, number):
                self.work.append("step")
                return inner(state, host, number)

            return one

        def written(*args, **kwargs):
            write_models(*args, **kwargs)
            self.pass_by("export")

        patch.setattr(JsonlLog, "append", logged)
        patch.setattr(Stages, "once", staged)
        patch.setattr(SFT, "step", stepped)
        patch.setattr(self_train, "write_models", written)

    def pass_by(self, place):
        if place == self.place:
            self.left -= 1
            if self.left == 0:
                raise Killed(place)


KILLS = [
    # Where, the n-th time, and what is done until then.
    ("a sampled plan", 13, []),  # in the second of four parts
    ("learning, not noted", 1, ["1 sampling", "1 kept", "step", "step", "step", "1 learning"]),
    ("evaluation, noted", 1, ["1 learning", "1 evaluation"]),  # from the last checkpoint
    ("learning, noted", 1, ["2 sampling", "2 kept", "step", "step", "step", "2 learning"]),
    ("evaluation, not noted", 1, ["2 evaluation"]),
    ("export", 1, ["2 evaluation"]),
    ("never", 1, []),
]


@pytest.mark.full
def test_a_run_killed_everywhere_equals_the_uninterrupted_one(whole, tmp_path, monkeypatch):
    """One run, killed further on each time; every piece of work is done once, but for what a kill has interrupted."""
    fate = Fate(monkeypatch)
    folder = tmp_path / "run"
    for place, count, work in KILLS:
        fate.place, fate.left, fate.work = place, count, []
        stop = contextlib.nullcontext() if place == "never" else pytest.raises(Killed, match=place)
        with stop:
            self_train.self_train(settings(folder, *(["--resume"] if folder.exists() else [])))
        assert fate.work == work, place
    assert outcome(folder) == outcome(whole)


@pytest.mark.full
def test_a_round_without_its_checkpoint_is_refused(whole, tmp_path):
    assert not (whole / "rounds/1/checkpoints").exists()  # nobody goes on from there
    folder = cut_back(shutil.copytree(whole, tmp_path / "run"))
    shutil.rmtree(folder / "rounds/2/checkpoints")
    with pytest.raises(DataError, match="rounds/2/checkpoints"):
        self_train.self_train(settings(folder, "--resume"))


def test_the_default_samples_as_many_plans_as_train():
    config = parse_cli(SelfTrainConfig, "self_train", [])
    ppo = parse_cli(TrainConfig, "train", [])
    problems = config.problems_per_round(3000)
    assert config.num_rounds * problems * config.num_generations == ppo.total_episodes == config.total_episodes
    assert config.sft_model_path == ppo.sft_model_path and config.data.train_split == ppo.data.train_split
    assert config.headline_split == ppo.headline_split
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
    "temperature": ["--temperature", "0"],
    "min_p": ["--min_p", "0.1"],
    "output_min_length": ["--output_min_length", "3"],
    "stop_token": ["--stop_token", "none"],
    "stop_token_id": ["--stop_token_id", "999999"],
    "headline_split": ["--headline_split", "train"],
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
