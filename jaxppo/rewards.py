"""Rewards computed on the host, with TRL's calling convention.

A reward function is called as `fn(prompts=..., completions=..., completion_ids=..., **columns)`, where every argument
is a list with one entry per completion and `columns` holds every column of the data set. It returns one number per
completion, or None for one that it cannot score, or `Part`s: pieces of the completion with a reward each, whose sum is
its score. It may be `async`, also where an event loop runs already, as in a notebook. It may take `prompt_ids`, and
`log_metric(name, value)` and `log_extra(column, values)` to report more, and `trainer_state`: how far training is.

A `Reward` is one function with its weight, its cache and its failure policy; `Rewards` is the weighted sum of several.
As in TRL, a score is the number that a completion gets.
"""

import asyncio
import inspect
import math
import sys
import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import chain
from numbers import Real
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from jaxppo.config.redact import redact
from jaxppo.errors import DataError, JaxppoError, did_you_mean
from jaxppo.planning.language.overlap import lccs, lcs
from jaxppo.run.jsonl import json_value
from jaxppo.run.metrics import may_report

__all__ = [
    "Completions",
    "Failed",
    "Part",
    "Policy",
    "Reward",
    "RewardFunction",
    "Rewards",
    "Scores",
    "TrainerState",
    "call",
    "lccs",
    "lcs",
]

OnFailure = Literal["stop", "skip"] | float
"""For a completion whose reward failed: stop the run, leave it out of the update, or give it this reward."""

RewardFunction = Callable[..., Any]
"""TRL's reward function, as above."""


class TrainerState(NamedTuple):
    """How far training is, for reward functions that take `trainer_state`; the first three are named as in TRL."""

    global_step: int  # updates done
    max_steps: int  # updates of the whole run
    epoch: float  # passes over the prompts done
    episode: int  # completions learned from
    total_episodes: int


class Completions(NamedTuple):
    """The arguments of reward functions, one entry per completion."""

    prompts: list[str]
    texts: list[str]
    ids: list[list[int]]
    columns: dict[str, list[Any]]
    trainer_state: TrainerState | None = None  # of all; None outside of training

    def rows(self, numbers: Sequence[int]) -> "Completions":
        """Return some of the completions."""
        pick = lambda values: [values[i] for i in numbers]  # noqa: E731
        columns = {name: pick(values) for name, values in self.columns.items()}
        return Completions(pick(self.prompts), pick(self.texts), pick(self.ids), columns, self.trainer_state)


class Failed(NamedTuple):
    """Stands for the number that a reward function failed to give."""

    kind: Literal["errors", "timeouts"]
    reason: str


class Part(NamedTuple):
    """A part of a score, and the piece of the completion that earned it.

    The reward is given at the last token that has something of the piece; where there is none (an empty piece, one
    behind the text), at the last token of the completion.

    Attributes:
        start: the first character or token of the piece, counted from 0.
        end: the one behind its last.
        reward: the part.
        unit: what `start` and `end` count: characters of the completion's text, or its tokens.
    """

    start: int
    end: int
    reward: float
    unit: Literal["characters", "tokens"] = "characters"


Parts = tuple[Part, ...]

Score = float | Failed | None
"""The score of a completion; None where it cannot be scored, `Failed` where the function failed on it."""


class Scores(NamedTuple):
    """Scores of a batch, and what the reward functions reported about them."""

    values: list[Score]
    metrics: dict[str, float]
    extras: dict[str, list[Any]]  # one entry per completion
    parts: list[Parts] | None = None  # one entry per completion, () for a score as a whole; None: all are


_LARGEST = 3.4028234e38
"""The devices compute in float32; what is larger would be infinite there."""

Gather = Callable[[list[Scores]], list[list[Scores]]]
"""From the scores of this process to those of all processes, in their order."""

Scorer = Callable[[Completions], Scores]
"""One way of calling a reward function: for the batch, row by row, or in other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a reward function is called.

    Attributes:
        on_error: for completions on which it raises or returns no number.
        on_timeout: for completions on which it takes too long, where its scorer has a time limit.
        cache_size: results kept for repeated completions; 0 for none.
    """

    on_error: OnFailure = "stop"
    on_timeout: OnFailure = "skip"
    cache_size: int = 0


