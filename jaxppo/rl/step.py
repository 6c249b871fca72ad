"""One update, from prompts to the gradient."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from jaxppo.parallel import processes
from jaxppo.profiling.meter import UpdateMeter
from jaxppo.rl.batch_sources import BatchSource, stage_times
from jaxppo.rl.learner import Learner
from jaxppo.run import activity
from jaxppo.types import Batch, Prefetched, Stats, TrainState, Trajectories

Gather = Callable[[processes.T], list[processes.T]]
"""From a value of this process to those of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the updates of a run are made with.

    Attributes:
        learner: the compiled programs.
        source: where batches come from.
        judge: (batch, step, gather) fills in the scores of the reward functions.
        progress: updates done -> their "step", "episode" and "epoch".
        meter: measures the update.
    """

    learner: Learner
    source: BatchSource
    judge: Callable[[Batch, int, Gather], None]
    progress: Callable[[int], dict[str, Any]]
    meter: UpdateMeter


class Step(NamedTuple):
    """A finished update."""

    state: TrainState
    prefetched: Prefetched
    record: dict[str, Any]  # for metrics.jsonl
    batch: Batch
    trajectories: Trajectories


def train_step(training: Training, state: TrainState, prefetched: Prefetched, step: int) -> Step:
    """Carry out update `step`: sample, judge on the host, estimate advantages, learn."""
    batch = training.source.next_batch(state, prefetched, step)
    with training.source.prefetching(state, step) as prefetch:
        training.judge(batch, step, prefetch.gather)
    state, trajectories, stats = make_trajectories(training.learner, state, batch)
    state, update_stats = learn(training.learner, state, trajectories, step)
    record = training.progress(step + 1) | jax.device_get(stats | update_stats)
    record |= batch.reward_metrics | _measured(training, batch, prefetch.batch)
    return Step(state, prefetch.fields, record, batch, trajectories)


def make_trajectories(
    learner: Learner, state: TrainState, batch: Batch
) -> tuple[TrainState, Trajectories, Stats]:
    """Estimate the advantages of a batch that has its scores."""
    assert batch.outputs is not None and batch.rollout is not None and batch.sequences is not None
    with activity.show("scoring", compiles=True):
        activity.run_interruptibly(lambda: jax.block_until_ready(batch.outputs))
    return learner.make_trajectories(
        state, batch.outputs, batch.rollout, batch.sequences, batch.scores
    )


def learn(
    learner: Learner, state: TrainState, trajectories: Trajectories, step: int
) -> tuple[TrainState, Stats]:
    """Take the optimizer steps of an update, and wait for them; the memory of the state is taken over."""
    with activity.show("learning", compiles=True):
        return activity.run_interruptibly(
            lambda: jax.block_until_ready(learner.update(state, trajectories, step)),
            takes_state=True,
        )


def _measured(training: Training, batch: Batch, next_batch: Batch | None) -> dict[str, float]:
    assert batch.sequences is not None
    done_s = time.monotonic()
    times = stage_times(batch, next_batch, done_s)
    throughput = training.meter.throughput(
        batch.prompts.prompt_ids,
        batch.completion_mask,
        batch.sequences.input_ids,
        done_s - batch.began_s,
    )
    return times | throughput
