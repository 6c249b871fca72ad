"""Small runs of `train` in this process: one layer, four updates of 16 rows, a reward that anybody can compute."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxppo import data, train
from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.run.jsonl import read_metrics
from tests.commands import comparable, free_port, outputs_of, started
from tests.one_layer import ONE_LAYER

UPDATES, ROWS = 4, 16
# Completions so short that all sequences have one length, for which programs are compiled.
SMALL = ["--preset", "tiny", "--sft_model_path", ONE_LAYER, "--response_length", "16", "--quiet", "True"]
SMALL += ["--sizes", "test=4:4", "test_longer=5:4", "--num_sample_generations", "4", "--warmup_steps", "0"]
# What an update hands to the next one beside the models changes, too.
CHANGING = ["--kl_target", "6", "--score_scaling", "norm"]
ASYNC = ["--async_rollouts", "1"]
SAVED = ["--save_steps", "1", "--save_total_limit", "9"]


def score(completion_ids: list, **_: object) -> list[float]:
    """Reward each completion with its fraction of even token ids."""
    return [float(np.mean(np.array(ids) % 2 == 0)) for ids in completion_ids]


def config_of(folder: Path, *flags: object) -> TrainConfig:
    return parse_cli(TrainConfig, "train", [*SMALL, *map(str, flags), "--output_dir", str(folder)])


def carry_out(folder: Path, *flags: object, reward: Callable[..., list] = score, **in_python: Any) -> Path:
    """Carry out a run in this process, under a reward of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.registry, "make_plan_reward", lambda *_, **__: reward)
        train.train(replace(config_of(folder, *flags), **in_python))
    return folder


def two_processes(folder: Path, *flags: str) -> None:
    """Carry out a run in two processes of two devices each, under the reward of its flags."""
    run = ["-m", "jaxppo.train", *SMALL, *flags, "--output_dir", folder, "--distributed"]
    address = f"127.0.0.1:{free_port()}"
    with started([[*run, f"{address},{number}/2"] for number in range(2)], num_devices=2) as both:
        outputs = outputs_of(both, timeout_s=600)
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)[-4000:]


def samples_of(folder: Path) -> list[list[dict[str, Any]]]:
    """The samples of each update, in the order of its rows."""
    samples = read_metrics(folder / "samples.jsonl")
    return [list(rows) for _, rows in itertools.groupby(samples, key=lambda sample: sample["step"])]


def cut_back(folder: Path, step: int = 0) -> Path:
    """Leave of a finished run what a kill after an update leaves: earlier checkpoints, and no evaluation after it."""
    for checkpoint in (folder / "checkpoints").glob("*"):
        if checkpoint.name.isdecimal() and int(checkpoint.name) > step:
            shutil.rmtree(checkpoint)
    evals = json.loads((folder / "eval.json").read_text())
    (folder / "eval.json").write_text(json.dumps({name: evals[name] for name in evals if name != "after"}))
    return folder


def assert_same_run(folder: Path, reference: Path, updates: int = UPDATES) -> None:
    """Metrics, samples and evaluations are equal, to the last digit."""
    assert comparable(folder) == comparable(reference) and len(comparable(folder)) == updates
    assert (folder / "samples.jsonl").read_text() == (reference / "samples.jsonl").read_text()
    assert json.loads((folder / "eval.json").read_text()) == json.loads((reference / "eval.json").read_text())


def assert_drawn_in_order(folder: Path, config: TrainConfig) -> None:
    """The prompts of a run are those of its seed."""
    rows = data.load_split(config.data, config.data.train_split, None)
    prompts = data.PromptData(rows, data.word_tokenizer(), config.num_prompts, config.run.seed, 512)
    assert len(samples_of(folder)) == UPDATES
    for step, samples in enumerate(samples_of(folder)):
        drawn = [text for text in prompts.batch(step).prompt_texts for _ in range(config.rl.group_size)]
        assert [sample["prompt"] for sample in samples] == drawn
