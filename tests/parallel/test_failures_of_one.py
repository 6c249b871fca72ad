"""What goes wrong in one of two processes: both end within a minute, and each says why."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.commands import free_port, outputs_of, started
from tests.one_layer import ONE_LAYER
from tests.parallel.test_processes import commands, steps_of

pytestmark = pytest.mark.full

LIMIT_S = 60.0

SECOND = """
import os, runpy, sys
os.environ["SECOND"] = "yes"
{code}
sys.argv[0] = "{command}"
runpy.run_module("{command}", run_name="__main__", alter_sys=True)
"""
REWARD = """
import os, time

def score(completions, **_):
    if "SECOND" in os.environ:
        open({mark!r}, "a").close()
        {what}
    return [1.0] * len(completions)
"""
FAILURES = {
    "fails": ("raise ValueError('no luck')", (), "reward score: .*ValueError: no luck"),
    "is too large": ("return [3e38, -3e38] * (len(completions) // 2)", (), "max_bad_updates: stopped after 3 updates"),
    "hangs": (
        "time.sleep(1000)",
        ("--reward_timeout_s", "2", "--on_timeout", "stop"),
        "reward score: expected a number for row 0, got no answer within 2 s",
    ),
    "dies": (
        "os._exit(9)",
        ("--reward_timeout_s", "30"),
        "reward score: expected a number for row 0, got its process ended with 9",
    ),
    "takes its process along": ("os._exit(9)", (), None),
}


def second(first_and_second: list[list[object]], code: str = "") -> list[list[object]]:
    """The two commands, of which the second carries out some code before."""
    first, (_, command, *flags) = first_and_second
    return [first, ["-c", SECOND.format(code=code, command=command), *flags]]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a module `own` whose reward does something in the second process; returns a file touched just before."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    def write(what: str) -> Path:
        mark = tmp_path / "mark"
        (tmp_path / "own.py").write_text(REWARD.format(mark=str(mark), what=what))
        return mark

    return write


@pytest.mark.parametrize("case", FAILURES)
def test_a_reward_of_one_process_that(case, tmp_path, own):
    what, more, reason = FAILURES[case]
    mark = own(what)
    flags = ("--reward_funcs", "own:score", "--eval_splits", "test", "--headline_split", "test", *more)
    with started(second(commands(tmp_path / "run", *flags)), num_devices=1) as both:
        outputs = outputs_of(both, timeout_s=400)
    assert time.time() - mark.stat().st_mtime < LIMIT_S, outputs
    if reason is None:
        assert [process.returncode for process in both] == [1, 9], outputs
        assert "error: process 0 of 2 stops: this one failed, or another one is gone" in outputs[0]
        return
    assert [process.returncode for process in both] == [2, 2], "\n".join(outputs)[-4000:]
    assert all(re.search(f"^error: (process 1 of 2 failed: )?{reason}", said, re.MULTILINE) for said in outputs)
    assert not any("Traceback" in said for said in outputs)


def write_rows(folder: Path, **splits: list[dict]) -> None:
    folder.mkdir(parents=True)
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(number: int) -> list[dict]:
    other = "completion" if number else "chosen"
    row = {"completion": "clear a", "chosen": "clear b", "rejected": "clear c"}
    return [{"prompt": f"on {letter} a", **row, other: "clear d"} for letter in "bcdefghijklmnop"]


READERS = {
    "train": ("--preset", "tiny", "--sft_model_path", ONE_LAYER, "--reward_funcs", "own:score"),
    "sft": ("--model_path", ONE_LAYER, "--batch_size", 8, "--total_episodes", 16, "--reward_funcs", "own:score"),
    "reward_model": ("--model_path", ONE_LAYER, "--batch_size", 8, "--total_episodes", 16),
}


@pytest.mark.parametrize("differs", ["rl", "test"])
@pytest.mark.parametrize("command", READERS)
def test_processes_with_different_data_all_refuse(command, differs, tmp_path, own):
    """Each has its own disk; the same columns are read, and one word is another one."""
    for number, name in enumerate("ab"):
        rows = {split: rows_of(number if split == differs else 0) for split in ("rl", "test")}
        write_rows(tmp_path / name / "data", **rows)
    own("return [0.0] * len(completions)")
    flags = ("--dataset", "data", "--train_split", "rl", "--eval_splits", "test", *READERS[command])
    flags += ("--headline_split", "test") if command == "train" else ()
    address = f"127.0.0.1:{free_port()}"
    run = ["-m", f"jaxppo.{command}", *flags, "--output_dir", tmp_path / "run", "--num_processes", 2]
    both = [[*run, "--coordinator_address", address, "--process_id", number] for number in range(2)]
    at = [f"os.chdir({str(tmp_path / name)!r})" for name in "ab"]
    with started([second([both[0], one], code)[1] for one, code in zip(both, at, strict=True)], 1) as both:
        outputs = outputs_of(both, timeout_s=300)
    assert [process.returncode for process in both] == [2, 2], outputs
    for said in outputs:
        assert re.search(f"error: data, split {differs}: expected the same on all processes, got '15 rows", said)
    assert not (tmp_path / "run").exists()


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  int status = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += 3600;
  return status;
}
int gettimeofday(struct timeval *now, void *zone) {
  int status = ((int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday"))(now, zone);
  now->tv_sec += 3600;
  return status;
}
time_t time(time_t *at) {
  struct timeval now;
  gettimeofday(&now, 0);
  return at ? (*at = now.tv_sec) : now.tv_sec;
}
"""
ONCE_MORE = """
if "LD_PRELOAD" not in os.environ:
    os.environ["LD_PRELOAD"] = {library!r}
    os.execv(sys.executable, sys.orig_argv)
import time
assert time.time() > {now} + 3600
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_clock_of_one_process_may_be_wrong(tmp_path):
    (tmp_path / "clock.c").write_text(CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    flags = ("--eval_splits", "test", "--headline_split", "test", "--save_steps", "1", "--total_episodes", "32")
    run = commands(tmp_path / "run", *flags)
    with started(second(run, ONCE_MORE.format(library=str(library), now=time.time())), num_devices=1) as both:
        outputs = outputs_of(both, timeout_s=400)
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)[-4000:]
    assert len(steps_of(tmp_path / "run")) == 2
