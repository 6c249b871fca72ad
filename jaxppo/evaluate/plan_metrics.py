"""Measure judged plans, per split, domain and plan length, with intervals.

Every measure is a mean over problems of the average over a problem's predictions: a problem counts once however many
samples or seeds it has, and intervals are over problems. Text that is no plan counts as a failure, in every
denominator.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, groupby, pairwise
from math import comb, inf
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypeVar

from jaxppo.errors import ConfigError
from jaxppo.evaluate.intervals import clustered_wilson, interval_text, mean_interval
from jaxppo.evaluate.plan_scores import FRACTIONS, OVERLAPS, RATES, length_ratio, overlaps
from jaxppo.evaluate.predictions import JudgedPrediction, JudgedRow
from jaxppo.planning.language.plans import PlanError
from jaxppo.reward_functions.plan import VALIDATOR_FAILURES

T = TypeVar("T")

LENGTH_EDGES = (0, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129)
"""Where the bins of the reference's length begin; the last one has no end."""

VALID = "valid"
"""The key of plans without an error in the counts of errors."""

# ------------------------------------------------------------------------------------------------------------ many rows


class _Scored(NamedTuple):
    """A row with the scores of each of its predictions, in their order."""

    row: JudgedRow
    scores: Mapping[str, Sequence[float | None]]


def _scored(row: JudgedRow) -> _Scored:
    single = {**RATES, **FRACTIONS, "length_ratio": length_ratio}
    scores = {name: [score(row, prediction) for prediction in row.predictions] for name, score in single.items()}
    common = [overlaps(row, prediction) for prediction in row.predictions]
    return _Scored(row, scores | {name: [values[name] for values in common] for name in OVERLAPS})


def measure(judged: Sequence[JudgedRow]) -> dict[str, Any]:
    """Compute all measures of some rows.

    Returns:
        `RATES` as {"rate", "low", "high", "n"} (`clustered_wilson`); `FRACTIONS`, `OVERLAPS`, "length_ratio",
        "distinct_plans" and "distinct_valid_plans" as {"mean", "low", "high", "n"} (`mean_interval` of one value per
        problem); "pass_at_k" with such a mean for k = 1, 2, 4, ... as long as every problem has that many samples;
        "errors" {reason: predictions}; "cheaper_than_reference" and "cheaper_than_optimal" (predictions; the latter
        says that the data are wrong); "mean_reward" and "validator_failed" (means over predictions); "rows" and
        "answers". A rate or mean that no row has is None. n counts problems.
    """
    return _measure([_scored(row) for row in judged])


def _measure(scored: Sequence[_Scored]) -> dict[str, Any]:
    judged = [one.row for one in scored]
    predictions = [(row, prediction) for row in judged for prediction in row.predictions]
    count = max(1, len(predictions))
    return {
        "rows": len(judged),
        "answers": len(predictions),
        **{name: _rate(scored, name) for name in RATES},
        **{name: _mean(scored, name) for name in (*FRACTIONS, *OVERLAPS)},
        "length_ratio": _mean(scored, "length_ratio", inf),
        **_of_samples(judged),
        "errors": error_counts(judged),
        "cheaper_than_reference": sum(_is_cheaper(prediction, row.reference_cost) for row, prediction in predictions),
        "cheaper_than_optimal": sum(_is_cheaper(prediction, row.optimal_cost) for row, prediction in predictions),
        "mean_reward": sum(prediction.outcome.reward for _, prediction in predictions) / count,
        "validator_failed": sum(a.outcome.verdict.error in VALIDATOR_FAILURES for _, a in predictions) / count,
        **_by_seed(judged),
    }


def _rate(scored: Sequence[_Scored], name: str) -> dict[str, float] | None:
    scores = _known_scores(scored, name)
    if not scores:
        return None
    return clustered_wilson([int(sum(values)) for values in scores], [len(values) for values in scores])


