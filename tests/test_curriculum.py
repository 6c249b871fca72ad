"""`--curriculum success` in runs: what is drawn follows from logged scores, on any devices and across any stop."""

import itertools
import json
import os
import shutil
import signal

import pytest

from jaxppo import data, train
from jaxppo.errors import DataError
from jaxppo.run.preemption import Preempted
from tests import small_runs
from tests.commands import comparable
from tests.small_runs import ASYNC, ROWS, UPDATES, config_of, score

DRAWN = ["--curriculum", "success", "--curriculum_success", "0.5", "--curriculum_threshold", "0.3"]
SAVED = ["--save_steps", "1", "--save_total_limit", "9"]
KINDS = [
    pytest.param([], id="sync"),
    pytest.param(ASYNC, id="async"),
    pytest.param(["--algorithm", "rloo"], id="groups", marks=pytest.mark.full),
    pytest.param(["--reference_prefixes", "2"], id="begun plans"),
]


def carry_out(folder, *flags, reward=score):
    return small_runs.carry_out(folder, *DRAWN, *flags, reward=reward)


@pytest.fixture(scope="module", params=KINDS)
def whole(request, tmp_path_factory):
    """An uninterrupted run, and its flags."""
    flags = [*request.param, *SAVED]
    return carry_out(tmp_path_factory.mktemp("curriculum") / "whole", *flags), flags


def assert_same_run(folder, reference):
    assert comparable(folder) == comparable(reference) and len(comparable(folder)) == UPDATES
    assert (folder / "samples.jsonl").read_text() == (reference / "samples.jsonl").read_text()


def samples_of(folder):
    """The samples of each update, in the order of its rows."""
    samples = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    return [list(of_step) for _, of_step in itertools.groupby(samples, key=lambda sample: sample["step"])]


def test_prompts_are_those_of_seed_and_past_scores(whole):
    folder, flags = whole
    config = config_of(folder, *DRAWN, *flags)
    template = data.make_chat_template(data.word_tokenizer(), config.data)
    rows = data.load_split(config.data, config.data.train_split, None)
    rows = data.with_begun_plans(rows, config.drawing, config.data.data_seed, template)
    lengths = [row["plan_length"] for row in rows]
    prompts = data.PromptData(rows, data.word_tokenizer(), config.num_prompts, config.run.seed, 512)
    curriculum = data.make_curriculum(config.drawing, prompts, ahead=config.rl.async_rollouts > 0)
    copies, known, records = config.rl.group_size, curriculum.start(), comparable(folder)
    assert len(samples_of(folder)) == UPDATES
    for step, (samples, record) in enumerate(zip(samples_of(folder), records, strict=True)):
        drawn = [rows[row]["id"] for row in known.rows for _ in range(copies)]
        assert [sample["id"] for sample in samples] == drawn
        assert [sample["prompt"] for sample in samples] == [
            rows[row]["prompt"] for row in known.rows for _ in range(copies)
        ]
        assert max(lengths[row] for row in known.rows) <= max(record["curriculum/plan_length"], *known.limits)
        scores = [sample["score"] for sample in samples]
        known, metrics = curriculum.after(known, scores, step)
        assert {name: record[name] for name in metrics} == pytest.approx(metrics, rel=1e-6)
    allowed = [record["curriculum/plan_length"] for record in records]
    assert allowed == sorted(allowed) and allowed[0] < allowed[-1]


@pytest.mark.full
def test_a_run_that_is_stopped_in_every_update_goes_on_exactly(whole, tmp_path):
    """Each time in the run that goes on from the stop before, which first finishes the update that was stopped."""
    reference, flags = whole
    folder = tmp_path / "run"
    for update in range(UPDATES):
        batches = itertools.count(0 if update else 1)

        def struck(completion_ids, batches=batches, **_):
            if len(completion_ids) == ROWS and next(batches) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return score(completion_ids)

        with pytest.raises(Preempted):
            carry_out(folder, *flags, *(["--resume"] if update else []), reward=struck)
        assert len(comparable(folder)) == update
    assert_same_run(carry_out(folder, *flags, "--resume"), reference)


@pytest.fixture
def stopped(whole, tmp_path):
    """The whole run as it was after two updates."""
    reference, flags = whole
    folder = shutil.copytree(reference, tmp_path / "run")
    for step in (3, 4):
        shutil.rmtree(folder / "checkpoints" / str(step))
    (folder / "eval.json").unlink()
    return folder, flags


@pytest.mark.full
def test_a_run_goes_on_from_a_checkpoint_alone(whole, stopped):
    folder, flags = stopped
    assert_same_run(carry_out(folder, *flags, "--resume"), whole[0])


@pytest.mark.full
@pytest.mark.parametrize("whole", KINDS[:1], indirect=True)
@pytest.mark.parametrize("flags", [["--parallel", "fsdp", "--mesh", "data=2,fsdp=2"], ["--parallel", "pmap"]])
def test_every_mode_draws_the_same_prompts(whole, tmp_path, flags):
    reference, of_run = whole
    folder = carry_out(tmp_path / "run", *of_run, *flags)
    ids = lambda run: [[sample["id"] for sample in samples] for samples in samples_of(run)]  # noqa: E731
    assert ids(folder) == ids(reference)


@pytest.mark.full
def test_a_checkpoint_without_counts_is_refused_in_one_line(tmp_path):
    flags, folder = [*SAVED, "--total_episodes", str(ROWS)], tmp_path / "run"
    train.train(config_of(folder, *flags))
    (folder / "eval.json").unlink()
    changes = ["--allow_changes", "curriculum", "curriculum_success", "curriculum_threshold", "--resume"]
    with pytest.raises(DataError, match=r"^rest\.curriculum\.\w+: expected \w+ \[\d+\] .*, got no such array"):
        carry_out(folder, *flags, *changes)
