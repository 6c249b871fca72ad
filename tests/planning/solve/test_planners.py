"""Reference plans from planners in processes: order, limits, crashes, checks, and going on after a kill."""

import importlib
import json
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from jaxppo.errors import ConfigError
from jaxppo.planning import execute, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.solve.cache import PlanCache, Record
from jaxppo.planning.solve.planners import PLANNERS, Planner, PlanTask, find_plans, planner_version
from jaxppo.planning.solve.search import solve
from tests.processes import is_running, wait_until

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups")

# A planner that does what the problem's name says, and notes in a file whom it was asked about.
FAKE = """
import os, subprocess, sys, time
from jaxppo.planning import parse_domain, parse_problem
from jaxppo.planning.solve.engines import PlannerAnswer
from jaxppo.planning.solve.search import solve

class Fake:
    def __init__(self, optimal):
        self.folder = os.path.dirname(__file__)

    def note(self, file, what):
        with open(os.path.join(self.folder, file), "a") as out:
            out.write(f"{what}\\n")

    def __call__(self, domain, problem):
        parsed = parse_problem(problem, parse_domain(domain))
        self.note("calls", parsed.name)
        kind = parsed.name.rstrip("0123456789")
        if kind == "slow":
            time.sleep(0.15)
        if kind == "sleepy":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            self.note("pids", f"{os.getpid()}\\n{child.pid}")
            time.sleep(600)
        if kind == "dead":
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        if kind == "aborted":
            os.abort()
        if kind == "raising":
            raise ValueError("bad planner")
        if kind == "noisy":
            print("CREDITS " * 100_000, flush=True)
            os.write(1, b"native output")
            assert sys.stdin.read() == ""
        if kind == "hungry":
            bytearray(5 << 30)
        if kind == "wrong":
            return PlannerAnswer((("pick-up", "nobody"),))
        return PlannerAnswer(solve(parsed)[:-1] if kind == "partial" else solve(parsed))

class Broken:
    def __init__(self, optimal):
        raise OSError("no licence file")
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """The planner above under the name `fake`; returns its folder, with `calls` and `pids`."""
    (tmp_path / "fake_engine.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fake_engine", raising=False)
    monkeypatch.setitem(PLANNERS, "fake", Planner(importlib.import_module("fake_engine").Fake))
    return tmp_path


def task(name: str, n_blocks: int = 3, seed: int = 0) -> PlanTask:
    return PlanTask(
        f"id-{name}", BLOCKSWORLD.pddl, BLOCKSWORLD.generate_problem(n_blocks, random.Random(f"{name} {seed}"), name)
    )


def calls(folder: Path) -> Counter:
    return Counter((folder / "calls").read_text().split())


def all_gone(folder: Path) -> bool:
    """Whether the processes noted there, which must be some, end."""
    pids = list(map(int, (folder / "pids").read_text().split()))
    assert pids
    return wait_until(lambda: not any(map(is_running, pids)))


def has_pids(folder: Path, count: int) -> bool:
    return wait_until(lambda: (folder / "pids").exists() and (folder / "pids").read_text().count("\n") == count)


def comparable(results):
    return [(result.id, result.plan, result.planner, result.optimal, result.reason) for result in results]


UNSOLVABLE = PlanTask(
    "unsolvable",
    BLOCKSWORLD.pddl,
    """(define (problem p) (:domain blocksworld) (:objects a b)
      (:init (ontable a) (ontable b) (clear a) (clear b) (handempty)) (:goal (and (on a b) (on b a))))""",
)


@pytest.mark.parametrize("planner", ["builtin", "builtin-optimal"])
def test_find_plans_solves_in_order(planner):
    disjunctive = """(define (domain d) (:requirements :adl) (:predicates (p) (q))
      (:action a :parameters () :precondition (or (p) (q)) :effect (and (q) (not (p)))))"""
    beyond = PlanTask("beyond", disjunctive, "(define (problem p) (:domain d) (:init (p)) (:goal (q)))")
    tasks = [*(task(f"p{number}", 2 + number) for number in range(4)), UNSOLVABLE, beyond]
    results = list(find_plans(tasks, planner=planner, workers=2))
    assert [result.id for result in results] == [one.id for one in tasks]
    for one, result in zip(tasks[:4], results, strict=False):
        problem = parse_problem(one.problem_pddl, parse_domain(one.domain_pddl))
        assert result.plan == solve(problem, optimal=result.optimal) and execute(problem, result.plan).valid
        assert result.reason is None and result.optimal is (planner == "builtin-optimal")
    assert {result.planner for result in results} == {planner_version(planner)}
    assert results[4].reason == "unsolvable" and results[5].reason.startswith("unsupported: ")


def test_find_plans_failures_are_results_with_reasons(fake):
    names = ["p", "dead", "aborted", "raising", "noisy", "hungry", "wrong", "partial", "q"]
    unreadable = PlanTask("unreadable", BLOCKSWORLD.pddl, "(define (problem p) (:domain d)")
    durative = BLOCKSWORLD.pddl.replace("(:action pick-up", "(:durative-action pick-up", 1)
    tasks = [*map(task, names), unreadable, PlanTask("beyond", durative, "(define)")]
    found = find_plans(tasks, planner="fake", workers=2)
    results = dict(zip([*names, "unreadable", "beyond"], found, strict=True))
    assert all(results[name].plan is not None and results[name].reason is None for name in ("p", "noisy", "q"))
    reasons = {name: result.reason for name, result in results.items() if result.plan is None}
    assert len(reasons) >= len(tasks) - 4
    assert reasons["dead"].startswith("crash: ") and reasons["dead"].endswith("status 3 (out of luck)")
    assert reasons["aborted"].startswith("crash: ") and "signal 6" in reasons["aborted"]
    assert reasons["raising"] == "crash: ValueError: bad planner"
    if sys.platform == "linux":
        assert reasons["hungry"] == "memory"
    assert reasons["wrong"] == "invalid plan at step 1: unknown_object"
    assert reasons["partial"].startswith("invalid plan: goal_not_reached (on ")
    assert reasons["unreadable"].startswith("unreadable: <problem>:1:")
    assert reasons["beyond"].startswith("unsupported: ")
    assert calls(fake) == Counter(names)


@needs_posix
def test_find_plans_kills_what_takes_too_long_with_its_children(fake):
    results = list(find_plans([task("sleepy"), task("p"), task("q")], planner="fake", workers=1, timeout_s=1.0))
    assert [result.reason for result in results] == ["timeout", None, None]
    assert results[0].seconds >= 1.0 and has_pids(fake, 2) and all_gone(fake)


def test_find_plans_equal_tasks_are_solved_once(fake):
    tasks = [task("p")._replace(id=name) for name in ("a", "b", "c")]
    results = list(find_plans(tasks, planner="fake"))
    assert [result.id for result in results] == ["a", "b", "c"]
    assert len({result.plan for result in results}) == 1
    assert calls(fake) == Counter({"p": 1})
    assert list(find_plans([], planner="fake")) == []


def test_find_plans_cache_saves_work_and_keeps_planners_and_contents_apart(fake, tmp_path, monkeypatch):
    cache = tmp_path / "deep" / "plans.jsonl"
    tasks = [task("p"), task("partial"), task("raising")]
    first = list(find_plans(tasks, planner="fake", cache=cache))
    again = list(find_plans([*tasks, task("q"), task("p", seed=1)], planner="fake", cache=cache))
    assert again[:2] == first[:2] and comparable(again[:3]) == comparable(first)
    # A crash may have had a passing reason; another problem of the same name is another one.
    assert calls(fake) == Counter(p=2, partial=1, raising=2, q=1)
    lines = [json.loads(line) for line in cache.read_text().splitlines()]
    assert Counter(line["id"] for line in lines) == {"id-p": 2, "id-partial": 1, "id-raising": 2, "id-q": 1}
    assert {line["planner"] for line in lines} == {"fake 2"}
    monkeypatch.setattr("jaxppo.planning.solve.search.VERSION", "other")
    list(find_plans([task("p")], planner="fake", cache=cache))
    assert calls(fake)["p"] == 3


def test_find_plans_cache_asks_again_where_more_time_is_given(fake, tmp_path):
    cache = tmp_path / "plans.jsonl"
    for timeout_s in (0.05, 0.04, 5.0, 0.04):
        (result,) = find_plans([task("slow")], planner="fake", cache=cache, timeout_s=timeout_s)
        assert (result.reason is None) is (cache.read_text().count('"reason": null') == 1)
    assert result.plan is not None and calls(fake) == Counter(slow=2)


def test_find_plans_cache_with_damaged_lines(fake, tmp_path):
    cache = tmp_path / "plans.jsonl"
    tasks = [task(f"p{number}") for number in range(6)]
    before = list(find_plans(tasks, planner="fake", cache=cache, workers=1))
    lines = cache.read_text().splitlines()
    stolen = {**json.loads(lines[4]), "plan": ["(pick-up a)"]}  # a plan that is not valid is found again
    damaged = ["{", "[]", '{"key": 3}', "\xff\xfe"]
    cache.write_text("\n".join([lines[0], *damaged, lines[2], json.dumps(stolen), lines[5][:40], ""]))
    after = list(find_plans(tasks, planner="fake", cache=cache, workers=1))
    assert comparable(after) == comparable(before)
    assert calls(fake) == Counter(p0=1, p1=2, p2=1, p3=2, p4=2, p5=2)
    assert comparable(find_plans(tasks, planner="fake", cache=cache)) == comparable(before)
    assert sum(calls(fake).values()) == 10


def test_a_record_after_half_a_line_is_not_lost_with_it(tmp_path):
    """A process that was killed while it wrote leaves no end of the line."""
    path, record = tmp_path / "plans.jsonl", Record(None, "unsolvable", 0.0, 1.0)
    path.write_text('{"key": "ki')
    cache = PlanCache(path)
    cache.add("later", record)
    assert PlanCache(path).get("later", 1.0) == record


KILLED = """
import sys
from pathlib import Path
from fake_engine import Fake
from jaxppo.planning.solve.planners import PLANNERS, Planner, PlanTask, find_plans
folder = Path(sys.argv[1])
PLANNERS["fake"] = Planner(Fake)
texts = [text.split("\\0") for text in (folder / "tasks").read_text().split("\\1")]
for result in find_plans([PlanTask(*text) for text in texts], planner="fake", workers=2, cache=folder / "plans.jsonl"):
    print(result.id, flush=True)
