"""The folder of a data set: splits, what was left out and why, leaks, vocabulary and card."""

import io
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from jaxppo.errors import DataError, PddlError
from jaxppo.planning import validate_actions
from jaxppo.planning.datasets.card import data_card
from jaxppo.planning.datasets.leaks import Mappings, find_leaks
from jaxppo.planning.datasets.rows import (
    COLUMNS,
    SPLIT_PARTITIONS,
    Row,
    checked_row,
    read_jsonl,
    reference_plans,
    write_jsonl,
    write_whole,
)
from jaxppo.planning.language.plans import parse_action
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.prompts import vocabulary
from jaxppo.planning.prompts.words import split_words
from jaxppo.planning.validate.val import find_val, run_val_many

REPORT_FILE, CARD_FILE, REJECTED_FILE = "report.json", "README.md", "rejected.jsonl"
VOCABULARY_FILE, OBFUSCATION_FILE = "vocabulary.json", "obfuscation.json"

FileFormat = Literal["jsonl", "parquet", "both"]

# What a reason starts with, and what it is counted as; others are counted as what stands before their colon.
_KINDS = ("invalid plan", "duplicate of", "plan length", "timeout", "memory", "limit", "unsolvable")


class Rejected(NamedTuple):
    """A problem that is in no split.

    Attributes:
        id: its name.
        domain: name of its domain.
        split: the split that it was meant for; empty where that was open.
        source: where it comes from: a file and line, or the generator's arguments.
        reason: why: `timeout`, `unsolvable`, `invalid plan at step 3: ...`, `duplicate id`, `duplicate of ID`,
            `plan length 18 in no band`, `unreadable: ...`.
    """

    id: str
    domain: str
    split: str
    source: str
    reason: str


