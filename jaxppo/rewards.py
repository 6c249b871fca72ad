"""Rewards computed on the host, with TRL's calling convention.

A reward function is called as `fn(prompts=..., completions=..., completion_ids=..., **columns)`, where every argument
is a list with one entry per completion and `columns` holds every column of the data set, and returns one number per
completion, or None for one that it cannot score. It may be `async`, may take `prompt_ids`, and may take
`log_metric(name, value)` and `log_extra(column, values)` to report its parts.

One function is a `Reward`: called, with its results kept for repeated completions and its failures dealt with as
configured. Several make `Rewards`: their weighted sum.
"""

import asyncio
import functools
import inspect
import json
import math
import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal, NamedTuple, Protocol

from jaxppo.errors import ConfigError, DataError, JaxppoError, did_you_mean
from jaxppo.planning.language.plans import lccs_length, lcs_length
from jaxppo.run.jsonl import plain

__all__ = ["Completions", "Failed", "Policy", "Reward", "RewardFunction", "Rewards", "Scores", "call", "lccs", "lcs"]

OnFailure = Literal["stop", "skip"] | float
"""What becomes of a completion whose reward failed: stop the run, leave it out of the update, or this reward."""


class RewardFunction(Protocol):
    """TRL's reward function: one number per completion; None where there is none."""

    def __call__(
        self, prompts: list[str], completions: list[str], completion_ids: list[list[int]], **columns: Any
    ) -> Any:
        """Score every completion."""
        ...


class Completions(NamedTuple):
    """What reward functions are called with, one entry per completion."""

    prompts: list[str]
    texts: list[str]
    ids: list[list[int]]
    columns: dict[str, list[Any]]

    def rows(self, numbers: Sequence[int]) -> "Completions":
        """Some of the completions."""
        pick = lambda values: [values[i] for i in numbers]  # noqa: E731
        columns = {name: pick(values) for name, values in self.columns.items()}
        return Completions(pick(self.prompts), pick(self.texts), pick(self.ids), columns)


class Failed(NamedTuple):
    """In place of a number: the reward function gave none."""

    kind: Literal["errors", "timeouts"]
    reason: str


class Scores(NamedTuple):
    """Rewards of a batch, and what was reported about them."""

    values: list[Any]  # float; None: not scorable; `Failed` before a policy has dealt with it
    metrics: dict[str, float]
    extras: dict[str, list[Any]]  # one entry per completion


Gather = Callable[[list[Scores]], list[list[Scores]]]
"""What each process has -> what all of them have, in their order."""

Scorer = Callable[[Completions], Scores]
"""A reward function in any form: called in this process, row by row, or in processes of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a reward function is called.

    Attributes:
        on_error: what becomes of completions for which it raises or returns no number.
        on_timeout: what becomes of completions that it takes too long for.
        timeout_s: seconds for one completion; None for any time.
        cache_size: how many results are kept for repeated completions; 0 for none.
    """

    on_error: OnFailure = "stop"
    on_timeout: OnFailure = "skip"
    timeout_s: float | None = None
    cache_size: int = 0


