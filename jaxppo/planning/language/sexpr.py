"""Parenthesised text to nested lists, fast, or with the line of every word for messages.

Words end where they end for VAL: at blanks and parentheses, before a `?`, and after a name or a number where something
else follows (`off?l`, `-type`).

Every text is read by `read_fast`, which keeps plain strings and no lines. Only where that fails, or a reader of its
result does, is the text read again by `read_form`, whose words and forms know their lines, to raise the same error with
a line. So both must accept the same texts.
"""

import logging
import re
from collections.abc import Iterator
from typing import TypeAlias

from jaxppo.errors import PddlError

Node: TypeAlias = "str | list[Node]"
"""A lower-case word, or a parenthesised list of nodes."""

_LOG = logging.getLogger(__name__)
_COMMENT = re.compile(r";[^\n]*+")
# A name (`?x` and `:types` too), a number, an operator. Any other character is a word of its own,
# which VAL would skip and no reader here accepts.
_WORD = r"[a-z_?:][a-z0-9_-]*+|-?[0-9]++(?:\.[0-9]*+)?|[<>]=|#t|\S"
_TOKEN = re.compile(rf"[()]|{_WORD}")
_TOKEN_WITH_LINES = re.compile(rf"[()\n]|{_WORD}", re.IGNORECASE)
# VAL reads the `?` of a variable and its name as two words.
_SPACED_VARIABLE = re.compile(r"\?(\s++)(?=[A-Za-z_])")
# Unicode's blanks, from copied text, count as blanks; other characters are refused, for some look
# like letters.
_FOREIGN = re.compile(r"[^\x00-\x7f\s]")
_BYTE_ORDER_MARK = "\ufeff"
# No real PDDL nests deeper; the limit keeps the recursive readers of the result clear of Python's
# own.
_MAX_DEPTH = 100
# Three times the largest file of the planning competitions; reading that many takes about a second.
MAX_TOKENS = 3_000_000
# No real name is as long; such a word would fill messages and other programs' buffers.
_LONGEST_WORD = 10_000
# Characters that are cut into tokens at a time, so that memory never holds the tokens of a whole
# large file.
_CHUNK = 1 << 20


