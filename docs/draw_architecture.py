"""Draws docs/architecture.svg from the imports of the package: `python docs/draw_architecture.py`.

A staircase: every room is a step, in the order of `tests/rooms.py`, and a dot says that the room of its row imports the
room of its column. A dot above the stairs would be an import against the order.
"""

import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.rooms import ROOMS  # noqa: E402
from tests.test_architecture import PACKAGE, file_of, imported_modules, level_of, module_files  # noqa: E402

PICTURE = ROOT / "docs" / "architecture.svg"
DOORS = {"__init__.py", "__main__.py"}
"""`import jaxppo` and the command `jaxppo` load any room when it is asked for, which says nothing about the rooms."""

CELL, TOP, LEFT, STEP = 40, 58, 18, 144
"""Pixels: height and width of a cell, above and left of the stairs, width of a step."""

STYLE = """
    .jax { fill: #e0f2f1; stroke: #00796b; stroke-width: 1.5 }
    .host { fill: #fff3e0; stroke: #ef6c00; stroke-width: 1.5 }
    .name { font-size: 13.5px; font-weight: 600; fill: #263238; text-anchor: middle }
    .dot { fill: #455a64 }
    .upward { fill: #d50000 }
    .line { stroke: #eceff1 }
    .label { font-size: 12.5px; fill: #37474f }
  """


class Imports(NamedTuple):
    """What the sources say.

    Attributes:
        edges: (row of a room, row of a room that it imports).
        with_jax: rows of rooms in which a file imports JAX.
    """

    edges: set[tuple[int, int]]
    with_jax: set[int]


def read_imports() -> Imports:
    """Read the imports of every file, those inside of functions too."""
    edges, with_jax = set(), set()
    for file in module_files():
        row = level_of(file)
        if row is None or file in DOORS:
            continue
        modules = set(
            imported_modules(file, ast.parse((PACKAGE / file).read_text(encoding="utf-8")))
        )
        others = {level_of(found) for module in modules if (found := file_of(module))}
        edges |= {(row, other) for other in others if other is not None and other != row}
        if any(module.split(".")[0] == "jax" for module in modules):
            with_jax.add(row)
    return Imports(edges, with_jax)


def name_of(row: int) -> str:
    """What stands on a step."""
    names = ROOMS[row].names
    return ", ".join(names) if len(names) < 3 else "commands"


def draw(imports: Imports) -> str:
    """Draw the staircase as the text of an SVG file."""
    width, height = LEFT + (len(ROOMS) - 1) * CELL + STEP + 18, TOP + len(ROOMS) * CELL + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" role="img" aria-labelledby="title">',
        '  <title id="title">The rooms of jaxppo as a staircase: each imports only from steps above it</title>',
        f"  <style>{STYLE}</style>",
        f'  <rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
        *legend(width),
        *(line for row in range(len(ROOMS)) for line in step(row, imports)),
        *(dot(*edge) for edge in sorted(imports.edges)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def legend(width: int) -> Iterator[str]:
    """Write what the signs mean into the free corner."""
    right = width - 24
    for number, (kind, text) in enumerate([("host", "host only"), ("jax", "imports JAX")]):
        yield f'  <rect class="{kind}" x="{right - 16}" y="{20 + 28 * number}" width="16" height="16" rx="4"/>'
        yield f'  <text class="label" x="{right - 26}" y="{33 + 28 * number}" text-anchor="end">{text}</text>'
    yield f'  <circle class="dot" cx="{right - 8}" cy="84" r="5"/>'
    text = "this row's room imports this column's"
    yield f'  <text class="label" x="{right - 26}" y="89" text-anchor="end">{text}</text>'


def step(row: int, imports: Imports) -> Iterator[str]:
    """Draw a room on its step, with the lines along which its dots lie."""
    x, y = LEFT + row * CELL, TOP + row * CELL
    middle = y + CELL // 2
    yield f'  <path class="line" d="M{LEFT} {middle}H{x}M{x + CELL // 2} {y + CELL}V{TOP + len(ROOMS) * CELL}"/>'
    kind = "jax" if row in imports.with_jax else "host"
    yield f'  <rect class="{kind}" x="{x}" y="{y + 4}" width="{STEP}" height="{CELL - 8}" rx="7"/>'
    yield f'  <text class="name" x="{x + STEP // 2}" y="{middle + 5}">{escape(name_of(row))}</text>'


def dot(row: int, other: int) -> str:
    """Draw that one room imports another."""
    kind, x, y = (
        "dot" if other < row else "upward",
        LEFT + other * CELL + CELL // 2,
        TOP + row * CELL + CELL // 2,
    )
    return f'  <circle class="{kind}" cx="{x}" cy="{y}" r="5"/>'


if __name__ == "__main__":
    PICTURE.write_text(draw(read_imports()), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(ROOMS)} rooms")
