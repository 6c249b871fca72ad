"""Parenthesised text to nested lists, fast, or with the line of every word for messages."""

import re
from typing import TypeAlias

from jaxppo.errors import PddlError

Node: TypeAlias = "str | list[Node]"
"""A lower-case word, or a parenthesised list of nodes."""

_COMMENT = re.compile(r";[^\n]*+")
_TOKEN = re.compile(r"[()]|[^\s()]++")
_TOKEN_WITH_LINES = re.compile(r"[()\n]|;[^\n]*+|[^\s();]++")
# No real PDDL nests deeper; the limit keeps the recursive readers of the result clear of Python's own.
_MAX_DEPTH = 100
# Nearly all benchmark files are smaller. Reading this many takes some tenths of a second, also up to an error.
MAX_CHARACTERS = 600_000


class Word(str):
    """A lower-cased token with the line it stands on."""

    __slots__ = ("line",)
    line: int


class Form(list["Word | Form"]):
    """A parenthesised list with the line of its opening parenthesis."""

    __slots__ = ("line",)
    line: int

    def __init__(self, line: int):
        super().__init__()
        self.line = line


def read_fast(text: str, source: str) -> list[Node]:
    """Read the first parenthesised form of a text as plain lists and strings, about five times faster than `read_form`.

    Errors carry no line: whoever gets one reads again with `read_form`, which raises the same error with its line.

    Args:
        text: the file's text; `;` starts a comment.
        source: the file's name for messages.

    Raises:
        PddlError: a missing or spare parenthesis, or text outside the form.
    """
    _check_size(text, source)
    plain = _COMMENT.sub("", text) if ";" in text else text
    if not plain.isascii():  # asked before letters become small: that of the kelvin sign is k
        raise PddlError(source, 1, "expected ASCII characters outside comments")
    current: list[Node] = []
    stack: list[list[Node]] = []
    for token in _TOKEN.findall(plain.lower()):
        if token == "(":
            form: list[Node] = []
            current.append(form)
            stack.append(current)
            current = form
            if len(stack) > _MAX_DEPTH:
                raise PddlError(source, 1, "expected fewer open parentheses")
        elif token != ")":
            current.append(token)
        elif stack:
            current = stack.pop()
        else:
            raise PddlError(source, 1, "expected no spare parenthesis")
    if stack or len(current) != 1 or isinstance(current[0], str):
        raise PddlError(source, 1, "expected one '(define ...)'")
    return current[0]


def read_form(text: str, source: str) -> Form:
    """Read the first parenthesised form of a text, lower-cased; what follows it must be blank or comments.

    Args:
        text: the file's text; `;` starts a comment.
        source: the file's name for messages.

    Raises:
        PddlError: a missing or spare parenthesis, or text outside the form.
    """
    _check_size(text, source)
    line, top = 1, Form(1)
    stack = [top]
    for match in _TOKEN_WITH_LINES.finditer(text):
        token = match[0]
        if token == "\n":
            line += 1
        elif token == "(":
            stack.append(_open(stack, line, source))
        elif token == ")":
            _close(stack, line, source)
        elif token[0] != ";":
            stack[-1].append(_word(token, line, source))
    return _only_form(stack, line, source)


def line_of(node: Node) -> int:
    """Return the line of a node from `read_form`; 1 for a node from `read_fast`, which knows no lines."""
    return getattr(node, "line", 1)


def show(node: "Node | Form") -> str:
    """Write a node back as short one-line text for a message."""
    text = node if isinstance(node, str) else f"({' '.join(map(show, node[:3]))}{' ...' * (len(node) > 3)})"
    text = str(text) if len(text) <= 60 else text[:57] + "..."
    return text if text.isprintable() else ascii(text)[1:-1]


def _check_size(text: str, source: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise PddlError(source, 1, f"expected at most {MAX_CHARACTERS} characters, got {len(text)}")


def _word(token: str, line: int, source: str) -> Word:
    if not token.isascii():
        raise PddlError(source, line, f"expected ASCII characters outside comments, got {token[:60]!a}")
    word = Word(token.lower())
    word.line = line
    return word


def _open(stack: list[Form], line: int, source: str) -> Form:
    if len(stack) > _MAX_DEPTH:
        raise PddlError(source, line, f"expected at most {_MAX_DEPTH} open parentheses, got more")
    form = Form(line)
    stack[-1].append(form)
    return form


def _close(stack: list[Form], line: int, source: str) -> None:
    if len(stack) == 1:
        raise PddlError(source, line, "expected '(' or the end of the text, got ')'")
    stack.pop()


def _only_form(stack: list[Form], line: int, source: str) -> Form:
    if len(stack) > 1:
        raise PddlError(source, line, f"expected ')' for the '(' of line {stack[-1].line}, got the end of the text")
    first, *others = stack[0] or [_word("end-of-text", line, source)]
    if isinstance(first, Word) or others:
        stray = others[0] if others else first
        raise PddlError(source, stray.line, f"expected one '(define ...)' and nothing else, got '{show(stray)}'")
    return first
