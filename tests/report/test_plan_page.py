"""The page of an evaluation: its text read by a parser, and itself by a browser where one is installed."""

import json
import re

import pytest

from jaxppo.evaluate.comparison import compare_splits
from jaxppo.evaluate.plan_metrics import plan_results
from jaxppo.evaluate.predictions import Prediction, judge_rows
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.planning.datasets.rows import build_split
from jaxppo.report import plan_page
from jaxppo.report.plan_page import pick_samples, write_page
from tests import ROOT
from tests.html_reader import assert_self_contained, data_of, read
from tests.lamps import BY_HAND, judged, lamp_row, several
from tests.report_runs import HOSTILE

STEPS = "light a ; light c ; light b"


def lamp_rows():
    """Two splits and two domains, whose names are hostile as well."""
    return [
        lamp_row(f"p{i}{HOSTILE}", split=("test", f"longer{HOSTILE}")[i % 2], domain=("lamps", "</script>")[i // 2 % 2])
        for i in range(12)
    ]


def model(*texts):
    return judge_rows(lamp_rows(), [[Prediction(texts[i % len(texts)], i % 3 > 0)] for i in range(12)])


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of one model, and one of two."""
    folder = tmp_path_factory.mktemp("pages")
    a, b = model(*BY_HAND), model("light a ; light b", STEPS, HOSTILE)
    results = plan_results(b)
    write_page(results, pick_samples(b), folder / "one.html", title=f"One {HOSTILE}", label="PPO")
    write_page(
        results,
        pick_samples(b),
        folder / "deep" / "two.html",
        label=f"PPO {HOSTILE}",
        other=plan_results(a),
        other_label="SFT",
        comparison=compare_splits(a, b),
    )
    return folder / "one.html", folder / "deep" / "two.html"


def test_write_page_shows_each_number_and_hostile_text_as_text_and_runs_its_own_script_alone(pages):
    for path in pages:
        assert_self_contained(path, "samples-data")
    text, page = read(pages[0])
    assert page.texts["h1"] == f"One {HOSTILE}" and page.texts["title"].startswith(f"One {HOSTILE}")
    assert HOSTILE in page.texts["td"]
    assert HOSTILE in {sample["text"] for sample in json.loads(data_of(text, "samples-data"))}
    _, page = read(pages[0])
    assert page.by_id("summary") == {"id": "summary"}
    assert "33.3%[9.7%, 70.0%]" in page.texts["td"]  # two of six in each split
    _, two = read(pages[1])
    assert two.by_id("comparison") == {"id": "comparison"} and "SFT" in two.texts["td"]
    assert two.texts["h3"].count("lamps") == 1 and "</script>" in two.texts["h3"]
    assert two.count("polyline") == 2 * 4 + 2  # two domains, two models on two splits; two in the legend
    assert two.count("circle") == 2 * 4  # each with one bin
    rect_classes = {attrs["class"] for tag, attrs in two.elements if tag == "rect"}
    assert rect_classes >= {"e-valid", "e-syntax", "e-precondition", "e-unknown_object"}


def test_write_page_without_samples_and_with_several_per_problem(tmp_path):
    done = several(["light a ; light b", "light a"], ["light a", "light a"])
    write_page(plan_results(done), [], tmp_path / "page.html")
    _, page = read(tmp_path / "page.html")
    assert "pass@2" in page.texts["th"] and page.count("select") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_pick_samples_takes_each_outcome_in_turn():
    done = judged(*["light a ; light b"] * 5, "light a", "light c", ")", *["light a"] * 5)
    outcomes = [sample["verdict"].split()[0] for sample in pick_samples(done, 5)]
    assert outcomes == ["valid", "goal", "precondition", "syntax", "valid"]
    assert len(pick_samples(done)) == 13


def test_page_sample_tells_the_steps_shows_what_is_hidden_and_cuts_what_has_no_end():
    (done,) = judged(STEPS)
    sample = plan_page.page_sample(done, done.predictions[0])
    assert sample["plan"] == ["(light a)", "(light c)", "(light b)"]
    assert sample["trace"]["goals"] == [["(lit a)", False], ["(lit b)", False]]
    first, failing = sample["trace"]["steps"]
    assert first["added"] == ["(lit a)"] and first["goals"] == [True, False] and not first["error"]
    assert failing["preconditions"] == [["(have c)", False]]
    assert failing["reason"] == "precondition (have c) does not hold"
    (done,) = judged("light a\u202e\x1b[31m\nsecond line")
    sample = plan_page.page_sample(done, done.predictions[0])
    assert sample["text"] == "light a\\u202e\\x1b[31m\nsecond line"
    assert "step 0" in sample["note"]
    (done,) = judged("x" * 30_000)
    long = plan_page.page_sample(done, done.predictions[0])
    assert len(long["text"]) < 20_100 and long["text"].endswith("[+10000 characters]")
    (done,) = judged(" ; ".join(["light a"] * 1500))
    sample = plan_page.page_sample(done, done.predictions[0])
    assert len(sample["plan"]) == len(sample["trace"]["steps"]) == 1000
    assert "1000 of 1500" in sample["note"]


def test_the_example_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = build_split("test", sizes={3: 2, 4: 2}, seed=0, unique=True)
    write_jsonl(rows, "test.jsonl")
    write_jsonl([{"id": row["id"], "plan": row["reference_plan"]} for row in rows], "plans.jsonl")
    docs = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", docs, re.S)
    exec(example, {})
    assert capsys.readouterr().out.startswith("{'rate': 1.0, 'low': 0.51")
    assert (tmp_path / "evaluation.html").stat().st_size > 20_000


@pytest.fixture
def opened(browser, pages):
    """The page of one model, nothing being wrong with it yet."""
    browser.open_afresh(pages[0].as_uri())
    return browser


def test_browser_reports_what_goes_wrong(opened, tmp_path):
    # The control: a page that breaks the rules shows up in both lists.
    bad = tmp_path / "bad.html"
    policy = "<meta http-equiv='Content-Security-Policy' content=\"script-src 'sha256-x'\">"
    bad.write_text(f"{policy}<img src='missing.png'><script>run()</script>")
    opened.open(bad.as_uri())
    assert any("Content Security Policy" in problem for problem in opened.problems)
    assert any(url.endswith("missing.png") for url in opened.requests)


def test_page_of_two_models_opens_without_errors_or_requests_and_fits_a_phone(browser, pages):
    browser.open_afresh(pages[1].as_uri(), width=360)
    assert browser.run("document.querySelectorAll('#validity svg').length") == 2
    assert browser.run("document.documentElement.scrollWidth") <= 360
    box = browser.run("document.querySelector('#after').getBoundingClientRect().height")
    assert box >= 40
    assert browser.problems == [] and set(browser.requests) <= {"about:blank", pages[1].as_uri()}


def test_page_runs_no_text_of_a_model(opened):
    count = opened.run("document.querySelectorAll('#pick option').length")
    for i in range(count):
        opened.move_to(f"sample={i + 1}&step=9")
        assert opened.run("document.querySelectorAll('img').length") == 0
    assert opened.run("document.title") == f"One {HOSTILE}"
    assert opened.run("document.querySelectorAll('script').length") == 2
    # The policy, and not only the escaping: an element that gets in does not run.
    opened.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title = 1\">')")
    opened.run("document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 2'}))")
    assert opened.run("document.title") == f"One {HOSTILE}"


def failing_sample(browser):
    titles = browser.run("[...document.querySelectorAll('#pick option')].map(o => o.text)")
    return next(i for i, title in enumerate(titles) if title.endswith("precondition"))


def test_page_steps_through_a_plan_by_clicks(opened):
    number = failing_sample(opened)
    opened.run(f"document.querySelector('#pick').value = '{number}'")
    opened.run("document.querySelector('#pick').dispatchEvent(new Event('change'))")
    assert opened.text("#position") == "step 0 of 2"
    assert opened.text("#action") == "The initial state"
    assert opened.run("document.querySelector('#before').disabled")
    opened.click("#after")
    assert opened.run("location.hash") == f"#sample={number + 1}&step=1"
    assert opened.text("#action") == "1. (light a)"
    assert opened.text("#state .added") == "+ (lit a)"
    assert opened.text("#goals") == "✓ (lit a)\n○ (lit b)"
    opened.click("#after")
    assert opened.text("#reason") == "cannot be carried out: precondition (have c) does not hold"
    assert opened.text("#preconditions .failing") == "✗ (have c)"
    assert opened.text("#goals") == "✓ (lit a)\n✗ (lit b)"
    assert opened.text("#plan .wrong") == "(light c)"
    assert opened.text("#plan .beyond") == "(light b)"
    assert opened.run("document.querySelector('#after').disabled")
    opened.click("#plan li")
    assert opened.text("#position") == "step 1 of 2"
    assert opened.problems == []


def test_page_steps_through_a_plan_by_keys_and_by_its_fragment(opened, pages):
    number = failing_sample(opened)
    opened.open("about:blank")
    opened.open(f"{pages[0].as_uri()}#sample={number + 1}&step=1")
    assert opened.text("#action") == "1. (light a)"
    for key, action in (("ArrowRight", "2. (light c)"), ("ArrowRight", "2. (light c)"), ("ArrowLeft", "1. (light a)")):
        opened.press(key)
        assert opened.text("#action") == action
    last = opened.run("document.querySelectorAll('#pick option').length")
    for fragment, shown in (("sample=999&step=-3", last), ("sample=none", 1)):
        opened.move_to(fragment)
        assert opened.text("#position").startswith("step 0 of ")
        assert opened.run("location.hash") == f"#sample={shown}&step=0"
    assert opened.problems == []
