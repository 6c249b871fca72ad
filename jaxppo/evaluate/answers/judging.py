"""Judge answers: each is read by both rules, and each different plan for a problem is judged once."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from jaxppo.errors import DataError, PddlError, ValidatorError
from jaxppo.evaluate.plan_metrics import grouped
from jaxppo.evaluate.predictions import JudgedPrediction, JudgedRow, Prediction
from jaxppo.planning import PlanVerdict, Problem, run_val_many, validate_actions
from jaxppo.planning.answers.answer import (
    OPTIMALITY,
    VERIFICATION,
    PlanAnswer,
    UnusableAnswer,
)
from jaxppo.planning.answers.extraction import RULES, Rule
from jaxppo.planning.answers.problems import AnsweredProblem, Problems
from jaxppo.planning.language.plans import ParsedPlan, ParsedTimedPlan, PlanError, parse_action
from jaxppo.planning.language.temporal import parse_plan_for, parse_planner_output
from jaxppo.reward_functions.plan import PlanOutcome


class Judgement(NamedTuple):
    """An answer with its problem and its verdict.

    Attributes:
        answer: the answer.
        task: its problem.
        plan: what was read by the rule that was asked for.
        verdict: on that plan.
        verdicts_by_rule: on what each rule reads, in the order of `RULES`.
        val: what VAL says of the plan; None where it was not asked.
        reference_cost: what the reference plan costs; None where there is no valid one, or it does not matter.
    """

    answer: PlanAnswer
    task: AnsweredProblem
    plan: ParsedPlan
    verdict: PlanVerdict
    verdicts_by_rule: tuple[PlanVerdict, ...]
    val: PlanVerdict | None = None
    reference_cost: float | None = None

    @property
    def correct(self) -> bool | None:
        """Whether the answer is what was asked for, as records judge it; None where nothing here can tell.

        A valid plan; of an optimality task one that costs no more than the reference; of a verification a true claim.
        """
        verdict = self.verdict
        # The plan was part of the prompt, and the answer is a claim about it.
        if self.answer.task == VERIFICATION:
            if verdict.error is PlanError.SYNTAX:
                return None
            return verdict.valid is self.answer.claim
        if self.answer.task == OPTIMALITY and verdict.valid:
            if self.reference_cost is None or verdict.cost is None:
                return None
            return verdict.cost <= self.reference_cost
        return verdict.valid

    @property
    def origin(self) -> dict[str, str]:
        """Return where the answer is from, and to what it is, as records of it begin."""
        return {
            "source": self.answer.source,
            "model": self.answer.model,
            "domain": self.task.domain,
            "prompt": self.answer.prompt,
            "problem": self.task.id,
        }


class _Reading(NamedTuple):
    """What a rule reads in a text."""

    plan: ParsedPlan
    verdict: PlanVerdict


class AnswerJudge:
    """Judges answers to any problems.

    Models repeat themselves: texts are cached by problem, so that thousands of recorded answers take the time of the
    different ones.

    Args:
        problems: where the problems are.
        rule: how the plan is cut out.
    """

    def __init__(self, problems: Problems, rule: Rule = "strict"):
        self._problems = problems
        self._rule = RULES.index(rule)
        self._readings_by_text: dict[tuple[int, str | None, bool], list[_Reading]] = {}

    def __call__(
        self, answers: Iterable[PlanAnswer | UnusableAnswer]
    ) -> tuple[list[Judgement], list[UnusableAnswer]]:
        """Judge answers; those that cannot be judged are lines with the reason."""
        judgements: list[Judgement] = []
        unread: list[UnusableAnswer] = []
        for answer in answers:
            if isinstance(answer, UnusableAnswer):
                unread.append(answer)
                continue
            # One file that cannot be judged costs no other its verdict.
            try:
                judgements.append(self._judge(answer))
            except (DataError, PddlError, ValidatorError) as error:
                unread.append(UnusableAnswer.from_error(answer.source, error))
        return judgements, unread

    def _judge(self, answer: PlanAnswer) -> Judgement:
        task = self._problems.find(answer)
        readings = self._readings(task, answer)
        # The plan of a verification is part of the prompt: it
        # is read strictly, whatever the rule for answers is.
        reading = readings[0 if answer.task == VERIFICATION else self._rule]
        verdicts_by_rule = tuple(reading.verdict for reading in readings)
        return Judgement(
            answer,
            task,
            reading.plan,
            reading.verdict,
            verdicts_by_rule,
            reference_cost=self._reference_cost(answer, task),
        )

    def _reference_cost(self, answer: PlanAnswer, task: AnsweredProblem) -> float | None:
        if answer.task != OPTIMALITY or not answer.reference or task.problem is None:
            return None
        reference = self._problems.reference(task, answer.reference)
        if not reference:
            return None
        return self._verdict(task, ParsedPlan(tuple(map(parse_action, reference)))).cost

    def _readings(self, task: AnsweredProblem, answer: PlanAnswer) -> list[_Reading]:
        """Read and judge an answer by every rule, in the order of `RULES`."""
        key = (id(task), answer.text, answer.is_planner_output)
        if key not in self._readings_by_text:
            if answer.text is None:
                # No answer is a failure.
                unreadable = ParsedPlan((), PlanError.SYNTAX, 1)
                readings = [_Reading(unreadable, _refused(unreadable))]
            elif answer.is_planner_output or task.problem is None:
                # Nothing is cut out of a planner's file, nor of text in a notation that nothing here knows.
                parse = parse_planner_output if answer.is_planner_output else parse_plan_for
                readings = [
                    self._read_whole(task, parse(task.domain_pddl, task.problem_pddl, answer.text))
                ]
            else:
                readings = self._read(task, task.problem, answer.text)
            # A single reading is that of both rules.
            if len(readings) == 1:
                readings *= len(RULES)
            self._readings_by_text[key] = readings
        return self._readings_by_text[key]

    def _read_whole(self, task: AnsweredProblem, plan: ParsedPlan | ParsedTimedPlan) -> _Reading:
        """Judge a text that is a plan and nothing else as `python -m jaxppo.planning validate` does."""
        untimed = ParsedPlan(plan.actions, plan.error, plan.error_step)
        if plan.error is not None:
            return _Reading(untimed, _refused(untimed))
        verdict = validate_actions(task.domain_pddl, task.problem_pddl, plan.steps, "auto")
        return _Reading(untimed, verdict)

    def _read(self, task: AnsweredProblem, problem: Problem, text: str) -> list[_Reading]:
        """Read and judge a text by both rules; one reading where they read the same."""
        strict = task.reader.read(text, "strict")
        readings = [_Reading(strict, self._verdict(task, strict))]
        # Of a text that is a plan as a whole, `last` reads the names of actions anew, and nothing else.
        names = problem.domain.actions
        if strict.error is None and all(action[0] in names for action in strict.actions):
            return readings
        last = task.reader.read(text, "last")
        return [*readings, _Reading(last, self._verdict(task, last))]

    def _verdict(self, task: AnsweredProblem, plan: ParsedPlan) -> PlanVerdict:
        if plan.error is not None:
            return _refused(plan)
        # Some problems turn out to be beyond the built-in validator only in a step of a plan.
        return validate_actions(task.domain_pddl, task.problem_pddl, plan.actions, "auto")


def _refused(plan: ParsedPlan) -> PlanVerdict:
    return PlanVerdict.refused(plan.error or PlanError.SYNTAX, plan.error_step)


def ask_val(judgements: Sequence[Judgement]) -> list[Judgement]:
    """Ask VAL about the plans that can be read; of problems that it refuses there is no verdict."""
    answered = list(judgements)
    readable = [
        index
        for index, judgement in enumerate(judgements)
        if judgement.plan.error is None and judgement.task.problem is not None
    ]
    # One problem that VAL refuses costs all of a call their
    # verdicts, so each problem gets a call of its own.
    for group in grouped(readable, lambda index: id(judgements[index].task)).values():
        task = judgements[group[0]].task
        plans = [judgements[index].plan.actions for index in group]
        with suppress(ValidatorError):
            verdicts = run_val_many([(task.domain_pddl, task.problem_pddl, plan) for plan in plans])
            for index, verdict in zip(group, verdicts, strict=True):
                answered[index] = judgements[index]._replace(val=verdict)
    return answered


# ------------------------------------------------------------------------------------------------------------ measuring


def rows_of(judgements: Sequence[Judgement], problems: Problems) -> dict[str, list[JudgedRow]]:
    """Group judged answers for `plan_metrics`: {model: rows}, the kind of prompt being the split.

    Several answers of a model to a problem, with one kind of prompt, are samples of one row.
    """
    # The plan of a verification is not the model's.
    own_plans = [judgement for judgement in judgements if judgement.answer.task != VERIFICATION]
    groups = grouped(
        own_plans,
        lambda judgement: (
            judgement.answer.model,
            judgement.answer.prompt,
            id(judgement.task),
        ),
    )
    rows: dict[str, list[JudgedRow]] = {}
    for (model, _, _), group in groups.items():
        rows.setdefault(model, []).append(_row(group, problems))
    return rows


def _row(judgements: Sequence[Judgement], problems: Problems) -> JudgedRow:
    task = judgements[0].task
    references: dict[tuple[str, ...], None] = {}
    for judgement in judgements:
        if judgement.answer.reference:
            references[problems.reference(task, judgement.answer.reference)] = None
    row = {
        "id": task.id,
        "split": judgements[0].answer.prompt,
        "domain": task.domain,
        "domain_pddl": task.domain_pddl,
        "problem_pddl": task.problem_pddl,
        "reference_plan": [list(plan) for plan in references if plan] or None,
        "prompt_style": "pddl",
    }
    return JudgedRow(row, tuple(map(_prediction, judgements)))


def _prediction(judgement: Judgement) -> JudgedPrediction:
    # What has no use here is 0: no reward function sees these plans.
    verdict = judgement.verdict
    outcome = PlanOutcome(
        actions=judgement.plan.actions,
        verdict=verdict,
        lccs=0.0,
        partial=0.0,
        reward=float(verdict.valid),
        reference_steps=0,
        holds_reference=False,
    )
    return JudgedPrediction(Prediction(judgement.answer.text, is_pddl=True), outcome, verdict)
