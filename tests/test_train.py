"""The real commands, in subprocesses, with tiny numbers; and the loop's promises: resume, export, bad input."""

import contextlib
import io
import itertools
import json
import re
import shutil
import threading
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxppo import hf, models, train
from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.profiling.device_clock import FinishClock
from jaxppo.rl.ppo import PPO
from jaxppo.run import cli, metrics
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.jsonl import read_metrics
from tests.commands import comparable, one_line, run_command, snapshot
from tests.one_layer import ONE_LAYER

# Whatever an update hands to the next one beside the models changes in these runs: KL coefficient, score moments.
TINY = [
    "--preset",
    "tiny",
    "--adap_kl_ctrl",
    "--kl_target",
    "6",
    "--kl_horizon",
    "100",
    "--num_sample_generations",
    "4",
]
TINY += ["--use_score_scaling", "--use_score_norm"]
SMALL_TESTS = ["--test_sizes", "4:4", "--test_longer_sizes", "5:4"]
# Runs in this process: completions so short that all sequences have one length, for which programs are compiled.
SMALL = ["--preset", "tiny", "--sft_model_path", ONE_LAYER, "--response_length", "16", *SMALL_TESTS]
# Of which the numbers do not matter: those of any number of updates share their programs.
SAME_PROGRAMS = [*SMALL, "--num_ppo_epochs", "1", "--num_mini_batches", "1", "--lr_scheduler_type", "constant"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run of the preset `tiny`."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    code, out, err = run_command("train", *TINY, "--output_dir", folder)
    assert code == 0, err
    assert "valid plans on test_longer" in out
    return folder


def test_train_writes_the_run_folder(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "config.yaml",
        "metrics.jsonl",
        "samples.jsonl",
        "checkpoints",
        "policy",
        "value",
        "eval.json",
        "eval_samples.json",
        "curves.png",
        "report.html",
    }
    samples = json.loads((finished / "eval_samples.json").read_text())
    for split in ("test", "test_longer"):
        before, after = samples["before"][split], samples["after"][split]
        assert [sample["id"] for sample in before] == [sample["id"] for sample in after] and len(after) == 5
        assert all(0 <= sample["score"] <= 1 and sample["verdict"] for sample in after)
    records = read_metrics(finished / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert all(np.isfinite(record["loss/policy_avg"]) for record in records)
    assert abs(records[0]["objective/kl"]) < 1e-5
    assert abs(records[0]["val/ratio_first"] - 1) < 1e-5
    assert all(record["throughput/tflops"] > 0 and record["memory/peak_mib"] > 100 for record in records)
    assert "throughput/mfu" not in records[0]  # nobody knows the peak of this CPU
    assert records[0]["compile/count"] + records[0]["cache/hits"] > 0 < records[0]["compile/s"]
    assert [records[-1][name] for name in ("compile/count", "cache/hits", "compile/s")] == [0, 0, 0]
    evals = json.loads((finished / "eval.json").read_text())
    assert evals["headline_split"] == "test_longer"
    for moment in ("before", "after"):
        for split in ("test", "test_longer"):
            for rate in ("validity", "executability"):
                assert evals[moment][split][rate].keys() == {"rate", "low", "high", "n"}


def by_update(folder):
    """Samples of each update, in the order of the updates."""
    samples = read_metrics(folder / "samples.jsonl")
    return [[s for s in samples if s["step"] == step] for step in sorted({s["step"] for s in samples})]


def test_train_adapts_the_kl_coefficient_in_every_update(finished):
    records = read_metrics(finished / "metrics.jsonl")
    assert max(record["objective/kl"] for record in records) < 4.8
    # So far below the target of 6 the error is clipped to -0.2: 16 completions of a horizon of 100 each time.
    expected = [0.05 * (1 - 0.2 * 16 / 100) ** n for n in range(4)]
    np.testing.assert_allclose([record["objective/kl_coef"] for record in records], expected, rtol=1e-6)


def test_train_scales_scores_by_the_moments_of_all_scores_so_far(finished):
    seen, records = [], read_metrics(finished / "metrics.jsonl")
    assert len(by_update(finished)) == len(records) == 4
    for samples, record in zip(by_update(finished), records, strict=True):
        scores = np.array([sample["score"] for sample in samples])
        seen += list(scores)
        scaled = (scores - np.mean(seen)) / np.std(seen, ddof=1)
        penalty = 0.1 * record["completions/clipped_ratio"]
        np.testing.assert_allclose(record["objective/scores"], np.mean(scaled) - penalty, atol=1e-5)
    assert len(seen) == 64


@pytest.mark.full
def test_train_exports_a_policy_that_transformers_computes_equally(finished):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(finished / "policy").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(finished / "policy")
    config, params = hf.load_pretrained(finished / "policy")
    apply = jax.jit(models.apply, static_argnums=0)
    prompts = [json.loads(line)["prompt"] for line in (finished / "samples.jsonl").read_text().splitlines()[:20]]
    assert len(prompts) == 20
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            expected = theirs(ids).logits.numpy()
        ours = apply(config, params, ids.numpy()).logits
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)


def test_train_exports_a_value_model_that_transformers_loads(finished):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    _, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        finished / "value", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_resume_of_a_finished_run_changes_nothing(finished):
    before = snapshot(finished)
    code, out, err = run_command("train", "--output_dir", finished, "--resume")
    assert code == 0, err
    assert "nothing to resume" in out
    assert snapshot(finished) == before


@pytest.mark.slow  # the update by pmap is compared in test_ppo and test_device_modes
def test_pmap_gives_the_same_first_update(finished, tmp_path):
    folder = tmp_path / "pmap"
    args = [*TINY, "--parallel", "pmap", "--total_episodes", "16", "--output_dir", folder]
    code, _, err = run_command("train", *args)
    assert code == 0, err
    first, expected = comparable(folder)[0], comparable(finished)[0]
    for name in expected:
        assert first[name] == pytest.approx(expected[name], abs=1e-5), name


def a_data_folder(folder, **changes):
    """A data folder whose second row has the given columns changed (None: left out)."""
    from jaxppo.planning.datasets import rows as datasets

    folder.mkdir()
    rows = [dict(row) for row in datasets.build_split("rl", sizes={4: 3}, seed=0, unique=True)]
    rows[1] |= changes
    rows[1] = {name: value for name, value in rows[1].items() if value is not None}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for split in ("rl", "test", "test_longer"):
        (folder / f"{split}.jsonl").write_text(text)
    return folder


BAD_INPUT = {
    "unknown flag": (["--kl_coeff", "0.1"], ["kl_coeff"]),
    "bad value": (["--batch_size", "many"], ["batch_size", "many"]),
    "bad choice": (["--kl_estimator", "k9"], ["kl_estimator", "k9", "k1"]),
    "unknown preset": (["--preset", "huge"], ["preset", "huge", "default"]),
    "mini-batches": (["--batch_size", "10", "--num_mini_batches", "4"], ["batch_size", "num_mini_batches", "10", "4"]),
    "devices": (
        ["--preset", "tiny", "--gradient_accumulation_steps", "4"],
        ["gradient_accumulation_steps", "devices (4)", "got 2"],
    ),
    "rloo alone": (["--algorithm", "rloo", "--num_generations", "1"], ["num_generations", "rloo"]),
    "stop token": (["--preset", "tiny", "--stop_token_id", "50000"], ["stop_token_id", "vocabulary", "50000"]),
    "profile of a short run": (["--preset", "tiny", "--profile", "3"], ["profile", "at most 2", "4 updates", "got 3"]),
    "no model": (["--sft_model_path", "no/such/model"], ["no/such/model"]),
    "no data": (["--dataset", "no/such/data"], ["no/such/data"]),
    "no config": (["--config", "no/such.yaml"], ["no/such.yaml"]),
    "resume nowhere": (["--resume"], ["output_dir"]),
}


@pytest.fixture
def run_here(capfd):
    """Run a command in this process, which saves the imports: (status, standard output, standard error)."""

    def run(*args):
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main(lambda: train.train(parse_cli(TrainConfig, "train", list(map(str, args)))))
        return stop.value.code, *capfd.readouterr()

    return run


@pytest.mark.parametrize("args, words", BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_line_and_status_2(args, words, tmp_path, run_here):
    if "--resume" not in args:
        args = [*args, "--output_dir", tmp_path / "run"]
    assert_refused(run_here(*args), words)
    assert not (tmp_path / "run").exists()


def test_bad_input_from_the_shell(tmp_path):
    assert_refused(run_command("train", "--kl_coeff", "0.1", "--output_dir", tmp_path / "run"), ["kl_coeff"])


def assert_refused(result, words):
    code, _, err = result
    line = one_line(code, err)
    for word in words:
        assert str(word) in line


def test_another_run_is_not_written_over(finished, run_here):
    before = snapshot(finished)
    assert_refused(run_here(*TINY, "--output_dir", finished), ["output_dir", finished])
    assert_refused(run_here("--output_dir", finished, "--resume", "--kl_coef", "0.5"), ["kl_coef", "0.05", "0.5"])
    assert snapshot(finished) == before


def test_unknown_config_key_is_refused(tmp_path, run_here):
    (tmp_path / "c.yaml").write_text("kl_coef: 0.1\nkl_ceof: 0.2\n")
    assert_refused(run_here("--config", tmp_path / "c.yaml"), ["kl_ceof"])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"prompt": None}, ["rl.jsonl", "2", "prompt"]),
        ({"prompt": "<init> on zebra a <plan>"}, ["prompt"]),
        (
            {"problem_pddl": "(define (problem p)\n (:domain blocksworld)\n (:objects a b\n"},
            ["split rl", "problem_pddl", ":"],
        ),
    ],
    ids=["missing column", "unknown word", "PDDL syntax"],
)
def test_malformed_rows_are_refused(changes, words, tmp_path, run_here):
    dataset = a_data_folder(tmp_path / "data", **changes)
    assert_refused(run_here("--dataset", dataset, "--output_dir", tmp_path / "run"), words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flag", ["--validator", "--eval_validator"])
def test_missing_or_broken_val_is_refused(flag, tmp_path, monkeypatch, run_here):
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "nowhere"))
    args = ["--preset", "tiny", flag, "val", "--output_dir", tmp_path / "run"]
    assert_refused(run_here(*args), ["VAL"])
    crashing = tmp_path / "Validate"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setenv("JAXPPO_VAL", str(crashing))
    assert_refused(run_here(*args), ["val", "crash"])
    assert not (tmp_path / "run").exists()


