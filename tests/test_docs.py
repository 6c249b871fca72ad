"""The documentation is a promise: every block of code runs or is read by what it is for, and the site works.

Languages: `python` is run, page by page, a later block seeing what an earlier one defined; `bash` is parsed by the
commands' own parsers, and run on the pages of `TRANSCRIPTS`; `yaml`, `json` and `pddl` are parsed; `text` is neither. A
block with a title is a file. `<!-- not run: REASON -->` in the line above a block keeps it from being run, but not from
being parsed.
"""

import functools
import http.server
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from jaxppo import hf, models
from jaxppo.config.old_settings import OLD_SETTINGS
from jaxppo.config.sources import fields_of, parse_cli, setting_names
from jaxppo.data import word_tokenizer
from jaxppo.errors import ConfigError
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.planning import parse_domain
from jaxppo.rl.step import train_step
from jaxppo.run import metrics
from tests import ROOT
from tests.newcomer import COMMANDS, OTHER_FLAGS, PAGES, REPLACED, Newcomer, check_command
from tests.pages import FENCE, Block, blocks, commands_of, source

TRANSCRIPTS = ["docs/own_reward.md", "docs/own_domain.md", "docs/judge_plans.md"]
"""What a newcomer does, command by command."""

RUN_ELSEWHERE = {
    "docs/first_hour.md": "tests/test_notebook.py",  # as a notebook
    "docs/troubleshooting.md": "tests/test_notebook.py",  # needs that run
    "docs/evaluation.md": "tests/report/test_plan_page.py",  # needs plans to read
    "docs/reward_server.md": "tests/test_reward_server.py",  # needs a server
    "docs/rewards_elsewhere.md": "tests/reward_functions/test_elsewhere.py",  # needs plans, and TRL with a model
}
"""Pages that are run by other tests, which bring what it needs."""

RECORDS = {"docs/results.md"} | {f"docs/experiments/{page.name}" for page in (ROOT / "docs/experiments").glob("*.md")}
"""Pages with the commands of earlier versions, whose flags may be gone."""

LANGUAGES = {"bash", "json", "pddl", "python", "text", "yaml"}
COMMAND = re.compile(r"\bpython3? -m jaxppo\.|\bpip install |\bpython \w+/")
SETTINGS = {name: set(setting_names(command)) for name, command in COMMANDS.items()}
"""Of each command."""
ALL_SETTINGS = set().union(*SETTINGS.values())
EARLIER = {*OLD_SETTINGS, *fields_of(COMMANDS["train"]), *fields_of(COMMANDS["sft"]), *fields_of(COMMANDS["evaluate"])}
"""Flags that commands have had."""


def text_of(page: str) -> str:
    """A page without its blocks."""
    return FENCE.sub("", source(page))


def test_the_readme_shows_the_step_as_it_is():
    body = inspect.getsource(train_step).split('"""')[2]
    assert textwrap.dedent(body).strip() in source("README.md")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_what_they_say(page, tmp_path):
    fences = re.findall(r"^ *```", source(page), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a fence that is indented, or that has other words after it"
    for block in blocks(page):
        assert block.language in LANGUAGES, block.where
        if block.language == "text":
            assert not COMMAND.search(block.text), f"{block.where}: a command is a block of bash"
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "pddl":
            assert parse_domain(block.text).actions, block.where
        elif block.language == "yaml":
            check_configuration(block, tmp_path / "page.yaml")
    assert source(page).count("<!-- not run") == sum(block.not_run is not None for block in blocks(page))
    assert re.findall(r"^ {4,}.*python -m jaxppo.*", text_of(page), re.MULTILINE) == []


def check_configuration(block: Block, path: Path) -> None:
    """Have a block of YAML read as the configuration of a command that has all of its settings."""
    path.write_text(block.text)
    names = set(yaml.safe_load(block.text)) - {"preset"}
    problems = [f"{block.where}: no command has all of {', '.join(sorted(names))}"]
    for command, settings in SETTINGS.items():
        if not names <= settings:
            continue
        try:
            parse_cli(COMMANDS[command], command, ["--config", str(path)])
            return
        except ConfigError as error:
            problems.append(str(error))
    pytest.fail("\n".join(problems))


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_understood(page, tmp_path, monkeypatch):
    """Those of its blocks, and those in its text."""
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"`(python -m jaxppo\.[^`]+)`", text_of(page).replace("\n", " "))
    commands = [command for command in commands if not command.endswith(".")]  # `python -m jaxppo.`: all of them
    for block in blocks(page):
        if block.language == "bash":
            assert commands_of(block), block.where
            commands += commands_of(block)
    for command in commands:
        try:
            check_command(command)
        except ConfigError as error:
            old = page in RECORDS and EARLIER & set(re.findall(r"--(\w+)", command))
            assert old, f"{page}: {command}\n{error}"


OTHER_METRICS = {"docs/from_trl.md", "docs/metrics.md", "docs/report.md", "docs/reward_model.md"}
"""Pages with names of TRL's metrics, or of those of supervised training."""


