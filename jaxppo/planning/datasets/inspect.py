"""What a data set holds, and checks of everything in it that can be checked again."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxppo.errors import ConfigError, DataError, JaxppoError
from jaxppo.planning.datasets.card import leak_text
from jaxppo.planning.datasets.config import InspectConfig
from jaxppo.planning.datasets.files import (
    REPORT_FILE,
    ordered_splits,
    read_mappings,
    read_split,
    split_files,
)
from jaxppo.planning.datasets.folder import describe, figures_by_domain, figures_of, rows_by_domain
from jaxppo.planning.datasets.leaks import find_leaks
from jaxppo.planning.datasets.rows import Row, reference_plans
from jaxppo.planning.datasets.terminal import Terminal
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.language.plans import Action, parse_action
from jaxppo.planning.prompts import parse_completion, render_prompt, split_words
from jaxppo.planning.validate.api import validate_actions
from jaxppo.planning.validate.val import run_val_many

_MAX_LISTED = 20
_TABLE = (
    "split",
    "domain",
    "rows",
    "plan length: min / median / max",
    "objects: min / median / max",
    "prompt words: median / max",
    "completion words: median / max",
    "planners",
)


def inspect_data(config: InspectConfig, terminal: Terminal) -> dict[str, Any]:
    """Show what a data set holds, and end with status 1 where something is wrong with it.

    Args:
        config: the settings.
        terminal: where it is shown.

    Returns:
        What is written to `json`: `splits`, `leaks`, and `wrong`, a list of sentences, empty here.

    Raises:
        ConfigError: no such folder, or no such split in it.
        ValidatorError: VAL is asked for and missing.
        SystemExit: status 1, after everything was shown.
    """
    folder, splits = _splits(config)
    rows_by_split, errors = _read(folder, splits)
    errors += _check_all(rows_by_split, config, terminal)
    leaks, leak_errors = _leaks(rows_by_split, folder)
    errors += leak_errors
    # The report counts all splits, so some of them alone cannot be compared with it.
    if config.splits is None:
        errors += _differences_from_report(rows_by_split, folder)
    findings = {
        "dataset": str(folder),
        "splits": _figures(rows_by_split),
        "leaks": leaks,
        "wrong": errors,
    }
    _show(findings, rows_by_split, config, terminal)
    if config.json is not None:
        Path(config.json).write_text(json.dumps(findings, indent=1) + "\n", encoding="utf-8")
    if errors:
        sys.exit(1)
    return findings


# -------------------------------------------------------------------------------------------------------------- checks


def _splits(config: InspectConfig) -> tuple[Path, list[str]]:
    if config.dataset is None or not Path(config.dataset).is_dir():
        raise ConfigError(
            f"dataset: expected a folder that holds a data set, got {config.dataset!r}"
        )
    folder = Path(config.dataset)
    available = ordered_splits([path.stem for path in split_files(folder)])
    if not available:
        raise ConfigError(
            f"dataset: expected a folder with <split>.jsonl or <split>.parquet, got {folder}"
        )
    missing = [split for split in config.splits or () if split not in available]
    if missing:
        raise ConfigError(
            f"splits: expected some of {', '.join(available)}, got {', '.join(missing)}"
        )
    return folder, list(config.splits or available)


def _read(folder: Path, splits: Sequence[str]) -> tuple[dict[str, list[Row]], list[str]]:
    rows_by_split = {}
    errors = []
    # A damaged split is listed, and the others are checked.
    for split in splits:
        try:
            rows_by_split[split] = read_split(folder, split)
        except DataError as error:
            errors.append(f"{split}: {error}")
    return rows_by_split, errors


def _check_all(
    rows_by_split: Mapping[str, Sequence[Row]], config: InspectConfig, terminal: Terminal
) -> list[str]:
    """List what is wrong with single rows, and with their ids."""
    entries = [(split, row) for split, rows in rows_by_split.items() for row in rows]
    id_counts = Counter(row["id"] for _, row in entries)
    errors = [
        f"{name}: expected one row with this id, got {n}" for name, n in id_counts.items() if n > 1
    ]
    with terminal.progress(len(entries), "check") as progress:
        for number, (split, row) in enumerate(entries, 1):
            errors += [
                f"{split}/{row['id']}: {objection}"
                for objection in _objections(row, split, config.validator)
            ]
            progress.update(number, wrong=len(errors))
    # VAL is asked about all rows at once, after the bar.
    if config.validator == "val":
        errors += _objections_of_val(entries)
    return errors


def _objections(row: Row, split: str, validator: str) -> Iterator[str]:
    """Yield what is wrong with a row."""
    try:
        plans = _plans(row)
        problem = parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))
        if validator != "val":
            yield from _objections_to_plans(row, plans, validator)
        yield from _objections_to_texts(row, plans)
    except (JaxppoError, TypeError, ValueError) as error:
        yield str(error)
        return
    lengths = [len(plan) for plan in plans]
    if row["plan_length"] not in lengths:
        yield f"plan_length: expected {' or '.join(map(str, lengths))}, got {row['plan_length']}"
    if row["n_objects"] != len(problem.objects):
        yield f"n_objects: expected {len(problem.objects)}, got {row['n_objects']}"
    if row["split"] != split:
        yield f"split: expected {split}, got {row['split']}"


def _plans(row: Row) -> list[tuple[Action, ...]]:
    return [tuple(map(parse_action, plan)) for plan in reference_plans(row["reference_plan"])]


def _objections_to_plans(
    row: Row, plans: Sequence[tuple[Action, ...]], validator: str
) -> Iterator[str]:
    if not plans:
        yield "reference_plan: expected a plan, got none"
    for plan in plans:
        verdict = validate_actions(row["domain_pddl"], row["problem_pddl"], plan, validator)
        if not verdict.valid:
            yield f"reference_plan: {describe(verdict)}"


def _objections_to_texts(row: Row, plans: Sequence[tuple[Action, ...]]) -> Iterator[str]:
    """Check that prompt and completion say what the other columns do."""
    style = row["prompt_style"]
    domain_pddl = row["domain_pddl"]
    prompt = render_prompt(domain_pddl, row["problem_pddl"], style)
    # Data sets of earlier versions may hold conversations about a problem, which begin with its
    # prompt.
    is_conversation = bool(row.get("failures")) and row["prompt"].startswith(prompt)
    if row["prompt"] != prompt and not is_conversation:
        yield f"prompt: expected the problem in the style {style}, got {row['prompt']!r:.60}"
    parsed = parse_completion(row["completion"], style, domain_pddl)
    if parsed.error is not None or parsed.actions not in plans:
        yield f"completion: expected a reference plan in the style {style}, got {row['completion']!r:.60}"


def _objections_of_val(entries: Sequence[tuple[str, Row]]) -> Iterator[str]:
    """Yield the rows with a plan that VAL refuses; it is asked about all of them at once."""
    names = []
    cases = []
    for split, row in entries:
        try:
            plans = _plans(row)
        except (TypeError, ValueError):
            continue  # an objection of its own, see `_objections`
        for plan in plans:
            names.append(f"{split}/{row['id']}")
            cases.append((row["domain_pddl"], row["problem_pddl"], plan))
    for name, verdict in zip(names, run_val_many(cases), strict=True):
        if not verdict.valid:
            yield f"{name}: reference_plan: {describe(verdict)} (VAL)"


def _leaks(
    rows_by_split: Mapping[str, Sequence[Row]], folder: Path
) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        leaks = find_leaks(rows_by_split, read_mappings(folder))
    # A row that cannot be read has its own errors; without its problem there is nothing to compare.
    except JaxppoError as error:
        return None, [f"leaks: not computed: {error}"]
    return leaks, [f"leaks: expected 0, got {leaks['leaks']}"] if leaks["leaks"] else []


def _differences_from_report(
    rows_by_split: Mapping[str, Sequence[Row]], folder: Path
) -> Iterator[str]:
    """Yield the splits that have another number of rows than the folder's report says."""
    path = folder / REPORT_FILE
    if not path.exists():
        return
    # The report may have been edited by hand.
    try:
        splits = json.loads(path.read_text(encoding="utf-8"))["splits"]
        reported = {
            split: sum(figures["rows"] for figures in domains.values())
            for split, domains in splits.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        yield f"{REPORT_FILE}: expected the report of a data set, got: {error!r:.80}"
        return
    for split in dict.fromkeys([*reported, *rows_by_split]):
        expected_count = reported.get(split, 0)
        n_rows = len(rows_by_split.get(split, ()))
        if expected_count != n_rows:
            yield f"{split}: expected the {expected_count} rows of {REPORT_FILE}, got {n_rows}"


# ------------------------------------------------------------------------------------------------------------- figures


def _figures(rows_by_split: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, Any]]:
    """Map split and domain to the figures of its report, and those of the words of prompts and completions."""
    splits: dict[str, dict[str, Any]] = {}
    for split, rows in rows_by_split.items():
        splits[split] = figures_by_domain(rows)
        for domain, domain_rows in rows_by_domain(rows).items():
            for column in ("prompt", "completion"):
                word_counts = [len(split_words(row[column])) for row in domain_rows]
                splits[split][domain][f"{column}_words"] = figures_of(word_counts)
    return splits


