"""Choose the samples that a report shows: a few of each update, preferring prompts that come again."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
    # Two passes: the first one keeps names alone, so that a file of gigabytes needs little memory.
    ids: dict[int, list[str]] = defaultdict(list)
    outcomes: dict[int, Counter[str]] = defaultdict(Counter)
    for step, record in _steps(path):
        ids[step].append(str(record.get("id", "")))
        verdict = record.get("verdict")
        if not isinstance(verdict, str):
            continue
        # `plan.describe` begins a verdict with why the plan is not valid; verdicts of other rewards
        # are not counted.
        reason = verdict.split(":")[0].split(" at step")[0]
        if reason in _OUTCOMES:
            outcomes[step][_OUTCOMES[reason]] += 1
    return Samples(
        updates=_read_chosen(path, _choose(ids)),
        outcomes={step: dict(outcomes[step]) for step in sorted(outcomes)},
        total=sum(map(len, ids.values())),
        total_updates=len(ids),
    )


def spread_evenly(steps: Sequence[int], count: int) -> Sequence[int]:
    """Return `count` of the steps, evenly spaced with the first and the last one; all where there are fewer."""
    if len(steps) <= count:
        return steps
    stride = (len(steps) - 1) / (count - 1)
    return [steps[round(i * stride)] for i in range(count)]


def _steps(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for record in iter_records(path):
        step = record.get("step")
        if isinstance(step, int):
            yield step, record


def _choose(ids: Mapping[int, Sequence[str]]) -> dict[int, set[int]]:
    """Return {step: indices of its samples to show}: updates evenly spaced, prompts of several updates first."""
    steps = spread_evenly(sorted(ids), _MAX_UPDATES)
    # A prompt that comes again shows what training has changed, so those of most updates are first.
    num_updates: Counter[str] = Counter()
    for step in steps:
        num_updates.update(set(ids[step]))
    chosen = {}
    for step in steps:
        ranks = [-num_updates[name] for name in ids[step]]
        ranked = sorted(range(len(ranks)), key=ranks.__getitem__)
        chosen[step] = set(ranked[:_MAX_PER_UPDATE])
    return chosen


def _read_chosen(path: Path, chosen: Mapping[int, set[int]]) -> list[dict[str, Any]]:
    """Return the chosen samples of each update, as many of them as fit; one fits always."""
    updates: dict[int, list[dict[str, Any]]] = {step: [] for step in chosen}
    # Each update has an equal part of the page, so that long texts of early ones leave room for the
    # last.
    budgets = dict.fromkeys(chosen, _MAX_TOTAL_CHARACTERS // max(1, len(chosen)))
    index: Counter[int] = Counter()
    for step, record in _steps(path):
        if index[step] in chosen.get(step, ()):
            sample = _sample(record)
            budgets[step] -= len(sample["prompt"]) + len(sample["completion"])
            if budgets[step] >= 0 or not updates[step]:
                updates[step].append(sample)
        index[step] += 1
    return [{"step": step, "samples": samples} for step, samples in updates.items()]


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
