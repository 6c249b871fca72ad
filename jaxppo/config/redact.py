"""Secrets out of whatever is kept or shown: tokens, keys and passwords become `<redacted>`.

A secret is known by its shape, where runs handle such ones (`hf_...`, `Bearer ...`, the user part of a URL), or by the
name before it: a key of a dictionary, a flag, `name=value`. Names of tokens in the sense of language models
(`bos_token`, `max_new_tokens`) are no such names; one that is not known either way (`my_service_token`) hides only a
value that looks random.
"""

import re
import shlex
from typing import Any

REDACTED = "<redacted>"

_NAME = r"""(?:
    [\w.-]*? (?:
        api[_-]?(?:key|token)
        | (?:access|account|anthropic|encryption|master|openai|private|secret|signing|wandb)[_-]?key
        | (?:access|auth|bearer|git(?:hub|lab)|hf|hub|hugging_?face|private|refresh|secret|security|session|wandb)
          [_-]?token
        | authorization | cookie | credential | passphrase | passwd | password | secret
    ) s?
    | -{0,2} (?:[\w-]+\.)* (?:auth|pwd|token)
) [_-]?\d*"""
_ANY_TOKEN = r"[\w.-]*token"
_RANDOM = r"(?=[a-z0-9]*\d)(?=[a-z0-9]*[a-z])[a-z0-9]{20}[\w-]*"
_VALUE = r"""(?P<value>
    "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | \\"(?:(?!\\").)*\\"  # quoted, also inside a quoted text
    | ["']?(?![\[{(])[^\s"'`&]+
)"""

# The beginning of a token: no letter or digit before it but those of an escape (`\n`, `%3D`).
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-F]{2}))"
_SHAPES = re.compile(
    rf"""
    -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | {_START} (?:
        hf_[A-Za-z0-9]{{16,}}                                                           # Hugging Face
        | sk-(?:(?:proj|ant|svcacct|admin|or|lf)-[\w-]{{12,}} | [A-Za-z0-9]{{16,}})     # OpenAI, Anthropic and others
        | gh[opsur]_[A-Za-z0-9]{{16,}} | github_pat_\w{{16,}} | wandb_v\d_\w{{16,}}      # GitHub, Weights & Biases
    )""",
    re.VERBOSE | re.DOTALL,
)
# user:password before the host; the port of a host is followed by a path.
_URL_PASSWORD = re.compile(
    r"""(?<=://)(?!\[)[^\s/?#@:"]{0,200}:(?!\d{1,5}(?:[/?#]|$))(?:[^\s/?#"]{1,500}|[^\s"]{1,500}?)(?=@)"""
)
_URL_USER = re.compile(r"""(?:(?<=http://)|(?<=https://))[^\s/?#"]{1,500}(?=@)""", re.IGNORECASE)
_URL_KEY = re.compile(r"(?P<before>[?&](?:key|sig|[\w-]*signature)=)(?P<value>[^\s\"'&#]+)", re.IGNORECASE)

_FLAGS = re.IGNORECASE | re.VERBOSE
_ASSIGNED = re.compile(
    rf"""(?P<before>(?<![\w.-])(?P<name>{_NAME}\\?["']?)[ \t]*(?P<sign>=>|[:=]{{1,2}})[ \t]*
    (?:(?:basic|bearer|digest|token)[ \t]+)?)(?!//){_VALUE}""",
    _FLAGS,
)
_BEARER = re.compile(r"(?P<before>\b(?:Bearer\s+|bearer\s+(?=\S{16})))(?P<value>\w[\w.~+/=-]*)")
_AFTER_FLAG = re.compile(rf"""(?P<before>(?<![\w.-])-{{1,2}}{_NAME}(?:["'],)?[ \t]+)(?!["']?--){_VALUE}""", _FLAGS)
_LOOKS_RANDOM = re.compile(
    rf"""(?P<before>(?<![\w.-])(?:{_NAME}|{_ANY_TOKEN})\\?["']?(?:[ \t]*[:=]|[ \t])[ \t]*\\?["']?)
    (?P<value>{_RANDOM})""",
    _FLAGS,
)

