"""Reward functions in processes of their own, which may hang, crash and start others."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxppo.config import RewardConfig
from jaxppo.errors import ConfigError
from jaxppo.reward_functions.isolated import Workers, import_function
from jaxppo.reward_functions.registry import Context, make_rewards
from jaxppo.rewards import Completions, Failed
from tests.processes import is_running, wait_until

needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")

FUNCTIONS = """
import os, subprocess, sys, time

calls = []

def moody(completions, log_metric, log_extra, factor=(1,)):
    (text,) = completions
    calls.append(text)
    if text == "hang":
        time.sleep(600)
    if text == "crash":
        os._exit(7)
    if text == "raise":
        raise ValueError("a bad\\nday")
    if text == "nan":
        return [float("nan")]
    if text == "nothing":
        return [None]
    if text == "jax":
        return [float("jax" in sys.modules)]
    if text == "calls":
        return [float(len(calls))]
    if text == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open("child.pid", "w").write(str(child.pid))
        time.sleep(600)
    log_metric("reward/length", len(text))
    log_extra("who", [os.getpid()])
    print("the standard output is its own affair")
    return [float(len(text)) * factor[0]]

number = 3
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
def workers(functions):
    made = []

    def make(count=2, timeout_s=60.0, function="moody"):
        made.append(Workers(f"{functions}:{function}", count, timeout_s))
        return made[-1]

    yield make
    for one in made:
        one.close()


def completions(*texts, **columns):
    return Completions([""] * len(texts), list(texts), [[]] * len(texts), columns)


@needs_proc
def test_workers_score_in_order_and_are_kept_until_they_end(workers):
    score = workers()
    texts = ["x" * n for n in range(1, 9)]
    scores = score(completions(*texts, factor=list(range(8))))
    assert scores.values == [(n + 1) * n for n in range(8)]
    assert scores.metrics == {"reward/length": 4.5}
    first = set(scores.extras["who"])
    assert os.getpid() not in first and 1 <= len(first) <= 2
    scores = score(completions("nothing", "jax", "a"))
    assert scores.values == [None, 0.0, 1.0]  # and none has imported JAX
    assert scores.extras["who"][-1] in first
    # One that ends while it is idle is replaced; all end with `close`.
    os.kill(scores.extras["who"][-1], signal.SIGKILL)
    assert wait_until(lambda: not is_running(scores.extras["who"][-1]))
    again = score(completions("ab", "c", "de"))
    assert again.values == [2.0, 1.0, 2.0] and scores.extras["who"][-1] not in again.extras["who"]
    assert all(map(is_running, again.extras["who"]))
    score.close()
    assert not any(map(is_running, [*first, *again.extras["who"]]))


def test_a_completion_that_fails_costs_nothing_but_itself_and_a_process_keeps_its_state(workers):
    score = workers(timeout_s=1.5)
    scores = score(completions("a", "hang", "bb", "crash", "raise", "nan", "crash", "ccc"))
    late, crashed = Failed("timeouts", "no answer within 1.5 s"), Failed("errors", "its process ended with 7")
    raised, nan = Failed("errors", "ValueError: a bad day"), Failed("errors", "nan")
    assert scores.values == [1.0, late, 2.0, crashed, raised, nan, crashed, 3.0]
    assert workers(count=1)(completions("a", "b", "calls")).values == [1.0, 1.0, 3.0]


@needs_proc
def test_what_a_function_started_is_killed_with_it(workers):
    score = workers(timeout_s=1.5)
    assert score(completions("child")).values[0].kind == "timeouts"
    child = int(Path("child.pid").read_text())
    assert wait_until(lambda: not is_running(child))


def test_a_program_ends_although_its_workers_wait(functions):
    program = f"""
from jaxppo.reward_functions.isolated import Workers
from jaxppo.rewards import Completions
print(Workers("{functions}:moody", 2, 60.0)(Completions([""], ["calls"], [[]], {{}})).values)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1.0]\n", "")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("nothing", "nothing"),
        ("{}:", "{}:"),
        ("{}:missing", "AttributeError"),
        ("{}:number", "{}:number.* int"),
        ("./{}.py:moody", "not a path: {}:moody"),
        ("rewards/{}.py:moody", "not a path: rewards.{}:moody"),
        ("/far/away/{}.py:moody", "not a path: {}:moody with PYTHONPATH=/far/away"),
        ("../away/{}.py:moody", "not a path: {}:moody with PYTHONPATH=/.*/away"),
        ("leaving_{}:f", "SystemExit: 2"),
        ("failing_{}:f", "ZeroDivisionError"),
    ],
)
def test_import_function_names_what_is_wrong(functions, path, named, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"failing_{functions}.py").write_text("1 / 0\n")
    (tmp_path / f"leaving_{functions}.py").write_text("import sys\nsys.exit(2)\n")
    with pytest.raises(ConfigError, match=f"^reward_funcs: .*{named.format(functions)}"):
        import_function(path.format(functions))


def test_workers_say_when_their_process_cannot_import_the_function(functions, workers):
    with pytest.raises(ConfigError, match=f"reward_funcs: .*{functions}:missing"):
        workers(function="missing")(completions("a"))
    Path(f"{functions}.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(ConfigError, match=rf"reward_funcs: .*{functions}:moody.*ended"):
        workers()(completions("a"))


def test_make_rewards_calls_functions_without_a_time_limit_here(functions):
    rewards = make_rewards(RewardConfig(reward_funcs=(f"{functions}:moody",)), Context(load_model=None))
    assert rewards(completions("a")).extras["who"] == [os.getpid()]
