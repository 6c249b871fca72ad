"""The folder of a data set: splits, what was left out and why, leaks, vocabulary and card."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from jaxppo.config.paths import write_atomically
from jaxppo.errors import DataError, PddlError
from jaxppo.planning.datasets.card import data_card
from jaxppo.planning.datasets.files import (
    CARD_FILE,
    OBFUSCATION_FILE,
    REJECTED_FILE,
    REPORT_FILE,
    VOCABULARY_FILE,
    features_of,
    ordered_splits,
    write_json,
    write_jsonl,
    write_parquet,
)
from jaxppo.planning.datasets.leaks import Mappings, find_leaks
from jaxppo.planning.datasets.rows import COLUMNS, Row, reference_plans
from jaxppo.planning.language.plans import parse_action
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.prompts import split_words, vocabulary
from jaxppo.planning.validate.api import validate_actions
from jaxppo.planning.validate.val import find_val, run_val_many

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
    features = features_of([row for own in kept.values() for row in own])
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
    write_json(_vocabulary([row for own in kept.values() for row in own], words), folder / VOCABULARY_FILE)
    write_json(mappings or {}, folder / OBFUSCATION_FILE)
    write_atomically(folder / CARD_FILE, data_card(report, features, _data_files(kept, file_format)))
    write_json(report, folder / REPORT_FILE)
    return report


def kind_of_reason(reason: str) -> str:
    """Return the kind of a reason: `invalid plan at step 3: ...` is an `invalid plan`."""
    known = (kind for kind in _KINDS if reason.startswith(kind))
    return next(known, reason.partition(":")[0]).removesuffix(" of")


def figures_of(values: Sequence[int]) -> dict[str, float]:
    """Return the least, the median and the largest of some numbers."""
    return {"min": min(values), "median": median(values), "max": max(values)}


# ------------------------------------------------------------------------------------------------------------- checks


def _valid_rows(
    rows: Mapping[str, Sequence[Row]], use_val: bool, workers: int | None
) -> tuple[dict[str, list[Row]], list[Rejected]]:
    """Separate the rows that may be written from the others."""
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
    """Say what the validator in this process has against a row's reference plans; None for nothing."""
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
    return f"invalid plan{verdict.write_fault()}"


# ------------------------------------------------------------------------------------------------------------ columns


def _with_equal_columns(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Give every row every column, in one order; one nested `reference_plan` makes all of them nested."""
    every = [row for own in rows.values() for row in own]
    names = dict.fromkeys([*COLUMNS, *(name for row in every for name in row)])
    nested = any(not isinstance(entry, str) for row in every for entry in row["reference_plan"])

    def equal(row: Row) -> Row:
        full = {name: row.get(name) for name in names}
        if nested:
            full["reference_plan"] = [list(plan) for plan in reference_plans(row["reference_plan"])]
        return full

    return {split: [equal(row) for row in own] for split, own in rows.items()}


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


# ------------------------------------------------------------------------------------------------------------- report


def _figures_of_split(rows: Sequence[Row]) -> dict[str, Any]:
    """Measure a split: for each domain its rows, the lengths of their plans and their objects."""
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
    """Collect every word of prompts and completions, and what their domains may say in other problems."""
    found = set(words)
    domains: dict[tuple[str, str], None] = {}
    for row in rows:
        found.update(split_words(row["prompt"]), split_words(row["completion"]))
        domains[row["prompt_style"], row["domain_pddl"]] = None
    for style, domain_pddl in domains:
        found.update(vocabulary([domain_pddl], (), style))
    return sorted(found)


def split_table(splits: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the figures of every split and domain as aligned text, for a terminal."""
    lines = [["split", "domain", "rows", "plan length", "objects"]]
    for split, domains in splits.items():
        for domain, own in domains.items():
            figures = (own["plan_length"], own["n_objects"])
            ranges = [f"{each['min']}-{each['median']:g}-{each['max']}" for each in figures]
            lines.append([split, domain, str(own["rows"]), *ranges])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
