"""docs/configuration.md is what the settings say."""

import runpy
from importlib import resources

from jaxppo.config.sources import flatten
from tests import ROOT

MAKING = runpy.run_path(str(ROOT / "docs" / "make_configuration.py"))
PAGE = MAKING["PAGE"].read_text(encoding="utf-8")


def test_the_page_is_what_the_settings_say():
    assert MAKING["markdown_page"]() == PAGE, "python docs/make_configuration.py"


def test_every_setting_of_every_command_with_presets_has_a_row_with_a_meaning():
    folders = {entry.name for entry in (resources.files("jaxppo.config") / "presets").iterdir()}
    assert folders - {"data"} <= {name.replace(" ", "_") for name in MAKING["COMMANDS"]}
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    meanings = {row[0].removeprefix("| "): row[-1].removesuffix(" |") for row in rows if len(row) == 4}
    for name, config_class in MAKING["COMMANDS"].items():
        unexplained = [each for each in flatten(config_class()) if len(meanings.get(f"`{each}`", "")) < 5]
        assert unexplained == [], name
