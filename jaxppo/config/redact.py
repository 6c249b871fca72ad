"""Secrets out of whatever is kept or shown: tokens, keys and passwords become `<redacted>`.

A secret is known by the name before it (a key of a dictionary, a flag, `name=value`), by its place in a URL, or as a
token of the Hugging Face hub. Tokens of language models (`bos_token`, `max_new_tokens`) have other names.
"""

import re
import shlex
from typing import Any

REDACTED = "<redacted>"

# Not every name with `key` or `token`: a configuration of a model may have any such name,
# and is written into the folder of a trained model.
_NAME = r"""(?:
    [\w.-]*? (?:
        (?:access|account|anthropic|api|auth|bearer|encryption|git(?:hub|lab)|hf|hub|hugging_?face|master|openai|private
            |refresh|secret|security|session|signing|wandb) [_-]? (?:key|token)
        | authorization | cookie | credential | passphrase | passwd | password | secret | signature
    )
    | (?:[\w-]+\.)* (?:pwd|token)
) s?"""
_VALUE = r"""(?P<value> "(?:[^"\\\n]|\\.)*" | '[^'\n]*' | (?![\[{(])[^\s"'&,;)}\]\\]+ )"""
_FLAGS = re.IGNORECASE | re.VERBOSE

_SECRET_NAME = re.compile(rf"-{{0,2}}{_NAME}", _FLAGS)
_IN_TEXT = (
    re.compile(r"(?P<before>)(?P<value>hf_[A-Za-z0-9]{16,})"),
    # The user of a web address is a secret, too; that of `ssh://git@host` is not.
    re.compile(
        r"""(?P<before> https?:// | ://(?=[^\s/?#"'@:]*:) ) (?P<value>[^\s/?#"']+) (?=@)""", _FLAGS
    ),
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


def redact(value: Any, name: Any = None) -> Any:
    """Replace every secret in text, or in nested dictionaries, lists and tuples, by `<redacted>`.

    All else stays as it is, and redacting twice changes nothing more.

    Args:
        value: anything; what is neither text nor a collection is returned unchanged.
        name: what it stands under; all texts under a secret name are secrets.

    Returns:
        The same, as copies of the collections.
    """
    is_secret = _is_secret_name(name)
    if isinstance(value, str):
        if is_secret:
            return value if _NO_SECRET.fullmatch(value) else REDACTED
        for pattern in _IN_TEXT:
            value = pattern.sub(_without_value, value)
        return value
    if isinstance(value, dict):
        return {
            redact(key): redact(item, name if is_secret else key) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)([redact(item, name) for item in value])
    return value


def redact_command(argv: list[str]) -> str:
    """Return a command line, quoted for a shell, without its secrets (`--api_key X` and `--api_key=X` included)."""
    words = []
    flag = None
    for word in argv:
        name, _, value = word.partition("=")
        is_flag = word.startswith("-")
        if is_flag:
            flag = word
        if value and _is_secret_name(name):
            # A whole word `--api_key=a b` has its secret up to
            # the end; in a text, the secret ends at the first space.
            words.append(f"{name}={redact(value, name)}")
        else:
            words.append(redact(word, None if is_flag else flag))
    return shlex.join(words)


def _is_secret_name(name: Any) -> bool:
    return isinstance(name, str) and _SECRET_NAME.fullmatch(name) is not None


def _without_value(match: re.Match[str]) -> str:
    """Replace the value of `name=value`, and keep its quotes."""
    value = match["value"]
    if _NO_SECRET.fullmatch(value):
        return match[0]
    quote = value[0] if value[0] in "\"'" and value[0] == value[-1] else ""
    return f"{match['before']}{quote}{REDACTED}{quote}"
