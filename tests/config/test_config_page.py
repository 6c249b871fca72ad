"""docs/configuration.md is what the settings say."""

import ast
import subprocess
import sys

import pytest

from jaxppo.config import __main__ as config_page
from jaxppo.config.__main__ import COMMANDS, markdown_page
from jaxppo.config.sources import flatten
from tests import ROOT

PAGE = ROOT / "docs" / "configuration.md"


def test_the_page_is_what_the_command_prints():
    printed = subprocess.run([sys.executable, "-m", "jaxppo.config"], capture_output=True, text=True, check=True)
    assert printed.stdout == markdown_page()
    assert PAGE.read_text(encoding="utf-8") == markdown_page(), "python -m jaxppo.config > docs/configuration.md"


def test_every_command_that_reads_a_configuration_is_on_the_page():
    calls = [
        call.args[1].value
        for path in (ROOT / "jaxppo").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "parse_cli" and len(call.args) > 1
        if isinstance(call.args[1], ast.Constant)
    ]
    assert set(calls) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_setting_has_a_row_with_a_meaning(name):
    rows = [line.split(" | ") for line in markdown_page().splitlines() if line.startswith("| `")]
    meanings = {row[0].removeprefix("| "): row[-1].removesuffix(" |") for row in rows if len(row) == 4}
    assert [setting for setting in flatten(COMMANDS[name]()) if len(meanings.get(f"`{setting}`", "")) < 5] == []


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("a * b < c, `x * y`", "a \\* b \\< c, `x * y`"),
        ("two\n    lines | more", "two lines \\| more"),
        ("see docs/metrics.md.", "see [metrics.md](metrics.md)."),
    ],
)
def test_text_survives_a_table(text, cell):
    assert config_page._markdown(text) == cell
