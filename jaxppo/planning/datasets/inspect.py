"""What a data set holds, and everything about it that can be checked again."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxppo.errors import ConfigError, DataError, JaxppoError
from jaxppo.planning.datasets.card import leak_text
from jaxppo.planning.datasets.config import InspectConfig
from jaxppo.planning.datasets.files import REPORT_FILE, ordered_splits, read_mappings, read_split, split_files
from jaxppo.planning.datasets.folder import describe, figures_of
from jaxppo.planning.datasets.leaks import find_leaks
from jaxppo.planning.datasets.rows import Row, reference_plans
from jaxppo.planning.datasets.terminal import Terminal
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.language.plans import Action, parse_action
from jaxppo.planning.language.verdicts import PlanVerdict
from jaxppo.planning.prompts import parse_completion, render_prompt, split_words
from jaxppo.planning.validate.api import validate_actions
from jaxppo.planning.validate.val import run_val_many

_MOST_LISTED = 20
_RANGE, _UPPER = "min / median / max", "median / max"
_TABLE: tuple[str, ...] = (
    *("split", "domain", "rows", f"plan length: {_RANGE}", f"objects: {_RANGE}"),
    *(f"prompt words: {_UPPER}", f"completion words: {_UPPER}", "planners"),
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
    rows, wrong = _read(folder, splits)
    wrong += _check_all(rows, config, terminal)
    leaks, wrong_leaks = _leaks(rows, folder)
    wrong += wrong_leaks
    if config.splits is None:
        wrong += _differences_from_report(rows, folder)
    found = {"dataset": str(folder), "splits": _figures(rows), "leaks": leaks, "wrong": wrong}
    _show(found, rows, config, terminal)
    if config.json is not None:
        Path(config.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if wrong:
        sys.exit(1)
    return found


# -------------------------------------------------------------------------------------------------------------- checks


def _splits(config: InspectConfig) -> tuple[Path, list[str]]:
    if config.dataset is None or not Path(config.dataset).is_dir():
        raise ConfigError(f"dataset: expected a folder that holds a data set, got {config.dataset!r}")
    folder = Path(config.dataset)
    there = ordered_splits([path.stem for path in split_files(folder)])
    if not there:
        raise ConfigError(f"dataset: expected a folder with <split>.jsonl or <split>.parquet, got {folder}")
    missing = [split for split in config.splits or () if split not in there]
    if missing:
        raise ConfigError(f"splits: expected some of {', '.join(there)}, got {', '.join(missing)}")
    return folder, list(config.splits or there)


def _read(folder: Path, splits: Sequence[str]) -> tuple[dict[str, list[Row]], list[str]]:
    rows, wrong = {}, []
    for split in splits:
        try:
            rows[split] = read_split(folder, split)
        except DataError as error:
            wrong.append(f"{split}: {error}")
    return rows, wrong


def _check_all(rows: Mapping[str, Sequence[Row]], config: InspectConfig, terminal: Terminal) -> list[str]:
    """List what is wrong with single rows, and with their ids."""
    wrong = []
    every = [(split, row) for split, own in rows.items() for row in own]
    ids = Counter(row["id"] for _, row in every)
    wrong += [f"{name}: expected one row with this id, got {count}" for name, count in ids.items() if count > 1]
    with terminal.progress(len(every), "check") as progress:
        for number, (split, row) in enumerate(every, 1):
            wrong += [f"{split}/{row['id']}: {objection}" for objection in _objections(row, split, config.validator)]
            progress.update(number, wrong=len(wrong))
    if config.validator == "val":
        wrong += _objections_of_val(every)
    return wrong


def _objections(row: Row, split: str, validator: str) -> Iterator[str]:
    """Yield what is wrong with a row."""
    try:
        plans = [tuple(map(parse_action, plan)) for plan in reference_plans(row["reference_plan"])]
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


def _objections_to_plans(row: Row, plans: Sequence[tuple[Action, ...]], validator: str) -> Iterator[str]:
    if not plans:
        yield "reference_plan: expected a plan, got none"
    for plan in plans:
        verdict = validate_actions(row["domain_pddl"], row["problem_pddl"], plan, validator)
        if not verdict.valid:
            yield f"reference_plan: {describe(verdict)}"


def _objections_to_texts(row: Row, plans: Sequence[tuple[Action, ...]]) -> Iterator[str]:
    """Check that prompt and completion say what the other columns do."""
    style, domain_pddl = row["prompt_style"], row["domain_pddl"]
    written = render_prompt(domain_pddl, row["problem_pddl"], style)
    if row["prompt"] != written and not (row.get("failures") and row["prompt"].startswith(written)):
        yield f"prompt: expected the problem in the style {style}, got {row['prompt']!r:.60}"
    parsed = parse_completion(row["completion"], style, domain_pddl)
    if parsed.error is not None or parsed.actions not in plans:
        yield f"completion: expected a reference plan in the style {style}, got {row['completion']!r:.60}"


def _objections_of_val(rows: Sequence[tuple[str, Row]]) -> Iterator[str]:
    cases = [
        (f"{split}/{row['id']}", (row["domain_pddl"], row["problem_pddl"], plan))
        for split, row in rows
        for plan in _readable_plans(row)
    ]
    verdicts: Sequence[PlanVerdict] = run_val_many([case for _, case in cases])
    for (name, _), verdict in zip(cases, verdicts, strict=True):
        if not verdict.valid:
            yield f"{name}: reference_plan: {describe(verdict)} (VAL)"


def _readable_plans(row: Row) -> list[tuple[Action, ...]]:
    try:
        return [tuple(map(parse_action, plan)) for plan in reference_plans(row["reference_plan"])]
    except (TypeError, ValueError):
        return []  # `_objections` says so


def _leaks(rows: Mapping[str, Sequence[Row]], folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        leaks = find_leaks(rows, read_mappings(folder))
    except JaxppoError as error:
        return None, [f"leaks: not computed: {error}"]
    return leaks, [f"leaks: expected 0, got {leaks['leaks']}"] if leaks["leaks"] else []


def _differences_from_report(rows: Mapping[str, Sequence[Row]], folder: Path) -> Iterator[str]:
    """Yield where the folder's report has other numbers of rows than there are."""
    path = folder / REPORT_FILE
    if not path.exists():
        return
    try:
        splits = json.loads(path.read_text(encoding="utf-8"))["splits"]
        reported = {split: sum(figures["rows"] for figures in domains.values()) for split, domains in splits.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        yield f"{REPORT_FILE}: expected the report of a data set, got: {error!r:.80}"
        return
    for split in dict.fromkeys([*reported, *rows]):
        there = len(rows.get(split, ()))
        if reported.get(split, 0) != there:
            yield f"{split}: expected the {reported.get(split, 0)} rows of {REPORT_FILE}, got {there}"


# ------------------------------------------------------------------------------------------------------------- figures


def _figures(rows: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, Any]]:
    """Split to domain to the number of its rows, lengths, objects, words and planners."""
    splits: dict[str, dict[str, Any]] = {}
    for split, own in rows.items():
        domains: dict[str, list[Row]] = {}
        for row in own:
            domains.setdefault(row["domain"], []).append(row)
        splits[split] = {domain: _figures_of_rows(of_domain) for domain, of_domain in domains.items()}
    return splits