class Reward:
    """A reward function with its name and weight, called as a policy says.

    Args:
        name: for metrics and messages.
        function: the reward function.
        weight: of its rewards in the sum.
        policy: what to do about failures and repetitions.
        scorer: calls it in another way; default: here, a batch at a time (an `async` function with a time limit: all
            completions apart, at the same time).
    """

    def __init__(
        self,
        name: str,
        function: RewardFunction,
        *,
        weight: float = 1.0,
        policy: Policy | None = None,
        scorer: Scorer | None = None,
    ):
        self.name, self.function, self.weight, self.policy = name, function, weight, policy or Policy()
        self._scorer = scorer or self._default_scorer()
        self._reports = bool({"log_metric", "log_extra"} & set(inspect.signature(function).parameters))
        self._known: OrderedDict[Any, float | None] = OrderedDict()

    def __call__(self, completions: Completions) -> Scores:
        """Score completions; failures have become what the policy says, and are counted in the metrics.

        Raises:
            DataError: a column that the function needs is missing, or a failure that the policy does not allow.
        """
        check_columns(self.name, self.function, completions.columns)
        scores, cached = self._with_cache(completions)
        failures = {row: value for row, value in enumerate(scores.values) if isinstance(value, Failed)}
        values = [self._replaced(row, value) for row, value in enumerate(scores.values)]
        counts = Counter(failure.kind for failure in failures.values())
        metrics = {
            "reward/errors": counts["errors"],
            "reward/timeouts": counts["timeouts"],
            "cache/reward_hits": cached + scores.metrics.get("cache/reward_hits", 0),
        }
        reasons: dict[str, list[Any]] = {}
        if failures:
            reasons[f"{self.name}_failed"] = [getattr(value, "reason", None) for value in scores.values]
        return Scores(values, scores.metrics | metrics, scores.extras | reasons)

    def close(self) -> None:
        """Let go of what the function holds, such as processes."""
        if callable(close := getattr(self._scorer, "close", None)):
            close()

    def _default_scorer(self) -> Scorer:
        timeout_s = self.policy.timeout_s
        if timeout_s is not None and is_async(self.function):
            return lambda completions: _score_apart(self.name, self.function, completions, timeout_s)
        calls = _call_or_stop if self.policy.on_error == "stop" else _call_or_isolate
        return lambda completions: calls(self.name, self.function, completions)

    def _with_cache(self, completions: Completions) -> tuple[Scores, int]:
        """Scores, and how many came from the cache or from an equal completion of the batch."""
        if self._reports or not self.policy.cache_size:  # what reports about a batch has to see the whole batch
            return self._scorer(completions), 0
        arguments = arguments_of(self.function, completions)
        keys = [_key(arguments, row) for row in range(len(completions.texts))]
        first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self._known}
        unknown = sorted(first.values())
        scores = self._scorer(completions.rows(unknown)) if unknown else Scores([], {}, {})
        found = dict(zip((keys[row] for row in unknown), scores.values, strict=True))
        values = [found[key] if key in found else self._recall(key) for key in keys]
        self._known |= {key: value for key, value in found.items() if not isinstance(value, Failed)}
        while len(self._known) > self.policy.cache_size:
            self._known.popitem(last=False)
        return Scores(values, scores.metrics, {}), len(keys) - len(unknown)

    def _recall(self, key: Any) -> float | None:
        self._known.move_to_end(key)
        return self._known[key]

    def _replaced(self, row: int, value: Any) -> float | None:
        if not isinstance(value, Failed):
            return value
        action = self.policy.on_error if value.kind == "errors" else self.policy.on_timeout
        if action == "stop":
            raise DataError(f"reward {self.name}: expected a number for row {row}, got {value.reason}")
        return None if action == "skip" else float(action)


class Rewards:
    """Several reward functions, called one after the other; the reward is their weighted sum.

    As in TRL a function that cannot score a completion is left out of its sum; a completion that none can score has no
    reward.
    """

    def __init__(self, rewards: Sequence[Reward]):
        self.rewards = tuple(rewards)

    def __call__(self, completions: Completions, gather: Gather | None = None) -> Scores:
        """Score completions: [B] sums, None where there is none.

        Args:
            completions: what to score.
            gather: gets what other processes found for their completions, all as many as here; the result is then of
                all completions together. What a function reports is averaged over the processes.

        Raises:
            DataError: see `Reward`; or no completion at all could be scored.
        """
        parts = {reward: reward(completions) for reward in self.rewards}
        if gather is not None:
            everywhere = zip(*gather(list(parts.values())), strict=True)
            parts = {reward: _together(scores) for reward, scores in zip(self.rewards, everywhere, strict=True)}
        rows = zip(*(scores.values for scores in parts.values()), strict=True)
        values = [self._sum(row) for row in rows]
        metrics: dict[str, float] = {}
        extras: dict[str, list[Any]] = {}
        counts: Counter[str] = Counter()
        for reward, scores in parts.items():
            counts.update({name: int(scores.metrics[name]) for name in _COUNTS})
            metrics |= {name: value for name, value in scores.metrics.items() if name not in _COUNTS}
            metrics |= _moments(reward.name, scores.values)
            extras |= scores.extras | ({f"reward_{reward.name}": scores.values} if len(parts) > 1 else {})
        if values and all(value is None for value in values):
            reasons = [value for column in extras.values() for value in column if isinstance(value, str)]
            raise DataError(f"reward: expected a number for a completion at least, got none ({reasons[:1]})")
        unscored = sum(value is None for value in values)
        return Scores(values, metrics | dict(counts) | {"reward/not_scorable": unscored}, extras)

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise a `DataError` unless the data have every column that the functions need."""
        for reward in self.rewards:
            check_columns(reward.name, reward.function, names)

    def close(self) -> None:
        """Let go of what the functions hold."""
        for reward in self.rewards:
            reward.close()

    def _sum(self, values: Sequence[float | None]) -> float | None:
        weights = [reward.weight for reward in self.rewards]
        terms = [weight * value for weight, value in zip(weights, values, strict=True) if value is not None]
        return math.fsum(terms) if terms else None


def _together(processes: Sequence[Scores]) -> Scores:
    """The scores of equally many completions each: values in order, counts in sum, other metrics on average."""
    if len(processes) == 1:
        return processes[0]
    counts = {name: sum(scores.metrics[name] for scores in processes) for name in _COUNTS}
    columns = dict.fromkeys(column for scores in processes for column in scores.extras)
    extras = {
        column: [v for s in processes for v in s.extras.get(column, [None] * len(s.values))] for column in columns
    }
    values = [value for scores in processes for value in scores.values]
    return Scores(values, joined(processes).metrics | counts, extras)


_COUNTS = ("reward/errors", "reward/timeouts", "cache/reward_hits")


def _moments(name: str, values: Sequence[float | None]) -> dict[str, float]:
    """TRL's metrics of one function among several."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return {}
    return {f"rewards/{name}/mean": fmean(numbers), f"rewards/{name}/std": pstdev(numbers)}


