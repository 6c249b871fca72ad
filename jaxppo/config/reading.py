"""JSON and YAML that others wrote: whatever is in it, the answer comes soon, and an error is one line."""

import json
from typing import Any

import yaml

from jaxppo.errors import DataError

_MAX_DEPTH = 50  # levels of nesting; the time that YAML takes grows with their square


class PlainLoader(yaml.SafeLoader):
    """YAML without merge keys (`<<`), with which a kilobyte can stand for gigabytes, and without deep nesting."""

    def fetch_more_tokens(self) -> None:
        """Read on, unless what is read is nested too deeply."""
        if self.flow_level > _MAX_DEPTH or len(self.indents) > _MAX_DEPTH:
            raise yaml.YAMLError(f"expected at most {_MAX_DEPTH} levels of nesting, got more")
        super().fetch_more_tokens()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse merge keys."""
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.YAMLError(f"expected no merge key (<<), got one in line {key.start_mark.line + 1}")
        super().flatten_mapping(node)


def parse_json(text: str | bytes) -> Any:
    """Read JSON.

    Raises:
        DataError: the text is broken, nested too deeply, or has numbers of thousands of digits or half characters
            (lone surrogates), which no file can be written with.
    """
    try:
        content = json.loads(text)
        if (b"\\ud" in text.lower()) if isinstance(text, bytes) else ("\\ud" in text.lower()):
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise DataError(f"broken JSON ({error})") from error
    return content


def parse_yaml(text: str, loader: type[PlainLoader] = PlainLoader) -> Any:
    """Read YAML.

    Raises:
        YAMLError: the text is broken, nested too deeply, or has merge keys or numbers of thousands of digits.
    """
    try:
        return yaml.load(text, loader)
    except (ValueError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from error
