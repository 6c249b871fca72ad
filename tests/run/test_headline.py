"""Which five numbers a run shows, and what is said of them."""

import math
import random

import pytest

from jaxppo.run import headline

PLAN_RECORD = dict.fromkeys(
    [
        *("objective/scores", "objective/scores_std", "objective/kl", "reward/plan_valid", "completions/mean_length"),
        *("value/explained_variance", "grad_norm", "lr", "throughput/samples_per_s"),
    ],
    0.5,
)


def without(*names):
    return {name: value for name, value in PLAN_RECORD.items() if name not in names}


@pytest.mark.parametrize(
    ("record", "labels"),
    [
        (PLAN_RECORD, ["reward", "valid", "kl", "value fit", "samples/s"]),
        (without("reward/plan_valid"), ["reward", "reward std", "kl", "value fit", "samples/s"]),
        (
            without("value/explained_variance") | {"reward/zero_variance_groups": 0.5},
            ["reward", "valid", "kl", "equal groups", "samples/s"],
        ),
        (without("objective/kl"), ["reward", "valid", "length", "value fit", "samples/s"]),  # kl_coef 0
        (
            dict.fromkeys(["loss", "accuracy", "margin", "lr", "grad_norm", "time/step_s"], 0.5),
            ["loss", "accuracy", "lr", "grad norm", "s/step"],
        ),
        ({}, []),
    ],
)
def test_numbers_are_five_that_the_record_has(record, labels):
    assert list(headline.numbers(record)) == labels
    assert set(headline.numbers(record).values()) <= {0.5}


NOISE = [random.Random(0).uniform(-1, 1) for _ in range(40)]


@pytest.mark.parametrize(
    ("label", "healthy", "odd", "named"),
    [
        ("reward", NOISE, [-value / 2 - i for i, value in enumerate(NOISE)], "falling"),
        ("loss", [-i for i in range(20)], list(range(20)), "rising"),
        ("valid", [0.1] + [0.0] * 7, [0.1] + [0.0] * 8, "0 for long"),
        ("reward std", [0.1], [0.0], "near 0"),
        ("kl", [30.0], [30.1], "kl_coef"),
        ("kl", [-0.9], [-1.1], "below -1"),
        ("value fit", [-3.0] * 7, [-3.0] * 8, "value_learning_rate"),
        ("equal groups", [0.5], [0.6], "num_generations"),
        ("grad norm", [1.0] * 7 + [9.0], [1.0] * 7 + [11.0], "max_grad_norm"),
        ("kl", [None, math.inf, 1.0], [1.0, math.nan], "not a number"),
        ("kl", [1.0], [1.0, None], "not a number"),
    ],
)
def test_hint_tells_healthy_from_odd(label, healthy, odd, named):
    assert headline.hint(label, healthy) == ""
    assert named in headline.hint(label, odd)


@pytest.mark.parametrize(("label", "values"), [("samples/s", [3.0]), ("something else", [3.0]), ("kl", [])])
def test_hint_says_nothing_of_what_is_neither(label, values):
    assert headline.hint(label, values) is None