def _mean(scored: Sequence[_Scored], name: str, most: float = 1.0) -> dict[str, Any] | None:
    scores = _known_scores(scored, name)
    return mean_interval([fmean(values) for values in scores], (0.0, most)) if scores else None


def _known_scores(scored: Sequence[_Scored], name: str) -> list[list[float]]:
    """Return the scores of each row that has any."""
    known = ([value for value in one.scores[name] if value is not None] for one in scored)
    return [values for values in known if values]


def error_counts(judged: Sequence[JudgedRow]) -> dict[str, int]:
    """Count the valid predictions, and the others by reason; every reason is there."""
    errors = (prediction.outcome.verdict.error for row in judged for prediction in row.predictions)
    counts = Counter(VALID if error is None else error.value for error in errors)
    return {name: counts[name] for name in (VALID, *(error.value for error in PlanError))}


def _is_cheaper(judged: JudgedPrediction, best: float | None) -> bool:
    cost = judged.progress.cost
    return best is not None and judged.outcome.verdict.valid and cost is not None and cost < best - 1e-6 * abs(best)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Compute the probability that one of k samples is right, drawn from n with c right: 1 - C(n - c, k) / C(n, k).

    An unbiased estimate for k independent samples, k <= n.

    Source: Chen et al., Evaluating Large Language Models Trained on Code (2021), equation 1.
    """
    return 1.0 - comb(n - c, k) / comb(n, k)


def _of_samples(judged: Sequence[JudgedRow]) -> dict[str, Any]:
    """Compute pass@k and the number of different plans per seed, averaged over a problem's seeds."""
    problems = [_samples_by_seed(row) for row in judged]
    sizes = [len(samples) for seeds in problems for samples in seeds]
    powers = [2**i for i in range(min(sizes, default=0).bit_length())]
    valid = [
        [sum(prediction.outcome.verdict.valid for prediction in samples) for samples in seeds] for seeds in problems
    ]

    def mean_over_seeds(value: Callable[[int, int], float], most: float) -> dict[str, Any]:
        values = [fmean(value(i, j) for j in range(len(seeds))) for i, seeds in enumerate(problems)]
        return mean_interval(values, (0.0, most))

    def distinct(is_counted: Callable[[JudgedPrediction], bool]) -> dict[str, Any]:
        def number(i: int, j: int) -> float:
            return float(len({prediction.outcome.actions for prediction in problems[i][j] if is_counted(prediction)}))

        return mean_over_seeds(number, inf)

    return {
        "pass_at_k": {
            str(k): mean_over_seeds(lambda i, j, k=k: pass_at_k(len(problems[i][j]), valid[i][j], k), 1.0)
            for k in powers
        },
        "distinct_plans": distinct(lambda prediction: prediction.is_readable),
        "distinct_valid_plans": distinct(lambda prediction: prediction.outcome.verdict.valid),
    }


def _samples_by_seed(row: JudgedRow) -> list[list[JudgedPrediction]]:
    ordered = sorted(row.predictions, key=_seed_of)
    return [list(samples) for _, samples in groupby(ordered, key=_seed_of)]


def _seed_of(judged: JudgedPrediction) -> int:
    return judged.prediction.seed


def _by_seed(judged: Sequence[JudgedRow]) -> dict[str, Any]:
    """Compute the validity of each seed and its standard deviation over seeds, where there are several.

    All intervals are over problems: only this says how much training runs differ from one another.
    """
    valid: dict[int, list[float]] = {}
    for samples in chain.from_iterable(map(_samples_by_seed, judged)):
        rate = fmean(sample.outcome.verdict.valid for sample in samples)
        valid.setdefault(_seed_of(samples[0]), []).append(rate)
    if len(valid) < 2:
        return {}
    rates = {str(seed): fmean(values) for seed, values in sorted(valid.items())}
    return {"validity_by_seed": rates, "validity_sd_over_seeds": stdev(rates.values())}


# -------------------------------------------------------------------------------------------------------- whole results


