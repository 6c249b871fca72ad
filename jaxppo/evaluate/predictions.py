"""Read predictions for planning problems, from a model or a file made by anything else, and judge them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.errors import DataError
from jaxppo.evaluate.plan_scores import scores_of
from jaxppo.planning import (
    PlanVerdict,
    UnsupportedPddlError,
    format_action,
    parse_action,
    validate_actions,
)
from jaxppo.planning.answers.answer import parse_plan_field
from jaxppo.planning.datasets.files import rows_of_file
from jaxppo.planning.datasets.rows import Row, checked_row, reference_plans
from jaxppo.planning.language.plans import Action, PlanError
from jaxppo.reward_functions.plan import (
    PlanOutcome,
    PlanScoring,
    judge_plans,
    reference_cost,
)

_MAX_LISTED = 10
# What no prompt style reads as a plan. Empty text will not
# do: it is a plan without steps, valid where the goal holds.
_UNREADABLE = "("


class Prediction(NamedTuple):
    """A text that should be a plan.

    Attributes:
        text: a completion in the prompt style of its row, or PDDL; None for no answer, which is a failure.
        ended: whether it ended at an end-of-sequence token; None where that is not known.
        seed: which run of the model, or which trained model, it is from.
        is_pddl: the text is `(action args)` one after another, whatever the row's prompt style.
        tokens: sampled for it; None where that is not known, as of plans from a file.
    """

    text: str | None
    ended: bool | None = None
    seed: int = 0
    is_pddl: bool = False
    tokens: int | None = None


class JudgedPrediction(NamedTuple):
    """A prediction, its verdict, and how far its plan gets: what VAL does not report comes from the built-in validator.

    `progress` is the verdict where the built-in validator does not cover the domain.
    """

    prediction: Prediction
    outcome: PlanOutcome
    progress: PlanVerdict

    @property
    def is_readable(self) -> bool:
        """Return whether the text can be read as a plan."""
        return self.outcome.verdict.error is not PlanError.SYNTAX


@dataclass(frozen=True)
class JudgedRow:
    """A row of a dataset with its predictions; `datasets.rows.COLUMNS` says what a row holds."""

    row: Row
    predictions: tuple[JudgedPrediction, ...]

    @cached_property
    def references(self) -> tuple[tuple[Action, ...], ...]:
        """Return the reference plans; () where none is known."""
        column = self.row["reference_plan"]
        if column is None:
            return ()
        return tuple(tuple(map(parse_action, plan)) for plan in reference_plans(column))

    @cached_property
    def reference_length(self) -> int:
        """Return the steps of the shortest reference plan; 0 without one."""
        return min(map(len, self.references), default=0)

    @cached_property
    def reference_cost(self) -> float | None:
        """Return the cost of the cheapest reference, see `reward_functions.plan.reference_cost`."""
        return reference_cost(self.row["domain_pddl"], self.row["problem_pddl"], self.references)

    @cached_property
    def scores(self) -> list[Mapping[str, float | None]]:
        """Return the scores of each prediction; once, as a row is measured for split, domain and two bins."""
        return [scores_of(self, prediction) for prediction in self.predictions]


def judge_rows(
    rows: Sequence[Row],
    predictions: Sequence[Sequence[Prediction]],
    scoring: PlanScoring | None = None,
) -> list[JudgedRow]:
    """Judge every prediction; a bad one is a verdict with a reason, never an exception.

    Args:
        rows: rows of a dataset.
        predictions: one or more for each row, in the order of the rows.
        scoring: validator and reward; default `PlanScoring()`.

    Raises:
        DataError: a row without a prediction, or another number of rows than of lists of predictions.
    """
    if len(rows) != len(predictions):
        raise DataError(
            f"predictions: expected {len(rows)} lists, one for each row, got {len(predictions)}"
        )
    pairs = list(zip(rows, predictions, strict=True))
    empty = [row["id"] for row, row_predictions in pairs if not row_predictions]
    if empty:
        raise DataError(
            f"predictions: expected at least one for each row, got none for {_list_ids(empty)}"
        )
    # One flat list, so that equal plans are judged once and VAL gets all of its work in one go.
    flat_rows = []
    flat_predictions = []
    for row, row_predictions in pairs:
        flat_rows += [row] * len(row_predictions)
        flat_predictions += row_predictions
    outcomes = judge_plans(
        [
            _UNREADABLE if prediction.text is None else prediction.text
            for prediction in flat_predictions
        ],
        scoring,
        prompt_style=[
            "pddl" if prediction.is_pddl else row["prompt_style"]
            for row, prediction in zip(flat_rows, flat_predictions, strict=True)
        ],
        domain_pddl=[row["domain_pddl"] for row in flat_rows],
        problem_pddl=[row["problem_pddl"] for row in flat_rows],
        reference_plan=[row["reference_plan"] for row in flat_rows],
    )
    # Back into rows, each taking as many as it has given.
    judged = map(_judged, flat_rows, flat_predictions, outcomes)
    judged_rows = []
    for row, row_predictions in pairs:
        judged_rows.append(JudgedRow(row, tuple(islice(judged, len(row_predictions)))))
    return judged_rows


def _judged(row: Row, prediction: Prediction, outcome: PlanOutcome) -> JudgedPrediction:
    """Add how far the plan gets, which VAL does not say."""
    verdict = outcome.verdict
    progress = verdict
    # The built-in validator's verdicts have it already, and text that is no plan gets nowhere.
    if verdict.error is not PlanError.SYNTAX and verdict.goals is None:
        with suppress(UnsupportedPddlError):
            progress = validate_actions(row["domain_pddl"], row["problem_pddl"], outcome.actions)
    return JudgedPrediction(prediction, outcome, progress)


# --------------------------------------------------------------------------------------------------------------- files


def read_plans(path: Path | str) -> dict[str, list[Prediction]]:
    """Read plans made by anything: a JSON object a line, several lines of one id being several samples.

    A line has `id`, and either `plan` (PDDL text `(action args) ...`, or a list of "(action args)") or `completion`
    (text in the prompt style of the row). It may have `ended` (true or false) and `seed` (a whole number). Plans
    that are no plans are read: they fail when they are judged, as does null, which is no prediction at all. Other
    fields are skipped.

    Raises:
        DataError: the file cannot be read, or a line is not such an object; the message names file and line.
    """
    plans: dict[str, list[Prediction]] = {}
    for row, location in rows_of_file(Path(path)):
        name, prediction = _read_prediction(row, location)
        plans.setdefault(name, []).append(prediction)
    if not plans:
        raise DataError(f"{path}: expected at least one line with a plan, got none")
    return plans


def _read_prediction(row: Row, location: str) -> tuple[str, Prediction]:
    name = checked_row(row, location, {"id": str})["id"]
    # With both it would be open which of them is judged.
    fields = [field for field in ("plan", "completion") if field in row]
    if len(fields) != 1:
        raise DataError(
            f"{location}: expected either 'plan' or 'completion', got {' and '.join(fields) or 'neither'}"
        )
    is_pddl = fields == ["plan"]
    if is_pddl:
        text = parse_plan_field(row["plan"], f"{location}: field 'plan'")
    else:
        text = _optional(row, location, "completion", str)
    ended = row.get("ended")
    if not isinstance(ended, bool | None):
        raise DataError(f"{location}: field 'ended': expected true or false, got {ended!r:.60}")
    seed = _optional(row, location, "seed", int) or 0
    return name, Prediction(text, ended, seed, is_pddl)


def _optional(row: Row, location: str, name: str, kind: type) -> Any:
    """Read a field that may be absent or null."""
    return None if row.get(name) is None else checked_row(row, location, {name: kind})[name]


def match_plans(
    rows: Sequence[Row], plans: Mapping[str, Sequence[Prediction]]
) -> list[list[Prediction]]:
    """Match predictions with rows by their ids.

    Args:
        rows: of all splits that are evaluated.
        plans: from `read_plans`.

    Raises:
        DataError: ids that only one side has, listed, or an id that two rows share.
    """
    counts = Counter(row["id"] for row in rows)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise DataError(
            f"rows: expected a different id for each, got several rows for {_list_ids(repeated)}"
        )
    problems = []
    if missing := [name for name in counts if name not in plans]:
        problems.append(f"no plan for {_list_ids(missing)}")
    if unknown := [name for name in plans if name not in counts]:
        problems.append(f"no row for {_list_ids(unknown)}")
    if problems:
        raise DataError(
            f"plans: expected the ids of the {len(rows)} rows, got {'; '.join(problems)}"
        )
    return [list(plans[name]) for name in counts]


def _list_ids(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{len(names)} id(s): {', '.join(names[:_MAX_LISTED])}{more}"


def prediction_records(judged: Sequence[JudgedRow]) -> list[dict[str, Any]]:
    """Return one record per prediction, with its verdict; `read_plans` reads them back from lines of a file."""
    records = []
    for row in judged:
        records += [_record(row.row, prediction) for prediction in row.predictions]
    return records


def _record(row: Row, judged: JudgedPrediction) -> dict[str, Any]:
    prediction = judged.prediction
    verdict = judged.outcome.verdict
    return {
        "id": row["id"],
        "split": row["split"],
        "domain": row["domain"],
        # The name of the field says how to read the text again.
        "plan" if prediction.is_pddl else "completion": prediction.text,
        "ended": prediction.ended,
        "seed": prediction.seed,
        "valid": verdict.valid,
        "error": None if verdict.error is None else verdict.error.value,
        "failed_step": verdict.failed_step,
        "failed_condition": verdict.failed_condition,
        "actions": [format_action(action) for action in judged.outcome.actions],
    }
