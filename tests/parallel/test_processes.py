"""Several processes of one run: they agree or refuse together, and end together when one is gone."""

import json
import re
import resource
import signal
import time
from pathlib import Path

import pytest

from jaxppo.config import RunConfig
from jaxppo.errors import ConfigError
from jaxppo.parallel import processes
from jaxppo.run.jsonl import read_metrics
from tests.commands import comparable, free_port, outputs_of, started
from tests.parallel.two_processes import QUICK, commands, ends_of, second


def wait_for(is_there, running):
    """Wait until a run has come so far."""
    limit = time.monotonic() + 600
    while not is_there():
        assert time.monotonic() < limit and running.poll() is None, running.communicate()[0][-3000:]
        time.sleep(0.1)


def steps_of(folder: Path) -> int:
    """How many updates a run has logged; of the last line perhaps only a part is written."""
    path = folder / "metrics.jsonl"
    return path.read_text(encoding="utf-8").count("\n") if path.exists() else 0


AN_HOUR_LATER = """
import time
true = time.time
time.time = lambda: true() + 3600
"""


@pytest.mark.full
def test_a_process_that_dies_ends_the_other_and_the_restart_goes_on_from_the_last_checkpoint(tmp_path):
    """It repeats the updates after that exactly, whatever the clock of one of them says."""
    folder, flags = tmp_path / "run", ("--total_episodes", "96", "--save_steps", "2", *QUICK)
    with started(second(commands(folder, *flags), AN_HOUR_LATER), num_devices=2) as (first, other):
        wait_for(lambda: steps_of(folder) >= 3, first)
        other.send_signal(signal.SIGKILL)
        (said,) = outputs_of([first], timeout_s=120)
    assert first.returncode != 0
    assert "--resume" in said or "another task died" in said
    before = comparable(folder)
    with started(second(commands(folder, *flags, "--resume"), AN_HOUR_LATER), num_devices=2) as both:
        outputs = outputs_of(both)
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)[-4000:]
    assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert comparable(folder)[: len(before)] == before
    assert (folder / "policy" / "model.safetensors").is_file()
    assert "after" in json.loads((folder / "eval.json").read_text(encoding="utf-8"))


OTHER_OPTAX = """
import importlib.metadata
true = importlib.metadata.version
importlib.metadata.version = lambda name: "0.0.0" if name == "optax" else true(name)
"""


@pytest.mark.full
@pytest.mark.parametrize("name", ["learning_rate", "version of optax"])
def test_processes_with_different_settings_or_packages_all_refuse(tmp_path, name):
    if name == "learning_rate":
        both = commands(tmp_path / "run", each=((), ("--learning_rate", "3e-4")))
    else:
        both = second(commands(tmp_path / "run"), OTHER_OPTAX)
    statuses, outputs = ends_of(both)
    assert statuses == [2, 2], outputs
    for said in outputs:
        assert f"error: {name}: " in said
    assert not (tmp_path / "run").exists()


def test_a_refusal_of_the_first_process_is_that_of_all(tmp_path):
    (tmp_path / "file").write_text("no run")
    statuses, outputs = ends_of(commands(tmp_path))
    assert statuses == [2, 2], outputs
    for said in outputs:
        assert "error: output_dir: " in said


@pytest.mark.full
@pytest.mark.parametrize("number", [0, 1])
def test_waiting_for_the_others_is_bounded(tmp_path, number, monkeypatch):
    monkeypatch.setenv("JAXPPO_CONNECT_TIMEOUT_S", "2")
    alone = commands(tmp_path / "run")[number]
    statuses, (said,) = ends_of([alone], timeout_s=120)
    assert statuses == [2]
    assert "error: distributed: " in said
    assert "2 processes at 127.0.0.1:" in said


@pytest.mark.full
@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_of_one_process_ends_both_with_its_reason(tmp_path, full, monkeypatch):
    """The first fails at its logs, the second, which writes plans for VAL too, at its part of a checkpoint."""
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")  # it would keep cut programs
    flags = ["--total_episodes", "96", "--save_steps", "1", *QUICK]
    flags += ["--parallel", "fsdp"]  # of small arrays that both have the first writes all
    with started(commands(tmp_path / "run", *flags), num_devices=1) as both:
        wait_for((tmp_path / "run" / "config.yaml").exists, both[0])
        resource.prlimit(both[full].pid, resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
        outputs = outputs_of(both, timeout_s=240)
    assert [process.returncode for process in both] == [2, 2], "\n".join(outputs)[-4000:]
    (own,), (heard,) = (re.findall("^error: (.*)$", outputs[number], re.MULTILINE) for number in (full, 1 - full))
    assert "File too large" in own
    assert full == 0 or (own.startswith("checkpoints: ") and str(tmp_path / "run") in own)
    assert heard == f"process {full} of 2 failed: {own}"
    assert not any("Traceback" in said or "stack trace" in said for said in outputs)


ALONE = """
import sys, time
from jaxppo.run import cli
from jaxppo.parallel import processes
from jaxppo.config import RunConfig

processes.HEARTBEAT_S = 8
number, address = int(sys.argv[1]), sys.argv[2]

def command():
    processes.join(RunConfig(distributed=f"{address},{number}/2"))
    processes.wait_for_all()
    if number == 0:
        time.sleep(10)
        print("written")

cli.main(command)
"""


@pytest.mark.full
def test_what_one_process_does_alone_at_the_end_may_take_longer_than_others_are_silent():
    address = f"127.0.0.1:{free_port()}"
    statuses, outputs = ends_of([["-c", ALONE, number, address] for number in range(2)])
    assert statuses == [0, 0], outputs
    assert "written" in outputs[0]


@pytest.mark.parametrize("address", ["somewhere", "host:1,2/2", "host:1,0", "host:1,0/0"])
def test_addresses_that_cannot_be(address):
    with pytest.raises(ConfigError, match=r"^distributed: "):
        RunConfig(distributed=address)


def test_one_process_agrees_with_itself_and_distributed_is_refused_without_a_cluster(monkeypatch):
    assert processes.gather({"a": 1}) == [{"a": 1}]
    assert processes.largest(3) == 3
    assert processes.on_first(lambda: "here") == "here"
    processes.check_same({"a": 1})
    assert processes.is_first() and processes.output() is None

    def refuse():
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        processes.on_first(refuse)
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="distributed"):
        processes.join(RunConfig(distributed="auto"))
