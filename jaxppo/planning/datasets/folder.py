"""The folder of a data set: splits, what was left out and why, leaks, vocabulary and card."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

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
)
from jaxppo.planning.datasets.leaks import Mappings, find_leaks
from jaxppo.planning.datasets.rows import COLUMNS, Row, reference_plans
from jaxppo.planning.language.plans import parse_action
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.prompts import split_words, vocabulary
from jaxppo.planning.validate.api import validate_actions
from jaxppo.planning.validate.val import find_val, run_val_many

# Reasons that begin with one of these are counted under
# it, all others under what stands before their colon.
_REASON_KINDS = (
    "invalid plan",
    "duplicate of",
    "plan length",
    "timeout",
    "memory",
    "limit",
    "unsolvable",
)


class Rejected(NamedTuple):
    """A problem that is in no split.

    Attributes:
        id: its name.
        domain: name of its domain.
        split: the split that it was meant for; empty where that was not decided.
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
    title: str,
    command: str,
    licence: str | None = None,
    mappings: Mappings | None = None,
    words: Collection[str] = (),
    figures: Mapping[str, Any] | None = None,
    use_val: bool | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Write a data set; `report.json` comes last, so a folder that has one is complete.

    Every row is checked here, whoever made it: one with the id of another, or with a reference plan that a validator
    refuses, is not written but listed among the rejected ones. A split without rows has no file.

    Args:
        folder: of the data set; it is created if it does not exist.
        rows: split to its rows, from `make_row`; columns that only some rows have are None in the others.
        rejected: problems that were left out before.
        title: heading of the card.
        command: what made the data set, or a sentence that says how it was made.
        licence: of the rows, as the Hugging Face hub names it; None: not known.
        mappings: domain to style to the words of its obfuscation; rows name the style in a column `obfuscation`.
        words: further words for the vocabulary, such as names that no row has.
        figures: further entries of the report.
        use_val: also ask VAL about every reference plan; None: where it is installed.
        workers: VAL processes at a time.

    Returns:
        What `report.json` holds.

    Raises:
        DataError: a column cannot be written, or no row is left.
        PddlError: a domain or problem that the validators do not cover.
        ValidatorError: VAL is asked for and missing.
    """
    folder = Path(folder)
    with_val = find_val() is not None if use_val is None else use_val
    valid_rows, refused = _valid_rows(
        {split: rows[split] for split in ordered_splits(rows)}, with_val, workers
    )
    if not valid_rows:
        raise DataError(f"{folder}: expected at least one row with a valid plan, got none")
    rows_by_split = _with_equal_columns(valid_rows)
    all_rows = list(chain.from_iterable(rows_by_split.values()))
    # Of all rows, since a column may be empty in a whole split.
    features = features_of(all_rows)
    rejected = [*rejected, *refused]
    reason_counts = Counter(kind_of_reason(entry.reason) for entry in rejected)
    report = {
        "title": title,
        "how": command,
        "licence": licence,
        "validators": ["builtin", "VAL"] if with_val else ["builtin"],
        "splits": {
            split: figures_by_domain(split_rows) for split, split_rows in rows_by_split.items()
        },
        "rejected": dict(sorted(reason_counts.items())),
        "leaks": find_leaks(rows_by_split, mappings or {}),
        **(figures or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    # Everything that can fail for a reason in the data is done: from here
    # on files are replaced one by one. The old report goes first and the
    # new one comes last, so that a folder with a report is never a mixture.
    (folder / REPORT_FILE).unlink(missing_ok=True)
    for split, split_rows in rows_by_split.items():
        write_jsonl(split_rows, folder / f"{split}.jsonl")
    write_jsonl([entry._asdict() for entry in rejected], folder / REJECTED_FILE)
    write_json(_vocabulary(all_rows, words), folder / VOCABULARY_FILE)
    write_json(mappings or {}, folder / OBFUSCATION_FILE)
    write_atomically(folder / CARD_FILE, data_card(report, features))
    write_json(report, folder / REPORT_FILE)
    return report


def kind_of_reason(reason: str) -> str:
    """Return the kind of a reason: `invalid plan at step 3: ...` is an `invalid plan`."""
    for kind in _REASON_KINDS:
        if reason.startswith(kind):
            return kind.removesuffix(" of")
    return reason.partition(":")[0]


def figures_of(values: Sequence[int]) -> dict[str, float]:
    """Return the least, the median and the largest of some numbers."""
    return {"min": min(values), "median": median(values), "max": max(values)}


# ------------------------------------------------------------------------------------------------------------- checks


def _valid_rows(
    rows_by_split: Mapping[str, Sequence[Row]], use_val: bool, workers: int | None
) -> tuple[dict[str, list[Row]], list[Rejected]]:
    """Separate the rows that may be written from the others."""
    entries: list[tuple[str, Row]] = []
    for split, split_rows in rows_by_split.items():
        entries += [(split, row) for row in split_rows]
    # None for a row that may be written.
    ids: set[str] = set()
    objections: list[str | None] = []
    for _, row in entries:
        objections.append("duplicate id" if row["id"] in ids else _objection(row))
        ids.add(row["id"])
    if use_val:
        # VAL is asked about all remaining rows in one call, which runs many processes at a time.
        remaining = {
            number: row for number, (_, row) in enumerate(entries) if objections[number] is None
        }
        for number, objection in _objections_of_val(remaining, workers):
            objections[number] = objection
    valid_rows: dict[str, list[Row]] = {}
    rejected = []
    for (split, row), objection in zip(entries, objections, strict=True):
        if objection is None:
            valid_rows.setdefault(split, []).append(row)
        else:
            # Rows of our generators have no source.
            source = str(row.get("source") or row["id"])
            rejected.append(Rejected(row["id"], row["domain"], split, source, objection))
    return valid_rows, rejected


def _objection(row: Row) -> str | None:
    """Say what the validator in this process has against a row's reference plans; None for nothing."""
    for plan in reference_plans(row["reference_plan"]):
        try:
            verdict = validate_actions(
                row["domain_pddl"], row["problem_pddl"], tuple(map(parse_action, plan)), "auto"
            )
        except PddlError as error:
            return f"unreadable: {error}"
        except ValueError as error:
            return f"invalid plan: {error}"
        if not verdict.valid:
            return describe(verdict)
    return None


