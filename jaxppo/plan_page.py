"""The page of an evaluation: one HTML file with tables, plots and plans stepped through state by state.

It needs no network and no other file. What a model wrote is shown as text and never run: it is escaped where Python
writes it, set as text where the page's script does, and a Content-Security-Policy allows that one script alone.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from jaxppo import plan_charts, plan_metrics
from jaxppo.console import sanitize
from jaxppo.plan_answers import JudgedAnswer, JudgedRow
from jaxppo.plan_charts import Series, shown
from jaxppo.plan_comparison import TESTS
from jaxppo.plan_reward import describe
from jaxppo.planning import UnsupportedPddlError, format_action, parse_domain, parse_problem
from jaxppo.planning.plans import PlanError
from jaxppo.planning.trace import Trace, TraceStep, trace

Results = Mapping[str, Mapping[str, Any]]
"""From `plan_metrics.plan_results`."""

_HERE = Path(__file__).parent
_MOST_TEXT = 20_000  # characters of one answer
_MOST_STEPS = 1_000


# -------------------------------------------------------------------------------------------------------------- samples


def pick_samples(judged: Sequence[JudgedRow], most: int = 24) -> list[dict[str, Any]]:
    """Choose answers to show: in turn one of each split, domain and outcome, the first of each kind first.

    Args:
        judged: rows of any splits.
        most: how many at most.

    Returns:
        Samples for `write_page`.
    """
    kinds: dict[tuple[str, str, Any], list[tuple[JudgedRow, JudgedAnswer]]] = {}
    for row in judged:
        for answer in row.answers:
            kind = (row.row["split"], row.row["domain"], answer.outcome.verdict.error)
            kinds.setdefault(kind, []).append((row, answer))
    turns = zip_longest(*kinds.values())
    chosen = [pair for turn in turns for pair in turn if pair is not None][:most]
    return [page_sample(row, answer) for row, answer in chosen]


def page_sample(row: JudgedRow, judged: JudgedAnswer) -> dict[str, Any]:
    """One answer as the page shows it, with its plan carried out step by step."""
    verdict = judged.outcome.verdict
    error = "valid" if verdict.error is None else verdict.error.value.replace("_", " ")
    shortest = min(row.references, key=len, default=())
    steps, note = _trace(row, judged)
    return {
        "title": sanitize(f"{row.row['split']} · {row.row['id']} · {error}", 200),
        "verdict": sanitize(describe(verdict)),
        "valid": verdict.valid,
        "text": _lines("(no answer)" if judged.answer.text is None else judged.answer.text),
        "plan": [format_action(action) for action in judged.outcome.actions[:_MOST_STEPS]],
        "reference": [format_action(action) for action in shortest],
        "trace": steps,
        "note": note,
    }


def _trace(row: JudgedRow, judged: JudgedAnswer) -> tuple[dict[str, Any] | None, str]:
    actions = judged.outcome.actions
    try:
        problem = parse_problem(row.row["problem_pddl"], parse_domain(row.row["domain_pddl"]))
        steps = _plain_trace(trace(problem, actions[:_MOST_STEPS]))
    except UnsupportedPddlError as error:
        return None, f"The states are not shown: {sanitize(str(error), 300)}"
    if judged.outcome.verdict.error is PlanError.SYNTAX:
        return steps, f"The text cannot be read as a plan behind step {len(actions)}: it counts as failed as a whole."
    cut = len(actions) > _MOST_STEPS
    return steps, f"Only the first {_MOST_STEPS} of {len(actions)} steps are shown." if cut else ""


def _plain_trace(done: Trace) -> dict[str, Any]:
    return {
        "facts": [format_action(atom) for atom in done.facts],
        "numbers": _numbers(done.numbers),
        "goals": [list(check) for check in done.goals],
        "steps": [_plain_step(step) for step in done.steps],
    }


def _plain_step(step: TraceStep) -> dict[str, Any]:
    reason = None if step.error is None else step.error.value.replace("_", " ")
    return {
        "action": format_action(step.action),
        "preconditions": [list(check) for check in step.preconditions],
        "added": [format_action(atom) for atom in step.added],
        "deleted": [format_action(atom) for atom in step.deleted],
        "numbers": _numbers(step.numbers),
        "goals": list(step.goals),
        "error": step.error is not None,
        "reason": reason if step.failed_condition is None else f"{reason} {step.failed_condition} does not hold",
    }


def _numbers(values: Iterable[tuple[tuple[str, ...], float]]) -> list[list[str]]:
    return [[format_action(function), f"{value:g}"] for function, value in values]


def _lines(text: str) -> str:
    cut = f"\n… [+{len(text) - _MOST_TEXT} characters]" if len(text) > _MOST_TEXT else ""
    return "\n".join(sanitize(line, limit=None) for line in text[:_MOST_TEXT].split("\n")) + cut


# ----------------------------------------------------------------------------------------------------------------- page


def write_page(
    results: Results,
    samples: Sequence[Mapping[str, Any]],
    path: Path | str,
    *,
    title: str = "Evaluation of plans",
    label: str = "model",
    other: Results | None = None,
    other_label: str = "before",
    comparison: Mapping[str, Mapping[str, Any]] | None = None,
    note: str = "",
) -> None:
    """Write the page of an evaluation; the file appears whole or not at all.

    Args:
        results: of the model, from `plan_metrics.plan_results`.
        samples: from `pick_samples`.
        path: the HTML file.
        title: heading.
        label: name of the model.
        other: results of what it is compared with: another model, or itself before training.
        other_label: its name.
        comparison: from `plan_comparison.compare_splits(other, model)`.
        note: below the heading, for instance how the answers came about.
    """
    models = ([(other_label, other)] if other else []) + [(label, results)]
    parts = [
        f"<h1>{shown(title)}</h1>",
        f'<p class="soft">{shown(note)}</p>' if note else "",
        _summary(models),
        _comparison(comparison, label, other_label) if comparison else "",
        _validity_charts(models),
        _errors(models),
        _viewer(len(samples)),
        f'<script type="application/json" id="samples-data">{_json(samples)}</script>',
    ]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(_page(title, "\n".join(part for part in parts if part)), encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _page(title: str, body: str) -> str:
    style, script = ((_HERE / f"plan_page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{shown(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(content: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


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


def _summary(models: Sequence[tuple[str, Results]]) -> str:
    """The table of all measures with their intervals; a split's domains stand below it."""
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
    head = "".join(f'<th scope="col">{shown(name)}</th>' for name in heads)
    note = "Rates with Wilson 95 % intervals, means with Student's t, both over problems. C* / C: 0 for invalid plans."
    return (
        f'<h2>Results</h2><div class="wide" tabindex="0"><table id="summary"><thead><tr>{head}</tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="soft">{shown(note)}</p>'
    )


