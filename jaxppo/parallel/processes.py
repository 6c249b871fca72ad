"""Several processes, one run: each has its own devices and its own rows, and all carry out the same program.

JAX's coordination service connects them (`jax.distributed`); nothing here talks to a network by itself. What only one
process may do, such as writing logs, the first one does (`is_first`). Whatever decides which device programs run must
be the same everywhere: `check_same`, `on_first` and `largest` see to it. A process that fails tells the others why, and
they end with its reason, wherever they are waiting for it.

With one process every function does the obvious thing.
"""

import atexit
import importlib.metadata
import json
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TextIO, TypeVar

import jax
import numpy as np
from jax._src import distributed  # the coordination service as a store of keys has no public name
from jax.experimental import multihost_utils

from jaxppo.config import RunConfig
from jaxppo.errors import ConfigError, JaxppoError, first_line

T = TypeVar("T")

HEARTBEAT_S = 30
"""A process that is silent for so long counts as dead, and ends the others."""
FAILURE = "jaxppo/failure"
"""Key under which the first process that fails tells the others: [its number, its reason]."""
LISTEN_S = 0.5
"""Seconds between two looks for the failure of another process."""
GRACE_S = 1.0
"""Seconds that a process then still has to end by itself."""
PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "transformers",
    "tokenizers",
)
"""What the device programs and the rows that they read come from."""

CONNECT_S = 120
"""Seconds that a process waits for the others at the start, unless JAXPPO_CONNECT_TIMEOUT_S says."""

_ending = threading.Event()


def join(run: RunConfig) -> None:
    """Connect to the other processes of this run, if there are any; once per process, before JAX looks for devices.

    Where they cannot be reached in time this process ends, with one line and status 2: JAX would end it, too, but with
    a trace of its own insides.

    Args:
        run: `distributed`.

    Raises:
        ConfigError: the flags and the cluster do not say enough.
    """
    if run.distributed is None:
        return
    if jax.distributed.is_initialized():
        return
    address, number, count = run.process
    if count is None:
        count = _from_environment("JAX_NUM_PROCESSES")
    if number is None:
        number = _from_environment("JAX_PROCESS_ID")
    address = address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    seconds = _from_environment("JAXPPO_CONNECT_TIMEOUT_S") or CONNECT_S
    limit = threading.Timer(seconds, _end_unconnected, (address, count, seconds))
    limit.daemon = True
    limit.start()
    is_complete = None not in (address, count, number)
    try:
        jax.distributed.initialize(
            address,
            count,
            number,
            # Else JAX may find a cluster and take one device per process.
            cluster_detection_method="deactivate" if is_complete else None,
            initialization_timeout=seconds + HEARTBEAT_S,
            heartbeat_timeout_seconds=HEARTBEAT_S,
            shutdown_timeout_seconds=HEARTBEAT_S,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            "distributed: expected a cluster that JAX knows, or HOST:PORT,NUMBER/COUNT, got: "
            f"{str(error).strip().splitlines()[0]}"
        ) from None
    finally:
        limit.cancel()
    atexit.register(_ending.set)  # before JAX leaves the service
    threading.Thread(target=_listen, name="listen", daemon=True).start()


def _from_environment(name: str) -> int | None:
    return int(os.environ[name]) if name in os.environ else None


def _end_unconnected(address: str | None, count: int | None, seconds: int) -> None:
    print(
        f"error: distributed: expected {count or 'all'} processes at {address or 'the coordinator'} within "
        f"{seconds} s, got an answer from fewer or from none",
        file=sys.stderr,
        flush=True,
    )
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
    # `process_allgather` takes arrays of one shape: the
    # sizes first, then all texts padded to the longest.
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


def end_with(status: int, reason: str) -> None:
    """End this process after it has printed its error, where there are others; else do nothing.

    An orderly end would wait for the others, who may be waiting for this one.

    Args:
        status: of this process.
        reason: for the others.
    """
    if not jax.distributed.is_initialized():
        return
    _ending.set()
    _tell(reason)
    _leave(status)


def _tell(reason: str) -> None:
    """Let the others know, unless another failure came first, or none can be reached any more."""
    state = distributed.global_state
    with suppress(jax.errors.JaxRuntimeError, AttributeError):
        state.client.key_value_set(FAILURE, json.dumps([state.process_id, reason]))  # type: ignore[union-attr]


def _failure_of_another() -> str | None:
    """Return what another process has failed with, as a line for the user, or None."""
    state = distributed.global_state
    try:
        number, reason = json.loads(state.client.key_value_try_get(FAILURE))  # type: ignore[union-attr]
    except (jax.errors.JaxRuntimeError, AttributeError):  # no such key, or the service is gone
        return None
    if number == state.process_id:
        return None
    return f"error: process {number} of {state.num_processes} failed: {reason}"


def _listen() -> None:
    """End this process when another one has failed: in a joint computation or a barrier it would wait for ever."""
    while not _ending.wait(LISTEN_S):
        failure = _failure_of_another()
        if failure is not None and not _ending.wait(GRACE_S):
            _ending.set()
            sys.stdout.flush()
            print(failure, file=sys.stderr, flush=True)
            _leave(2)


def _leave(status: int) -> NoReturn:
    """End at once, but not before the others have heard: without the first process they would be ended, too."""
    time.sleep(5.0 if is_first() else 2.0)
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
    # An error is an answer, too: if only the first process
    # raised it, the others would wait for it in `gather`.
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
    compared = dict(settings)
    compared.pop("distributed", None)  # it has the number of each process
    for process, process_settings in enumerate(gather(compared)):
        for name, value in compared.items():
            process_value = process_settings.get(name)
            if process_value != value:
                raise ConfigError(
                    f"{name}: expected the same on all processes, got {value!r} on process "
                    f"{jax.process_index()} and {process_value!r} on process {process}"
                )


def check_same_packages() -> None:
    """Raise a `ConfigError` unless all have the same versions of `PACKAGES`; all of them must call this."""
    check_same({f"version of {name}": importlib.metadata.version(name) for name in PACKAGES})


def give_up(error: BaseException) -> None:
    """End this process at once after an error that nobody expected, if there are others; else do nothing.

    An orderly end would first wait for all processes to come to theirs, and one of them may be gone: most such errors
    say just that. Where that process has said why, its reason is printed instead.
    """
    if is_alone():
        return
    is_printed = _ending.is_set()  # by `_listen`
    _ending.set()
    failure = _failure_of_another()
    if failure is not None:
        if not is_printed:
            print(failure, file=sys.stderr, flush=True)
        _leave(2)
    _tell(first_line(error) if isinstance(error, Exception) else type(error).__name__)
    traceback.print_exception(error)
    print(
        f"error: process {jax.process_index()} of {jax.process_count()} stops: this one failed, or another one is gone "
        "(see above, and what the others print); the same commands with --resume go on from the last checkpoint",
        file=sys.stderr,
        flush=True,
    )
    _leave(1)
