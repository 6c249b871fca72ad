"""Files that nobody meant well with are refused in one line.

Without the limits, reading some of them would take hours or all of the memory.
"""

import json

import pytest
import yaml

from jaxppo import hf
from jaxppo.config.reading import parse_json, parse_yaml
from jaxppo.config.sources import read_yaml
from jaxppo.errors import ConfigError, DataError, ModelError

DEEP = 200_000
JSON = {
    "lists in 101 levels": "[" * 101 + "]" * 101,
    "nested lists": "[" * DEEP,
    "nested objects": '{"a":' * DEEP,
    "a long number": '{"a": ' + "9" * 5000 + "}",
    "half a character": '{"a": "\\ud800"}',
    "half a character in capitals": '{"a": "x\\uDFFFy"}',
}
LISTS = "a0: &a0 [1, 2]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(9))
MERGES = "a0: &a0 {" + ", ".join(f"k{n}: {n}" for n in range(9)) + "}\n"
MERGES += "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
YAML = {
    "nested lists": ("a: " + "[" * 20_000, "100 levels"),
    "nested mappings": ("a: " + "{b: " * 20_000, "100 levels"),
    "nested blocks": ("- " * 20_000, "100 levels"),
    "a long number": ("a: " + "9" * 5000, "4300"),
    "no date": ("a: 2020-99-99", "month"),
    "lists of aliases": (LISTS, "10,000"),
    "merge keys": (MERGES, "10,000"),
    "an alias within itself": ("a: &a [*a]", "10,000"),
    "many keys": ("".join(f"k{n}: 1\n" for n in range(10_001)), "10,000"),
    "a megabyte": ("#" * 500_001, "500,000"),
}


@pytest.mark.parametrize("text", JSON.values(), ids=JSON)
def test_hostile_json_is_one_error(text):
    for content in (text, text.encode()):
        with pytest.raises(DataError, match="JSON") as refused:
            parse_json(content)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "limit"), YAML.values(), ids=YAML)
def test_hostile_yaml_is_one_error(text, limit, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"^config: .*run\.yaml .*{limit}") as refused:
        read_yaml(tmp_path / "run.yaml")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_yaml_and_json_are_read_as_others_read_them():
    text = (
        "base: &base {a: 1, b: [x, 0.5, null, true]}\nmore: {<<: *base, a: 2}\nagain: [*base, *base]\nday: 2020-01-02"
    )
    assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml("") is None
    assert parse_json('"\\ud83d\\ude00 \\\\ud800"') == "\U0001f600 \\ud800"  # no half of a character
    assert parse_json("[" * 100 + "]" * 100) == json.loads("[" * 100 + "]" * 100)


def test_a_model_of_endless_depth_is_refused(tmp_path):
    raw = {"model_type": "gpt_neox", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 100_000}
    raw |= {"num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelError, match=r"num_hidden_layers: .*256"):
        hf.load_model(tmp_path, shapes_only=True)
