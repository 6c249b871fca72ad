"""Sample several plans for each of many problems, part by part, and choose those that a model may learn from."""

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo import data
from jaxppo.config import EvalConfig, SelfTrainConfig
from jaxppo.data import Row
from jaxppo.evaluate.decoding import Completion
from jaxppo.evaluate.evaluator import Evaluator
from jaxppo.evaluate.predictions import judge_rows
from jaxppo.nn import ModelConfig
from jaxppo.parallel import processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning import format_action
from jaxppo.reward_functions.plan import PlanScoring, describe
from jaxppo.reward_functions.registry import plan_scoring
from jaxppo.run.console import Console
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.types import Params


class ProblemTurn(NamedTuple):
    """A problem to sample plans for, each turn for new ones."""

    # Of the split.
    row: int
    # How often plans were sampled for it before.
    turn: int


class SampledPlan(NamedTuple):
    """A plan that was sampled and judged; a line of a log."""

    # The part of the log, from 1.
    step: int
    # Of the split.
    row: int
    id: str
    completion: str
    ended: bool
    tokens: int
    valid: bool
    verdict: str
    # As "(action args)".
    actions: list[str]

    def as_sample(self, step: int) -> dict[str, Any]:
        """Return the line of a run's `samples.jsonl`."""
        sample = {"step": step, "id": self.id, "completion": self.completion}
        return sample | {"score": float(self.valid), "verdict": self.verdict}


