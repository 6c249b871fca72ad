"""Write the page about answers from files: any models, domains and kinds of prompts side by side."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxppo.evaluate.answers.results import BREAKS, AnswerResults, cells_of
from jaxppo.evaluate.predictions import JudgedRow
from jaxppo.report import pages
from jaxppo.report.plan_page import pick_samples
from jaxppo.report.plan_sections import OUTCOMES, in_order

_COLUMNS = {
    "valid": "validity",
    "executable": "executability",
    "readable": "readable",
    "executable prefix": "prefix",
    "goal conditions": "goal",
    "length / reference": "length_ratio",
    "C* / C": "quality",
}


def write_page(
    results: AnswerResults,
    path: Path | str,
    *,
    title: str,
    note: str = "",
) -> None:
    """Write the page atomically.

    Args:
        results: from `judge_answers`.
        path: the HTML file.
        title: heading.
        note: below the heading.
    """
    # `eval.json` has the same content: the page arranges it, and computes nothing anew.
    content = results.content
    rows = []
    rates: dict[str, dict[str, Any]] = {}
    for domain, model, prompt, cell in cells_of(content):
        measures = [cell[key] for key in _COLUMNS.values()]
        rows.append([domain, model, prompt, cell["answers"], *measures])
        rates.setdefault(domain, {})[f"{model} · {prompt}"] = cell["validity"]
    # A sample's title begins with the split: here it is the model, and the kind of prompt.
    labelled = []
    for model, judged in results.rows.items():
        for row in judged:
            named = row.row | {"split": f"{model} · {row.row['split']}"}
            labelled.append(JudgedRow(named, row.predictions))
    pages.write_page(
        path,
        "answers.html",
        title=title,
        note=note,
        content=content,
        heads=["domain", "model", "prompt", "answers", *_COLUMNS],
        rows=rows,
        rates=rates,
        errors={
            model: _outcomes(results_by_prompt)
            for model, results_by_prompt in content["models"].items()
        },
        breaks={
            model: in_order(counts, BREAKS)
            for model, counts in content["where_plans_break"].items()
        },
        samples=pick_samples(labelled),
    )


def _outcomes(results: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Add up why plans fail over a model's kinds of prompts."""
    counts: Counter[str] = Counter()
    for result in results.values():
        counts.update(result["errors"])
    return in_order(counts, OUTCOMES)
