"""JSON and YAML that others wrote: an error is one line, whatever is in it."""

import json
from pathlib import Path
from typing import Any

import yaml

from jaxppo.errors import DataError

POINTER = "a pointer of git-lfs; `git lfs pull` in its repository fetches the file itself"
"""What lies in the place of a large file where git-lfs was not installed, for messages."""
_POINTER_START = "version https://git-lfs.github.com/spec/"

_TOO_DEEP = "nested too deeply"


def is_pointer(path: Path) -> bool:
    """Return whether a file is git-lfs's pointer to the one that is meant."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_POINTER_START)) == _POINTER_START.encode()


def parse_json(text: str | bytes) -> Any:
    """Read JSON.

    Raises:
        DataError: the text is broken, nested too deeply, or has numbers of thousands of digits or half characters
            (lone surrogates), which no file can be written with.
    """
    try:
        text = text.decode(json.detect_encoding(text)) if isinstance(text, bytes) else text
        content = json.loads(text)
        # Half characters can only come from escapes \ud800
        # to \udfff: encoding everything again finds them.
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise DataError(f"broken JSON ({_TOO_DEEP})") from None
    except ValueError as error:
        if str(text).startswith(_POINTER_START):
            raise DataError(POINTER) from error
        raise DataError(f"broken JSON ({error})") from error
    return content


def parse_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Read YAML.

    Raises:
        YAMLError: the text is broken or nested too deeply, or holds a number or a date that is none.
    """
    try:
        return yaml.load(text, loader)
    except RecursionError:
        raise yaml.YAMLError(_TOO_DEEP) from None
    except (ValueError, ArithmeticError) as error:
        raise yaml.YAMLError(str(error)) from error
