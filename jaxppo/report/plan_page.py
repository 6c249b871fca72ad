"""Write the page of an evaluation: one HTML file with tables, plots and plans to step through state by state.

It is self-contained, and model output is shown as text: see `html`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from jaxppo.evaluate.predictions import JudgedPrediction, JudgedRow
from jaxppo.planning import UnsupportedPddlError, format_action, parse_domain, parse_problem
from jaxppo.planning.language.plans import PlanError
from jaxppo.planning.validate.trace import Trace, TraceStep, trace
from jaxppo.report import html, plan_sections
from jaxppo.report.html import clean_lines, shown
from jaxppo.report.plan_sections import Results
from jaxppo.reward_functions.plan import describe
from jaxppo.run.console import sanitize

_MOST_STEPS = 1_000


# -------------------------------------------------------------------------------------------------------------- samples


def pick_samples(judged: Sequence[JudgedRow], most: int = 24) -> list[dict[str, Any]]:
    """Choose predictions to show: in turn one of each split, domain and outcome, the first of each kind first.

    Args:
        judged: rows of any splits.
        most: how many at most.

    Returns:
        Samples for `write_page`.
    """
    kinds: dict[tuple[str, str, Any], list[tuple[JudgedRow, JudgedPrediction]]] = {}
    for row in judged:
        for prediction in row.predictions:
            kind = (row.row["split"], row.row["domain"], prediction.outcome.verdict.error)
            kinds.setdefault(kind, []).append((row, prediction))
    turns = zip_longest(*kinds.values())
    chosen = [pair for turn in turns for pair in turn if pair is not None][:most]
    return [page_sample(row, prediction) for row, prediction in chosen]


def page_sample(row: JudgedRow, judged: JudgedPrediction) -> dict[str, Any]:
    """Return one prediction as the page shows it, with its plan carried out step by step."""
    verdict = judged.outcome.verdict
    error = "valid" if verdict.error is None else verdict.error.value.replace("_", " ")
    shortest = min(row.references, key=len, default=())
    steps, note = _trace(row, judged)
    return {
        "title": sanitize(f"{row.row['split']} · {row.row['id']} · {error}", 200),
        "verdict": sanitize(describe(verdict)),
        "valid": verdict.valid,
        "text": clean_lines("(no answer)" if judged.prediction.text is None else judged.prediction.text),
        "plan": [format_action(action) for action in judged.outcome.actions[:_MOST_STEPS]],
        "reference": [format_action(action) for action in shortest],
        "trace": steps,
        "note": note,
    }


def _trace(row: JudgedRow, judged: JudgedPrediction) -> tuple[dict[str, Any] | None, str]:
    actions = judged.outcome.actions
    try:
        problem = parse_problem(row.row["problem_pddl"], parse_domain(row.row["domain_pddl"]))
        steps = _plain_trace(trace(problem, actions[:_MOST_STEPS]))
    except UnsupportedPddlError as error:
        return None, f"The states are not shown: {sanitize(str(error), 300)}"
    if judged.outcome.verdict.error is PlanError.SYNTAX:
        return steps, f"The text cannot be read as a plan behind step {len(actions)}: the plan counts as failed."
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
    """Write the page of an evaluation atomically.

    Args:
        results: of the model, from `plan_metrics.plan_results`.
        samples: from `pick_samples`.
        path: the HTML file.
        title: heading.
        label: name of the model.
        other: results of another model, or of the same one before training.
        other_label: name of that model.
        comparison: from `comparison.compare_splits(other, model)`.
        note: below the heading, for instance how the predictions were made.
    """
    models = ([(other_label, other)] if other else []) + [(label, results)]
    parts = [
        f"<h1>{shown(title)}</h1>",
        f'<p class="soft">{shown(note)}</p>' if note else "",
        plan_sections.summary(models),
        plan_sections.comparison_table(comparison, label, other_label) if comparison else "",
        plan_sections.validity_charts(models),
        plan_sections.outcome_bars(models),
        viewer(len(samples)),
        html.data("samples-data", samples),
    ]
    html.write_page(path, title, parts, "plan_page")


def viewer(count: int) -> str:
    """Return the part of the page that steps through samples; empty where there are none."""
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
