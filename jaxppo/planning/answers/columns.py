"""Which column, or field, of a file of answers holds what."""

from collections.abc import Mapping
from typing import Any

from jaxppo.errors import ConfigError, DataError
from jaxppo.planning.answers.answer import PlanAnswer, parse_name, parse_plan_field, parse_verdict

Columns = Mapping[str, tuple[str, ...]]
"""What an answer needs to the names of the columns that may hold it: the first one that a row has is read."""

TABLE: Columns = {
    "plan": ("plan", "completion"),
    "problem": ("problem", "problem_pddl", "id", "instance_id"),
    "domain": ("domain_pddl", "domain"),
    "model": ("model",),
    "prompt": ("prompt",),
    "reference": ("reference", "reference_plan"),
    "correct": ("correct",),
}
"""Of JSON lines, lists in JSON, CSV and Parquet."""

PLANBENCH: Columns = {
    "plan": ("extracted_llm_plan", "llm_raw_response"),
    "problem": ("instance_id",),
    "reference": ("ground_truth_plan",),
    "correct": ("llm_correct", "correct"),
}
"""Of PlanBench's result files; model, domain and prompt are in the path."""


def parse_columns(text: str | None) -> Mapping[str, str]:
    """Read `plan=answer,problem=task`.

    Raises:
        ConfigError: it says something else.
    """
    # Twice is an error, as one of both would be ignored.
    column_names: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, sign, column = (piece.strip() for piece in part.partition("="))
        if not sign or not column or name not in TABLE or name in column_names:
            usage = f"each of {', '.join(TABLE)} at most once, as in plan=answer,problem=task"
            raise ConfigError(f"columns: expected {usage}, got {part!r}")
        column_names[name] = column
    return column_names


def with_column_names(columns: Columns, column_names: Mapping[str, str]) -> Columns:
    """Put the columns that were asked for in the place of the usual ones."""
    # One name alone: what was asked for and is missing must not be read from a usual column.
    return {**columns, **{name: (column,) for name, column in column_names.items()}}


def read_row(
    row: Mapping[str, Any], columns: Columns, source: str, defaults: Mapping[str, str]
) -> PlanAnswer:
    """Make an answer of a row.

    Args:
        row: column to value.
        columns: which holds what.
        source: file, and place in it.
        defaults: model, domain and prompt as far as the path has them, for rows that do not say.

    Raises:
        DataError: a column is missing, or holds something else.
    """
    values: dict[str, Any] = {}
    for field, column_names in columns.items():
        column = next((name for name in column_names if name in row), None)
        if column is not None:
            values[field] = row[column]
        elif field in ("plan", "problem"):
            raise DataError(
                f"expected the column {' or '.join(column_names)}, or its name in --columns {field}=COLUMN, "
                f"got {', '.join(map(str, row)):.100}"
            )

    def name(field: str) -> str:
        return parse_name(values.get(field), field) or defaults.get(field, "")

    problem = name("problem")
    if not problem.strip():
        raise DataError("problem: expected a name, a file or PDDL, got nothing")
    # PlanBench's own extraction, to compare with; where it
    # is the answer itself, there is nothing to compare.
    extracted = row.get("extracted_llm_plan")
    is_answer = "extracted_llm_plan" in columns["plan"] and "extracted_llm_plan" in row
    return PlanAnswer(
        source=source,
        model=name("model"),
        domain=name("domain"),
        prompt=name("prompt"),
        problem=problem,
        text=parse_plan_field(values["plan"], "plan"),
        reference=_plan_text(values.get("reference")),
        recorded=parse_verdict(values.get("correct"), "correct"),
        extracted=None if extracted is None or is_answer else _plan_text(extracted),
    )


def _plan_text(value: Any) -> str:
    """Read a plan beside the answer: as a plan, the first of several, or PlanBench's `{"plan": ...}`; else nothing."""
    if isinstance(value, dict):
        value = value.get("plan")
    if isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]
    # It is only compared with the answer, so one that
    # cannot be read loses nothing but the comparison.
    try:
        return parse_plan_field(value, "reference") or ""
    except DataError:
        return ""
