"""Rewards computed on the host, with TRL's calling convention.

A reward function is called as `fn(prompts=..., completions=..., completion_ids=..., **columns)`, where every argument
is a list with one entry per completion and `columns` holds every column of the data set. It returns one number per
completion, or None for one that it cannot score. It may be `async`, also where an event loop runs already, as in a
notebook. It may take `prompt_ids`, and `log_metric(name, value)` and `log_extra(column, values)` to report more, and
`trainer_state`: how far training is.

A `Reward` is one function with its weight and what happens where it fails; `Rewards` is the weighted sum of
several. As in TRL, a score is the number that a completion gets.
"""

import asyncio
import inspect
import math
import re
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from jaxppo.config.redact import redact
from jaxppo.errors import DataError, JaxppoError
from jaxppo.planning.language.overlap import lccs, lcs
from jaxppo.run.jsonl import json_value
from jaxppo.run.metrics import may_report

__all__ = [
    "Completions",
    "Failed",
    "Reward",
    "RewardFunction",
    "Rewards",
    "Score",
    "Scores",
    "TrainerState",
    "call",
    "lccs",
    "lcs",
]

OnError = Literal["stop", "skip"] | float
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

    def single_rows(self) -> list["Completions"]:
        """Return each completion by itself."""
        rows = []
        for number, text in enumerate(self.texts):
            row = self._replace(
                prompts=[self.prompts[number]],
                texts=[text],
                ids=[self.ids[number]],
                columns={name: [values[number]] for name, values in self.columns.items()},
            )
            rows.append(row)
        return rows


class Failed(NamedTuple):
    """Stands for the number that a reward function failed to give."""

    kind: Literal["errors", "timeouts"]
    reason: str


Score = float | Failed | None
"""The score of a completion; None where it cannot be scored, `Failed` where the function failed on it."""


class Scores(NamedTuple):
    """Scores of a batch, and what the reward functions reported about them."""

    values: list[Any]  # a `Score` of each completion; what `Reward` returns has no `Failed`
    metrics: dict[str, float]
    extras: dict[str, list[Any]]  # one entry per completion


MAX_SCORE = 3.4028234e38
"""The devices compute in float32; what is larger would be infinite there."""

Gather = Callable[[list[Scores]], list[list[Scores]]]
"""From the scores of this process to those of all processes, in their order."""

Scorer = Callable[[Completions], Scores]
"""One way of calling a reward function: for the batch, row by row, or in other processes."""


class Reward:
    """A reward function with its name, its weight and what happens where it fails.

    Args:
        name: for metrics and messages.
        function: the reward function.
        weight: of its scores in the sum.
        on_error: for completions on which it raises or returns no number; where it takes too long, they are left out.
        scorer: how the function is called; default: in this process, once per batch.
    """

    def __init__(
        self,
        name: str,
        function: RewardFunction,
        *,
        weight: float = 1.0,
        on_error: OnError = "stop",
        scorer: Scorer | None = None,
    ):
        self.name = name
        self.function = function
        self.weight = weight
        self._on_error = on_error
        if scorer is None:
            scorer = partial(
                _call_or_stop if on_error == "stop" else _call_or_isolate, name, function
            )
        self._scorer = scorer

    def __call__(self, completions: Completions) -> Scores:
        """Score completions; failures are replaced, and the metrics count them.

        Raises:
            DataError: the data lack a column that the function needs, or a failure has to stop the run.
        """
        # Python's own error for a missing argument would count as a failure of the function.
        check_columns(self.name, self.function, completions.columns)
        scores = self._scorer(completions)
        values = [self._replace_failure(row, score) for row, score in enumerate(scores.values)]
        counts = Counter(score.kind for score in scores.values if isinstance(score, Failed))
        metrics = {
            "reward/errors": counts["errors"],
            "reward/timeouts": counts["timeouts"],
        }
        extras = scores.extras
        if counts:
            reasons = [
                score.reason if isinstance(score, Failed) else None for score in scores.values
            ]
            extras = extras | {f"{self.name}_failed": reasons}
        return Scores(values, scores.metrics | metrics, extras)

    def close(self) -> None:
        """Release what the function holds, such as processes."""
        if callable(close := getattr(self._scorer, "close", None)):
            close()

    def _replace_failure(self, row: int, score: Score) -> float | None:
        if not isinstance(score, Failed):
            return score
        if score.kind == "timeouts" or self._on_error == "skip":
            return None
        if self._on_error == "stop":
            raise DataError(
                f"reward {self.name}: expected a number for row {row}, got {score.reason}"
            )
        return float(self._on_error)


