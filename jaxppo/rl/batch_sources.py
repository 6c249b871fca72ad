"""Where the batch of an update comes from: the newest policy, or the one before it (`async_rollouts`).

With `OneStepAhead` the next batch is sampled while the host computes the rewards of this one. Rewards stay in the
thread that calls: functions with timers of their own (`signal.alarm`) work in no other. The devices are driven from one
thread at a time, so that all processes of a run give them the same programs in the same order.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from jaxppo.data import PromptData
from jaxppo.parallel import processes
from jaxppo.rl.learner import Learner
from jaxppo.run import activity, preemption
from jaxppo.types import (
    PREFETCHED,
    Batch,
    Params,
    Prefetched,
    Rollout,
    Sequences,
    TrainState,
)


class Prefetch:
    """The next batch on its way, if there is to be one."""

    def __init__(self) -> None:
        self._future: Future[Batch] | None = None

    def begin(self, future: Future[Batch]) -> None:
        """Take a batch that is being sampled."""
        self._future = future

    def wait(self) -> None:
        """Wait until the devices belong to the calling thread again."""
        if self._future is not None:
            wait([self._future])

    def gather(self, value: processes.T) -> list[processes.T]:
        """Do as `processes.gather`; with several processes, wait for the batch that is being sampled first."""
        if not processes.is_alone():
            self.wait()
        return processes.gather(value)

    @property
    def batch(self) -> Batch | None:
        """The batch, or None; an error in sampling is raised here."""
        return None if self._future is None else self._future.result()

    @property
    def fields(self) -> Prefetched:
        """What the next update, and a checkpoint, take of the batch."""
        batch = self.batch
        if batch is None:
            return None
        return {name: getattr(batch, name) for name in PREFETCHED}


@dataclass(frozen=True)
class OnPolicy:
    """Every batch comes from the newest policy.

    Args:
        learner: its programs.
        reference: language model; None: no KL.
        prompts: of the run.
        finish_time: notes when arrays are ready, see `FinishClock.finish_time`.
    """

    learner: Learner
    reference: Params | None
    prompts: PromptData
    finish_time: Callable[[Any], Future[float]]

    def next_batch(self, state: TrainState, prefetched: Prefetched, step: int) -> Batch:
        """Sample the batch of an update."""
        del prefetched
        batch = self.sample(state, step)
        self.fetch(batch)
        preemption.check()  # not in `sample`: in its thread nobody could end the run
        return batch

    @contextmanager
    def prefetching(self, state: TrainState, step: int) -> Iterator[Prefetch]:
        """Sample nothing while rewards are computed."""
        del state, step
        yield Prefetch()

    def sample(self, state: TrainState, step: int) -> Batch:
        """Sample the completions of an update, and dispatch what policy, reference and value model compute of them."""
        batch = self.prompts.batch(step)
        batch.began_s = time.monotonic()

        def sample_and_pack() -> tuple[Rollout, Sequences]:
            rollout = self.learner.generate(state, batch.prompts, step)
            return rollout, self.learner.pack(batch.prompts, rollout)  # waits for the completions

        with activity.show("sampling", compiles=True):
            batch.rollout, batch.sequences = activity.run_interruptibly(sample_and_pack)
        batch.sampled_s = time.monotonic()
        # Dispatched and not awaited: the host decodes and judges completions meanwhile.
        batch.outputs = self.learner.score(state, self.reference, batch.sequences, batch.rollout)
        batch.outputs_s = self.finish_time(batch.outputs)
        return batch

    def fetch(self, batch: Batch) -> None:
        """Fetch the completions of a batch; between processes that is a program, for which the devices must be free."""
        assert batch.rollout is not None
        arrays = (batch.rollout.completion_ids, batch.rollout.completion_mask)
        batch.completion_ids, batch.completion_mask = self.learner.parallel.to_host(arrays)


class OneStepAhead:
    """Every batch but the first was sampled during the update before it, by the policy before that update.

    Args:
        on_policy: samples.
        num_updates: of the run; nothing is sampled after the last.
        beside_rewards: whether rewards leave the devices alone; else sampling follows them.
    """

    def __init__(
        self,
        on_policy: OnPolicy,
        num_updates: int,
        beside_rewards: bool = True,
    ):
        self._on_policy = on_policy
        self._num_updates = num_updates
        self._beside_rewards = beside_rewards
        # Batch k + 1 is sampled by the policy before update k: one step
        # off-policy, whichever of the two ends first. One thread for the whole
        # run: to start one while the devices of a CPU are busy takes 10 ms.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampling")

    def next_batch(self, state: TrainState, prefetched: Prefetched, step: int) -> Batch:
        """Return the batch that was sampled during the last update, or sample it, where there was none."""
        if prefetched is None:
            return self._on_policy.next_batch(state, prefetched, step)
        started_s = time.monotonic()
        computed: Future[float] = Future()
        computed.set_result(started_s)
        batch = self._on_policy.prompts.batch(step)
        batch = replace(
            batch, **prefetched, began_s=started_s, sampled_s=started_s, outputs_s=computed
        )
        self._on_policy.fetch(batch)
        return batch

    @contextmanager
    def prefetching(self, state: TrainState, step: int) -> Iterator[Prefetch]:
        """Sample the next batch while rewards are computed; leaving waits for it, also after an error."""
        prefetch = Prefetch()
        if step + 1 == self._num_updates:
            yield prefetch
            return
        sample = partial(self._on_policy.sample, state, step + 1)
        if self._beside_rewards:
            prefetch.begin(self._thread.submit(sample))
        try:
            yield prefetch
        finally:
            prefetch.wait()
        if not self._beside_rewards:
            sampled: Future[Batch] = Future()
            sampled.set_result(sample())
            prefetch.begin(sampled)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


BatchSource: TypeAlias = OnPolicy | OneStepAhead
"""Gives the batches of a run, with everything that the models compute of them."""


def stage_times(batch: Batch, next_batch: Batch | None, done_s: float) -> dict[str, float]:
    """Return the wall times of the stages of an update.

    Args:
        batch: of the update.
        next_batch: sampled during it; None: there was none.
        done_s: end of the update, in seconds of `time.monotonic`.
    """
    sampled = [batch] if next_batch is None else [batch, next_batch]
    outputs_s = [item.outputs_s.result() for item in sampled if item.outputs_s is not None]
    computed_s = max(outputs_s)
    times = {
        "time/rollout_s": sum(item.sampled_s - item.began_s for item in sampled),
        "time/reward_s": batch.judged_s - batch.sampled_s,
        "time/reward_wait_s": max(0.0, batch.judged_s - computed_s),
        "time/update_s": done_s - max(batch.judged_s, sampled[-1].sampled_s),
    }
    if next_batch is not None:
        # From the begin of sampling until either is done: sampling, or the rewards beside it.
        overlap_end_s = min(batch.judged_s, next_batch.sampled_s)
        times["time/overlap_s"] = max(0.0, overlap_end_s - next_batch.began_s)
    return times