_SECRET_NAME = re.compile(_NAME, _FLAGS)
_TOKEN_NAME = re.compile(_ANY_TOKEN, _FLAGS)
_RANDOM_VALUE = re.compile(_RANDOM, _FLAGS)
_FLAG = re.compile(rf"-{{1,2}}(?:{_NAME}|{_ANY_TOKEN})", _FLAGS)
_NAMED_ITEM = re.compile(rf"(?P<before>{_NAME}=)(?P<value>.*)", _FLAGS | re.DOTALL)
_NO_SECRET = re.compile(rf"(?:none|null|true|false|{REDACTED})?", re.IGNORECASE)
_SMALL = 1000  # below it, a number under such a name is the index of a label or token rather than a PIN


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
    if isinstance(value, list | tuple):
        return _rebuilt(value, _redact_words(value))
    return value


def redact_command(argv: list[str]) -> str:
    """Return a command line, quoted for a shell, without its secrets (`--api_key X` and `--api_key=X` included)."""
    return shlex.join(redact([str(word) for word in argv]))


def _redact_named(name: Any, value: Any) -> Any:
    """Redact the value that stands under a name in a dictionary, or behind it on a command line."""
    if isinstance(name, str):
        if _SECRET_NAME.fullmatch(name):
            return _hidden(value, numbers=name.lower().rpartition(".")[2] != "token")
        if _TOKEN_NAME.fullmatch(name) and isinstance(value, str) and _RANDOM_VALUE.fullmatch(value):
            return REDACTED
    return redact(value)


def _hidden(value: Any, numbers: bool) -> Any:
    """Hide a value whose text is all secret, and with `numbers` (a password, not the id of a token) its numbers."""
    if isinstance(value, dict):
        return {redact(key): _hidden(item, numbers) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _rebuilt(value, [_hidden(item, numbers) for item in value])
    if isinstance(value, str):
        return value if _NO_SECRET.fullmatch(value) else REDACTED
    return REDACTED if numbers and isinstance(value, int) and value >= _SMALL else value


def _redact_words(words: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Redact the items of a list, which may be a command line."""
    redacted, flag = [], None
    for word in words:
        if flag is not None and not (isinstance(word, str) and word.startswith("--")):
            redacted.append(_redact_named(flag, word))
            flag = flag if flag.endswith("s") else None  # --api_keys A B
            continue
        named = _NAMED_ITEM.fullmatch(word) if isinstance(word, str) else None
        redacted.append(named["before"] + _hidden(named["value"], numbers=True) if named else redact(word))
        flag = word if isinstance(word, str) and _FLAG.fullmatch(word) else None
    return redacted


def _rebuilt(like: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    if isinstance(like, tuple):
        return type(like)(*items) if hasattr(like, "_fields") else tuple(items)
    return items


def _redact_text(text: str) -> str:
    text = _URL_PASSWORD.sub(REDACTED, text)
    text = _URL_USER.sub(REDACTED, text)
    text = _SHAPES.sub(REDACTED, text)
    text = _ASSIGNED.sub(_unless_prose, text)
    for pattern in (_BEARER, _AFTER_FLAG, _URL_KEY, _LOOKS_RANDOM):
        text = pattern.sub(_without_value, text)
    return text


def _unless_prose(match: re.Match[str]) -> str:
    """Replace the value, but leave `the reward of each token: its score` and `{"B-secret": 17}` as they are."""
    value, rest = match["value"], match.string[match.end() :]
    if match["sign"] == ":":
        number = re.fullmatch(r"(\d+)[,}\]]*", value)
        if number and int(number[1][:9]) < _SMALL:
            return match[0]
        if match["name"].lower() in ("auth", "token") and not re.search(r"\d", value) and re.match(r"[ \t]+\S", rest):
            return match[0]
    return _without_value(match)


def _without_value(match: re.Match[str]) -> str:
    """Replace the value of `name=value`, and keep its quotes and the punctuation behind it."""
    unopened = match["value"].lstrip("\\\"'")
    value = unopened.rstrip("\\\"',;)]}")
    if _NO_SECRET.fullmatch(value):
        return match[0]
    opening = match["value"].removesuffix(unopened)
    return f"{match['before']}{opening}{REDACTED}{unopened.removeprefix(value)}"