def plan_results(judged: Sequence[JudgedRow], edges: Sequence[int] = LENGTH_EDGES) -> dict[str, dict[str, Any]]:
    """Return {split: `split_results` of its rows}, by the column `split` of each row."""
    splits = grouped(judged, lambda row: row.row["split"])
    return {split: split_results(rows, edges) for split, rows in splits.items()}


def split_results(judged: Sequence[JudgedRow], edges: Sequence[int] = LENGTH_EDGES) -> dict[str, Any]:
    """Compute the measures of some rows, and of each of their domains and bins of the reference's length.

    Args:
        judged: the rows.
        edges: lengths at which the bins begin, increasing.

    Returns:
        measures | {"domains": {domain: measures | {"bins": {bin: measures}}}, "bins": {bin: measures}}, with measures
        as from `measure`.
    """
    bins, scored = _Bins.of(edges), [_scored(row) for row in judged]
    return _measure(scored) | {"domains": _per_domain(scored, bins), "bins": _per_bin(scored, bins)}


def _per_domain(scored: Sequence[_Scored], bins: "_Bins") -> dict[str, dict[str, Any]]:
    groups = grouped(scored, lambda one: one.row.row["domain"])
    return {name: _measure(groups[name]) | {"bins": _per_bin(groups[name], bins)} for name in sorted(groups)}


def _per_bin(scored: Sequence[_Scored], bins: "_Bins") -> dict[str, dict[str, Any]]:
    groups = grouped(scored, lambda one: bins.of_length(one.row.reference_length))
    return {label: _measure(groups[label]) for label in bins.labels if label in groups}


def grouped(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Group items by their key, in the order of its first appearance."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


class _Bins(NamedTuple):
    edges: tuple[int, ...]

    @classmethod
    def of(cls, edges: Sequence[int]) -> "_Bins":
        given = tuple(edges)
        if not given or given[0] < 0 or any(low >= high for low, high in pairwise(given)):
            raise ConfigError(f"edges: expected increasing plan lengths from 0 on, got {list(edges)}")
        return cls(given if given[0] == 0 else (0, *given))

    @property
    def labels(self) -> list[str]:
        inner = [f"{low}-{high - 1}" for low, high in pairwise(self.edges)]
        return [*inner, f"{self.edges[-1]}+"]

    def of_length(self, length: int) -> str:
        return self.labels[sum(edge <= length for edge in self.edges) - 1]


# ------------------------------------------------------------------------------------------------------------- terminal

TABLE_COLUMNS = ("split", "domain", "n", "valid", "exec", "prefix", "goal", "LCCS", "exact", "read", "ended")
TABLE_COLUMNS += ("length", "C*/C")


def summary_rows(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the terminal's table, for `Console.result_table(title, rows, plan_metrics.TABLE_COLUMNS)`."""
    return split_rows(results, cells)


def split_rows(
    results: Mapping[str, Mapping[str, Any]], cells: Callable[[Mapping[str, Any]], dict[str, str]]
) -> list[dict[str, str]]:
    """Return the rows of a table: a split, and its domains below it where there are several.

    Args:
        results: by split, each with those of its `domains`.
        cells: writes a result.
    """
    rows = []
    for split, result in results.items():
        domains = result["domains"].items() if len(result["domains"]) > 1 else ()
        rows += [{"split": split, "domain": name, **cells(cell)} for name, cell in [("all", result), *domains]]
    return rows


def cells(cell: Mapping[str, Any]) -> dict[str, str]:
    """Write the measures of some rows."""
    rates = {"exec": "executability", "exact": "exact_match", "read": "readable", "ended": "ended"}
    means = {"prefix": "prefix", "goal": "goal", "LCCS": "lccs", "length": "length_ratio", "C*/C": "quality"}
    return {
        "n": str(cell["rows"]),
        "valid": interval_text(cell["validity"]),
        **{column: interval_text(cell[name], with_interval=False) for column, name in rates.items()},
        **{column: interval_text(cell[name], with_interval=False) for column, name in means.items()},
    }
