"""The comparison of two models, or of one before and after training, on the same problems."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.errors import DataError
from jaxppo.intervals import bootstrap_mean, clustered_wilson, mcnemar
from jaxppo.plan_answers import JudgedRow
from jaxppo.plan_metrics import grouped


def compare(a: Sequence[JudgedRow], b: Sequence[JudgedRow]) -> dict[str, Any]:
    """Whether model B finds more valid plans than model A on the same rows.

    Pairs are rows. The p value is of the exact two-sided McNemar test on the rows where only one of the two is valid;
    with several samples a row goes to the model with more valid ones (an exact sign test, the same for one sample). The
    difference B - A of the validity has the percentile bootstrap's 95 % interval over rows. With several splits or
    domains that is as many tests: p values are not corrected for their number.

    Args:
        a: judged rows of the first model, or of the model before training.
        b: those of the second one, in any order.

    Returns:
        {"n", "a", "b", "difference": {"mean", "low", "high", "n"}, "a_better", "b_better", "tied", "p_value"}, with "a"
        and "b" as validities.

    Raises:
        DataError: the rows, or how many answers they have, are not the same.
    """
    by_id = {row.row["id"]: row for row in b}
    _check_same_rows(a, by_id, len(b))
    pairs = [(row, by_id[row.row["id"]]) for row in a]
    counts, sizes = [(_n_valid(of_a), _n_valid(of_b)) for of_a, of_b in pairs], [len(row.answers) for row in a]
    differences = [(of_b - of_a) / size for (of_a, of_b), size in zip(counts, sizes, strict=True)]
    a_better, b_better = (sum(sign * value > 0 for value in differences) for sign in (-1, 1))
    return {
        "n": len(pairs),
        "a": clustered_wilson([of_a for of_a, _ in counts], sizes),
        "b": clustered_wilson([of_b for _, of_b in counts], sizes),
        "difference": bootstrap_mean(differences),
        "a_better": a_better,
        "b_better": b_better,
        "tied": len(pairs) - a_better - b_better,
        "p_value": mcnemar(a_better, b_better),
    }


def _n_valid(row: JudgedRow) -> int:
    return sum(answer.outcome.verdict.valid for answer in row.answers)


def compare_splits(a: Sequence[JudgedRow], b: Sequence[JudgedRow]) -> dict[str, dict[str, Any]]:
    """`compare` for each split, and within it under "domains" for each domain."""
    compare(a, b)  # refuses what does not belong together
    return {
        split: compare(*pair) | {"domains": {domain: compare(*both) for domain, both in _paired(*pair, "domain")}}
        for split, pair in _paired(a, b, "split")
    }


def _paired(a: Sequence[JudgedRow], b: Sequence[JudgedRow], column: str) -> list[tuple[str, tuple[Any, Any]]]:
    """The rows of both sides for each value of a column."""
    of_a, of_b = (grouped(rows, lambda row: row.row[column]) for rows in (a, b))
    return [(value, (of_a[value], of_b[value])) for value in of_a]


_SAME_COLUMNS = ("split", "domain", "domain_pddl", "problem_pddl")


def _check_same_rows(a: Sequence[JudgedRow], b: Mapping[str, JudgedRow], n_b: int) -> None:
    names = [row.row["id"] for row in a]
    if len(set(names)) < len(names) or len(b) < n_b:
        raise DataError("compare: expected a different id for each row, got an id twice")
    only = set(names) ^ b.keys()
    if only:
        raise DataError(f"compare: expected the same rows, got {len(only)} on one side only, such as {min(only)}")
    for row in a:
        other = b[row.row["id"]]
        differing = [name for name in _SAME_COLUMNS if row.row[name] != other.row[name]]
        if differing:
            raise DataError(f"compare: row {row.row['id']}: expected the same {differing[0]} on both sides")
        if len(row.answers) != len(other.answers):
            counts = f"{len(row.answers)} and {len(other.answers)}"
            raise DataError(f"compare: row {row.row['id']}: expected as many answers on both sides, got {counts}")