class Reward:
    """A reward function with its name, weight and policy.

    Args:
        name: for metrics and messages.
        function: the reward function.
        weight: of its scores in the sum.
        policy: how failures and repeated completions are handled.
        scorer: how the function is called; default: in this process, once per batch.
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
        how = _call_or_stop if self.policy.on_error == "stop" else _call_or_isolate
        self._scorer = scorer or partial(how, name, function)
        # What the result depends on, or does, besides the arguments of a completion.
        self._cacheable = not _NOT_OF_ROWS & set(inspect.signature(function).parameters)
        self._known: OrderedDict[Any, tuple[float | None, Parts]] = OrderedDict()

    def __call__(self, completions: Completions) -> Scores:
        """Score completions; the policy replaces failures, and the metrics count them.

        Raises:
            DataError: the data lack a column that the function needs, or a failure has to stop the run.
        """
        check_columns(self.name, self.function, completions.columns)
        scores, cached = self._with_cache(completions)
        values = [self._replaced(row, value) for row, value in enumerate(scores.values)]
        counts = Counter(value.kind for value in scores.values if isinstance(value, Failed))
        metrics = {
            "reward/errors": counts["errors"],
            "reward/timeouts": counts["timeouts"],
            "cache/reward_hits": cached + scores.metrics.get("cache/reward_hits", 0),
        }
        reasons = {f"{self.name}_failed": [getattr(value, "reason", None) for value in scores.values]} if counts else {}
        return Scores(values, scores.metrics | metrics, scores.extras | reasons, scores.parts)

    def close(self) -> None:
        """Release what the function holds, such as processes."""
        if callable(close := getattr(self._scorer, "close", None)):
            close()

    def _with_cache(self, completions: Completions) -> tuple[Scores, int]:
        """Return scores, and how many came from the cache or from an equal completion of the batch."""
        if not self._cacheable or not self.policy.cache_size:
            return self._scorer(completions), 0
        arguments = arguments_of(self.function, completions)
        columns = [[(name, _hashable(value)) for value in values] for name, values in arguments.items()]
        keys = [tuple(column[row] for column in columns) for row in range(len(completions.texts))]
        first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self._known}
        unknown = sorted(first.values())
        scores = self._scorer(completions.rows(unknown)) if unknown else Scores([], {}, {})
        found = dict(zip((keys[row] for row in unknown), _in_pairs(scores), strict=True))
        pairs = [found[key] if key in found else self._known[key] for key in keys]
        for key in filter(self._known.__contains__, keys):
            self._known.move_to_end(key)
        self._known |= {key: pair for key, pair in found.items() if not isinstance(pair[0], Failed)}
        while len(self._known) > self.policy.cache_size:
            self._known.popitem(last=False)
        return _of_pairs(pairs)._replace(metrics=scores.metrics), len(keys) - len(unknown)

    def _replaced(self, row: int, value: Any) -> float | None:
        if not isinstance(value, Failed):
            return value
        action = self.policy.on_error if value.kind == "errors" else self.policy.on_timeout
        if action == "stop":
            raise DataError(f"reward {self.name}: expected a number for row {row}, got {value.reason}")
        return None if action == "skip" else float(action)


class Rewards:
    """Several reward functions, called in turn; the score is their weighted sum, and its parts are theirs.

    As in TRL, a function that cannot score a completion is left out of its sum; a completion that none can score gets
    None. What functions give to a completion as a whole is in none of the parts.

    Attributes:
        rewards: the functions.
        trainer_state: how far training is; what trains keeps it up to date.
    """

    def __init__(self, rewards: Sequence[Reward]):
        self.rewards = tuple(rewards)
        self.trainer_state: TrainerState | None = None

    def __call__(self, completions: Completions, gather: Gather | None = None) -> Scores:
        """Score completions: [B] sums, None where no function gave a score.

        Args:
            completions: to score.
            gather: exchanges scores with the other processes, which have as many completions each; the result is then
                that of all completions, and what the functions report is averaged over the processes.

        Raises:
            DataError: see `Reward`.
        """
        completions = completions._replace(trainer_state=self.trainer_state)
        terms = {reward: reward(completions) for reward in self.rewards}
        if gather is not None:
            everywhere = zip(*gather(list(terms.values())), strict=True)
            terms = {reward: joined(scores) for reward, scores in zip(self.rewards, everywhere, strict=True)}
        values = [self._sum(row) for row in zip(*(scores.values for scores in terms.values()), strict=True)]
        metrics: dict[str, float] = {}
        extras: dict[str, list[Any]] = {}
        counts: Counter[str] = Counter()
        for reward, scores in terms.items():
            counts.update({name: int(scores.metrics[name]) for name in _COUNTS})
            metrics |= {name: value for name, value in scores.metrics.items() if name not in _COUNTS}
            if numbers := [value for value in scores.values if value is not None]:  # under TRL's names
                metrics[f"rewards/{reward.name}/mean"] = fmean(numbers)
                metrics[f"rewards/{reward.name}/std"] = stdev(numbers) if len(numbers) > 1 else 0.0
            extras |= scores.extras | ({f"reward_{reward.name}": scores.values} if len(terms) > 1 else {})
        unscored = sum(value is None for value in values)
        metrics |= dict(counts) | {_UNSCORED: unscored}
        return Scores(values, metrics, extras, self._weighted_parts(list(terms.values())))

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise a `DataError` unless the data have every column that the functions need, and none that hides ours.

        Args:
            names: of the columns of the data, without `prompt_ids`, which every batch has.
        """
        for name in (*OWN_ARGUMENTS, PROMPT_IDS):
            if name in names:
                fix = f"rename it in the data, such as to data_{name}"
                expected = "another name, as reward functions are given something else by this one"
                raise DataError(f"column {name!r} of the data: expected {expected}; {fix}")
        for reward in self.rewards:
            check_columns(reward.name, reward.function, [*names, PROMPT_IDS])

    def close(self) -> None:
        """Release what the functions hold."""
        for reward in self.rewards:
            reward.close()

    def _sum(self, values: Sequence[float | None]) -> float | None:
        pairs = zip(self.rewards, values, strict=True)
        terms = [reward.weight * value for reward, value in pairs if value is not None]
        total = math.fsum(terms)
        if abs(total) > _LARGEST:
            raise DataError(f"reward_weights: expected sums that float32 can hold, got {total:.4g}; lower them")
        return total if terms else None

    def _weighted_parts(self, terms: Sequence[Scores]) -> list[Parts] | None:
        """Put the parts of all functions together, row by row; a number that replaces a failure has none."""
        weighted = [
            [tuple(part._replace(reward=reward.weight * part.reward) for part in parts) for parts in scores.parts]
            for reward, scores in zip(self.rewards, terms, strict=True)
            if scores.parts is not None
        ]
        return [tuple(chain.from_iterable(row)) for row in zip(*weighted, strict=True)] if weighted else None


