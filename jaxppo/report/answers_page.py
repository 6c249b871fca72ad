"""Write the page about answers from files: any models, domains and kinds of prompts side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxppo.evaluate.answers.results import BREAKS, AnswerResults, cells_of
from jaxppo.evaluate.plan_metrics import grouped
from jaxppo.evaluate.predictions import JudgedRow
from jaxppo.report import html, plan_charts, plan_sections
from jaxppo.report.html import row, shown, table
from jaxppo.report.plan_page import pick_samples, viewer

_MOST_LISTED = 200


def write_page(results: AnswerResults, path: Path | str, *, title: str, note: str = "") -> None:
    """Write the page atomically.

    Args:
        results: from `judge_answers`.
        path: the HTML file.
        title: heading.
        note: below the heading.
    """
    content = results.content
    samples = pick_samples(_labelled(results.rows))
    parts = [
        f"<h1>{shown(title)}</h1>",
        f'<p class="soft">{shown(note)}</p>' if note else "",
        _validity(content),
        _charts(content),
        _failures(content),
        _recorded(content["recorded"]),
        _second_judge(content["val"]),
        _extraction(content),
        _not_judged(content),
        viewer(len(samples)),
        html.data("samples-data", samples),
    ]
    html.write_page(path, title, parts, "plan_page")


def _labelled(rows: Mapping[str, Sequence[JudgedRow]]) -> list[JudgedRow]:
    """Name the model in front of the kind of prompt, which is what a sample's title begins with."""
    return [
        JudgedRow(one.row | {"split": f"{model} · {one.row['split']}"}, one.predictions)
        for model, of_model in rows.items()
        for one in of_model
    ]


def _validity(content: Mapping[str, Any]) -> str:
    heads = ["domain", "model", "prompt", "answers", "valid", "executable", "readable", "executable prefix"]
    heads += ["goal conditions", "length / reference", "C* / C"]
    keys = ("validity", "executability", "readable", "prefix", "goal", "length_ratio", "quality")
    rows = [
        row([*map(shown, names), str(cell["answers"]), *(plan_sections.measured(cell[key]) for key in keys)])
        for *names, cell in cells_of(content)
    ]
    note = "Rates with Wilson 95 % intervals, means with Student's t, both over problems. Length and C* compare with "
    note += "the plan that the file gives as reference, where it is valid: PlanBench's are of an optimal planner."
    return f'<h2>Results</h2>{table("summary", heads, rows)}<p class="soft">{shown(note)}</p>'


def _charts(content: Mapping[str, Any]) -> str:
    figures = []
    for domain, cells in grouped(cells_of(content), lambda cell: cell[0]).items():
        rates = {f"{model} · {prompt}": cell["validity"] for _, model, prompt, cell in cells}
        chart = plan_charts.interval_chart(f"{domain}: valid plans", rates)
        figures.append(f"<figure><h3>{shown(domain)}</h3>{chart}</figure>")
    return f'<h2>Valid plans</h2><div class="charts" id="validity">{"".join(figures)}</div>'


def _failures(content: Mapping[str, Any]) -> str:
    """Draw why plans fail and where they break, a bar for each model."""
    errors: dict[str, dict[str, int]] = {}
    for model, results in content["models"].items():
        names = {name for result in results.values() for name in result["errors"]}
        errors[model] = {name: sum(result["errors"][name] for result in results.values()) for name in names}
    broken = plan_sections.labelled_bars(content["where_plans_break"], BREAKS)
    return (
        f'<h2>Why plans are not valid</h2><div id="errors">{plan_sections.labelled_outcomes(errors)}</div>'
        f'<h2>Where plans break</h2><div id="breaks">{broken}</div>'
    )


def _recorded(recorded: Mapping[str, Any]) -> str:
    if not recorded["compared"]:
        return ""
    told = f"{recorded['equal']} of {recorded['compared']} verdicts are the recorded ones."
    reasons = table("reasons", ["reason", "answers"], [row([shown(n), str(c)]) for n, c in recorded["reasons"].items()])
    heads = list(recorded["table"][0])
    beside = table("recorded", heads, [row([shown(str(value)) for value in one.values()]) for one in recorded["table"]])
    names = ("source", "recorded", "verdict", "reason")
    listed = [row([shown(one[name]) for name in names]) for one in recorded["disagreements"][:_MOST_LISTED]]
    rest = len(recorded["disagreements"]) - _MOST_LISTED
    more = f'<p class="soft">and {rest} more, in eval.json</p>' if rest > 0 else ""
    cases = table("disagreements", names, listed, words=True) if listed else ""
    return f"<h2>Recorded verdicts</h2><p>{shown(told)}</p>{beside}{reasons}{cases}{more}"


def _second_judge(val: Mapping[str, Any]) -> str:
    if not val["asked"]:
        return ""
    names = ("source", "verdict", "val")
    listed = [row([shown(one[name]) for name in names]) for one in val["differences"][:_MOST_LISTED]]
    told = f"VAL was asked about {val['asked']} answers, and says the same of {val['equal']}."
    return f"<h2>VAL as second judge</h2><p>{told}</p>{table('val', names, listed, words=True) if listed else ''}"


def _extraction(content: Mapping[str, Any]) -> str:
    heads = ["rule", "readable", "valid", "saved"]
    rules = content["extraction"]["rules"]
    rows = [row([shown(rule), *(str(counts[name]) for name in heads[1:])]) for rule, counts in rules.items()]
    note = f"Judged here by the rule {content['extraction']['rule']}; saved: valid, and not so when read strictly."
    return f'<h2>Cutting the plan out</h2>{table("rules", heads, rows)}<p class="soft">{shown(note)}</p>'


def _not_judged(content: Mapping[str, Any]) -> str:
    lines = content["not_judged"]
    if not lines:
        return ""
    listed = [row([shown(one["source"]), shown(one["reason"])]) for one in lines[:_MOST_LISTED]]
    cases = table("not-judged", ("where", "why"), listed, words=True)
    return f"<h2>Not judged: {len(lines)}</h2>{cases}"
