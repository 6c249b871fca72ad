"""Secrets out of whatever is kept or shown: tokens, keys and passwords become `<redacted>`.

A secret is known by the name before it (a key of a dictionary, a flag, `name=value`), by its place in a URL, or as a
token of the Hugging Face hub. Tokens of language models (`bos_token`, `max_new_tokens`) have other names.
"""

import re
import shlex
from typing import Any

REDACTED = "<redacted>"

_NAME = r"""(?:
    [\w.-]*? (?:
        (?:access|account|anthropic|api|encryption|master|openai|private|secret|signing|wandb)[_-]?key
        | (?:access|api|auth|bearer|git(?:hub|lab)|hf|hub|hugging_?face|private|refresh|secret|security|session|wandb)
          [_-]?token
        | authorization | cookie | credential | passphrase | passwd | password | secret | signature
    )
    | (?:[\w-]+\.)* (?:pwd|token)
) s?"""
_VALUE = r"""(?P<value> "(?:[^"\\\n]|\\.)*" | '[^'\n]*' | (?![\[{(])[^\s"'&,;)}\]\\]+ )"""
_FLAGS = re.IGNORECASE | re.VERBOSE

_SECRET_NAME = re.compile(rf"-{{0,2}}{_NAME}", _FLAGS)
_FLAG_WITH_VALUE = re.compile(rf"(?P<before>-{{0,2}}{_NAME}=)(?P<value>.+)", _FLAGS | re.DOTALL)
_IN_TEXT = (
    re.compile(r"(?P<before>)(?P<value>hf_[A-Za-z0-9]{16,})"),
    # The user of a web address is a secret, too; that of `ssh://git@host` is not.
    re.compile(r"""(?P<before>https?://)(?P<value>[^\s/?#"']+)(?=@)""", re.IGNORECASE),
    re.compile(r"""(?P<before>://)(?P<value>[^\s/?#"'@:]*:[^\s/?#"'@]+)(?=@)"""),
    re.compile(rf"(?P<before>authorization:[ ]*(?:\w+[ ]+)?){_VALUE}", _FLAGS),
    re.compile(r"(?P<before>\bBearer\s+)(?P<value>[\w.~+/=-]{16,})", re.IGNORECASE),
    # `name=value`, `name = "value"` and JSON's `"name": value`.
    re.compile(
        rf"""(?P<before>(?<![\w.-])-{{0,2}}{_NAME}(?:\\?["']?[ ]*=[ ]*|\\?["'][ ]*:[ ]*)\\?(?!//)){_VALUE}""",
        _FLAGS,
    ),
    re.compile(rf"""(?P<before>(?<![\w.-])--{_NAME}(?:["'],)?[ ]+)(?!["']?-){_VALUE}""", _FLAGS),
)
# Numbers are the ids of tokens and labels.
_NO_SECRET = re.compile(
    rf"""["']?(?:none|null|true|false|\d{{1,6}}|{REDACTED})?["']?""", re.IGNORECASE
)


def redact(value: Any) -> Any:
    """Replace every secret in text, or in nested dictionaries, lists and tuples, by `<redacted>`.

    All else stays as it is, and redacting twice changes nothing more. In a list, a word is also taken as the value of
    the flag before it.

    Args:
        value: anything; what is neither text nor a collection is returned unchanged.

    Returns:
        The same, as copies of the collections.
    """
    if isinstance(value, str):
        return _redact_text(value)
    if isinstance(value, dict):
        return {redact(key): _redact_named(key, item) for key, item in value.items()}
    # A named tuple takes its items one by one
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*_redact_words(value))
    if isinstance(value, list | tuple):
        return type(value)(_redact_words(value))
    return value


def redact_command(argv: list[str]) -> str:
    """Return a command line, quoted for a shell, without its secrets (`--api_key X` and `--api_key=X` included)."""
    return shlex.join(redact([str(word) for word in argv]))


def _redact_named(name: Any, value: Any) -> Any:
    """Hide what stands under a secret name: any text, and collections of texts."""
    if not (isinstance(name, str) and _SECRET_NAME.fullmatch(name)):
        return redact(value)
    if isinstance(value, str):
        return value if _NO_SECRET.fullmatch(value) else REDACTED
    if isinstance(value, dict):
        return {key: _redact_named(name, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_named(name, item) for item in value]
    return value


def _redact_words(words: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Redact the items of a list, which may be a command line."""
    redacted = []
    flag = None
    for word in words:
        if not isinstance(word, str):
            redacted.append(redact(word))
            continue
        if word.startswith("-"):
            flag = word
        elif flag is not None:
            redacted.append(_redact_named(flag, word))
            continue
        # A whole word `--api_key=a b` has its secret up to the
        # end; in a text, the secret ends at the first space.
        match = _FLAG_WITH_VALUE.fullmatch(word)
        redacted.append(_without_value(match) if match else redact(word))
    return redacted


def _redact_text(text: str) -> str:
    for pattern in _IN_TEXT:
        text = pattern.sub(_without_value, text)
    return text


def _without_value(match: re.Match[str]) -> str:
    """Replace the value of `name=value`, and keep its quotes."""
    value = match["value"]
    if _NO_SECRET.fullmatch(value):
        return match[0]
    quote = value[0] if value[0] in "\"'" and value[0] == value[-1] else ""
    return f"{match['before']}{quote}{REDACTED}{quote}"
