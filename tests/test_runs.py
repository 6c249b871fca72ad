"""The long hunts of `runs/`: processes killed at random moments, a run that must not grow, and damaged files.

They are no part of CI, which runs what they find with. For a release: `pytest -m slow -n 0 tests/test_runs.py` carries
each out for minutes, `python runs/chaos.py`, `runs/soak.py` and `runs/fuzz.py` for as long as their flags say.
"""

import json
import subprocess
import sys

import pytest

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


@pytest.mark.slow
def test_a_long_run_is_measured(tmp_path):
    status, output = run("soak.py", "--updates", 12, "--every", 2, "--output_dir", tmp_path / "soak")
    assert status == 0 and "\n12 updates in " in output, output
    rows = json.loads((tmp_path / "soak" / "soak.json").read_text())
    assert [row["updates"] for row in rows] == sorted(row["updates"] for row in rows) and len(rows) >= 3
    assert all(row["run: memory, MiB"] > 100 and row["processes under the run"] >= 1 for row in rows)
    assert (tmp_path / "soak" / "soak.png").stat().st_size > 1000
    assert "reward/val_disagreements: 0 over all updates" in output


@pytest.mark.slow
def test_what_is_nearly_right_is_read_or_refused_in_one_line():
    status, output = run("fuzz.py", "--examples", 20)
    assert status == 0 and output.count(": 20 examples") == 6, output
