"""The README is a promise: its file tree is the tree, its links lead somewhere; `test_docs.py` runs its code."""

import re

from tests import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_file_tree_names_every_module():
    tree = README.split("## The files")[1]
    missing = [
        path.name
        for path in (ROOT / "jaxppo").rglob("*.py")
        if path.name != "__init__.py" and "domains" not in path.parts and path.name not in tree
    ]
    assert not missing


def test_links_to_files_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