def test_a_missing_split_is_refused(tmp_path, run_here):
    dataset = a_data_folder(tmp_path / "data")
    (dataset / "test.jsonl").unlink()
    assert_refused(run_here("--dataset", dataset, "--output_dir", tmp_path / "run"), ["test.jsonl"])


def test_a_model_that_cannot_be_sampled_from_is_refused(finished, tmp_path, run_here):
    args = ["--preset", "tiny", "--output_dir", tmp_path / "run", "--sft_model_path"]
    assert_refused(run_here(*args, finished / "value"), ["lm_head"])
    no_eos = tmp_path / "no_eos"
    shutil.copytree(finished / "policy", no_eos)
    config = json.loads((no_eos / "tokenizer_config.json").read_text())
    (no_eos / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": None}))
    assert_refused(run_here(*args, no_eos), ["eos_token"])
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_tokenizer_without_pad_token_pads_with_its_end_of_sequence(finished, tmp_path):
    """As GPT-NeoX's own tokenizer does; every mask comes from lengths, so the results stay the same."""
    no_pad = tmp_path / "no_pad"
    shutil.copytree(finished / "policy", no_pad)
    config = json.loads((no_pad / "tokenizer_config.json").read_text())
    (no_pad / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": None}))
    assert hf.load_tokenizer(no_pad).pad_token_id is None
    sizes = ["--test_sizes", "4:16", "--test_longer_sizes", "5:32", "--response_length", "48"]
    code, _, err = run_command("evaluate", "--model", no_pad, *sizes, "--output_dir", tmp_path / "eval")
    assert code == 0, err
    after = json.loads((finished / "eval.json").read_text())["after"]
    assert json.loads((tmp_path / "eval" / "eval.json").read_text()) == after


@pytest.mark.full
def test_sft_meets_bad_evaluation_input_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "nowhere"))
    sizes = ["--train_sizes", "3:20", "--test_sizes", "4:4", "--test_longer_sizes", "5:4"]
    assert_refused(run_command("sft", *sizes, "--eval_validator", "val", "--output_dir", tmp_path / "run"), ["VAL"])
    assert not (tmp_path / "run").exists()


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    code, out, err = run_command("train", "--preset", "tiny", "--dry_run", "--output_dir", tmp_path / "run")
    assert code == 0, err
    assert "4 updates of 16 completions" in out
    assert "16 optimizer steps (2 epochs x 2 mini-batches of 8 completions per update)" in out
    budget = next(line for line in out.splitlines() if line.startswith("memory per device in MiB, estimated: "))
    parts = ("policy to train", "value to train", "optimizer", "reference", "KV cache", "gradients", "activations")
    assert all(f"{part} " in budget for part in parts) and "at the peak" in budget
    assert not (tmp_path / "run").exists()


