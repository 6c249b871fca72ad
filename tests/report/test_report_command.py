"""The command `python -m jaxppo.report`; how it refuses bad input: `tests/run/test_cli.py`."""

import pytest

from jaxppo.config import ReportConfig
from jaxppo.config.sources import parse_flags
from jaxppo.errors import ConfigError
from jaxppo.report.__main__ import report
from tests.report_runs import write_run


def parsed(*argv):
    return parse_flags(ReportConfig, "report", list(map(str, argv)))


def test_report_of_one_run_and_of_several(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    a, b = (write_run(tmp_path / name) for name in "ab")
    assert report(parsed(a)) == a / "report.html"
    assert report(parsed(a, "--output", "deep/a.html")).read_text().startswith("<!DOCTYPE html>")
    report(parsed(a, b))
    assert "2 runs" in (tmp_path / "report.html").read_text()
    assert capsys.readouterr().out.splitlines()[-1].endswith(" report.html")
    with pytest.raises(ConfigError, match=r"^runs: "):
        parsed()