def problems_of_round(
    num_rows: int,
    seed: int,
    number: int,
    count: int,
) -> list[ProblemTurn]:
    """Return the problems of round `number` (from 1): the next `count` of the endless stream that shuffles all rows."""
    first = (number - 1) * count
    order = data.row_order(num_rows, seed, first, count)
    # The stream has every row once before any comes again,
    # so the place in it says how often a row came before.
    return [ProblemTurn(int(row), place // num_rows) for place, row in enumerate(order, first)]


@dataclass(frozen=True, slots=True)
class PlanSampler:
    """Samples plans and has them judged, into a log that a killed process leaves for the next one to go on with.

    The log has whole parts: problems are sampled part by part, and a part is sampled again from its beginning where
    the process was killed in it. So the plans of a log are those that an uninterrupted process would have written.

    Args:
        evaluator: has the rows, and samples as its settings say.
        split: name of the rows.
        num_generations: plans for each problem.
        scoring: who judges.
        part_size: problems sampled for at once.
    """

    evaluator: Evaluator
    split: str
    num_generations: int
    scoring: PlanScoring
    part_size: int

    def sample(
        self,
        params: Params,
        problems: Sequence[ProblemTurn],
        path: Path,
        console: Console,
    ) -> dict[str, float]:
        """Sample what a log does not hold yet.

        Args:
            params: of the language model.
            problems: a plan depends on seed, problem, turn and its number alone, not on the problems beside it.
            path: the log.
            console: shows how far it is.

        Returns:
            Seconds of sampling and of judging.
        """
        parts = list(data.chunks(problems, self.part_size))
        num_done = self._num_parts_done(path, parts)
        sampling_s = 0.0
        judging_s = 0.0
        with (
            JsonlLog(path, enabled=processes.is_first()) as log,
            console.progress(len(parts), "Sampling", num_done, unit="part") as progress,
        ):
            # The lines of a part that was not finished go: it is sampled again.
            log.truncate_after(num_done)
            for step, part in enumerate(parts[num_done:], num_done + 1):
                start = time.monotonic()
                completions = self._complete(params, part)
                sampled = time.monotonic()
                plans = self._judge(step, part, completions)
                for plan in plans:
                    log.append(plan._asdict())
                sampling_s += sampled - start
                judging_s += time.monotonic() - sampled
                progress.update(step, valid=sum(plan.valid for plan in plans) / len(plans))
        return {"time/rollout_s": sampling_s, "time/reward_s": judging_s}

    def _num_parts_done(self, path: Path, parts: Sequence[Sequence[ProblemTurn]]) -> int:
        """Return how many parts of a log are whole, from the first on."""
        counts = Counter(plan.step for plan in read_plans(path))
        for step, part in enumerate(parts, 1):
            if counts[step] != len(part) * self.num_generations:
                return step - 1
        return len(parts)

    def _complete(self, params: Params, part: Sequence[ProblemTurn]) -> list[Sequence[Completion]]:
        """Return the completions of each problem."""
        completions: list[Sequence[Completion]] = []
        # A part may lie over the end of a pass over the
        # rows; what is on each side is of another turn.
        for turn, problems in itertools.groupby(part, lambda problem: problem.turn):
            rows = [problem.row for problem in problems]
            # Sample numbers go on from turn to turn, so no turn repeats a plan's random numbers.
            first = turn * self.num_generations
            samples = [
                self.evaluator.complete(params, self.split, number, rows)
                for number in range(first, first + self.num_generations)
            ]
            completions += zip(*samples, strict=True)
        return completions

    def _judge(
        self,
        step: int,
        part: Sequence[ProblemTurn],
        completions: Sequence[Sequence[Completion]],
    ) -> list[SampledPlan]:
        rows = [self.evaluator.rows[self.split][problem.row] for problem in part]
        predictions = []
        for row_completions in completions:
            predictions.append([completion.as_prediction() for completion in row_completions])
        judged_rows = judge_rows(rows, predictions, self.scoring)
        plans = []
        for problem, judged_row, row_completions in zip(
            part, judged_rows, completions, strict=True
        ):
            for judged, completion in zip(judged_row.predictions, row_completions, strict=True):
                verdict = judged.outcome.verdict
                plan = SampledPlan(
                    step=step,
                    row=problem.row,
                    id=judged_row.row["id"],
                    completion=completion.text,
                    ended=completion.ended,
                    tokens=len(completion.ids),
                    valid=verdict.valid,
                    verdict=describe(verdict),
                    actions=[format_action(action) for action in judged.outcome.actions],
                )
                plans.append(plan)
        return plans


def make_plan_sampler(
    config: SelfTrainConfig,
    model: ModelConfig,
    tokenizer: Any,
    parallel: DataParallel,
    rows: list[Row],
) -> PlanSampler:
    """Make the sampler that a configuration asks for.

    Args:
        config: of the command.
        model: configuration of the model, as it computes.
        tokenizer: its tokenizer.
        parallel: devices.
        rows: of `train_split`, none of them overlong.
    """
    # Plans are sampled as training samples, which an
    # evaluator finds in the settings of an evaluation.
    evaluation = EvalConfig(
        eval_validator=config.evaluation.eval_validator,
        eval_temperature=config.sampling.temperature,
        eval_top_k=config.sampling.top_k,
        eval_top_p=config.sampling.top_p,
        eval_batch_size=config.sample_batch_size,
    )
    split = config.data.train_split
    evaluator = Evaluator(
        model,
        tokenizer,
        parallel,
        config.data,
        evaluation,
        config.reward,
        config.sampling,
        config.run.seed,
        rows={split: rows},
    )
    scoring = plan_scoring(config.reward, config.validator)
    return PlanSampler(
        evaluator,
        split,
        config.num_generations,
        scoring,
        config.sample_batch_size,
    )


def read_plans(path: Path) -> list[SampledPlan]:
    """Read the plans of a log, in the first process for all; none where there is no log yet.

    Raises:
        DataError: a line is not a JSON object.
    """

    def read() -> list[SampledPlan]:
        return [SampledPlan(**record) for record in read_metrics(path)] if path.exists() else []

    # Other processes may not see the file yet: all must agree on which parts are done.
    return processes.on_first(read)


def select_plans(plans: Sequence[SampledPlan], max_plans: int) -> list[SampledPlan]:
    """Keep of each problem its shortest valid plans, all different, at most `max_plans`.

    Two plans are the same where their actions are; the first one sampled stands for both. Plans of one length come in
    the order in which they were sampled, problems in the order of their rows.
    """
    # {row: {actions: plan}}; a dictionary keeps the first plan of equal ones, and their order.
    distinct: dict[int, dict[tuple[str, ...], SampledPlan]] = {}
    for plan in plans:
        if plan.valid:
            distinct.setdefault(plan.row, {}).setdefault(tuple(plan.actions), plan)
    selected: list[SampledPlan] = []
    for _, plans_of_row in sorted(distinct.items()):
        # The sort is stable: plans of one length stay in the order in which they were sampled.
        selected += sorted(plans_of_row.values(), key=lambda plan: len(plan.actions))[:max_plans]
    return selected


def sample_metrics(plans: Sequence[SampledPlan]) -> dict[str, float]:
    """Return what the record of a round says about its sampled plans."""
    valid = [plan for plan in plans if plan.valid]
    tokens = sum(plan.tokens for plan in plans)
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
    return row | {
        "completion": plan.completion,
        "reference_plan": plan.actions,
        "plan_length": len(plan.actions),
        "planner": "self-training",
    }
