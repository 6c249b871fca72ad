"""The platform that programs are compiled for: that of the devices or, in `compiling_for`, one that is not there."""

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax


class Platform(NamedTuple):
    """What decides between ways to compute the same."""

    name: str  # "cpu", "gpu" or "tpu"
    memory_bytes: int | None  # of one device, as far as programs may use it; None: not known


_target: ContextVar[Platform | None] = ContextVar("target", default=None)


def current() -> Platform:
    """Return the platform that programs are compiled for here."""
    target = _target.get()
    if target is not None:
        return target
    all_stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [stats["bytes_limit"] for stats in all_stats if "bytes_limit" in stats]
    name = jax.default_backend()
    if name == "cpu" and not limits:  # the devices are parts of one machine
        machine = machine_bytes()
        return Platform(name, None if machine is None else machine // jax.local_device_count())
    return Platform(name, min(limits, default=None))


_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_GROUPS_OF_PROCESS = Path("/proc/self/cgroup")


def machine_bytes() -> int | None:
    """Return the memory of this machine, or of its container; None where it is not known, as on Windows."""
    if sys.platform == "win32":
        return None
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _container_limits():
        text = path.read_text().strip() if path.is_file() else ""
        if text.isdecimal():  # else there is no limit
            limits.append(int(text))
    return min(limits)


def _container_limits() -> Iterator[Path]:
    """Yield the files that say what this process may take: of its control group and all that this one is in.

    In a container the group is mostly the root of what can be seen; a batch system's or a service's is below it.
    """
    lines = _GROUPS_OF_PROCESS.read_text().splitlines() if _GROUPS_OF_PROCESS.is_file() else []
    # Control groups of the second version are one tree, whose line begins with 0::
    group = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = _CONTROL_GROUPS / group.strip("/")
    for parent in (folder, *folder.parents):
        if parent.is_relative_to(_CONTROL_GROUPS):
            yield parent / "memory.max"


_LONG_COMPILATION_S = 1.0
"""Compilations that take this long leave so much freed memory that giving it back is worth its milliseconds."""


@cache
def give_back_memory_of_compilations() -> None:
    """Make every long compilation give the memory that it has freed back to the system, before its program runs.

    The allocator of Linux's C library keeps it otherwise: 650 MiB after the update of a model of 135M parameters.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is None:
        return

    def compiled(event: str, duration_secs: float, **_: Any) -> None:
        if (
            event == "/jax/core/compile/backend_compile_duration"
            and duration_secs > _LONG_COMPILATION_S
        ):
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(compiled)


_ACCELERATORS = ("nvidia0", "nvidiactl", "dxg", "kfd", "accel0", "vfio")
"""Files of GPUs and TPUs in /dev, also within containers."""


def leave_out_absent() -> None:
    """Keep JAX on the CPU where the compiler for TPUs is installed, and there is neither a TPU nor a GPU.

    JAX would try it first, and say at length that it found nothing. To be called before JAX looks for devices.
    """
    is_chosen = sys.platform != "linux" or "JAX_PLATFORMS" in os.environ
    if is_chosen or importlib.util.find_spec("libtpu") is None:
        return
    if not any(Path("/dev", name).exists() for name in _ACCELERATORS):
        jax.config.update("jax_platforms", "cpu")


def compile_only() -> None:
    """Keep JAX on the CPU, and let the compilers of other platforms load without their hardware, drivers and services.

    To be called before JAX looks for devices.
    """
    jax.config.update("jax_platforms", "cpu")
    # What is compiled for an absent device is not read back
    jax.config.update("jax_enable_compilation_cache", False)
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # of a cloud machine
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # several processes at once
    # That asks cuDNN and the driver for their versions
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    # What libtpu asks the machine it is on, and prints
    # errors without; a topology says something else then.
    of_machine = {
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
    os.environ.update({name: value for name, value in of_machine.items() if name not in os.environ})


@contextmanager
def compiling_for(platform: Platform) -> Iterator[None]:
    """Make `current` return this platform: what is traced within is for its compiler, and cannot run here."""
    token = _target.set(platform)
    try:
        yield
    finally:
        _target.reset(token)
