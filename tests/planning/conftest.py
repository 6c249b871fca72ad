"""A program in VAL's place, and a machine without VAL."""

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


@pytest.fixture
def no_val(monkeypatch):
    """A machine on which VAL is not installed."""
    monkeypatch.delenv("JAXPPO_VAL", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
