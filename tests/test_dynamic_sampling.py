"""`--dynamic_sampling`: groups of one score give way to others, on any devices and across any stop."""

import itertools
import os
import signal

import jax
import numpy as np
import pytest

from jaxppo.run.preemption import Preempted
from tests import small_runs
from tests.commands import comparable
from tests.small_runs import ROWS, SAVED, assert_same_run, samples_of

UPDATES = 2
FLAGS = ["--algorithm", "grpo", "--num_generations", "4", "--dynamic_sampling", "True", "--max_resample", "2"]
FLAGS += ["--missing_eos_penalty", "None"]  # which would tell completions apart
FLAGS += ["--curriculum", "success", "--curriculum_success", "0.3", "--total_episodes", str(UPDATES * ROWS), *SAVED]


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


def test_groups_of_one_score_give_way_to_others(whole):
    updates, records = samples_of(whole), comparable(whole)
    assert len(records) == len(updates) == UPDATES
    for samples, record in zip(updates, records, strict=True):
        scores = np.array([sample["score"] for sample in samples]).reshape(-1, 4)
        left = np.mean(np.ptp(scores, axis=1) < 1e-6)
        assert record["reward/zero_variance_groups"] == pytest.approx(left)
        assert record["objective/scores"] == pytest.approx(scores.mean(), abs=1e-6)
        extra = record["reward/extra_batches"]
        assert extra == 2 if left else extra in (0, 1, 2)
        assert (extra == 0) == (not left and record["reward/resampled_groups"] == 0)
        for prompts in np.array([sample["prompt"] for sample in samples]).reshape(-1, 4):
            assert len(set(prompts)) == 1
        assert 0 < record["curriculum/mean_estimate"] < 1
    assert max(record["reward/resampled_groups"] for record in records) > 0
    assert max(record["reward/extra_batches"] for record in records) > 0


@pytest.mark.full
def test_without_such_groups_nothing_else_is_sampled(tmp_path):
    count = itertools.count()

    def all_different(completion_ids, **_):
        return [float(next(count)) for _ in completion_ids]

    for record in comparable(carry_out(tmp_path / "run", reward=all_different)):
        assert (record["reward/resampled_groups"], record["reward/extra_batches"]) == (0, 0)


@pytest.mark.parametrize("call", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (0, 1))])
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
    carry_out(tmp_path / "run", "--resume")
    assert_same_run(tmp_path / "run", whole, UPDATES)


@pytest.mark.full
@pytest.mark.parametrize(
    "flags", [["--parallel", "fsdp", "--mesh", "data=2,fsdp=2"], ["--parallel", "pmap"]], ids=["fsdp", "pmap"]
)
def test_modes_change_nothing(whole, tmp_path, flags):
    """Neither which prompts a curriculum draws, nor what is put in the place of others, nor a completion."""
    assert len(jax.devices()) > 1

    def texts(folder):
        return [[(sample["id"], sample["completion"]) for sample in samples] for samples in samples_of(folder)]

    assert texts(carry_out(tmp_path / "run", *flags)) == texts(whole)
