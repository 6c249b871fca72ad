"""Compare verdicts with the recorded ones, and say why they differ."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from jaxppo.evaluate.answers.judging import Judgement, ask_val
from jaxppo.evaluate.plan_metrics import grouped
from jaxppo.planning import PlanVerdict, find_val
from jaxppo.planning.answers.extraction import RULES
from jaxppo.planning.language.plans import PlanError, parse_plan_text
from jaxppo.planning.validate.validator import execute
from jaxppo.reward_functions.plan import describe


class Reason(StrEnum):
    """Why a verdict is another than the recorded one."""

    AROUND = "text around the plan"
    """The text is no plan by itself, and the recorded verdict is that on the whole or on what another rule cuts out."""
    SURPLUS = "surplus arguments"
    """Of untyped actions VAL reads no more arguments than there are parameters; without them the plan is valid."""
    RECORD = "recorded verdict differs from VAL's"
    """VAL says of the plan what is said here, and it is the recorded one as far as the file tells."""
    OTHER = "differs"


def agreement(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """Compare every verdict with the recorded one, where there is one.

    VAL is asked about differences that nothing else explains, where it is installed.

    Returns:
        "compared" and "equal" (answers), "reasons" {reason: answers}, "val" (whether it could be asked) and
        "disagreements", each with its file, the two verdicts and the reason, and "table", with the counts by task,
        domain, model and kind of prompt.
    """
    # Some records have no verdict; of some tasks nothing here can tell whether an answer is right.
    compared = []
    for judgement in judgements:
        if judgement.answer.recorded is not None and judgement.correct is not None:
            compared.append(judgement)
    different = [
        judgement for judgement in compared if judgement.correct != judgement.answer.recorded
    ]
    has_val = find_val() is not None
    reasons = _explain(different, has_val)
    counts = Counter(reasons)
    return {
        "compared": len(compared),
        "equal": len(compared) - len(different),
        "reasons": {str(reason): counts[reason] for reason in Reason},
        "val": has_val,
        "disagreements": [_disagreement(*pair) for pair in zip(different, reasons, strict=True)],
        "table": _table(compared),
    }


def _disagreement(judgement: Judgement, reason: Reason) -> dict[str, Any]:
    return judgement.origin | {
        "recorded": judgement.answer.recorded,
        "verdict": describe(judgement.verdict),
        "reason": str(reason),
    }


def _table(compared: Sequence[Judgement]) -> list[dict[str, Any]]:
    """Count what is recorded and what is judged correct, for each task, domain, model and kind of prompt."""
    groups = grouped(
        compared,
        lambda judgement: (
            judgement.answer.task,
            judgement.task.domain,
            judgement.answer.model,
            judgement.answer.prompt,
        ),
    )
    rows = []
    for (task, domain, model, prompt), group in sorted(groups.items()):
        row = {
            "task": task,
            "domain": domain,
            "model": model,
            "prompt": prompt,
            "answers": len(group),
            "recorded": sum(judgement.answer.recorded is True for judgement in group),
            "judged": sum(judgement.correct is True for judgement in group),
            "equal": sum(judgement.correct == judgement.answer.recorded for judgement in group),
        }
        rows.append(row)
    return rows


def _explain(different: Sequence[Judgement], has_val: bool) -> list[Reason]:
    """Find the reason of each difference; VAL, which takes a process for a plan, is asked about the rest alone."""
    reasons = list(map(_reason, different))
    unexplained = [
        judgement for judgement, reason in zip(different, reasons, strict=True) if reason is None
    ]
    if has_val:
        unexplained = ask_val(unexplained)
    reasons_by_val = map(_reason_by_val, unexplained)
    return [next(reasons_by_val) if reason is None else reason for reason in reasons]


def _reason(judgement: Judgement) -> Reason | None:
    recorded = judgement.answer.recorded
    has_text_around = judgement.verdicts_by_rule[0].error is PlanError.SYNTAX
    possible_verdicts = [verdict.valid for verdict in _possible_verdicts(judgement)]
    if has_text_around and recorded in possible_verdicts:
        return Reason.AROUND
    # VAL passes over surplus arguments of untyped actions,
    # so a record made with it calls such plans valid.
    has_surplus = judgement.verdict.error is PlanError.WRONG_ARITY
    if has_surplus and recorded and _is_valid_without_surplus(judgement):
        return Reason.SURPLUS
    return None


def _possible_verdicts(judgement: Judgement) -> list[PlanVerdict]:
    """List the verdicts that the recorded one may be: on the whole text, and on what each rule cuts out of it.

    Where the file has a plan that was cut out, it is not the whole text that was judged.
    """
    verdict_on_whole, *verdicts_on_parts = judgement.verdicts_by_rule
    verdicts = [verdict for verdict in verdicts_on_parts if verdict.error is not PlanError.SYNTAX]
    if judgement.answer.extracted is None:
        verdicts.append(verdict_on_whole)
    return verdicts


def _is_valid_without_surplus(judgement: Judgement) -> bool:
    problem = judgement.task.problem
    if problem is None:
        return False
    plan = []
    for name, *arguments in judgement.plan.actions:
        if name in problem.domain.actions:
            arguments = arguments[: len(problem.domain.actions[name].parameters)]
        plan.append((name, *arguments))
    return execute(problem, plan).valid


def _reason_by_val(judgement: Judgement) -> Reason:
    plan = judgement.plan
    val = judgement.val
    # A record that VAL contradicts together with the
    # verdict here is wrong, or about something else.
    if val is None or val.valid != judgement.verdict.valid or plan.error is not None:
        return Reason.OTHER
    # Where somebody else cut another plan out of the answer, the record is about that one, and
    # else about the text as it is written, in which a rule may have read other names.
    extracted = judgement.answer.extracted
    if extracted is not None:
        is_same_plan = parse_plan_text(extracted).actions == plan.actions
    else:
        is_same_plan = judgement.verdicts_by_rule[0].valid != judgement.answer.recorded
    return Reason.RECORD if is_same_plan else Reason.OTHER


def second_opinions(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """Count the plans that VAL was asked about, and list those of which it says something else."""
    num_asked = 0
    differences = []
    for judgement in judgements:
        if judgement.val is None:
            continue
        num_asked += 1
        if judgement.val.valid != judgement.verdict.valid:
            verdicts = {"verdict": describe(judgement.verdict), "val": describe(judgement.val)}
            differences.append({"source": judgement.answer.source, **verdicts})
    return {"asked": num_asked, "equal": num_asked - len(differences), "differences": differences}


def saved_by_rule(judgements: Sequence[Judgement]) -> dict[str, dict[str, int]]:
    """Count for each rule the answers that it reads, those that are valid, and those that strict reading loses."""
    lost_by_strict = [
        judgement for judgement in judgements if not judgement.verdicts_by_rule[0].valid
    ]
    counts = {}
    for place, rule in enumerate(RULES):
        verdicts = [judgement.verdicts_by_rule[place] for judgement in judgements]
        counts[rule] = {
            "readable": sum(verdict.error is not PlanError.SYNTAX for verdict in verdicts),
            "valid": sum(verdict.valid for verdict in verdicts),
            "saved": sum(judgement.verdicts_by_rule[place].valid for judgement in lost_by_strict),
        }
    return counts
