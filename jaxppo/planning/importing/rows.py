"""Rows: the 10-column JSON lines of the paper, and our own."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxppo.config.reading import parse_json
from jaxppo.errors import DataError
from jaxppo.planning.datasets.config import is_split_name
from jaxppo.planning.datasets.files import PAPER_COLUMNS, SOURCE_COLUMNS, read_split, split_files
from jaxppo.planning.datasets.folder import Rejected
from jaxppo.planning.datasets.rows import COLUMNS, Row, checked_row, reference_plans
from jaxppo.planning.importing.instance_files import Entry, Instances, collect
from jaxppo.planning.importing.pddl_folder import natural_key
from jaxppo.planning.importing.source_problems import Reading, SourceProblem
from jaxppo.planning.language.plans import Action, parse_action


def read_paper(source: Path, pddl_dir: Path) -> Reading:
    """Read the paper's JSON lines, a file or all in a folder, with the PDDL of their instances.

    Source of the format: Huang, Cohn and Lipovetzky, ICAPS 2025; github.com/Sino-Huang/official-misconcept-lm-plan-gen.
    """
    return collect(_paper_entries(source), Instances(pddl_dir), "given")


def read_rows(source: Path) -> Reading:
    """Read a data set folder of ours, or one file of it: problems, plans, and all columns that are not made anew."""
    for path in [source] if source.is_file() else split_files(source):
        try:
            rows = read_split(path.parent, path.stem, {}) if path.suffix == ".parquet" else None
        except DataError as error:
            yield Rejected("", "", path.stem, path.name, f"unreadable: {error}")
            continue
        for where, row in _json_rows(path, source) if rows is None else _numbered(rows, path.name):
            yield row if isinstance(row, Rejected) else _own_row(row, where, path.stem)


def _paper_entries(source: Path) -> Iterator[Entry | Rejected]:
    files = [source] if source.is_file() else source.rglob("*.jsonl")
    for path in sorted(files, key=lambda path: natural_key(path.as_posix())):
        for where, row in _json_rows(path, source):
            yield row if isinstance(row, Rejected) else _paper_entry(row, where)


def _paper_entry(row: Row, where: str) -> Entry | Rejected:
    instance = row.get("instance_id")
    try:
        checked_row(row, where, PAPER_COLUMNS)
        if not isinstance(instance, int | str) or isinstance(instance, bool):
            raise DataError(f"{where}: field 'instance_id': expected a number or a name, got {instance!r:.60}")
        if not all(isinstance(step, str) for step in row["raw_plan"]):
            raise DataError(f"{where}: field 'raw_plan': expected texts, got {row['raw_plan']!r:.60}")
    except DataError as error:
        return Rejected("", "", "", where, f"unreadable: {error}")
    prompt = f"{row['instruction']}\n{row['input']}"
    columns = {"instance": str(instance), "source_prompt": prompt}
    return Entry(row["domain"], str(instance), "\n".join(row["raw_plan"]), where, columns)


def _json_rows(path: Path, source: Path) -> Iterator[tuple[str, Row | Rejected]]:
    """Yield the rows of a file and where they stand, read line by line: such files may be larger than memory."""
    label = path.name if path == source else path.relative_to(source).as_posix()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{label}:{number}"
            try:
                row = parse_json(line) if line.strip() else None
            except DataError as error:
                yield where, Rejected("", "", "", where, f"unreadable: {error}")
                continue
            if isinstance(row, dict):
                yield where, row
            elif row is not None:
                yield where, Rejected("", "", "", where, f"unreadable: expected an object, got {type(row).__name__}")


def _numbered(rows: Sequence[Row], name: str) -> Iterator[tuple[str, Row]]:
    return ((f"{name}:{number}", row) for number, row in enumerate(rows, 1))


def _own_row(row: Row, where: str, split: str) -> SourceProblem | Rejected:
    try:
        checked_row(row, where, SOURCE_COLUMNS)
        if not is_split_name(str(row.get("split") or split)):
            raise DataError(
                f"{where}: field 'split': expected letters, digits, '_' and '-', got {row.get('split')!r:.60}"
            )
    except DataError as error:
        return Rejected(str(row.get("id", "")), str(row.get("domain", "")), split, where, f"unreadable: {error}")
    if row.get("failures"):
        reason = "a conversation (repair rows): its prompt would be written anew"
        return Rejected(row["id"], row["domain"], str(row.get("split") or split), where, reason)
    found = SourceProblem(
        id=row["id"],
        domain=row["domain"],
        domain_pddl=row["domain_pddl"],
        problem_pddl=row["problem_pddl"],
        source=where,
        planner=str(row.get("planner") or "given"),
        split=str(row.get("split") or split),
        columns={name: value for name, value in row.items() if name not in COLUMNS},
    )
    try:
        return found._replace(plans=tuple(dict.fromkeys(map(_plan, reference_plans(row["reference_plan"])))))
    except (TypeError, ValueError) as error:
        return found._replace(plan_error=f"unreadable plan: {error}")


def _plan(steps: Sequence[Any]) -> tuple[Action, ...]:
    return tuple(parse_action(step) for step in steps)
