"""Compare two models, or one before and after training, on the same problems."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.errors import DataError
from jaxppo.evaluate.intervals import (
    bootstrap_mean,
    clustered_wilson,
    interval_text,
    mcnemar,
    paired_z,
)
from jaxppo.evaluate.plan_metrics import (
    Measures,
    Results,
    grouped,
    split_rows,
)
from jaxppo.evaluate.predictions import JudgedRow
from jaxppo.planning.datasets.rows import Row

TESTS: Mapping[str, str] = {
    "mcnemar": "exact McNemar test, two-sided",
    "sign": "exact sign test of the problems with more valid plans on one side, two-sided",
    "z": "z test of the mean difference per problem, two-sided",
}
"""The tests that a comparison may use, in words."""


_Pair = tuple[JudgedRow, JudgedRow]
"""The predictions of both models, A and B, for a row."""


def compare(a: Sequence[JudgedRow], b: Sequence[JudgedRow]) -> dict[str, Any]:
    """Test whether model B finds more valid plans than model A on the same rows.

    Pairs are rows, compared by the fraction of their predictions that is valid. The test depends on the number of
    predictions for a row:

    - one on each side: the exact two-sided McNemar test on the rows where only one of the two is valid;
    - several, equally many on both sides: the exact sign test on the rows with a difference;
    - more on one side: a z test on the mean difference. Chance alone favours one side in more rows there, though not
      on average.

    The difference B - A of the validity has the percentile bootstrap's 95 % interval over rows. With several splits or
    domains that is as many tests: p values are not corrected for their number.

    Args:
        a: judged rows of the first model, or of the model before training.
        b: those of the second one, in any order.

    Returns:
        {"n", "a", "b", "difference": {"mean", "low", "high", "n"}, "a_better", "b_better", "tied", "test", "p_value"},
        with "a" and "b" as validities, and "test" one of `TESTS`.

    Raises:
        DataError: the rows are not the same.
    """
    return _compare_pairs(_pair_rows(a, b))


def _compare_pairs(pairs: Sequence[_Pair]) -> dict[str, Any]:
    # In fractions of a row's predictions, so that a row counts once however many samples it has.
    differences = [_success_rate(b) - _success_rate(a) for a, b in pairs]
    a_better = sum(difference < 0 for difference in differences)
    b_better = sum(difference > 0 for difference in differences)
    test = _choose_test(pairs)
    return {
        "n": len(pairs),
        "a": _validity([a for a, _ in pairs]),
        "b": _validity([b for _, b in pairs]),
        "difference": bootstrap_mean(differences),
        "a_better": a_better,
        "b_better": b_better,
        "tied": len(pairs) - a_better - b_better,
        "test": test,
        # The exact sign test is McNemar's on the rows with a difference.
        "p_value": paired_z(differences) if test == "z" else mcnemar(a_better, b_better),
    }


def _num_valid(row: JudgedRow) -> int:
    return sum(prediction.outcome.verdict.valid for prediction in row.predictions)


def _success_rate(row: JudgedRow) -> float:
    return _num_valid(row) / len(row.predictions)


def _validity(rows: Sequence[JudgedRow]) -> dict[str, float]:
    num_valid = list(map(_num_valid, rows))
    num_predictions = [len(row.predictions) for row in rows]
    return clustered_wilson(num_valid, num_predictions)


def _choose_test(pairs: Sequence[_Pair]) -> str:
    # With the same number of predictions on both sides,
    # neither side is favoured by chance in more rows.
    sizes = {(len(a.predictions), len(b.predictions)) for a, b in pairs}
    if any(size_a != size_b for size_a, size_b in sizes):
        return "z"
    return "mcnemar" if sizes <= {(1, 1)} else "sign"


def compare_splits(a: Sequence[JudgedRow], b: Sequence[JudgedRow]) -> dict[str, Measures]:
    """Return `compare` for each split, and within it under "domains" for each domain."""
    results = {}
    # Paired before they are grouped: rows that one side lacks are an error, whatever their split.
    splits = grouped(_pair_rows(a, b), lambda pair: pair[0].row["split"])
    for split, pairs in splits.items():
        domains = grouped(pairs, lambda pair: pair[0].row["domain"])
        results[split] = _compare_pairs(pairs)
        results[split]["domains"] = {name: _compare_pairs(group) for name, group in domains.items()}
    return results


_Key = tuple[str, str]
"""Split and id: data may number the rows of every split from 0."""


def _key(row: Row) -> _Key:
    return str(row["split"]), str(row["id"])


def check_ids(rows: Sequence[Row]) -> None:
    """Raise a `DataError` unless every row of a split has a different id, as a comparison needs it."""
    # Two rows of one id could not be told apart on the other side.
    for (split, name), count in Counter(map(_key, rows)).items():
        if count > 1:
            raise DataError(
                f"compare: expected a different id for each row of split {split}, got {name} {count} times"
            )


def _rows_by_key(rows: Sequence[JudgedRow]) -> dict[_Key, JudgedRow]:
    check_ids([row.row for row in rows])
    return {_key(row.row): row for row in rows}


def _pair_rows(a: Sequence[JudgedRow], b: Sequence[JudgedRow]) -> list[_Pair]:
    """Pair the rows of both models by split and id, in the order of the first."""
    rows_a = _rows_by_key(a)
    rows_b = _rows_by_key(b)
    unpaired = rows_a.keys() ^ rows_b.keys()
    if unpaired:
        example = ", ".join(min(unpaired))
        raise DataError(
            f"compare: expected the same rows on both sides, got {len(unpaired)} on one alone, such as {example}"
        )
    return [(row, rows_b[key]) for key, row in rows_a.items()]


# ------------------------------------------------------------------------------------------------------------- terminal

COMPARISON_COLUMNS = (
    "split",
    "domain",
    "n",
    "A",
    "B",
    "B - A",
    "A better",
    "B better",
    "tied",
    "p",
)


def comparison_rows(comparison: Results) -> list[dict[str, str]]:
    """Return the rows of the terminal's table."""
    return split_rows(comparison, _cells)


def _cells(result: Mapping[str, Any]) -> dict[str, str]:
    # In percentage points.
    mean = 100 * result["difference"]["mean"]
    low = 100 * result["difference"]["low"]
    high = 100 * result["difference"]["high"]
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
