"""Where batches come from: who drives the devices when, and the times that are logged."""

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from jaxppo.config import RewardConfig
from jaxppo.reward_functions import registry
from jaxppo.rl.batch_sources import OneStepAhead, stage_times
from jaxppo.types import Batch

NOTHING: Any = None
STATE: Any = None
NUM_UPDATES = 3


@pytest.fixture
def one_step_ahead():
    """Makes sources whose batches come from a function of the step, and closes them."""
    sources = []

    def make(sample, **settings):
        on_policy: Any = SimpleNamespace(sample=lambda state, step: sample(step))
        sources.append(OneStepAhead(on_policy, NUM_UPDATES, **settings))
        return sources[-1]

    yield make
    for source in sources:
        source.close()


def test_the_next_batch_is_sampled_while_the_block_runs(one_step_ahead):
    has_begun, threads = threading.Event(), []

    def sample(step):
        threads.append(threading.current_thread())
        has_begun.set()
        return f"batch {step}"

    source = one_step_ahead(sample)
    for step in range(2):
        has_begun.clear()
        with source.prefetching(STATE, step) as prefetch:
            assert has_begun.wait(60)
        assert prefetch.batch == f"batch {step + 1}"
    assert threads[0] is threads[1] is not threading.current_thread()


def test_sampling_follows_rewards_that_need_the_devices(one_step_ahead):
    events = []
    source = one_step_ahead(lambda step: events.append("sample") or "batch", beside_rewards=False)
    with source.prefetching(STATE, 0) as prefetch:
        time.sleep(0.05)
        events.append("rewards")
    assert (events, prefetch.batch) == (["rewards", "sample"], "batch")


@pytest.mark.parametrize("beside_rewards", [True, False])
def test_nothing_is_sampled_after_the_last_update(one_step_ahead, beside_rewards):
    source = one_step_ahead(pytest.fail, beside_rewards=beside_rewards)
    with source.prefetching(STATE, NUM_UPDATES - 1) as prefetch:
        prefetch.wait()
    assert prefetch.batch is None is prefetch.fields


def test_a_reward_that_fails_leaves_no_sampling_behind(one_step_ahead):
    finish, done = threading.Event(), []

    def sample(step):
        assert finish.wait(60)
        time.sleep(0.05)
        done.append(step)

    def fail():
        with one_step_ahead(sample).prefetching(STATE, 0):
            finish.set()
            raise ValueError("no reward")

    with pytest.raises(ValueError, match="no reward"):
        fail()
    assert done == [1]


def test_sampling_that_fails_is_raised_where_the_batch_is_read(one_step_ahead):
    def sample(step):
        raise MemoryError("too large")

    with one_step_ahead(sample).prefetching(STATE, 0) as prefetch:
        prefetch.wait()
    with pytest.raises(MemoryError, match="too large"):
        _ = prefetch.fields


def at(began_s, sampled_s, outputs_s):
    future = Future()
    future.set_result(outputs_s)
    times: Any = {"began_s": began_s, "sampled_s": sampled_s, "outputs_s": future}
    return Batch(prompts=NOTHING, prompt_texts=[], columns={}, **times)


PREFETCHED = (10.0, 10.0, 10.0)
"""Times of a batch that the update before has sampled."""


@pytest.mark.parametrize(
    ("times", "next_times", "judged_s", "rollout", "reward", "wait", "update", "overlap"),
    [
        # Began at 10, ended at 30.
        ((10.0, 14.0, 15.0), None, 18.0, 4.0, 4.0, 3.0, 12.0, None),  # rewards later than scoring
        ((10.0, 14.0, 19.0), None, 18.0, 4.0, 4.0, 0.0, 12.0, None),
        (PREFETCHED, (11.0, 16.0, 17.0), 20.0, 5.0, 10.0, 3.0, 10.0, 5.0),  # slow rewards hide the sampling
        (PREFETCHED, (11.0, 16.0, 17.0), 13.0, 5.0, 3.0, 0.0, 14.0, 2.0),  # fast ones are hidden
        (PREFETCHED, (20.0, 26.0, 27.0), 20.0, 6.0, 10.0, 0.0, 4.0, 0.0),  # one after the other: a reward model
        ((10.0, 14.0, 15.0), (15.0, 18.0, 19.0), 22.0, 7.0, 8.0, 3.0, 8.0, 3.0),  # the first update
        (PREFETCHED, None, 15.0, 0.0, 5.0, 5.0, 15.0, None),  # the last one: the devices have nothing to do
    ],
)
def test_stage_times_of_every_kind_of_update(times, next_times, judged_s, rollout, reward, wait, update, overlap):
    batch = at(*times)
    batch.judged_s = judged_s
    measured = stage_times(batch, None if next_times is None else at(*next_times), 30.0)
    expected = {"rollout": rollout, "reward": reward, "reward_wait": wait, "update": update, "overlap": overlap}
    assert measured == {f"time/{name}_s": value for name, value in expected.items() if value is not None}


def test_of_our_own_rewards_only_the_model_needs_the_devices():
    needing = RewardConfig(reward_funcs=("plan", "model"), reward_model_path="somewhere")
    assert registry.need_devices(needing)
    assert not registry.need_devices(RewardConfig(reward_funcs=("plan", "my_rewards:own")))
