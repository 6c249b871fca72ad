"""`python -m jaxppo.train`: what the command leaves behind, and the loop's promises."""

import contextlib
import io
import itertools
import json
import re
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxppo import hf, train
from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.profiling.device_clock import FinishClock
from jaxppo.rl.learner import PPO
from jaxppo.rl.step import Step
from jaxppo.run import cli, metrics
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.folder import Run
from jaxppo.run.jsonl import read_metrics
from tests.commands import comparable, refusal_of, run_command, snapshot
from tests.one_layer import ONE_LAYER
from tests.small_runs import CHANGING, assert_drawn_in_order, cut_back, samples_of, score

SMALL = ["--preset", "tiny", "--sft_model_path", ONE_LAYER, "--response_length", "16"]
SMALL += ["--sizes", "test=4:4", "test_longer=5:4"]
# Runs whose numbers do not matter: those of any number of updates share their programs.
SAME_PROGRAMS = [*SMALL, "--num_ppo_epochs", "1", "--num_mini_batches", "1", "--lr_scheduler_type", "constant"]
UPDATES = 3
FINISHED = [*SMALL, *CHANGING, "--num_sample_generations", "4", "--total_episodes", "48", "--value_model", "shared"]


def configuration(*args: object) -> TrainConfig:
    return parse_cli(TrainConfig, "train", list(map(str, args)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """What the command leaves behind."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    code, out, err = run_command("train", *FINISHED, "--output_dir", folder)
    assert code == 0, err
    assert "test_longer" in out
    return folder


def test_train_writes_the_run_folder_and_logs_what_it_learned_and_what_that_took(finished):
    names = {path.name for path in finished.iterdir()}
    files = {"config.yaml", "metrics.jsonl", "samples.jsonl", "eval.json", "eval_samples.json"}
    assert names >= files | {"report.html", "checkpoints", "policy", "value"}
    samples = json.loads((finished / "eval_samples.json").read_text())
    for split in ("test", "test_longer"):
        before, after = samples["before"][split], samples["after"][split]
        assert [sample["id"] for sample in before] == [sample["id"] for sample in after] and len(after) == 4
        assert all(0 <= sample["score"] <= 1 and sample["verdict"] for sample in after)
    evals = json.loads((finished / "eval.json").read_text())
    assert evals["headline_split"] == "test_longer"
    for moment, split, rate in itertools.product(
        ("before", "after"), ("test", "test_longer"), ("validity", "executability")
    ):
        assert evals[moment][split][rate].keys() == {"rate", "low", "high", "n"}
    records = read_metrics(finished / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3]
    assert all(np.isfinite(record["loss/policy_avg"]) for record in records)
    assert abs(records[0]["objective/kl"]) < 1e-5
    assert abs(records[0]["val/ratio_first"] - 1) < 1e-5
    assert all(record["throughput/tflops"] > 0 and record["memory/peak_mib"] > 100 for record in records)
    assert "throughput/mfu" not in records[0]  # nobody knows the peak of this CPU
    assert records[0]["compile/count"] + records[0]["cache/hits"] > 0 < records[0]["compile/s"]
    assert [records[-1][name] for name in ("compile/count", "cache/hits", "compile/s")] == [0, 0, 0]
    # It adapts the KL coefficient, and scales scores by the moments of all so far.
    assert max(record["objective/kl"] for record in records) < 4.8
    # So far below the target of 6 the error is clipped to -0.2: 16 completions of a horizon of 10,000 each time.
    expected = [0.05 * (1 - 0.2 * 16 / 10_000) ** n for n in range(UPDATES)]
    np.testing.assert_allclose([record["objective/kl_coef"] for record in records], expected, rtol=1e-6)
    seen = []
    for samples, record in zip(samples_of(finished), records, strict=True):
        scores = np.array([sample["score"] for sample in samples])
        seen += list(scores)
        scaled = (scores - np.mean(seen)) / np.std(seen, ddof=1)
        penalty = 0.1 * record["completions/clipped_ratio"]
        np.testing.assert_allclose(record["objective/scores"], np.mean(scaled) - penalty, atol=1e-5)
    assert len(seen) == 16 * UPDATES


def test_the_shared_value_head_is_saved_and_is_where_another_run_starts(finished, tmp_path):
    params = Checkpoints(finished / "checkpoints", keep=9).restore_params(None, pytest.fail)[0]
    tensors = load_file(finished / "value" / "value_head.safetensors")
    np.testing.assert_array_equal(tensors["v_head.summary.weight"], params["value"]["score"]["kernel"].T)
    np.testing.assert_array_equal(tensors["v_head.summary.bias"], params["value"]["score"]["bias"])
    assert tensors["v_head.summary.weight"].any()
    config = configuration(
        *["--preset", "tiny", "--sft_model_path", finished / "policy", "--output_dir", tmp_path / "none"],
        *["--value_model", "shared", "--value_model_path", finished / "value"],
    )
    _, start = train.set_up(Run(command="train", config=config, folder=tmp_path))
    jax.tree.map(np.testing.assert_array_equal, start.value["score"], params["value"]["score"])


def test_a_finished_run_is_left_as_it_is(finished, capfd):
    before = snapshot(finished)
    assert str(finished) in refusal_of(lambda: train.train(configuration(*FINISHED, "--output_dir", finished)), capfd)
    other = ["--output_dir", finished, "--resume", "--kl_coef", "0.5"]
    line = refusal_of(lambda: train.train(configuration(*other)), capfd)
    assert all(word in line for word in ("kl_coef", "0.05", "0.5"))
    assert train.train(configuration("--output_dir", finished, "--resume")) == finished
    assert str(finished) in capfd.readouterr().out
    assert snapshot(finished) == before


class Recorded(NamedTuple):
    """A run, and of each update what it was given and left behind, copied (updates reuse the memory)."""

    folder: Path
    steps: list[Step]
    references: list[dict | None]
    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def run_recorded(tmp_path_factory):
    """Carry out a run on the four devices of this process."""

    def run(*args, reward=None, **in_python):
        folder, steps, references = tmp_path_factory.mktemp("recorded") / "run", [], []
        train_step, status, out, err = train.train_step, 0, io.StringIO(), io.StringIO()

        def spy(training, state, host, step):
            done = train_step(training, state, host, step)
            state, trajectories = jax.tree.map(np.array, (done.state, done.trajectories))
            steps.append(done._replace(state=state, trajectories=trajectories))
            references.append(training.source.reference)
            return done

        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setattr(train, "train_step", spy)
            if reward is not None:
                patch.setattr(train.registry, "make_plan_reward", lambda *_, **__: reward)
            try:
                config = replace(configuration(*args, "--output_dir", folder), **in_python)
                cli.main(lambda: train.train(config))
            except SystemExit as stop:
                status = stop.code
        return Recorded(folder, steps, references, status, out.getvalue(), err.getvalue())

    return run


RLOO = [*SMALL, "--algorithm", "rloo", "--missing_eos_penalty", "None"]
RLOO += ["--num_sample_generations", "4", "--warmup_steps", "0", "--eval_steps", "0.5", "--eval_rows", "3"]


@pytest.fixture(scope="module")
def rloo(run_recorded):
    """Four updates of 4 completions for each of 4 prompts, by success."""
    run = run_recorded(*RLOO, reward=score)
    assert run.status == 0, run.err
    return run


def test_train_rloo_has_no_value_model_learns_and_logs_the_kl(rloo):
    names = {path.name for path in rloo.folder.iterdir()}
    assert names >= {"policy", "eval.json", "report.html", "checkpoints"} and "value" not in names
    assert [set(step.state.params) for step in rloo.steps] == [{"policy"}] * 4
    # The saved state has as few arrays: a policy and its two moments.
    first = rloo.steps[0].state
    assert len(jax.tree.leaves(first.opt_state)) == 2 * len(jax.tree.leaves(first.params)) + 1
    records = read_metrics(rloo.folder / "metrics.jsonl")
    for record in records:
        assert not [name for name in record if name.startswith(("value/", "loss/value", "val/clipfrac", "lr_value"))]
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert [record["episode"] for record in records] == [16, 32, 48, 64]
    prompts = 16 / records[0]["epoch"] / 4
    assert prompts == 24
    assert [record["epoch"] for record in records] == [16 * step / (prompts * 4) for step in (1, 2, 3, 4)]
    assert abs(records[0]["objective/kl"]) < 1e-5 < abs(records[1]["objective/kl"])
    assert records[0]["val/ratio_first"] == pytest.approx(1, abs=1e-4)
    assert all(0 < record["grad_norm"] < np.inf for record in records)
    # Of 3 rows; in the end all are looked at.
    assert ["eval/test_longer/validity" in record for record in records] == [False, True, False, False]
    assert records[1]["eval/test_longer/validity"] in (0, 1 / 3, 2 / 3, 1)
    evals = json.loads((rloo.folder / "eval.json").read_text())
    assert evals["before"]["test_longer"]["rows"] == evals["after"]["test_longer"]["rows"] > 3

    # The checkpoint with the best validity is kept.
    assert f"python -m jaxppo.export --run_dir {rloo.folder} --step 2" in rloo.out
    assert (rloo.folder / "checkpoints" / "2").is_dir()


def test_train_draws_groups_by_their_success_and_compares_each_score_with_those_of_its_prompt(rloo):
    """Completions of a prompt are next to each other; in the first update the KL is 0, so rewards are scores."""
    for samples in samples_of(rloo.folder):
        groups = [samples[i : i + 4] for i in range(0, 16, 4)]
        assert [len({(sample["id"], sample["prompt"]) for sample in group}) for group in groups] == [1, 1, 1, 1]
        assert any(len({sample["completion"] for sample in group}) > 1 for group in groups)  # each is sampled
    scores = [sample["score"] for sample in samples_of(rloo.folder)[0]]
    expected = []
    for i, own_score in enumerate(scores):
        siblings = [scores[j] for j in range(16) if j // 4 == i // 4 and j != i]
        expected.append(own_score - sum(siblings) / 3)
    assert max(map(abs, expected)) > 0.1
    np.testing.assert_allclose(rloo.steps[0].trajectories.advantages, expected, atol=1e-5)
    assert_drawn_in_order(rloo.folder, configuration(*RLOO))


def test_every_logged_metric_is_defined(finished, rloo):
    records = [*read_metrics(finished / "metrics.jsonl"), *read_metrics(rloo.folder / "metrics.jsonl")]
    logged = {name for record in records for name in record}
    assert {"reward/zero_variance_groups", "value/mean", "policy/bad_updates", "eval/test/validity"} <= logged
    assert [name for name in sorted(logged) if metrics.find(name) is None] == []


@pytest.fixture(scope="module")
def profiled(run_recorded):
    """A run that was asked for a profile; its rewards come after the devices have finished scoring."""
    scored: list[Future] = []
    finish_time = FinishClock.finish_time

    def spy(clock, arrays):
        scored.append(finish_time(clock, arrays))
        return scored[-1]

    def late_score(completion_ids, **columns):
        if scored:
            scored[-1].result(60)
        return score(completion_ids, **columns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FinishClock, "finish_time", spy)
        args = [*SAME_PROGRAMS, "--total_episodes", "48", "--save_steps", "1", "--profile", "1"]
        run = run_recorded(*args, reward=late_score)
    assert run.status == 0, run.err
    return run


@pytest.mark.full
def test_a_profile_is_of_the_process_that_was_asked_for_it(profiled, capfd):
    """A resume knows nothing of it, and is refused one that is longer than what is left."""
    assert "trace of updates 3 to 3 in " in profiled.out
    assert (profiled.folder / "profile" / "perfetto_trace.json.gz").is_file()
    assert "\nprofile:" not in (profiled.folder / "config.yaml").read_text()
    folder = cut_back(profiled.folder, 2)
    args = ["--output_dir", folder, "--resume", "--profile", "1"]
    assert refusal_of(lambda: train.train(configuration(*args)), capfd).startswith("error: profile: expected at most 0")


@pytest.mark.full
def test_resume_without_a_checkpoint_starts_over_and_the_wait_for_rewards_is_measured(profiled, tmp_path, monkeypatch):
    """In the new run the devices finish scoring long after the rewards are computed: in the middle of the update."""
    update = PPO.update
    finish_time = FinishClock.finish_time
    scored = Future()

    class Scoring:
        def block_until_ready(self):
            scored.result(60)

    def finish_scoring(self, state, batch, step):
        if not scored.done():
            scored.set_result(None)
        return update(self, state, batch, step)

    monkeypatch.setattr(PPO, "update", finish_scoring)
    monkeypatch.setattr(FinishClock, "finish_time", lambda clock, _: finish_time(clock, Scoring()))
    monkeypatch.setattr(train.registry, "make_plan_reward", lambda *_, **__: score)
    folder = tmp_path / "early"
    folder.mkdir()
    shutil.copy(profiled.folder / "config.yaml", folder)
    with (folder / "metrics.jsonl").open("w") as log:
        log.write('{"step": 1, "objective/kl": 7.0}\n{"step": 2, "obj')
    train.train(configuration("--output_dir", folder, "--resume"))
    assert len(comparable(folder)) == 3
    assert comparable(folder) == comparable(profiled.folder)
    for record in read_metrics(profiled.folder / "metrics.jsonl"):
        assert 0 < record["time/reward_wait_s"] <= record["time/reward_s"]
    assert read_metrics(folder / "metrics.jsonl")[0]["time/reward_wait_s"] == 0.0


@pytest.fixture(scope="module")
def overflowing(run_recorded):
    """A run without KL whose rewards overflow float32 in updates 1, 3 and 4, two in a row being too many."""
    updates = itertools.count(1)

    def reward(completions, **_):
        high = 1.0 if next(updates) == 2 else 3e38
        return [high * (row % 2) for row in range(len(completions))]

    args = [*SMALL, "--kl_coef", "0", "--total_episodes", "96", "--save_steps", "50"]
    return run_recorded(*args, reward=reward, max_bad_updates=2)


@pytest.mark.full
def test_train_without_kl_stops_after_too_many_bad_updates_and_saves_the_model_as_it_was(overflowing):
    assert overflowing.status == 2
    (line,) = overflowing.err.strip().splitlines()
    assert line.startswith("error: max_bad_updates: ")
    assert str(overflowing.folder / "bad_batches" / "update-4.npz") in line
    records = read_metrics(overflowing.folder / "metrics.jsonl")
    assert [record["policy/nonfinite_steps"] for record in records] == [4, 0, 4, 4]
    assert [record["policy/bad_updates"] for record in records] == [1, 0, 1, 2]
    assert overflowing.out.count("warning: update ") == 3
    assert not (overflowing.folder / "policy").exists()
    assert set(json.loads((overflowing.folder / "eval.json").read_text())) == {"headline_split", "before"}
    report = (overflowing.folder / "report.html").read_text()
    assert "4 of 6 updates" in report and "in 3 updates" in report
    policy = hf.load_policy(ONE_LAYER).params
    first, second, third, fourth = (step.state for step in overflowing.steps)
    jax.tree.map(np.testing.assert_array_equal, first.params["policy"], policy)
    jax.tree.map(np.testing.assert_array_equal, third.params, second.params)
    jax.tree.map(np.testing.assert_array_equal, fourth.params, second.params)
    jax.tree.map(np.testing.assert_array_equal, fourth.opt_state, second.opt_state)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), first.params, second.params)
    assert all(jax.tree.leaves(changed["policy"]))
    assert [int(step.state.step) for step in overflowing.steps] == [1, 2, 3, 4]
    # Nor do such scores spoil the moments that later ones are scaled by: those of eight 0 and eight 1.
    moments = fourth.controls.moments
    np.testing.assert_allclose([moments.seen, moments.mean, moments.m2], [16, 0.5, 4])
    checkpoints = Checkpoints(overflowing.folder / "checkpoints", 2)
    last = overflowing.steps[-1].state
    assert checkpoints.latest == 4  # though save_steps is 50
    restored, _ = checkpoints.restore(last, pytest.fail)
    jax.tree.map(np.testing.assert_array_equal, restored, last)

    # Without KL no reference is held and no KL logged.
    assert overflowing.references == [None] * 4
    for record in records:
        assert not [name for name in record if name.startswith("objective/kl") or "non_score" in name]
    assert "kl_coef 0" in overflowing.out
    assert records[1]["objective/rlhf_reward"] == records[1]["objective/scores"]


@pytest.fixture
def dry_run(capsys, tmp_path):
    """The plan of a run of the preset `tiny` as one line."""

    def run(*args):
        folder = tmp_path / "run"
        train.train(configuration("--preset", "tiny", *args, "--dry_run", "--output_dir", folder))
        assert not folder.exists()
        return " ".join(capsys.readouterr().out.split())

    return run


def sizes_in(plan: str) -> list[float]:
    """The numbers of a plan: what is sampled, and how it is learned from."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", plan.split("run: ")[1].split(" size: ")[0])]