def _figures_of_rows(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "rows": len(rows),
        "plan_length": figures_of([row["plan_length"] for row in rows]),
        "n_objects": figures_of([row["n_objects"] for row in rows]),
        "prompt_words": figures_of([len(split_words(row["prompt"])) for row in rows]),
        "completion_words": figures_of([len(split_words(row["completion"])) for row in rows]),
        "planners": dict(sorted(Counter(row["planner"] for row in rows).items())),
    }


def _show(
    found: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], config: InspectConfig, terminal: Terminal
) -> None:
    lines = [
        dict(zip(_TABLE, (split, domain, *_cells(figures)), strict=True))
        for split, domains in found["splits"].items()
        for domain, figures in domains.items()
    ]
    terminal.sample_table(f"{found['dataset']}: {sum(map(len, rows.values()))} rows", lines, _TABLE)
    if found["leaks"] is not None:
        terminal.result(f"leaks: {leak_text(found['leaks'])}")
    for split, own in rows.items():
        for row in own[: config.show]:
            terminal.print(f"\n{split}/{row['id']}\n{row['prompt']}\n-> {row['completion']}")
    wrong = found["wrong"]
    for sentence in wrong[:_MOST_LISTED]:
        terminal.result(f"wrong: {sentence}")
    if len(wrong) > _MOST_LISTED:
        terminal.result(f"wrong: {len(wrong) - _MOST_LISTED} more; --json FILE lists all")
    terminal.result(
        f"{len(wrong)} wrong" if wrong else "all right: plans valid, texts and columns agree, nothing leaks"
    )


def _cells(figures: Mapping[str, Any]) -> Iterator[str]:
    yield str(figures["rows"])
    for name in ("plan_length", "n_objects", "prompt_words", "completion_words"):
        least, median, most = (f"{figures[name][key]:g}" for key in ("min", "median", "max"))
        yield f"{median} / {most}" if name.endswith("words") else f"{least} / {median} / {most}"
    yield ", ".join(figures["planners"])