# --- in this process, which shows what the loop holds


class Recorded(NamedTuple):
    """A run, and of each update what it was given and left behind, copied (updates reuse the memory)."""

    folder: Path
    steps: list[train.Step]
    references: list[dict | None]
    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def run_recorded(tmp_path_factory):
    """Carry out a run on the four devices of this process."""

    def run(*args, reward=None):
        folder, steps, references = tmp_path_factory.mktemp("recorded") / "run", [], []
        train_step, status, out, err = train.train_step, 0, io.StringIO(), io.StringIO()

        def spy(setup, state, reference, step):
            done = train_step(setup, state, reference, step)
            state, trajectories = jax.tree.map(np.array, (done.state, done.trajectories))
            steps.append(done._replace(state=state, trajectories=trajectories))
            references.append(reference)
            return done

        config = parse_cli(TrainConfig, "train", [*map(str, args), "--output_dir", str(folder)])
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setattr(train, "train_step", spy)
            if reward is not None:
                patch.setattr(train.registry, "make_plan_reward", lambda *_, **__: reward)
            try:
                cli.main(lambda: train.train(config))
            except SystemExit as stop:
                status = stop.code
        return Recorded(folder, steps, references, status, out.getvalue(), err.getvalue())

    return run


@pytest.mark.full
def test_resume_without_a_checkpoint_starts_over(run_recorded, tmp_path):
    whole, folder = run_recorded(*SAME_PROGRAMS, "--total_episodes", "32").folder, tmp_path / "early"
    folder.mkdir()
    shutil.copy(whole / "config.yaml", folder)
    with (folder / "metrics.jsonl").open("w") as log:
        log.write('{"step": 1, "objective/kl": 7.0}\n{"step": 2, "obj')
    train.train(parse_cli(TrainConfig, "train", ["--output_dir", str(folder), "--resume"]))
    assert len(comparable(folder)) == 2
    assert comparable(folder) == comparable(whole)


