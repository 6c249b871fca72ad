"""`--resume --allow_changes`: a run goes on under other settings, whether it has finished or not."""

import json

import pytest
import yaml

from jaxppo.errors import DataError
from jaxppo.run.jsonl import read_metrics
from tests.shared_programs import shared_programs
from tests.small_runs import carry_out


def coefficients(folder):
    return {record["step"]: round(record["objective/kl_coef"], 6) for record in read_metrics(folder / "metrics.jsonl")}


def test_a_finished_run_goes_on_with_more_episodes_and_another_kl_coefficient(tmp_path):
    folder = tmp_path / "run"
    with shared_programs():
        carry_out(folder, "--total_episodes", "32", "--kl_coef", "0.05")
        before = json.loads((folder / "eval.json").read_text())
        changes = ["--total_episodes", "48", "--kl_coef", "0.5"]
        carry_out(folder, *changes, "--resume", "--allow_changes", "total_episodes", "kl_coef")
    assert coefficients(folder) == {1: 0.05, 2: 0.05, 3: 0.5}
    after = json.loads((folder / "eval.json").read_text())
    assert after["before"] == before["before"] and set(after) == set(before)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert (settings["total_episodes"], settings["kl_coef"]) == (48, 0.5)


def test_a_finished_run_says_what_it_does_not_take_and_stays_finished(tmp_path, capsys):
    folder = tmp_path / "run"
    with shared_programs():
        carry_out(folder, "--total_episodes", "16")
        finished = (folder / "eval.json").read_bytes()
        capsys.readouterr()
        carry_out(
            folder, "--total_episodes", "16", "--resume", "--quiet", "--kl_coef", "0.5", "--allow_changes", "kl_coef"
        )
        shown = " ".join(capsys.readouterr().out.split())
        assert "warning: allow_changes: " in shown and "is finished: not applied: kl_coef" in shown
        other = ["--algorithm", "rloo", "--num_generations", "2", "--total_episodes", "48"]
        names = ["algorithm", "num_generations", "total_episodes"]
        with pytest.raises(DataError, match=r"no such array.*needs a new run"):
            carry_out(folder, *other, "--resume", "--allow_changes", *names)
    assert (folder / "eval.json").read_bytes() == finished
