"""Fill a template into a self-contained HTML page: one file that needs no network and no other file.

Model output is shown as text and never run: templates escape all that they print, a page's script sets it as text, and
a Content-Security-Policy allows no other script.
"""

import base64
import hashlib
import shlex
from functools import cache
from pathlib import Path
from statistics import median_high
from typing import Any

import jinja2

from jaxppo.config.paths import write_atomically
from jaxppo.evaluate.intervals import interval_text
from jaxppo.report.charts import duration, short
from jaxppo.run.console import sanitize

_MAX_CHARACTERS = 20_000  # of one text


def write_page(path: Path | str, template: str, **content: Any) -> None:
    """Write a page atomically.

    Args:
        path: the HTML file.
        template: name of a file in `templates/` that fills the blocks of `page.html`.
        content: what the template prints. Text is escaped, and characters that could deceive a reader become visible.
    """
    environment = _environment()
    # All kinds of pages share them, which costs a page about 10 KB of what it does not need.
    style = _source(environment, "page.css")
    script = _source(environment, "page.js")
    page = environment.get_template(template).render(content, style=style, script=script)
    write_atomically(path, page)


def clean_lines(text: str, limit: int = _MAX_CHARACTERS) -> str:
    """Sanitize a text line by line for the page's script; what is cut after `limit` characters is counted."""
    lines = [sanitize(line, limit=None) for line in text[:limit].split("\n")]
    if len(text) > limit:
        lines.append(f"… [+{len(text) - limit} characters]")
    return "\n".join(lines)


@cache
def _environment() -> jinja2.Environment:
    # Everything that a template prints goes through `finalize` and is then
    # escaped, with no filter that somebody could forget: completions, file
    # names and names of metrics are all text of others. What is HTML says
    # `safe`, and that is the style sheet, the script, and lists of numbers.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxppo.report"),
        autoescape=True,
        finalize=_printable,
        # A name that does not exist is an error, and not an empty place on the page.
        undefined=jinja2.StrictUndefined,
        # Lines of statements leave no empty lines.
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": duration,
        "interval_text": interval_text,
        "median_high": median_high,
        "px": "{:.1f}".format,
        "quote": shlex.quote,
        "sha256": _sha256,
        "short": short,
    }
    # JSON has no NaN, and one in the data would stop the
    # page's script: better no page than one that looks fine.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def _source(environment: jinja2.Environment, name: str) -> str:
    # As it is: braces of CSS and JavaScript are not those of a template.
    assert environment.loader is not None
    text, _, _ = environment.loader.get_source(environment, name)
    return text


def _printable(value: Any) -> Any:
    """Return what a template prints: HTML of another macro as it is, anything else as harmless text, then escaped."""
    return value if hasattr(value, "__html__") else sanitize(str(value))


def _sha256(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows one style sheet or script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