_COUNTS = ("reward/errors", "reward/timeouts", "cache/reward_hits")
_UNSCORED = "reward/not_scorable"
_AUDIT = ("reward/val_audited", "reward/val_disagreements", "reward/val_failed", "reward/val_deviations")
_SUMMED = (*_COUNTS, _UNSCORED, *_AUDIT)


def name_of(reward: RewardFunction) -> str:
    """Return the name of a reward function for metrics and messages."""
    return getattr(reward, "__name__", type(reward).__name__)


def check_columns(name: str, reward: RewardFunction, columns: Iterable[str]) -> None:
    """Raise a `DataError` that names the first column that a reward function needs and the data lack."""
    if (needed := missing_column(reward, columns)) is not None:
        got, fix = ", ".join(sorted(columns)), "use data that has it, or give the parameter a default"
        meant = did_you_mean(needed, OWN_ARGUMENTS) if needed in ("prompt", "completion") else ""
        raise DataError(f"reward {name}: expected a data column {needed!r}, got {got}; {fix}{meant}")


def missing_column(reward: RewardFunction, columns: Iterable[str]) -> str | None:
    """Return the first column that a reward function needs and the data lack, or None."""
    given = {*columns, *OWN_ARGUMENTS}
    for name, parameter in inspect.signature(reward).parameters.items():
        named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if named and parameter.default is parameter.empty and name not in given:
            return name
    return None


_NOT_OF_ROWS = frozenset(("log_metric", "log_extra", "trainer_state"))
OWN_ARGUMENTS = ("prompts", "completions", "completion_ids", *sorted(_NOT_OF_ROWS))
"""What reward functions are given beside the columns of the data, none of which may be called so."""

PROMPT_IDS = "prompt_ids"
"""The column that the run adds to those of the data: the token ids of each prompt."""


