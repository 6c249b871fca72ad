"""Sample several plans for each of many problems, part by part, and choose those that a model may learn from."""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo import data
from jaxppo.config import EvalConfig, SelfTrainConfig
from jaxppo.data import Row
from jaxppo.evaluate.evaluator import Evaluator
from jaxppo.evaluate.predictions import Prediction, judge_rows
from jaxppo.nn import ModelConfig
from jaxppo.parallel import processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning import format_action
from jaxppo.reward_functions.plan import PlanScoring, describe
from jaxppo.reward_functions.registry import plan_scoring
from jaxppo.run.console import Console
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.types import Params


class Problem(NamedTuple):
    """A problem to sample plans for."""

    row: int  # of the split
    turn: int  # how often plans were sampled for it before


class SampledPlan(NamedTuple):
    """A plan that was sampled and judged; a line of a log."""

    step: int  # part of the log, from 1
    row: int  # of the split
    id: str
    completion: str
    ended: bool
    tokens: int
    valid: bool
    verdict: str
    actions: list[str]  # "(action args)"

    def shown(self, step: int) -> dict[str, Any]:
        """Return the line of a run's `samples.jsonl`."""
        score = {"score": float(self.valid), "verdict": self.verdict}
        return {"step": step, "id": self.id, "completion": self.completion} | score


def problems_of_round(num_rows: int, seed: int, number: int, count: int) -> list[Problem]:
    """Return the problems of round `number` (from 1): the next `count` of the endless stream that shuffles all rows."""
    first = (number - 1) * count
    order = data.row_order(num_rows, seed, first, count)
    return [Problem(int(row), (first + i) // num_rows) for i, row in enumerate(order)]


class PlanSampler:
    """Samples plans and has them judged, into a log that a killed process leaves for the next one to go on with.

    Args:
        evaluator: has the rows, and samples as its settings say.
        split: name of the rows.
        num_generations: plans for each problem.
        scoring: who judges.
        part: problems sampled for at once.
    """

    def __init__(self, evaluator: Evaluator, split: str, num_generations: int, scoring: PlanScoring, part: int):
        self._evaluator, self._split, self._copies = evaluator, split, num_generations
        self._scoring, self._part = scoring, part

    def sample(self, params: Params, problems: Sequence[Problem], path: Path, console: Console) -> dict[str, float]:
        """Sample what a log does not hold yet.

        Args:
            params: of the language model.
            problems: a plan depends on seed, problem, turn and its number alone, not on the problems beside it.
            path: the log.
            console: shows how far it is.

        Returns:
            Seconds of sampling and of judging.
        """
        parts = list(data.chunks(problems, self._part))
        done = _parts_done([plan.step for plan in read_plans(path)], [len(part) * self._copies for part in parts])
        seconds = {"time/rollout_s": 0.0, "time/reward_s": 0.0}
        with (
            JsonlLog(path, enabled=processes.is_first()) as log,
            console.progress(len(parts), "Sampling", done, unit="part") as progress,
        ):
            log.truncate_after(done)
            for step, part in enumerate(parts[done:], done + 1):
                began = time.monotonic()
                drawn = self._drawn(params, part)
                between = time.monotonic()
                plans = self._judged(step, part, drawn)
                for plan in plans:
                    log.append(plan._asdict())
                seconds["time/rollout_s"] += between - began
                seconds["time/reward_s"] += time.monotonic() - between
                progress.update(step, valid=sum(plan.valid for plan in plans) / len(plans))
        return seconds

    def _drawn(self, params: Params, part: Sequence[Problem]) -> list[list[Any]]:
        """Return the completions of each problem."""
        completions: list[list[Any]] = []
        for turn, group in itertools.groupby(part, lambda problem: problem.turn):
            rows, first = [problem.row for problem in group], turn * self._copies
            numbers = range(first, first + self._copies)
            drawn = [self._evaluator.complete(params, self._split, number, rows) for number in numbers]
            completions += map(list, zip(*drawn, strict=True))
        return completions

    def _judged(self, step: int, part: Sequence[Problem], drawn: Sequence[Sequence[Any]]) -> list[SampledPlan]:
        rows = [self._evaluator.rows[self._split][problem.row] for problem in part]
        judged = judge_rows(rows, [[Prediction(one.text, one.ended) for one in ones] for ones in drawn], self._scoring)
        return [
            SampledPlan(
                step=step,
                row=problem.row,
                id=row.row["id"],
                completion=completion.text,
                ended=completion.ended,
                tokens=len(completion.ids),
                valid=prediction.outcome.verdict.valid,
                verdict=describe(prediction.outcome.verdict),
                actions=[format_action(action) for action in prediction.outcome.actions],
            )
            for problem, row, ones in zip(part, judged, drawn, strict=True)
            for prediction, completion in zip(row.predictions, ones, strict=True)
        ]


def make_plan_sampler(
    config: SelfTrainConfig, model: ModelConfig, tokenizer: Any, parallel: DataParallel, rows: list[Row]
) -> PlanSampler:
    """Make the sampler that a configuration asks for.

    Args:
        config: of the command.
        model: configuration of the model, as it computes.
        tokenizer: its tokenizer.
        parallel: devices.
        rows: of `train_split`, none of them overlong.
    """
    as_evaluation = EvalConfig(
        eval_validator=config.evaluation.eval_validator,
        eval_temperature=config.sampling.temperature,
        eval_top_k=config.sampling.top_k,
        eval_top_p=config.sampling.top_p,
        eval_batch_size=config.sample_batch_size,
    )
    settings = (config.data, as_evaluation, config.reward, config.sampling, config.run.seed)
    split, scoring = config.data.train_split, plan_scoring(config.reward, config.validator)
    evaluator = Evaluator(model, tokenizer, parallel, *settings, rows={split: rows})
    return PlanSampler(evaluator, split, config.num_generations, scoring, config.sample_batch_size)


def _parts_done(steps: Sequence[int], sizes: Sequence[int]) -> int:
    """Return how many parts of a log are whole, from the first on."""
    there = [steps.count(step) for step in range(1, len(sizes) + 1)]
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(there, sizes, strict=True)))