@pytest.mark.full
def test_a_profile_is_of_the_process_that_was_asked_for_it(run_recorded, run_here):
    """A resume knows nothing of it, may ask for its own, and is refused one that is too long."""
    args = [*SAME_PROGRAMS, "--total_episodes", "48", "--save_steps", "1"]
    run = run_recorded(*args, "--profile", "1")
    assert run.status == 0, run.err
    table = (run.folder / "profile" / "top_ops.txt").read_text()
    assert "operations in update 3 (" in table and table in run.out
    assert len(table.splitlines()) == 2 + 10 and "jit__update_program/" in table
    assert (run.folder / "profile" / "perfetto_trace.json.gz").is_file()
    assert "\nprofile:" not in (run.folder / "config.yaml").read_text()
    (run.folder / "eval.json").unlink()
    shutil.rmtree(run.folder / "checkpoints" / "3")
    resume = ["--output_dir", run.folder, "--resume"]
    assert_refused(run_here(*resume, "--profile", "1"), ["profile: expected at most 0 (1 updates are left", "got 1"])
    train.train(parse_cli(TrainConfig, "train", list(map(str, resume))))
    assert len(read_metrics(run.folder / "metrics.jsonl")) == 3
    assert (run.folder / "profile" / "top_ops.txt").read_text() == table


