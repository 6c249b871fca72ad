"""The two long hunts of `runs/`: processes killed at random moments, and a run that must not grow.

They are no part of CI, which runs what they find with. For a release: `pytest -m slow -n 0 tests/test_runs.py` carries
each out for minutes, `python runs/chaos.py` and `python runs/soak.py` for as long as their flags say.
"""

import json
import random
import subprocess
import sys

import pytest

from runs import chaos, soak
from tests import ROOT


def run(script, *flags):
    """A script of `runs/`; returns its status and its output."""
    command = [sys.executable, str(ROOT / "runs" / script), *map(str, flags)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_killed_commands_go_on_as_if_nothing_had_happened(tmp_path):
    status, output = run("chaos.py", "--kills", 3, "--jobs", "ppo", "--output_dir", tmp_path / "chaos")
    assert status == 0 and output.splitlines()[-1].endswith(" 0 wrong (seed 0)"), output
    trials = [json.loads(line) for line in (tmp_path / "chaos" / "trials.jsonl").read_text().splitlines()]
    assert {trial["job"] for trial in trials} == {"ppo"} and not any(trial["wrong"] for trial in trials)


@pytest.mark.parametrize("change", ["a byte", "a missing file", "a metric"])
def test_another_outcome_is_seen(tmp_path, change):
    records = [{"step": 1, "loss": 0.5, "time/update_s": 1.0}]
    for name in ("quiet", "trial"):
        (tmp_path / name / "policy").mkdir(parents=True)
        (tmp_path / name / "policy" / "weights").write_bytes(b"12")
        records[0]["time/update_s"] += 1
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert chaos.differences(tmp_path / "quiet", tmp_path / "trial") == []
    if change == "a byte":
        (tmp_path / "trial" / "policy" / "weights").write_bytes(b"13")
    elif change == "a missing file":
        (tmp_path / "trial" / "policy" / "weights").unlink()
    else:
        (tmp_path / "trial" / "metrics.jsonl").write_text(json.dumps(records[0] | {"loss": 0.4}) + "\n")
    (named,) = chaos.differences(tmp_path / "quiet", tmp_path / "trial")
    assert named in ("policy/weights differs", "metrics.jsonl differs")


def test_a_byte_is_flipped_where_an_older_checkpoint_remains(tmp_path):
    for step in (1, 2):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
        (tmp_path / "checkpoints" / str(step) / "array").write_bytes(b"content")
    chaos._flip(tmp_path, random.Random(0))
    assert (tmp_path / "checkpoints" / "1" / "array").read_bytes() == b"content"
    assert (tmp_path / "checkpoints" / "2" / "array").read_bytes() != b"content"


@pytest.mark.slow
def test_a_long_run_is_measured(tmp_path):
    status, output = run("soak.py", "--updates", 12, "--every", 2, "--output_dir", tmp_path / "soak")
    assert status == 0 and "\n12 updates in " in output, output
    rows = json.loads((tmp_path / "soak" / "soak.json").read_text())
    assert [row["updates"] for row in rows] == sorted(row["updates"] for row in rows) and len(rows) >= 3
    assert all(row["run: memory, MiB"] > 100 and row["processes under the run"] >= 1 for row in rows)
    assert (tmp_path / "soak" / "soak.png").stat().st_size > 1000
    assert "reward/val_disagreements: 0 over all updates" in output


def test_growth_is_measured():
    rows = [{"updates": float(n), "threads": 5.0 + n, "time, s": 2.0 * n} for n in range(10)]
    assert soak.growth(rows, "threads") == (7.0, 13.0)
    assert soak.speeds(rows, "time, s") == [2.0] * 9
