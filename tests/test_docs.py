"""The documentation is a promise: every block of code runs or is read by what it is for, and the site works.

Languages: `python` is run, page by page, a later block seeing what an earlier one defined; `bash` is parsed by the
commands' own parsers, and run on the pages of `TRANSCRIPTS`; `yaml`, `json` and `pddl` are parsed; `text` is neither. A
block with a title is a file. `<!-- not run: REASON -->` in the line above a block keeps it from being run, but not from
being parsed.
"""

import functools
import http.server
import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxppo import hf, models
from jaxppo.config import ReportConfig
from jaxppo.config.__main__ import COMMANDS
from jaxppo.config.sources import flatten, parse_cli, parse_flags
from jaxppo.data import word_tokenizer
from jaxppo.errors import ConfigError
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.planning import parse_domain
from jaxppo.planning.datasets.config import PushConfig
from jaxppo.run import metrics
from tests import ROOT
from tests.headless import CHROMIUM, Browser
from tests.one_layer import ONE_LAYER
from tests.pages import FENCE, Block, blocks, commands_of, source

PAGES = ["README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]

TRANSCRIPTS = [
    ("docs/own_reward.md",),
    ("docs/own_domain.md",),
    ("docs/judge_plans.md",),
]
"""What a newcomer does, command by command; the pages of an entry share a folder."""

RUN_ELSEWHERE = {
    "docs/first_hour.md": "tests/test_notebook.py",  # as a notebook
    "docs/troubleshooting.md": "tests/test_notebook.py",  # needs that run
    "docs/evaluation.md": "tests/report/test_plan_page.py",  # needs plans to read
    "docs/reward_server.md": "tests/test_reward_server.py",  # needs a server
    "docs/rewards_elsewhere.md": "tests/reward_functions/test_elsewhere.py",  # needs plans, and TRL with a model
}
"""Pages that are run by other tests, which bring what it needs."""

# The transcripts are made shorter by flags behind those of the page, by a model of one layer where the page takes the
# shipped one, and by replacements in its text; by nothing else.
APPENDED = {
    "train": "--preset tiny --total_episodes 32 --batch_size 16 --num_mini_batches 2 --response_length 48",
    "sft": "--total_episodes 64 --batch_size 16 --hidden_size 32 --num_hidden_layers 1 --response_length 48",
    "evaluate": "--test_sizes 4:16 --test_longer_sizes 5:32 --eval_batch_size 32 --response_length 48",
}
REPLACED = {
    "mail 4000": "mail 400",
    "--n_renamings 15": "--n_renamings 2",
    "EleutherAI/pythia-70m": "stand-in",
}  # see `make_stand_in`
NOT_RUN = {"pip": "the tests run where jaxppo is installed", "pytest": "these are the tests"}

PLACEHOLDERS = {"N": "1"}
"""Words of the text that stand for a number."""
FLAGS_ALONE = {"report": ReportConfig, "planning push": PushConfig}
"""Commands without presets and configuration files."""
OTHER_FLAGS = {
    "doctor": {"--json", "--network"},
    "report": {"--output"},
    "planning push": {"--hub_dataset_id", "--private"},
}
"""Of commands without a configuration."""
SHELL = {"docker", "export", "pip", "pytest"}
"""Programs of the pages other than our commands and python."""
LANGUAGES = {"bash", "json", "pddl", "python", "text", "yaml"}
COMMAND = re.compile(r"\bpython3? -m jaxppo\.|\bpip install |\bpython \w+/")


def all_blocks(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == language]


# -------------------------------------------------------------------------------------------------------- what is there


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_fenced_and_say_what_they_are(page):
    fences = re.findall(r"^ *```", source(page), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a fence that is indented, or that has other words behind it"
    for block in blocks(page):
        assert block.language in LANGUAGES, block.where
        if block.language == "text":
            assert not COMMAND.search(block.text), f"{block.where}: a command is a block of bash"
    assert source(page).count("<!-- not run") == sum(block.not_run is not None for block in blocks(page))
    assert re.findall(r"^ {4,}.*python -m jaxppo.*", FENCE.sub("", source(page)), re.MULTILINE) == []


def test_the_pages_that_are_run_elsewhere_are():
    for page, test in RUN_ELSEWHERE.items():
        assert Path(page).name in source(test)


# ------------------------------------------------------------------------------------------------- what is only parsed


@pytest.mark.parametrize("block", all_blocks("json"), ids=lambda block: block.where)
def test_json_is_json(block):
    json.loads(block.text)


@pytest.mark.parametrize("block", all_blocks("pddl"), ids=lambda block: block.where)
def test_pddl_is_a_domain(block):
    assert parse_domain(block.text).actions


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=lambda block: block.where)
def test_yaml_is_a_configuration_of_a_command(block, tmp_path):
    path = tmp_path / "page.yaml"
    path.write_text(block.text)
    problems = []
    for name, command in COMMANDS.items():
        try:
            parse_cli(command, name, ["--config", str(path)])
            return
        except ConfigError as error:
            problems.append(str(error))
    pytest.fail("\n".join(problems))


# ------------------------------------------------------------------------------------------------------------ commands


def check_command(command: str) -> None:
    """Have a command line parsed by what it calls; nothing is run, and its files need not exist."""
    words = [word for word in shlex.split(command, comments=True) if word != "&"]
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    nested = [word for word in words if "python -m jaxppo." in word and word != command]
    if nested:
        return check_command(nested[0])
    if "-m" in words and words[words.index("-m") + 1].startswith("jaxppo."):
        return check_jaxppo(*words[words.index("-m") + 1 :])
    program = Path(words[0]).name
    if program == "jaxppo":
        return check_jaxppo(f"jaxppo.{words[1]}", *words[2:])
    if program == "pip":
        return check_pip(words[1:])
    if program == "pytest":
        paths = [word for word in words[1:] if "/" in word]
        assert all((ROOT / path).exists() for path in paths), command
        return None
    if program == "python" and words[1].startswith(("benchmarks/", "deploy/", "runs/")):
        text = (ROOT / words[1]).read_text(encoding="utf-8")
        flags = [word for word in words[2:] if word.startswith("--")]
        assert all(f'"{flag}"' in text or f'"{flag[2:]}"' in text for flag in flags), command
        return None
    if program == "python" and words[1] != "-m":
        names = {block.title for page in PAGES for block in blocks(page)}
        assert words[1] in names, f"{command}: no page has this file"
        return None
    assert program in SHELL or words[:3] == ["python", "-m", "venv"], f"{command}: how to check it is not known"
    return None


def check_jaxppo(module: str, *arguments: str) -> None:
    name = module.removeprefix("jaxppo.")
    given = [PLACEHOLDERS.get(word, word) for word in arguments if word != "..."]
    if name == "planning" and given:
        name, given = f"planning {given[0]}", given[1:]
    if name == "COMMAND":  # stands for any
        return
    if name in FLAGS_ALONE:
        parse_flags(FLAGS_ALONE[name], name, given)
        return
    if name not in COMMANDS:
        assert importlib.util.find_spec(module) is not None and set(given) <= OTHER_FLAGS.get(name, set())
        return
    if given == ["--help"]:
        return
    if "--config" in given:  # the file need not exist; what the pages say of one is parsed as a block of yaml
        place = given.index("--config")
        del given[place : place + 2]
    parse_cli(COMMANDS[name], name, given)


def check_pip(words: list[str]) -> None:
    extras = tomllib.loads(source("pyproject.toml"))["project"]["optional-dependencies"]
    named = [extra for word in words for found in re.findall(r"\[([\w,-]+)\]", word) for extra in found.split(",")]
    own = [word for word in words if word.startswith((".", "jaxppo"))]
    assert words[0] == "install" and (not own or all(extra in extras for extra in named)), words


@pytest.mark.parametrize("block", all_blocks("bash"), ids=lambda block: block.where)
def test_commands_are_understood(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = commands_of(block)
    assert commands
    for command in commands:
        try:
            check_command(command)
        except ConfigError as error:
            pytest.fail(f"{block.where}: {command}\n{error}")


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_are_understood(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = FENCE.sub("", source(page))
    for command in re.findall(r"`(python -m jaxppo\.[^`]+)`", text.replace("\n", " ")):
        if not command.endswith("."):  # `python -m jaxppo.` stands for all of them
            check_command(command)


@pytest.mark.parametrize("page", PAGES)
def test_flags_in_the_text_are_flags(page):
    known = {name for command in COMMANDS.values() for name in flatten(command())} | {"help", "data", "splits"}
    known |= {flag.removeprefix("--") for flags in OTHER_FLAGS.values() for flag in flags}
    code = re.findall(r"`((?:--|python -m jaxppo\.)[^`\n]+)`", FENCE.sub("", source(page)))
    assert {flag for span in code for flag in re.findall(r"(?<!\S)--([a-z_]+)\b", span)} - known == set()


OTHER_METRICS = {"docs/console.md", "docs/from_trl.md", "docs/metrics.md", "docs/reward_model.md"}
"""Pages with names of TRL's metrics, or of those of supervised training."""


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OTHER_METRICS])
def test_metrics_in_the_text_are_metrics(page):
    names = re.findall(r"`([a-z]+/[a-z<][\w<>/]*)`", FENCE.sub("", source(page)))
    assert [name for name in names if metrics.prefix_of(name) in metrics.GROUPS and metrics.find(name) is None] == []


def test_settings_of_the_troubleshooting_page_are_settings():
    known = {name for command in COMMANDS.values() for name in flatten(command())}
    spans = re.findall(r"`([a-z0-9_]+)(?: [^`]*)?`", FENCE.sub("", source("docs/troubleshooting.md")))
    named = [name for name in spans if "_" in name]
    assert len(named) > 30
    assert sorted({name for name in named if name not in known}) == []


# ------------------------------------------------------------------------------------------------------------- python


class Newcomer:
    """Somebody who does what pages say, in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        self.names: dict[str, object] = {}

    def follow(self, page: str, *, shell: bool) -> int:
        """Do all that a page says; returns the number of commands run."""
        count = 0
        for block in blocks(page):
            text = functools.reduce(lambda text, pair: text.replace(*pair), REPLACED.items(), block.text)
            if block.not_run is not None:
                continue
            if block.title is not None:
                path = self.folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            elif block.language == "python":
                exec(compile("\n" * block.line + text, str(ROOT / page), "exec"), self.names)
            elif block.language == "bash" and shell:
                count += self.run_lines(block._replace(text=text))
        return count

    def run_lines(self, block: Block) -> int:
        """Run a shell block; `# error: ...` behind a command is how that command is to fail."""
        lines = block.text.replace("\\\n", " ").splitlines()
        count = 0
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("#"):
                continue
            error = following.removeprefix("# ") if following.startswith("# error: ") else None
            for command in line.split(" && "):
                count += self.run(shlex.split(command, comments=True), error)
        return count

    def run(self, words: list[str], error: str | None) -> int:
        if words[0] in NOT_RUN:
            return 0
        assert words[0] == "python"
        if words[1] == "-m":
            self.monkeypatch.setattr(sys, "argv", ["python", *words[3:], *self.appended(words)])
            run = functools.partial(runpy.run_module, words[2], run_name="__main__", alter_sys=True)
        else:
            self.monkeypatch.setattr(sys, "argv", words[1:])
            run = functools.partial(runpy.run_path, words[1], run_name="__main__")
        self.capsys.readouterr()
        status = 0
        try:
            run()
        except SystemExit as stop:
            status = stop.code or 0
        shown = self.capsys.readouterr()
        assert (status, shown.err if status else "") == (2, shown.err) if error else status == 0, shown.err
        if error is not None:
            assert shown.err.startswith(error.removesuffix("...").strip()), shown.err
        return 1

    @staticmethod
    def appended(words: list[str]) -> list[str]:
        command = words[2].removeprefix("jaxppo.")
        names_model = {"--sft_model_path", "--config"} & set(words)
        model = ["--sft_model_path", ONE_LAYER] if command == "train" and not names_model else []
        return [*APPENDED.get(command, "").split(), *model]


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
    and not any(page in transcript for transcript in TRANSCRIPTS)
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


@pytest.mark.parametrize("first_page", with_marks([pages[0] for pages in TRANSCRIPTS]))
def test_what_a_newcomer_is_told_to_do_works(first_page, newcomer):
    (transcript,) = (pages for pages in TRANSCRIPTS if pages[0] == first_page)
    make_stand_in(newcomer.folder / REPLACED["EleutherAI/pythia-70m"])
    counts = [newcomer.follow(page, shell=True) for page in transcript]
    assert counts[0] > 0


def test_the_readme_begins_as_the_first_hour():
    home, readme, first_hour = (
        commands_of(next(block for block in blocks(page) if block.language == "bash"))
        for page in ("docs/index.md", "README.md", "docs/first_hour.md")
    )
    assert home == readme == [command.removesuffix(" --output_dir outputs/first") for command in first_hour]


# ------------------------------------------------------------------------------------------------------------ the site


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


@pytest.mark.full
def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(site):
    for page in PAGES[1:]:
        html = (site / Path(page).relative_to("docs").with_suffix(".html")).read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="?([^" >]+)', html)
        loaded += re.findall(r'<link[^>]+stylesheet[^>]+href="?([^" >]+)', html)
        assert loaded
        assert [link for link in loaded if re.match(r"(https?:)?//", link)] == []


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


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no chromium (Debian package chromium) to open the site with")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.full
def test_pages_open_without_errors_or_requests_to_elsewhere(browser, site, address):
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
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


@pytest.mark.full
def test_the_search_finds_a_metric(browser, address):
    browser.open(f"{address}/index.html")
    found = browser.run("""new Promise((done, failed) => {
      const field = document.querySelector('.md-search__input');
      field.focus();
      field.value = 'negative KL';
      field.dispatchEvent(new Event('keyup', {bubbles: true}));
      field.dispatchEvent(new Event('input', {bubbles: true}));
      const end = Date.now() + 20000;
      const look = () => {
        const results = [...document.querySelectorAll('.md-search-result__link')].map(link => link.href);
        if (results.length) done(results);
        else if (Date.now() > end) failed(new Error('nothing found'));
        else setTimeout(look, 50);
      };
      look();
    })""")
    assert any("troubleshooting" in link for link in found)
