"""The real commands, in subprocesses, with tiny numbers; and the loop's promises: resume, export, bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxppo import cli, hf, models, train
from jaxppo.config import TrainConfig, parse_cli
from jaxppo.logs import read_metrics

MAY_DIFFER = ("time/", "throughput/", "memory/", "compile/", "cache/")


def start_command(name, *args):
    """Start `python -m jaxppo.<name>` on one device."""
    env = {**os.environ, "XLA_FLAGS": ""}
    command = [sys.executable, "-m", f"jaxppo.{name}", *map(str, args)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_command(name, *args):
    process = start_command(name, *args)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def comparable(folder):
    return [
        {name: value for name, value in record.items() if not name.startswith(MAY_DIFFER)}
        for record in read_metrics(folder / "metrics.jsonl")
    ]


def snapshot(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run of the preset `tiny`."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    code, out, err = run_command("train", "--preset", "tiny", "--output_dir", folder)
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
        "curves.png",
    }
    records = read_metrics(finished / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert all(np.isfinite(record["loss/policy_avg"]) for record in records)
    assert abs(records[0]["objective/kl"]) < 1e-5
    assert abs(records[0]["val/ratio_first"] - 1) < 1e-5
    evals = json.loads((finished / "eval.json").read_text())
    assert evals["headline_split"] == "test_longer"
    for moment in ("before", "after"):
        for split in ("test", "test_longer"):
            for rate in ("validity", "executability"):
                assert evals[moment][split][rate].keys() == {"rate", "low", "high", "n"}


def test_train_exports_a_policy_that_transformers_computes_equally(finished):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(finished / "policy").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(finished / "policy")
    config, params = hf.load_pretrained(finished / "policy")
    prompts = [json.loads(line)["prompt"] for line in (finished / "samples.jsonl").read_text().splitlines()[:20]]
    assert len(prompts) == 20
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            expected = theirs(ids).logits.numpy()
        ours = models.apply(config, params, ids.numpy()).logits
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


def test_resume_after_sigkill_equals_the_uninterrupted_run(finished, tmp_path):
    folder = tmp_path / "killed"
    process = start_command("train", "--preset", "tiny", "--output_dir", folder)
    checkpoint, deadline = folder / "checkpoints" / "2", time.monotonic() + 300
    while not checkpoint.is_dir():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "policy").exists()  # it was killed before the end
    code, _, err = run_command("train", "--output_dir", folder, "--resume")
    assert code == 0, err
    assert comparable(folder) == comparable(finished)
    assert json.loads((folder / "eval.json").read_text()) == json.loads((finished / "eval.json").read_text())


def test_resume_without_a_checkpoint_starts_over(finished, tmp_path):
    folder = tmp_path / "early"
    folder.mkdir()
    shutil.copy(finished / "config.yaml", folder)
    with (folder / "metrics.jsonl").open("w") as log:
        log.write('{"step": 1, "objective/kl": 7.0}\n{"step": 2, "obj')
    code, _, err = run_command("train", "--output_dir", folder, "--resume")
    assert code == 0, err
    assert comparable(folder) == comparable(finished)


def test_pmap_gives_the_same_first_update(finished, tmp_path):
    folder = tmp_path / "pmap"
    code, _, err = run_command(
        "train", "--preset", "tiny", "--parallel", "pmap", "--total_episodes", "16", "--output_dir", folder
    )
    assert code == 0, err
    first, expected = comparable(folder)[0], comparable(finished)[0]
    for name in expected:
        assert first[name] == pytest.approx(expected[name], abs=1e-5), name


def a_data_folder(folder, **changes):
    """A data folder whose second row has the given columns changed (None: left out)."""
    from jaxppo.planning import datasets

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
    assert code == 2, err
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    for word in words:
        assert str(word) in lines[0]


def test_another_run_is_not_written_over(finished, run_here):
    before = snapshot(finished)
    assert_refused(run_here("--preset", "tiny", "--output_dir", finished), ["output_dir", finished])
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


def test_sft_meets_bad_evaluation_input_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "nowhere"))
    sizes = ["--train_sizes", "3:20", "--test_sizes", "4:4", "--test_longer_sizes", "5:4"]
    assert_refused(run_command("sft", *sizes, "--eval_validator", "val", "--output_dir", tmp_path / "run"), ["VAL"])
    assert not (tmp_path / "run").exists()


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    code, out, err = run_command("train", "--preset", "tiny", "--dry_run", "--output_dir", tmp_path / "run")
    assert code == 0, err
    assert "4 updates of 16 completions" in out
    assert not (tmp_path / "run").exists()


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


def test_evaluate_of_the_exported_policy_repeats_the_runs_result(finished, tmp_path):
    sizes = ["--test_sizes", "4:16", "--test_longer_sizes", "5:32", "--response_length", "48"]
    folder = tmp_path / "eval"
    code, out, err = run_command("evaluate", "--model", finished / "policy", *sizes, "--output_dir", folder)
    assert code == 0, err
    assert "test_longer: valid" in out
    after = json.loads((finished / "eval.json").read_text())["after"]
    assert after["test_longer"]["validity"]["rate"] > 0.2  # 0 would be equal for any broken model
    assert json.loads((folder / "eval.json").read_text()) == after
