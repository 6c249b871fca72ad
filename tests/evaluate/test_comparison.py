"""Two models on the same rows."""

import json
from statistics import fmean, stdev

import pytest
from scipy import stats  # comes with jax

from jaxppo.errors import DataError
from jaxppo.evaluate.comparison import COMPARISON_COLUMNS, TESTS, compare, compare_splits, comparison_rows
from jaxppo.evaluate.intervals import wilson
from jaxppo.evaluate.predictions import Prediction, judge_rows
from tests.lamps import judged, lamp_row, several

RIGHT, WRONG = "light a ; light b", "light a"


def model(outcomes, **columns):
    return judged(*(RIGHT if valid else WRONG for valid in outcomes), **columns)


def test_compare_by_hand():
    a = model([1] * 10 + [1] * 2 + [0] * 9 + [0] * 4)
    b = model([1] * 10 + [0] * 2 + [1] * 9 + [0] * 4)
    result = compare(a, b)
    assert (result["n"], result["a_better"], result["b_better"], result["tied"]) == (25, 2, 9, 14)
    assert (result["a"], result["b"]) == (wilson(12, 25), wilson(19, 25))
    assert result["difference"]["mean"] == pytest.approx(7 / 25)
    assert result["difference"]["low"] < 7 / 25 < result["difference"]["high"]
    assert result["p_value"] == pytest.approx(stats.binomtest(2, 11).pvalue)
    assert result["test"] == "mcnemar" and result["test"] in TESTS
    assert json.loads(json.dumps(result)) == result
    other, itself = compare(b, a), compare(a, a[::-1])  # rows are paired by id
    assert other["p_value"] == result["p_value"] and other["a_better"] == result["b_better"]
    assert other["difference"]["mean"] == -result["difference"]["mean"]
    assert itself["p_value"] == 1.0 and itself["tied"] == 25


def test_compare_of_several_samples_counts_each_problem_once_and_of_different_numbers_by_rates():
    a = several([RIGHT, WRONG, WRONG], [WRONG] * 3, [RIGHT] * 3, [RIGHT] * 3)
    b = several([RIGHT, RIGHT, WRONG], [RIGHT] * 3, [RIGHT] * 3, [WRONG] * 3)
    result = compare(a, b)
    assert (result["a_better"], result["b_better"], result["tied"]) == (1, 2, 1)
    assert result["difference"]["mean"] == pytest.approx((1 / 3 + 1 + 0 - 1) / 4)
    assert result["n"] == 4 and result["a"]["samples"] == 12
    assert result["p_value"] == pytest.approx(stats.binomtest(1, 3).pvalue) and result["test"] == "sign"
    # Different numbers of answers are compared by rates.
    a = several([RIGHT], [WRONG], [RIGHT], [WRONG])
    b = several([RIGHT, RIGHT], [RIGHT, WRONG], [WRONG, WRONG], [WRONG] * 3)
    result = compare(a, b)
    assert (result["a_better"], result["b_better"], result["tied"]) == (1, 1, 2)
    assert result["difference"]["mean"] == pytest.approx((0 + 0.5 - 1 + 0) / 4)
    assert (result["a"]["n"], result["b"]["n"], result["b"]["samples"]) == (4, 4, 9)
    differences = [0, 0.5, -1, 0]
    z = fmean(differences) / (stdev(differences) / 2)
    assert result["test"] == "z" and result["p_value"] == pytest.approx(2 * stats.norm.sf(abs(z)))


def test_comparison_rows_list_splits_and_several_domains():
    rows = [lamp_row(f"p{i}", domain="xy"[i % 2]) for i in range(4)]
    a, b = (judge_rows(rows, [[Prediction(text)] for text in texts]) for texts in ([WRONG] * 4, [RIGHT] * 3 + [WRONG]))
    lines = comparison_rows(compare_splits(a, b))
    assert [(line["split"], line["domain"]) for line in lines] == [("test", "all"), ("test", "x"), ("test", "y")]
    assert set(lines[0]) == set(COMPARISON_COLUMNS)
    assert lines[0]["B - A"].startswith("+75.0 [") and lines[0]["p"] == "0.25" and lines[1]["B better"] == "2"
    assert lines[0]["A"] == "0.0% [0.0%, 49.0%]"


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [
        (model([1, 0]), model([1]), "p1"),
        (model([1]), model([1], split="rl"), "rl, p0"),
        (model([1]) * 2, model([1]), "p0"),
        (model([1]), model([1]) * 2, "p0"),
    ],
)
def test_compare_refuses_other_rows(a, b, named):
    for function in (compare, compare_splits):
        with pytest.raises(DataError, match=named):
            function(a, b)


def test_compare_splits_keeps_splits_and_domains_apart():
    rows = [
        lamp_row(f"{split}-{domain}-{i}", split=split, domain=domain)
        for split in ("test", "longer")
        for domain in ("x", "y")
        for i in range(3)
    ]
    a = judge_rows(rows, [[Prediction(RIGHT)] for _ in rows])
    b = judge_rows(rows, [[Prediction(WRONG if row["id"].startswith("longer-y") else RIGHT)] for row in rows])
    result = compare_splits(a, b[::-1])
    assert list(result) == ["test", "longer"]
    assert result["test"]["tied"] == 6 and result["longer"]["a_better"] == 3
    assert result["longer"]["domains"]["y"]["difference"]["mean"] == -1.0
    assert result["longer"]["domains"]["x"]["tied"] == result["longer"]["domains"]["x"]["n"] == 3
    # Two splits may use the same ids.
    first = [*model([1, 0]), *model([0, 0], split="rl")]
    compared = compare_splits(first, [*model([1, 1], split="rl"), *model([1, 1])])
    assert [(split, cell["a_better"], cell["b_better"]) for split, cell in compared.items()] == [
        ("test", 0, 1),
        ("rl", 0, 2),
    ]
