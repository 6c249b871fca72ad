"""Reference plans for many problems: planners in several processes, with a time limit each, and a file of results.

What a planner finds is checked before it counts; what goes wrong is a result with a reason, never an exception.
"""

import hashlib
import importlib.metadata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jaxppo.errors import ConfigError, PddlError
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action, format_action
from jaxppo.planning.solve import search
from jaxppo.planning.solve.cache import PlanCache, Record
from jaxppo.planning.solve.engines import Builtin, Engine, PlannerAnswer
from jaxppo.planning.solve.fast_downward import FastDownward
from jaxppo.planning.solve.process import PlannerProcess
from jaxppo.planning.subprocesses import wait_for_any
from jaxppo.planning.validate.val import default_workers
from jaxppo.planning.validate.validator import execute


class Planner(NamedTuple):
    """A way to get plans.

    Attributes:
        engine: makes the engine in its process, told whether plans must be optimal.
        optimal: whether its plans are proven shortest (cheapest, where the problem has a metric).
        package: the wheel it comes from, whose version is recorded; None for what this package has itself.
    """

    engine: Callable[[bool], Engine]
    optimal: bool = False
    package: str | None = None


PLANNERS = {
    "builtin": Planner(Builtin),
    "builtin-optimal": Planner(Builtin, optimal=True),
    "fast-downward": Planner(FastDownward, package="up-fast-downward"),
    "fast-downward-optimal": Planner(FastDownward, optimal=True, package="up-fast-downward"),
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
        fix = f"pip install 'jaxppo[planners-gpl]' (brings {planner.package}, under GPL-3.0)"
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

    Raises:
        ConfigError: a value is out of range, or the planner is not installed.
    """
    version = planner_version(planner)
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s: expected a positive number, got {timeout_s!r}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: expected 1 or more, got {workers!r}")
    # Settings are checked here, at the call, and not when the first result is asked for.
    job = _Job(PLANNERS[planner], version, timeout_s, PlanCache(cache))
    return _results(job, list(tasks), workers or default_workers())


def write_plan(domain_pddl: str, problem_pddl: str, plan: Sequence[Action]) -> str:
    """Write a valid plan as Fast Downward writes its plan files: a step a line, and its cost as a comment."""
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    cost = execute(problem, plan).cost
    kind = "unit cost" if problem.metric is None else "general cost"
    comment = [] if cost is None else [f"; cost = {cost:g} ({kind})"]
    return "\n".join([*map(format_action, plan), *comment])


class _Job(NamedTuple):
    """What one call is about."""

    planner: Planner
    version: str
    timeout_s: float
    cache: PlanCache

    def key(self, task: PlanTask) -> str:
        """Hash what the result depends on."""
        # PDDL has no NUL, so no two triples are joined to the same text.
        content = "\0".join((task.domain_pddl, task.problem_pddl, self.version))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def known_record(self, key: str, task: PlanTask) -> Record | None:
        """Return the result of a task that no planner has to be asked about."""
        cached = self.cache.get(key, self.timeout_s)
        # The file may be older than the validator is: its plans are checked again.
        if cached is not None and (cached.plan is None or _objection(task, cached.plan) is None):
            return cached
        # Read here first: a planner's words about a text that is no PDDL are of no use.
        reason = _objection(task, None)
        return None if reason is None else Record(None, reason, 0.0, self.timeout_s)

    def record(self, key: str, task: PlanTask, answer: PlannerAnswer, seconds: float) -> Record:
        """Check what a planner has found, and put it down."""
        plan, reason = answer
        if plan is not None:
            reason = _objection(task, plan)
        record = Record(plan if reason is None else None, reason, seconds, self.timeout_s)
        self.cache.add(key, record, id=task.id, planner=self.version)
        return record

    def result(self, task: PlanTask, record: Record) -> PlanResult:
        """Turn a record into the answer to a task."""
        optimal = self.planner.optimal and record.plan is not None
        return PlanResult(
            task.id, record.plan, self.version, record.seconds, optimal, record.reason
        )


def _objection(task: PlanTask, plan: tuple[Action, ...] | None) -> str | None:
    """Say what is wrong with a problem, or else with a plan for it; None for nothing."""
    try:
        problem = parse_problem(task.problem_pddl, parse_domain(task.domain_pddl))
        verdict = None if plan is None else execute(problem, plan)
    except UnsupportedPddlError as error:
        return f"unsupported: {error}"
    except PddlError as error:
        return f"unreadable: {error}"
    if verdict is None or verdict.valid:
        return None
    return f"invalid plan{verdict.write_fault()}"


def _results(job: _Job, tasks: Sequence[PlanTask], workers: int) -> Iterator[PlanResult]:
    """Yield results in the order of the tasks.

    Planners work at the same time, each on one of the distinct tasks; what they find is kept until it is next. All is
    ended in the `finally`, which also runs when the caller gives up: an abandoned iterator, or Ctrl-C.
    """
    keys = list(map(job.key, tasks))
    waiting = deque(dict(zip(keys, tasks, strict=True)).items())
    records: dict[str, Record] = {}
    idle: list[PlannerProcess] = []
    busy: dict[PlannerProcess, tuple[str, PlanTask]] = {}

    def start_next() -> None:
        """Take the next task, which a planner is asked about unless its result is known."""
        key, task = waiting.popleft()
        record = job.known_record(key, task)
        if record is not None:
            records[key] = record
            return
        if not idle:
            idle.append(PlannerProcess(job.planner.engine, job.planner.optimal))
        process = idle.pop()
        busy[process] = (key, task)
        process.ask(task.domain_pddl, task.problem_pddl, job.timeout_s)

    def receive(process: PlannerProcess) -> None:
        reply = process.receive()
        if reply is not None:
            key, task = busy.pop(process)
            records[key] = job.record(key, task, *reply)
            if process.is_alive:
                idle.append(process)

    try:
        for key, task in zip(keys, tasks, strict=True):
            while key not in records:
                if waiting and len(busy) < workers:
                    start_next()
                else:
                    for process in wait_for_any(list(busy)):
                        receive(process)
            yield job.result(task, records[key])
    finally:
        for process in (*idle, *busy):
            process.close()