def test_dry_run_prints_prompts_generations_passes_and_micro_batches(dry_run):
    plan = dry_run("--algorithm", "rloo", "--gradient_accumulation_steps", "2")
    # 4 updates of 16 completions, 4 prompts x 4, 64 episodes, 0.67 passes over 24 prompts; 16 optimizer steps,
    # 2 epochs x 2 mini-batches of 8 completions, 2 micro-batches each.
    assert sizes_in(plan) == [4, 16, 4, 4, 64, 0.67, 24, 16, 2, 2, 8, 2]
    assert "RLOO" in plan and "MiB" in plan and "warning" not in plan and "kl_coef" not in plan
    passes = ["--total_episodes", "None", "--num_train_epochs", "2"]
    assert sizes_in(dry_run(*passes))[:5] == [3, 16, 48, 2.0, 24]
    plan = dry_run(*passes, "--algorithm", "rloo", "--num_generations", "2")
    assert sizes_in(plan)[:7] == [6, 16, 8, 2, 96, 2.0, 24]
    # And the micro-batches that fit the cache.
    many = ["--batch_size", "4096", "--total_episodes", "4096", "--num_mini_batches", "1"]
    without = sizes_in(dry_run(*many, "--gradient_accumulation_steps", "1"))
    automatic = sizes_in(dry_run(*many))
    assert automatic[: len(without)] == without and automatic[len(without)] > 1
    assert dry_run("--quiet") == ""
    for truncation in (["--top_k", "5"], ["--top_p", "0.9"], ["--min_p", "0.1"]):  # warned of also when quiet
        plan = dry_run(*truncation, "--quiet")
        assert plan.startswith("warning: ") and truncation[0].removeprefix("--") in plan


@pytest.mark.full
def test_a_rate_for_tiny_models_is_warned_of_with_a_larger_one(dry_run, tmp_path):
    tiny = hf.ASSETS / "blocksworld-sft"
    larger = tmp_path / "larger"
    shutil.copytree(tiny, larger, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((tiny / "config.json").read_text())
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4}
    (larger / "config.json").write_text(json.dumps(config | sizes))
    high = ["--sft_model_path", larger, "--learning_rate", "6e-4"]
    assert re.search(r"warning: learning_rate 0\.0006 .* 12,\d+,\d+ ", dry_run(*high))
    for fine in ([*high, "--use_peft"], [*high, "--learning_rate", "1e-5"], [*high, "--sft_model_path", tiny]):
        assert "warning" not in dry_run(*fine)
