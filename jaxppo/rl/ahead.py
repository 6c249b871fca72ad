"""Sampling the next batch while the host computes the rewards of this one (`async_rollouts`).

Rewards stay in the thread that calls: functions with timers of their own (`signal.alarm`) work in no other. The devices
are driven from one thread at a time, so that all processes of a run give them the same programs in the same order.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import NamedTuple

from jaxppo.parallel import processes
from jaxppo.types import Experience


class Sampled(NamedTuple):
    """A batch, and when it was made, in seconds of `time.monotonic`."""

    experience: Experience
    began: float
    drawn: float  # the completions are there; scoring goes on
    scored: Future[float]

    @classmethod
    def before(cls, experience: Experience, now: float) -> "Sampled":
        """Return a batch that the update before has sampled, as if made in no time."""
        scored: Future[float] = Future()
        scored.set_result(now)
        return cls(experience, now, now, scored)


class Ahead:
    """The next batch on its way, if there is to be one."""

    def __init__(self) -> None:
        self._future: Future[Sampled] | None = None

    def begin(self, future: Future[Sampled]) -> None:
        """Take a batch that is being sampled."""
        self._future = future

    def wait(self) -> None:
        """Wait until the devices belong to the calling thread again."""
        if self._future is not None:
            wait([self._future])

    def gather(self, value: processes.T) -> list[processes.T]:
        """Do as `processes.gather`; where there are several, not before the devices are free."""
        if not processes.is_alone():
            self.wait()
        return processes.gather(value)

    @property
    def sampled(self) -> Sampled | None:
        """The batch, or None; what has gone wrong in sampling is raised here."""
        return None if self._future is None else self._future.result()

    @property
    def experience(self) -> Experience | None:
        """The batch without its times."""
        return None if self.sampled is None else self.sampled.experience


class AheadSampler:
    """Samples in a thread of its own, which is kept: to start one while the devices of a CPU are busy takes 10 ms.

    Args:
        beside: whether rewards leave the devices alone; else sampling follows them.
    """

    def __init__(self, beside: bool = True):
        self._beside = beside
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampling")

    @contextmanager
    def sampling(self, sample: Callable[[], Sampled] | None) -> Iterator[Ahead]:
        """Sample while the block computes rewards; leaving it waits for the batch, also after an error.

        Args:
            sample: samples the next batch; None: there is none.
        """
        ahead = Ahead()
        if sample is not None and self._beside:
            ahead.begin(self._thread.submit(sample))
        try:
            yield ahead
        finally:
            ahead.wait()
        if sample is not None and not self._beside:
            done: Future[Sampled] = Future()
            done.set_result(sample())
            ahead.begin(done)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


def stage_times(own: Sampled, ahead: Sampled | None, rewarded: float, done: float) -> dict[str, float]:
    """Return the wall times of the stages of an update, from moments in seconds of `time.monotonic`.

    Args:
        own: its batch.
        ahead: the next batch; None: it was not sampled.
        rewarded: the last reward was there.
        done: the update has ended.
    """
    batches = [own] if ahead is None else [own, ahead]
    times = {
        "time/rollout_s": sum(batch.drawn - batch.began for batch in batches),
        "time/reward_s": rewarded - own.drawn,
        "time/reward_wait_s": max(0.0, rewarded - max(batch.scored.result() for batch in batches)),
        "time/update_s": done - max(rewarded, batches[-1].drawn),
    }
    if ahead is not None:
        times["time/overlap_s"] = max(0.0, min(rewarded, ahead.drawn) - ahead.began)
    return times
