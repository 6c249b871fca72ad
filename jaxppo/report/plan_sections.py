"""Write the sections of a page about plans: measures, a comparison, validity by plan length, why plans fail."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.evaluate import plan_metrics
from jaxppo.evaluate.comparison import TESTS
from jaxppo.evaluate.intervals import interval_text
from jaxppo.planning.language.plans import PlanError
from jaxppo.report import plan_charts
from jaxppo.report.html import NUM_COLOURS, row, shown, table
from jaxppo.report.plan_charts import Series

Results = Mapping[str, Mapping[str, Any]]
"""From `plan_metrics.plan_results`."""

Models = Sequence[tuple[str, Results]]
"""Names of models, or of moments of one, with their results."""

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
    "C* / C, optimal": "quality_optimal",
}


def summary(models: Models) -> str:
    """Return the table of all measures with their intervals; domains are listed below their split."""
    cells = [cell for _, results in models for cell in results.values()]
    columns = {name: key for name, key in _COLUMNS.items() if any(cell[key] is not None for cell in cells)}
    powers = [k for k in dict.fromkeys(k for cell in cells for k in cell["pass_at_k"]) if k != "1"]
    heads = ["split", *["model"] * (len(models) > 1), "problems", *columns, *(f"pass@{k}" for k in powers)]
    if powers:
        heads.append("different valid plans")
    rows = []
    for split in _splits(models):
        for name, label, cell in _split_and_domains(models, split):
            names = [shown(name), *[shown(label)] * (len(models) > 1)]
            rows.append(_row(names, cell, columns, powers, "total" if name == split else ""))
    note = "Rates with Wilson 95 % intervals, means with Student's t, both over problems. C* / C: 0 for invalid plans."
    return f'<h2>Results</h2>{table("summary", heads, rows)}<p class="soft">{shown(note)}</p>'


def _split_and_domains(models: Models, split: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return names and measures of a split, then of its domains where there are several; models next to each other."""
    cells = [(label, results[split]) for label, results in models if split in results]
    domains = sorted({domain for _, cell in cells for domain in cell["domains"]})
    rows = [(split, label, cell) for label, cell in cells]
    for domain in domains if len(domains) > 1 else ():
        rows += [(f"· {domain}", label, cell["domains"][domain]) for label, cell in cells if domain in cell["domains"]]
    return rows


def _row(
    names: Sequence[str], cell: Mapping[str, Any], columns: Mapping[str, str], powers: Sequence[str], kind: str = ""
) -> str:
    values = [cell[key] for key in columns.values()] + [cell["pass_at_k"].get(k) for k in powers]
    values += [cell["distinct_valid_plans"]] if powers else []
    texts = [*names, str(cell["rows"]), *map(measured, values)]
    return row(texts, kind)


def measured(value: Mapping[str, Any] | None) -> str:
    """Return the HTML of a rate or mean with its interval below it."""
    if value is None:
        return "–"
    main, _, interval = interval_text(value).partition(" ")
    return f"{main}<small>{interval}</small>" if interval else main


def _splits(models: Models) -> list[str]:
    return list(dict.fromkeys(split for _, results in models for split in results))


def comparison_table(comparison: Mapping[str, Mapping[str, Any]], label: str, other_label: str) -> str:
    """Return the table of `comparison.compare_splits(other, model)`."""
    better = [f"{name} better" for name in (other_label, label)]
    heads = ["split", other_label, label, "difference", *better, "tied", "p"]
    rows = []
    for split, result in comparison.items():
        rows.append(_compared(split, result, "total"))
        if len(result["domains"]) > 1:
            rows += [_compared(f"· {domain}", one, "") for domain, one in result["domains"].items()]
    tests = dict.fromkeys(TESTS[result["test"]] for result in comparison.values())
    note = f"Paired on the same problems: {'; '.join(tests)}, not corrected for the number of rows here; "
    note += "difference with the 95 % interval of a paired bootstrap."
    heading = f"<h2>{shown(label)} against {shown(other_label)}</h2>"
    return f'{heading}{table("comparison", heads, rows)}<p class="soft">{shown(note)}</p>'


