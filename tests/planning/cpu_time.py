"""Limits of processor time that hold on slow machines, too: what is limited is the work that an input causes.

No test depends on a clock while others run beside it. Those marked `clock` look at it where nothing else runs:

    JAXPPO_CLOCK=1 pytest -n 0 -m clock tests/planning
"""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

IS_LIMITED = bool(os.environ.get("JAXPPO_CLOCK"))
QUIET_S = 0.06
"""What `_yardstick` takes on a quiet machine; the limits are in seconds of that one."""


@contextmanager
def within(limit_s: float, about: object = "") -> Iterator[None]:
    """Fail if the body takes more than `limit_s` of processor time; a slower machine has as much more.

    The collector's rounds wait: most of their time goes into objects that the body did not make.
    """
    if not IS_LIMITED:
        yield
        return
    gc.disable()
    try:
        start = time.process_time()
        yield
        took = time.process_time() - start
    finally:
        gc.enable()
    assert took < limit_s or took < limit_s * _yardstick() / QUIET_S, (took, about)


def _yardstick() -> float:
    """Seconds of processor time for a fixed piece of Python."""
    start, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number * number % 7
    return time.process_time() - start