class Rewards:
    """Several reward functions, called in turn; the score is their weighted sum.

    As in TRL, a function that cannot score a completion is left out of its sum; a completion that none can score gets
    None.

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
        terms = [reward(completions) for reward in self.rewards]
        if gather is not None:
            # Before anything is computed of them: the mean and the
            # deviation of each function are over all processes.
            terms = [join_scores(processes) for processes in zip(*gather(terms), strict=True)]
        columns = [scores.values for scores in terms]
        values = [self._sum(row) for row in zip(*columns, strict=True)]
        metrics: dict[str, float] = {}
        extras: dict[str, list[Any]] = {}
        counts = dict.fromkeys(_COUNTS, 0)
        for reward, scores in zip(self.rewards, terms, strict=True):
            for name, value in scores.metrics.items():
                if name in counts:
                    counts[name] += int(value)
                else:
                    metrics[name] = value
            numbers = [value for value in scores.values if value is not None]
            if numbers:
                # Under TRL's names.
                metrics[f"rewards/{reward.name}/mean"] = fmean(numbers)
                metrics[f"rewards/{reward.name}/std"] = stdev(numbers) if len(numbers) > 1 else 0.0
            extras |= scores.extras
            if len(terms) > 1:
                extras[f"reward_{reward.name}"] = scores.values
        metrics |= counts
        metrics[_UNSCORED] = values.count(None)
        return Scores(values, metrics, extras)

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise a `DataError` unless the data have every column that the functions need, and none that hides ours.

        Args:
            names: of the columns of the data, without `prompt_ids`, which every batch has.
        """
        for name in (*RESERVED_NAMES, PROMPT_IDS):
            if name in names:
                fix = f"rename it in the data, such as to data_{name}"
                reason = "another name, as reward functions are given something else by this one"
                raise DataError(f"column {name!r} of the data: expected {reason}; {fix}")
        for reward in self.rewards:
            check_columns(reward.name, reward.function, [*names, PROMPT_IDS])

    def close(self) -> None:
        """Release what the functions hold."""
        for reward in self.rewards:
            reward.close()

    def _sum(self, values: Sequence[Any]) -> float | None:
        pairs = zip(self.rewards, values, strict=True)
        terms = [reward.weight * value for reward, value in pairs if value is not None]
        # Rounded once, so that the order of the functions does not matter.
        total = math.fsum(terms)
        if abs(total) > MAX_SCORE:
            raise DataError(
                f"reward_weights: expected sums that float32 can hold, got {total:.4g}; lower them"
            )
        return total if terms else None


_COUNTS = ("reward/errors", "reward/timeouts", "cache/reward_hits")
_UNSCORED = "reward/not_scorable"
_AUDIT = ("reward/val_audited", "reward/val_disagreements", "reward/val_failed")
_SUMMED = (*_COUNTS, _UNSCORED, *_AUDIT)


def function_name(reward: RewardFunction) -> str:
    """Return the name of a reward function for metrics and messages."""
    # A callable object has no name of its own.
    return getattr(reward, "__name__", type(reward).__name__)


def check_columns(name: str, reward: RewardFunction, columns: Iterable[str]) -> None:
    """Raise a `DataError` that names the first column that a reward function needs and the data lack."""
    column = missing_column(reward, columns)
    if column is not None:
        available = ", ".join(sorted({*columns} - {PROMPT_IDS}))
        fix = "use data that has it, or give the parameter a default"
        hint = ""
        if column in _MEANT_ARGUMENTS:
            fix = f"here {_MEANT_ARGUMENTS[column]!r} are a list with a text for each completion"
            hint = " (docs/own_reward.md)"
        raise DataError(
            f"reward {name}: expected a data column {column!r}, got {available}; {fix}{hint}"
        )


_MEANT_ARGUMENTS = {
    "prompt": "prompts",
    "query": "prompts",
    "question": "prompts",
    "completion": "completions",
    "generation": "completions",
    "output": "completions",
    "outputs": "completions",
    "response": "completions",
    "responses": "completions",
    "solution_str": "completions",
    "solution_strs": "completions",
}
"""What functions that were written for other trainers, such as verl's `compute_score`, call our arguments."""


def missing_column(reward: RewardFunction, columns: Iterable[str]) -> str | None:
    """Return the first column that a reward function needs and the data lack, or None."""
    available = {*columns, *RESERVED_NAMES}
    for name, parameter in inspect.signature(reward).parameters.items():
        by_name = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if by_name and parameter.default is parameter.empty and name not in available:
            return name
    return None


