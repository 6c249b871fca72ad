"""Reference plans for many problems: planners in several processes, with a time limit each, and a file of results.

What a planner finds is checked before it counts; what goes wrong is a result with a reason, never an exception.
"""

import hashlib
import importlib.metadata
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.errors import ConfigError, PddlError, ValidatorError
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action, format_action
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.solve import search
from jaxppo.planning.solve.cache import PlanCache, Record
from jaxppo.planning.solve.engines import PlannerAnswer
from jaxppo.planning.solve.process import PlannerProcess
from jaxppo.planning.validate.val import HOW_TO_GET_VAL, default_workers, find_val, run_val
from jaxppo.planning.validate.validator import execute

Progress = Callable[[int, int], None]
"""Called with the number of tasks that have a result, and of all tasks."""


class Planner(NamedTuple):
    """A way to get plans.

    Attributes:
        engine: `module:class` that makes the engine in its process.
        arguments: what the class is called with.
        optimal: whether its plans are proven shortest (cheapest, where the problem has a metric).
        package: the wheel it comes from, whose version is recorded; None for what this package has itself.
        extra: the extra of jaxppo that installs it.
        licence: of the planner.
    """

    engine: str
    arguments: tuple[Any, ...] = ()
    optimal: bool = False
    package: str | None = None
    extra: str | None = None
    licence: str = "Apache-2.0"


# Named, not imported: engines are made in planner processes, and some of their packages are slow or
# missing.
_BUILTIN = "jaxppo.planning.solve.engines:Builtin"
_UNIFIED = "jaxppo.planning.solve.engines:Unified"
_DOWNWARD = "jaxppo.planning.solve.fast_downward:FastDownward"
# Wheel, extra and licence.
_ARIES = ("up-aries", "planners", "MIT")
_FAST_DOWNWARD = ("up-fast-downward", "planners-gpl", "GPL-3.0")
_PYPERPLAN = ("up-pyperplan", "planners-gpl", "GPL-3.0")
PLANNERS = {
    "builtin": Planner(_BUILTIN),
    "builtin-optimal": Planner(_BUILTIN, (True,), True),
    "aries": Planner(_UNIFIED, ("aries",), False, *_ARIES),
    "fast-downward": Planner(_DOWNWARD, (), False, *_FAST_DOWNWARD),
    "fast-downward-optimal": Planner(_DOWNWARD, (True,), True, *_FAST_DOWNWARD),
    "pyperplan": Planner(_UNIFIED, ("pyperplan",), False, *_PYPERPLAN),
    "pyperplan-optimal": Planner(_UNIFIED, ("pyperplan-opt", True), True, *_PYPERPLAN),
}


