"""Choose the samples that a report shows: a few of each update, preferring prompts that come again."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.evaluate.plan_metrics import VALID
from jaxppo.planning.language.plans import PlanError
from jaxppo.report.html import clean_lines
from jaxppo.report.run_data import number
from jaxppo.run.console import sanitize
from jaxppo.run.jsonl import iter_records

_MOST_UPDATES = 40
_MOST_PER_UPDATE = 12
_MOST_CHARACTERS = 4_000  # of a text
_MOST_BYTES = 2_000_000  # of all texts
_SHOWN = ("step", "id", "prompt", "completion", "score", "verdict")
_KINDS = {error.value.replace("_", " "): error.value for error in PlanError} | {VALID: VALID}


class Samples(NamedTuple):
    """The samples shown, and counts of all."""

    updates: list[dict[str, Any]]  # {"step", "samples": [{"id", "prompt", "completion", "score", "verdict", "more"}]}
    outcomes: dict[int, dict[str, int]]  # of all samples: {step: {why a plan is not valid, or "valid": samples}}
    total: int
    total_updates: int

    @property
    def shown(self) -> int:
        """Return how many samples are shown."""
        return sum(len(update["samples"]) for update in self.updates)


def read_samples(path: Path) -> Samples:
    """Choose from a `samples.jsonl` of any length, in two passes; a missing file has no samples.

    Raises:
        DataError: a line is not a JSON object.
    """
    if not path.exists():
        return Samples([], {}, 0, 0)
    ids: dict[int, list[str]] = {}
    outcomes: dict[int, Counter[str]] = {}
    for step, record in _steps(path):
        ids.setdefault(step, []).append(str(record.get("id", "")))
        kind = _outcome(record.get("verdict"))
        if kind is not None:
            outcomes.setdefault(step, Counter())[kind] += 1
    wanted = _chosen(ids)
    updates = _read_chosen(path, wanted)
    counts = {step: dict(counter) for step, counter in sorted(outcomes.items())}
    return Samples(updates, counts, sum(map(len, ids.values())), len(ids))


def _steps(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((record["step"], record) for record in iter_records(path) if isinstance(record.get("step"), int))


def _outcome(verdict: Any) -> str | None:
    """Return why a plan is not valid, as `plan.describe` begins its verdict; None for verdicts of other rewards."""
    return _KINDS.get(verdict.split(":")[0].split(" at step")[0]) if isinstance(verdict, str) else None


def _chosen(ids: Mapping[int, Sequence[str]]) -> dict[int, set[int]]:
    """Return {step: indices of its samples to show}: updates evenly spaced, prompts of several updates first."""
    steps = sorted(ids)
    if len(steps) > _MOST_UPDATES:
        steps = [steps[round(i * (len(steps) - 1) / (_MOST_UPDATES - 1))] for i in range(_MOST_UPDATES)]
    often = Counter(name for step in steps for name in set(ids[step]))
    ranked = {step: sorted(range(len(ids[step])), key=lambda i, s=step: (-often[ids[s][i]], i)) for step in steps}
    return {step: set(places[:_MOST_PER_UPDATE]) for step, places in ranked.items()}


def _read_chosen(path: Path, wanted: Mapping[int, set[int]]) -> list[dict[str, Any]]:
    found: dict[int, list[dict[str, Any]]] = {step: [] for step in wanted}
    place: Counter[int] = Counter()
    left = _MOST_BYTES // max(1, len(wanted))
    room = dict.fromkeys(wanted, left)
    for step, record in _steps(path):
        if place[step] in wanted.get(step, ()):
            sample = _sample(record)
            room[step] -= sum(len(text) for text in (sample["prompt"], sample["completion"]))
            if room[step] >= 0 or not found[step]:
                found[step].append(sample)
        place[step] += 1
    return [{"step": step, "samples": samples} for step, samples in found.items()]


def _sample(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as the page shows it, its texts sanitized."""
    verdict = record.get("verdict")
    extras = {sanitize(str(name), 80): _value(value) for name, value in record.items() if name not in _SHOWN}
    return {
        "id": sanitize(str(record.get("id", "")), 200),
        "prompt": clean_lines(_text(record.get("prompt")), _MOST_CHARACTERS),
        "completion": clean_lines(_text(record.get("completion")), _MOST_CHARACTERS),
        "score": number(record.get("score")),
        "verdict": "" if verdict is None else sanitize(str(verdict), 400),
        "more": extras,
    }


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else sanitize(str(value), 400)