def _show(
    findings: Mapping[str, Any],
    rows_by_split: Mapping[str, Sequence[Row]],
    config: InspectConfig,
    terminal: Terminal,
) -> None:
    lines = []
    for split, domains in findings["splits"].items():
        for domain, figures in domains.items():
            lines.append(dict(zip(_TABLE, (split, domain, *_cells(figures)), strict=True)))
    n_rows = sum(map(len, rows_by_split.values()))
    terminal.sample_table(f"{findings['dataset']}: {n_rows} rows", lines, _TABLE)
    if findings["leaks"] is not None:
        terminal.result(f"leaks: {leak_text(findings['leaks'])}")
    for split, rows in rows_by_split.items():
        for row in rows[: config.show]:
            terminal.print(f"\n{split}/{row['id']}\n{row['prompt']}\n-> {row['completion']}")
    errors = findings["wrong"]
    for error in errors[:_MAX_LISTED]:
        terminal.result(f"wrong: {error}")
    if len(errors) > _MAX_LISTED:
        terminal.result(f"wrong: {len(errors) - _MAX_LISTED} more; --json FILE lists all")
    if errors:
        terminal.result(f"{len(errors)} wrong")
    else:
        terminal.result("all right: plans valid, texts and columns agree, nothing leaks")


def _cells(figures: Mapping[str, Any]) -> Iterator[str]:
    yield str(figures["rows"])
    for name in ("plan_length", "n_objects", "prompt_words", "completion_words"):
        minimum, median, maximum = (f"{figures[name][key]:g}" for key in ("min", "median", "max"))
        yield (
            f"{median} / {maximum}"
            if name.endswith("words")
            else f"{minimum} / {median} / {maximum}"
        )
    yield ", ".join(figures["planners"])
