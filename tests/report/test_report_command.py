"""The command `python -m jaxppo.report`."""

import subprocess
import sys

import pytest

from jaxppo.config import ReportConfig
from jaxppo.config.sources import parse_flags
from jaxppo.errors import ConfigError
from jaxppo.report.__main__ import report
from tests.report_runs import write_run


def parsed(*argv):
    return parse_flags(ReportConfig, "report", [str(arg) for arg in argv])


def test_report_of_one_run_and_of_several(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    a, b = (write_run(tmp_path / name) for name in "ab")
    assert report(parsed(a)) == a / "report.html"
    assert report(parsed(a, "--output", "deep/a.html")).read_text().startswith("<!DOCTYPE html>")
    report(parsed(a, b))
    assert "2 runs compared" in (tmp_path / "report.html").read_text()
    assert capsys.readouterr().out.splitlines()[-1] == "report in report.html"


@pytest.mark.parametrize(
    ("argv", "words"), [([], "runs: expected at least one run folder"), (["--no_such_flag", "1"], "no_such_flag")]
)
def test_report_refuses_bad_flags(argv, words):
    with pytest.raises(ConfigError, match=words):
        parsed(*argv)


def test_bad_input_is_one_line_and_status_2(tmp_path):
    command = [sys.executable, "-m", "jaxppo.report", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "error: runs: expected folders of train, self_train, sft or reward_model, got "
        f"{tmp_path / 'none'}, which is no folder\n"
    )
