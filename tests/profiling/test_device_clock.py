import contextlib
import threading
import time

import pytest

from jaxppo.profiling.device_clock import FinishClock


class OnDevice:
    """Stands for an array that a device is still computing."""

    def __init__(self, error=None):
        self.done, self.error = threading.Event(), error

    def block_until_ready(self):
        assert self.done.wait(60)
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock():
    with contextlib.closing(FinishClock()) as found:
        yield found


def test_finish_time_is_when_the_last_array_is_ready(clock):
    first, last = OnDevice(), OnDevice()
    finished = clock.finish_time({"a": first, "b": [last, None]})
    first.done.set()
    before = time.monotonic()
    assert not finished.done()
    last.done.set()
    assert before <= finished.result(60) <= time.monotonic()


def test_finish_time_raises_what_went_wrong_on_the_device_and_goes_on(clock):
    broken, whole = OnDevice(RuntimeError("out of memory")), OnDevice()
    first, second = clock.finish_time([broken]), clock.finish_time([whole])
    whole.done.set()
    broken.done.set()
    with pytest.raises(RuntimeError, match="out of memory"):
        first.result(60)
    assert second.result(60) <= time.monotonic()


def test_close_waits_for_the_devices_and_ends_the_thread():
    clock, slow = FinishClock(), OnDevice()
    finished = clock.finish_time([slow])
    (watcher,) = (thread for thread in threading.enumerate() if thread.name.startswith("finish-clock"))
    threading.Timer(0.05, slow.done.set).start()
    clock.close()
    assert finished.done() and not watcher.is_alive()
