"""Read predictions for planning problems, from a model or a file made by anything else, and judge them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.config.reading import parse_json
from jaxppo.errors import DataError
from jaxppo.planning import (
    PlanVerdict,
    UnsupportedPddlError,
    format_action,
    parse_action,
    validate_actions,
)
from jaxppo.planning.datasets.rows import Row, reference_plans
from jaxppo.planning.language.plans import Action, PlanError
from jaxppo.reward_functions.plan import PlanOutcome, PlanScoring, judge_plans, reference_cost

_MOST_LISTED = 10
_UNREADABLE = "("
"""What no prompt style reads as a plan."""


class Prediction(NamedTuple):
    """A text that should be a plan.

    Attributes:
        text: a completion in the prompt style of its row, or PDDL; None: there is none, which is a failure.
        ended: whether it ended at an end-of-sequence token; None where that is not known.
        seed: which run of the model, or which trained model, it is from.
        is_pddl: the text is `(action args)` one after another, whatever the row's prompt style.
    """

    text: str | None
    ended: bool | None = None
    seed: int = 0
    is_pddl: bool = False


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
        if self.row["reference_plan"] is None:
            return ()
        return tuple(tuple(map(parse_action, plan)) for plan in reference_plans(self.row["reference_plan"]))

    @cached_property
    def reference_length(self) -> int:
        """Return the steps of the shortest reference plan; 0 without one."""
        return min(map(len, self.references), default=0)

    @cached_property
    def reference_cost(self) -> float | None:
        """Return the cost of the cheapest reference, see `reward_functions.plan.reference_cost`."""
        return reference_cost(self.row["domain_pddl"], self.row["problem_pddl"], self.references)

    @property
    def optimal_cost(self) -> float | None:
        """Return the row's `optimal_cost`, where it has one and costs mean something."""
        value = self.row.get("optimal_cost")
        if not isinstance(value, int | float) or isinstance(value, bool) or self.reference_cost is None:
            return None
        return float(value) if value >= 0 else None


