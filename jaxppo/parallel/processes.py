"""Several processes, one run: each has its own devices and its own rows, and all carry out the same program.

JAX's coordination service connects them (`jax.distributed`); nothing here talks to a network by itself. What only one
process may do, such as writing logs, the first one does (`is_first`). Whatever decides which device programs run must
be the same everywhere: `check_same`, `on_first` and `largest` see to it.

With one process every function does the obvious thing.
"""

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxppo.config import RunConfig
from jaxppo.errors import ConfigError, JaxppoError

T = TypeVar("T")

HEARTBEAT_S = 30
"""A process that says nothing for so long counts as dead, and ends the others."""


def join(run: RunConfig) -> None:
    """Connect to the other processes of this run, if there are any; once per process, before JAX looks for devices.

    Where they cannot be reached in time this process ends, with one line and status 2: JAX would end it, too, but with
    a trace of its own insides.

    Args:
        run: `distributed`, or address, number of processes and number of this one.

    Raises:
        ConfigError: the flags and the cluster do not say enough.
    """
    if not run.is_distributed:
        for name in ("num_processes", "process_id"):
            value, expected = getattr(run, name), "none without --coordinator_address or --distributed"
            if value is not None:
                raise ConfigError(f"{name}: expected {expected}, got {value}")
        return
    if jax.distributed.is_initialized():
        return
    from_environment = lambda name: int(os.environ[name]) if name in os.environ else None  # noqa: E731
    count = from_environment("JAX_NUM_PROCESSES") if run.num_processes is None else run.num_processes
    number = from_environment("JAX_PROCESS_ID") if run.process_id is None else run.process_id
    address = run.coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    limit = threading.Timer(run.connect_timeout_s, _end_unconnected, (address, count, run.connect_timeout_s))
    limit.daemon = True
    limit.start()
    known = None not in (address, count, number)
    try:
        jax.distributed.initialize(
            address,
            count,
            number,
            # Else JAX may find a cluster and take one device per process.
            cluster_detection_method="deactivate" if known else None,
            initialization_timeout=run.connect_timeout_s + HEARTBEAT_S,
            heartbeat_timeout_seconds=HEARTBEAT_S,
            shutdown_timeout_seconds=HEARTBEAT_S,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            "distributed: expected a cluster that JAX knows, or coordinator_address, num_processes and process_id, "
            f"got: {str(error).strip().splitlines()[0]}"
        ) from None
    finally:
        limit.cancel()


def _end_unconnected(address: str | None, count: int | None, seconds: int) -> None:
    who, where = "all processes" if count is None else f"{count} processes", address or "the cluster's coordinator"
    message = f"expected {who} at {where} within {seconds} s, got an answer from fewer or from none"
    print(f"error: coordinator_address: {message}", file=sys.stderr, flush=True)
    os._exit(2)


def is_first() -> bool:
    """Return whether this process writes logs, samples and models."""
    return jax.process_index() == 0


def output() -> TextIO | None:
    """Return where this process shows its view of the run: standard output (None), or nowhere but in the first."""
    return None if is_first() else open(os.devnull, "w", encoding="utf-8")


def gather(value: T) -> list[T]:
    """Gather what each process has, in their order, on every process; all of them must call this.

    Args:
        value: anything that `pickle` can write.
    """
    if is_alone():
        return [value]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.int64(data.size))).ravel()
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: data.size] = data
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def is_alone() -> bool:
    """Return whether the run has only this process."""
    return jax.process_count() == 1


def wait_for_all() -> None:
    """Go on when all processes have come here."""
    if jax.distributed.is_initialized():
        gather(None)


def end_with(status: int) -> None:
    """End this process after it has told its error, where there are others; else do nothing.

    An orderly end would wait for the others, who may be waiting for this one. The first process stays a moment longer:
    without it the others would be ended before they have told theirs.
    """
    if not jax.distributed.is_initialized():
        return
    time.sleep(3.0 if is_first() else 1.0)
    sys.stdout.flush()
    os._exit(status)


def largest(number: int) -> int:
    """Return the largest of the processes' numbers, on every process; all of them must call this."""
    if is_alone():
        return number
    return int(np.max(multihost_utils.process_allgather(np.int64(number))))


def on_first(function: Callable[[], T]) -> T:
    """Return what a function returns or refuses on the first process, on every process; all of them must call this.

    Raises:
        JaxppoError: as the function does, everywhere.
        OSError: as the function does, everywhere.
    """
    answer: Any = None
    if is_first():
        try:
            answer = function()
        except (JaxppoError, OSError) as error:
            answer = error
    answer = gather(answer)[0]
    if isinstance(answer, JaxppoError | OSError):
        raise answer
    return answer


def check_same(settings: Mapping[str, Any]) -> None:
    """Raise a `ConfigError` on every process unless all have the same settings; all of them must call this."""
    own = {name: value for name, value in settings.items() if name != "process_id"}
    for process, others in enumerate(gather(own)):
        differences = [name for name in own if others.get(name) != own[name]]
        if differences:
            name = differences[0]
            raise ConfigError(
                f"{name}: expected the same on all processes, got {own[name]!r} on process "
                f"{jax.process_index()} and {others.get(name)!r} on process {process}"
            )


def give_up(error: BaseException) -> None:
    """End this process at once after an error that nobody expected, if there are others; else do nothing.

    An orderly end would first wait for all processes to come to theirs, and one of them may be gone: that is what most
    such errors say. The others notice by the silence of this one.
    """
    if is_alone():
        return
    traceback.print_exception(error)
    print(
        f"error: process {jax.process_index()} of {jax.process_count()} stops: this one failed, or another one is gone "
        "(see above, and what the others print); the same commands with --resume go on from the last checkpoint",
        file=sys.stderr,
        flush=True,
    )
    sys.stdout.flush()
    os._exit(1)
