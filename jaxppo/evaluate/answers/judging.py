"""Judge answers: each is read by every rule, and each different plan for a problem is judged once."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from jaxppo.errors import DataError, PddlError, ValidatorError
from jaxppo.evaluate.predictions import JudgedPrediction, JudgedRow, Prediction
from jaxppo.planning import PlanVerdict, UnsupportedPddlError, find_val, run_val_many, validate_plan
from jaxppo.planning.answers.answer import OPTIMALITY, VERIFICATION, PlanAnswer, UnusableAnswer
from jaxppo.planning.answers.extraction import MOST_CHARACTERS, RULES, Rule
from jaxppo.planning.answers.problems import Problems, Task
from jaxppo.planning.language.plans import Action, ParsedPlan, PlanError, parse_action
from jaxppo.planning.language.temporal import parse_plan_for
from jaxppo.planning.validate.validator import execute
from jaxppo.reward_functions.plan import PlanOutcome

Plan = tuple[Action, ...]


class Judged(NamedTuple):
    """An answer with its problem and its verdict.

    Attributes:
        answer: the answer.
        task: its problem.
        plan: what was read by the rule that was asked for.
        verdict: on that plan.
        by_rule: the verdict on what each rule reads.
        val: what VAL says of the plan; None where it was not asked.
        reference_cost: what the reference plan costs; None where there is no valid one, or it does not matter.
    """

    answer: PlanAnswer
    task: Task
    plan: ParsedPlan
    verdict: PlanVerdict
    by_rule: tuple[PlanVerdict, ...]
    val: PlanVerdict | None = None
    reference_cost: float | None = None

    @property
    def correct(self) -> bool | None:
        """Whether the answer is what was asked for, as records judge it; None where nothing here can tell.

        A valid plan; of an optimality one that costs no more than the reference; of a verification a true claim.
        """
        verdict = self.verdict
        if self.answer.task == VERIFICATION:
            return None if verdict.error is PlanError.SYNTAX else verdict.valid is self.answer.claim
        if self.answer.task == OPTIMALITY and verdict.valid:
            if self.reference_cost is None or verdict.cost is None:
                return None
            return verdict.cost <= self.reference_cost
        return verdict.valid

    @property
    def named(self) -> dict[str, str]:
        """Return where the answer is from, and to what it is, as records of it begin."""
        answer = self.answer
        place = {"source": answer.source, "model": answer.model, "domain": self.task.domain, "prompt": answer.prompt}
        return place | {"problem": self.task.id}


class AnswerJudge:
    """Judges answers to any problems.

    Args:
        problems: where the problems are.
        rule: how the plan is cut out.
    """

    def __init__(self, problems: Problems, rule: Rule = "strict"):
        self._problems, self._rule = problems, RULES.index(rule)
        self._verdicts: dict[tuple[int, Plan], PlanVerdict] = {}
        self._read: dict[tuple[int, str], list[tuple[ParsedPlan, PlanVerdict]]] = {}

    def __call__(self, answers: Iterable[PlanAnswer | UnusableAnswer]) -> tuple[list[Judged], list[UnusableAnswer]]:
        """Judge answers; those that cannot be judged are lines with the reason."""
        judged: list[Judged] = []
        unread: list[UnusableAnswer] = []
        for answer in answers:
            if isinstance(answer, UnusableAnswer):
                unread.append(answer)
                continue
            try:
                judged.append(self._judge(answer))
            except (DataError, PddlError, ValidatorError) as error:
                unread.append(UnusableAnswer.from_error(answer.source, error))
        return judged, unread

    def _judge(self, answer: PlanAnswer) -> Judged:
        task = self._problems.find(answer)
        key = (id(task), answer.text or "")
        if answer.text is None:
            missing = ParsedPlan((), PlanError.SYNTAX, 1)
            readings = [(missing, _refused(missing))] * len(RULES)
        elif key in self._read:
            readings = self._read[key]
        else:
            readings = self._read[key] = self._readings(task, answer.text)
        # The plan of a verification is part of the prompt: it is read strictly, whatever the rule for answers is.
        rule = 0 if answer.task == VERIFICATION else self._rule
        judged = Judged(answer, task, *readings[rule], tuple(verdict for _, verdict in readings))
        if answer.task == OPTIMALITY and answer.reference and task.problem is not None:
            reference = self._problems.reference(task, answer.reference)
            if reference:
                plan = tuple(map(parse_action, reference))
                return judged._replace(reference_cost=self._verdict(task, ParsedPlan(plan)).cost)
        return judged

    def _readings(self, task: Task, text: str) -> list[tuple[ParsedPlan, PlanVerdict]]:
        """Read and judge a text by every rule; all are the strict one where that reads it."""
        if len(text) > MOST_CHARACTERS:
            too_long = ParsedPlan((), PlanError.SYNTAX, 1)
            return [(too_long, _refused(too_long))] * len(RULES)
        if task.problem is None:
            verdict = validate_plan(task.domain_pddl, task.problem_pddl, text, "val")
            error = verdict.error if verdict.error is PlanError.SYNTAX else None
            steps = parse_plan_for(task.domain_pddl, task.problem_pddl, text).actions
            return [(ParsedPlan(steps, error), verdict)] * len(RULES)
        strict = task.reader.read(text, "strict")
        if strict.error is None:
            return [(strict, self._verdict(task, strict))] * len(RULES)
        plans = [strict, *(task.reader.read(text, rule) for rule in RULES[1:])]
        return [(plan, self._verdict(task, plan)) for plan in plans]

    def _verdict(self, task: Task, plan: ParsedPlan) -> PlanVerdict:
        if plan.error is not None or task.problem is None:
            return _refused(plan)
        key = (id(task), plan.actions)
        if key not in self._verdicts:
            try:
                self._verdicts[key] = execute(task.problem, plan.actions)
            except UnsupportedPddlError:
                if find_val() is None:
                    raise
                (self._verdicts[key],) = run_val_many([(task.domain_pddl, task.problem_pddl, plan.actions)])
        return self._verdicts[key]


def _refused(plan: ParsedPlan) -> PlanVerdict:
    return PlanVerdict.refused(plan.error or PlanError.SYNTAX, plan.error_step)


def ask_val(judged: Sequence[Judged], timeout_s: float = 30.0) -> list[Judged]:
    """Ask VAL about the plans that can be read; of problems that it refuses there is no verdict.

    Raises:
        ValidatorError: VAL is missing.
    """
    by_task: dict[int, tuple[Task, dict[Plan, None]]] = {}
    for one in judged:
        if one.plan.error is None and one.task.problem is not None:
            by_task.setdefault(id(one.task), (one.task, {}))[1][one.plan.actions] = None
    tasks = {place: (task, list(plans)) for place, (task, plans) in by_task.items()}
    try:
        verdicts = _val_verdicts(tasks, timeout_s)
    except ValidatorError:
        if find_val() is None:
            raise
        verdicts = {}
        for place, of_task in tasks.items():
            with suppress(ValidatorError):
                verdicts |= _val_verdicts({place: of_task}, timeout_s)
    return [one._replace(val=verdicts.get((id(one.task), one.plan.actions))) for one in judged]


def _val_verdicts(
    tasks: Mapping[int, tuple[Task, list[Plan]]], timeout_s: float
) -> dict[tuple[int, Plan], PlanVerdict]:
    keys = [(place, plan) for place, (_, plans) in tasks.items() for plan in plans]
    cases = [(tasks[place][0].domain_pddl, tasks[place][0].problem_pddl, plan) for place, plan in keys]
    return dict(zip(keys, run_val_many(cases, timeout_s=timeout_s), strict=True))


# ------------------------------------------------------------------------------------------------------------ measuring


def rows_of(judged: Sequence[Judged], problems: Problems) -> dict[str, list[JudgedRow]]:
    """Group judged answers for `plan_metrics`: {model: rows}, the kind of prompt being the split.

    Several answers of a model to a problem, with one kind of prompt, are samples of one row.
    """
    groups: dict[tuple[str, str, str, int], list[Judged]] = {}
    for one in judged:
        answer = one.answer
        if answer.task == VERIFICATION:  # the plan is not the model's
            continue
        groups.setdefault((answer.model, answer.prompt, one.task.domain, id(one.task)), []).append(one)
    rows: dict[str, list[JudgedRow]] = {}
    for (model, prompt, domain, _), answers in groups.items():
        rows.setdefault(model, []).append(_row(prompt, domain, answers, problems))
    return rows


def _row(prompt: str, domain: str, answers: Sequence[Judged], problems: Problems) -> JudgedRow:
    task = answers[0].task
    references = {problems.reference(task, one.answer.reference): None for one in answers if one.answer.reference}
    row = {
        "id": task.id,
        "split": prompt,
        "domain": domain,
        "domain_pddl": task.domain_pddl,
        "problem_pddl": task.problem_pddl,
        "reference_plan": [list(plan) for plan in references if plan] or None,
        "prompt_style": "pddl",
    }
    return JudgedRow(row, tuple(map(_prediction, answers)))


def _prediction(one: Judged) -> JudgedPrediction:
    outcome = PlanOutcome(one.plan.actions, one.verdict, 0.0, 0.0, float(one.verdict.valid), 0, False)
    return JudgedPrediction(Prediction(one.answer.text, is_pddl=True), outcome, one.verdict)
