"""Everything that is said about files of answers, for `eval.json`, the terminal and the page."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.config import EvaluateConfig
from jaxppo.errors import DataError
from jaxppo.evaluate.answers.agreement import agreement, extracted_alike, saved_by_rule, second_opinions
from jaxppo.evaluate.answers.judging import AnswerJudge, Judged, ask_val, rows_of
from jaxppo.evaluate.plan_metrics import VALID, plan_results
from jaxppo.evaluate.predictions import JudgedRow
from jaxppo.planning import PlanVerdict
from jaxppo.planning.answers.answer import VERIFICATION
from jaxppo.planning.answers.columns import parse_columns
from jaxppo.planning.answers.extraction import MOST_CHARACTERS
from jaxppo.planning.answers.problems import Problems
from jaxppo.planning.answers.reading import read_answers
from jaxppo.planning.language.plans import PlanError
from jaxppo.reward_functions.plan import VALIDATOR_FAILURES, check_validator

NO_VERDICT = "no_verdict"
BREAKS = (VALID, "goal_not_reached", "second_half", "first_half", "first_step", "syntax", NO_VERDICT)
"""Where plans break: not at all, at their end, behind or in front of their middle, at their first step, as text."""


class AnswerResults(NamedTuple):
    """Judged answers with what is measured on them.

    Attributes:
        judged: the answers.
        rows: {model: rows}.
        content: what `eval.json` holds.
    """

    judged: list[Judged]
    rows: dict[str, list[JudgedRow]]
    content: dict[str, Any]


def judge_answers(config: EvaluateConfig) -> AnswerResults:
    """Read, judge, measure and compare the answers that `--plans` names.

    Raises:
        DataError: there is no such file or folder, or not one answer in it can be judged.
        ConfigError: `--columns` says something else than columns.
        ValidatorError: VAL is asked for, and missing.
    """
    evaluation = config.evaluation
    if evaluation.eval_validator == "val":
        check_validator("val")
    problems = Problems(_folder(config.pddl_dir))
    answers = read_answers(Path(str(config.plans)), parse_columns(config.columns), problems.configs, problems.folders)
    judged, unread = AnswerJudge(problems, config.extract)(answers)
    if not judged:
        got = f"none, as {unread[0].source}: {unread[0].reason}" if unread else "none"
        raise DataError(f"plans: expected at least one answer to judge in {config.plans}, got {got}")
    if evaluation.eval_validator == "val":
        judged = ask_val(judged)
    rows = rows_of(judged, problems)
    own_plans = [one for one in judged if one.answer.task != VERIFICATION]
    content = {
        "models": {model: plan_results(of_model, evaluation.length_edges) for model, of_model in rows.items()},
        "where_plans_break": {model: break_counts(of_model) for model, of_model in rows.items()},
        "answers": {"judged": len(judged), "not_judged": len(unread)},
        "too_long": _too_long(judged),
        "not_judged": [line._asdict() for line in unread],
        "extraction": {"rule": config.extract, "rules": saved_by_rule(own_plans)},
        "extracted": extracted_alike(own_plans),
        "recorded": agreement(judged),
        "val": second_opinions(judged),
    }
    return AnswerResults(judged, rows, content)


def _too_long(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """List the answers that count as failed without being looked at."""
    lengths = [(one.answer.source, len(one.answer.text or "")) for one in judged]
    return [{"source": source, "characters": length} for source, length in lengths if length > MOST_CHARACTERS]


def _folder(name: str | None) -> Path | None:
    if name is not None and not Path(name).is_dir():
        raise DataError(f"pddl_dir: expected a folder that exists, got {name}")
    return None if name is None else Path(name)


def break_counts(rows: Iterable[JudgedRow]) -> dict[str, int]:
    """Count where the plans of some rows break, by `BREAKS`."""
    places = (_break(one.progress, len(one.outcome.actions)) for row in rows for one in row.predictions)
    counts = Counter(places)
    return {name: counts[name] for name in BREAKS}


def _break(verdict: PlanVerdict, steps: int) -> str:
    if verdict.error is None:
        return VALID
    if verdict.error in VALIDATOR_FAILURES:
        return NO_VERDICT
    if verdict.error in (PlanError.SYNTAX, PlanError.GOAL_NOT_REACHED):
        return verdict.error.value
    failed = verdict.failed_step or 1
    return "first_step" if failed == 1 else "first_half" if 2 * failed <= steps else "second_half"


def answer_records(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """Return one record per answer, with its verdict, for `samples.jsonl`."""
    return [_record(one) for one in judged]


def _record(one: Judged) -> dict[str, Any]:
    verdict = one.verdict
    return one.named | {
        "answer": one.answer.text,
        "plan": [" ".join(action) for action in one.plan.actions],
        "valid": verdict.valid,
        "error": None if verdict.error is None else verdict.error.value,
        "failed_step": verdict.failed_step,
        "failed_condition": verdict.failed_condition,
        "task": one.answer.task,
        "correct": one.correct,
        "recorded": one.answer.recorded,
        "val": None if one.val is None else one.val.valid,
    }


def cells_of(content: Mapping[str, Any]) -> list[tuple[str, str, str, Mapping[str, Any]]]:
    """List (domain, model, prompt, measures) for every combination that there is, sorted by name."""
    cells = [
        (domain, model, prompt, cell)
        for model, results in content["models"].items()
        for prompt, result in results.items()
        for domain, cell in result["domains"].items()
    ]
    return sorted(cells, key=lambda cell: cell[:3])
