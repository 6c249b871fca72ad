"""Makes docs/first_hour.ipynb of docs/first_hour.md: `python docs/make_notebook.py`.

Text stays text, a block of bash or python is a cell. What installs jaxppo becomes a cell that knows GPUs and TPUs. It
and the blocks that the page has "not run" have nbclient's tag for cells that are left out in tests.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.pages import Block, parts  # noqa: E402

PAGE = "docs/first_hour.md"
NOTEBOOK = ROOT / "docs" / "first_hour.ipynb"

LEFT_OUT = "skip-execution"

ABOUT = """\
*This notebook is the page [First hour](first_hour.md), made by `python docs/make_notebook.py`. The next cell installs
jaxppo, with what a GPU or a TPU needs where there is one; with none, two CPU cores do.*
"""

INSTALL = """\
import shutil
import subprocess
from pathlib import Path

here = Path.cwd()
clone = next((folder for folder in (here, *here.parents) if (folder / "jaxppo" / "train.py").exists()), None)
extra = "[tpu]" if [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")] else ""
if shutil.which("nvidia-smi"):
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.partition(".")[0]
    if driver.isdecimal():
        extra = "[gpu]" if int(driver) >= 580 else "[gpu-cuda12]"  # what CUDA 13 takes
if clone is not None:
    %cd {clone}
requirement = f"{clone or 'jaxppo'}{extra}"
%pip install --quiet "{requirement}"
"""
"""Not `-e`: a kernel that is running would not find the package."""


def cells_of(page: str) -> list[dict[str, Any]]:
    """Return the cells of a page, in its order."""
    cells: list[dict[str, Any]] = []
    written = ""
    for part in parts(page):
        if isinstance(part, Block) and part.language in ("bash", "python") and part.title is None:
            cells += _markdown(written)
            cells += _code(part)
            written = ""
        elif isinstance(part, Block):
            written += f"```{part.language}\n{part.text}```"
        else:
            written += part
    return [*cells, *_markdown(written)]


def _markdown(text: str) -> list[dict[str, Any]]:
    return [_cell("markdown", text)] if text.strip() else []


def _code(block: Block) -> list[dict[str, Any]]:
    """Return the cell of a block; of one that installs jaxppo, that is a cell of its own."""
    tags = [] if block.not_run is None else [LEFT_OUT]
    if block.language == "python":
        return [_cell("code", block.text, tags)]
    others = re.sub(r"^pip install -e \.\n", "", block.text)
    run = _cell("code", f"%%bash -e\n{others}", tags)
    return (
        [run]
        if others == block.text
        else [_cell("markdown", ABOUT), _cell("code", INSTALL, [LEFT_OUT]), run]
    )


def _cell(kind: str, text: str, tags: list[str] | None = None) -> dict[str, Any]:
    source_lines = text.strip("\n").splitlines(keepends=True)
    cell: dict[str, Any] = {
        "cell_type": kind,
        "metadata": {"tags": tags} if tags else {},
        "source": source_lines,
    }
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell


def make(page: str) -> str:
    """Return the notebook of a page, as nbformat would write it."""
    cells = [cell | {"id": f"cell-{number}"} for number, cell in enumerate(cells_of(page))]
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": cells,
        "metadata": {"kernelspec": python},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(make(PAGE), encoding="utf-8")
    print(f"{NOTEBOOK.relative_to(ROOT)}: {len(cells_of(PAGE))} cells")