def _compared(name: str, result: Mapping[str, Any], kind: str) -> str:
    difference = result["difference"]
    low, high = (f"{100 * difference[side]:+.1f}" for side in ("low", "high"))
    texts = [
        shown(name),
        *(measured(result[side]) for side in ("a", "b")),
        f"{100 * difference['mean']:+.1f}<small>[{low}, {high}]</small>",
        *(str(result[count]) for count in ("a_better", "b_better", "tied")),
        f"{result['p_value']:.2g}",
    ]
    return row(texts, kind)


def validity_charts(models: Models) -> str:
    """Draw a chart per domain; one model: a colour per split, two: a colour per model and dashes per split."""
    domains = {domain: None for _, results in models for cell in results.values() for domain in cell.get("domains", {})}
    figures = (f"<figure><h3>{shown(domain)}</h3>{_validity_chart(models, domain)}</figure>" for domain in domains)
    return (
        f'<h2>Valid plans by length of the reference</h2><ul class="legend">{_chart_legend(models)}</ul>'
        f'<div class="charts" id="validity">{"".join(figures)}</div>'
    )


def _validity_chart(models: Models, domain: str) -> str:
    series = []
    for number, (label, results) in enumerate(models):
        for i, split in enumerate(_splits(models)):
            bins = results.get(split, {}).get("domains", {}).get(domain, {}).get("bins", {})
            rates = {key: cell["validity"] for key, cell in bins.items()}
            if rates and len(models) > 1:
                series.append(Series(f"{label}, {split}", rates, number, i))
            elif rates:
                series.append(Series(split, rates, i))
    labels = sorted({label for one in series for label in one.rates}, key=_first_length)
    return plan_charts.rate_chart(f"{domain}: valid plans against the length of the reference", labels, series)


def _chart_legend(models: Models) -> str:
    splits = _splits(models)
    coloured, dashed = ([label for label, _ in models], splits) if len(models) > 1 else (splits, [])
    numbers = [i % NUM_COLOURS for i in range(len(coloured))]
    colours = zip(numbers, coloured, strict=True)
    items = [f'<li><span class="swatch c{i}"></span>{shown(name)}</li>' for i, name in colours]
    items += [f"<li>{plan_charts.line_sample(i)}{shown(name)}</li>" for i, name in enumerate(dashed)]
    return "".join(items)


def _first_length(label: str) -> int:
    return int(label.rstrip("+").split("-")[0])


def outcome_bars(models: Models) -> str:
    """Draw why plans are not valid: a bar per split and model, and the numbers."""
    counts = {
        f"{split} · {label}" if len(models) > 1 else split: results[split]["errors"]
        for split in _splits(models)
        for label, results in models
        if split in results
    }
    return f'<h2>Why plans are not valid</h2><div id="errors">{labelled_outcomes(counts)}</div>'


def labelled_outcomes(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Draw a bar of outcomes for each label, and a legend.

    Args:
        counts: {label: {`plan_metrics.VALID` or a `PlanError`'s value: number}}.
    """
    return labelled_bars(counts, (plan_metrics.VALID, *(error.value for error in PlanError)))


def labelled_bars(counts: Mapping[str, Mapping[str, int]], names: Sequence[str]) -> str:
    """Draw a bar for each label, its parts in the order of `names`, and a legend; the style sheet has their colours."""
    ordered = {label: {name: of.get(name, 0) for name in names} for label, of in counts.items()}
    totals = {name: sum(of[name] for of in ordered.values()) for name in names}
    legend = "".join(
        f'<li><span class="swatch e-{name}"></span>{name.replace("_", " ")} ({total})</li>'
        for name, total in totals.items()
        if total
    )
    bars = "".join(
        f"<div>{shown(label)}</div>{plan_charts.share_bar(f'{label}: outcomes', of)}" for label, of in ordered.items()
    )
    return f'<ul class="legend">{legend}</ul><div class="bars">{bars}</div>'
