"""The five numbers of a run that matter: which they are, and what to do where one of them does not look healthy.

What each metric means, and its healthy range in full, is in `metrics.py` (docs/metrics.md).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

Hint = Callable[[Sequence[float]], str | None]
"""Finite values so far, the latest last -> what is odd about it, and what to do; None where nothing is."""

ENOUGH = 8
"""Fewest values that a trend is read from."""


class Vital(NamedTuple):
    """A number to watch."""

    label: str
    metric: str
    hint: Hint | None = None  # None: no value of it is odd


def _above(limit: float, text: str) -> Hint:
    return lambda values: text if values[-1] > limit else None


def _below(limit: float, text: str) -> Hint:
    return lambda values: text if values[-1] < limit else None


def _first_of(*hints: Hint) -> Hint:
    return lambda values: next((found for hint in hints if (found := hint(values)) is not None), None)


def _trend(sign: int, text: str) -> Hint:
    """The last quarter lies beyond the first one (above: sign 1, below: -1) by more than chance explains."""

    def hint(values: Sequence[float]) -> str | None:
        quarter = len(values) // 4
        if len(values) < ENOUGH:
            return None
        first, last = values[:quarter], values[-quarter:]
        noise = stdev(b - a for a, b in itertools.pairwise(values)) / quarter**0.5
        return text if sign * (fmean(last) - fmean(first)) > 2 * noise else None

    return hint


def _spike(values: Sequence[float]) -> str | None:
    """Ten times the usual, as `grad_norm` in docs/metrics.md."""
    spiked = len(values) >= ENOUGH and values[-1] > 10 * median(values)
    return "10 times the usual: lower learning_rate or max_grad_norm" if spiked else None


def _no_valid_plan(values: Sequence[float]) -> str | None:
    hopeless = len(values) >= ENOUGH and max(values[-ENOUGH:]) == 0
    return "none for long: start from a better model, or easier problems" if hopeless else None


def _values_explain_nothing(values: Sequence[float]) -> str | None:
    poor = len(values) >= ENOUGH and max(values[-ENOUGH:]) < 0
    return "below 0 for long: raise value_learning_rate" if poor else None


SLOTS = (
    (
        Vital("reward", "objective/scores", _trend(-1, "falling: lower learning_rate or raise kl_coef")),
        Vital("loss", "loss", _trend(1, "rising: lower learning_rate")),
    ),
    (
        Vital("valid", "reward/plan_valid", _no_valid_plan),
        Vital("accuracy", "accuracy"),
        Vital("reward std", "objective/scores_std", _below(1e-6, "all earn alike: change the prompts or the reward")),
        Vital("entropy", "entropy"),
    ),
    (
        Vital(
            "kl",
            "objective/kl",
            _first_of(
                _below(-1.0, "far below 0: sampler and learner disagree, see the warning"),
                _above(30.0, "far from the start: raise kl_coef or lower learning_rate"),
            ),
        ),
        Vital("length", "completions/mean_length"),
        Vital("lr", "lr"),
    ),
    (
        Vital("value fit", "value/explained_variance", _values_explain_nothing),
        Vital(
            "equal groups",
            "rloo/reward_zero_std",
            _above(0.5, "most groups teach nothing: raise temperature or num_generations"),
        ),
        Vital("grad norm", "grad_norm", _spike),
    ),
    (
        Vital("samples/s", "throughput/samples_per_s"),
        Vital("s/step", "time/step_s"),
    ),
)
"""For each of the five, what may stand there: the first that a record has."""

_HINTS = {vital.label: vital.hint for slot in SLOTS for vital in slot if vital.hint is not None}


def numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers to show of a record, {label: value}."""
    found = (next((vital for vital in slot if vital.metric in record), None) for slot in SLOTS)
    return {vital.label: record[vital.metric] for vital in found if vital is not None}


def hint(label: str, values: Sequence[float | None]) -> str | None:
    """What is odd about the latest value of a number, and what to do.

    Args:
        label: of `numbers`.
        values: all so far, the latest last; None and what is not finite stand for "no number".

    Returns:
        Nothing ("") for a healthy number; None for one that is neither healthy nor odd, such as a speed.
    """
    if not values:
        return None
    finite = [float(value) for value in values if value is not None and math.isfinite(value)]
    if values[-1] is None or not math.isfinite(values[-1]):
        return "not a number: lower learning_rate, and see the warnings"
    judge = _HINTS.get(label)
    return None if judge is None else judge(finite) or ""
