"""The platform that programs are compiled for: that of the devices or, in `compiling_for`, one that is not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import jax


class Platform(NamedTuple):
    """What decides between ways to compute the same."""

    name: str  # "cpu", "gpu" or "tpu"
    memory_bytes: int | None  # of one device, as far as programs may use it; None: not known, as on a CPU


_target: ContextVar[Platform | None] = ContextVar("target", default=None)


def current() -> Platform:
    """Return the platform that programs are compiled for here."""
    target = _target.get()
    if target is not None:
        return target
    limits = [stats["bytes_limit"] for device in jax.local_devices() if "bytes_limit" in (stats := _stats(device))]
    return Platform(jax.default_backend(), min(limits, default=None))


def _stats(device: jax.Device) -> dict[str, int]:
    return device.memory_stats() or {}


def compile_only() -> None:
    """Keep JAX on the CPU, and let the compilers of other platforms load without their hardware, drivers and services.

    To be called before JAX looks for devices.
    """
    jax.config.update("jax_platforms", "cpu")
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # of a cloud machine
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # several processes at once
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # that asks cuDNN and the driver for their versions
    # What libtpu asks the machine it is on, and prints errors without; a topology says something else then.
    of_machine = {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    os.environ.update({name: value for name, value in of_machine.items() if name not in os.environ})


@contextmanager
def compiling_for(platform: Platform) -> Iterator[None]:
    """Make `current` return this platform: what is traced within is for its compiler, and cannot run here."""
    token = _target.set(platform)
    try:
        yield
    finally:
        _target.reset(token)