@pytest.fixture(scope="module")
def rloo(run_recorded):
    """Two updates of 4 completions for each of 4 prompts, evaluated in between, scores as the reward gave them."""
    args = [*SMALL, "--algorithm", "rloo", "--total_episodes", "32", "--eval_steps", "0.5", "--eval_rows", "3"]
    run = run_recorded(*args, "--missing_eos_penalty", "None")
    assert run.status == 0, run.err
    return run


@pytest.mark.full
def test_train_rloo_has_no_value_model(rloo):
    names = {path.name for path in rloo.folder.iterdir()}
    assert names >= {"policy", "eval.json", "curves.png", "checkpoints"} and "value" not in names
    assert [set(step.state.params) for step in rloo.steps] == [{"policy"}] * 2
    # The saved state has as few arrays: a policy and its two moments.
    first = rloo.steps[0].state
    assert len(jax.tree.leaves(first.opt_state)) == 2 * len(jax.tree.leaves(first.params)) + 1
    for record in read_metrics(rloo.folder / "metrics.jsonl"):
        assert not [name for name in record if name.startswith(("value/", "loss/value", "val/clipfrac", "lr_value"))]


def test_train_rloo_learns_and_logs_the_kl(rloo):
    records = read_metrics(rloo.folder / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2]
    assert [record["episode"] for record in records] == [16, 32]
    assert [record["epoch"] for record in records] == [16 / (24 * 4), 32 / (24 * 4)]
    assert abs(records[0]["objective/kl"]) < 1e-5 < abs(records[1]["objective/kl"])
    assert records[0]["val/ratio_first"] == pytest.approx(1, abs=1e-4)
    assert all(0 < record["grad_norm"] < np.inf for record in records)
    assert records[0]["eval/test_longer/validity"] in (0, 1 / 3, 2 / 3, 1)  # of 3 rows; all are looked at in the end
    assert "eval/test_longer/validity" not in records[1]
    evals = json.loads((rloo.folder / "eval.json").read_text())
    assert evals["before"]["test_longer"]["rows"] == evals["after"]["test_longer"]["rows"] > 3


def test_train_keeps_the_checkpoint_with_the_best_validity(rloo):
    assert f"best checkpoint: update 1; python -m jaxppo.export --run_dir {rloo.folder} --step 1" in rloo.out
    assert (rloo.folder / "checkpoints" / "1").is_dir()


def test_train_rloo_samples_the_completions_of_a_prompt_next_to_each_other(rloo):
    for samples in by_update(rloo.folder):
        assert len(samples) == 16
        groups = [samples[i : i + 4] for i in range(0, 16, 4)]
        assert [len({(sample["id"], sample["prompt"]) for sample in group}) for group in groups] == [1, 1, 1, 1]
        assert len({group[0]["id"] for group in groups}) == 4
        assert any(len({sample["completion"] for sample in group}) > 1 for group in groups)  # each is sampled


