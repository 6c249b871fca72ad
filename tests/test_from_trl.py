"""docs/from_trl.md: it names every field of TRL, no setting that is not ours, and the right defaults."""

import ast
import dataclasses
import os
import re

import pytest

from tests import ROOT

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import transformers
import trl
from trl.experimental.ppo import PPOConfig

from jaxppo.config import TrainConfig
from jaxppo.config.sources import flatten, parse_cli
from jaxppo.run import metrics

PATH = ROOT / "docs" / "from_trl.md"
PAGE = PATH.read_text(encoding="utf-8")
OURS = flatten(TrainConfig())


def section(title: str) -> str:
    """The text under a heading of any level, up to the next one of the same level."""
    level = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert level is not None, title
    return re.split(rf"^#{{1,{len(level[1])}}} ", PAGE[level.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def table_rows(text: str) -> list[dict[str, str]]:
    """Rows of all Markdown tables in a text, by the titles of their columns."""
    rows, titles = [], None
    for line in text.splitlines():
        if not line.startswith("|"):
            titles = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if titles is None:
            titles = cells
        elif set(cells) != {"---"}:
            assert len(cells) == len(titles), line
            rows.append(dict(zip(titles, cells, strict=True)))
    return rows


def in_backticks(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


FIELDS = table_rows(section("Field by field").split("### Not here")[0])


def declared_by_trl(config_class: type) -> set[str]:
    """Fields that TRL declares itself, those among them that change a default of transformers included."""
    inherited = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    own = {field.name for field in dataclasses.fields(config_class)} - inherited
    redeclared = {
        name
        for kind in config_class.__mro__
        if kind.__module__.startswith("trl.")
        for name in vars(kind).get("__annotations__", {})
        if not name.startswith("_")
    }
    return own | redeclared


@pytest.mark.parametrize(
    "names",
    [declared_by_trl(PPOConfig), declared_by_trl(trl.RLOOConfig), declared_by_trl(trl.GRPOConfig)],
    ids=["ppo", "rloo", "grpo"],
)
def test_every_field_of_trl_has_its_place(names):
    assert len(names) > 30
    fields = {text.split()[0] for text in in_backticks(section("Field by field"))}
    assert sorted(names - fields) == []


def test_our_settings_exist_and_have_the_defaults_of_the_page():
    assert len(FIELDS) > 40
    for row in FIELDS:
        (name,) = in_backticks(row["here"])
        assert ast.literal_eval(row["default"]) == OURS[name], name


def default_of(config_class: type, name: str) -> object:
    (field,) = (field for field in dataclasses.fields(config_class) if field.name == name)
    return field.default


@pytest.mark.parametrize(
    ("column", "config_class"),
    [
        ("TRL 1.12 PPO", PPOConfig),
        ("TRL 1.12 RLOO", trl.RLOOConfig),
        ("TRL 1.12 GRPO", trl.GRPOConfig),
        ("TRL 1.12", PPOConfig),
    ],
)
def test_defaults_of_trl_are_those_of_the_page(column, config_class):
    cells = [row[column] for row in FIELDS if row.get(column, "-") != "-"]
    assert len(cells) >= 10
    for cell in cells:
        name, value = re.fullmatch(r"`(\w+)` (.+)", cell).groups()
        assert ast.literal_eval(value) == default_of(config_class, name), cell


def test_the_yaml_of_the_page_is_a_configuration(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "ppo.yaml").write_text(block)
    config = parse_cli(TrainConfig, "train", ["--config", str(tmp_path / "ppo.yaml"), "--output_dir", "out"])
    assert (config.batch_size, config.mini_batch_size, config.micro_batch_size) == (256, 128, 64)
    assert config.optimizer.max_grad_norm is None
    (script,) = re.findall(r"```text\n(PPOConfig\(.*?\))\n```", PAGE, re.DOTALL)
    theirs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in ast.parse(script).body[0].value.keywords}
    assert theirs.keys() <= {field.name for field in dataclasses.fields(PPOConfig)}
    ours, accumulated = flatten(config), theirs.pop("gradient_accumulation_steps")
    assert theirs.pop("per_device_train_batch_size") * accumulated * 4 == config.batch_size
    assert accumulated / theirs["num_mini_batches"] == config.rl.gradient_accumulation_steps
    assert theirs.pop("reward_model_path") == config.value_model_path
    assert theirs.pop("stop_token") == "eos" and config.sampling.stop_ids((7,)) == (7,)
    assert {name: ours[name] for name in theirs} == theirs


def test_defects_have_their_tests_and_metrics_exist():
    for row in table_rows(section("Defects")):
        (place,) = in_backticks(row["test"])
        file, name = place.split("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), place
    named = {name for row in table_rows(section("Metrics")) for name in in_backticks(row["here"])}
    assert len(named) > 10 and named <= {metric.name for metric in metrics.METRICS}
