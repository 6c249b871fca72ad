"""`import jaxppo` is cheap, and offers lazily what it names."""

import ast
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import jaxppo
from tests import ROOT


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh process imports when it runs code, but for those of the standard library."""
    code = f"import sys; before = set(sys.modules); {code}; print('LOADED', *(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.rpartition("LOADED")[2].split()
    return {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}


def test_import_loads_nothing_but_itself():
    assert loaded_by("import jaxppo") == {"jaxppo"}


@pytest.mark.parametrize(
    "code",
    [
        "import jaxppo.planning",
        "import sys, runpy; sys.argv = ['jaxppo', '--help']; runpy.run_module('jaxppo', run_name='__main__')",
        "import runpy; runpy.run_module('jaxppo.metrics', run_name='__main__')",
    ],
)
def test_what_is_instant_loads_nothing_but_the_standard_library(code):
    assert {name.split(".")[0] for name in loaded_by(code)} == {"jaxppo"}


def test_every_name_is_that_of_its_module_and_no_other_is_offered():
    for name, place in jaxppo.NAMES.items():
        module, _, own_name = place.partition(":")
        assert getattr(jaxppo, name) is getattr(import_module(f"jaxppo.{module}"), own_name or name)
        assert callable(getattr(jaxppo, name))
    for name in jaxppo.MODULES:
        module = getattr(jaxppo, name)
        assert isinstance(module, ModuleType) and module is import_module(f"jaxppo.{name}")
    folders = {path.stem for path in (ROOT / "jaxppo").iterdir()}
    assert set(jaxppo.MODULES) <= folders and not set(jaxppo.NAMES) & folders
    assert set(jaxppo.__all__) == {"__version__", *jaxppo.NAMES, *jaxppo.MODULES} <= set(dir(jaxppo))
    assert len(set(jaxppo.__all__)) == len(jaxppo.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        jaxppo.nonsense  # noqa: B018


def test_type_checkers_see_the_same_names():
    tree = ast.parse((ROOT / "jaxppo" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {
        alias.asname or alias.name: f"{node.module}:{alias.name}".removeprefix("jaxppo.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    expected = {name: place if ":" in place else f"{place}:{name}" for name, place in jaxppo.NAMES.items()}
    assert seen == expected | {name: f"jaxppo:{name}" for name in jaxppo.MODULES}
