"""Sampling beside the rewards: who drives the devices when, and the times that are logged."""

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from jaxppo.config import RewardConfig
from jaxppo.reward_functions import registry
from jaxppo.rl.ahead import AheadSampler, Sampled, stage_times
from jaxppo.types import Experience


@pytest.fixture
def samplers():
    """Makes samplers, and closes them."""
    made = []

    def make(**settings):
        made.append(AheadSampler(**settings))
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()


def test_the_next_batch_is_sampled_while_the_block_runs(samplers):
    begun, threads = threading.Event(), []

    def sample():
        threads.append(threading.current_thread())
        begun.set()
        return "batch"

    sampler = samplers()
    for _ in range(2):
        begun.clear()
        with sampler.sampling(sample) as ahead:
            assert begun.wait(60)
        assert ahead.sampled == "batch"
    assert threads[0] is threads[1] is not threading.current_thread()


def test_sampling_follows_rewards_that_need_the_devices(samplers):
    events = []
    with samplers(beside=False).sampling(lambda: events.append("sample") or "batch") as ahead:
        time.sleep(0.05)
        events.append("rewards")
    assert (events, ahead.sampled) == (["rewards", "sample"], "batch")
    for beside in (True, False):
        with samplers(beside=beside).sampling(None) as ahead:  # where nothing is due, nothing is sampled
            ahead.wait()
        assert ahead.sampled is None is ahead.experience


def test_a_reward_that_fails_leaves_no_sampling_behind(samplers):
    finish, done = threading.Event(), []

    def sample():
        assert finish.wait(60)
        time.sleep(0.05)
        done.append(True)

    def fail():
        with samplers().sampling(sample):
            finish.set()
            raise ValueError("no reward")

    with pytest.raises(ValueError, match="no reward"):
        fail()
    assert done


def test_sampling_that_fails_is_raised_to_who_wants_the_batch(samplers):
    def sample():
        raise MemoryError("too large")

    with samplers().sampling(sample) as ahead:
        ahead.wait()
    with pytest.raises(MemoryError, match="too large"):
        _ = ahead.experience


NOTHING: Any = None
BATCH = Experience(NOTHING, NOTHING, NOTHING)


def at(began, drawn, scored):
    future = Future()
    future.set_result(scored)
    return Sampled(BATCH, began, drawn, future)


HERE = Sampled.before(BATCH, 10.0)
"""Sampled by the update before."""


@pytest.mark.parametrize(
    ("own", "ahead", "rewarded", "rollout", "reward", "wait", "update", "overlap"),
    [
        # Began at 10, ended at 30.
        (at(10.0, 14.0, 15.0), None, 18.0, 4.0, 4.0, 3.0, 12.0, None),  # rewards later than scoring
        (at(10.0, 14.0, 19.0), None, 18.0, 4.0, 4.0, 0.0, 12.0, None),
        (HERE, at(11.0, 16.0, 17.0), 20.0, 5.0, 10.0, 3.0, 10.0, 5.0),  # slow rewards hide the sampling
        (HERE, at(11.0, 16.0, 17.0), 13.0, 5.0, 3.0, 0.0, 14.0, 2.0),  # fast ones are hidden
        (HERE, at(20.0, 26.0, 27.0), 20.0, 6.0, 10.0, 0.0, 4.0, 0.0),  # one after the other: a reward model
        (at(10.0, 14.0, 15.0), at(15.0, 18.0, 19.0), 22.0, 7.0, 8.0, 3.0, 8.0, 3.0),  # the first update
        (HERE, None, 15.0, 0.0, 5.0, 5.0, 15.0, None),  # the last one: the devices have nothing to do
    ],
)
def test_stage_times_of_every_kind_of_update(own, ahead, rewarded, rollout, reward, wait, update, overlap):
    times = stage_times(own, ahead, rewarded, 30.0)
    expected = {"rollout": rollout, "reward": reward, "reward_wait": wait, "update": update, "overlap": overlap}
    assert times == {f"time/{name}_s": value for name, value in expected.items() if value is not None}


def test_of_our_own_rewards_only_the_model_needs_the_devices():
    needing = RewardConfig(reward_funcs=("plan", "model"), reward_model_path="somewhere")
    assert registry.need_devices(needing)
    assert not registry.need_devices(RewardConfig(reward_funcs=("plan", "my_rewards:own")))
