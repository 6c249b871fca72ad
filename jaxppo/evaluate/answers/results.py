"""Everything that is said about files of answers, for `eval.json`, the terminal and the page."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.config import EvaluateConfig
from jaxppo.errors import DataError
from jaxppo.evaluate.answers.agreement import (
    agreement,
    saved_by_rule,
    second_opinions,
)
from jaxppo.evaluate.answers.judging import (
    AnswerJudge,
    Judgement,
    ask_val,
    rows_of,
)
from jaxppo.evaluate.plan_metrics import VALID, plan_results
from jaxppo.evaluate.predictions import JudgedRow
from jaxppo.planning import PlanVerdict
from jaxppo.planning.answers.answer import VERIFICATION
from jaxppo.planning.answers.columns import parse_columns
from jaxppo.planning.answers.problems import Problems
from jaxppo.planning.answers.reading import read_answers
from jaxppo.planning.language.plans import PlanError
from jaxppo.reward_functions.plan import VALIDATOR_FAILURES, check_validator

NO_VERDICT = "no_verdict"
BREAKS = (
    VALID,
    "goal_not_reached",
    "second_half",
    "first_half",
    "first_step",
    "syntax",
    NO_VERDICT,
)
"""Where plans break: not at all, at their end, after or before their middle, at their first step, as text."""


class AnswerResults(NamedTuple):
    """Judged answers with what is measured on them.

    Attributes:
        records: one per answer, for `samples.jsonl`.
        rows: {model: rows}.
        content: what `eval.json` holds.
    """

    records: list[dict[str, Any]]
    rows: dict[str, list[JudgedRow]]
    content: dict[str, Any]


def judge_answers(config: EvaluateConfig) -> AnswerResults:
    """Read, judge, measure and compare the answers that `--plans` names.

    Raises:
        DataError: there is no such file or folder, or not one answer in it can be judged.
        ConfigError: `--columns` says something else than columns.
        ValidatorError: VAL is asked for, and missing.
    """
    edges = config.evaluation.length_edges
    uses_val = config.evaluation.eval_validator == "val"
    # VAL is looked for before thousands of answers are read.
    if uses_val:
        check_validator("val")
    pddl_dir = None if config.pddl_dir is None else Path(config.pddl_dir)
    if pddl_dir is not None and not pddl_dir.is_dir():
        raise DataError(f"pddl_dir: expected a folder that exists, got {pddl_dir}")
    problems = Problems(pddl_dir)
    columns = parse_columns(config.columns)
    answers = read_answers(Path(str(config.plans)), columns, problems.configs, problems.folders)
    judge = AnswerJudge(problems, config.extract)
    judgements, unread = judge(answers)
    if not judgements:
        reason = f", as {unread[0].source}: {unread[0].reason}" if unread else ""
        raise DataError(
            f"plans: expected at least one answer to judge in {config.plans}, got none{reason}"
        )
    # The built-in validator has judged already. VAL is a second
    # judge, whose verdicts are listed where they differ.
    if uses_val:
        judgements = ask_val(judgements)
    rows = rows_of(judgements, problems)
    # How plans are cut out says nothing about a verification, whose plan is part of the prompt.
    own_plans = [judgement for judgement in judgements if judgement.answer.task != VERIFICATION]
    content = {
        "models": {model: plan_results(model_rows, edges) for model, model_rows in rows.items()},
        "where_plans_break": {
            model: break_counts(model_rows) for model, model_rows in rows.items()
        },
        "answers": {"judged": len(judgements), "not_judged": len(unread)},
        "not_judged": [line._asdict() for line in unread],
        "without_plan": _problems_without_plan(judgements, problems),
        "extraction": {"rule": config.extract, "rules": saved_by_rule(own_plans)},
        "recorded": agreement(judgements),
        "val": second_opinions(judgements),
    }
    return AnswerResults(list(map(_record, judgements)), rows, content)


def _problems_without_plan(
    judgements: Iterable[Judgement], problems: Problems
) -> dict[str, list[str]]:
    """List the problems of the folder for which a model's files hold no plan; tables may choose theirs."""
    solved: dict[str, set[str]] = {}
    for judgement in judgements:
        if judgement.answer.is_planner_output:
            solved.setdefault(judgement.answer.model, set()).add(judgement.task.id)
    return {
        model: [name for name in problems.names if name not in names]
        for model, names in solved.items()
    }


def break_counts(rows: Iterable[JudgedRow]) -> dict[str, int]:
    """Count where the plans of some rows break, by `BREAKS`."""
    predictions = chain.from_iterable(row.predictions for row in rows)
    counts: Counter[str] = Counter()
    for prediction in predictions:
        num_steps = len(prediction.outcome.actions)
        counts[_break(prediction.progress, num_steps)] += 1
    return {name: counts[name] for name in BREAKS}


def _break(verdict: PlanVerdict, num_steps: int) -> str:
    if verdict.error is None:
        return VALID
    if verdict.error in VALIDATOR_FAILURES:
        return NO_VERDICT
    if verdict.error in (PlanError.SYNTAX, PlanError.GOAL_NOT_REACHED):
        return verdict.error.value
    # A plan of one step breaks at its first step, and not in a half.
    failed_step = verdict.failed_step or 1
    if failed_step == 1:
        return "first_step"
    return "first_half" if 2 * failed_step <= num_steps else "second_half"


def _record(judgement: Judgement) -> dict[str, Any]:
    # "valid" is of the plan; "correct" of the answer, which may be a claim about a plan.
    verdict = judgement.verdict
    return judgement.origin | {
        "answer": judgement.answer.text,
        "plan": [" ".join(action) for action in judgement.plan.actions],
        "valid": verdict.valid,
        "error": None if verdict.error is None else verdict.error.value,
        "failed_step": verdict.failed_step,
        "failed_condition": verdict.failed_condition,
        "task": judgement.answer.task,
        "correct": judgement.correct,
        "recorded": judgement.answer.recorded,
        "val": None if judgement.val is None else judgement.val.valid,
    }


def cells_of(content: Mapping[str, Any]) -> list[tuple[str, str, str, Mapping[str, Any]]]:
    """List (domain, model, prompt, measures) for every combination that occurs, sorted by name."""
    cells = []
    for model, results in content["models"].items():
        for prompt, result in results.items():
            cells += [(domain, model, prompt, cell) for domain, cell in result["domains"].items()]
    return sorted(cells, key=lambda cell: cell[:3])
