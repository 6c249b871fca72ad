"""Compare two models, or one before and after training, on the same problems."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxppo.errors import DataError
from jaxppo.evaluate.intervals import bootstrap_mean, clustered_wilson, interval_text, mcnemar, paired_z
from jaxppo.evaluate.plan_metrics import grouped, split_rows
from jaxppo.evaluate.predictions import JudgedRow
from jaxppo.planning.datasets.rows import Row

TESTS: Mapping[str, str] = {
    "mcnemar": "exact McNemar test, two-sided",
    "sign": "exact sign test of the problems with more valid plans on one side, two-sided",
    "z": "z test of the mean difference per problem, two-sided",
}
"""The tests that a comparison may use, in words."""


def compare(a: Sequence[JudgedRow], b: Sequence[JudgedRow]) -> dict[str, Any]:
    """Test whether model B finds more valid plans than model A on the same rows.

    Pairs are rows, compared by the fraction of their predictions that is valid. With one prediction on each side the p
    value is of the exact two-sided McNemar test on the rows where only one of the two is valid; with several, equally
    many on both sides, of the exact sign test on the rows with a difference (the same for one). With more predictions
    on one side chance alone favours one side in more rows, though not on average: there it is of a z test on the mean
    difference. The difference B - A of the validity has the percentile bootstrap's 95 % interval over rows. With
    several splits or domains that is as many tests: p values are not corrected for their number.

    Args:
        a: judged rows of the first model, or of the model before training.
        b: those of the second one, in any order.

    Returns:
        {"n", "a", "b", "difference": {"mean", "low", "high", "n"}, "a_better", "b_better", "tied", "test", "p_value"},
        with "a" and "b" as validities, and "test" one of `TESTS`.

    Raises:
        DataError: the rows are not the same.
    """
    by_name = _by_name(b)
    _check_same_rows(_by_name(a), by_name)
    pairs = [(row, by_name[_name(row.row)]) for row in a]
    differences = [
        _n_valid(of_b) / len(of_b.predictions) - _n_valid(of_a) / len(of_a.predictions) for of_a, of_b in pairs
    ]
    a_better, b_better = (sum(sign * value > 0 for value in differences) for sign in (-1, 1))
    test = _test(pairs)
    return {
        "n": len(pairs),
        "a": _validity([of_a for of_a, _ in pairs]),
        "b": _validity([of_b for _, of_b in pairs]),
        "difference": bootstrap_mean(differences),
        "a_better": a_better,
        "b_better": b_better,
        "tied": len(pairs) - a_better - b_better,
        "test": test,
        "p_value": paired_z(differences) if test == "z" else mcnemar(a_better, b_better),
    }


def _n_valid(row: JudgedRow) -> int:
    return sum(prediction.outcome.verdict.valid for prediction in row.predictions)


def _validity(rows: Sequence[JudgedRow]) -> dict[str, float]:
    return clustered_wilson([_n_valid(row) for row in rows], [len(row.predictions) for row in rows])


def _test(pairs: Sequence[tuple[JudgedRow, JudgedRow]]) -> Literal["mcnemar", "sign", "z"]:
    sizes = {(len(of_a.predictions), len(of_b.predictions)) for of_a, of_b in pairs}
    if any(size_a != size_b for size_a, size_b in sizes):
        return "z"
    return "mcnemar" if sizes <= {(1, 1)} else "sign"


def compare_splits(a: Sequence[JudgedRow], b: Sequence[JudgedRow]) -> dict[str, dict[str, Any]]:
    """Return `compare` for each split, and within it under "domains" for each domain."""
    _check_same_rows(_by_name(a), _by_name(b))
    return {
        split: compare(*pair) | {"domains": {domain: compare(*both) for domain, both in _paired(*pair, "domain")}}
        for split, pair in _paired(a, b, "split")
    }


def _paired(a: Sequence[JudgedRow], b: Sequence[JudgedRow], column: str) -> list[tuple[str, tuple[Any, Any]]]:
    """Return the rows of both models for each value of a column."""
    of_a, of_b = (grouped(rows, lambda row: row.row[column]) for rows in (a, b))
    return [(value, (of_a[value], of_b[value])) for value in of_a]


_Name = tuple[str, str]
"""Split and id: data may number the rows of every split from 0."""

_SAME_COLUMNS = ("domain", "domain_pddl", "problem_pddl")


def _name(row: Row) -> _Name:
    return str(row["split"]), str(row["id"])


def check_ids(rows: Sequence[Row]) -> None:
    """Raise a `DataError` unless every row of a split has a different id, as a comparison needs it."""
    for (split, name), count in Counter(map(_name, rows)).items():
        if count > 1:
            raise DataError(f"compare: expected a different id for each row of split {split}, got {name} {count} times")


def _by_name(rows: Sequence[JudgedRow]) -> dict[_Name, JudgedRow]:
    check_ids([row.row for row in rows])
    return {_name(row.row): row for row in rows}


def _check_same_rows(a: Mapping[_Name, JudgedRow], b: Mapping[_Name, JudgedRow]) -> None:
    only = a.keys() ^ b.keys()
    if only:
        such = ", ".join(min(only))
        raise DataError(f"compare: expected the same rows on both sides, got {len(only)} on one alone, such as {such}")
    for name, row in a.items():
        differing = [column for column in _SAME_COLUMNS if row.row[column] != b[name].row[column]]
        if differing:
            raise DataError(f"compare: row {', '.join(name)}: expected the same {differing[0]} on both sides")


# ------------------------------------------------------------------------------------------------------------- terminal

COMPARISON_COLUMNS = ("split", "domain", "n", "A", "B", "B - A", "A better", "B better", "tied", "p")


def comparison_rows(comparison: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the terminal's table."""
    return split_rows(comparison, _cells)


def _cells(result: Mapping[str, Any]) -> dict[str, str]:
    mean, low, high = (100 * result["difference"][name] for name in ("mean", "low", "high"))
    return {
        "n": str(result["n"]),
        "A": interval_text(result["a"]),
        "B": interval_text(result["b"]),
        "B - A": f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]",
        "A better": str(result["a_better"]),
        "B better": str(result["b_better"]),
        "tied": str(result["tied"]),
        "p": f"{result['p_value']:.2g}",
    }