def name_of(reward: RewardFunction) -> str:
    """What a reward function is called in metrics and messages."""
    return getattr(reward, "__name__", type(reward).__name__)


def check_columns(name: str, reward: RewardFunction, columns: Iterable[str]) -> None:
    """Raise a `DataError` that names the first column which a reward function needs and the data lacks."""
    if (needed := missing_column(reward, columns)) is not None:
        got, fix = ", ".join(sorted(columns)), "use data that has it, or give the parameter a default"
        meant = did_you_mean(needed, _OWN_ARGUMENTS) if needed in ("prompt", "completion") else ""
        raise DataError(f"reward {name}: expected a data column {needed!r}, got {got}; {fix}{meant}")


def missing_column(reward: RewardFunction, columns: Iterable[str]) -> str | None:
    """The first column which a reward function needs and the data lacks, or None."""
    given = {*columns, *_OWN_ARGUMENTS}
    for needed, parameter in inspect.signature(reward).parameters.items():
        named = parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if named and parameter.default is inspect.Parameter.empty and needed not in given:
            return needed
    return None


_OWN_ARGUMENTS = ("prompts", "completions", "completion_ids", "log_metric", "log_extra")


def arguments_of(reward: RewardFunction, completions: Completions, **others: Any) -> dict[str, Any]:
    """What a function takes of all there is."""
    own = {"prompts": completions.prompts, "completions": completions.texts, "completion_ids": completions.ids}
    arguments = completions.columns | own | others
    parameters = inspect.signature(reward).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: arguments[name] for name in parameters if name in arguments}


def call(name: str, reward: RewardFunction, completions: Completions) -> Scores:
    """Call a reward function once for all completions; what is no number has become `Failed`.

    Raises:
        DataError: it returned the wrong number of values; the message names it. Whatever the function raises.
    """
    reports = _Reports(name, len(completions.texts))
    values = reward(**arguments_of(reward, completions, **reports.arguments))
    if inspect.isawaitable(values):
        values = asyncio.run(_awaited(values))
    return Scores(_checked(name, values, len(completions.texts)), reports.metrics, reports.extras)


class _Reports:
    """What a function of this name tells about so many completions by `log_metric` and `log_extra`."""

    def __init__(self, name: str, count: int):
        self._name, self._count = name, count
        self.metrics: dict[str, float] = {}
        self.extras: dict[str, list[Any]] = {}
        self.arguments = {"log_metric": self._log_metric, "log_extra": self._log_extra}

    def _log_metric(self, name: str, value: Any) -> None:
        try:
            self.metrics[name] = float(value)
        except (TypeError, ValueError):
            expected = f"a number for log_metric {name!r}"
            raise DataError(f"reward {self._name}: expected {expected}, got {value!r:.80}") from None

    def _log_extra(self, column: str, values: Sequence[Any]) -> None:
        if column in SAMPLE_COLUMNS:
            taken = ", ".join(SAMPLE_COLUMNS)
            raise DataError(f"reward {self._name}: expected a column of log_extra other than {taken}, got {column!r}")
        values = list(values)
        if len(values) != self._count:
            expected = f"{self._count} values, one for each completion, for log_extra {column!r}"
            raise DataError(f"reward {self._name}: expected {expected}, got {len(values)}")
        self.extras[column] = list(map(_as_json, values))


SAMPLE_COLUMNS = ("step", "id", "prompt", "completion", "score")
"""Those that every line of `samples.jsonl` has."""


