"""Repair rounds: after a plan that is not valid, the model hears what is wrong and writes another one.

Source: LLM-Modulo of Kambhampati et al., LLMs Can't Plan, But Can Help Planning in LLM-Modulo Frameworks (2024).
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from jaxppo import data
from jaxppo.config import RepairConfig
from jaxppo.data import Row, Turn
from jaxppo.evaluate.decoding import Completion
from jaxppo.evaluate.intervals import clustered_wilson, interval_text
from jaxppo.evaluate.plan_metrics import Measures, Results
from jaxppo.evaluate.predictions import (
    JudgedPrediction,
    JudgedRow,
    judge_rows,
    prediction_records,
)
from jaxppo.planning import prompts
from jaxppo.reward_functions.plan import PlanScoring

TABLE_COLUMNS = (
    "split",
    "round",
    "valid",
    "asked",
    "prompt tokens",
    "sampled tokens",
    "tokens per problem so far",
)

CompleteRound = Callable[[int, Sequence[int], Sequence[list[int]]], Sequence[Completion]]
"""Completes, in a round, the conversations about some rows: (round, indices of the rows, token ids)."""


class Attempt(NamedTuple):
    """A plan of a conversation."""

    judged: JudgedPrediction
    prompt_tokens: int
    # What the model is told about it; empty after a valid plan, and where it is told nothing.
    feedback: str

    @property
    def is_valid(self) -> bool:
        """Whether the plan is valid."""
        return self.judged.outcome.verdict.valid

    @property
    def tokens(self) -> int:
        """The tokens that were sampled."""
        return self.judged.prediction.tokens or 0


def check_styles(rows: Iterable[Row]) -> None:
    """Raise a `ConfigError` where a row's prompt style has no repair turns."""
    # Asked before the first plan is sampled; one row of each style is enough to see.
    row_by_style = {row["prompt_style"]: row for row in rows}
    for style, row in row_by_style.items():
        prompts.render_fault(prompts.UNKNOWN, style, row["domain_pddl"])


def repair_plans(
    rows: Sequence[Row],
    encoded: Sequence[list[int]],
    complete_round: CompleteRound,
    template: data.ChatTemplate,
    config: RepairConfig,
    scoring: PlanScoring,
    max_tokens: int,
    seed: int = 0,
) -> list[list[Attempt]]:
    """Have plans written for rows, and again after those that are not valid; returns the attempts of each row.

    Args:
        rows: planning problems.
        encoded: token ids of their prompts.
        complete_round: completes conversations.
        template: how the model gets the texts of a row.
        config: how many rounds, and what the model is told.
        scoring: who judges.
        max_tokens: of a conversation; a longer one ends, whatever its last plan was.
        seed: number of the model, noted in its predictions.
    """
    attempts: list[list[Attempt]] = [[] for _ in rows]
    turns: list[list[Turn]] = [[] for _ in rows]
    open_rows = list(range(len(rows)))
    for number in range(config.repair_rounds + 1):
        # Repair is a conversation: what was wrong with one plan is still in view when the next one
        # is written. The conversation of a row is its prompt and all earlier answers, each with
        # what was said about it.
        conversations = {}
        for i in open_rows:
            conversations[i] = data.encode_turns(rows[i], encoded[i], turns[i], template)
        open_rows = [i for i in open_rows if len(conversations[i]) <= max_tokens]
        if not open_rows:
            break
        completions = complete_round(number, open_rows, [conversations[i] for i in open_rows])
        predictions = [[completion.as_prediction(seed)] for completion in completions]
        judged_rows = judge_rows([rows[i] for i in open_rows], predictions, scoring)
        for i, completion, judged_row in zip(open_rows, completions, judged_rows, strict=True):
            [judged] = judged_row.predictions
            feedback = ""
            # A model that is told nothing gets the same prompt again, so no turn is added.
            if not judged.outcome.verdict.valid and config.repair_with != "nothing":
                feedback = _feedback(rows[i], completion.text, config.repair_with)
                turns[i].append(Turn(completion.text, _ids_without_end(completion), feedback))
            attempts[i].append(Attempt(judged, len(conversations[i]), feedback))
        open_rows = [i for i in open_rows if not attempts[i][-1].is_valid]
    return attempts