def arguments_of(reward: RewardFunction, completions: Completions, **others: Any) -> dict[str, Any]:
    """Return the arguments that a function takes, by the names of its parameters."""
    own = {"prompts": completions.prompts, "completions": completions.texts, "completion_ids": completions.ids}
    arguments = completions.columns | own | others
    parameters = inspect.signature(reward).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    chosen = {name: _copied(values) for name, values in arguments.items() if takes_all or name in parameters}
    # Only by name: in `**columns`, everything is a list with an entry for each completion.
    return chosen | ({"trainer_state": completions.trainer_state} if "trainer_state" in parameters else {})


def _copied(value: Any) -> Any:
    """Copy lists and mappings: a function that changes its own changes nothing for the next one and for the logs."""
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _copied(entry) for name, entry in value.items()}
    return value


def call(name: str, reward: RewardFunction, completions: Completions) -> Scores:
    """Call a reward function once for all completions; a value that is no number and no parts becomes `Failed`.

    Raises:
        DataError: it returned the wrong number of values, or reported what no log can hold.
        Exception: whatever the function raises.
    """

    async def awaited() -> Any:
        return await values

    reports = Reports(name, len(completions.texts))
    values = reward(**arguments_of(reward, completions, **reports.arguments))
    numbers = run_to_end(awaited()) if inspect.isawaitable(values) else values
    scores = checked(name, numbers, len(completions.texts))
    return scores._replace(metrics=reports.metrics, extras=reports.extras)


def run_to_end(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine and return its result, also where an event loop runs in this thread, as in a notebook.

    A running loop cannot run another one until it is left, so that the coroutine then gets a thread with its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, asyncio.run, coroutine).result()


class Reports:
    """Collects what a function reports about `count` completions by `log_metric` and `log_extra`."""

    def __init__(self, name: str, count: int):
        self._name, self._count = name, count
        self.metrics: dict[str, float] = {}
        self.extras: dict[str, list[Any]] = {}
        self.arguments = {"log_metric": self._log_metric, "log_extra": self._log_extra}

    def _log_metric(self, name: str, value: Any) -> None:
        if not may_report(name):
            expected = "a name for log_metric of at most 100 printable characters that the run does not use, reward/..."
            raise DataError(f"reward {self._name}: expected {expected} for instance, got {name!r:.120}")
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = None
        if number is None or (name in _COUNTS and not math.isfinite(number)):
            expected = f"a number for log_metric {name!r}"
            raise DataError(f"reward {self._name}: expected {expected}, got {value!r:.80}")
        self.metrics[name] = number

    def _log_extra(self, column: str, values: Sequence[Any]) -> None:
        if column in SAMPLE_COLUMNS:
            taken = ", ".join(SAMPLE_COLUMNS)
            raise DataError(f"reward {self._name}: expected a column of log_extra other than {taken}, got {column!r}")
        values = list(values)
        if len(values) != self._count:
            expected = f"{self._count} values, one for each completion, for log_extra {column!r}"
            raise DataError(f"reward {self._name}: expected {expected}, got {len(values)}")
        self.extras[column] = list(map(json_value, values))


SAMPLE_COLUMNS = ("step", "id", "prompt", "completion", "score")
"""The columns that every line of `samples.jsonl` has."""


def checked(name: str, values: Any, expected: int) -> Scores:
    """Return a score for each completion; one that is no finite number, nor parts of one, becomes `Failed`."""
    if isinstance(values, Mapping | Set | str):
        got = f"a {type(values).__name__}, which has no number for each completion"
        raise DataError(f"reward {name}: expected a list of {expected} numbers, got {got}")
    try:
        count = len(values)
    except TypeError:  # a single number, also of an array library
        count = type(values).__name__
    if count != expected:
        raise DataError(f"reward {name}: expected {expected} values, got {count}; a reward for each completion")
    return _of_pairs([_score(value) for value in _plain(values)])


def _score(value: Any) -> tuple[float | Failed | None, Parts]:
    """Return the number of a completion and its parts: it is their sum, rounded once."""
    value = _plain(value)
    if isinstance(value, Failed) or not isinstance(value, list | tuple):  # `Failed` is a tuple, too
        return _number(value), ()
    parts = tuple(part for part in map(_part, value) if part is not None)
    if len(parts) < len(value):
        expected = "expected parts (start, end, reward) of integers 0 <= start <= end and a finite number"
        return Failed("errors", redact(f"{value!r}")[:80] + f"; {expected}"), ()
    total = _number(math.fsum(part.reward for part in parts))
    return total, () if isinstance(total, Failed) else parts


