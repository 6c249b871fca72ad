"""Rows to learn repair from: problems with plans of a model that are not valid and what is wrong with them."""

import random
from collections.abc import Mapping, Sequence
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

HELD_OUT = "repair"
"""The split of conversations about problems that `train` does not have."""


def build_repair(config: RepairDataConfig, rows: Sequence[Row], terminal: Terminal) -> dict[str, Any]:
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
    own = [{name: row[name] for name in COLUMNS} for row in rows]
    if config.learn_from == "own":
        own = [with_own_plan(row, answers.get(row["id"], ())) for row in own]
    conversations = {row["id"]: repair_rows(row, answers.get(row["id"], ()), config) for row in own}
    count = sum(map(len, conversations.values()))
    if not count:
        both = len(answers.keys() & conversations.keys())
        got = f"answers to {len(answers)} problems, {both} of them among the {len(own)} rows"
        raise DataError(f"samples: expected an invalid plan for a row of split {config.data.train_split}, got {got}")
    failed = sorted(name for name, made in conversations.items() if made)
    held_out = {*random.Random(f"repair/{config.seed}").sample(failed, round(config.held_out * len(failed)))}
    forms = {row["id"]: form_of(row) for row in own}
    alike = {forms[name] for name in held_out}  # with other names for their objects, too
    held_out = {name for name, form in forms.items() if form in alike}
    train = [row | {"split": "train", "failures": 0} for row in own if row["id"] not in held_out]
    train += [made | {"split": "train"} for name in failed if name not in held_out for made in conversations[name]]
    tests = [made | {"split": HELD_OUT} for name in sorted(held_out) for made in conversations[name]]
    claim_folder(folder, config)
    report = write_dataset(
        folder,
        {"train": train, HELD_OUT: tests},
        [],
        file_format=config.file_format,
        title="Plans that are not valid, what is wrong with them, and reference plans",
        how=command_line(config, "repair"),
        figures={"conversations": count},
        use_val=config.use_val,
    )
    show_report(report, folder, terminal)
    return report


def read_answers(paths: Sequence[str]) -> dict[str, list[str]]:
    """Read the answers to each problem, all different: lines with `id` and `completion`, such as `samples.jsonl`.

    Raises:
        DataError: a file cannot be read, or a line has no completion.
    """
    answers: dict[str, dict[str, None]] = {}
    for path in paths:
        for line in read_jsonl(path, {"id": str, "completion": str}):
            answers.setdefault(line["id"], {})[line["completion"]] = None
    return {name: list(texts) for name, texts in answers.items()}


def with_own_plan(row: Row, answers: Sequence[str]) -> Row:
    """Return the row with the shortest valid answer in the place of its reference plan, where there is one."""
    plans = [parse_completion(text, row["prompt_style"], row["domain_pddl"]) for text in answers]
    valid = [plan.actions for plan in plans if _is_valid(row, plan)]
    if not valid:
        return row
    best = min(valid, key=len)
    written = render_completion(best, row["prompt_style"], row["domain_pddl"])
    steps = {"reference_plan": list(map(format_action, best)), "plan_length": len(best)}
    return row | {"completion": written, "planner": "self-training"} | steps


def repair_rows(row: Row, answers: Sequence[str], config: RepairDataConfig) -> list[Row]:
    """Return conversations about a problem: after one of its invalid plans, after two of them, and so on.

    Each has the conversation as its prompt, and the reference plan as its completion.

    Args:
        row: the problem.
        answers: plans in its prompt style, valid or not.
        config: how many, in which order, and what is said about them.
    """
    turns = [(answer, said) for answer in answers if (said := _said(row, answer, config.feedback)) is not None]
    random.Random(f"{row['id']}/{config.seed}").shuffle(turns)
    return [
        row
        | {
            "id": f"{row['id']}-repair-{count}",
            "prompt": conversation(row["prompt"], turns[:count], row["prompt_style"]),
            "failures": count,
        }
        for count in range(1, min(config.most_failures, len(turns)) + 1)
    ]


def _said(row: Mapping[str, Any], answer: str, feedback: str) -> str | None:
    """Return what is said about an answer; None where it is a valid plan."""
    texts = row["domain_pddl"], row["problem_pddl"]
    plan = parse_completion(answer, row["prompt_style"], row["domain_pddl"])
    if _is_valid(row, plan):
        return None
    fault = find_fault(*texts, plan) if feedback == "reason" else UNKNOWN
    return render_fault(fault, row["prompt_style"], row["domain_pddl"])


def _is_valid(row: Mapping[str, Any], plan: ParsedPlan) -> bool:
    return plan.error is None and validate_actions(row["domain_pddl"], row["problem_pddl"], plan.actions, "auto").valid