# About the batch or the run, and not one entry for each completion.
_BATCH_ARGUMENTS = frozenset(("log_metric", "log_extra", "trainer_state"))

RESERVED_NAMES = ("prompts", "completions", "completion_ids", *sorted(_BATCH_ARGUMENTS))
"""What reward functions are given beside the columns of the data, none of which may be called so."""

PROMPT_IDS = "prompt_ids"
"""The column that the run adds to those of the data: the token ids of each prompt."""


def build_arguments(
    reward: RewardFunction, completions: Completions, reports: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the arguments that a function takes, by the names of its parameters.

    Args:
        reward: the function.
        completions: to score.
        reports: `log_metric` and `log_extra`; default: without them.
    """
    # Ours hide columns of the same names, which `Rewards.check_columns` refuses.
    arguments: dict[str, Any] = {
        **completions.columns,
        "prompts": completions.prompts,
        "completions": completions.texts,
        "completion_ids": completions.ids,
        **(reports or {}),
    }
    parameters = inspect.signature(reward).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    chosen = {
        name: _copy(values) for name, values in arguments.items() if takes_all or name in parameters
    }
    # Only by name: in `**columns`, everything is a list with an entry for each completion.
    if "trainer_state" in parameters:
        chosen["trainer_state"] = completions.trainer_state
    return chosen


def _copy(value: Any) -> Any:
    """Copy lists and mappings: a function that changes its own changes nothing for the next one and for the logs."""
    if isinstance(value, list):
        return [_copy(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _copy(entry) for name, entry in value.items()}
    return value


def call(name: str, reward: RewardFunction, completions: Completions) -> Scores:
    """Call a reward function once for all completions; a value that is no number becomes `Failed`.

    Raises:
        DataError: it returned the wrong number of values, or reported what no log can hold.
        Exception: whatever the function raises.
    """

    async def awaited() -> Any:
        return await values

    reports = Reports(name, len(completions.texts))
    # In this thread and without an event loop, unless it is async: JAX and signals care about it.
    values = reward(**build_arguments(reward, completions, reports.arguments))
    numbers = run_to_end(awaited()) if inspect.isawaitable(values) else values
    return reports.with_scores(numbers)


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
        self._name = name
        self._count = count
        self.metrics: dict[str, float] = {}
        self.extras: dict[str, list[Any]] = {}
        self.arguments = {"log_metric": self._log_metric, "log_extra": self._log_extra}

    def with_scores(self, values: Any) -> Scores:
        """Return what a function gave as scores, with its reports.

        A value that is no finite number becomes `Failed`.

        Raises:
            DataError: there is not one value for each completion.
        """
        values = _to_python(values)
        # A set has no order, and a dictionary or a text would give its keys or characters.
        is_list = hasattr(values, "__len__") and not isinstance(values, Mapping | Set | str)
        count = len(values) if is_list else type(values).__name__
        if count != self._count:
            rule = f"{self._count} values, one for each completion"
            raise DataError(f"reward {self._name}: expected {rule}, got {count}")
        return Scores([_to_number(value) for value in values], self.metrics, self.extras)

    def _log_metric(self, name: str, value: Any) -> None:
        if not may_report(name):
            rule = "a name for log_metric of at most 100 printable characters that the run does not use, reward/..."
            raise DataError(f"reward {self._name}: expected {rule} for instance, got {name!r:.120}")
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = None
        # Any other metric may be NaN; counts are added up as integers.
        if number is None or (name in _COUNTS and not math.isfinite(number)):
            raise DataError(
                f"reward {self._name}: expected a number for log_metric {name!r}, got {value!r:.80}"
            )
        self.metrics[name] = number

    def _log_extra(self, column: str, values: Sequence[Any]) -> None:
        if column in SAMPLE_COLUMNS:
            reserved = ", ".join(SAMPLE_COLUMNS)
            rule = f"a column of log_extra other than {reserved}"
            raise DataError(f"reward {self._name}: expected {rule}, got {column!r}")
        values = list(values)
        if len(values) != self._count:
            rule = f"{self._count} values, one for each completion, for log_extra {column!r}"
            raise DataError(f"reward {self._name}: expected {rule}, got {len(values)}")
        self.extras[column] = list(map(json_value, values))


SAMPLE_COLUMNS = ("step", "id", "prompt", "completion", "score")
"""The columns that every line of `samples.jsonl` has."""


def _to_number(value: Any) -> Score:
    value = _to_python(value)
    if value is None or isinstance(value, Failed):
        return value
    # Before it becomes a float, since an integer may be larger than any; NaN is refused, too.
    if isinstance(value, int | float) and abs(value) <= MAX_SCORE:
        return float(value)
    return Failed("errors", redact(repr(value))[:80])


def _to_python(value: Any) -> Any:
    """Return arrays and their entries as lists and numbers of Python."""
    return value.tolist() if hasattr(value, "tolist") else value


FAILURES = (Exception, SystemExit)
"""What a function may fail by: sys.exit() in it is no reason for the run to end without a word."""


def _call_or_stop(name: str, reward: RewardFunction, completions: Completions) -> Scores:
    """Call a function; where a user's function fails, name the line. Errors of the package pass unchanged."""
    try:
        return call(name, reward, completions)
    except FAILURES as error:
        frames = traceback.extract_tb(error.__traceback__)
        # The function begins where this file is left for the last time.
        first = max(n for n, frame in enumerate(frames, 1) if frame.filename == __file__)
        file = frames[first].filename if first < len(frames) else ""
        # A defect of our own functions keeps its traceback.
        is_ours = Path(file).is_relative_to(Path(__file__).parent)
        if is_ours or isinstance(error, JaxppoError):
            raise
        # The last line in its file: the libraries that it calls say little about the cause.
        lines = [frame.lineno for frame in frames[first:] if frame.filename == file]
        line = f" in line {lines[-1]} of {file}" if lines else ""
        fix = "fix it, or leave out the completions on which it fails with --on_error skip"
        raise DataError(
            f"reward {name}: expected a number for each completion, got {describe_error(error)}{line}; {fix}"
        ) from error


def _call_or_isolate(name: str, reward: RewardFunction, completions: Completions) -> Scores:
    """Call a function; where a completion makes it fail, score each by itself, so that only that one is lost."""
    try:
        return call(name, reward, completions)
    except FAILURES as error:
        scores = join_scores([call_row(name, reward, row) for row in completions.single_rows()])
        # A function that always gives too few values fails on each alone, too: `expected 1 values,
        # got 0` would say less of it than the count of the whole batch.
        fails_on_all = all(isinstance(value, Failed) for value in scores.values)
        if fails_on_all and isinstance(error, DataError):
            scores = scores._replace(values=[Failed("errors", str(error)) for _ in scores.values])
        return scores


def call_row(name: str, reward: RewardFunction, row: Completions) -> Scores:
    """Call a function for a single completion; an exception becomes `Failed`."""
    try:
        return call(name, reward, row)
    except FAILURES as error:
        return failed_row("errors", describe_error(error))


def failed_row(kind: Literal["errors", "timeouts"], reason: str) -> Scores:
    """Return the scores of a single completion on which a function failed."""
    return Scores([Failed(kind, reason)], {}, {})


def describe_error(error: BaseException) -> str:
    """Describe an exception in one short line."""
    # Bounded, since it stands in messages and in every line of samples.jsonl.
    text = redact(" ".join(f"{type(error).__name__}: {error}".split()))[:200]
    if _TEXT_AS_CHAT.search(text):
        text += " (prompts and completions are texts here, also those of chats: docs/own_reward.md)"
    return text


_TEXT_AS_CHAT = re.compile(
    r"string ind(ex|ices)|'str' object has no attribute '(content|get|role)'"
)
"""How a text fails that a function takes for a list of messages, which TRL gives where the data are conversational."""


def join_scores(batches: Sequence[Scores]) -> Scores:
    """Join the scores of consecutive completions.

    A metric is the mean over the batches that have it, weighted by their completions, a count the sum; a column that a
    batch lacks is None there.
    """
    joined = Scores([], {}, {})
    entries: dict[str, list[tuple[float, int]]] = {}
    for scores in batches:
        num_rows = len(scores.values)
        for name, value in scores.metrics.items():
            entries.setdefault(name, []).append((value, num_rows))
        for column in scores.extras:
            joined.extras.setdefault(column, [None] * len(joined.values))
        for column, values in joined.extras.items():
            values += scores.extras.get(column, [None] * num_rows)
        joined.values.extend(scores.values)
    for name, pairs in entries.items():
        values, weights = zip(*pairs, strict=True)
        if name in _SUMMED:
            joined.metrics[name] = sum(values)
        elif len(set(weights)) == 1:
            # Without the weights, since multiplying by them would round.
            joined.metrics[name] = fmean(values)
        else:
            joined.metrics[name] = fmean(values, weights)
    return joined
