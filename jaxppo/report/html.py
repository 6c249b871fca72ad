"""Write self-contained HTML pages: one file that needs no network and no other file.

Model output is shown as text and never run: Python escapes it, a page's script sets it as text, and a
Content-Security-Policy allows no other script.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jaxppo.config.paths import write_atomically
from jaxppo.run.console import sanitize

NUM_COLOURS = 6
NUM_DASHES = 4
"""Classes `c0` to `c5` and `d0` to `d3` of the style sheet."""

_STATIC = Path(__file__).parent / "static"
_MOST_TEXT = 20_000  # characters of one text


def write_page(path: Path | str, title: str, parts: Iterable[str], name: str) -> None:
    """Write a page atomically.

    Args:
        path: the HTML file.
        title: of the window; text.
        parts: HTML of the body; empty ones are left out.
        name: its style sheet and script are `name.css` and `name.js`, after those of all pages.
    """
    write_atomically(path, _page(title, "\n".join(part for part in parts if part), name))


def _page(title: str, body: str, name: str) -> str:
    style, script = (
        "".join((_STATIC / f"{of}.{kind}").read_text(encoding="utf-8") for of in ("html", name))
        for kind in ("css", "js")
    )
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{shown(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def shown(text: Any) -> str:
    """Escape any text for HTML: no markup in it is read, and characters that could deceive a reader become visible."""
    return escape(sanitize(str(text)), quote=True)


def clean_lines(text: str, most: int = _MOST_TEXT) -> str:
    """Sanitize a text line by line for `data`; what is cut after `most` characters is counted."""
    cut = f"\n… [+{len(text) - most} characters]" if len(text) > most else ""
    return "\n".join(sanitize(line, limit=None) for line in text[:most].split("\n")) + cut


def data(name: str, content: Any) -> str:
    """Return an element that holds JSON for the page's script, and that no text in it can end.

    Args:
        name: id of the element.
        content: numbers that are all finite, texts, lists and mappings.
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="{name}">{text}</script>'


def table(name: str, heads: Sequence[str], rows: Iterable[str], words: bool = False) -> str:
    """Return a table that scrolls where the window is narrow.

    Args:
        name: its id.
        heads: titles of the columns.
        rows: from `row`.
        words: all columns hold words, not only the first one.
    """
    head = "".join(f'<th scope="col">{shown(text)}</th>' for text in heads)
    kind = ' class="words"' if words else ""
    return (
        f'<div class="wide" tabindex="0"><table id="{name}"{kind}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def row(cells: Iterable[str], kind: str = "") -> str:
    """Return a row of HTML cells, of the class `kind`."""
    return f'<tr class="{kind}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def svg(title: str, size: tuple[float, float], parts: Iterable[str], stretched: bool = False) -> str:
    """Return a picture.

    Args:
        title: for screen readers.
        size: width and height of its coordinates.
        parts: SVG elements.
        stretched: fill the space, whatever its ratio.
    """
    aspect = ' preserveAspectRatio="none"' if stretched else ""
    view = f"0 0 {size[0]:g} {size[1]:g}"
    return f'<svg viewBox="{view}"{aspect} role="img" aria-label="{shown(title)}">{"".join(parts)}</svg>'
