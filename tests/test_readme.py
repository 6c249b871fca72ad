"""The README is a promise: its rooms are those of the tree, its links lead somewhere; `test_docs.py` runs its code."""

import re

from tests import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_rooms_are_those_of_the_package():
    tree = README.split("## The rooms")[1].split("```")[1]
    package = {f"{path.name}/" if path.is_dir() else path.name for path in (ROOT / "jaxppo").iterdir()}
    named = set(re.findall(r"(?<![\w.])(\w+(?:/|\.py))(?!\w)", tree))
    others = {"__init__.py", "__main__.py", "__pycache__/", "py.typed"}
    assert package - named == {name for name in others if name in package}
    assert all((ROOT / name).exists() or (ROOT / "jaxppo" / name).exists() for name in named - {"jaxppo/"})


def test_it_is_for_the_first_day():
    assert len(README) < 10_000


def test_links_to_files_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
