"""What the pages of the documentation say to do: their commands read by who would carry them out, or carried out."""

import functools
import importlib.util
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from jaxppo.config import ReportConfig
from jaxppo.config.sources import parse_cli, parse_flags
from jaxppo.planning.datasets.config import InspectConfig, PushConfig, SolveConfig, ValidateConfig
from tests import ROOT
from tests.one_layer import ONE_LAYER
from tests.pages import Block, blocks, source

COMMANDS = runpy.run_path(str(ROOT / "docs" / "make_configuration.py"))["COMMANDS"]
PAGES = ["README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]

# The pages are made shorter by flags after those of the page, by a model of one layer where the page takes the
# shipped one, and by replacements in its text; by nothing else.
APPENDED = {
    "train": "--preset tiny --total_episodes 32 --batch_size 16 --num_mini_batches 2 --response_length 48",
    "sft": "--total_episodes 64 --batch_size 16 --hidden_size 32 --num_hidden_layers 1 --response_length 48",
    "evaluate": "--sizes test=4:16 test_longer=5:32 --eval_batch_size 32 --response_length 48",
}
REPLACED = {
    "mail 4000": "mail 400",
    "--n_renamings 15": "--n_renamings 2",
    "EleutherAI/pythia-70m": "stand-in",  # a small model in the newcomer's folder
}
NOT_RUN = {"pip": "the tests run where jaxppo is installed", "pytest": "these are the tests"}

PLACEHOLDERS = {"N": "1"}
"""Words of the text that stand for a number."""
FLAGS_ALONE = {
    "report": ReportConfig,
    "planning inspect": InspectConfig,
    "planning push": PushConfig,
    "planning validate": ValidateConfig,
    "planning solve": SolveConfig,
}
"""Commands without presets and configuration files."""
OTHER_FLAGS = {
    "doctor": {"--json"},
    "report": {"--output"},
    "planning inspect": {"--dataset", "--show"},
    "planning push": {"--hub_dataset_id", "--private"},
    "planning validate": {"--val", "--json"},
    "planning solve": {"--planner", "--optimal"},
}
"""Of commands without a configuration."""
SHELL = {"docker", "export", "pip", "pytest"}
"""Programs of the pages other than our commands and python."""


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
        """Run a shell block; `# error: ...` after a command is how that command is to fail."""
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
