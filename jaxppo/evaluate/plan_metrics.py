"""Measure judged plans, per split, domain and plan length, with intervals.

Every measure is a mean over problems of the average over a problem's predictions: a problem counts once however many
samples or seeds it has, and intervals are over problems. Text that is no plan counts as a failure, in every
denominator.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from math import comb, inf
from statistics import fmean, stdev
from typing import Any, TypeVar

from jaxppo.config import EvalConfig
from jaxppo.evaluate.intervals import clustered_wilson, interval_text, mean_interval
from jaxppo.evaluate.plan_scores import FRACTIONS, OVERLAPS, RATES
from jaxppo.evaluate.predictions import JudgedPrediction, JudgedRow
from jaxppo.planning.language.plans import PlanError
from jaxppo.reward_functions.plan import VALIDATOR_FAILURES

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

LENGTH_EDGES = EvalConfig().length_edges
"""Where the bins of the reference's length begin; the last one has no end."""

VALID = "valid"
"""The key of plans without an error in the counts of errors."""

Measures = dict[str, Any]
"""What is measured on some rows, as from `measure`."""

Results = Mapping[str, Mapping[str, Any]]
"""{split: what is measured on its rows}."""

# ------------------------------------------------------------------------------------------------------------ many rows


def measure(judged: Sequence[JudgedRow]) -> Measures:
    """Compute all measures of some rows.

    Returns:
        `RATES` as {"rate", "low", "high", "n"} (`clustered_wilson`); `FRACTIONS`, `OVERLAPS` and "length_ratio" as
        {"mean", "low", "high", "n"} (`mean_interval` of one value per problem); "pass_at_k" with such a mean for
        k = 1, 2, 4, ... as long as every problem has that many samples;
        "errors" {reason: predictions}; "mean_reward" and "validator_failed" (means over predictions); "rows" and
        "answers". A rate or mean that no row has is None. n counts problems.
    """
    outcomes = [prediction.outcome for prediction in _predictions(judged)]
    # No row at all gives means of 0, not an error: a split may be empty.
    count = max(1, len(outcomes))
    failures = sum(outcome.verdict.error in VALIDATOR_FAILURES for outcome in outcomes)
    return {
        "rows": len(judged),
        "answers": len(outcomes),
        **{name: _rate(judged, name) for name in RATES},
        **{name: _mean(judged, name) for name in (*FRACTIONS, *OVERLAPS)},
        # A valid plan may be any times as long as the reference.
        "length_ratio": _mean(judged, "length_ratio", inf),
        "pass_at_k": _pass_at_k(judged),
        "errors": error_counts(judged),
        "mean_reward": sum(outcome.reward for outcome in outcomes) / count,
        "validator_failed": failures / count,
        **_seed_measures(judged),
    }


def _predictions(rows: Sequence[JudgedRow]) -> list[JudgedPrediction]:
    return list(chain.from_iterable(row.predictions for row in rows))


def _rate(rows: Sequence[JudgedRow], name: str) -> dict[str, float] | None:
    scores = _measured_scores(rows, name)
    if not scores:
        return None
    successes = [int(sum(values)) for values in scores]
    return clustered_wilson(successes, list(map(len, scores)))


def _mean(rows: Sequence[JudgedRow], name: str, upper: float = 1.0) -> Measures | None:
    scores = _measured_scores(rows, name)
    if not scores:
        return None
    return mean_interval(list(map(fmean, scores)), (0.0, upper))


def _measured_scores(rows: Sequence[JudgedRow], name: str) -> list[list[float]]:
    """Return the scores of each row that has any."""
    scores = []
    for row in rows:
        values = [value for scores in row.scores if (value := scores[name]) is not None]
        if values:
            scores.append(values)
    return scores


