"""The report of a run: its text read by a parser, and itself by a browser where one is installed."""

import io
import json
import re

import numpy as np
import pytest

from jaxppo.config import RewardModelConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import write_yaml
from jaxppo.errors import DataError, TrainingError
from jaxppo.evaluate.intervals import wilson
from jaxppo.evaluate.plan_metrics import plan_results
from jaxppo.report import run_page
from jaxppo.report.run_page import reported, write_report
from jaxppo.run.console import Console
from jaxppo.run.jsonl import JsonlLog
from jaxppo.run.preemption import Preempted
from tests.html_reader import assert_self_contained, data_of, read
from tests.lamps import BY_HAND, judged
from tests.report_runs import HOSTILE, SNEAKY, record, sample, splits, write_run


def report_of(folder):
    return read(write_report(folder))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The report of a run whose every text is hostile."""
    samples = [
        sample(step, f"p{i}{HOSTILE}", completion=(HOSTILE, SNEAKY)[i % 2], verdict=HOSTILE, **{HOSTILE: HOSTILE})
        for step in (1, 20, 40)
        for i in range(4)
    ]
    records = [record(step, 40) | {f"reward/{HOSTILE}": step, f"rewards/{HOSTILE}/mean": step} for step in range(1, 41)]
    names = {"before": {HOSTILE: splits(0.2)["test"]}, "after": {HOSTILE: splits(0.4)["test"]}}
    folder = tmp_path_factory.mktemp("hostile") / "run <b>"
    write_run(folder, records=records, samples=samples, command=f"python -m jaxppo.train {HOSTILE}", **names)
    return write_report(folder)


def test_write_report_shows_hostile_text_as_text_and_runs_its_own_script_alone(hostile):
    assert_self_contained(hostile, "curves-data", "samples-data")
    text, page = read(hostile)
    assert page.texts["h1"] == "run <b>" and HOSTILE in page.texts["pre"] and HOSTILE in page.texts["code"]
    samples = json.loads(data_of(text, "samples-data"))
    assert {s["completion"] for update in samples for s in update["samples"]} == {
        HOSTILE,
        "up\\u202edown\\x1b[31m\\u200bend\\x00",
    }


def test_write_report_tells_the_whole_run(tmp_path):
    folder = write_run(
        tmp_path / "run", before=splits(0.2), after=splits(0.6), kl_coef=0.5, samples=[sample(1), sample(40)]
    )
    text, page = report_of(folder)
    assert "finished after 40 updates" in page.texts["p"]
    assert "20.0%" in page.texts["p"] and "60.0%" in page.texts["p"] and "+40.0 points" in page.texts["p"]
    commands = ("train --config", "train --resume --output_dir", "report")
    assert all(f"python -m jaxppo.{command} {folder}" in page.texts["pre"] for command in commands)
    changed = text[text.index('id="changed"') : text.index('id="settings-all"')]
    assert [re.findall(r"<code>(.*?)</code>", row) for row in changed.split("<tr")[2:]] == [["kl_coef", "0.5"]]
    assert "0.02" in changed  # what it is without flags
    assert "objective/kl_coef" not in page.texts.get("figcaption", "")
    assert "healthy 0 to 30" in page.texts["p"] and 'class="band"' in text
    assert "3 programs" in page.texts["td"]
    assert page.texts["li"].count("waiting for the reward") == 1


def test_a_long_curve_is_drawn_whole(tmp_path):
    text, _ = report_of(write_run(tmp_path / "run", updates=300))
    assert max(len(points.split()) for points in re.findall(r'points="([^"]*)"', text)) == 300


def test_write_report_of_a_run_that_goes_on_warns_of_what_looks_wrong(tmp_path):
    records = [record(step, 40) | {"objective/kl": 2.0 * step} for step in range(1, 31)]
    records[19]["eval/test/validity"] = 0.5
    records[29]["eval/test/validity"] = 0.7
    folder = write_run(tmp_path / "run", records=records, before=splits(0.2), total_episodes=16 * 40, batch_size=16)
    _, page = report_of(folder)
    assert "not finished: 30 of 40 updates" in page.texts["p"]
    assert "at update 30" in page.texts["p"] and "70.0%" in page.texts["p"]
    assert re.search("objective/kl .*56, above 30.* kl_coef", page.texts["li"])


def test_write_report_of_a_run_that_has_just_begun_or_lost_its_files(tmp_path):
    folder = write_run(tmp_path / "run", updates=0)
    assert "not finished: 0" in report_of(folder)[1].texts["p"]
    (folder / "metrics.jsonl").unlink()
    assert "not finished: 0" in report_of(folder)[1].texts["p"]
    # Half of a line is still being written, and a metric is no number.
    (folder / "metrics.jsonl").write_text('{"step": 1, "objective/kl": null, "lr": 1e-4}\n{"step": 2, "obj')
    assert "not finished: 1 " in report_of(folder)[1].texts["p"]
    # The last line is another program's, and says nothing of a step.
    (folder / "metrics.jsonl").write_text('{"step": 1, "objective/kl": 0.1, "lr": 1e-4}\n{"lr": 1e-4}\n')
    (folder / "samples.jsonl").write_text('{"prompt": "p"}\n')
    assert "not finished: 1 " in report_of(folder)[1].texts["p"]


def test_write_report_of_rewards_and_of_plans_by_length(tmp_path):
    before = {"test": {"reward": {"mean": 0.25, "low": 0.2, "high": 0.3, "n": 50}, "mean_reward": 0.25}}
    after = {"test": {"reward": {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 50}, "mean_reward": 0.5}}
    text, page = report_of(write_run(tmp_path / "run", before=before, after=after))
    assert "mean reward on test" in page.texts["p"] and "+0.250" in page.texts["p"] and 'id="errors"' not in text
    plans = json.loads(json.dumps(plan_results(judged(*BY_HAND))))
    text, _ = report_of(write_run(tmp_path / "plans", before=plans, after=plans))
    assert "lamps" in text and 'id="errors"' in text


PAIRS = {"after": {"test": {"accuracy": wilson(8, 10), "loss": 0.3, "margin": 1.5}}}


@pytest.mark.parametrize(
    ("command", "config", "evals", "headline"),
    [
        ("sft", SFTConfig(), splits(0.5), "valid plans on test"),
        ("reward_model", RewardModelConfig(dataset="x"), PAIRS, "pairs ordered right"),
    ],
)
def test_write_report_of_supervised_runs(tmp_path, command, config, evals, headline):
    write_yaml(config, tmp_path / "config.yaml")
    with JsonlLog(tmp_path / "metrics.jsonl") as log:
        for step in range(1, 31):
            log.append({"step": step, "loss": 1 / step, "lr": 1e-3, "time/step_s": 0.1})
    (tmp_path / "eval.json").write_text(json.dumps(evals))
    _, page = report_of(tmp_path)
    assert f"python -m jaxppo.{command} --config" in page.texts["pre"]
    assert headline in page.texts["p"]
    assert "loss" in page.texts["figcaption"] and "finished after 30 updates" in page.texts["p"]


@pytest.fixture
def run(tmp_path):
    """The folder of a run, its console, and what that has printed."""
    console = Console(quiet=True, file=io.StringIO())
    return write_run(tmp_path / "run"), console, console._rich.file.getvalue


@pytest.mark.parametrize("error", [None, Preempted("resume", 15), TrainingError("over")])
def test_reported_writes_the_page_however_the_run_ends(run, error):
    folder, console, printed = run
    try:
        with reported(folder, console):
            if error:
                raise error
    except Exception as ended:
        assert ended is error
    assert printed().endswith(f" {folder / 'report.html'}\n")
    assert "40 of 60 updates" in read(folder / "report.html")[1].texts["p"]


def test_reported_leaves_at_once_when_asked_twice_and_other_processes_write_nothing(run, monkeypatch):
    folder, console, printed = run
    with pytest.raises(KeyboardInterrupt), reported(folder, console):
        raise KeyboardInterrupt
    monkeypatch.setattr(run_page.processes, "is_first", lambda: False)
    with reported(folder, console):
        pass
    assert not (folder / "report.html").exists() and printed() == ""


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("b\nug")])
def test_a_report_that_cannot_be_written_is_a_warning_that_says_why(run, monkeypatch, error):
    folder, console, printed = run

    def fail(*_):
        raise error

    monkeypatch.setattr(run_page, "_content", fail)
    with reported(folder, console):
        pass
    (line,) = printed().splitlines()
    assert line.startswith("warning: ") and type(error).__name__ in line
    assert f"python -m jaxppo.report {folder}" in line
    # What ended the run is raised, and not what is wrong with its report.
    with pytest.raises(TrainingError, match="over"), reported(folder, console):
        raise TrainingError("over")


def test_write_report_refuses_what_is_no_run(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match=f"^runs: .*{folder}"):
            write_report(folder)
    write_yaml(TrainConfig(), tmp_path / "config.yaml")
    (tmp_path / "eval.json").write_text("[1]")
    with pytest.raises(DataError, match=r"eval\.json"):
        write_report(tmp_path)


@pytest.fixture
def opened(browser, hostile):
    """The hostile page, nothing being wrong with it yet."""
    browser.open_afresh(hostile.as_uri())
    return browser


def test_page_opens_without_problems_or_requests_and_runs_no_text(opened, hostile):
    assert opened.run("document.querySelectorAll('#cards li').length") == 4
    opened.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    for _ in range(3):
        opened.click("#earlier")
    assert opened.run("document.querySelectorAll('img').length") == 0
    assert opened.run("document.title") == "run <b>: PPO"
    assert opened.run("document.querySelectorAll('script').length") == 3
    assert HOSTILE in opened.text("#cards") and "up\\u202edown\\x1b[31m" in opened.text("#cards")
    assert opened.problems == [] and set(opened.requests) <= {"about:blank", hostile.as_uri()}


def test_page_moves_through_updates_by_keys_and_follows_a_prompt(opened):
    assert opened.text("#position") == "update 40, 3 of 3"
    opened.run("document.querySelector('#update').focus()")
    opened.press("ArrowLeft")
    assert opened.text("#position") == "update 20, 2 of 3"
    opened.click("#earlier")
    assert opened.text("#position") == "update 1, 1 of 3"
    assert opened.run("document.querySelector('#earlier').disabled")
    opened.run("document.querySelector('#prompt').selectedIndex = 1")
    opened.run("document.querySelector('#prompt').dispatchEvent(new Event('change'))")
    assert opened.text("#position") == "3 samples of this prompt"
    heads = opened.run("[...document.querySelectorAll('#cards .head span')].map(one => one.innerText)")
    assert heads == [f"update {step} · p0{HOSTILE}" for step in (1, 20, 40)]
    assert opened.run("document.querySelector('#later').getClientRects().length") == 0
    assert opened.problems == []


def test_page_tells_the_values_under_the_pointer(opened):
    opened.run("document.querySelector('figure.curve').scrollIntoView({block: 'center'})")
    usual = opened.text("figure.curve .values")
    box = "document.querySelector('figure.curve svg[role=img]').getBoundingClientRect()"
    x, y = opened.run(f"[{box}.right - 12, {box}.y + 40]")
    opened.move_pointer(x, y)
    assert re.fullmatch(r"update (39|40): 0\.\d+ \(mean 0\.\d+\)", opened.text("figure.curve .values"))
    assert opened.run("document.querySelectorAll('figure.curve .cursor circle').length") == 1
    opened.move_pointer(2, 2)
    assert opened.text("figure.curve .values") == usual
    assert opened.problems == []


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1400, False)])
def test_page_fits_and_is_drawn(opened, width, dark):
    opened.resize(width, 800, dark)
    opened.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert opened.run("document.documentElement.scrollWidth") <= width
    opened.run("document.querySelector('#curves').scrollIntoView()")
    pixels = opened.screenshot(f"report-{width}-{'dark' if dark else 'light'}")
    assert pixels.mean() < 60 if dark else pixels.mean() > 200
    line = (86, 180, 233) if dark else (0, 114, 178)
    assert (np.abs(pixels - line).sum(axis=2) < 12).sum() > 100
    assert opened.problems == []
