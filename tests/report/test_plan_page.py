"""The page of an evaluation: its text read by a parser, and itself by a browser where one is installed."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from jaxppo.evaluate.comparison import compare_splits
from jaxppo.evaluate.plan_metrics import plan_results
from jaxppo.evaluate.predictions import Prediction, judge_rows
from jaxppo.planning import format_action, parse_action, parse_domain, parse_problem
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.planning.datasets.rows import build_split
from jaxppo.report import plan_page
from jaxppo.report.plan_page import pick_samples, write_page
from tests import ROOT
from tests.html_reader import Reader
from tests.lamps import BY_HAND, judged, lamp_row, several

HOSTILE = "<script>document.title = 'run'</script><img src=x onerror=alert(1)>"
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


def test_write_page_is_well_formed_and_runs_its_own_script_alone(pages):
    for path in pages:
        text = path.read_text(encoding="utf-8")
        page = Reader(text)
        assert page.open == []
        scripts = [attrs for tag, attrs in page.elements if tag == "script"]
        assert scripts == [{"type": "application/json", "id": "samples-data"}, {}]
        assert page.count("img") == page.count("iframe") == page.count("link") == 0
        for tag, attrs in page.elements:
            assert not any(name.startswith("on") or name in ("src", "href", "style") for name in attrs), tag
        assert not re.search(r"https?://|@import|url\(", text)


def test_write_page_allows_what_it_needs_and_nothing_else(pages):
    text = pages[0].read_text(encoding="utf-8")
    (policy,) = [
        attrs["content"]
        for tag, attrs in Reader(text).elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    script, style = (
        base64.b64encode(hashlib.sha256(re.search(f"<{tag}>(.*?)</{tag}>", text, re.S)[1].encode()).digest()).decode()
        for tag in ("script", "style")
    )
    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src 'sha256-{script}'",
        f"style-src 'sha256-{style}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    # It holds from the first thing that could run on.
    assert text.index("Content-Security-Policy") < text.index("<style>") < text.index("<script")


def test_write_page_shows_hostile_text_as_text(pages):
    page = Reader(pages[0].read_text(encoding="utf-8"))
    assert page.texts["h1"] == f"One {HOSTILE}" and page.texts["title"].startswith(f"One {HOSTILE}")
    assert HOSTILE in page.texts["td"]
    data = re.search(r'id="samples-data">(.*?)</script>', pages[0].read_text(encoding="utf-8"), re.S)[1]
    assert not set("<>&") & set(data)
    assert HOSTILE in {sample["text"] for sample in json.loads(data)}


def test_write_page_shows_each_number(pages):
    page = Reader(pages[0].read_text(encoding="utf-8"))
    assert page.by_id("summary") == {"id": "summary"}
    assert "33.3%[9.7%, 70.0%]" in page.texts["td"]  # two of six in each split
    two = Reader(pages[1].read_text(encoding="utf-8"))
    assert two.by_id("comparison") == {"id": "comparison"} and "SFT" in two.texts["td"]
    assert two.texts["h3"].count("lamps") == 1 and "</script>" in two.texts["h3"]
    assert two.count("polyline") == 2 * 4 + 2  # two domains, two models on two splits; two in the legend
    assert two.count("circle") == 2 * 4  # each with one bin
    rect_classes = {attrs["class"] for tag, attrs in two.elements if tag == "rect"}
    assert rect_classes >= {"e-valid", "e-syntax", "e-precondition", "e-unknown_object"}


def test_write_page_without_samples_and_with_several_per_problem(tmp_path):
    done = several(["light a ; light b", "light a"], ["light a", "light a"])
    write_page(plan_results(done), [], tmp_path / "page.html")
    page = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "pass@2" in page.texts["th"] and page.count("select") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_pick_samples_takes_each_outcome_in_turn():
    done = judged(*["light a ; light b"] * 5, "light a", "light c", ")", *["light a"] * 5)
    verdicts = [sample["verdict"] for sample in pick_samples(done, 5)]
    assert verdicts == [
        "valid",
        "goal not reached: (lit b)",
        "precondition at step 1: (have c)",
        "syntax at step 1",
        "valid",
    ]
    assert len(pick_samples(done)) == 13


def test_page_sample_tells_the_steps():
    (done,) = judged(STEPS)
    sample = plan_page.page_sample(done, done.predictions[0])
    assert sample["plan"] == ["(light a)", "(light c)", "(light b)"]
    assert sample["trace"]["goals"] == [["(lit a)", False], ["(lit b)", False]]
    first, failing = sample["trace"]["steps"]
    assert first["added"] == ["(lit a)"] and first["goals"] == [True, False] and not first["error"]
    assert failing["preconditions"] == [["(have c)", False]]
    assert failing["reason"] == "precondition (have c) does not hold"


def test_page_sample_of_text_that_hides_something():
    (done,) = judged("light a\u202e\x1b[31m\nsecond line")
    sample = plan_page.page_sample(done, done.predictions[0])
    assert sample["text"] == "light a\\u202e\\x1b[31m\nsecond line"
    assert "cannot be read as a plan behind step 0" in sample["note"]
    (done,) = judged("x" * 30_000)
    long = plan_page.page_sample(done, done.predictions[0])
    assert len(long["text"]) < 20_100 and long["text"].endswith("[+10000 characters]")


def test_page_sample_of_a_plan_without_end_is_cut():
    (done,) = judged(" ; ".join(["light a"] * 1500))
    sample = plan_page.page_sample(done, done.predictions[0])
    assert len(sample["plan"]) == len(sample["trace"]["steps"]) == 1000
    assert sample["note"] == "Only the first 1000 of 1500 steps are shown."


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


# ---------------------------------------------------------------------------------------------------- in a real browser


@pytest.fixture
def opened(browser, pages):
    """The page of one model, nothing being wrong with it yet."""
    browser.problems.clear()
    browser.requests.clear()
    browser.resize(1100, 900)
    browser.open("about:blank")
    browser.open(pages[0].as_uri())
    return browser


def text_of(browser, selector):
    return browser.run(f"document.querySelector('{selector}').innerText")


def test_browser_reports_what_goes_wrong(opened, tmp_path):
    # The control: a page that breaks the rules shows up in all three lists.
    bad = tmp_path / "bad.html"
    policy = "<meta http-equiv='Content-Security-Policy' content=\"script-src 'sha256-x'\">"
    bad.write_text(f"{policy}<img src='missing.png'><script>run()</script>")
    opened.open(bad.as_uri())
    assert any("Content Security Policy" in problem for problem in opened.problems)
    assert any(url.endswith("missing.png") for url in opened.requests)


def test_page_opens_without_errors_or_requests(opened, pages):
    opened.open(pages[1].as_uri())
    assert opened.run("document.querySelectorAll('#validity svg').length") == 2
    assert opened.problems == []
    assert {url for url in opened.requests if url != "about:blank"} == {pages[0].as_uri(), pages[1].as_uri()}


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
    assert text_of(opened, "#position") == "step 0 of 2"
    assert text_of(opened, "#action") == "The initial state"
    assert opened.run("document.querySelector('#before').disabled")
    opened.click("#after")
    assert opened.run("location.hash") == f"#sample={number + 1}&step=1"
    assert text_of(opened, "#action") == "1. (light a)"
    assert text_of(opened, "#state .added") == "+ (lit a)"
    assert text_of(opened, "#goals") == "✓ (lit a)\n○ (lit b)"
    opened.click("#after")
    assert text_of(opened, "#reason") == "cannot be carried out: precondition (have c) does not hold"
    assert text_of(opened, "#preconditions .failing") == "✗ (have c)"
    assert text_of(opened, "#goals") == "✓ (lit a)\n✗ (lit b)"
    assert text_of(opened, "#plan .wrong") == "(light c)"
    assert text_of(opened, "#plan .beyond") == "(light b)"
    assert opened.run("document.querySelector('#after').disabled")
    opened.click("#plan li")
    assert text_of(opened, "#position") == "step 1 of 2"
    assert opened.problems == []


def test_page_steps_through_a_plan_by_keys_and_by_its_fragment(opened, pages):
    number = failing_sample(opened)
    opened.open("about:blank")
    opened.open(f"{pages[0].as_uri()}#sample={number + 1}&step=1")
    assert text_of(opened, "#action") == "1. (light a)"
    opened.press("ArrowRight")
    assert text_of(opened, "#action") == "2. (light c)"
    opened.press("ArrowRight")
    opened.press("ArrowLeft")
    assert text_of(opened, "#action") == "1. (light a)"
    last = opened.run("document.querySelectorAll('#pick option').length")
    for fragment, shown in (("sample=999&step=-3", last), ("sample=none", 1)):
        opened.move_to(fragment)
        assert text_of(opened, "#position").startswith("step 0 of ")
        assert opened.run("location.hash") == f"#sample={shown}&step=0"
    assert opened.problems == []


def test_page_shows_its_plots_in_light_and_dark(opened):
    seen = []
    for dark in (False, True):
        opened.resize(1100, 900, dark)
        opened.run("document.querySelector('#validity').scrollIntoView()")
        image = opened.screenshot(f"plans-{'dark' if dark else 'light'}")
        seen.append(image.mean())
        series = (86, 180, 233) if dark else (0, 114, 178)
        assert (np.abs(image - series).sum(axis=2) < 12).sum() > 200  # the first series is drawn in its colour
    assert seen[0] > 200 and seen[1] < 60


def test_page_fits_a_phone(opened):
    opened.resize(360, 740)
    assert opened.run("document.documentElement.scrollWidth") <= 360
    size = opened.run("(() => {const b = document.querySelector('#after').getBoundingClientRect(); return b.height})()")
    assert size >= 40


def test_page_shows_the_state_behind_each_step(browser, tmp_path):
    (row,) = build_split("test", sizes={4: 1}, seed=3, unique=True)
    plan = [parse_action(action) for action in row["reference_plan"]]
    done = judge_rows([row], [[Prediction(row["completion"])]])
    write_page(plan_results(done), pick_samples(done), tmp_path / "page.html")
    browser.open((tmp_path / "page.html").as_uri())
    problem = parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))
    facts = set(problem.init)
    for step in range(len(plan) + 1):
        if step:
            browser.press("ArrowRight")
            schema = problem.domain.actions[plan[step - 1][0]]
            names = dict(zip([name for name, _ in schema.parameters], plan[step - 1][1:], strict=True))
            add, delete = (
                {tuple(names.get(part, part) for part in atom) for atom in atoms}
                for atoms in (schema.add, schema.delete)
            )
            facts = (facts - delete) | add
        shown = browser.run("[...document.querySelectorAll('#state span:not(.deleted)')].map(one => one.innerText)")
        assert {text.removeprefix("+ ") for text in shown} == {format_action(fact) for fact in facts}
        reached = browser.run("document.querySelectorAll('#goals .yes').length")
        assert reached == sum(literal.atom in facts for literal in problem.goal)
    assert browser.run("document.querySelector('#after').disabled") and reached == len(problem.goal)
