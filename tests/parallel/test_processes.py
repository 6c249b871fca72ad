"""Several processes of one run: they agree or refuse together, and end together when one is gone."""

import json
import os
import re
import resource
import signal
import time
from pathlib import Path

import pytest

from jaxppo.config import RunConfig
from jaxppo.errors import ConfigError
from jaxppo.parallel import processes
from jaxppo.run.metrics import MAY_DIFFER
from tests.commands import free_port, outputs_of, started
from tests.one_layer import ONE_LAYER


def commands(folder: Path, *flags: str, each: tuple[tuple[str, ...], ...] = ((), ())) -> list[list[object]]:
    """The same run for two processes; `each` adds flags of its own to one."""
    address = f"127.0.0.1:{free_port()}"
    run = ["-m", "jaxppo.train", "--preset", "tiny", "--sft_model_path", ONE_LAYER, "--output_dir", folder]
    shared = [*run, "--num_processes", "2", *flags]
    return [
        [*shared, "--coordinator_address", address, "--process_id", number, *own] for number, own in enumerate(each)
    ]


def steps_of(folder: Path) -> list[dict]:
    path = folder / "metrics.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def comparable(record: dict) -> dict:
    """Without what may differ between equal runs."""
    return {name: value for name, value in record.items() if not name.startswith(MAY_DIFFER)}


OTHER_OPTAX = """
import importlib.metadata, runpy, sys
true = importlib.metadata.version
importlib.metadata.version = lambda name: "0.0.0" if name == "optax" else true(name)
sys.argv[0] = "jaxppo.train"
runpy.run_module("jaxppo.train", run_name="__main__", alter_sys=True)
"""
REWARD = """
import jax

def score(completions, **_):
    return [float("nan") if jax.process_index() == 1 else 1.0] * len(completions)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run whose second process is killed after its third update, what the first says then, and the records."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    flags = ("--total_episodes", "96", "--save_steps", "2", "--num_sample_generations", "0")
    flags += ("--eval_splits", "test", "--headline_split", "test")
    with started(commands(folder, *flags), num_devices=4) as (first, second):
        limit = time.monotonic() + 600
        while len(steps_of(folder)) < 3:
            assert time.monotonic() < limit and first.poll() is None, first.communicate()[0][-3000:]
            time.sleep(0.2)
        second.send_signal(signal.SIGKILL)
        at = time.monotonic()
        said = outputs_of([first], timeout_s=120)[0]
        return folder, flags, first.returncode, time.monotonic() - at, said, steps_of(folder)


@pytest.mark.full
def test_a_process_that_dies_ends_the_other_within_a_minute(killed):
    _, _, status, seconds, said, _ = killed
    assert status != 0
    assert seconds < 60
    assert "--resume" in said or "another task died" in said


@pytest.mark.full
def test_the_restart_repeats_the_updates_after_the_last_checkpoint_exactly(killed):
    folder, flags, _, _, _, before = killed
    with started(commands(folder, *flags, "--resume"), num_devices=4) as both:
        outputs = outputs_of(both)
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)[-4000:]
    after = steps_of(folder)
    assert [record["step"] for record in after] == list(range(1, 7))
    assert list(map(comparable, after[: len(before)])) == list(map(comparable, before))
    assert (folder / "policy" / "model.safetensors").is_file()
    assert "after" in json.loads((folder / "eval.json").read_text(encoding="utf-8"))


@pytest.mark.full
def test_processes_with_different_settings_all_refuse(tmp_path):
    different = commands(tmp_path / "run", each=((), ("--learning_rate", "3e-4")))
    with started(different, num_devices=1) as both:
        outputs = outputs_of(both, timeout_s=120)
    assert [process.returncode for process in both] == [2, 2], outputs
    for said in outputs:
        assert "error: learning_rate: expected the same on all processes" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_processes_with_different_packages_all_refuse(tmp_path):
    first, (_, _, *flags) = commands(tmp_path / "run")
    with started([first, ["-c", OTHER_OPTAX, *flags]], num_devices=1) as both:
        outputs = outputs_of(both, timeout_s=120)
    assert [process.returncode for process in both] == [2, 2], outputs
    for said in outputs:
        assert "error: version of optax: expected the same on all processes, got '" in said and "0.0.0" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_reward_that_is_no_number_on_one_process_ends_both_with_its_reason(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(REWARD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    flags = ("--reward_funcs", "own:score", "--eval_splits", "test", "--headline_split", "test")
    with started(commands(tmp_path / "run", *flags), num_devices=1) as both:
        outputs = outputs_of(both, timeout_s=300)
    assert [process.returncode for process in both] == [2, 2], "\n".join(outputs)[-4000:]
    assert "error: reward score: expected a number for row 0, got nan" in outputs[1]
    assert "error: process 1 of 2 failed: reward score: expected a number for row 0, got nan" in outputs[0]


def test_a_refusal_of_the_first_process_is_that_of_all(tmp_path):
    (tmp_path / "file").write_text("no run")
    with started(commands(tmp_path), num_devices=1) as both:
        outputs = outputs_of(both, timeout_s=120)
    assert [process.returncode for process in both] == [2, 2], outputs
    for said in outputs:
        assert "error: output_dir: expected a new or empty folder" in said


@pytest.mark.full
@pytest.mark.parametrize("number", [0, 1])
def test_waiting_for_the_others_is_bounded(tmp_path, number):
    alone = commands(tmp_path / "run", "--connect_timeout_s", "2")[number]
    with started([alone], num_devices=1) as processes_:
        (said,) = outputs_of(processes_, timeout_s=60)
    assert processes_[0].returncode == 2
    assert "error: coordinator_address: expected 2 processes at 127.0.0.1:" in said
    assert "within 2 s" in said


@pytest.mark.full
@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_of_one_process_ends_both_with_its_reason(tmp_path, full, monkeypatch):
    """The first fails at its logs, the second, which writes plans for VAL too, at its part of a checkpoint."""
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")  # it would keep cut programs
    flags = ["--total_episodes", "96", "--save_steps", "1", "--num_sample_generations", "0", "--eval_splits", "test"]
    flags += ["--headline_split", "test", "--parallel", "fsdp"]  # of small arrays that both have the first writes all
    with started(commands(tmp_path / "run", *flags), num_devices=1) as both:
        limit = time.monotonic() + 600
        while not (tmp_path / "run" / "config.yaml").exists():
            assert time.monotonic() < limit and both[0].poll() is None, both[0].communicate()[0][-3000:]
            time.sleep(0.1)
        resource.prlimit(both[full].pid, resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
        outputs = outputs_of(both, timeout_s=240)
    assert [process.returncode for process in both] == [2, 2], "\n".join(outputs)[-4000:]
    (own,), (heard,) = (re.findall("^error: (.*)$", outputs[number], re.MULTILINE) for number in (full, 1 - full))
    assert "got: File too large; " in own
    assert full == 0 or own.startswith(f"checkpoints: expected to write checkpoint 1 into {tmp_path / 'run'}")
    assert heard == f"process {full} of 2 failed: {own}"
    assert not any("Traceback" in said or "stack trace" in said for said in outputs)


ALONE = """
import sys, time
from jaxppo.run import cli
from jaxppo.parallel import processes
from jaxppo.config import RunConfig
from jaxppo.errors import DataError