def write_dataset(
    folder: Path | str,
    rows: Mapping[str, Sequence[Row]],
    rejected: Sequence[Rejected],
    *,
    file_format: FileFormat = "jsonl",
    title: str,
    how: str,
    licence: str | None = None,
    mappings: Mappings | None = None,
    words: Collection[str] = (),
    figures: Mapping[str, Any] | None = None,
    use_val: bool | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Write a data set; `report.json` comes last, so a folder that has one is complete.

    This is the last gate: a row whose id was there before, or whose reference plan a validator refuses, is not written
    but listed among the rejected ones. A split without rows has no file.

    Args:
        folder: where; made where there is none.
        rows: split to its rows, from `make_row`; columns that only some rows have are None in the others.
        rejected: what was left out before.
        file_format: how splits are written.
        title: heading of the card.
        how: the command, or a sentence, that says how the data set was made.
        licence: of the rows, as the Hugging Face hub names it; None: nobody knows.
        mappings: domain to style to the words of its obfuscation; rows name the style in a column `obfuscation`.
        words: further words for the vocabulary, such as names that no row has.
        figures: what else the report should hold.
        use_val: also ask VAL about every reference plan; None: where it is installed.
        workers: VAL processes at a time.

    Returns:
        What `report.json` holds.

    Raises:
        DataError: a column cannot be written, or there is no row at all.
        PddlError: a domain or problem that the validators do not cover.
        ValidatorError: VAL is asked for and missing.
    """
    folder = Path(folder)
    with_val = find_val() is not None if use_val is None else use_val
    kept, refused = _valid_rows({split: rows[split] for split in ordered_splits(rows)}, with_val, workers)
    kept = _with_equal_columns({split: own for split, own in kept.items() if own})
    if not kept:
        raise DataError(f"{folder}: expected at least one row with a valid plan, got none")
    features = _features([row for own in kept.values() for row in own])
    left_out = [*rejected, *refused]
    report = {
        "title": title,
        "how": how,
        "licence": licence,
        "validators": ["builtin", "VAL"] if with_val else ["builtin"],
        "splits": {split: _figures_of_split(own) for split, own in kept.items()},
        "rejected": dict(sorted(Counter(kind_of_reason(entry.reason) for entry in left_out).items())),
        "leaks": find_leaks(kept, mappings or {}),
        **(figures or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT_FILE).unlink(missing_ok=True)
    _write_splits(folder, kept, file_format, features)
    write_jsonl([entry._asdict() for entry in left_out], folder / REJECTED_FILE)
    _write_json(folder / VOCABULARY_FILE, _vocabulary([row for own in kept.values() for row in own], words))
    _write_json(folder / OBFUSCATION_FILE, mappings or {})
    write_whole(folder / CARD_FILE, data_card(report, features, _data_files(kept, file_format)).encode())
    _write_json(folder / REPORT_FILE, report)
    return report


def read_split(folder: Path | str, split: str, columns: Mapping[str, type] = COLUMNS) -> list[Row]:
    """Read the rows of a split from `<split>.jsonl`, or else from `<split>.parquet`; both give the same rows.

    Raises:
        DataError: neither can be read, or a row does not have every one of the columns in the right type.
    """
    path = Path(folder) / f"{split}.jsonl"
    if path.exists():
        return read_jsonl(path, columns)
    if path.with_suffix(".parquet").exists():
        return _read_parquet(path.with_suffix(".parquet"), columns)
    there = sorted({file.stem for file in Path(folder).glob("*") if file.suffix in (".jsonl", ".parquet")})
    got = f"{', '.join(there) or 'no splits'} in the folder"
    raise DataError(
        f"{path}: expected this file or {split}.parquet, got {got}; train_split, eval_splits, headline_split name them"
    )


def kind_of_reason(reason: str) -> str:
    """What a reason is counted as: `invalid plan at step 3: ...` is an `invalid plan`."""
    known = (kind for kind in _KINDS if reason.startswith(kind))
    return next(known, reason.partition(":")[0]).removesuffix(" of")


def figures_of(values: Sequence[int]) -> dict[str, float]:
    """The least, the median and the largest of some numbers."""
    return {"min": min(values), "median": median(values), "max": max(values)}


def ordered_splits(names: Collection[str]) -> list[str]:
    """The splits in their usual order, others behind them."""
    return [*(split for split in SPLIT_PARTITIONS if split in names), *(s for s in names if s not in SPLIT_PARTITIONS)]


# ------------------------------------------------------------------------------------------------------------- checks


def _valid_rows(
    rows: Mapping[str, Sequence[Row]], use_val: bool, workers: int | None
) -> tuple[dict[str, list[Row]], list[Rejected]]:
    """The rows that may be written, and the others."""
    seen: set[str] = set()
    reasons: dict[int, str] = {}
    for row in (row for own in rows.values() for row in own):
        reason = "duplicate id" if row["id"] in seen else _objection(row)
        if reason is not None:
            reasons[id(row)] = reason
        seen.add(row["id"])
    if use_val:
        passed = [row for own in rows.values() for row in own if id(row) not in reasons]
        reasons |= _objections_of_val(passed, workers)
    kept = {split: [row for row in own if id(row) not in reasons] for split, own in rows.items()}
    refused = [
        Rejected(row["id"], row["domain"], split, str(row.get("source") or row["id"]), reasons[id(row)])
        for split, own in rows.items()
        for row in own
        if id(row) in reasons
    ]
    return kept, refused


def _objection(row: Row) -> str | None:
    """What the validator in this process has against a row's reference plans."""
    for plan in reference_plans(row["reference_plan"]):
        try:
            verdict = validate_actions(row["domain_pddl"], row["problem_pddl"], tuple(map(parse_action, plan)), "auto")
        except PddlError as error:
            return f"unreadable: {error}"
        except ValueError as error:
            return f"invalid plan: {error}"
        if not verdict.valid:
            return describe(verdict)
    return None


def _objections_of_val(rows: Sequence[Row], workers: int | None) -> dict[int, str]:
    cases = [
        (row, (row["domain_pddl"], row["problem_pddl"], tuple(map(parse_action, plan))))
        for row in rows
        for plan in reference_plans(row["reference_plan"])
    ]
    verdicts = run_val_many([case for _, case in cases], workers=workers)
    return {
        id(row): f"{describe(verdict)} (VAL)"
        for (row, _), verdict in zip(cases, verdicts, strict=True)
        if not verdict.valid
    }


def describe(verdict: PlanVerdict) -> str:
    """Say why a plan is not valid, as a reason for `Rejected`."""
    if verdict.error in (PlanError.VALIDATOR_CRASH, PlanError.VALIDATOR_TIMEOUT):
        return f"no verdict: {verdict.error}"
    at = "" if verdict.failed_step is None else f" at step {verdict.failed_step}"
    condition = "" if verdict.failed_condition is None else f" {verdict.failed_condition}"
    return f"invalid plan{at}: {verdict.error}{condition}"


# ------------------------------------------------------------------------------------------------------------ columns


def _with_equal_columns(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Every row with every column, in one order; one nested `reference_plan` makes all of them nested."""
    every = [row for own in rows.values() for row in own]
    names = dict.fromkeys([*COLUMNS, *(name for row in every for name in row)])
    nested = any(not isinstance(entry, str) for row in every for entry in row["reference_plan"])

    def equal(row: Row) -> Row:
        full = {name: row.get(name) for name in names}
        if nested:
            full["reference_plan"] = [list(plan) for plan in reference_plans(row["reference_plan"])]
        return full

    return {split: [equal(row) for row in own] for split, own in rows.items()}


def _features(rows: Sequence[Row]) -> dict[str, Any]:
    """Column to its type, in the words of the `datasets` library; `{"list": ...}` for a list."""
    return {name: _feature([row[name] for row in rows], name) for name in rows[0]}


def _feature(values: Iterable[Any], name: str) -> Any:
    values = [value for value in values if value is not None]
    kinds = {type(value) for value in values}
    if kinds <= {list, tuple} and kinds:
        return {"list": _feature((item for value in values for item in value), name)}
    if kinds <= {str}:
        return "string"
    if kinds <= {int, float}:
        return "float64" if float in kinds else "int64"
    if kinds == {bool}:
        return "bool"
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(f"column {name}: expected texts, numbers or lists of one of them, got {found}")


# -------------------------------------------------------------------------------------------------------------- files


def _data_files(rows: Mapping[str, Sequence[Row]], file_format: FileFormat) -> dict[str, str]:
    """Split to the file that readers should take."""
    suffix = "parquet" if file_format == "parquet" else "jsonl"
    return {split: f"{split}.{suffix}" for split in rows}


def _write_splits(
    folder: Path, rows: Mapping[str, Sequence[Row]], file_format: FileFormat, features: Mapping[str, Any]
) -> None:
    for split, own in rows.items():
        if file_format in ("jsonl", "both"):
            write_jsonl(own, folder / f"{split}.jsonl")
        if file_format in ("parquet", "both"):
            write_parquet(own, folder / f"{split}.parquet", features)


def write_parquet(rows: Sequence[Row], path: Path, features: Mapping[str, Any] | None = None) -> None:
    """Write rows as a parquet file, which appears whole or not at all.

    Args:
        rows: with the same columns in all of them.
        path: the file.
        features: column to its type; default: as the rows have them.

    Raises:
        DataError: a column cannot be written.
    """
    import pyarrow as pa  # slow to import, and not needed for JSON lines
    import pyarrow.parquet

    def arrow(feature: Any) -> pa.DataType:
        if isinstance(feature, dict):
            return pa.list_(arrow(feature["list"]))
        return {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}[feature]

    types = _features(rows) if features is None else features
    schema = pa.schema([(name, arrow(feature)) for name, feature in types.items()])
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows), schema), buffer, compression="zstd")
    write_whole(path, buffer.getvalue())


def _read_parquet(path: Path, columns: Mapping[str, type]) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        if path.is_dir():  # of parts, as Spark writes it
            rows = pyarrow.parquet.read_table(path).to_pylist()
        else:
            with pyarrow.parquet.ParquetFile(path) as file:  # read_table would import pandas
                rows = file.read().to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: expected a Parquet file, got: {error}") from error
    return [checked_row(row, f"{path}:{number}", columns) for number, row in enumerate(rows, 1)]


def _write_json(path: Path, content: Any) -> None:
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


# ------------------------------------------------------------------------------------------------------------- report


def _figures_of_split(rows: Sequence[Row]) -> dict[str, Any]:
    """Domain to the number of its rows, the lengths of their plans and their objects."""
    domains: dict[str, list[Row]] = {}
    for row in rows:
        domains.setdefault(row["domain"], []).append(row)
    return {
        domain: {
            "rows": len(own),
            "plan_length": figures_of([row["plan_length"] for row in own]),
            "n_objects": figures_of([row["n_objects"] for row in own]),
            "planners": dict(sorted(Counter(row["planner"] for row in own).items())),
        }
        for domain, own in domains.items()
    }


def _vocabulary(rows: Iterable[Row], words: Collection[str]) -> list[str]:
    """Every word of prompts and completions, and what their domains may say in other problems."""
    found = set(words)
    domains: dict[tuple[str, str], None] = {}
    for row in rows:
        found.update(split_words(row["prompt"]), split_words(row["completion"]))
        domains[row["prompt_style"], row["domain_pddl"]] = None
    for style, domain_pddl in domains:
        found.update(vocabulary([domain_pddl], (), style))
    return sorted(found)


def split_table(splits: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of every split and domain as aligned text, for a terminal."""
    lines = [["split", "domain", "rows", "plan length", "objects"]]
    for split, domains in splits.items():
        for domain, own in domains.items():
            figures = (own["plan_length"], own["n_objects"])
            ranges = [f"{each['min']}-{each['median']:g}-{each['max']}" for each in figures]
            lines.append([split, domain, str(own["rows"]), *ranges])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