class PlanTask(NamedTuple):
    """A problem to solve; the id is for the caller and may be anything."""

    id: str
    domain_pddl: str
    problem_pddl: str


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What came of a task.

    Attributes:
        id: the task's.
        plan: a plan that the validator accepts, or None.
        planner: name and version, such as `fast-downward 1.0.0`.
        seconds: what the planner took, without the start of its process; as recorded, where it comes from the cache.
        optimal: whether the plan is proven shortest (cheapest, where the problem has a metric).
        reason: why there is no plan: `timeout`, `memory`, `limit: ...`, `unsolvable`, `no plan: ...`,
            `unsupported: ...`, `unreadable: ...`, `invalid plan ...`, `crash: ...`. None where there is one.
    """

    id: str
    plan: tuple[Action, ...] | None
    planner: str
    seconds: float
    optimal: bool
    reason: str | None


def planner_version(name: str) -> str:
    """Return a planner's name and version.

    Raises:
        ConfigError: there is no such planner, or it is not installed.
    """
    planner = PLANNERS.get(name)
    if planner is None:
        raise ConfigError(f"planner: expected one of {', '.join(PLANNERS)}, got '{name}'")
    if planner.package is None:
        return f"{name} {search.VERSION}"
    try:
        return f"{name} {importlib.metadata.version(planner.package)}"
    except importlib.metadata.PackageNotFoundError:
        fix = f"pip install 'jaxppo[{planner.extra}]' (brings {planner.package}, under {planner.licence})"
        raise ConfigError(
            f"planner: expected an installed planner, got '{name}'; {fix}, or use builtin"
        ) from None


def find_plans(
    tasks: Iterable[PlanTask],
    *,
    planner: str = "builtin",
    timeout_s: float = 30.0,
    workers: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    use_val: bool = False,
    memory_mib: int | None = 4096,
) -> Iterator[PlanResult]:
    """Solve problems; results come in the order of the tasks, each as soon as it and those before it are known.

    Tasks of equal content are solved once. A call that was stopped early (Ctrl-C, a kill, an abandoned iterator)
    continues when it is repeated with the same cache.

    Args:
        tasks: the problems.
        planner: a key of `PLANNERS`.
        timeout_s: seconds for one problem; a planner that takes longer is killed.
        workers: processes at a time; by default one for every processor.
        cache: a file of JSON lines with all results so far, by content of domain and problem, planner and its version;
            made where there is none. Crashes are not taken from it, nor time-outs under a shorter limit, nor plans that
            are no longer valid.
        progress: called, in the caller's thread, after every task.
        use_val: also ask VAL about each plan.
        memory_mib: address space of a planner (Linux only); None: no limit.

    Raises:
        ConfigError: a value is out of range, or the planner, or VAL, is not installed.
    """
    version = planner_version(planner)
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s: expected a positive number, got {timeout_s!r}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: expected 1 or more, got {workers!r}")
    if use_val and find_val() is None:
        raise ConfigError(f"use_val: expected VAL to be installed: {HOW_TO_GET_VAL}")
    # Settings are checked here, at the call, and not when the first result is asked for.
    pool = _Pool(PLANNERS[planner], timeout_s, memory_mib)
    return _results(
        _Job(list(tasks), version, pool, PlanCache(cache), use_val),
        workers or default_workers(),
        progress,
    )


def write_plan(domain_pddl: str, problem_pddl: str, plan: Sequence[Action]) -> str:
    """Write a valid plan as Fast Downward writes its plan files: a step a line, and its cost as a comment."""
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    cost = execute(problem, plan).cost
    kind = "unit cost" if problem.metric is None else "general cost"
    comment = [] if cost is None else [f"; cost = {cost:g} ({kind})"]
    return "\n".join([*map(format_action, plan), *comment])


class _Pool:
    """Planner processes that wait for the next problem; threads borrow them."""

    def __init__(self, planner: Planner, timeout_s: float, memory_mib: int | None):
        self.planner = planner
        self.timeout_s = timeout_s
        self._memory_mib = memory_mib
        self.stopped = threading.Event()
        self._idle: list[PlannerProcess] = []
        self._busy: set[PlannerProcess] = set()
        self._lock = threading.Lock()

    def solve(self, task: PlanTask) -> tuple[PlannerAnswer, float]:
        """Have a process solve a problem; its plan is not checked yet."""
        process = self._borrow()
        try:
            return process.ask(task.domain_pddl, task.problem_pddl, self.timeout_s)
        finally:
            self._give_back(process)

    def _borrow(self) -> PlannerProcess:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        # Without the lock: a start takes seconds, and others may borrow meanwhile.
        if process is None:
            process = PlannerProcess(self.planner.engine, self.planner.arguments, self._memory_mib)
        with self._lock:
            self._busy.add(process)
            # Stopped while it started: `stop` did not see it, and its borrower waits for its
            # answer.
            if self.stopped.is_set():
                process.kill()
        return process

    def _give_back(self, process: PlannerProcess) -> None:
        # One that was killed, for its time or at the end, solves nothing more.
        with self._lock:
            self._busy.discard(process)
            if process.is_alive and not self.stopped.is_set():
                self._idle.append(process)
                return
        process.close()

    def stop(self) -> None:
        """End all processes, also those at work."""
        self.stopped.set()
        with self._lock:
            idle = self._idle
            self._idle = []
            # Killed alone: the threads that use them close them when they give them back.
            for process in self._busy:
                process.kill()
        for process in idle:
            process.close()


class _Job(NamedTuple):
    """What one call is about."""

    tasks: Sequence[PlanTask]
    version: str
    pool: _Pool
    cache: PlanCache
    use_val: bool

    def key(self, task: PlanTask) -> str:
        """Hash what the result depends on."""
        # PDDL has no NUL, so no two triples are joined to the same text.
        content = "\0".join((task.domain_pddl, task.problem_pddl, self.version))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def record(self, key: str, task: PlanTask) -> Record:
        """Return the result of a task: from the cache, or found now and recorded."""
        cached = self.cache.get(key, self.pool.timeout_s)
        # The file may be older than the validators are: its plans are checked again.
        if cached is not None and (
            cached.plan is None or self._objection(task, cached.plan) is None
        ):
            return cached
        record = self._solved(task)
        # Else its planner was killed, through no fault of the problem
        if not self.pool.stopped.is_set():
            self.cache.add(key, record, id=task.id, planner=self.version)
        return record

    def _solved(self, task: PlanTask) -> Record:
        # Read here first: a planner's words about a text that is no PDDL are of no use.
        reason = _unreadable(task)
        seconds = 0.0
        plan = None
        if reason is None:
            try:
                (plan, reason), seconds = self.pool.solve(task)
            except OSError as error:  # too many processes or files for a moment
                reason = f"crash: {error}"
        if plan is not None:
            reason = self._objection(task, plan)
        return Record(
            plan if reason is None else None, reason, round(seconds, 3), self.pool.timeout_s
        )

    def _objection(self, task: PlanTask, plan: tuple[Action, ...]) -> str | None:
        """Say what the validators have against a plan; None for nothing."""
        try:
            verdict = execute(
                parse_problem(task.problem_pddl, parse_domain(task.domain_pddl)), plan
            )
            if not verdict.valid:
                return _invalid("invalid plan", verdict)
            if self.use_val:
                verdict = run_val(task.domain_pddl, task.problem_pddl, plan)
                return None if verdict.valid else _invalid("invalid plan for VAL", verdict)
        except PddlError as error:
            return f"unsupported: {error}"
        except ValidatorError as error:
            return f"crash: {error}"
        return None

    def result(self, task: PlanTask, record: Record) -> PlanResult:
        """Turn a record into the answer to a task."""
        optimal = self.pool.planner.optimal and record.plan is not None
        return PlanResult(
            task.id, record.plan, self.version, record.seconds, optimal, record.reason
        )


def _unreadable(task: PlanTask) -> str | None:
    try:
        parse_problem(task.problem_pddl, parse_domain(task.domain_pddl))
    except UnsupportedPddlError as error:
        return f"unsupported: {error}"
    except PddlError as error:
        return f"unreadable: {error}"
    return None


def _invalid(kind: str, verdict: PlanVerdict) -> str:
    if verdict.error in (PlanError.VALIDATOR_CRASH, PlanError.VALIDATOR_TIMEOUT):
        return f"crash: {verdict.error}"
    return f"{kind}{verdict.write_fault()}"


def _results(job: _Job, workers: int, progress: Progress | None) -> Iterator[PlanResult]:
    """Yield results in the order of the tasks.

    Threads take distinct tasks from one queue and put records into another, in any order; this generator holds back
    those that are not next. All is ended in its `finally`, which also runs when the caller gives up: an abandoned
    iterator, Ctrl-C, or an error in a thread, which is passed through the queue and raised here.
    """
    keys = list(map(job.key, job.tasks))
    n_tasks_of_key = Counter(keys)
    distinct = dict(zip(keys, job.tasks, strict=True))
    finished: queue.SimpleQueue[tuple[str, Record | Exception]] = queue.SimpleQueue()
    threads = _start_threads(job, distinct, min(workers, len(distinct)), finished)
    records: dict[str, Record] = {}
    n_finished = 0
    try:
        for key, task in zip(keys, job.tasks, strict=True):
            while key not in records:
                finished_key, record = finished.get()
                if isinstance(record, Exception):
                    raise record
                records[finished_key] = record
                n_finished += n_tasks_of_key[finished_key]
                if progress is not None:
                    progress(n_finished, len(keys))
            yield job.result(task, records[key])
    finally:
        job.pool.stop()
        # Only then is nobody left who may write into the cache.
        for thread in threads:
            thread.join()
        job.cache.close()


def _start_threads(
    job: _Job,
    distinct: dict[str, PlanTask],
    count: int,
    finished: "queue.SimpleQueue[tuple[str, Record | Exception]]",
) -> list[threading.Thread]:
    """Start threads, which are enough: the work is in the planners' processes; Python's end does not wait for them."""
    # Filled before any thread starts, so that an empty queue is the end.
    waiting: queue.SimpleQueue[tuple[str, PlanTask]] = queue.SimpleQueue()
    for item in distinct.items():
        waiting.put(item)

    def work() -> None:
        while not job.pool.stopped.is_set():
            try:
                key, task = waiting.get_nowait()
            except queue.Empty:
                return
            # An error of a thread would be lost, and the caller wait for ever.
            try:
                finished.put((key, job.record(key, task)))
            except Exception as error:
                finished.put((key, error))

    threads = [
        threading.Thread(target=work, name=f"planner-{number}", daemon=True)
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    return threads