@pytest.mark.parametrize("page", PAGES)
def test_flags_and_metrics_in_the_text_exist(page):
    flags = ALL_SETTINGS | {"help", "help_all", "data", "splits"}
    flags |= {flag.removeprefix("--") for others in OTHER_FLAGS.values() for flag in others}
    flags |= EARLIER if page in RECORDS else set()
    code = re.findall(r"`((?:--|python -m jaxppo\.)[^`\n]+)`", text_of(page))
    assert {flag for span in code for flag in re.findall(r"(?<!\S)--([a-z_]+)\b", span)} - flags == set()
    named = re.findall(r"`([a-z]+/[a-z<][\w<>/]*)`", text_of(page)) if page not in OTHER_METRICS else []
    named = [name for name in named if metrics.prefix_of(name) in metrics.GROUPS]
    assert [name for name in named if metrics.find(name) is None] == []


def test_settings_of_the_troubleshooting_page_are_settings():
    spans = re.findall(r"`([a-z0-9_]+)(?: [^`]*)?`", text_of("docs/troubleshooting.md"))
    named = {name for name in spans if "_" in name}
    assert len(named) > 20 and named <= ALL_SETTINGS


def test_the_readme_begins_as_the_first_hour_and_names_the_rooms_and_files_that_exist():
    readme = source("README.md")
    assert len(readme) < 10_000  # it is for the first day
    tree = readme.split("## The rooms")[1].split("```")[1]
    package = {f"{path.name}/" if path.is_dir() else path.name for path in (ROOT / "jaxppo").iterdir()}
    named = set(re.findall(r"(?<![\w.])(\w+(?:/|\.py))(?!\w)", tree))
    others = {"__init__.py", "__main__.py", "__pycache__/", "py.typed"}
    assert package - named == {name for name in others if name in package}
    assert all((ROOT / name).exists() or (ROOT / "jaxppo" / name).exists() for name in named - {"jaxppo/"})
    links = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in link]
    assert links and [link for link in links if not (ROOT / link).exists()] == []
    home, readme, first_hour = (
        commands_of(next(block for block in blocks(page) if block.language == "bash"))
        for page in ("docs/index.md", "README.md", "docs/first_hour.md")
    )
    assert home == readme == [command.removesuffix(" --output_dir outputs/first") for command in first_hour]


@pytest.fixture
def newcomer(tmp_path, monkeypatch, capsys):
    before = set(sys.modules)
    yield Newcomer(tmp_path, monkeypatch, capsys)
    for name in set(sys.modules) - before:  # `my_rewards` of one page is not that of another
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


WITH_PYTHON = [
    page
    for page in PAGES
    if any(block.language == "python" for block in blocks(page))
    and page not in RUN_ELSEWHERE
    and page not in TRANSCRIPTS
]


FULL = {"docs/from_trl.md", "docs/own_reward.md", "docs/own_domain.md"}
"""Pages that take a while to follow."""


def with_marks(pages: list[str]) -> list:
    return [pytest.param(page, marks=[pytest.mark.full] if page in FULL else []) for page in pages]


@pytest.mark.parametrize("page", with_marks(WITH_PYTHON))
def test_python_blocks_run(page, newcomer):
    newcomer.follow(page, shell=False)


def make_stand_in(folder: Path) -> None:
    """A small model of the family of the hub's, with the words of the page."""
    tokenizer = word_tokenizer(re.findall(r"\w+|:", source("docs/own_reward.md")))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = GPTNeoXConfig(vocab_size=len(tokenizer), **sizes)
    hf.save_pretrained(folder, config, models.init_params(config, jax.random.key(0)), tokenizer)


@pytest.mark.parametrize("page", with_marks(TRANSCRIPTS))
def test_what_a_newcomer_reads_works(page, newcomer):
    make_stand_in(newcomer.folder / REPLACED["EleutherAI/pythia-70m"])
    assert newcomer.follow(page, shell=True) > 0


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; a warning of mkdocs fails it."""
    folder = os.environ.get("JAXPPO_SITE")  # one that was built already
    if folder is None:
        folder = tmp_path_factory.mktemp("site")
        build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
        done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return Path(folder)


@pytest.fixture(scope="module")
def address(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.full
def test_pages_open_without_errors_or_requests_to_elsewhere(browser, site, address):
    browser.problems.clear()
    browser.requests.clear()
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    assert {page.removeprefix("docs/").replace(".md", ".html") for page in PAGES[1:]} <= set(pages)
    for dark, names in {False: pages, True: ["index.html", "concepts.html", "api/ppo.html"]}.items():
        browser.resize(1280, 900, dark=dark)
        for name in names:
            browser.open(f"{address}/{name}")
            assert browser.run("document.querySelector('h1') !== null && document.body.scrollWidth <= 1280"), name
            shown = f"site-{name.replace('/', '-').removesuffix('.html')}-{'dark' if dark else 'light'}"
            assert np.ptp(browser.screenshot(shown)) > 150, name  # something is drawn
        scheme = browser.run("document.body.getAttribute('data-md-color-scheme')")
        assert scheme == ("slate" if dark else "default")
        browser.run("localStorage.clear()")  # where the site keeps the scheme that was chosen
        browser.open("about:blank")
    assert browser.problems == []
    assert browser.requests
    assert [url for url in browser.requests if not url.startswith((address, "data:", "blob:", "about:"))] == []