def _objections_of_val(rows: Mapping[int, Row], workers: int | None) -> Iterator[tuple[int, str]]:
    """Yield the numbers of rows with a plan that VAL refuses, and what it says."""
    numbers = []
    cases = []
    for number, row in rows.items():
        for plan in reference_plans(row["reference_plan"]):
            numbers.append(number)
            cases.append((row["domain_pddl"], row["problem_pddl"], tuple(map(parse_action, plan))))
    for number, verdict in zip(numbers, run_val_many(cases, workers=workers), strict=True):
        if not verdict.valid:
            yield number, f"{describe(verdict)} (VAL)"


def describe(verdict: PlanVerdict) -> str:
    """Say why a plan is not valid, as a reason for `Rejected`."""
    # The validator failed, which says nothing about the plan.
    if verdict.error in (PlanError.VALIDATOR_CRASH, PlanError.VALIDATOR_TIMEOUT):
        return f"no verdict: {verdict.error}"
    return f"invalid plan{verdict.write_fault()}"


# ------------------------------------------------------------------------------------------------------------ columns


def _with_equal_columns(rows_by_split: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Give every row every column, in one order; one nested `reference_plan` makes all of them nested.

    Tables have one type for a column, and readers of JSON lines infer it from the first rows.
    """
    names = dict.fromkeys(COLUMNS)
    is_nested = False
    for row in chain.from_iterable(rows_by_split.values()):
        names |= dict.fromkeys(row)
        is_nested = is_nested or not all(isinstance(entry, str) for entry in row["reference_plan"])
    equal_rows: dict[str, list[Row]] = {}
    for split, split_rows in rows_by_split.items():
        equal_rows[split] = []
        for row in split_rows:
            equal_row = {name: row.get(name) for name in names}
            if is_nested:
                plans = reference_plans(row["reference_plan"])
                equal_row["reference_plan"] = list(map(list, plans))
            equal_rows[split].append(equal_row)
    return equal_rows


# ------------------------------------------------------------------------------------------------------------- report


def figures_by_domain(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Measure the rows of each domain of a split: their number, the lengths of their plans, their objects, planners."""
    rows_by_domain: dict[str, list[Row]] = {}
    for row in rows:
        rows_by_domain.setdefault(row["domain"], []).append(row)
    figures = {}
    for domain, domain_rows in rows_by_domain.items():
        planner_counts = Counter(row["planner"] for row in domain_rows)
        figures[domain] = {
            "rows": len(domain_rows),
            "plan_length": figures_of([row["plan_length"] for row in domain_rows]),
            "n_objects": figures_of([row["n_objects"] for row in domain_rows]),
            "planners": dict(sorted(planner_counts.items())),
        }
    return figures


def _vocabulary(rows: Iterable[Row], words: Collection[str]) -> list[str]:
    """Collect every word of prompts and completions, and what their domains may say in other problems."""
    collected = set(words)
    domains: set[tuple[str, str]] = set()
    for row in rows:
        # What prompt and completion have may be more than
        # the style's words: names of objects, numbers.
        collected.update(split_words(row["prompt"]), split_words(row["completion"]))
        domains.add((row["prompt_style"], row["domain_pddl"]))
    for style, domain_pddl in domains:
        collected.update(vocabulary([domain_pddl], (), style))
    return sorted(collected)


def split_table(splits: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the figures of every split and domain as aligned text, for a terminal."""
    lines = [["split", "domain", "rows", "plan length", "objects"]]
    for split, domains in splits.items():
        for domain, figures in domains.items():
            ranges = [_range(figures["plan_length"]), _range(figures["n_objects"])]
            lines.append([split, domain, str(figures["rows"]), *ranges])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _range(figures: Mapping[str, float]) -> str:
    return f"{figures['min']}-{figures['median']:g}-{figures['max']}"