def _as_json(value: Any) -> Any:
    """A value that JSON can hold: itself as a log has it, arrays as lists, or else its text."""
    value = plain(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


def _checked(name: str, values: Any, expected: int) -> list[float | Failed | None]:
    try:
        count = len(values)
    except TypeError:  # a single number, also of an array library
        count = type(values).__name__
    if count != expected:
        raise DataError(f"reward {name}: expected {expected} values, got {count}; a reward for each completion")
    return [_number(value) for value in values]


def _number(value: Any) -> float | Failed | None:
    if value is None or isinstance(value, Failed):
        return value
    if not isinstance(value, Real) or not math.isfinite(value):
        return Failed("errors", f"{value!r:.80}")
    return float(value)


def is_async(function: RewardFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def _awaited(values: Any) -> Any:
    return await values


def _call_or_stop(name: str, reward: RewardFunction, completions: Completions) -> Scores:
    """Where somebody's function fails, the line of it is named; errors of our own functions stay as they are."""
    try:
        return call(name, reward, completions)
    except JaxppoError:
        raise
    except Exception as error:
        file = _file_of(reward)
        if file is not None and Path(file).is_relative_to(Path(__file__).parent):
            raise
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        place = f" in line {lines[-1].lineno} of {file}" if lines else ""
        fix = "mend it, or --on_error skip leaves out the completions that it fails on"
        raise DataError(
            f"reward {name}: expected a number for each completion, got {reason_of(error)}{place}; {fix}"
        ) from error


def _file_of(function: Any) -> str | None:
    """Where a function was written; None where that is not known."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return getattr(code, "co_filename", None)


def _call_or_isolate(name: str, reward: RewardFunction, completions: Completions) -> Scores:
    """Where a completion makes the function fail, each is scored by itself, so that only that one is lost."""
    try:
        return call(name, reward, completions)
    except Exception:
        rows = [_call_row(name, reward, completions.rows([row])) for row in range(len(completions.texts))]
    return joined(rows)


def _call_row(name: str, reward: RewardFunction, row: Completions) -> Scores:
    try:
        return call(name, reward, row)
    except Exception as error:
        return Scores([Failed("errors", reason_of(error))], {}, {})


def reason_of(error: BaseException) -> str:
    """An exception in one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def joined(rows: Sequence[Scores]) -> Scores:
    """Scores of completions that were called one by one: metrics are means over those that have them."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    columns = dict.fromkeys(column for row in rows for column in row.extras)
    metrics = {name: fmean(row.metrics[name] for row in rows if name in row.metrics) for name in names}
    extras = {column: [next(iter(row.extras.get(column, ())), None) for row in rows] for column in columns}
    return Scores([value for row in rows for value in row.values], metrics, extras)


def _score_apart(name: str, reward: RewardFunction, completions: Completions, timeout_s: float) -> Scores:
    """An `async` function, called for every completion by itself, all at the same time."""

    async def one(row: Completions) -> Scores:
        reports = _Reports(name, 1)
        try:
            answer = asyncio.wait_for(reward(**arguments_of(reward, row, **reports.arguments)), timeout_s)
            values = _checked(name, await answer, 1)
        except TimeoutError:
            values = [Failed("timeouts", f"no answer within {timeout_s:g} s")]
        except Exception as error:
            values = [Failed("errors", reason_of(error))]
        return Scores(values, reports.metrics, reports.extras)

    async def all_of_them() -> list[Scores]:
        return await asyncio.gather(*(one(completions.rows([row])) for row in range(len(completions.texts))))

    return joined(asyncio.run(all_of_them()))


def _key(arguments: Mapping[str, list[Any]], row: int) -> Any:
    """What a result belongs to: equal keys mean equal arguments."""
    return tuple((name, _hashable(values[row])) for name, values in arguments.items())


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((name, _hashable(entry)) for name, entry in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value if getattr(value, "__hash__", None) else repr(value)


# --- overlap of plans

NormaliseBy = Literal["max", "reference", "prediction"]


def lccs(predicted: Sequence[Any], reference: Sequence[Any], normalise_by: NormaliseBy = "max") -> float:
    """Return the length of the longest contiguous common run of actions, divided by a plan length.

    LCCS = |longest run| / n with n = max(|predicted|, |reference|), |reference| or |predicted|. With `max` it is in
    [0, 1] and 1 only for the reference itself; with `reference`, junk around the common run costs nothing.

    Args:
        predicted: actions, compared by equality: tuples or "(action args)" strings.
        reference: the same for the reference plan.
        normalise_by: which length divides.

    Returns:
        A number in [0, 1]; 0.0 where the divisor is 0.

    Source: "Chasing Progress, Not Perfection" (ICAPS 2025), whose code divides by the reference.
    """
    return per_action(lccs_length(predicted, reference), predicted, reference, normalise_by)


def lcs(predicted: Sequence[Any], reference: Sequence[Any], normalise_by: NormaliseBy = "max") -> float:
    """Return the length of the longest common subsequence of actions (gaps allowed), divided as in `lccs`."""
    return per_action(lcs_length(predicted, reference), predicted, reference, normalise_by)


def per_action(length: int, predicted: Sequence[Any], reference: Sequence[Any], normalise_by: NormaliseBy) -> float:
    divisors = {
        "max": max(len(predicted), len(reference)),
        "reference": len(reference),
        "prediction": len(predicted),
    }
    if normalise_by not in divisors:
        raise ConfigError(f"normalise_by: expected max, reference or prediction, got {normalise_by!r}")
    divisor = divisors[normalise_by]
    return min(1.0, length / divisor) if divisor else 0.0