def _split_and_domains(models: Sequence[tuple[str, Results]], split: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Names and measures of a split, and then of its domains where there are several; models next to each other."""
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
    texts = [*names, str(cell["rows"]), *map(_measured, values)]
    return f'<tr class="{kind}">{"".join(f"<td>{text}</td>" for text in texts)}</tr>'


def _measured(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "–"
    written = plan_metrics.percent(value) if "rate" in value else plan_metrics.number(value, with_interval=True)
    main, _, interval = written.partition(" ")
    return f"{main}<small>{interval}</small>" if interval else main


def _splits(models: Sequence[tuple[str, Results]]) -> list[str]:
    return list(dict.fromkeys(split for _, results in models for split in results))


def _comparison(comparison: Mapping[str, Mapping[str, Any]], label: str, other_label: str) -> str:
    better = [f"{name} better" for name in (other_label, label)]
    heads = ["split", other_label, label, "difference", *better, "tied", "p"]
    rows = []
    for split, result in comparison.items():
        rows.append(_compared(split, result, "total"))
        if len(result["domains"]) > 1:
            rows += [_compared(f"· {domain}", one, "") for domain, one in result["domains"].items()]
    head = "".join(f'<th scope="col">{shown(name)}</th>' for name in heads)
    tests = dict.fromkeys(TESTS[result["test"]] for result in comparison.values())
    note = f"Paired on the same problems: {'; '.join(tests)}, not corrected for the number of rows here; "
    note += "difference with the 95 % interval of a paired bootstrap."
    return (
        f'<h2>{shown(label)} against {shown(other_label)}</h2><div class="wide" tabindex="0"><table id="comparison">'
        f'<thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div><p class="soft">{shown(note)}</p>'
    )


def _compared(name: str, result: Mapping[str, Any], kind: str) -> str:
    difference = result["difference"]
    low, high = (f"{100 * difference[side]:+.1f}" for side in ("low", "high"))
    texts = [
        shown(name),
        *(_measured(result[side]) for side in ("a", "b")),
        f"{100 * difference['mean']:+.1f}<small>[{low}, {high}]</small>",
        *(str(result[count]) for count in ("a_better", "b_better", "tied")),
        f"{result['p_value']:.2g}",
    ]
    return f'<tr class="{kind}">{"".join(f"<td>{text}</td>" for text in texts)}</tr>'


def _validity_charts(models: Sequence[tuple[str, Results]]) -> str:
    """A chart per domain; one model: a colour per split, two: a colour per model and dashes per split."""
    domains = {domain: None for _, results in models for cell in results.values() for domain in cell["domains"]}
    figures = (f"<figure><h3>{shown(domain)}</h3>{_validity_chart(models, domain)}</figure>" for domain in domains)
    return (
        f'<h2>Valid plans by length of the reference</h2><ul class="legend">{_chart_legend(models)}</ul>'
        f'<div class="charts" id="validity">{"".join(figures)}</div>'
    )


def _validity_chart(models: Sequence[tuple[str, Results]], domain: str) -> str:
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


def _chart_legend(models: Sequence[tuple[str, Results]]) -> str:
    splits = _splits(models)
    coloured, dashed = ([label for label, _ in models], splits) if len(models) > 1 else (splits, [])
    numbers = [i % plan_charts.NUM_COLOURS for i in range(len(coloured))]
    colours = zip(numbers, coloured, strict=True)
    items = [f'<li><span class="swatch c{i}"></span>{shown(name)}</li>' for i, name in colours]
    items += [f"<li>{plan_charts.line_sample(i)}{shown(name)}</li>" for i, name in enumerate(dashed)]
    return "".join(items)


def _first_length(label: str) -> int:
    return int(label.rstrip("+").split("-")[0])


def _errors(models: Sequence[tuple[str, Results]]) -> str:
    """A bar of outcomes per split, and the numbers."""
    bars, totals = [], dict.fromkeys((plan_metrics.VALID, *(error.value for error in PlanError)), 0)
    for split in _splits(models):
        for label, results in models:
            if split in results:
                counts = results[split]["errors"]
                totals = {name: total + counts[name] for name, total in totals.items()}
                name = f"{split} · {label}" if len(models) > 1 else split
                bars.append(f"<div>{shown(name)}</div>{plan_charts.share_bar(f'{name}: outcomes', counts)}")
    legend = "".join(
        f'<li><span class="swatch e-{name}"></span>{name.replace("_", " ")} ({total})</li>'
        for name, total in totals.items()
        if total
    )
    return (
        f'<h2>Why plans are not valid</h2><ul class="legend">{legend}</ul><div class="bars" id="errors">'
        f"{''.join(bars)}</div>"
    )


def _viewer(count: int) -> str:
    if not count:
        return ""
    return """<h2>Plans, step by step</h2>
<noscript><p>Stepping through plans needs the page's script.</p></noscript>
<div id="viewer" hidden>
<div class="controls">
<select id="pick" aria-label="Sample"></select>
<button id="before" type="button" aria-label="Step back">←</button>
<span id="position" aria-live="polite"></span>
<button id="after" type="button" aria-label="Next step">→</button>
</div>
<p id="verdict" class="verdict"></p>
<p id="note" class="soft"></p>
<div class="panes">
<div><h3>Plan</h3><ol id="plan" class="plan"></ol></div>
<div id="steps">
<h3 id="action"></h3>
<p id="reason" class="verdict invalid"></p>
<h3 id="preconditions-title">Needs</h3><ul id="preconditions" class="checks"></ul>
<h3>State</h3><div id="state" class="atoms"></div>
</div>
<div><h3>Goal</h3><ul id="goals" class="checks"></ul></div>
</div>
<details><summary>What the model wrote</summary><pre id="answer"></pre></details>
<details><summary>Reference plan</summary><pre id="reference"></pre></details>
</div>"""
