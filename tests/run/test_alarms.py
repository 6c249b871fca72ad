"""What a run watches for: batches that cannot be learned from, and KL estimates that cannot be right."""

import io
import json
import math

import numpy as np
import pytest

from jaxppo.errors import TrainingError
from jaxppo.run.alarms import Health, save_batch
from jaxppo.run.console import Console
from jaxppo.types import Sequences, Trajectories

SAMPLES = [
    {"step": 3, "id": "row-0", "prompt": "<init> é", "completion": "a\u202eb", "score": 0.5, "verdict": "valid"},
    {"step": 3, "id": "row-1", "prompt": "q", "completion": "", "score": -1.0, "verdict": "syntax at step 1"},
]


def make_trajectories(algorithm="ppo"):
    """Two completions of three tokens, with a NaN among the log-probabilities."""
    sequences = Sequences(
        input_ids=np.arange(10, dtype=np.int32).reshape(2, 5),
        prompt_lengths=np.array([2, 1], np.int32),
        completion_ids=np.arange(6, dtype=np.int32).reshape(2, 3),
        completion_mask=np.array([[True, True, False], [True, True, True]]),
    )
    tokens = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    logprobs = tokens.copy()
    logprobs[0, 1] = math.nan
    if algorithm == "rloo":
        return Trajectories(sequences, logprobs, rewards=tokens[:, 0], advantages=tokens[:, 1])
    return Trajectories(sequences, logprobs, tokens + 1, tokens + 2, tokens + 3, tokens + 4, tokens > 0.5)


def make_record(step=3, nonfinite=0, in_a_row=0, **others):
    return {"step": step, "policy/nonfinite_steps": nonfinite, "policy/bad_updates": in_a_row, **others}


@pytest.fixture
def watched(tmp_path):
    """(health of a run that three bad updates in a row end, what it has printed so far)."""
    shown = io.StringIO()
    return Health(Console(quiet=True, file=shown), tmp_path, 3), shown.getvalue


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_save_batch_writes_every_array_by_name_and_the_samples_beside(tmp_path, algorithm):
    batch = make_trajectories(algorithm)
    path = save_batch(tmp_path / "deep" / "bad_batches", 3, batch, SAMPLES)
    assert path == tmp_path / "deep" / "bad_batches" / "update-3.npz"
    given = {name: value for name, value in batch.sequences._asdict().items() if value is not None}
    expected = {f"sequences.{name}": value for name, value in given.items()}
    own = {name: value for name, value in batch._asdict().items() if name != "sequences" and value is not None}
    with np.load(path) as arrays:
        assert set(arrays) == {*expected, *own}
        for name, value in (expected | own).items():
            np.testing.assert_array_equal(arrays[name], value, err_msg=name)  # NaN equals NaN here
            assert arrays[name].dtype == value.dtype
    lines = path.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == SAMPLES
    assert all(line.isascii() for line in lines)


def test_check_stops_the_run_after_as_many_bad_updates_in_a_row_as_allowed(watched, tmp_path):
    health, shown = watched
    # As the state counts them: a good update starts over.
    for step, in_a_row in ((1, 1), (2, 2), (3, 0), (4, 1), (5, 2)):
        record = make_record(step, nonfinite=int(in_a_row > 0), in_a_row=in_a_row)
        assert not health.is_over(record)
        health.check(record, make_trajectories(), SAMPLES)
    last = make_record(6, nonfinite=1, in_a_row=3)
    assert health.is_over(last)
    with pytest.raises(TrainingError) as caught:
        health.check(last, make_trajectories(), SAMPLES)
    message = str(caught.value)
    assert message.startswith("max_bad_updates: ") and "\n" not in message
    assert str(tmp_path / "bad_batches" / "update-6.npz") in message
    assert {path.stem for path in (tmp_path / "bad_batches").iterdir()} == {f"update-{n}" for n in (1, 2, 4, 5, 6)}
    lines = shown().splitlines()
    assert len(lines) == 5 and lines[0].startswith("warning: update 1: 1 ") and "learning_rate" in lines[0]
    assert str(tmp_path / "bad_batches" / "update-1.npz") in lines[0]


@pytest.mark.parametrize("kl", [-1.0, 7.0, math.nan, None])
def test_check_of_a_good_update_says_and_writes_nothing(watched, tmp_path, kl):
    """A KL down to -1 may be chance, and without a reference there is none."""
    health, shown = watched
    record = {} if kl is None else {"objective/kl_k1": np.float32(kl)}
    health.check(make_record(**record), make_trajectories(), SAMPLES)
    assert shown() == "" and list(tmp_path.iterdir()) == []


def test_disagreements_of_the_validators_are_told_every_time(watched):
    health, shown = watched
    for step, count in ((1, 0), (2, 1), (3, 2)):
        record = make_record(step, **{"reward/val_audited": 5, "reward/val_disagreements": count})
        health.check(record, make_trajectories(), SAMPLES)
    lines = shown().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "warning: update 2: reward/val_disagreements is 1",
        "warning: update 3: reward/val_disagreements is 2",
    ]
    assert all("val_disagreements/" in line for line in lines)  # where the cases are


@pytest.mark.parametrize(
    ("name", "fine", "alarming"),
    [
        ("objective/kl_k1", np.float32(-1.0), np.float32(-1.25)),
        ("reward/errors", 0, 1),
        ("reward/validator_failed", 0.0, 0.01),
        ("reward/overlong", 0.25, 0.3),
    ],
)
def test_a_metric_beyond_its_range_is_warned_of_once(watched, name, fine, alarming, tmp_path):
    health, shown = watched
    health.check(make_record(1, **{name: fine}), make_trajectories(), SAMPLES)
    assert shown() == ""
    for step in (2, 3):
        health.check(make_record(step, **{name: alarming}), make_trajectories(), SAMPLES)
    assert shown().startswith(f"warning: update 2: {name} is {alarming:g}, ")
    assert shown().count("\n") == shown().count(name) == 1 and list(tmp_path.iterdir()) == []
