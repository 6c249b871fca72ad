"""Broken files are refused in one line."""

import pytest

from jaxppo.config.reading import parse_json
from jaxppo.config.sources import read_yaml
from jaxppo.errors import ConfigError, DataError

JSON = {
    "nested lists": "[" * 200_000,
    "nested objects": '{"a":' * 200_000,
    "a long number": '{"a": ' + "9" * 5000 + "}",
    "half a character": '{"a": "\\ud800"}',
    "half a character in capitals": '{"a": "x\\uDFFFy"}',
}
YAML = {
    "nested blocks": ("- " * 20_000, "deep"),
    "a long number": ("a: " + "9" * 5000, "4300"),
    "no date": ("a: 2020-99-99", "month"),
}


@pytest.mark.parametrize("text", JSON.values(), ids=JSON)
def test_broken_json_is_one_error(text):
    for content in (text, text.encode()):
        with pytest.raises(DataError, match="JSON") as refused:
            parse_json(content)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "reason"), YAML.values(), ids=YAML)
def test_broken_yaml_is_one_error(text, reason, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"^config: .*run\.yaml .*{reason}") as refused:
        read_yaml(tmp_path / "run.yaml")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_whole_characters_of_json_are_read():
    assert parse_json('"\\ud83d\\ude00 \\\\ud800"') == "\U0001f600 \\ud800"
