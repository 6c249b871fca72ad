"""Parenthesised text to nested lists that know their line numbers."""

import re

from jaxppo.errors import PddlError

_TOKEN = re.compile(r"[()\n]|;[^\n]*+|[^\s();]++")
# No real PDDL nests deeper; the limit keeps the recursive readers of the result clear of Python's own.
_MAX_DEPTH = 100


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


def read_form(text: str, source: str) -> Form:
    """Read the first parenthesised form of a text, lower-cased; what follows it must be blank or comments.

    Args:
        text: the file's text; `;` starts a comment.
        source: the file's name for messages.

    Raises:
        PddlError: a missing or spare parenthesis, or text outside the form.
    """
    line, top = 1, Form(1)
    stack = [top]
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            line += 1
        elif token == "(":
            stack.append(_open(stack, line, source))
        elif token == ")":
            _close(stack, line, source)
        elif token[0] != ";":
            stack[-1].append(_word(token, line))
    return _only_form(stack, line, source)


def show(node: Word | Form) -> str:
    """Write a node back as short one-line text for a message."""
    text = str(node) if isinstance(node, Word) else f"({' '.join(map(show, node[:3]))}{' ...' * (len(node) > 3)})"
    return text if len(text) <= 60 else text[:57] + "..."


def _word(token: str, line: int) -> Word:
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
    first, *others = stack[0] or [_word("end-of-text", line)]
    if isinstance(first, Word) or others:
        stray = others[0] if others else first
        raise PddlError(source, stray.line, f"expected one '(define ...)' and nothing else, got '{show(stray)}'")
    return first
