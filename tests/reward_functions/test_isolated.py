"""Reward functions in processes of their own, which may hang, crash and start others."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxppo.config import RewardConfig
from jaxppo.errors import ConfigError
from jaxppo.reward_functions.isolated import Workers, import_function
from jaxppo.reward_functions.registry import make_rewards
from jaxppo.rewards import Completions, Failed, Part

FUNCTIONS = """
import os, subprocess, sys, time

def length(completions, factor):
    return [float(len(text) * n) for text, n in zip(completions, factor)]

def moody(completions, log_metric, log_extra):
    (text,) = completions
    if text == "hang":
        time.sleep(600)
    if text == "spin":
        while True:
            pass
    if text == "crash":
        os._exit(7)
    if text == "raise":
        raise ValueError("a bad\\nday")
    if text == "nan":
        return [float("nan")]
    if text == "nothing":
        return [None]
    if text == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open("child.pid", "w").write(str(child.pid))
        time.sleep(600)
    log_metric("reward/length", len(text))
    log_extra("who", [os.getpid()])
    print("the standard output is its own affair")
    return [float(len(text))]

class Judge:
    def __init__(self):
        self.calls = 0
    def __call__(self, completions):
        self.calls += 1
        return [float(self.calls)]

judge = Judge()
number = 3
def by_words(completions):
    return [[(0, len(word), 0.5) for word in text.split()] for text in completions]
has_jax = lambda completions: [float("jax" in sys.modules)]
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """A module of reward functions in the working directory, with a name of its own."""
    name = f"functions_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.fixture
def workers():
    made = []

    def make(path, count=2, timeout_s=30.0):
        made.append(Workers(path, count, timeout_s))
        return made[-1]

    yield make
    for one in made:
        one.close()


def completions(*texts, **columns):
    return Completions([""] * len(texts), list(texts), [[]] * len(texts), columns)


def is_running(pid):
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_workers_score_in_order_with_the_columns_of_each_row(functions, workers):
    score = workers(f"{functions}:length", count=3)
    texts = ["x" * n for n in range(12)]
    assert score(completions(*texts, factor=list(range(12)))).values == [n * n for n in range(12)]


def test_workers_collect_reports_and_use_several_processes(functions, workers):
    score = workers(f"{functions}:moody")
    scores = score(completions("aa", "bbbb", "cc", "dddd"))
    assert scores.values == [2.0, 4.0, 2.0, 4.0] and scores.metrics == {"reward/length": 3.0}
    first = set(scores.extras["who"])
    assert os.getpid() not in first and 1 <= len(first) <= 2
    assert set(score(completions("a", "b", "c")).extras["who"]) <= first  # they are kept


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("hang", "timeouts", "no answer within 1 s"),
        ("spin", "timeouts", "no answer within 1 s"),
        ("crash", "errors", "its process ended with 7"),
        ("raise", "errors", "ValueError: a bad day"),
        ("nan", "errors", "nan"),
    ],
)
def test_a_completion_that_fails_costs_nothing_but_itself(functions, workers, text, kind, reason):
    score = workers(f"{functions}:moody", timeout_s=1.0)
    score(completions("warm", "up"))
    began = time.monotonic()
    scores = score(completions("a", text, "bb", text, "ccc"))
    assert scores.values == [1.0, Failed(kind, reason), 2.0, Failed(kind, reason), 3.0]
    assert time.monotonic() - began < 60
    assert score(completions("later")).values == [5.0]


def test_none_comes_through(functions, workers):
    assert workers(f"{functions}:moody")(completions("nothing", "a")).values == [None, 1.0]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
def test_parts_come_through(functions, workers):
    scores = workers(f"{functions}:by_words")(completions("a bc", "", "d"))
    assert scores.values == [1.0, 0.0, 0.5]
    assert scores.parts == [(Part(0, 1, 0.5), Part(0, 2, 0.5)), (), (Part(0, 1, 0.5),)]