def read_plans(path: Path) -> list[SampledPlan]:
    """Read the plans of a log, in the first process for all; none where there is no log yet.

    Raises:
        DataError: a line is not a JSON object.
    """
    read = lambda: [SampledPlan(**record) for record in read_metrics(path)] if path.exists() else []  # noqa: E731
    return processes.on_first(read)


def select_plans(plans: Sequence[SampledPlan], most: int) -> list[SampledPlan]:
    """Keep of each problem its shortest valid plans, all different, at most `most`.

    Two plans are the same where their actions are; the first one sampled stands for both. Plans of one length come in
    the order in which they were sampled, problems in the order of their rows.
    """
    distinct: dict[int, dict[tuple[str, ...], SampledPlan]] = {}
    for plan in plans:
        if plan.valid:
            distinct.setdefault(plan.row, {}).setdefault(tuple(plan.actions), plan)
    kept: list[SampledPlan] = []
    for _, of_problem in sorted(distinct.items()):
        kept += sorted(of_problem.values(), key=lambda plan: len(plan.actions))[:most]
    return kept


def sample_metrics(plans: Sequence[SampledPlan]) -> dict[str, float]:
    """Return what the record of a round says about its sampled plans."""
    valid, tokens = [plan for plan in plans if plan.valid], sum(plan.tokens for plan in plans)
    return {
        "self_train/valid": len(valid) / len(plans),
        "self_train/solved": len({plan.row for plan in valid}) / len({plan.row for plan in plans}),
        "self_train/distinct": len({(plan.row, *plan.actions) for plan in valid}),
        "self_train/tokens": tokens,
        "completions/mean_length": tokens / len(plans),
        "completions/clipped_ratio": sum(not plan.ended for plan in plans) / len(plans),
    }


def as_reference(row: Row, plan: SampledPlan) -> Row:
    """Return the row of a problem with a sampled plan in the place of its reference plan."""
    own = {"completion": plan.completion, "reference_plan": plan.actions, "plan_length": len(plan.actions)}
    return row | own | {"planner": "self-training"}
