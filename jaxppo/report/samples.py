"""Choose the samples that a report shows: a few of each update, preferring prompts that come again."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.evaluate.plan_metrics import VALID
from jaxppo.planning.language.plans import PlanError
from jaxppo.report.pages import clean_lines
from jaxppo.report.run_data import number
from jaxppo.run.console import sanitize
from jaxppo.run.jsonl import iter_records

_MAX_UPDATES = 40
_MAX_PER_UPDATE = 12
_MAX_CHARACTERS = 4_000  # of a text
_MAX_TOTAL_CHARACTERS = 2_000_000
_COLUMNS = ("step", "id", "prompt", "completion", "score", "verdict")
_OUTCOMES = {error.value.replace("_", " "): error.value for error in PlanError} | {VALID: VALID}


class Samples(NamedTuple):
    """The samples shown, and counts of all."""

    # {"step", "samples": [{"id", "prompt", "completion", "score", "verdict", "more"}]}
    updates: list[dict[str, Any]]
    # Of all samples: {step: {why a plan is not valid, or "valid": samples}}
    outcomes: dict[int, dict[str, int]]
    total: int
    total_updates: int

    @property
    def shown(self) -> int:
        """Return how many samples are shown."""
        return sum(len(update["samples"]) for update in self.updates)


def read_samples(path: Path) -> Samples:
    """Choose from a `samples.jsonl` of any length; a missing file has no samples.

    Raises:
        DataError: a line is not a JSON object.
    """
    if not path.exists():
        return Samples([], {}, 0, 0)
    records_by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
    outcomes: dict[int, Counter[str]] = defaultdict(Counter)
    for record in iter_records(path):
        step = record.get("step")
        if not isinstance(step, int):
            continue
        records_by_step[step].append(record)
        # `plan.describe` begins a verdict with why the plan is
        # not valid; verdicts of other rewards are not counted.
        reason = str(record.get("verdict")).split(":")[0].split(" at step")[0]
        if reason in _OUTCOMES:
            outcomes[step][_OUTCOMES[reason]] += 1
    return Samples(
        updates=_updates(records_by_step),
        outcomes={step: dict(outcomes[step]) for step in sorted(outcomes)},
        total=sum(map(len, records_by_step.values())),
        total_updates=len(records_by_step),
    )


def spread_evenly(steps: Sequence[int], count: int) -> Sequence[int]:
    """Return `count` of the steps, evenly spaced with the first and the last one; all where there are fewer."""
    if len(steps) <= count:
        return steps
    stride = (len(steps) - 1) / (count - 1)
    return [steps[round(i * stride)] for i in range(count)]


def _updates(records_by_step: Mapping[int, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the samples to show: of updates evenly spaced, with prompts of several updates first; one fits always."""
    steps = spread_evenly(sorted(records_by_step), _MAX_UPDATES)
    # A prompt that comes again shows what training has changed, so those of most updates are first.
    num_updates: Counter[str] = Counter()
    for step in steps:
        num_updates.update({str(record.get("id", "")) for record in records_by_step[step]})
    updates = []
    for step in steps:
        records = records_by_step[step]
        ranks = [-num_updates[str(record.get("id", ""))] for record in records]
        ranked = sorted(range(len(ranks)), key=ranks.__getitem__)
        # Each update has an equal part of the page, so that
        # long texts of early ones leave room for the last.
        budget = _MAX_TOTAL_CHARACTERS // len(steps)
        samples: list[dict[str, Any]] = []
        for index in sorted(ranked[:_MAX_PER_UPDATE]):
            sample = _sample(records[index])
            budget -= len(sample["prompt"]) + len(sample["completion"])
            if budget >= 0 or not samples:
                samples.append(sample)
        updates.append({"step": step, "samples": samples})
    return updates


def _sample(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as the page shows it, its texts sanitized."""
    verdict = record.get("verdict")
    extras = {name: value for name, value in record.items() if name not in _COLUMNS}
    return {
        "id": sanitize(str(record.get("id", "")), 200),
        "prompt": _text(record.get("prompt")),
        "completion": _text(record.get("completion")),
        "score": number(record.get("score")),
        "verdict": "" if verdict is None else sanitize(str(verdict), 400),
        # Columns of other rewards and of `log_extra`.
        "more": {sanitize(str(name), 80): _value(value) for name, value in extras.items()},
    }


def _text(value: Any) -> str:
    return "" if value is None else clean_lines(str(value), _MAX_CHARACTERS)


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else sanitize(str(value), 400)
