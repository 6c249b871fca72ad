import re

import pytest

from jaxppo.run import metrics
from jaxppo.run.metrics import GROUPS, METRICS, find, outside, with_old_names

FIELDS = ("unit", "meaning", "healthy")


def test_names_and_old_names_are_unique_and_no_two_metrics_collide():
    names = [metric.name for metric in METRICS]
    old_names = [metric.old_name for metric in METRICS if metric.old_name is not None]
    assert len(set(names + old_names)) == len(names) + len(old_names)
    assert [old_name for old_name in old_names if find(old_name) is not None] == []
    assert [find(name) for name in names] == list(METRICS)


def test_metrics_are_described_and_their_texts_survive_a_markdown_table():
    for metric in METRICS:
        for field in FIELDS:
            text = getattr(metric, field)
            assert text.strip() == text != "", metric.name
            assert not re.search(r"[|\n]", text), metric.name
            assert not re.search(r"[<>*_^]", re.sub(r"`[^`]+`", "", text)), f"{metric.name}: formulas go in backticks"
        assert metrics.prefix_of(metric.name) in GROUPS
    # Names of metrics in the texts are names of metrics.
    text = " ".join(getattr(metric, field) for metric in METRICS for field in FIELDS)
    quoted = [word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"[\w<>]+/[\w<>/]+", code)]
    assert quoted
    assert [name for name in quoted if find(name) is None] == []


def test_bands_are_those_of_the_text_and_advice_is_for_a_limit_of_the_band():
    assert sum(metric.band is not None for metric in METRICS) >= 15
    for metric in METRICS:
        low, high = metric.band or (None, None)
        assert low is None or high is None or low <= high, metric.name
        numbers = {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", metric.healthy)}
        numbers |= {-0.1} if "with either sign, within 0.1" in metric.healthy else set()
        # What cannot be negative has 0 as its lower limit, said or not.
        assert {low, high} - {None} <= numbers | {0.0}, metric.name
        assert metric.too_low is None or low is not None, metric.name
        assert metric.too_high is None or high is not None, metric.name
        assert not metric.alarm or metric.too_low or metric.too_high, metric.name


def test_outside_says_at_which_side_of_the_band_a_value_is():
    assert [outside(value, (0.5, 0.95)) for value in (0.4, 0.7, 0.99)] == ["below 0.5", "", "above 0.95"]
    assert [outside(9.0, band) for band in (None, (0.0, None), (None, 8.0))] == ["", "", "above 8"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("objective/kl", "objective/kl"),
        ("reward/mean", "reward/mean"),
        ("reward/politeness", "reward/<part>"),
        ("eval/test_longer/validity", "eval/<split>/validity"),
        ("eval/test/executability", None),
        ("eval//validity", None),
        ("reward/", None),
        ("reward/a/b", None),
        ("reward", None),
        ("ppo/mean_scores", None),
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
