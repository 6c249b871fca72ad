"""Compare verdicts with the recorded ones, and say why they differ."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from jaxppo.evaluate.answers.judging import Judged, ask_val
from jaxppo.planning import PlanVerdict, find_val
from jaxppo.planning.answers.extraction import RULES
from jaxppo.planning.language.plans import ParsedPlan, PlanError, parse_plan_text
from jaxppo.planning.validate.validator import execute
from jaxppo.reward_functions.plan import describe


class Reason(StrEnum):
    """Why a verdict is another than the recorded one."""

    MAPPING = "names of another mapping"
    """No operator of the answer is one of the domain's, and none of the recorded reference is."""
    AROUND = "text around the plan"
    """The text is no plan by itself, and the recorded verdict is that on the whole or on what another rule cuts out."""
    SURPLUS = "surplus arguments"
    """Of untyped actions VAL reads no more arguments than there are parameters; without them the plan is valid."""
    RECORD = "recorded verdict differs from VAL's"
    """VAL says of the plan what is said here, and it is the recorded one as far as the file tells."""
    OTHER = "differs"


def agreement(judged: Sequence[Judged]) -> dict[str, Any]:
    """Compare every verdict with the recorded one, where there is one.

    VAL is asked about differences that nothing else explains, where it is installed.

    Returns:
        "compared" and "equal" (answers), "reasons" {reason: answers}, "val" (whether it could be asked) and
        "disagreements", each with its file, the two verdicts and the reason, and "table", with the counts by task,
        domain, model and kind of prompt.
    """
    compared = [one for one in judged if one.answer.recorded is not None and one.correct is not None]
    different = [one for one in compared if one.correct != one.answer.recorded]
    explained = [(one, _reason(one)) for one in different]
    open_cases = [one for one, reason in explained if reason is None]
    has_val = find_val() is not None
    asked = {id(one): one if one.val else again for one, again in _with_val(open_cases, has_val)}
    reasons = [reason or _after_val(asked[id(one)]) for one, reason in explained]
    counts = Counter(reasons)
    return {
        "compared": len(compared),
        "equal": len(compared) - len(different),
        "reasons": {str(reason): counts[reason] for reason in Reason},
        "val": has_val,
        "disagreements": [_record(one, reason) for one, reason in zip(different, reasons, strict=True)],
        "table": _table(compared),
    }


def _table(compared: Sequence[Judged]) -> list[dict[str, Any]]:
    """Count what is recorded and what is judged correct, for each task, domain, model and kind of prompt."""
    groups: dict[tuple[str, ...], list[Judged]] = {}
    for one in compared:
        answer = one.answer
        groups.setdefault((answer.task, one.task.domain, answer.model, answer.prompt), []).append(one)
    return [
        {
            **dict(zip(("task", "domain", "model", "prompt"), names, strict=True)),
            "answers": len(group),
            "recorded": sum(one.answer.recorded is True for one in group),
            "judged": sum(one.correct is True for one in group),
            "equal": sum(one.correct == one.answer.recorded for one in group),
        }
        for names, group in sorted(groups.items())
    ]


def _with_val(cases: Sequence[Judged], has_val: bool) -> list[tuple[Judged, Judged]]:
    return list(zip(cases, ask_val(cases) if has_val and cases else cases, strict=True))


def _reason(one: Judged) -> Reason | None:
    recorded, error = one.answer.recorded, one.verdict.error
    is_around = one.by_rule[0].error is PlanError.SYNTAX
    if is_around and any(verdict.valid == recorded for verdict in _others(one)):
        return Reason.AROUND
    if error is PlanError.WRONG_ARITY and recorded and _is_valid_without_surplus(one):
        return Reason.SURPLUS
    if error is PlanError.UNKNOWN_ACTION and _is_foreign(one, one.plan):
        reference = parse_plan_text(one.answer.reference)
        if not reference.actions or _is_foreign(one, reference):
            return Reason.MAPPING
    return None


def _others(one: Judged) -> list[PlanVerdict]:
    """List the verdicts that the recorded one may be: on the whole text, and on what each rule cuts out of it.

    Where the file has a plan that was cut out, it is not the whole text that was judged.
    """
    cut = [verdict for verdict in one.by_rule[1:] if verdict.error is not PlanError.SYNTAX]
    return cut if one.answer.extracted is not None else [one.by_rule[0], *cut]


def _is_valid_without_surplus(one: Judged) -> bool:
    problem = one.task.problem
    if problem is None:
        return False
    actions = problem.domain.actions
    counts = {name: len(action.parameters) for name, action in actions.items()}
    plan = [action[: 1 + counts[action[0]]] if action[0] in counts else action for action in one.plan.actions]
    return execute(problem, plan).valid


def _is_foreign(one: Judged, plan: ParsedPlan) -> bool:
    problem = one.task.problem
    return problem is not None and not any(action[0] in problem.domain.actions for action in plan.actions)


def _after_val(one: Judged) -> Reason:
    agrees = one.val is not None and one.val.valid == one.verdict.valid and one.plan.error is None
    same = one.answer.extracted is None or parse_plan_text(one.answer.extracted).actions == one.plan.actions
    return Reason.RECORD if agrees and same else Reason.OTHER


def _record(one: Judged, reason: Reason) -> dict[str, Any]:
    told = {"recorded": one.answer.recorded, "verdict": describe(one.verdict), "reason": str(reason)}
    return one.named | told


def second_opinions(judged: Sequence[Judged]) -> dict[str, Any]:
    """Count the plans that VAL was asked about, and list those of which it says something else."""
    asked = [one for one in judged if one.val is not None]
    others = [one for one in asked if one.val is not None and one.val.valid != one.verdict.valid]
    differences = [
        {"source": one.answer.source, "verdict": describe(one.verdict), "val": describe(one.val)}
        for one in others
        if one.val is not None
    ]
    return {"asked": len(asked), "equal": len(asked) - len(others), "differences": differences}


def saved_by_rule(judged: Sequence[Judged]) -> dict[str, dict[str, int]]:
    """Count for each rule the answers that it reads, those that are valid, and those that strict reading loses."""
    return {
        rule: {
            "readable": sum(one.by_rule[place].error is not PlanError.SYNTAX for one in judged),
            "valid": sum(one.by_rule[place].valid for one in judged),
            "saved": sum(one.by_rule[place].valid and not one.by_rule[0].valid for one in judged),
        }
        for place, rule in enumerate(RULES)
    }


def extracted_alike(judged: Sequence[Judged]) -> dict[str, int]:
    """Compare what was read with the plan that the file has cut out of the same answer (`extracted_llm_plan`)."""
    known = [(one, parse_plan_text(one.answer.extracted)) for one in judged if one.answer.extracted is not None]
    readable = [(one, plan) for one, plan in known if plan.error is None]
    return {
        "compared": len(readable),
        "equal": sum(one.plan.error is None and one.plan.actions == plan.actions for one, plan in readable),
    }
