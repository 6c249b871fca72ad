"""The blocks of the documentation's pages: for the tests that run them, and for the notebook that is made of a page.

A block with a title is a file. `<!-- not run: REASON -->` in the line above a block keeps it from being run.
"""

import functools
import re
from typing import NamedTuple

from tests import ROOT


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    title: str | None  # the name of the file that it is
    text: str
    not_run: str | None  # why it is not run

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


FENCE = re.compile(
    r'^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@functools.cache
def source(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@functools.cache
def parts(page: str) -> list[str | Block]:
    """A page in its order: text between blocks, and blocks."""
    text, place, found = source(page), 0, []
    for m in FENCE.finditer(text):
        line = text.count("\n", 0, m.start()) + 1
        block = Block(page, line, m["language"], m["title"], m["text"], m["reason"])
        found += [text[place : m.start()], block]
        place = m.end()
    return [*found, text[place:]]


def blocks(page: str) -> list[Block]:
    return [part for part in parts(page) if isinstance(part, Block)]


def commands_of(block: Block) -> list[str]:
    """The commands of a shell block, those over several lines as one, without comments."""
    joined = block.text.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [command.strip() for line in lines for command in line.split(" && ")]