class TextTooLargeError(PddlError):
    """A text has more tokens than are read."""


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

    What follows the form is not read, as in VAL; a warning says so. Errors carry no line: the caller reads again with
    `read_form`, which raises the same error with its line.

    Args:
        text: the file's text; `;` starts a comment.
        source: the file's name for messages.

    Raises:
        PddlError: a missing parenthesis, or text before the form.
        TextTooLargeError: more than `MAX_TOKENS` tokens; it has a line.
    """
    plain = _without_comments(text)
    # Checked before `lower`, which would turn the kelvin sign into a k.
    if not plain.isascii():
        if _FOREIGN.search(plain):
            raise PddlError(source, 1, "expected ASCII characters outside comments")
        plain = re.sub(r"[^\x00-\x7f]", " ", plain)
    plain = plain.lower()
    current: list[Node] = []
    stack: list[list[Node]] = []
    for tokens, end in _chunks(plain, source):
        if not stack and tokens[:1] not in (["("], []):
            raise PddlError(source, 1, "expected one '(define ...)'")
        remaining = iter(tokens)
        for token in remaining:
            if token == "(":
                form: list[Node] = []
                current.append(form)
                stack.append(current)
                current = form
                if len(stack) > _MAX_DEPTH:
                    raise PddlError(source, 1, "expected fewer open parentheses")
            elif token != ")":
                current.append(token)
            else:
                closed, current = current, stack.pop()
                if not stack:
                    # The next token may stand in the next chunk, which is not cut any more.
                    match = _TOKEN.search(plain, end)
                    following = next(remaining, match[0] if match else None)
                    if following is not None:
                        _warn(following, source)
                    return closed
    raise PddlError(source, 1, "expected one '(define ...)'")


def _without_comments(text: str) -> str:
    """Remove comments, a byte order mark and the blanks in variables; everything else keeps its line."""
    plain = text.removeprefix(_BYTE_ORDER_MARK)
    if ";" in plain:
        plain = _COMMENT.sub("", plain)
    if "?" in plain:
        # The blanks move before the `?`, so that line breaks among them still count.
        plain = _SPACED_VARIABLE.sub(r"\1?", plain)
    return plain


def _chunks(plain: str, source: str) -> Iterator[tuple[list[str], int]]:
    """Yield the tokens of a text in chunks, each with the position after its last character."""
    words: dict[str, str] = {}
    start = 0
    n_tokens = 0
    while start < len(plain):
        end = _end_of_chunk(plain, start)
        tokens = _TOKEN.findall(plain, start, end)
        n_tokens += len(tokens)
        if end - start > _LONGEST_WORD and max(map(len, tokens), default=0) > _LONGEST_WORD:
            raise PddlError(source, 1, "expected shorter words")
        if n_tokens > MAX_TOKENS:
            raise _too_large(plain.count("\n", 0, start) + 1, source)
        # Of a long text, memory holds each word once, however often it occurs.
        if end - start < len(plain):
            tokens = [words.setdefault(token, token) for token in tokens]
        yield tokens, end
        start = end


def _end_of_chunk(plain: str, start: int) -> int:
    """Return a position at which no token is cut: after a line break or a blank, or else the end of the text."""
    end = start + _CHUNK
    if end >= len(plain):
        return len(plain)
    for blank in "\n ":
        position = plain.rfind(blank, start, end) + 1
        if position > start:
            return position
    return len(plain)


def _too_large(line: int, source: str) -> TextTooLargeError:
    return TextTooLargeError(
        source, line, f"expected at most {MAX_TOKENS} words and parentheses, got more"
    )


def _warn(token: str, source: str) -> None:
    _LOG.warning(
        "%s: the text behind the end of '(define ...)' is not read; it begins with '%s'",
        source,
        show(token),
    )


def read_form(text: str, source: str) -> Form:
    """Read the first parenthesised form of a text, lower-cased; what follows it is not read.

    Args:
        text: the file's text; `;` starts a comment.
        source: the file's name for messages.

    Raises:
        PddlError: a missing parenthesis, or text before the form.
        TextTooLargeError: more than `MAX_TOKENS` tokens.
    """
    line = 1
    n_tokens = 0
    # The first entry stands for the text itself and collects what is outside every parenthesis.
    stack = [Form(1)]
    plain = _without_comments(text)
    for match in _TOKEN_WITH_LINES.finditer(plain):
        token = match[0]
        if token == "\n":
            line += 1
            continue
        n_tokens += 1
        if n_tokens > MAX_TOKENS:
            raise _too_large(line, source)
        if token == "(":
            stack.append(_open(stack, line, source))
        elif token == ")":
            _close(stack, line, source)
        else:
            stack[-1].append(_word(token, line, source))
        if len(stack) == 1:
            break
    form = _only_form(stack, line, source)
    # Words of the form are checked one by one, so what is found now stands after it; `read_fast`
    # refuses it too.
    foreign = _FOREIGN.search(plain)
    if foreign:
        _word(foreign[0], plain.count("\n", 0, foreign.start()) + 1, source)
    return form


def line_of(node: Node) -> int:
    """Return the line of a node from `read_form`; 1 for a node from `read_fast`, which knows no lines."""
    return getattr(node, "line", 1)


def show(node: "Node | Form") -> str:
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


def _word(token: str, line: int, source: str) -> Word:
    if not token.isascii():
        raise PddlError(
            source, line, f"expected ASCII characters outside comments, got {token[:60]!a}"
        )
    if len(token) > _LONGEST_WORD:
        raise PddlError(
            source,
            line,
            f"expected words of at most {_LONGEST_WORD} characters, got {token[:60]}...",
        )
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
        raise PddlError(
            source,
            line,
            f"expected ')' for the '(' of line {stack[-1].line}, got the end of the text",
        )
    # The message about an empty text shows this word in place of the form.
    first = stack[0][0] if stack[0] else _word("end-of-text", line, source)
    if isinstance(first, Word):
        raise PddlError(source, first.line, f"expected '(define ...)', got '{show(first)}'")
    return first
