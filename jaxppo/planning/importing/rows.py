"""Rows: the 10-column JSON lines of the paper, and our own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxppo.errors import DataError
from jaxppo.planning.datasets.config import is_split_name
from jaxppo.planning.datasets.files import PAPER_COLUMNS, SOURCE_COLUMNS, split_files
from jaxppo.planning.datasets.folder import Rejected
from jaxppo.planning.datasets.rows import COLUMNS, Row, checked_row, reference_plans
from jaxppo.planning.importing.instance_files import Entry, Instances, collect
from jaxppo.planning.importing.source_files import file_label, list_files, located_rows
from jaxppo.planning.importing.source_problems import (
    FROM_SOURCE,
    Reading,
    SourceProblem,
    unreadable,
)
from jaxppo.planning.language.plans import Action, parse_action


def read_paper(source: Path, pddl_dir: Path) -> Reading:
    """Read the paper's JSON lines, a file or all in a folder, with the PDDL of their instances.

    Source of the format: Huang, Cohn and Lipovetzky, ICAPS 2025; github.com/Sino-Huang/official-misconcept-lm-plan-gen.
    """
    return collect(_paper_entries(source), Instances(pddl_dir))


def read_rows(source: Path) -> Reading:
    """Read a data set folder of ours, or one file of it: problems, plans, and all columns that are not made anew."""
    for path in split_files(source) if source.is_dir() else [source]:
        for place, row in located_rows(path, file_label(path, source)):
            if isinstance(row, DataError):
                yield unreadable(place, row)
            else:
                yield _own_problem(row, place, path.stem)


def _paper_entries(source: Path) -> Iterator[Entry | Rejected]:
    for path in list_files(source, "*.jsonl"):
        for place, row in located_rows(path, file_label(path, source)):
            yield unreadable(place, row) if isinstance(row, DataError) else _paper_entry(row, place)


def _paper_entry(row: Row, place: str) -> Entry | Rejected:
    instance = row.get("instance_id")
    try:
        checked_row(row, place, PAPER_COLUMNS)
        # A bool is an int to Python, but no number of an instance.
        if not isinstance(instance, int | str) or isinstance(instance, bool):
            raise DataError(
                f"{place}: field 'instance_id': expected a number or a name, got {instance!r:.60}"
            )
        if not all(isinstance(step, str) for step in row["raw_plan"]):
            raise DataError(
                f"{place}: field 'raw_plan': expected texts, got {row['raw_plan']!r:.60}"
            )
    except DataError as error:
        return unreadable(place, error)
    prompt = f"{row['instruction']}\n{row['input']}"
    columns = {"instance": str(instance), "source_prompt": prompt}
    return Entry(row["domain"], str(instance), "\n".join(row["raw_plan"]), place, columns)


def _own_problem(row: Row, place: str, file_split: str) -> SourceProblem | Rejected:
    """Make the problem of a row of ours; without a split of its own, it is of the one that its file is named after."""
    split = str(row.get("split") or file_split)
    try:
        checked_row(row, place, SOURCE_COLUMNS)
        if not is_split_name(split):
            raise DataError(
                f"{place}: field 'split': expected letters, digits, '_' and '-', got {split!r:.60}"
            )
    except DataError as error:
        return unreadable(
            place, error, str(row.get("id", "")), str(row.get("domain", "")), file_split
        )
    problem = SourceProblem(
        id=row["id"],
        domain=row["domain"],
        domain_pddl=row["domain_pddl"],
        problem_pddl=row["problem_pddl"],
        source=place,
        planner=str(row.get("planner") or FROM_SOURCE),
        split=split,
        # Columns of ours are made anew; those that somebody added are kept.
        columns={name: value for name, value in row.items() if name not in COLUMNS},
    )
    # A plan that cannot be read need not lose the problem: a planner may replace it.
    try:
        plans = [_plan(steps) for steps in reference_plans(row["reference_plan"])]
    except (TypeError, ValueError) as error:
        return problem._replace(plan_error=f"unreadable plan: {error}")
    return problem._replace(plans=tuple(dict.fromkeys(plans)))


def _plan(steps: Any) -> tuple[Action, ...]:
    return tuple(parse_action(step) for step in steps)
