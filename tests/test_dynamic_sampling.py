"""`--dynamic_sampling`: groups of one score give way to others, on any devices and across any stop."""

import itertools
import json
import os
import signal

import jax
import numpy as np
import pytest

from jaxppo import train
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ConfigError
from jaxppo.run.preemption import Preempted
from tests import small_runs
from tests.commands import comparable
from tests.small_runs import ROWS, SMALL, UPDATES

FLAGS = ["--algorithm", "grpo", "--num_generations", "4", "--dynamic_sampling", "True", "--max_resample", "2"]
FLAGS += ["--missing_eos_penalty", "None"]  # which would tell completions apart
FLAGS += ["--save_steps", "1", "--save_total_limit", "9"]


def score(completion_ids, prompts, **_):
    """0 for most prompts whatever is said, so that most groups teach nothing."""
    return [
        float(np.mean(np.array(ids) % 2 == 0)) if len(prompt) % 3 == 0 else 0.0
        for ids, prompt in zip(completion_ids, prompts, strict=True)
    ]


def carry_out(folder, *flags, reward=score):
    return small_runs.carry_out(folder, *FLAGS, *flags, reward=reward)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("dynamic") / "whole")


def groups_of(folder):
    """The scores of each group of each update."""
    samples = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    updates = [list(rows) for _, rows in itertools.groupby(samples, key=lambda sample: sample["step"])]
    return [np.array([row["score"] for row in rows]).reshape(-1, 4) for rows in updates], updates


def test_groups_of_one_score_give_way_to_others(whole):
    scores, samples = groups_of(whole)
    records = comparable(whole)
    assert len(records) == len(scores) == UPDATES
    for groups, rows, record in zip(scores, samples, records, strict=True):
        left = np.mean(np.ptp(groups, axis=1) < 1e-6)
        assert record["reward/zero_variance_groups"] == pytest.approx(left)
        assert record["objective/scores"] == pytest.approx(groups.mean(), abs=1e-6)
        extra = record["reward/extra_batches"]
        assert extra == 2 if left else extra in (0, 1, 2)
        assert (extra == 0) == (not left and record["reward/resampled_groups"] == 0)
        for group in np.array([row["prompt"] for row in rows]).reshape(-1, 4):
            assert len(set(group)) == 1
    replaced = [record["reward/resampled_groups"] for record in records]
    assert max(replaced) > 0 and len({record["reward/extra_batches"] for record in records} - {0}) > 0


@pytest.mark.full
def test_without_such_groups_nothing_else_is_sampled(tmp_path):
    count = itertools.count()
    different = lambda completion_ids, **_: [float(next(count)) for _ in completion_ids]  # noqa: E731
    for record in comparable(carry_out(tmp_path / "run", reward=different)):
        assert (record["reward/resampled_groups"], record["reward/extra_batches"]) == (0, 0)


@pytest.mark.parametrize("call", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (0, 1, 5, 8))])
def test_a_run_that_is_stopped_goes_on_exactly(whole, tmp_path, call):
    calls = []

    def struck(completion_ids, **columns):
        if len(completion_ids) == ROWS:
            calls.append(None)
            if len(calls) == call + 1:
                os.kill(os.getpid(), signal.SIGTERM)
        return score(completion_ids, **columns)

    with pytest.raises(Preempted):
        carry_out(tmp_path / "run", reward=struck)
    carry_out(tmp_path / "run", "--resume", "True")
    assert comparable(tmp_path / "run") == comparable(whole)
    assert (tmp_path / "run" / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()


@pytest.mark.full
@pytest.mark.parametrize("flags", [["--parallel", "fsdp"], ["--parallel", "pmap"]], ids=lambda flags: flags[1])
def test_devices_change_nothing(whole, tmp_path, flags):
    """More devices than the first run had, in other modes."""
    assert len(jax.devices()) > 1
    found = groups_of(carry_out(tmp_path / "run", *flags))[1]
    texts = lambda updates: [[(row["id"], row["completion"]) for row in rows] for rows in updates]  # noqa: E731
    assert texts(found) == texts(groups_of(whole)[1])


@pytest.mark.full
def test_a_curriculum_counts_what_it_has_drawn(tmp_path):
    run = carry_out(tmp_path / "run", "--curriculum", "success", "--curriculum_success", "0.3")
    assert len(comparable(run)) == UPDATES
    assert all(0 < record["curriculum/mean_estimate"] < 1 for record in comparable(run))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--dynamic_sampling True", "num_generations: expected at least 2 with dynamic_sampling"),
        ("--algorithm rloo --dynamic_sampling True --async_rollouts 1", "dynamic_sampling: expected False with async"),
        ("--max_resample 0", "max_resample: expected at least 1, got 0"),
    ],
)
def test_settings_that_do_not_go_together_are_one_line(flags, message):
    with pytest.raises(ConfigError) as error:
        parse_cli(train.TrainConfig, "train", [*SMALL, *flags.split()])
    assert str(error.value).startswith(message)
