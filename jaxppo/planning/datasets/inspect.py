"""What a data set holds, and checks of everything in it that can be checked again."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxppo.errors import ConfigError, DataError, JaxppoError
from jaxppo.planning.datasets.card import leak_text
from jaxppo.planning.datasets.config import InspectConfig
from jaxppo.planning.datasets.files import ordered_splits, read_mappings, read_split, split_files
from jaxppo.planning.datasets.folder import describe, figures_by_domain, split_table
from jaxppo.planning.datasets.leaks import find_leaks
from jaxppo.planning.datasets.rows import Row, reference_plans
from jaxppo.planning.datasets.terminal import Terminal
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.language.plans import parse_action
from jaxppo.planning.prompts import parse_completion, render_prompt
from jaxppo.planning.validate.api import validate_actions


def inspect_data(config: InspectConfig, terminal: Terminal) -> dict[str, Any]:
    """Show what a data set holds, and end with status 1 where something is wrong with it.

    Args:
        config: the settings.
        terminal: where it is shown.

    Returns:
        The figures of each split and domain.

    Raises:
        ConfigError: no such folder, or no split in it.
        SystemExit: status 1, after everything was shown.
    """
    if config.dataset is None or not Path(config.dataset).is_dir():
        raise ConfigError(
            f"dataset: expected a folder that holds a data set, got {config.dataset!r}"
        )
    folder = Path(config.dataset)
    splits = ordered_splits([path.stem for path in split_files(folder)])
    if not splits:
        raise ConfigError(
            f"dataset: expected a folder with <split>.jsonl or <split>.parquet, got {folder}"
        )
    rows_by_split: dict[str, list[Row]] = {}
    errors = []
    # A damaged split is listed, and the others are checked.
    for split in splits:
        try:
            rows_by_split[split] = read_split(folder, split)
        except DataError as error:
            errors.append(f"{split}: {error}")
    errors += _check_all(rows_by_split, terminal)
    figures = {split: figures_by_domain(rows) for split, rows in rows_by_split.items()}
    terminal.result(split_table(figures))
    # A row that cannot be read has its own errors; without its problem there is nothing to compare.
    try:
        leaks = find_leaks(rows_by_split, read_mappings(folder))
    except JaxppoError as error:
        errors.append(f"leaks: not computed: {error}")
    else:
        terminal.result(f"leaks: {leak_text(leaks)}")
        if leaks["leaks"]:
            errors.append(f"leaks: expected 0, got {leaks['leaks']}")
    for split, rows in rows_by_split.items():
        for row in rows[: config.show]:
            terminal.print(f"\n{split}/{row['id']}\n{row['prompt']}\n-> {row['completion']}")
    for error in errors:
        terminal.result(f"wrong: {error}")
    if errors:
        terminal.result(f"{len(errors)} wrong")
        sys.exit(1)
    terminal.result("all right: plans valid, texts and columns agree, nothing leaks")
    return figures


def _check_all(rows_by_split: Mapping[str, Sequence[Row]], terminal: Terminal) -> list[str]:
    """List what is wrong with single rows, and with their ids."""
    entries: list[tuple[str, Row]] = []
    for split, rows in rows_by_split.items():
        entries += [(split, row) for row in rows]
    id_counts = Counter(row["id"] for _, row in entries)
    errors = [
        f"{name}: expected one row with this id, got {n}" for name, n in id_counts.items() if n > 1
    ]
    with terminal.progress(len(entries), "check") as progress:
        for number, (split, row) in enumerate(entries, 1):
            errors += [f"{split}/{row['id']}: {objection}" for objection in _objections(row, split)]
            progress.update(number, wrong=len(errors))
    return errors


def _objections(row: Row, split: str) -> Iterator[str]:
    """Yield what is wrong with a row."""
    domain_pddl = row["domain_pddl"]
    problem_pddl = row["problem_pddl"]
    style = row["prompt_style"]
    try:
        problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
        plans = [tuple(map(parse_action, plan)) for plan in reference_plans(row["reference_plan"])]
        for plan in plans:
            verdict = validate_actions(domain_pddl, problem_pddl, plan, "auto")
            if not verdict.valid:
                yield f"reference_plan: {describe(verdict)}"
        # Prompt and completion have to say what the other columns do.
        prompt = render_prompt(domain_pddl, problem_pddl, style)
        parsed = parse_completion(row["completion"], style, domain_pddl)
    except (JaxppoError, TypeError, ValueError) as error:
        yield str(error)
        return
    if row["prompt"] != prompt:
        yield f"prompt: expected the problem in the style {style}, got {row['prompt']!r:.60}"
    if parsed.error is not None or parsed.actions not in plans:
        yield f"completion: expected a reference plan in the style {style}, got {row['completion']!r:.60}"
    lengths = [len(plan) for plan in plans]
    if row["plan_length"] not in lengths:
        yield f"plan_length: expected {' or '.join(map(str, lengths))}, got {row['plan_length']}"
    if row["n_objects"] != len(problem.objects):
        yield f"n_objects: expected {len(problem.objects)}, got {row['n_objects']}"
    if row["split"] != split:
        yield f"split: expected {split}, got {row['split']}"
