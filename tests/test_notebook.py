"""docs/first_hour.md as a notebook: it is the page, and it works; docs/troubleshooting.md then reads its run."""

import os
import re
import runpy
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from IPython.utils.text import DollarFormatter

from tests import ROOT
from tests.newcomer import Newcomer, check_pip
from tests.pages import blocks

MAKING = runpy.run_path(str(ROOT / "docs" / "make_notebook.py"))
TEXT = MAKING["NOTEBOOK"].read_text(encoding="utf-8")
NOTEBOOK = nbformat.reads(TEXT, as_version=4)
CODE = [cell for cell in NOTEBOOK.cells if cell.cell_type == "code"]


def is_left_out(cell):
    return nbclient.NotebookClient(NOTEBOOK).skip_cells_with_tag in cell.metadata.get("tags", [])


def test_the_notebook_is_what_the_page_says_block_by_block():
    assert MAKING["make"](MAKING["PAGE"]) == TEXT, "python docs/make_notebook.py"
    nbformat.validate(NOTEBOOK)
    assert nbformat.writes(NOTEBOOK) + "\n" == TEXT  # to open and to save it changes nothing
    ours = [block for block in blocks(MAKING["PAGE"]) if block.language in ("bash", "python")]
    installs, *others = CODE
    assert len(others) == len(ours) > 5
    for cell, block in zip(others, ours, strict=True):
        lines = block.text.removeprefix("pip install -e .\n")
        assert cell.source == ("%%bash -e\n" if block.language == "bash" else "") + lines.rstrip()
        assert is_left_out(cell) == (block.not_run is not None)
    assert is_left_out(installs) and not any("pip install" in cell.source for cell in others)
    written = "\n".join(cell.source for cell in NOTEBOOK.cells if cell.cell_type == "markdown")
    assert all(block.text in written for block in blocks(MAKING["PAGE"]) if block.language == "text")


@pytest.mark.parametrize(
    ("driver", "extra", "in_clone"),
    [
        (None, "", True),
        (None, "", False),
        ("580.65.06", "[gpu]", True),
        ("550.54.15", "[gpu-cuda12]", False),
        ("No devices", "", False),
    ],
)
def test_what_is_installed_is_for_the_machine(driver, extra, in_clone, tmp_path, monkeypatch):
    if any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*")):
        pytest.skip("this machine has a TPU")
    monkeypatch.setenv("PATH", str(tmp_path))
    if driver is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!{sys.executable}\nprint({driver!r})\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.chdir(ROOT / "docs" if in_clone else tmp_path)
    magics = []

    class Shell:
        def run_line_magic(self, name, line):
            magics.append((name, DollarFormatter().vformat(line, [], names)))  # as IPython does

    names = {"get_ipython": Shell}
    exec(TransformerManager().transform_cell(CODE[0].source), names)
    *moved, (name, line) = magics
    assert moved == ([("cd", str(ROOT))] if in_clone else [])
    requirement = f"{ROOT if in_clone else 'jaxppo'}{extra}"
    assert (name, line) == ("pip", f'install --quiet "{requirement}"')
    check_pip(["install", f"jaxppo{extra}"])


def shortened(source):
    """A cell of the shell with the flags that make the commands of a page quick."""
    if not source.startswith("%%bash"):
        return source
    lines = source.replace("\\\n", " ").splitlines()
    return "\n".join(
        " ".join([line, *Newcomer.appended(line.split())]) if line.startswith("python -m jaxppo.") else line
        for line in lines
    )


@pytest.mark.full
def test_the_notebook_runs_and_the_page_for_trouble_reads_what_it_wrote(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook, trouble = (
        nbformat.reads(MAKING["make"](page), as_version=4) for page in (MAKING["PAGE"], "docs/troubleshooting.md")
    )
    notebook.cells += trouble.cells
    for number, cell in enumerate(notebook.cells):
        cell.source, cell.id = shortened(cell.source), f"both-{number}"
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count is None for cell in code] == [is_left_out(cell) for cell in code]
    shown = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert re.search(r"^valid plans on test_longer: .* after PPO", shown, re.MULTILINE)
    assert "outputs/first is finished: nothing to resume" in shown and "'objective/kl':" in shown
    assert (tmp_path / "outputs" / "compared" / "eval.html").exists()
