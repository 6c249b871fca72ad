"""Parenthesised text to nested lists, with the line of every word for messages.

Words end where they end for VAL: at blanks and parentheses, before a `?`, and after a name or a number where something
else follows (`off?l`, `-type`).
"""

import logging
import re
from collections.abc import Iterator
from typing import TypeAlias

from jaxppo.errors import PddlError

Node: TypeAlias = "str | list[Node]"
"""A lower-case word, or a parenthesised list of nodes."""

_LOG = logging.getLogger(__name__)
COMMENT = re.compile(r";[^\n]*+")
# A parenthesis, a name (`?x` and `:types` too), a number, an operator. Any other character is a
# word of its own, which VAL would skip and no reader here accepts.
_TOKEN = re.compile(r"[()]|[a-z_?:][a-z0-9_-]*+|-?[0-9]++(?:\.[0-9]*+)?|[<>]=|#t|\S")
# VAL reads the `?` of a variable and its name as two words.
_SPACED_VARIABLE = re.compile(r"\?(\s++)(?=[A-Za-z_])")
# Unicode's blanks, from copied text, count as blanks;
# other characters are refused, for some look like letters.
_FOREIGN = re.compile(r"[^\x00-\x7f\s]")
_BYTE_ORDER_MARK = "\ufeff"
# No real PDDL nests deeper; the limit keeps the
# recursive readers of the result clear of Python's own.
_MAX_DEPTH = 100


class Word(str):
    """A lower-cased token with the line it stands on."""

    __slots__ = ("line",)
    line: int


class Form(list[Node]):
    """A parenthesised list with the line of its opening parenthesis."""

    __slots__ = ("line",)
    line: int


def read_form(text: str, source: str) -> Form:
    """Read the first parenthesised form of a text, lower-cased.

    What follows the form is not read, as in VAL; a warning says so.

    Args:
        text: the file's text; `;` starts a comment.
        source: the file's name for messages.

    Raises:
        PddlError: a missing parenthesis, or text before the form.
    """
    tokens = _tokens(text, source)
    line = 1
    # The first entry stands for the text itself and collects what is outside every parenthesis.
    stack = [Form()]
    for token, line in tokens:
        if token == "(":
            if len(stack) > _MAX_DEPTH:
                raise PddlError(source, line, f"expected at most {_MAX_DEPTH} open parentheses")
            form = Form()
            form.line = line
            stack[-1].append(form)
            stack.append(form)
        elif token == ")" and len(stack) > 1:
            stack.pop()
        else:
            word = Word(token)
            word.line = line
            stack[-1].append(word)
        if len(stack) == 1:
            break
    if len(stack) > 1:
        message = f"expected ')' for the '(' of line {stack[-1].line}, got the end of the text"
        raise PddlError(source, line, message)
    form = stack[0][0] if stack[0] else "the end of the text"
    if not isinstance(form, Form):
        raise PddlError(source, line, f"expected '(define ...)', got '{show(form)}'")
    following, _ = next(tokens, ("", line))
    if following:
        _LOG.warning(
            "%s: the text behind the end of '(define ...)' is not read; it begins with '%s'",
            source,
            show(following),
        )
    return form


def _tokens(text: str, source: str) -> Iterator[tuple[str, int]]:
    """Yield the tokens of a text, lower-cased, each with its line."""
    plain = COMMENT.sub("", text.removeprefix(_BYTE_ORDER_MARK))
    # The blanks move before the `?`, so that line breaks among them still count.
    plain = _SPACED_VARIABLE.sub(r"\1?", plain)
    # Checked before `lower`, which would turn the kelvin sign into a k.
    foreign = _FOREIGN.search(plain)
    if foreign:
        line = plain.count("\n", 0, foreign.start()) + 1
        message = f"expected ASCII characters outside comments, got {foreign[0]!a}"
        raise PddlError(source, line, message)
    for line, line_text in enumerate(plain.lower().split("\n"), 1):
        for token in _TOKEN.findall(line_text):
            yield token, line


def line_of(node: Node) -> int:
    """Return the line of a node from `read_form`; 1 for another one."""
    return getattr(node, "line", 1)


def write_node(node: Node) -> str:
    """Write a node on one line."""
    return node if isinstance(node, str) else f"({' '.join(map(write_node, node))})"


def show(node: Node) -> str:
    """Write a node back as short one-line text for a message."""
    if isinstance(node, str):
        text = str(node)
    else:
        ellipsis = " ..." if len(node) > 3 else ""
        text = f"({' '.join(map(show, node[:3]))}{ellipsis})"
    if len(text) > 60:
        text = text[:57] + "..."
    if text.isprintable():
        return text
    return ascii(text)[1:-1]
