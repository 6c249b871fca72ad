"""What goes wrong in one of two processes: both end, and each says why."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.commands import free_port
from tests.one_layer import ONE_LAYER
from tests.parallel.two_processes import QUICK, commands, ends_of, second

pytestmark = pytest.mark.full

REWARD = """
import os, time

def score(completions, **_):
    if "SECOND" in os.environ:
        {what}
    return [1.0] * len(completions)
"""
FAILURES = {
    "fails": ("raise ValueError('no luck')", (), "reward score: .*ValueError: no luck"),
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a module `own` whose reward does something in the second process."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def write(what: str) -> None:
        (tmp_path / "own.py").write_text(REWARD.format(what=what))

    return write


@pytest.mark.parametrize("case", FAILURES)
def test_a_reward_of_one_process_that(case, tmp_path, own):
    what, more, reason = FAILURES[case]
    own(what)
    flags = ("--reward_funcs", "own:score", *more)
    statuses, outputs = ends_of(second(commands(tmp_path / "run", *QUICK, *flags)))
    assert statuses == [2, 2], "\n".join(outputs)[-4000:]
    assert all(re.search(f"^error: (process 1 of 2 failed: )?{reason}", said, re.MULTILINE) for said in outputs)
    assert not any("Traceback" in said for said in outputs)


def write_rows(path: Path, number: int) -> None:
    other = "completion" if number else "chosen"
    row = {"completion": "clear a", "chosen": "clear b", "rejected": "clear c"} | {other: "clear d"}
    rows = [{"prompt": f"on {letter} a", **row} for letter in "bcdefghijklmnop"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


READERS = {
    "train": ("--preset", "tiny", "--sft_model_path", ONE_LAYER, "--reward_funcs", "own:score"),
    "sft": ("--model_path", ONE_LAYER, "--batch_size", 8, "--total_episodes", 16, "--reward_funcs", "own:score"),
    "reward_model": ("--model_path", ONE_LAYER, "--batch_size", 8, "--total_episodes", 16),
}


@pytest.mark.parametrize(("command", "differs"), [("train", "rl"), ("sft", "test"), ("reward_model", "rl")])
def test_processes_with_different_data_all_refuse(command, differs, tmp_path, own):
    """Each has its own disk; the same columns are read, and one word is another one."""
    own("return [0.0] * len(completions)")
    flags = ("--dataset", "data", "--train_split", "rl", "--eval_splits", "test", *READERS[command])
    address = f"127.0.0.1:{free_port()}"
    run = ["-m", f"jaxppo.{command}", *flags, "--output_dir", tmp_path / "run"]
    both = []
    for number, name in enumerate("ab"):
        (tmp_path / name / "data").mkdir(parents=True)
        for split in ("rl", "test"):
            write_rows(tmp_path / name / "data" / f"{split}.jsonl", number if split == differs else 0)
        own_flags = [*run, "--distributed", f"{address},{number}/2"]
        both.append(second([[], own_flags], f"os.chdir({str(tmp_path / name)!r})")[1])
    statuses, outputs = ends_of(both)
    assert statuses == [2, 2], outputs
    for said in outputs:
        assert f"error: data, split {differs}: " in said
    assert not (tmp_path / "run").exists()