def _part(entry: Any) -> Part | None:
    """Return a part if it is one."""
    if not isinstance(entry, list | tuple) or not 3 <= len(entry) <= 4:
        return None
    part = Part(*map(_plain, entry))
    whole = all(isinstance(place, int) and not isinstance(place, bool) for place in part[:2])
    reward = _number(part.reward)
    if not whole or not 0 <= part.start <= part.end or part.unit not in ("characters", "tokens"):
        return None
    return part._replace(reward=reward) if isinstance(reward, float) else None


def _in_pairs(scores: Scores) -> list[tuple[Any, Parts]]:
    """Return each score with its parts."""
    return list(zip(scores.values, scores.parts or [()] * len(scores.values), strict=True))


def _of_pairs(pairs: Sequence[tuple[Any, Parts]]) -> Scores:
    """Return scores, from each with its parts."""
    parts = [parts for _, parts in pairs]
    return Scores([value for value, _ in pairs], {}, {}, parts if any(parts) else None)


def _number(value: Any) -> float | Failed | None:
    value = _plain(value)
    if value is None or isinstance(value, Failed):
        return value
    if not isinstance(value, Real):
        return Failed("errors", redact(f"{value!r}")[:80])
    try:
        number = float(value)
    except OverflowError:
        number = sys.float_info.max
    if abs(number) <= _LARGEST:
        return number
    return Failed("errors", f"{number:.4g}" + (", more than float32 can hold" if math.isfinite(number) else ""))


def _plain(value: Any) -> Any:
    """Return arrays and their entries as lists and numbers of Python."""
    return value.tolist() if hasattr(value, "tolist") else value


def _call_or_stop(name: str, reward: RewardFunction, completions: Completions) -> Scores:
    """Call a function; where a user's function fails, name the line. Errors of the package pass unchanged."""
    try:
        return call(name, reward, completions)
    except Exception as error:
        file = _file_of(reward)
        is_ours = file is not None and Path(file).is_relative_to(Path(__file__).parent)
        if is_ours or isinstance(error, JaxppoError):
            raise
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        place = f" in line {lines[-1].lineno} of {file}" if lines else ""
        fix = "fix it, or leave out the completions on which it fails with --on_error skip"
        raise DataError(
            f"reward {name}: expected a number for each completion, got {reason_of(error)}{place}; {fix}"
        ) from error


def _file_of(function: Any) -> str | None:
    """Return the file that defines a function; None where that is not known."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return getattr(code, "co_filename", None)


def _call_or_isolate(name: str, reward: RewardFunction, completions: Completions) -> Scores:
    """Call a function; where a completion makes it fail, score each by itself, so that only that one is lost."""
    try:
        return call(name, reward, completions)
    except Exception:
        return joined([call_row(name, reward, completions.rows([row])) for row in range(len(completions.texts))])


def call_row(name: str, reward: RewardFunction, row: Completions) -> Scores:
    """Call a function for a single completion; an exception becomes `Failed`."""
    try:
        return call(name, reward, row)
    except Exception as error:
        return Scores([Failed("errors", reason_of(error))], {}, {})


def reason_of(error: BaseException) -> str:
    """Describe an exception in one short line."""
    return redact(" ".join(f"{type(error).__name__}: {error}".split()))[:200]


def joined(parts: Sequence[Scores]) -> Scores:
    """Join the scores of consecutive completions; a metric is the mean over the parts that have it, a count the sum."""
    names = dict.fromkeys(name for part in parts for name in part.metrics)
    columns = dict.fromkeys(column for part in parts for column in part.extras)
    over_parts = lambda name: sum if name in _SUMMED else fmean  # noqa: E731
    metrics = {name: over_parts(name)([part.metrics[name] for part in parts if name in part.metrics]) for name in names}
    extras = {
        column: [value for part in parts for value in part.extras.get(column, [None] * len(part.values))]
        for column in columns
    }
    pairs = [pair for part in parts for pair in _in_pairs(part)]
    return _of_pairs(pairs)._replace(metrics=metrics, extras=extras)


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((name, _hashable(entry)) for name, entry in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return (type(value), value) if getattr(value, "__hash__", None) else repr(value)  # True == 1 == 1.0
