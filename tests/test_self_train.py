"""Self-training: rounds end to end, killed after every stage and resumed, and what it refuses."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxppo import self_train
from jaxppo.config import EvaluateConfig, SelfTrainConfig, TrainConfig, sources
from jaxppo.config.sources import parse_cli, replace
from jaxppo.data import load_split
from jaxppo.errors import ConfigError, DataError, JaxppoError
from jaxppo.evaluate import sampled_plans
from jaxppo.evaluate.__main__ import evaluate
from jaxppo.evaluate.evaluator import Evaluator
from jaxppo.report.run_page import write_report
from jaxppo.rl.supervised import SFT
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.run.loop import TrainingLoop
from jaxppo.run.metrics import MAY_DIFFER, find
from jaxppo.run.stages import Stages
from tests.one_layer import ONE_LAYER

FLAGS = ["--preset", "tiny", "--quiet", "--report_to", "none", "--eval_validator", "builtin", "--total_episodes", "64"]
FLAGS += ["--sft_episodes", "48", "--rl_sizes", "4:24", "--train_sizes", "3:30", "--test_sizes", "4:8"]
FLAGS += ["--test_longer_sizes", "5:8", "--response_length", "48", "--learning_rate", "1e-3", "--warmup_steps", "1"]
FLAGS += ["--sample_batch_size", "4"]
"""2 rounds of 16 problems in four parts, 2 plans each; 3 steps, of which the second is saved."""


def settings(folder, *flags):
    return parse_cli(SelfTrainConfig, "self_train", [*FLAGS, "--output_dir", str(folder), *map(str, flags)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert self_train.self_train(settings(folder)) == folder
    return folder


def same(record):
    return {name: value for name, value in record.items() if not name.startswith(MAY_DIFFER)}


def records(folder):
    return [same(record) for record in read_metrics(folder / "metrics.jsonl")]


WRITTEN = ("policy/model.safetensors", "eval.json", "eval_samples.json")


def outcome(folder):
    """Everything that a run leaves behind, but for what may differ between two equal runs."""
    rounds = sorted((folder / "rounds").iterdir())
    return {
        "records": records(folder),
        "steps": [records(each) for each in rounds],
        "stages": [
            {name: same(found) for name, found in json.loads((each / "stages.json").read_text()).items()}
            for each in rounds
        ],
        **{path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("samples.jsonl"))},
        **{path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("kept.jsonl"))},
        **{
            name: (folder / name).read_bytes()
            for name in ("policy/model.safetensors", "eval.json", "eval_samples.json")
        },
    }


# ------------------------------------------------------------------------------------------------------- end to end


def test_a_run_leaves_a_record_for_every_round(whole):
    first, last = records(whole)
    assert [first["step"], last["step"]] == [1, 2] and [first["episode"], last["episode"]] == [32, 64]
    assert last["epoch"] == 64 / (24 * 2)
    for number, record in enumerate((first, last), 1):
        plans = sampled_plans.read_plans(whole / "rounds" / str(number) / "samples.jsonl")
        assert len(plans) == 32 and record["self_train/valid"] == sum(plan.valid for plan in plans) / 32
        assert 0 < record["self_train/valid"] < 1 and record["self_train/valid"] <= record["self_train/solved"]
        assert 0 < record["self_train/kept"] <= record["self_train/distinct"]
        assert record["self_train/start_rows"] == min(30, record["self_train/kept"])
        assert record["self_train/loss"] == records(whole / "rounds" / str(number))[-1]["loss"] > 0
    whole_record = read_metrics(whole / "metrics.jsonl")[-1]
    assert {"time/rollout_s", "time/reward_s", "time/update_s", "time/eval_s"} <= whole_record.keys()
    assert [name for name in whole_record if find(name) is None] == []


def test_what_is_evaluated_is_what_is_exported(whole):
    evals = json.loads((whole / "eval.json").read_text())
    assert evals["headline_split"] == "test_longer" and evals.keys() == {"headline_split", "before", "after"}
    for moment in ("before", "after"):
        assert {split: cell["validity"]["n"] for split, cell in evals[moment].items()} == {"test": 8, "test_longer": 8}
    last = records(whole)[-1]
    assert last["eval/test/validity"] == evals["after"]["test"]["validity"]["rate"]
    sizes = {"test_sizes": "4:8", "test_longer_sizes": "5:8", "eval_validator": "builtin", "response_length": 48}
    config = replace(EvaluateConfig(), model=[str(whole / "policy")], output_dir=str(whole.parent / "judged"), **sizes)
    evaluate(config)
    again = json.loads((whole.parent / "judged" / "eval.json").read_text())
    assert again["test"]["validity"] == evals["after"]["test"]["validity"]
    assert again["test_longer"]["mean_reward"] == pytest.approx(evals["after"]["test_longer"]["mean_reward"])
    card = (whole / "policy" / "README.md").read_text()
    assert "self-training" in card.lower() and "after update 2" in card


def test_what_is_kept_is_a_data_set_of_valid_plans(whole):
    for number in (1, 2):
        folder = whole / "rounds" / str(number)
        config = dataclasses.replace(settings(whole).data, dataset=str(folder))
        rows = load_split(config, "kept")  # checks every column
        plans = sampled_plans.read_plans(folder / "samples.jsonl")
        valid = {(plan.id, plan.completion): plan for plan in plans if plan.valid}
        assert len(rows) == records(whole)[number - 1]["self_train/kept"]
        for row in rows:
            assert valid[row["id"], row["completion"]].actions == row["reference_plan"]
        assert max(sum(row["id"] == each["id"] for each in rows) for row in rows) <= 2


def test_the_report_has_a_line_for_each_round(whole):
    text = write_report(whole).read_text()
    (table,) = [part for part in text.split("<table ") if part.startswith('id="rounds-table"')]
    lines = table.split("</table>")[0].split("<tr")[2:]
    assert len(lines) == 2
    for line, record in zip(lines, records(whole), strict=True):
        assert f"<td>{record['episode']}</td><td>{record['self_train/valid']:.1%}</td>" in line
        assert line.endswith(f"<td>{record['eval/test_longer/validity']:.1%}</td></tr>") or "</tbody>" in line
    assert "self-training on blocksworld · finished after 2 rounds" in text
    assert "python -m jaxppo.self_train --config" in text


def test_a_finished_run_is_left_as_it_is(whole):
    before = outcome(whole)
    self_train.self_train(settings(whole, "--resume"))
    assert outcome(whole) == before


@pytest.fixture
def begun(monkeypatch):
    """The policies that the rounds of a run begin with, and their states after it."""
    seen = {"start": [], "after": []}
    init_state, run = SFT.init_state, TrainingLoop.run

    def spy(self, params):
        seen["start"].append(jax.device_get(params))
        return init_state(self, params)

    def spy_after(self):
        state, meta = run(self)
        seen["after"].append(jax.device_get(state.params["policy"]))
        return state, meta

    monkeypatch.setattr(SFT, "init_state", spy)
    monkeypatch.setattr(TrainingLoop, "run", spy_after)
    return seen


def equal(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


@pytest.mark.full
@pytest.mark.parametrize("start_from", ["start", "last"])
def test_a_round_trains_the_start_or_goes_on(tmp_path, begun, start_from):
    self_train.self_train(settings(tmp_path / "run", "--start_from", start_from, "--pool", "all"))
    first, second = begun["start"]
    assert not equal(first, begun["after"][0]) and not equal(begun["after"][0], begun["after"][1])
    assert equal(second, first if start_from == "start" else begun["after"][0])
    earlier, both = ({row["id"] for row in read_metrics(tmp_path / "run/rounds" / n / "kept.jsonl")} for n in "12")
    assert earlier < both  # of all rounds so far


@pytest.mark.full
@pytest.mark.parametrize("parallel", ["pmap", "fsdp"])
def test_a_round_is_the_same_however_it_is_spread_over_the_devices(whole, tmp_path, parallel):
    self_train.self_train(settings(tmp_path / "run", "--parallel", parallel))
    first, expected = (folder / "rounds/1/samples.jsonl" for folder in (tmp_path / "run", whole))
    assert first.read_bytes() == expected.read_bytes()
    steps = [[record["loss"] for record in records(folder / "rounds/1")] for folder in (tmp_path / "run", whole)]
    np.testing.assert_allclose(*steps, rtol=1e-4)


# ----------------------------------------------------------------------------------------------------------- resuming


class Killed(BaseException):
    """As SIGKILL: nothing that handles errors sees it."""


class Fate:
    """Kills the run at the n-th of the places where it may happen, and lists what is done meanwhile."""

    def __init__(self, patch):
        self.at, self.places, self.work = 0, 0, []
        append, once, complete, step = JsonlLog.append, Stages.once, Evaluator.complete, SFT.step
        models, evaluated = self_train.write_models, Evaluator.with_samples

        def logged(log, record):
            append(log, record)
            self.pass_by(f"a line of {log.path.name}") if "completion" in record else self.pass_by("a record")

        def staged(stages, name, do):
            def done():
                found = do()
                self.work.append((stages._path.parent.name, name))
                self.pass_by(f"{name}, not noted")
                return found

            was_done = name in stages
            found = once(stages, name, done)
            if not was_done:
                self.pass_by(f"{name}, noted")
            return found

        def completed(evaluator, params, split, *args):
            if split == "rl":
                self.work.append(("sample", *args))
            return complete(evaluator, params, split, *args)

        def stepped(sft, rows):
            inner = step(sft, rows)

            def one(state, number):
                self.work.append(("step", number))
                return inner(state, number)

            return one

        def whole_evaluation(evaluator, *args, **kwargs):
            self.work.append(("evaluation",))
            return evaluated(evaluator, *args, **kwargs)

        def written(*args, **kwargs):
            models(*args, **kwargs)
            self.pass_by("export")

        patch.setattr(JsonlLog, "append", logged)
        patch.setattr(Stages, "once", staged)
        patch.setattr(Evaluator, "complete", completed)
        patch.setattr(Evaluator, "with_samples", whole_evaluation)
        patch.setattr(SFT, "step", stepped)
        patch.setattr(self_train, "write_models", written)

    def pass_by(self, place):
        self.places += 1
        if self.places == self.at:
            raise Killed(place)


KILLED_AT = ("sampling, noted", "learning, not noted", "learning, noted", "evaluation, not noted")


@pytest.mark.full
def test_a_run_killed_everywhere_equals_the_uninterrupted_one(whole, tmp_path, monkeypatch):
    """One run, killed further on each time; every piece of work is done once, but for what a kill has interrupted."""
    fate = Fate(monkeypatch)
    folder, killed, every = tmp_path / "run", [], 23  # more than what is logged of a round, and the lines of a part
    for start in range(30):
        fate.at, fate.places, fate.work = every, 0, []
        try:
            self_train.self_train(settings(folder, *(["--resume"] if start else [])))
            break
        except Killed as kill:
            killed.append((str(kill), fate.work))
    assert outcome(folder) == outcome(whole)
    assert len(killed) > 5 and len({kill for kill, _ in killed}) > 2
    work = [one for _, works in killed for one in works] + fate.work
    stages = [one for one in work if one[0] in ("1", "2")]
    unnoted = [kill.removesuffix(", not noted") for kill, _ in killed if kill.endswith(", not noted")]
    for name in ("sampling", "kept", "learning", "evaluation"):
        again = unnoted.count(name)
        assert sum(one[1] == name for one in stages) == 2 + again, name


@pytest.mark.full
@pytest.mark.parametrize("place", KILLED_AT)
def test_a_stage_that_is_done_is_not_done_again(whole, tmp_path, monkeypatch, place):
    """Killed in the second round, at a place by name."""
    name, noted = place.split(", ")
    with monkeypatch.context() as patch:
        fate, passed = Fate(patch), []

        def pass_by(where):
            passed.append(where)
            if where == place and passed.count(place) == 2:
                raise Killed(where)

        patch.setattr(fate, "pass_by", pass_by)
        with pytest.raises(Killed, match=place):
            self_train.self_train(settings(tmp_path / "run"))
    with monkeypatch.context() as patch:
        fate = Fate(patch)
        self_train.self_train(settings(tmp_path / "run", "--resume"))
    order = ["sampling", "kept", "learning", "evaluation"]
    left = order[order.index(name) + (noted == "noted") :]
    assert [one for one in fate.work if one[0] in ("1", "2")] == [("2", each) for each in left]
    assert [one for one in fate.work if one[0] == "sample"] == []
    assert ("step", 0) not in fate.work if name in ("learning", "evaluation") else ("step", 0) in fate.work
    assert fate.work.count(("evaluation",)) == ("evaluation" in left)
    assert outcome(tmp_path / "run") == outcome(whole)


def test_only_the_last_round_keeps_its_checkpoint(whole):
    assert not (whole / "rounds/1/checkpoints").exists() and (whole / "rounds/2/checkpoints").exists()


@pytest.mark.full
def test_a_round_without_its_checkpoint_is_refused(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    evals = json.loads((folder / "eval.json").read_text())
    del evals["after"]
    (folder / "eval.json").write_text(json.dumps(evals))
    shutil.rmtree(folder / "rounds/2/checkpoints")
    with pytest.raises(DataError, match="expected the checkpoint of a round that is done, found none"):
        self_train.self_train(settings(folder, "--resume"))


def test_other_settings_are_refused_on_resume(whole):
    with pytest.raises(ConfigError, match=r"start_ratio 0\.0 \(was 1\.0\)"):
        self_train.self_train(settings(whole, "--resume", "--start_ratio", "0"))


# ----------------------------------------------------------------------------------------------------------- settings


def test_the_default_samples_as_many_plans_as_train():
    config = parse_cli(SelfTrainConfig, "self_train", [])
    ppo = parse_cli(TrainConfig, "train", [])
    problems = config.problems_per_round(3000)
    assert config.num_rounds * problems * config.num_generations == ppo.total_episodes == config.total_episodes
    assert config.sft_model_path == ppo.sft_model_path and config.data.train_split == ppo.data.train_split
    assert config.headline_split == ppo.headline_split
    assert config.sampling.response_length == ppo.sampling.response_length


@pytest.mark.parametrize(("total", "problems"), [(None, 50), (1, 1), (24, 4), (25, 5), (6000, 1000)])
def test_plans_are_sampled_for_whole_problems(total, problems):
    config = replace(SelfTrainConfig(), num_rounds=3, num_generations=2, total_episodes=total)
    assert config.problems_per_round(50) == problems


def test_a_dry_run_says_how_many_plans_are_sampled(tmp_path, capsys):
    config = settings(tmp_path / "run", "--dry_run", "--num_rounds", "3", "--num_generations", "5")
    self_train.self_train(replace(config, quiet=False))
    out = capsys.readouterr().out
    assert "3 rounds x 5 problems x 5 plans = 75 episodes, 0.62 passes over 24 problems" in out
    assert "in each round 3 optimizer steps of 16 rows from the start model" in out
    assert not (tmp_path / "run").exists()


BAD = {
    "num_rounds": (["--num_rounds", "0"], "a number above 0"),
    "num_generations": (["--num_generations", "0"], "a number above 0"),
    "max_plans_per_problem": (["--max_plans_per_problem", "0"], "a number above 0"),
    "total_episodes": (["--total_episodes", "0"], "a number above 0"),
    "sft_episodes": (["--sft_episodes", "0"], "a number above 0"),
    "start_ratio": (["--start_ratio", "-1"], "a finite number"),
    "temperature": (["--temperature", "0"], "greedy plans of a problem are all the same"),
    "min_p": (["--min_p", "0.1"], "None with self_train"),
    "output_min_length": (["--output_min_length", "3"], "None with self_train"),
    "stop_token": (["--stop_token", "none"], "a plan ends"),
    "stop_token_id": (["--stop_token_id", "999999"], "less than the vocabulary's"),
    "headline_split": (["--headline_split", "train"], "one of eval_splits"),
    "start_split": (["--start_split", "rl"], "another than train_split"),
    "reward_funcs": (["--reward_funcs", "server"], "what a validator accepts"),
    "value_learning_rate": (["--value_learning_rate", "1"], "no value model"),
    "target": (["--dry_run", "--target", "tpu-v5e-4"], "None"),
    "pool": (["--pool", "none"], "round"),
    "batch_size": (["--batch_size", "6"], "a multiple of data x fsdp devices"),
    "train_split": (["--train_split", "nowhere"], "one of train, rl, test, test_longer"),
    "metric_for_best_model": (["--metric_for_best_model", "loss"], "a round takes its last step"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_setting_is_one_line_that_names_it(name, tmp_path):
    flags, expected = BAD[name]
    with pytest.raises(JaxppoError) as refused:
        self_train.self_train(settings(tmp_path / "run", *flags))
    message = str(refused.value)
    assert name in message and expected in message and "\n" not in message
    assert not (tmp_path / "run").exists()


def test_a_start_that_solves_nothing_is_told_what_to_do(tmp_path):
    with pytest.raises(JaxppoError, match="round 1: expected at least one valid plan among 32 sampled ones, got none"):
        self_train.self_train(settings(tmp_path / "run", "--sft_model_path", ONE_LAYER))


def test_presets_are_read():
    folder = Path(sources.__file__).parent / "presets" / "self_train"
    for preset in folder.glob("*.yaml"):
        assert parse_cli(SelfTrainConfig, "self_train", ["--preset", preset.stem]).num_rounds >= 2
