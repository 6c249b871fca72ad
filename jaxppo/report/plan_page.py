"""Write the page of an evaluation: one HTML file with tables, plots and plans to step through state by state.

It is self-contained, and model output is shown as text: see `pages`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from jaxppo.evaluate.comparison import TESTS
from jaxppo.evaluate.plan_metrics import Results
from jaxppo.evaluate.predictions import JudgedPrediction, JudgedRow
from jaxppo.planning import UnsupportedPddlError, format_action, parse_domain, parse_problem
from jaxppo.planning.language.plans import PlanError
from jaxppo.planning.validate.trace import TraceStep, trace
from jaxppo.report import pages
from jaxppo.report.pages import clean_lines
from jaxppo.report.plan_sections import arrange_plans
from jaxppo.reward_functions.plan import describe
from jaxppo.run.console import sanitize

_MAX_STEPS = 1_000


# -------------------------------------------------------------------------------------------------------------- samples


def pick_samples(judged: Sequence[JudgedRow], count: int = 24) -> list[dict[str, Any]]:
    """Choose predictions to show: in turn one of each split, domain and outcome, the first of each kind first.

    Args:
        judged: rows of any splits.
        count: how many at most.

    Returns:
        Samples for `write_page`.
    """
    kinds: dict[tuple[str, str, Any], list[tuple[JudgedRow, JudgedPrediction]]] = {}
    for row in judged:
        for prediction in row.predictions:
            kind = (row.row["split"], row.row["domain"], prediction.outcome.verdict.error)
            kinds.setdefault(kind, []).append((row, prediction))
    # In turn one of each kind: hundreds of one failure must not hide the only one of another.
    turns = chain.from_iterable(zip_longest(*kinds.values()))
    return [page_sample(*pair) for pair in islice(filter(None, turns), count)]


def page_sample(row: JudgedRow, judged: JudgedPrediction) -> dict[str, Any]:
    """Return one prediction as the page shows it, with its plan carried out step by step."""
    # Texts are sanitized here, as the page's script puts them in after the template.
    verdict = judged.outcome.verdict
    error = "valid" if verdict.error is None else verdict.error.value.replace("_", " ")
    shortest = min(row.references, key=len, default=())
    steps, note = _trace(row, judged)
    return {
        "title": sanitize(f"{row.row['split']} · {row.row['id']} · {error}", 200),
        "verdict": sanitize(describe(verdict)),
        "valid": verdict.valid,
        "text": clean_lines(
            "(no answer)" if judged.prediction.text is None else judged.prediction.text
        ),
        "plan": _atoms(judged.outcome.actions[:_MAX_STEPS]),
        "reference": _atoms(shortest),
        "trace": steps,
        "note": note,
    }


def _trace(row: JudgedRow, judged: JudgedPrediction) -> tuple[dict[str, Any] | None, str]:
    """Return the states that a plan goes through, and what a reader must know about them."""
    actions = judged.outcome.actions
    try:
        problem = parse_problem(row.row["problem_pddl"], parse_domain(row.row["domain_pddl"]))
        states = trace(problem, actions[:_MAX_STEPS])
    except UnsupportedPddlError as error:
        return None, f"The states are not shown: {sanitize(str(error), 300)}"
    # What VAL or the parser says of the text is not in the states; the reader must know.
    note = ""
    if judged.outcome.verdict.error is PlanError.SYNTAX:
        note = f"The text cannot be read as a plan after step {len(actions)}: the plan counts as failed."
    elif len(actions) > _MAX_STEPS:
        note = f"Only the first {_MAX_STEPS} of {len(actions)} steps are shown."
    return {
        "facts": _atoms(states.facts),
        "numbers": _numbers(states.numbers),
        "goals": [list(check) for check in states.goals],
        "steps": [_step(step) for step in states.steps],
    }, note


def _step(step: TraceStep) -> dict[str, Any]:
    reason = None if step.error is None else step.error.value.replace("_", " ")
    if step.failed_condition is not None:
        reason = f"{reason} {step.failed_condition} does not hold"
    return {
        "action": format_action(step.action),
        "preconditions": [list(check) for check in step.preconditions],
        "added": _atoms(step.added),
        "deleted": _atoms(step.deleted),
        "numbers": _numbers(step.numbers),
        "goals": list(step.goals),
        "error": step.error is not None,
        "reason": reason,
    }


def _atoms(atoms: Iterable[tuple[str, ...]]) -> list[str]:
    return [format_action(atom) for atom in atoms]


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
    models = [(label, results)]
    if other:
        models.insert(0, (other_label, other))
    tests = dict.fromkeys(TESTS[result["test"]] for result in (comparison or {}).values())
    pages.write_page(
        path,
        "evaluation.html",
        title=title,
        note=note,
        label=label,
        other_label=other_label,
        sections=arrange_plans(models),
        comparison=comparison,
        tests=list(tests),
        samples=samples,
    )