def _feedback(row: Row, completion: str, repair_with: str) -> str:
    """Write what is wrong with a plan, or only that it is not valid."""
    style = row["prompt_style"]
    domain_pddl = row["domain_pddl"]
    fault = prompts.UNKNOWN
    if repair_with == "reason":
        plan = prompts.parse_completion(completion, style, domain_pddl)
        fault = prompts.find_fault(domain_pddl, row["problem_pddl"], plan)
    return prompts.render_fault(fault, style, domain_pddl)


def _ids_without_end(completion: Completion) -> list[int]:
    # The conversation goes on after the plan; where a template ends a turn, it does so itself.
    return completion.ids[:-1] if completion.ended else completion.ids


Repairs = Sequence[Sequence[Sequence[Attempt]]]
"""The attempts of each model at each row: [rows][models][attempts]."""


def repair_results(repairs: Repairs) -> list[Measures]:
    """Return per round, as many as took place, what was asked and what is valid by then.

    Returns:
        "validity": problems with a valid plan so far, as from `clustered_wilson`; "asked": plans written in the round;
        "prompt_tokens" and "completion_tokens" of the round; "mean_tokens": both so far, for a problem and a model.
    """
    conversations = list(chain.from_iterable(repairs))
    num_models = [len(row_conversations) for row_conversations in repairs]
    results: list[Measures] = []
    tokens_so_far = 0
    for number in range(max(map(len, conversations))):
        attempts = [
            conversation[number] for conversation in conversations if len(conversation) > number
        ]
        # A conversation ends with its first valid plan, so its latest plan says whether it has one.
        num_solved = []
        for row_conversations in repairs:
            latest = [conversation[: number + 1][-1] for conversation in row_conversations]
            num_solved.append(sum(attempt.is_valid for attempt in latest))
        prompt_tokens = sum(attempt.prompt_tokens for attempt in attempts)
        completion_tokens = sum(attempt.tokens for attempt in attempts)
        # Repair is paid for in tokens, of prompts as well: a result without them would not compare
        # with more samples.
        tokens_so_far += prompt_tokens + completion_tokens
        results.append(
            {
                "validity": clustered_wilson(num_solved, num_models),
                "asked": len(attempts),
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "mean_tokens": tokens_so_far / len(conversations),
            }
        )
    return results


def repair_table(results: Results) -> list[dict[str, str]]:
    """Return the rows of the table that is printed."""
    rows = []
    for split, result in results.items():
        for number, cell in enumerate(result["repair"]):
            counts = [cell[name] for name in ("asked", "prompt_tokens", "completion_tokens")]
            texts = [
                split,
                number,
                interval_text(cell["validity"]),
                *counts,
                f"{cell['mean_tokens']:.1f}",
            ]
            rows.append(dict(zip(TABLE_COLUMNS, map(str, texts), strict=True)))
    return rows


def attempt_records(rows: Sequence[Row], repairs: Repairs) -> list[dict[str, Any]]:
    """Return one record per attempt: that of its prediction, the round, its tokens, and what was said about it."""
    records = []
    for row, row_conversations in zip(rows, repairs, strict=True):
        for conversation in row_conversations:
            judged = JudgedRow(row, tuple(attempt.judged for attempt in conversation))
            for number, record in enumerate(prediction_records([judged])):
                attempt = conversation[number]
                tokens = {
                    "prompt_tokens": attempt.prompt_tokens,
                    "completion_tokens": attempt.tokens,
                }
                records.append(record | {"round": number, **tokens, "said": attempt.feedback})
    return records
