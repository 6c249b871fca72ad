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
PROSE = re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE)
OURS = flatten(TrainConfig())
OLD_DEFAULTS = {
    "exp_name": "",
    "seed": 0,
    "log_with": None,
    "task_name": None,
    "model_name": "gpt2",
    "query_dataset": "stanfordnlp/imdb",
    "reward_model": "sentiment-analysis:lvwerra/distilbert-imdb",
    "remove_unused_columns": True,
    "tracker_kwargs": {},
    "accelerator_kwargs": {},
    "project_kwargs": {},
    "tracker_project_name": "trl",
    "push_to_hub_if_best_kwargs": {},
    "steps": 20000,
    "learning_rate": 1.41e-5,
    "adap_kl_ctrl": True,
    "init_kl_coef": 0.2,
    "kl_penalty": "kl",
    "target": 6.0,
    "horizon": 10000.0,
    "gamma": 1.0,
    "lam": 0.95,
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "vf_coef": 0.1,
    "batch_size": 128,
    "forward_batch_size": None,
    "mini_batch_size": 128,
    "gradient_accumulation_steps": 1,
    "world_size": None,
    "ppo_epochs": 4,
    "max_grad_norm": None,
    "optimize_cuda_cache": None,
    "optimize_device_cache": False,
    "early_stopping": False,
    "target_kl": 1.0,
    "compare_steps": 1,
    "ratio_threshold": 10.0,
    "use_score_scaling": False,
    "use_score_norm": False,
    "score_clip": None,
    "whiten_rewards": False,
    "gradient_checkpointing": False,
    "is_encoder_decoder": None,
    "is_peft_model": None,
    "backward_batch_size": None,
    "global_backward_batch_size": None,
    "global_batch_size": None,
    "dataset_num_proc": None,
}
"""`PPOConfig` of TRL 0.11.4."""


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
    [declared_by_trl(PPOConfig), declared_by_trl(trl.RLOOConfig), declared_by_trl(trl.GRPOConfig), set(OLD_DEFAULTS)],
    ids=["ppo", "rloo", "grpo", "old"],
)
def test_every_field_of_trl_has_its_place(names):
    assert len(names) > 30
    fields = {text.split()[0] for text in in_backticks(section("Field by field"))}
    assert sorted(names - fields) == []


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row["here"].strip("`"))
def test_our_settings_exist_and_have_the_defaults_of_the_page(row):
    (name,) = in_backticks(row["here"])
    assert name in OURS
    assert ast.literal_eval(row["default"]) == OURS[name]


def default_of(config_class: type, name: str) -> object:
    (field,) = (field for field in dataclasses.fields(config_class) if field.name == name)
    return field.default


@pytest.mark.parametrize(
    ("column", "config_class"),
    [
        ("TRL 1.12 PPO", PPOConfig),
        ("TRL 1.12 RLOO", trl.RLOOConfig),
        ("TRL 1.12 GRPO", trl.GRPOConfig),
        ("TRL 0.11", None),
        ("TRL 1.12", PPOConfig),
    ],
)
def test_defaults_of_trl_are_those_of_the_page(column, config_class):
    cells = [row[column] for row in FIELDS if row.get(column, "-") != "-"]
    assert len(cells) > 10
    for cell in cells:
        name, value = re.fullmatch(r"`(\w+)` (.+)", cell).groups()
        expected = OLD_DEFAULTS[name] if config_class is None else default_of(config_class, name)
        assert ast.literal_eval(value) == expected, cell


def test_settings_named_in_the_text_exist():
    """Every `--flag`, and every setting named with a value in the other parts of the page."""
    flags = set(re.findall(r"--([a-z_]+)", PAGE))
    assert {"config", "dry_run", "old_metric_names", "resume"} <= flags <= OURS.keys()
    ours = {
        *("value_learning_rate", "entropy_coef", "output_min_length", "input_min_text_length"),
        *("input_max_text_length", "adam_beta2", "max_bad_updates", "val_timeout_s"),
        *("eval_temperature", "eval_top_k", "eval_top_p", "logprobs", "score_position", "stop_token", "cliprange_high"),
    }
    named = {text.split()[0] for text in in_backticks(PROSE)}
    assert sorted(ours - named) == sorted(ours - OURS.keys()) == []


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


def test_every_defect_has_its_test():
    tests = (PATH.parent.parent / "tests" / "test_defects.py").read_text(encoding="utf-8")
    existing = re.findall(r"^def (test_d\d\d_\w+)", tests, re.MULTILINE)
    named = [name for row in table_rows(section("Defects")) for name in in_backticks(row["test"])]
    assert named == existing
    numbers = {int(row[""].removeprefix("D")) for row in table_rows(section("Defects"))}
    assert numbers == set(range(1, 17))


def test_metrics_named_as_ours_exist():
    known = {metric.name for metric in metrics.METRICS}
    named = [name for row in table_rows(section("Metrics")) for name in in_backticks(row["here"])]
    assert len(named) > 15
    assert [name for name in named if name not in known] == []


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    titles = re.findall(r"^#+ (.+)$", PROSE, re.MULTILINE)
    headings = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    for link in links:
        if link.startswith("#"):
            assert link[1:] in headings
        elif "://" not in link:
            assert (PATH.parent / link).exists(), link


def test_the_step_api_example_is_short():  # test_docs.py runs it
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block.count("\n") < 45
