"""When devices finish what they were given, found out without keeping the host from its own work."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from jaxppo.run import activity


class FinishClock:
    """Notes when arrays are ready, in a thread of its own.

    The thread is kept: to start one while the devices of a CPU are busy takes 10 ms.
    """

    def __init__(self) -> None:
        self._watcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="finish-clock")

    def finish_time(self, arrays: Any) -> Future[float]:
        """Note when arrays are ready; does not wait.

        Args:
            arrays: pytree of what the devices compute.

        Returns:
            The time, in seconds of `time.monotonic`; what went wrong on the devices, its `result()` raises.
        """

        def wait() -> float:
            jax.block_until_ready(arrays)
            return time.monotonic()

        return self._watcher.submit(wait)

    def close(self) -> None:
        """Wait for what is being watched, unless the run has left it behind, and end the thread."""
        self._watcher.shutdown(wait=not activity.has_abandoned_work())
