"""JSON and YAML that others wrote: whatever is in it, the answer comes soon, and an error is one line."""

import json
from typing import Any

import yaml

from jaxppo.errors import DataError

MAX_DEPTH = 100
"""Lists and mappings inside of each other; what walks a document recurses a few times per level."""

MAX_YAML_CHARACTERS = 500_000
"""PyYAML reads about 100 KB in a second."""

_MAX_YAML_NODES = 10_000  # keys and values, each alias counted as all that it stands for, which may be gigabytes
_TOO_DEEP = f"expected at most {MAX_DEPTH} levels of nesting, got more"


class BoundedLoader(yaml.SafeLoader):
    """YAML within limits of depth and size; beyond them a `YAMLError`."""

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = self._nodes = 0
        self._nodes_in: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Build a node, and count how deep it lies and how much it stands for."""
        is_alias, before = self.check_event(yaml.AliasEvent), self._nodes
        self._depth, self._nodes = self._depth + 1, self._nodes + 1
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError(_TOO_DEEP)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias:  # one of a node that it stands in has no end
            self._nodes += self._nodes_in.get(id(node), _MAX_YAML_NODES)
        if self._nodes > _MAX_YAML_NODES:
            raise yaml.YAMLError(f"expected at most {_MAX_YAML_NODES:,} keys and values, aliases written out, got more")
        self._nodes_in.setdefault(id(node), self._nodes - before)
        return node


def parse_json(text: str | bytes) -> Any:
    """Read JSON.

    Raises:
        DataError: the text is broken, nested too deeply, or has numbers of thousands of digits or half characters
            (lone surrogates), which no file can be written with.
    """
    try:
        text = text.decode(json.detect_encoding(text)) if isinstance(text, bytes) else text
        content = json.loads(text)
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(content)
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise DataError(f"broken JSON ({_TOO_DEEP})") from None
    except ValueError as error:
        raise DataError(f"broken JSON ({error})") from error
    return content


def parse_yaml(text: str, loader: type[BoundedLoader] = BoundedLoader) -> Any:
    """Read YAML.

    Raises:
        YAMLError: the text is broken, or beyond a limit.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise yaml.YAMLError(f"expected at most {MAX_YAML_CHARACTERS:,} characters, got {len(text):,}")
    try:
        return yaml.load(text, loader)
    except (ValueError, ArithmeticError) as error:  # of numbers and dates
        raise yaml.YAMLError(str(error)) from error


def _check_depth(content: Any) -> None:
    """Raise a `ValueError` where lists and objects are nested too deeply; level by level, without recursion."""
    level = [content]
    for _ in range(MAX_DEPTH):
        inside = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)
