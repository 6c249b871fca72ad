import ast
import re

import pytest

from jaxppo.run import metrics
from jaxppo.run.metrics import GROUPS, METRICS, find, outside, with_old_names
from tests import ROOT

FIELDS = ("unit", "meaning", "healthy")


def test_names_and_old_names_are_unique_and_no_two_metrics_collide():
    names = [metric.name for metric in METRICS]
    old_names = [metric.old_name for metric in METRICS if metric.old_name is not None]
    assert len(set(names + old_names)) == len(names) + len(old_names)
    assert [old_name for old_name in old_names if find(old_name) is not None] == []
    assert [find(name) for name in names] == list(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metric_is_described_and_its_text_survives_a_markdown_table(metric):
    for field in FIELDS:
        text = getattr(metric, field)
        assert text.strip() == text != ""
        assert not re.search(r"[|\n]", text)
        assert not re.search(r"[<>*_^]", re.sub(r"`[^`]+`", "", text)), f"{field}: formulas and names go in backticks"
    for field in ("meaning", "healthy"):
        assert getattr(metric, field).endswith(".")
    assert metrics.prefix_of(metric.name) in GROUPS


def test_bands_are_those_of_the_text():
    banded = [metric for metric in METRICS if metric.band is not None]
    assert len(banded) >= 15
    for metric in banded:
        low, high = metric.band
        assert low is not None or high is not None
        assert low is None or high is None or low <= high
        said = {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", metric.healthy)}
        said |= {-0.1} if "with either sign, within 0.1" in metric.healthy else set()
        # What cannot be negative has 0 as its lower limit, said or not.
        assert {low, high} - {None} <= said | {0.0}, metric.name


def test_advice_is_for_a_limit_of_the_band_and_is_part_of_a_sentence():
    for metric in METRICS:
        low, high = metric.band or (None, None)
        assert metric.too_low is None or low is not None, metric.name
        assert metric.too_high is None or high is not None, metric.name
        assert not metric.alarm or metric.too_low or metric.too_high, metric.name
        for advice in filter(None, (metric.too_low, metric.too_high, metric.watch and metric.watch.advice)):
            assert advice[0] != advice[0].upper() or advice.startswith("VAL"), advice
            assert not advice.endswith("."), advice


def test_outside_says_at_which_side_of_the_band_a_value_is():
    assert [outside(value, (0.5, 0.95)) for value in (0.4, 0.7, 0.99)] == ["below 0.5", "", "above 0.95"]
    assert [outside(9.0, band) for band in (None, (0.0, None), (None, 8.0))] == ["", "", "above 8"]


def test_names_of_metrics_in_the_text_are_names_of_metrics():
    text = " ".join(getattr(metric, field) for metric in METRICS for field in FIELDS)
    quoted = [word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"[\w<>]+/[\w<>/]+", code)]
    assert quoted
    assert [name for name in quoted if find(name) is None] == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("objective/kl", "objective/kl"),
        ("step", "step"),
        ("reward/mean", "reward/mean"),
        ("reward/politeness", "reward/<part>"),
        ("eval/test_longer/validity", "eval/<split>/validity"),
        ("eval/test/executability", None),
        ("eval/validity", None),
        ("eval//validity", None),
        ("reward/", None),
        ("reward/a/b", None),
        ("reward", None),
        ("ppo/mean_scores", None),
        ("", None),
    ],
)
def test_find_knows_names_and_families(name, found):
    metric = find(name)
    assert (None if metric is None else metric.name) == found


def test_with_old_names_adds_them_and_keeps_the_rest():
    record = {"step": 3, "objective/scores": 0.5, "value/explained_variance": None, "reward/mine": 1.0, "lr": 1e-5}
    before = dict(record)
    assert with_old_names(record) == {
        **before,
        "ppo/mean_scores": 0.5,
        "ppo/val/var_explained": None,
        "ppo/learning_rate": 1e-5,
    }
    assert record == before


def logged_names():
    """String constants of the package that look like a metric, with the files they stand in."""
    pattern = re.compile(rf"({'|'.join(filter(None, GROUPS))})/\w+")
    for path in sorted((ROOT / "jaxppo").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.fullmatch(node.value):
                yield path.name, node.value


def test_every_name_that_training_logs_is_defined():
    logged, supervised = set(logged_names()), ("sft.py", "supervised.py")
    names = {(file, name) for file, name in logged if file not in ("metrics.py", *supervised)}
    assert "objective/kl" in {name for _, name in names}
    others = {name for file, name in logged if file in supervised}
    assert [(file, name) for file, name in sorted(names) if find(name) is None and name not in others] == []
