"""docs/configuration.md is what the settings say."""

import subprocess
import sys
from importlib import resources

from jaxppo.config.__main__ import COMMANDS, markdown_page
from jaxppo.config.sources import flatten
from tests import ROOT

PAGE = ROOT / "docs" / "configuration.md"


def test_the_page_is_what_the_command_prints():
    printed = subprocess.run([sys.executable, "-m", "jaxppo.config"], capture_output=True, text=True, check=True)
    assert printed.stdout == PAGE.read_text(encoding="utf-8"), "python -m jaxppo.config > docs/configuration.md"


def test_every_setting_of_every_command_with_presets_has_a_row_with_a_meaning():
    folders = {entry.name for entry in (resources.files("jaxppo.config") / "presets").iterdir()}
    assert folders - {"data"} <= {name.replace(" ", "_") for name in COMMANDS}
    rows = [line.split(" | ") for line in markdown_page().splitlines() if line.startswith("| `")]
    meanings = {row[0].removeprefix("| "): row[-1].removesuffix(" |") for row in rows if len(row) == 4}
    for name, config_class in COMMANDS.items():
        unexplained = [each for each in flatten(config_class()) if len(meanings.get(f"`{each}`", "")) < 5]
        assert unexplained == [], name
