"""The script that looks names up in wheels it cannot import, on made-up ones."""

import importlib
import zipfile

import pytest

from tests import ROOT

WHEEL = {
    "jax/__init__.py": """
from jax import numpy as numpy
from jax._src.api import jit as jit, vmap
import jax.tree as tree
try:
    import jaxlib
except ImportError:
    raise
from jax._src.config import config as config
_deprecations = {"old": ("jax.old is deprecated: " "use jit", vmap), "gone": ("jax.gone was removed", None)}
""",
    "jax/_src/__init__.py": "",
    "jax/_src/api.py": """
def vmap[F: Callable[..., int]](fun: F, in_axes=0, *, axis_name: str | None = None) -> F: ...
def jit(fun, **kwargs): ...
type Tree[T] = dict[str, T]
""",
    "jax/_src/config.py": "class Config:\n    pass\n\nconfig = Config()\n",
    "jax/numpy/__init__.py": "from jax._src.numpy import *\nfrom . import linalg\n",
    "jax/numpy/linalg.py": "if True:\n    from ..._src.api import jit as det\nelse:\n    _inv = 1\n",
    "jax/_src/numpy.py": "__all__ = ['zeros']\ndef zeros(shape, dtype=None): ...\ndef hidden(): ...\n",
    "jax/tree.pyi": "class Kind:\n    Leaf: int\n    def walk(self): ...\n",
    "jax/attention.py": "import warnings\nwarnings.warn('use tokamax', DeprecationWarning)\ndef mha(): ...\n",
    "jaxlib/__init__.py": "from jaxlib import _compiled as compiled\n",
    "jaxlib/_compiled.cpython-312-x86_64-linux-gnu.so": "",
}
"""Re-exports, modules that import themselves, stars, stubs, a compiled module, syntax of Python 3.12, deprecations."""


STATUSES = {
    "found": "jax.jit jax.numpy.zeros jax.numpy.linalg.det jax.tree.Kind.Leaf jax.config.update jax._src.api.Tree "
    "jaxlib.compiled.anything numpy.zeros",
    "missing": "jax.numpy.hidden jax.numpy.linalg.inv jax.tree.Kind.Branch jaxlib._other.anything jax.gone "
    "jax.nothing.below",
    "deprecated": "jax.attention jax.attention.mha jax.old",
}
CALLS = """import jax.numpy as jnp
from jax import old, vmap as batched
import torch

jnp.ones(2), jnp.zeros(3, dtyp=int), batched(f, axis_name='x'), torch.nothing
"""
FINE = "from jax import jit, vmap\nimport jax\n\njit(f, donate_argnums=(0,)), jax.tree.Kind\n"


@pytest.fixture
def newest_jax(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "runs"))
    return importlib.import_module("newest_jax")


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "jax-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, source in WHEEL.items():
            archive.writestr(name, source)
    return path


def test_resolve_follows_the_sources(newest_jax, wheel, tmp_path):
    assert newest_jax.unpack([wheel], tmp_path / "unpacked") == ["jax 9.9.9"]
    sources = newest_jax.Sources(tmp_path / "unpacked")
    for status, names in STATUSES.items():
        assert [name for name in names.split() if sources.resolve(name).status != status] == [], status


def test_main_names_each_place_and_fails_or_is_content(newest_jax, wheel, tmp_path, capsys):
    package = tmp_path / "ours"
    package.mkdir()
    (package / "a.py").write_text(CALLS)
    assert newest_jax.main(["--package", str(package), str(wheel)]) == 1
    *places, last = capsys.readouterr().out.splitlines()
    assert [place.partition(": ")[0] for place in places] == [
        "deprecated jax.old at ours/a.py:2",
        "missing jax.numpy.ones at ours/a.py:5",
        "missing jax.numpy.zeros at ours/a.py:5",
    ]
    assert "dtyp" in places[2] and last.startswith("5 names of jax 9.9.9: 3 ")
    (package / "a.py").write_text(FINE)
    assert newest_jax.main(["--package", str(package), str(wheel)]) == 0
