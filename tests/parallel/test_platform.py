"""Which platform programs are compiled for, and when JAX is kept on the CPU."""

import importlib.util
import sys

import jax
import pytest

from jaxppo.parallel import platform
from jaxppo.parallel.platform import Platform


def test_current_is_the_platform_of_the_target_or_of_the_smallest_device(monkeypatch):
    target = Platform("tpu", 16 * 2**30)
    with platform.compiling_for(target):
        assert platform.current() == target
    share = platform.machine_bytes() // jax.local_device_count()
    assert platform.current() == Platform(jax.default_backend(), share)

    class Device:
        def __init__(self, stats):
            self.memory_stats = lambda: stats

    monkeypatch.setattr(
        jax, "local_devices", lambda: [Device({"bytes_limit": 7}), Device({"bytes_limit": 5}), Device(None)]
    )
    assert platform.current().memory_bytes == 5


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_machine_bytes_are_those_of_the_control_groups_of_this_process(tmp_path, monkeypatch):
    everything = platform.machine_bytes()
    monkeypatch.setattr(platform, "_GROUPS_OF_PROCESS", tmp_path / "cgroup")
    lines_and_files = (
        ("0::/job/step", "job/memory.max", "7000"),  # of a batch system, around the step
        ("0::/", "memory.max", "max"),
        ("0::/outside/of/the/container", "memory.max", "5000"),
    )
    for number, (line, file, limit) in enumerate(lines_and_files):
        monkeypatch.setattr(platform, "_CONTROL_GROUPS", tmp_path / str(number))
        (tmp_path / "cgroup").write_text(f"5:cpuset:/x\n{line}\n")
        path = tmp_path / str(number) / file
        path.parent.mkdir(parents=True)
        path.write_text(f"{limit}\n")
        assert platform.machine_bytes() == (everything if limit == "max" else int(limit))


@pytest.mark.skipif(sys.platform != "linux", reason="devices are files on Linux")
@pytest.mark.parametrize(
    ("compiler", "device", "on_cpu"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_jax_stays_on_the_cpu_where_a_compiler_for_tpus_has_no_device(compiler, device, on_cpu, tmp_path, monkeypatch):
    chosen = []
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: compiler or None)
    monkeypatch.setattr(platform, "_ACCELERATORS", (str(tmp_path / "nvidia0"),))
    monkeypatch.setattr(jax.config, "update", lambda *given: chosen.append(given))
    if device:
        (tmp_path / "nvidia0").touch()
    platform.leave_out_absent()
    assert chosen == ([("jax_platforms", "cpu")] if on_cpu else [])
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    chosen.clear()
    platform.leave_out_absent()
    assert chosen == []