processes.HEARTBEAT_S = 8
number, address, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def command():
    processes.join(RunConfig(coordinator_address=address, num_processes=2, process_id=number))
    processes.wait_for_all()
    if what == "writes" and number == 0:
        time.sleep(10)
        print("written")
    if what == "fails" and number == 1:
        raise DataError("reward: expected a number, got none")
    if what == "fails":
        processes.wait_for_all()

cli.main(command)
"""


@pytest.mark.full
@pytest.mark.parametrize("what", ["writes", "fails"])
def test_what_one_process_does_alone_at_the_end(what):
    """It may take longer than others are silent; its error ends the others, and is told."""
    address = f"127.0.0.1:{free_port()}"
    with started([["-c", ALONE, number, address, what] for number in range(2)], num_devices=1) as both:
        outputs = outputs_of(both, timeout_s=60)
    if what == "writes":
        assert [process.returncode for process in both] == [0, 0], outputs
        assert "written" in outputs[0]
    else:
        assert [process.returncode for process in both] == [2, 2], outputs
        assert "error: reward: expected a number, got none" in outputs[1]
        assert "error: process 1 of 2 failed: reward: expected a number, got none" in outputs[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"coordinator_address": "somewhere"}, "coordinator_address: expected HOST:PORT"),
        ({"coordinator_address": "host:1", "process_id": 2, "num_processes": 2}, r"process_id: expected .*\[0, num_p"),
        ({"coordinator_address": "host:1", "process_id": 0}, "process_id: expected"),
        ({"coordinator_address": "host:1", "num_processes": 0}, "num_processes: expected an integer >= 1"),
        ({"connect_timeout_s": 0}, "connect_timeout_s: expected an integer >= 1"),
    ],
)
def test_flags_that_cannot_be(flags, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig(**flags)


def test_distributed_without_a_cluster_is_refused(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="distributed: expected a cluster that JAX knows, or coordinator_address"):
        processes.join(RunConfig(distributed=True))


def test_one_process_agrees_with_itself():
    assert processes.gather({"a": 1}) == [{"a": 1}]
    assert processes.largest(3) == 3
    assert processes.on_first(lambda: "here") == "here"
    processes.check_same({"a": 1})
    assert processes.is_first() and processes.output() is None
    with pytest.raises(ConfigError, match="no"):
        processes.on_first(lambda: (_ for _ in ()).throw(ConfigError("no")))