def test_train_rloo_compares_each_score_with_those_of_the_same_prompt(rloo):
    """In the first update the KL is 0, so the rewards are the scores."""
    scores = [sample["score"] for sample in by_update(rloo.folder)[0]]
    expected = []
    for i, score in enumerate(scores):
        siblings = [scores[j] for j in range(16) if j // 4 == i // 4 and j != i]
        expected.append(score - sum(siblings) / 3)
    assert max(map(abs, expected)) > 0.1
    np.testing.assert_allclose(rloo.steps[0].trajectories.advantages, expected, atol=1e-5)


@pytest.fixture
def slow_reward(monkeypatch):
    """A reward that begins when the devices have finished scoring, and then takes its time: seconds of each call."""
    scores, took = [], []
    score = PPO.score

    def spy(*args):
        scores.append(score(*args))
        return scores[-1]

    def reward(completions, **_):
        jax.block_until_ready(scores[-1])
        began = time.monotonic()
        time.sleep(0.4)
        took.append(time.monotonic() - began)
        return [1.0] * len(completions)

    monkeypatch.setattr(PPO, "score", spy)
    return reward, took


@pytest.mark.full
def test_train_measures_for_how_long_rewards_hold_the_devices_up(run_recorded, slow_reward):
    reward, took = slow_reward
    run = run_recorded(*SAME_PROGRAMS, "--total_episodes", "32", reward=reward)
    assert run.status == 0, run.err
    records = read_metrics(run.folder / "metrics.jsonl")
    assert len(records) == 2
    for record, seconds in zip(records, took[-2:], strict=True):
        assert seconds / 2 < record["time/reward_wait_s"] <= record["time/reward_s"]  # a busy machine may note it late


@pytest.fixture
def slow_scoring(monkeypatch):
    """Devices that finish scoring long after the rewards are there: in the middle of the update."""
    scored, update = threading.Event(), PPO.update

    class Scoring:
        def block_until_ready(self):
            assert scored.wait(60)

    def finish_scoring(self, state, batch, step):
        scored.set()
        return update(self, state, batch, step)

    monkeypatch.setattr(PPO, "update", finish_scoring)
    finish_time = FinishClock.finish_time
    monkeypatch.setattr(FinishClock, "finish_time", lambda self, _: finish_time(self, Scoring()))


@pytest.mark.full
@pytest.mark.usefixtures("slow_scoring")
def test_train_does_not_wait_for_rewards_that_are_there_before_the_scoring(run_recorded):
    run = run_recorded(*SAME_PROGRAMS, "--total_episodes", "16")
    assert run.status == 0, run.err
    assert [record["time/reward_wait_s"] for record in read_metrics(run.folder / "metrics.jsonl")] == [0.0]


@pytest.fixture(scope="module")
def overflowing(run_recorded):
    """A run without KL whose rewards overflow float32 in updates 1, 3 and 4, two in a row being too many."""
    updates = itertools.count(1)

    def reward(completions, **_):
        high = 1.0 if next(updates) == 2 else 3e38
        return [high * (row % 2) for row in range(len(completions))]

    args = [*SMALL, "--kl_coef", "0", "--max_bad_updates", "2", "--total_episodes", "96"]
    return run_recorded(*args, "--save_steps", "50", "--old_metric_names", reward=reward)


@pytest.mark.full
def test_train_stops_after_too_many_bad_updates_in_a_row_with_one_line_and_status_2(overflowing):
    assert overflowing.status == 2
    (line,) = overflowing.err.strip().splitlines()
    assert line.startswith("error: max_bad_updates: stopped after 2 updates in a row with a NaN or infinite loss")
    assert str(overflowing.folder / "bad_batches" / "update-4.npz") in line
    records = read_metrics(overflowing.folder / "metrics.jsonl")
    assert [record["policy/nonfinite_steps"] for record in records] == [4, 0, 4, 4]
    assert [record["policy/bad_updates"] for record in records] == [1, 0, 1, 2]
    assert overflowing.out.count("warning: update ") == 3
    assert not (overflowing.folder / "policy").exists()
    assert set(json.loads((overflowing.folder / "eval.json").read_text())) == {"headline_split", "before"}
    report = (overflowing.folder / "report.html").read_text()
    assert "not finished: 4 of 6 updates" in report and "above 0 in 3 updates" in report


@pytest.mark.full
def test_train_saves_the_batches_of_bad_updates(overflowing):
    saved = overflowing.folder / "bad_batches"
    names = {f"update-{n}.{suffix}" for n in (1, 3, 4) for suffix in ("npz", "jsonl")}
    assert {path.name for path in saved.iterdir()} == names
    samples = read_metrics(saved / "update-3.jsonl")
    assert [sample["score"] for sample in samples] == [0.0, 3e38] * 8
    with np.load(saved / "update-3.npz") as arrays:
        expected = overflowing.steps[2].trajectories
        np.testing.assert_array_equal(arrays["sequences.input_ids"], expected.sequences.input_ids)
        np.testing.assert_array_equal(arrays["returns"], expected.returns)
        assert np.nanmax(arrays["rewards"]) == np.float32(3e38)


@pytest.mark.full
def test_train_leaves_the_model_as_it_is_in_a_bad_update(overflowing):
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


@pytest.mark.full
def test_train_saves_a_checkpoint_when_it_stops(overflowing):
    checkpoints = Checkpoints(overflowing.folder / "checkpoints", 2)
    last = overflowing.steps[-1].state
    assert checkpoints.latest == 4  # though save_steps is 50
    jax.tree.map(np.testing.assert_array_equal, checkpoints.restore(last, pytest.fail), last)


@pytest.mark.full
def test_train_without_kl_holds_no_reference_and_logs_no_kl(overflowing):
    assert overflowing.references == [None] * 4
    for record in read_metrics(overflowing.folder / "metrics.jsonl"):
        assert not [name for name in record if name.startswith("objective/kl") or "non_score" in name]
    assert "kl_coef 0: no reference, and no KL is measured" in overflowing.out
    good = read_metrics(overflowing.folder / "metrics.jsonl")[1]
    assert good["objective/rlhf_reward"] == good["objective/scores"]


@pytest.mark.full
def test_old_metric_names_are_logged_beside_the_new_ones(overflowing, finished):
    old_names = {metric.name: metric.old_name for metric in metrics.METRICS if metric.old_name}
    record, plain = (read_metrics(run / "metrics.jsonl")[1] for run in (overflowing.folder, finished))
    both = [name for name in old_names if name in record]
    assert {"objective/scores", "loss/policy_avg", "lr"} <= set(both)
    assert [record[old_names[name]] for name in both] == [record[name] for name in both]
    assert not set(old_names.values()) & set(plain)


def test_every_logged_metric_is_defined(finished, rloo):
    logged = {
        name for run in (finished, rloo.folder) for record in read_metrics(run / "metrics.jsonl") for name in record
    }
    assert {"reward/zero_variance_groups", "value/mean", "policy/bad_updates", "eval/test/validity"} <= logged
    assert [name for name in sorted(logged) if metrics.find(name) is None] == []


@pytest.fixture
def dry_run(capsys, tmp_path):
    """The plan of a run of the preset `tiny` as one line."""

    def run(*args):
        folder = tmp_path / "run"
        argv = ["--preset", "tiny", *args, "--dry_run", "--output_dir", str(folder)]
        train.train(parse_cli(TrainConfig, "train", argv))
        assert not folder.exists()
        return " ".join(capsys.readouterr().out.split())

    return run


def test_dry_run_of_rloo_prints_prompts_times_generations_and_micro_batches(dry_run):
    plan = dry_run("--algorithm", "rloo", "--gradient_accumulation_steps", "2")
    assert (
        "RLOO on blocksworld: 4 updates of 16 completions (4 prompts x 4) = 64 episodes, 0.67 passes over 24 prompts "
        "learning: 16 optimizer steps (2 epochs x 2 mini-batches of 8 completions per update, 2 micro-batches each)"
        in plan
    )
    assert "warning" not in plan and "kl_coef 0" not in plan


def test_dry_run_prints_the_micro_batches_that_fit_the_cache(dry_run):
    many = ["--batch_size", "4096", "--total_episodes", "4096", "--num_mini_batches", "1"]
    assert re.search(r"of 4096 completions per update, \d+ micro-batches each", dry_run(*many))
    assert "micro-batches" not in dry_run(*many, "--gradient_accumulation_steps", "1")


def test_dry_run_counts_passes_over_the_prompts_where_no_episodes_are_given(dry_run):
    passes = ["--total_episodes", "None", "--num_train_epochs", "2"]
    assert "PPO on blocksworld: 3 updates of 16 completions = 48 episodes, 2.00 passes over 24 pr" in dry_run(*passes)
    plan = dry_run(*passes, "--algorithm", "rloo", "--num_generations", "2")
    assert "6 updates of 16 completions (8 prompts x 2) = 96 episodes, 2.00 passes over 24 prompts" in plan


@pytest.mark.parametrize("truncation", [["--top_k", "5"], ["--top_p", "0.9"], ["--min_p", "0.1"]])
def test_a_truncated_sampler_is_warned_of_also_when_quiet(dry_run, truncation):
    plan = dry_run(*truncation, "--quiet")
    assert plan.startswith("warning: top_k, top_p and min_p sample from a truncated distribution")
    assert dry_run("--quiet") == ""


@pytest.mark.full
def test_a_rate_for_tiny_models_is_warned_of_with_a_larger_one(dry_run, tmp_path):
    tiny = hf.ASSETS / "blocksworld-sft"
    larger = tmp_path / "larger"
    shutil.copytree(tiny, larger, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((tiny / "config.json").read_text())
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4}
    (larger / "config.json").write_text(json.dumps(config | sizes))
    high = ["--sft_model_path", str(larger), "--learning_rate", "6e-4"]
    plan = dry_run(*high)
    assert re.search(r"warning: learning_rate 0\.0006 is high for 12,\d+,\d+ parameters, pretrained models take", plan)
    for fine in ([*high, "--use_peft"], [*high, "--learning_rate", "1e-5"], [*high, "--sft_model_path", str(tiny)]):
        assert "warning" not in dry_run(*fine)


@pytest.mark.full
def test_sft_learns_and_exports(tmp_path):
    folder = tmp_path / "sft"
    args = ["--train_sizes", "3:50", "--test_sizes", "4:4", "--test_longer_sizes", "5:4", "--output_dir", folder]
    model = ["--hidden_size", "16", "--num_hidden_layers", "1", "--batch_size", "16", "--total_episodes", "480"]
    code, _, err = run_command("sft", *args, *model, "--warmup_steps", "3", "--learning_rate", "1e-2")
    assert code == 0, err
    losses = [record["loss"] for record in read_metrics(folder / "metrics.jsonl")]
    assert len(losses) == 30 and losses[-1] < 0.8 * losses[0]
    before = snapshot(folder)
    code, out, err = run_command("sft", "--output_dir", folder, "--resume")
    assert code == 0 and "nothing to resume" in out, err
    assert snapshot(folder) == before


@pytest.mark.full
def test_evaluate_of_the_exported_policy_repeats_the_runs_result(finished, tmp_path):
    sizes = ["--test_sizes", "4:16", "--test_longer_sizes", "5:32", "--response_length", "48"]
    folder = tmp_path / "eval"
    code, out, err = run_command("evaluate", "--model", finished / "policy", *sizes, "--output_dir", folder)
    assert code == 0, err
    after = json.loads((finished / "eval.json").read_text())["after"]
    (line,) = [line for line in out.splitlines() if line.startswith("test_longer")]
    assert line.split()[:4] == ["test_longer", "all", "32", f"{after['test_longer']['validity']['rate']:.1%}"]
    assert after["test_longer"]["validity"]["rate"] > 0.2  # 0 would be equal for any broken model
    assert json.loads((folder / "eval.json").read_text()) == after