"""


@needs_posix
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_find_plans_goes_on_after_a_kill(fake, kind):
    names = ["slow0", "slow1", "slow2", "sleepy0", "sleepy1", "slow3"]
    tasks = list(map(task, names))
    (fake / "tasks").write_text("\1".join("\0".join(one) for one in tasks))
    (fake / "killed.py").write_text(KILLED)
    cache = fake / "plans.jsonl"
    (fake / "tmp").mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(fake / "tmp")}
    process = subprocess.Popen(
        [sys.executable, fake / "killed.py", fake], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert has_pids(fake, 4)
    process.send_signal(kind)
    process.communicate(timeout=60)
    assert all_gone(fake)  # the planner's processes, too
    assert not list((fake / "tmp").iterdir())
    known = [json.loads(line)["id"] for line in cache.read_text().splitlines()]
    assert sorted(known) == ["id-slow0", "id-slow1", "id-slow2"]  # what was killed has no result
    results = list(find_plans(tasks, planner="fake", workers=2, cache=cache, timeout_s=0.7))
    assert calls(fake) == Counter(dict.fromkeys(names, 1)) + Counter(sleepy0=1, sleepy1=1)
    assert [result.reason for result in results] == [None] * 3 + ["timeout"] * 2 + [None]
    for one, result in zip(tasks, results, strict=True):
        assert result.reason or result.plan == solve(parse_problem(one.problem_pddl, parse_domain(BLOCKSWORLD.pddl)))


@needs_posix
def test_find_plans_abandoned_leaves_no_process(fake):
    results = find_plans([task("p"), task("sleepy")], planner="fake", workers=2)
    assert next(results).plan is not None
    assert has_pids(fake, 2)
    results.close()
    assert all_gone(fake)


def test_find_plans_engine_that_cannot_be_made_or_is_not_installed(monkeypatch, fake):
    monkeypatch.setitem(PLANNERS, "fake", Planner(importlib.import_module("fake_engine").Broken))
    with pytest.raises(ConfigError, match=r"planner.*no licence file"):
        list(find_plans([task("p")], planner="fake"))
    monkeypatch.setitem(PLANNERS, "fast", PLANNERS["fast-downward"]._replace(package="up-not-installed"))
    with pytest.raises(ConfigError, match=r"planner.*'fast'.*pip install 'jaxppo\[planners-gpl\]'.*GPL-3.0"):
        find_plans([task("p")], planner="fast")


WRONG = {"planner": "lama", "timeout_s": math.nan, "workers": 0}


@pytest.mark.parametrize("name", WRONG)
def test_find_plans_refuses_at_once(name):
    with pytest.raises(ConfigError, match=name):
        find_plans([task("p")], **{name: WRONG[name]})


@pytest.mark.parametrize("name", [name for name, planner in PLANNERS.items() if planner.package is not None])
def test_find_plans_with_the_planners_that_are_installed(name, capfd):
    try:
        version = planner_version(name)
    except ConfigError as error:
        pytest.skip(str(error))
    tasks = [task("p", 3), task("q", 4), UNSOLVABLE]
    results = list(find_plans(tasks, planner=name, workers=2, timeout_s=10.0))
    for one, result in zip(tasks[:2], results, strict=False):
        problem = parse_problem(one.problem_pddl, parse_domain(one.domain_pddl))
        assert result.plan is not None and execute(problem, result.plan).valid, result.reason
        assert result.optimal is name.endswith("optimal") and result.planner == version
        assert not result.optimal or len(result.plan) == len(solve(problem, optimal=True) or ())
    assert results[2].plan is None and results[2].reason.startswith(("unsolvable", "no plan", "timeout"))
    assert capfd.readouterr() == ("", "")