def error_counts(rows: Sequence[JudgedRow]) -> dict[str, int]:
    """Count the valid predictions, and the others by reason; reasons that do not occur have a count of 0."""
    counts: Counter[str] = Counter()
    for prediction in _predictions(rows):
        error = prediction.outcome.verdict.error
        counts[VALID if error is None else error.value] += 1
    # Always all reasons, in one order: results of
    # different models are compared and drawn side by side.
    names = [VALID, *map(str, PlanError)]
    return {name: counts[name] for name in names}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Compute the probability that one of k samples is right, drawn from n with c right: 1 - C(n - c, k) / C(n, k).

    An unbiased estimate for k independent samples, k <= n.

    Source: Chen et al., Evaluating Large Language Models Trained on Code (2021), equation 1.
    """
    return 1.0 - comb(n - c, k) / comb(n, k)


def _pass_at_k(rows: Sequence[JudgedRow]) -> dict[str, Measures]:
    """Compute pass@k per seed, averaged over a problem's seeds.

    Seeds are different models: two samples, one of each, are no two tries of one model. So every number is computed
    within a seed first.
    """
    problems = [_valid_by_seed(row).values() for row in rows]
    # k doubles for as long as every seed of every problem has
    # that many samples: each k is a mean over the same rows.
    smallest = min(map(len, chain.from_iterable(problems)), default=0)
    measures = {}
    for power in range(smallest.bit_length()):
        k = 2**power
        means = []
        for samples_by_seed in problems:
            estimates = [pass_at_k(len(valid), sum(valid), k) for valid in samples_by_seed]
            means.append(fmean(estimates))
        measures[str(k)] = mean_interval(means, (0.0, 1.0))
    return measures


def _valid_by_seed(row: JudgedRow) -> dict[int, list[bool]]:
    """Return which samples of each seed are valid."""
    # Samples of one seed need not be neighbours: lines of a file come in any order.
    valid_by_seed: dict[int, list[bool]] = {}
    for sample in row.predictions:
        valid_by_seed.setdefault(sample.prediction.seed, []).append(sample.outcome.verdict.valid)
    return valid_by_seed


def _seed_measures(rows: Sequence[JudgedRow]) -> Measures:
    """Compute the validity of each seed and its standard deviation over seeds, where there are several.

    All intervals are over problems: only this says how much training runs differ from one another.
    """
    rates_by_seed: dict[int, list[float]] = {}
    # A problem counts once for each seed, however many samples it has.
    for row in rows:
        for seed, valid in _valid_by_seed(row).items():
            rates_by_seed.setdefault(seed, []).append(fmean(valid))
    if len(rates_by_seed) < 2:
        return {}
    validity = {str(seed): fmean(rates) for seed, rates in sorted(rates_by_seed.items())}
    return {"validity_by_seed": validity, "validity_sd_over_seeds": stdev(validity.values())}


# -------------------------------------------------------------------------------------------------------- whole results


def plan_results(
    judged: Sequence[JudgedRow], edges: Sequence[int] = LENGTH_EDGES
) -> dict[str, Measures]:
    """Return {split: `split_results` of its rows}, by the column `split` of each row."""
    splits = grouped(judged, lambda row: row.row["split"])
    return {split: split_results(rows, edges) for split, rows in splits.items()}


def split_results(judged: Sequence[JudgedRow], edges: Sequence[int] = LENGTH_EDGES) -> Measures:
    """Compute the measures of some rows, and of each of their domains and bins of the reference's length.

    Args:
        judged: the rows.
        edges: lengths at which the bins begin, increasing.

    Returns:
        measures | {"domains": {domain: measures | {"bins": {bin: measures}}}, "bins": {bin: measures}}, with measures
        as from `measure`.
    """
    EvalConfig(length_edges=tuple(edges))  # which checks them
    measures = measure(judged)
    # Sorted, as results must not depend on the order of the rows.
    domains = sorted(grouped(judged, lambda row: row.row["domain"]).items())
    measures["domains"] = {
        name: measure(rows) | {"bins": _measure_bins(rows, edges)} for name, rows in domains
    }
    measures["bins"] = _measure_bins(judged, edges)
    return measures


def _measure_bins(rows: Sequence[JudgedRow], edges: Sequence[int]) -> dict[str, Measures]:
    # In the order of the lengths, without bins that no row is in.
    groups = grouped(rows, lambda row: bisect_right(edges, row.reference_length))
    return {_bin_name(edges, place): measure(group) for place, group in sorted(groups.items())}


def _bin_name(edges: Sequence[int], place: int) -> str:
    """Name the bin of lengths with so many edges at or below them: "5-8"; the last one is open, "129+"."""
    # Every length is in a bin, whatever the first edge is.
    first = edges[place - 1] if place else 0
    return f"{first}-{edges[place] - 1}" if place < len(edges) else f"{first}+"


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by their key, in the order of its first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


# ------------------------------------------------------------------------------------------------------------- terminal

TABLE_COLUMNS = (
    "split",
    "domain",
    "n",
    "valid",
    "exec",
    "prefix",
    "goal",
    "LCCS",
    "exact",
    "read",
    "ended",
    "length",
    "C*/C",
)
_SHORT_COLUMNS = {
    "exec": "executability",
    "exact": "exact_match",
    "read": "readable",
    "ended": "ended",
    "prefix": "prefix",
    "goal": "goal",
    "LCCS": "lccs",
    "length": "length_ratio",
    "C*/C": "quality",
}
"""{column: measure} of those without an interval."""


def summary_table(results: Results) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """Return rows and columns of the terminal's table, with pass@k for as many samples as every problem has."""
    # The keys are 1, 2, 4, ...; an empty split has none.
    k = min(
        max(map(int, result["pass_at_k"])) for result in results.values() if result["pass_at_k"]
    )

    def cells(cell: Mapping[str, Any]) -> dict[str, str]:
        texts = {"n": str(cell["rows"]), **cell_texts(cell)}
        if k > 1:
            texts[f"pass@{k}"] = interval_text(cell["pass_at_k"][str(k)], with_interval=False)
        return texts

    # pass@1 is the validity.
    columns = TABLE_COLUMNS if k == 1 else (*TABLE_COLUMNS, f"pass@{k}")
    return split_rows(results, cells), columns


def cell_texts(cell: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a table's columns; a terminal has no room for more intervals than that of the validity."""
    texts = {"valid": interval_text(cell["validity"])}
    for column, name in _SHORT_COLUMNS.items():
        texts[column] = interval_text(cell[name], with_interval=False)
    return texts


def split_rows(
    results: Results,
    cells: Callable[[Mapping[str, Any]], dict[str, str]],
) -> list[dict[str, str]]:
    """Return the rows of a table: a split, and its domains below it where there are several.

    Args:
        results: by split, each with those of its `domains`.
        cells: writes a result.
    """
    rows = []
    for split, result in results.items():
        groups = [("all", result)]
        # A single domain would say the same as the whole split.
        if len(result["domains"]) > 1:
            groups += result["domains"].items()
        rows += [{"split": split, "domain": name, **cells(group)} for name, group in groups]
    return rows
