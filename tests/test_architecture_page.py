"""docs/architecture.md: the table of rooms, their files, the picture, and paths that exist."""

import re
import runpy

from tests import ROOT
from tests.rooms import PLANNING, ROOMS

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "jaxppo"
ROOTS = (PACKAGE, ROOT)
"""Where the paths of the page begin."""
TABLE_OF_ROOMS, REST = PAGE.split("## A training step")
TO_ADD = REST.split("## To add something")[1]


def test_the_picture_is_what_the_imports_say_and_shows_one_against_the_order():
    drawing = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))
    expected = drawing["draw"](drawing["read_imports"]())
    assert drawing["PICTURE"].read_text(encoding="utf-8") == expected, "python docs/draw_architecture.py"
    assert 'class="upward"' in drawing["draw"](drawing["Imports"]({(3, 5)}, set()))
    assert 'class="upward"' not in drawing["draw"](drawing["Imports"]({(5, 3)}, set()))


def test_the_tables_have_every_room_and_module_in_its_order_with_its_purpose():
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|", TABLE_OF_ROOMS, re.MULTILINE)
    assert [(int(number), purpose) for number, _, purpose in rows] == [(i, r.purpose) for i, r in enumerate(ROOMS)]
    for (_, files, _), room in zip(rows[:-1], ROOMS[:-1], strict=True):
        assert tuple(re.findall(r"(\w+)(?:/|\.py)`", files)) == room.names
    inside = TABLE_OF_ROOMS.split("### Inside planning")[1]
    assert tuple(re.findall(r"^\| `(\w+)/` \|", inside, re.MULTILINE)) == PLANNING
    rows = {row.split("`")[1].rstrip("/"): row for row in TABLE_OF_ROOMS.splitlines() if "| `" in row}
    rows["commands"] = next(row for row in TABLE_OF_ROOMS.splitlines() if row.startswith(f"| {len(ROOMS) - 1} |"))
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        folders = path.relative_to(PACKAGE).parts[:-1]
        if path.stem in ("__init__", "__main__") or not folders:
            continue
        room = folders[1] if folders[0] == "planning" and len(folders) > 1 else folders[0]
        row = rows.get(room, rows["commands"])
        if room != "domains" and f"`{path.stem}`" not in row:
            missing.append(path.relative_to(PACKAGE).as_posix())
    assert missing == []


def test_what_is_to_be_touched_exists():
    paths = [name for name in re.findall(r"`([\w./-]+(?:/|\.\w+))`", TO_ADD) if "<" not in name]
    assert len(paths) > 40
    assert [path for path in paths if not any((root / path).exists() for root in ROOTS)] == []
