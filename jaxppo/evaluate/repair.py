"""Repair rounds: after a plan that is not valid, the model is told what is wrong and writes another one.

Source: LLM-Modulo of Kambhampati et al., LLMs Can't Plan, But Can Help Planning in LLM-Modulo Frameworks (2024).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxppo import data
from jaxppo.config import RepairConfig
from jaxppo.data import Row, Turn
from jaxppo.evaluate.decoding import Completion
from jaxppo.evaluate.intervals import clustered_wilson, interval_text
from jaxppo.evaluate.predictions import JudgedPrediction, JudgedRow, Prediction, judge_rows, prediction_records
from jaxppo.planning import prompts
from jaxppo.reward_functions.plan import PlanScoring

TABLE_COLUMNS = ("split", "round", "valid", "asked", "prompt tokens", "sampled tokens", "tokens per problem so far")

Ask = Callable[[int, Sequence[int], Sequence[list[int]]], Sequence[Completion]]
"""Completes, in a round, the conversations about some rows: (round, indices of the rows, token ids)."""


class Attempt(NamedTuple):
    """A plan of a conversation."""

    judged: JudgedPrediction
    prompt_tokens: int
    tokens: int  # sampled
    said: str  # about it; empty behind a valid plan, and where nothing is said

    @property
    def is_valid(self) -> bool:
        """Whether the plan is valid."""
        return self.judged.outcome.verdict.valid


def check_styles(rows: Iterable[Row]) -> None:
    """Raise a `ConfigError` where a row's prompt style has no repair turns."""
    for style in dict.fromkeys(row["prompt_style"] for row in rows):
        prompts.render_fault(prompts.UNKNOWN, style, next(r for r in rows if r["prompt_style"] == style)["domain_pddl"])


def repair_plans(
    rows: Sequence[Row],
    encoded: Sequence[list[int]],
    ask: Ask,
    template: data.ChatTemplate,
    config: RepairConfig,
    scoring: PlanScoring,
    most: int,
    seed: int = 0,
) -> list[list[Attempt]]:
    """Have plans written for rows, and again after those that are not valid; returns the attempts of each row.

    Args:
        rows: planning problems.
        encoded: token ids of their prompts.
        ask: completes conversations.
        template: how the model gets the texts of a row.
        config: how many rounds, and what is said.
        scoring: who judges.
        most: tokens of a conversation; a longer one ends, whatever its last plan was.
        seed: number of the model, noted in its predictions.
    """
    attempts: list[list[Attempt]] = [[] for _ in rows]
    turns: list[list[Turn]] = [[] for _ in rows]
    waiting = list(range(len(rows)))
    for number in range(config.repair_rounds + 1):
        given = {i: data.encode_turns(rows[i], encoded[i], turns[i], template) for i in waiting}
        waiting = [i for i in waiting if len(given[i]) <= most]
        if not waiting:
            break
        completions = ask(number, waiting, [given[i] for i in waiting])
        predictions = [[Prediction(one.text, one.ended, seed)] for one in completions]
        judged = judge_rows([rows[i] for i in waiting], predictions, scoring)
        for i, completion, row in zip(waiting, completions, judged, strict=True):
            turn = _turn(row.row, completion, row.predictions[0], config.repair_with)
            said = "" if turn is None else turn.feedback
            attempts[i].append(Attempt(row.predictions[0], len(given[i]), len(completion.ids), said))
            turns[i] += [] if turn is None else [turn]
        waiting = [i for i in waiting if not attempts[i][-1].is_valid]
    return attempts


def _turn(row: Row, completion: Completion, judged: JudgedPrediction, repair_with: str) -> Turn | None:
    """Return the turn behind an answer; None where nothing is said."""
    if judged.outcome.verdict.valid or repair_with == "nothing":
        return None
    style, domain_pddl = row["prompt_style"], row["domain_pddl"]
    fault = prompts.UNKNOWN
    if repair_with == "reason":
        plan = prompts.parse_completion(completion.text, style, domain_pddl)
        fault = prompts.find_fault(domain_pddl, row["problem_pddl"], plan)
    ids = completion.ids[:-1] if completion.ended else completion.ids
    return Turn(completion.text, list(ids), prompts.render_fault(fault, style, domain_pddl))


Repairs = Sequence[Sequence[Sequence[Attempt]]]
"""The attempts of each model at each row: [rows][models][attempts]."""


def repair_results(repairs: Repairs) -> list[dict[str, Any]]:
    """Return per round, as many as took place, what was asked and what is valid by then.

    Returns:
        "validity": problems with a valid plan so far, as from `clustered_wilson`; "asked": plans written in the round;
        "prompt_tokens" and "completion_tokens" of the round; "mean_tokens": both so far, for a problem and a model.
    """
    everyone = [attempts for of_row in repairs for attempts in of_row]
    results: list[dict[str, Any]] = []
    spent = 0
    for number in range(max(map(len, everyone))):
        now = [attempts[number] for attempts in everyone if len(attempts) > number]
        solved = [sum(attempts[: number + 1][-1].is_valid for attempts in of_row) for of_row in repairs]
        tokens = {
            "prompt_tokens": sum(attempt.prompt_tokens for attempt in now),
            "completion_tokens": sum(attempt.tokens for attempt in now),
        }
        spent += sum(tokens.values())
        validity = clustered_wilson(solved, list(map(len, repairs)))
        results.append({"validity": validity, "asked": len(now), **tokens, "mean_tokens": spent / len(everyone)})
    return results


def repair_rows(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the table that is printed."""
    rounds = [(split, number, one) for split, result in results.items() for number, one in enumerate(result["repair"])]
    cells = [(split, number, *_cells(one)) for split, number, one in rounds]
    return [dict(zip(TABLE_COLUMNS, map(str, of_round), strict=True)) for of_round in cells]


def _cells(one: Mapping[str, Any]) -> tuple[Any, ...]:
    valid, spent = interval_text(one["validity"]), f"{one['mean_tokens']:.1f}"
    return valid, one["asked"], one["prompt_tokens"], one["completion_tokens"], spent


def attempt_records(rows: Sequence[Row], repairs: Repairs) -> list[dict[str, Any]]:
    """Return one record per attempt: that of its prediction, the round, its tokens, and what was said about it."""
    return [
        record
        | {"round": number, "prompt_tokens": one.prompt_tokens, "completion_tokens": one.tokens, "said": one.said}
        for row, models in zip(rows, repairs, strict=True)
        for attempts in models
        for number, (one, record) in enumerate(
            zip(attempts, prediction_records([JudgedRow(row, tuple(a.judged for a in attempts))]), strict=True)
        )
    ]