def judge_rows(
    rows: Sequence[Row], predictions: Sequence[Sequence[Prediction]], scoring: PlanScoring | None = None
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
        raise DataError(f"predictions: expected {len(rows)} lists, one for each row, got {len(predictions)}")
    empty = [row["id"] for row, given in zip(rows, predictions, strict=True) if not given]
    if empty:
        raise DataError(f"predictions: expected at least one for each row, got none for {_listed(empty)}")
    cases = [(row, prediction) for row, given in zip(rows, predictions, strict=True) for prediction in given]
    outcomes = judge_plans(
        [_UNREADABLE if prediction.text is None else prediction.text for _, prediction in cases],
        scoring,
        prompt_style=["pddl" if prediction.is_pddl else row["prompt_style"] for row, prediction in cases],
        **{name: [row[name] for row, _ in cases] for name in ("domain_pddl", "problem_pddl", "reference_plan")},
    )
    judged = iter(
        JudgedPrediction(prediction, outcome, _progress(row, outcome))
        for (row, prediction), outcome in zip(cases, outcomes, strict=True)
    )
    return [JudgedRow(row, tuple(next(judged) for _ in given)) for row, given in zip(rows, predictions, strict=True)]


def _progress(row: Row, outcome: PlanOutcome) -> PlanVerdict:
    verdict = outcome.verdict
    if verdict.error is PlanError.SYNTAX or verdict.goals is not None:
        return verdict
    try:
        return validate_actions(row["domain_pddl"], row["problem_pddl"], outcome.actions)
    except UnsupportedPddlError:
        return verdict


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
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a UTF-8 text file with one JSON object a line, got: {error}") from error
    plans: dict[str, list[Prediction]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            name, prediction = _read_line(line, f"{path}:{number}")
            plans.setdefault(name, []).append(prediction)
    if not plans:
        raise DataError(f"{path}: expected at least one line with a plan, got none")
    return plans


def _read_line(line: str, where: str) -> tuple[str, Prediction]:
    try:
        entry = parse_json(line)
    except DataError as error:
        raise DataError(f"{where}: expected a JSON object, got {error}") from error
    if not isinstance(entry, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(entry).__name__}")
    name = _field(entry, "id", str, where)
    given = [field for field in ("plan", "completion") if field in entry]
    if len(given) != 1:
        raise DataError(f"{where}: expected either 'plan' or 'completion', got {' and '.join(given) or 'neither'}")
    is_pddl = given == ["plan"]
    text = _plan(entry["plan"], where) if is_pddl else _field(entry, "completion", str, where, optional=True)
    ended, seed = (_field(entry, *field, where, optional=True) for field in (("ended", bool), ("seed", int)))
    return name, Prediction(text, ended, 0 if seed is None else seed, is_pddl)


def _field(entry: Mapping[str, Any], name: str, kind: type, where: str, optional: bool = False) -> Any:
    value = entry.get(name)
    if optional and value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        got = "nothing" if name not in entry else f"{value!r:.60}"
        raise DataError(f"{where}: field '{name}': expected {kind.__name__}, got {got}")
    return value


def _plan(plan: Any, where: str) -> str | None:
    if isinstance(plan, list) and all(isinstance(step, str) for step in plan):
        return "\n".join(plan)
    if not isinstance(plan, str | None):
        raise DataError(f"{where}: field 'plan': expected text or a list of '(action args)', got {plan!r:.60}")
    return plan


def match_plans(
    rows: Sequence[Row],
    plans: Mapping[str, Sequence[Prediction]],
    *,
    allow_missing: bool = False,
    allow_unknown: bool = False,
) -> list[list[Prediction]]:
    """Match predictions with rows by their ids.

    Args:
        rows: of all splits that are evaluated.
        plans: from `read_plans`.
        allow_missing: a row without a plan counts as failed (as not readable) instead of being refused; it is never
            left out.
        allow_unknown: plans of other ids are passed over.

    Raises:
        DataError: ids that only one side has, listed, or an id that two rows share.
    """
    names = _unique_ids(rows)
    missing = [] if allow_missing else [name for name in names if name not in plans]
    unknown = [] if allow_unknown else [name for name in plans if name not in names]
    found = [f"no plan for {_listed(missing)}"] * bool(missing) + [f"no row for {_listed(unknown)}"] * bool(unknown)
    if found:
        raise DataError(f"plans: expected the ids of the {len(rows)} rows, got {'; '.join(found)}")
    return [list(plans.get(name, [Prediction(None)])) for name in names]


def _unique_ids(rows: Sequence[Row]) -> dict[str, None]:
    names = dict.fromkeys(row["id"] for row in rows)
    if len(names) < len(rows):
        seen: set[str] = set()
        twice = [row["id"] for row in rows if row["id"] in seen or seen.add(row["id"])]
        raise DataError(f"rows: expected a different id for each, got several rows for {_listed(twice)}")
    return names


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"{len(names)} id(s): {', '.join(names[:_MOST_LISTED])}{more}"


def prediction_records(judged: Sequence[JudgedRow]) -> list[dict[str, Any]]:
    """Return one record per prediction, with its verdict; `read_plans` reads them back from lines of a file."""
    return [_record(row.row, prediction) for row in judged for prediction in row.predictions]


def _record(row: Row, judged: JudgedPrediction) -> dict[str, Any]:
    prediction, verdict = judged.prediction, judged.outcome.verdict
    error = None if verdict.error is None else verdict.error.value
    return {
        "id": row["id"],
        "split": row["split"],
        "domain": row["domain"],
        "plan" if prediction.is_pddl else "completion": prediction.text,
        "ended": prediction.ended,
        "seed": prediction.seed,
        "valid": verdict.valid,
        "error": error,
        "failed_step": verdict.failed_step,
        "failed_condition": verdict.failed_condition,
        "actions": [format_action(action) for action in judged.outcome.actions],
    }
