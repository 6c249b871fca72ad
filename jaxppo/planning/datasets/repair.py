"""Rows to learn repair from: problems with plans of a model that are not valid and what is wrong with them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxppo.errors import DataError
from jaxppo.planning.datasets.config import RepairDataConfig
from jaxppo.planning.datasets.files import read_jsonl
from jaxppo.planning.datasets.folder import write_dataset
from jaxppo.planning.datasets.rows import COLUMNS, Row, form_of
from jaxppo.planning.datasets.runs import claim_folder, command_line, is_finished, show_report
from jaxppo.planning.datasets.terminal import Terminal
from jaxppo.planning.language.plans import ParsedPlan, format_action
from jaxppo.planning.prompts import (
    UNKNOWN,
    conversation,
    find_fault,
    parse_completion,
    render_completion,
    render_fault,
)
from jaxppo.planning.validate.api import validate_actions

REPAIR_SPLIT = "repair"
"""The split of conversations about problems that `train` does not have."""


def build_repair(
    config: RepairDataConfig, rows: Sequence[Row], terminal: Terminal
) -> dict[str, Any]:
    """Make a data set of conversations and plain rows; one that is finished is left alone.

    Args:
        config: the settings.
        rows: planning problems, those of `train_split`.
        terminal: where results go.

    Returns:
        What `report.json` holds; {} where the data set was finished before.

    Raises:
        ConfigError: the folder holds something else, or a prompt style has no repair turns.
        DataError: the answers cannot be read, or none of them is an invalid plan for one of the rows.
    """
    folder = Path(config.output_dir)
    if is_finished(folder, config):
        terminal.result(f"finished: {folder} holds this data set; nothing was changed")
        return {}
    answers = read_answers(config.samples)
    plain_rows = []
    conversations: dict[str, list[Row]] = {}
    for source_row in rows:
        row = {name: source_row[name] for name in COLUMNS}
        row_answers = answers.get(row["id"], ())
        if config.learn_from == "own":
            row = _with_own_plan(row, row_answers)
        plain_rows.append(row)
        conversations[row["id"]] = repair_rows(row, row_answers, config)
    n_conversations = sum(map(len, conversations.values()))
    if not n_conversations:
        n_answered = len(answers.keys() & conversations.keys())
        raise DataError(
            f"samples: expected an invalid plan for a row of split {config.data.train_split}, got answers to "
            f"{len(answers)} problems, {n_answered} of them among the {len(rows)} rows"
        )
    # Sorted, so that what is held out does not depend on the order of the rows.
    failed_ids = sorted(
        name for name, row_conversations in conversations.items() if row_conversations
    )
    held_out_ids = _draw_held_out_ids(plain_rows, failed_ids, config)
    train = [
        row | {"split": "train", "failures": 0}
        for row in plain_rows
        if row["id"] not in held_out_ids
    ]
    repair: list[Row] = []
    for name in sorted(conversations):
        if name in held_out_ids:
            repair += [row | {"split": REPAIR_SPLIT} for row in conversations[name]]
        else:
            train += [row | {"split": "train"} for row in conversations[name]]
    # Only now, since a folder that is claimed must be continued with these settings.
    claim_folder(folder, config)
    report = write_dataset(
        folder,
        {"train": train, REPAIR_SPLIT: repair},
        [],
        file_format=config.file_format,
        title="Plans that are not valid, what is wrong with them, and reference plans",
        command=command_line(config, "repair"),
        figures={"conversations": n_conversations},
        use_val=config.use_val,
    )
    show_report(report, folder, terminal)
    return report


def _draw_held_out_ids(
    rows: Sequence[Row], failed_ids: Sequence[str], config: RepairDataConfig
) -> set[str]:
    """Draw problems with invalid plans; their copies in other names are held out with them."""
    n_held_out = round(config.held_out * len(failed_ids))
    sample = random.Random(f"repair/{config.seed}").sample(failed_ids, n_held_out)
    forms = {row["id"]: form_of(row) for row in rows}
    held_out_forms = {forms[name] for name in sample}
    return {name for name, form in forms.items() if form in held_out_forms}


def read_answers(paths: Sequence[str]) -> dict[str, list[str]]:
    """Read the answers to each problem, all different: lines with `id` and `completion`, such as `samples.jsonl`.

    Raises:
        DataError: a file cannot be read, or a line has no completion.
    """
    # Dictionaries for sets that keep the order of the files.
    answers: dict[str, dict[str, None]] = {}
    for path in paths:
        for line in read_jsonl(path, {"id": str, "completion": str}):
            answers.setdefault(line["id"], {})[line["completion"]] = None
    return {name: list(texts) for name, texts in answers.items()}


def _with_own_plan(row: Row, answers: Sequence[str]) -> Row:
    """Return the row with its shortest valid answer for the reference plan; as it is where no answer is valid."""
    style = row["prompt_style"]
    plans = [parse_completion(answer, style, row["domain_pddl"]) for answer in answers]
    valid_plans = [plan.actions for plan in plans if _is_valid(row, plan)]
    if not valid_plans:
        return row
    shortest = min(valid_plans, key=len)
    return row | {
        "completion": render_completion(shortest, style, row["domain_pddl"]),
        "planner": "self-training",
        "reference_plan": list(map(format_action, shortest)),
        "plan_length": len(shortest),
    }


def repair_rows(row: Row, answers: Sequence[str], config: RepairDataConfig) -> list[Row]:
    """Return conversations about a problem: after one of its invalid plans, after two of them, and so on.

    Each has the conversation as its prompt, and the reference plan as its completion.

    Args:
        row: the problem.
        answers: plans in its prompt style, valid or not.
        config: how many, in which order, and what the feedback says.
    """
    turns = []
    for answer in answers:
        plan = parse_completion(answer, row["prompt_style"], row["domain_pddl"])
        if not _is_valid(row, plan):
            turns.append((answer, _feedback(row, plan, config.feedback)))
    # Seeded by the row, so that a conversation does not depend on which other rows there are.
    random.Random(f"{row['id']}/{config.seed}").shuffle(turns)
    conversations = []
    for n_turns in range(1, min(config.most_failures, len(turns)) + 1):
        prompt = conversation(row["prompt"], turns[:n_turns], row["prompt_style"])
        columns = {"id": f"{row['id']}-repair-{n_turns}", "prompt": prompt, "failures": n_turns}
        conversations.append(row | columns)
    return conversations


def _feedback(row: Row, plan: ParsedPlan, feedback: str) -> str:
    """Write what is wrong with an invalid plan, or only that it is invalid."""
    fault = (
        find_fault(row["domain_pddl"], row["problem_pddl"], plan)
        if feedback == "reason"
        else UNKNOWN
    )
    return render_fault(fault, row["prompt_style"], row["domain_pddl"])


def _is_valid(row: Row, plan: ParsedPlan) -> bool:
    if plan.error is not None:
        return False
    return validate_actions(row["domain_pddl"], row["problem_pddl"], plan.actions, "auto").valid
