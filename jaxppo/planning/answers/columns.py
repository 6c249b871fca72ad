"""Which column, or field, of a file of answers holds what."""

from collections.abc import Mapping
from typing import Any

from jaxppo.errors import ConfigError, DataError
from jaxppo.planning.answers.answer import Answer, name_of, text_of, verdict_of

Columns = Mapping[str, tuple[str, ...]]
"""What an answer needs to the names of the columns that may hold it: the first that is there does."""

TABLE: Columns = {
    "plan": ("plan", "completion"),
    "problem": ("problem", "problem_pddl", "id", "instance_id"),
    "domain": ("domain_pddl", "domain"),
    "model": ("model",),
    "prompt": ("prompt",),
    "reference": ("reference", "reference_plan"),
    "correct": ("correct",),
}
"""Of JSON lines, CSV and Parquet."""

PLANBENCH: Columns = {
    "plan": ("extracted_llm_plan", "llm_raw_response"),
    "problem": ("instance_id",),
    "domain": (),
    "model": (),
    "prompt": (),
    "reference": ("ground_truth_plan",),
    "correct": ("llm_correct", "correct"),
}
"""Of PlanBench's result files; model, domain and prompt are in the path."""


def parse_columns(text: str | None) -> Mapping[str, str]:
    """Read `plan=answer,problem=task`.

    Raises:
        ConfigError: it says something else.
    """
    named: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, sign, column = (piece.strip() for piece in part.partition("="))
        if not sign or not column or name not in TABLE or name in named:
            expected = f"each of {', '.join(TABLE)} at most once, as in plan=answer,problem=task"
            raise ConfigError(f"columns: expected {expected}, got {part!r}")
        named[name] = column
    return named


def with_named(columns: Columns, named: Mapping[str, str]) -> Columns:
    """Put the columns that were asked for in the place of the usual ones."""
    return {**columns, **{name: (column,) for name, column in named.items()}}


def read_row(row: Mapping[str, Any], columns: Columns, source: str, known: Mapping[str, str]) -> Answer:
    """Make an answer of a row.

    Args:
        row: column to value.
        columns: which holds what.
        source: file, and place in it.
        known: model, domain and prompt as far as the path tells them; what the row says comes first.

    Raises:
        DataError: a column is missing, or holds something else.
    """
    found = {of: next((column for column in names if column in row), None) for of, names in columns.items()}
    for needed in ("plan", "problem"):
        if found[needed] is None:
            raise DataError(f"expected the column {' or '.join(columns[needed])}, got {', '.join(map(str, row)):.100}")

    def value(of: str) -> Any:
        column = found[of]
        return None if column is None else row[column]

    def name(of: str) -> str:
        return name_of(value(of), of) or known.get(of, "")

    problem = name("problem")
    if not problem.strip():
        raise DataError("problem: expected a name, a file or PDDL, got nothing")
    extracted = row.get("extracted_llm_plan") if found["plan"] != "extracted_llm_plan" else None
    return Answer(
        source=source,
        model=name("model"),
        domain=name("domain"),
        prompt=name("prompt"),
        problem=problem,
        text=text_of(value("plan"), "plan"),
        reference=_plan_text(value("reference")),
        recorded=verdict_of(value("correct"), "correct"),
        extracted=None if extracted is None else _plan_text(extracted),
    )


def _plan_text(value: Any) -> str:
    """Read a plan beside the answer: as a plan, the first of several, or PlanBench's `{"plan": ...}`; else nothing."""
    if isinstance(value, dict):
        value = value.get("plan")
    if isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]
    try:
        return text_of(value, "reference") or ""
    except DataError:
        return ""
