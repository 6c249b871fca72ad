"""Arrange the sections of a page about plans: measures, validity by plan length, why plans fail."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from jaxppo.evaluate.plan_metrics import VALID, Results
from jaxppo.planning.language.plans import PlanError
from jaxppo.report.charts import style_classes

Models = Sequence[tuple[str, Results]]
"""Names of models, or of moments of one, with their results."""

OUTCOMES = (VALID, *(error.value for error in PlanError))
"""Names of the counts of `plan_metrics.error_counts`; the style sheet has their colours."""

_COLUMNS = {
    "valid": "validity",
    "executable": "executability",
    "executable prefix": "prefix",
    "goal conditions": "goal",
    "LCS": "lcs",
    "LCCS": "lccs",
    "exact match": "exact_match",
    "readable": "readable",
    "ended": "ended",
    "length / reference": "length_ratio",
    "C* / C": "quality",
    "loss": "loss",
}


class Table(NamedTuple):
    """Titles of the columns, and rows of texts, counts and measured values."""

    heads: list[str]
    rows: list[list[Any]]


class Series(NamedTuple):
    """Rates by bin: {bin: {"rate", "low", "high", "n"}}."""

    label: str
    rates: Mapping[str, Mapping[str, Any]]
    style: str


class RateChart(NamedTuple):
    """Rates over bins of the reference's length."""

    bins: list[str]
    series: list[Series]


class Validity(NamedTuple):
    """A chart of valid plans for each domain, and their legend: what has a colour each, and what dashes."""

    charts: dict[str, RateChart]
    coloured: list[str]
    dashed: list[str]


class PlanSections(NamedTuple):
    """What the macros of `templates/plans.html` draw."""

    summary: Table
    validity: Validity
    outcomes: dict[str, dict[str, int]]


def arrange_plans(models: Models) -> PlanSections:
    """Arrange the results of one model, or of several next to each other."""
    outcomes = {}
    for split in _splits(models):
        for label, results in models:
            if split in results:
                name = f"{split} · {label}" if len(models) > 1 else split
                outcomes[name] = in_order(results[split]["errors"], OUTCOMES)
    return PlanSections(_summary(models), arrange_validity(models), outcomes)


def arrange_validity(models: Models) -> Validity:
    """Arrange valid plans by length: one model has a colour per split, several a colour each, and dashes per split."""
    # All models have the splits in one order, so that dashes mean the same split everywhere.
    splits = _splits(models)
    charts: dict[str, RateChart] = {}
    for number, (label, results) in enumerate(models):
        for place, split in enumerate(splits):
            name = split
            style = style_classes(place, 0)
            if len(models) > 1:
                name = f"{label}, {split}"
                style = style_classes(number, place)
            # Results of other rewards, and of early versions, have no domains.
            domains = results.get(split, {}).get("domains", {})
            for domain, cell in domains.items():
                chart = charts.setdefault(domain, RateChart([], []))
                bins = cell.get("bins", {})
                rates = {length: measures["validity"] for length, measures in bins.items()}
                if rates:
                    chart.series.append(Series(name, rates, style))
    for chart in charts.values():
        bins = set(chain.from_iterable(series.rates for series in chart.series))
        chart.bins.extend(sorted(bins, key=_first_length))
    if len(models) == 1:
        return Validity(charts, coloured=splits, dashed=[])
    return Validity(charts, coloured=[label for label, _ in models], dashed=splits)


def _first_length(label: str) -> int:
    """Return where a bin begins: `5-8`, or `129+`."""
    return int(label.rstrip("+").split("-")[0])


def measured_names(cells: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the measures that any of the results has."""
    names = set()
    for cell in cells:
        names.update(name for name, value in cell.items() if value is not None)
    return names


def _splits(models: Models) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(results for _, results in models)))


def in_order(counts: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """Return the counts of these names in their order, 0 where there is none."""
    return {name: counts.get(name, 0) for name in names}


def _summary(models: Models) -> Table:
    """Return the table of all measures with their intervals; domains are listed below their split."""
    cells = list(chain.from_iterable(results.values() for _, results in models))
    measures = measured_names(cells)
    columns = {name: key for name, key in _COLUMNS.items() if key in measures}
    # pass@1 is the validity.
    powers = dict.fromkeys(chain.from_iterable(cell["pass_at_k"] for cell in cells))
    powers.pop("1", None)
    heads = ["split", "model", "problems", *columns, *(f"pass@{k}" for k in powers)]
    rows = []
    for split in _splits(models):
        for name, label, cell in _split_and_domains(models, split):
            # The loss is that of a split, without its domains.
            values = [cell.get(key) for key in columns.values()]
            values += [cell["pass_at_k"].get(k) for k in powers]
            rows.append([name, label, cell["rows"], *values])
    # The rows of a single model need not name it.
    if len(models) == 1:
        heads.remove("model")
        for row in rows:
            del row[1]
    return Table(heads, rows)


def _split_and_domains(models: Models, split: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return names and measures of a split, then of its domains where there are several; models next to each other."""
    cells = [(label, results[split]) for label, results in models if split in results]
    rows = [(split, label, cell) for label, cell in cells]
    domains = sorted(set(chain.from_iterable(cell["domains"] for _, cell in cells)))
    # The row of a single domain would say the same as that of the split.
    if len(domains) > 1:
        for domain in domains:
            for label, cell in cells:
                if domain in cell["domains"]:
                    rows.append((f"· {domain}", label, cell["domains"][domain]))
    return rows
