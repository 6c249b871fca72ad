import re

import pytest

from jaxppo.config import ReportConfig
from jaxppo.config.sources import parse_flags
from jaxppo.errors import ConfigError, DataError
from jaxppo.report.__main__ import report
from jaxppo.report.comparison import write_comparison
from tests.html_reader import read
from tests.report_runs import HOSTILE, record, splits, write_run


def compared(tmp_path, *folders):
    return read(write_comparison(folders, tmp_path / "compared.html"))


def seeds(tmp_path):
    """Two runs that differ in the seed, with 40 % and 60 % valid plans, and one with another KL coefficient."""
    a = write_run(tmp_path / "a", seed=1, before=splits(0.2), after=splits(0.4))
    b = write_run(tmp_path / "b", seed=2, before=splits(0.2), after=splits(0.6))
    return a, b, write_run(tmp_path / "c", seed=1, kl_coef=0.5, before=splits(0.2), after=splits(0.7))


def rows_of(text, name):
    table = re.search(rf'<table id="{name}".*?</table>', text, re.S)[0]
    rows = re.findall(r"<tr class.*?</tr>", table, re.S)
    return [[re.sub(r"<.*?>", " ", cell).strip() for cell in re.findall(r"<td>(.*?)</td>", row)] for row in rows]


def test_write_comparison_has_results_seeds_curves_and_settings(tmp_path):
    text, page = compared(tmp_path, *seeds(tmp_path))
    rows = rows_of(text, "summary")
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert rows[1][2] == "valid plans on test" and rows[1][4].startswith("60.0% [50.")
    ((names, measured, count, mean, span),) = rows_of(text, "over-seeds")
    assert (names, measured, count) == ("a, b (2 seeds)", "valid plans on test", "2")
    assert (mean, span) == ("50 ± 14 %", "40 to 60 %")
    assert rows_of(text, "differing") == [["seed", "1", "2", "1"], ["kl_coef", "0.02", "0.02", "0.5"]]
    assert "a, b (2 seeds)" in page.texts["li"] and 'class="area' in text
    assert "Not measured in the same way" not in page.texts["p"]


def test_write_comparison_of_runs_with_other_batches_counts_episodes(tmp_path):
    a = write_run(tmp_path / "a", batch_size=16)
    records = [record(step, 20) | {"episode": 32 * step} for step in range(1, 21)]
    text, page = compared(tmp_path, a, write_run(tmp_path / "b", batch_size=32, records=records))
    assert '"x_label":"episode"' in text and "640" in text and '"x_label":"update"' not in text
    assert "–" in page.texts["td"]  # not evaluated yet


def test_write_comparison_says_that_results_are_of_other_problems(tmp_path):
    others = {"data_seed": 1, "max_prompt_length": 99, "response_length": 32, "eval_validator": "val"}
    rate = {"rate": 0.5, "low": 0.4, "high": 0.6, "n": 100}
    plans = {"test": splits(0.5)["test"] | {"domains": {"lamps": {"bins": {"1-5": {"validity": rate}}}}}}
    a, b = (
        write_run(tmp_path / "a", after=plans),
        write_run(tmp_path / "b", after=splits(0.2), **others),
    )
    text, page = compared(tmp_path, a, b)
    (named,) = re.findall(r"Not measured in the same way[^.]*\.", page.texts["p"])
    assert all(name in named for name in others)
    assert "lamps" in text  # which the other run has not


def test_rewards_are_compared_where_they_are_the_same(tmp_path):
    measured = {"test": {"mean_reward": 0.5, "reward": {"mean": 0.5, "low": None, "high": None, "n": 1}}}
    for before, warned in ((measured, True), (splits(0.2), False)):
        folder = tmp_path / str(warned)
        runs = [write_run(folder / name, before=before, reward_weights=[w]) for name, w in (("a", 1.0), ("b", 5.0))]
        _, page = compared(folder, *runs)
        assert ("differ in reward_weights" in page.texts["p"]) == warned


def test_write_comparison_tells_folders_of_one_name_apart(tmp_path):
    a, b = (write_run(tmp_path / name / "run") for name in ("x", HOSTILE.replace("/", "")))
    text, _ = compared(tmp_path, a, b)
    assert rows_of(text, "summary")[0][0] == "x/run" and "<img" not in text
    with pytest.raises(DataError, match=rf"^runs: .*{a}"):
        write_comparison([a, a / "." / ".." / "run"], tmp_path / "again.html")
    assert not (tmp_path / "again.html").exists()


def test_the_command_reports_one_run_or_compares_several(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    a, b = (str(write_run(tmp_path / name)) for name in "ab")

    def run(*argv):
        return report(parse_flags(ReportConfig, "report", list(argv)))

    assert run(a) == tmp_path / "a" / "report.html"
    assert run(a, "--output", "deep/a.html").read_text().startswith("<!DOCTYPE html>")
    run(a, b)
    assert "2 runs" in (tmp_path / "report.html").read_text()
    assert capsys.readouterr().out.splitlines()[-1].endswith(" report.html")
    with pytest.raises(ConfigError, match=r"^runs: "):
        run()


def test_comparison_opens_without_problems_or_requests(browser, tmp_path):
    path = write_comparison(seeds(tmp_path), tmp_path / "compared.html")
    browser.open_afresh(path.as_uri(), width=360)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.run("document.querySelectorAll('figure.curve').length") > 10
    assert browser.problems == [] and set(browser.requests) <= {"about:blank", path.as_uri()}
