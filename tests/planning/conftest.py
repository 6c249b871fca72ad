"""A program in VAL's place, and timed tests that other tests' garbage does not slow down."""

import gc
import stat
import sys

import pytest


@pytest.fixture
def fake_val(tmp_path, monkeypatch):
    """Put a Python program in VAL's place; its folder is `HERE` to it."""

    def install(body: str):
        program = tmp_path / "Validate"
        header = f"#!{sys.executable}\nimport os, signal, subprocess, sys, time\nHERE = {str(tmp_path)!r}\n"
        program.write_text(f"{header}PLAN = open(sys.argv[-1]).read()\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("JAXPPO_VAL", str(program))

    return install


@pytest.fixture(scope="module")
def only_our_garbage():
    """Keep what earlier tests left in memory out of the garbage collector's rounds, which would be timed as ours."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
