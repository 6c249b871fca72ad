import re

import pytest

from jaxppo.run import metrics
from jaxppo.run.metrics import GROUPS, METRICS, find, side_of_band

FIELDS = ("unit", "meaning", "healthy")


def test_names_and_old_names_are_unique():
    names = [metric.name for metric in METRICS]
    old_names = [metric.old_name for metric in METRICS if metric.old_name is not None]
    assert len(set(names + old_names)) == len(names) + len(old_names)
    assert [old_name for old_name in old_names if find(old_name) is not None] == []
    assert [find(name) for name in names] == list(METRICS)


def test_metrics_are_described_in_cells_of_a_table_and_with_names_of_metrics():
    for metric in METRICS:
        for field in FIELDS:
            text = getattr(metric, field)
            assert text.strip() == text != "", metric.name
            assert not re.search(r"[|\n]", text), metric.name
        assert metrics.prefix_of(metric.name) in GROUPS
    # Names of metrics in the texts are names of metrics.
    text = " ".join(getattr(metric, field) for metric in METRICS for field in FIELDS)
    quoted = [word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"[\w<>]+/[\w<>/]+", code)]
    assert quoted
    assert [name for name in quoted if find(name) is None and not name.startswith("docs/")] == []


def test_advice_is_for_a_limit_of_the_band():
    assert sum(metric.band is not None for metric in METRICS) >= 15
    for metric in METRICS:
        low, high = metric.band or (None, None)
        assert low is None or high is None or low <= high, metric.name
        assert metric.too_low is None or low is not None, metric.name
        assert metric.too_high is None or high is not None, metric.name
        assert not metric.alarm or metric.too_low or metric.too_high, metric.name


def test_outside_says_at_which_side_of_the_band_a_value_is():
    assert [side_of_band(value, (0.5, 0.95)) for value in (0.4, 0.7, 0.99)] == ["below 0.5", "", "above 0.95"]
    assert [side_of_band(9.0, band) for band in (None, (0.0, None), (None, 8.0))] == ["", "", "above 8"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("objective/kl", "objective/kl"),
        ("reward/mean", "reward/mean"),
        ("reward/politeness", "reward/<part>"),
        ("eval/test_longer/validity", "eval/<split>/validity"),
        ("eval//validity", None),
        ("reward/", None),
        ("reward", None),
        ("ppo/mean_scores", None),
    ],
)
def test_find_knows_names_and_families(name, found):
    metric = find(name)
    assert (None if metric is None else metric.name) == found
