"""Small runs of `train` in this process: one layer, four updates of 16 rows, a reward that anybody can compute."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxppo import train
from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from tests.commands import comparable
from tests.one_layer import ONE_LAYER

UPDATES, ROWS = 4, 16
# Completions so short that all sequences have one length, for which programs are compiled.
SMALL = ["--preset", "tiny", "--sft_model_path", ONE_LAYER, "--response_length", "16", "--quiet", "True"]
SMALL += ["--test_sizes", "4:4", "--test_longer_sizes", "5:4", "--num_sample_generations", "4", "--warmup_steps", "0"]
# What an update hands to the next one beside the models changes, too.
CHANGING = ["--adap_kl_ctrl", "--kl_target", "6", "--kl_horizon", "100", "--use_score_scaling", "--use_score_norm"]
ASYNC = ["--async_rollouts", "1"]


def score(completion_ids: list, **_: object) -> list[float]:
    """Reward each completion with its fraction of even token ids."""
    return [float(np.mean(np.array(ids) % 2 == 0)) for ids in completion_ids]


def config_of(folder: Path, *flags: object) -> TrainConfig:
    return parse_cli(TrainConfig, "train", [*SMALL, *map(str, flags), "--output_dir", str(folder)])


def carry_out(folder: Path, *flags: object, reward: Callable[..., list] = score) -> Path:
    """Carry out a run in this process, under a reward of the test and without its picture, which takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.registry, "make_plan_reward", lambda *_, **__: reward)
        patch.setattr(train, "plot_run", lambda *_: None)
        train.train(config_of(folder, *flags))
    return folder


def assert_same_run(folder: Path, reference: Path, updates: int = UPDATES) -> None:
    """Metrics, samples and evaluations are equal, to the last digit."""
    assert comparable(folder) == comparable(reference) and len(comparable(folder)) == updates
    assert (folder / "samples.jsonl").read_text() == (reference / "samples.jsonl").read_text()
    assert json.loads((folder / "eval.json").read_text()) == json.loads((reference / "eval.json").read_text())