def test_what_a_function_started_is_killed_with_it(functions, workers):
    score = workers(f"{functions}:moody", timeout_s=1.5)
    assert score(completions("child")).values[0].kind == "timeouts"
    child = int(Path("child.pid").read_text())
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
def test_close_ends_the_processes(functions, workers):
    score = workers(f"{functions}:moody")
    (pid,) = score(completions("a")).extras["who"]
    assert is_running(pid)
    score.close()
    assert not is_running(pid)


def test_a_process_that_ends_while_it_is_idle_is_replaced(functions, workers):
    score = workers(f"{functions}:moody")
    (pid,) = score(completions("a")).extras["who"]
    os.kill(pid, signal.SIGKILL)
    while is_running(pid):
        time.sleep(0.01)
    result = score(completions("ab", "c"))
    assert result.values == [2.0, 1.0] and pid not in result.extras["who"]


def test_a_process_keeps_the_state_of_its_function_and_has_no_jax(functions, workers):
    score = workers(f"{functions}:judge", count=1)
    assert score(completions("a", "b")).values == [1.0, 2.0]
    assert workers(f"{functions}:has_jax", count=1)(completions("a")).values == [0.0]


def test_a_program_ends_although_its_workers_wait(functions):
    program = f"""
from jaxppo.reward_functions.isolated import Workers
from jaxppo.rewards import Completions
print(Workers("{functions}:judge", 2, 60.0)(Completions([""], ["a"], [[]], {{}})).values)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1.0]\n", "")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("nothing", "expected module:function, got 'nothing'"),
        ("{}:", "expected module:function"),
        ("{}:missing", "AttributeError"),
        ("{}:number", "expected a function at .*, got int"),
        ("no_such_module:f", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("./{}.py:moody", "; a module, not a path: {}:moody"),
        ("rewards/{}.py:moody", "; a module, not a path: rewards.{}:moody"),
        ("broken_{}:f", "got SyntaxError: "),
        ("failing_{}:f", "got ZeroDivisionError: "),
    ],
)
def test_import_function_names_what_is_wrong(functions, path, expected, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"broken_{functions}.py").write_text("def f(completions:\n")
    (tmp_path / f"failing_{functions}.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=f"reward_funcs: .*{expected.format(functions)}"):
        import_function(path.format(functions))


def test_workers_say_when_their_process_cannot_import_the_function(functions, workers):
    with pytest.raises(ConfigError, match=f"reward_funcs: expected a process that imports {functions}:missing"):
        workers(f"{functions}:missing")(completions("a"))


def test_workers_say_when_their_process_ends_while_it_imports_the_function(workers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ends_at_once.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(ConfigError, match="expected a process that imports ends_at_once:f, got one that ended"):
        workers("ends_at_once:f")(completions("a"))


def test_make_rewards_puts_functions_with_a_time_limit_into_workers(functions):
    config = RewardConfig(reward_funcs=(f"{functions}:moody",), reward_timeout_s=1.0, on_error=-1.0, on_timeout="skip")
    rewards = make_rewards(config)
    try:
        scores = rewards(completions("a", "hang", "crash", "nothing"))
    finally:
        rewards.close()
    assert scores.values == [1.0, None, -1.0, None]
    counts = {name: value for name, value in scores.metrics.items() if name.startswith("reward/") and value}
    assert counts == {"reward/length": 1.0, "reward/errors": 1, "reward/timeouts": 1, "reward/not_scorable": 2}
    assert scores.extras["moody_failed"] == [None, "no answer within 1 s", "its process ended with 7", None]


def test_make_rewards_calls_functions_without_a_time_limit_here(functions):
    rewards = make_rewards(RewardConfig(reward_funcs=(f"{functions}:moody",)))
    assert rewards(completions("a")).extras["who"] == [os.getpid()]


def test_make_rewards_keeps_results_of_own_functions_only_where_that_is_asked_for(functions):
    for size, hits in ((None, 0), (10, 1)):
        rewards = make_rewards(RewardConfig(reward_funcs=(f"{functions}:length",), reward_cache_size=size))
        scores = rewards(completions("aa", "aa", factor=[1, 1]))
        assert scores.values == [2.0, 2.0]
        assert scores.metrics["cache/reward_hits"] == hits
