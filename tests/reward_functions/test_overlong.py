"""The soft overlong punishment against its equation, against TRL's, and by name in a run's rewards."""

import pytest

from jaxppo.config import RewardConfig
from jaxppo.errors import ConfigError
from jaxppo.reward_functions import registry
from jaxppo.reward_functions.overlong import get_soft_overlong_punishment
from jaxppo.reward_functions.registry import Context
from jaxppo.rewards import Completions

NAME = "soft_overlong_punishment"
LIMITS = [(20, 5), (20, 1), (20, 20), (96, 7), (1, 1)]


def by_the_equation(length: int, longest: int, cache: int) -> float:
    """DAPO's equation 13, case by case."""
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return ((longest - cache) - length) / cache
    return -1.0


@pytest.mark.parametrize(("longest", "cache"), LIMITS)
def test_punishment_is_that_of_the_equation_and_of_trl_at_every_length(longest, cache):
    ids = [[7] * length for length in range(longest + 3)]
    given = get_soft_overlong_punishment(longest, cache)(completion_ids=ids)
    assert given == [by_the_equation(len(row), longest, cache) for row in ids]
    assert [str(value) for value in given[: longest - cache + 1]] == ["0.0"] * (longest - cache + 1)  # not -0.0
    assert given[longest] == -1.0
    rewards = pytest.importorskip("trl.rewards")
    theirs = rewards.get_soft_overlong_punishment(max_completion_len=longest, soft_punish_cache=cache)
    assert given == theirs(completion_ids=ids)


def test_it_is_a_weighted_term_of_a_run_s_rewards():
    config = RewardConfig(reward_funcs=(NAME, "json:loads"), reward_weights=(0.5, 0.0), soft_punish_cache=4)
    rewards = registry.make_rewards(config, Context(max_completion_len=10)).rewards[0]
    batch = Completions(["p"] * 3, ["a", "b", "c"], [[1] * 6, [1] * 8, [1] * 10], {})
    assert (rewards.name, rewards.weight, rewards(batch).values) == (NAME, 0.5, [0.0, -0.5, -1.0])


@pytest.mark.parametrize(
    ("settings", "longest", "named"),
    [
        ({"reward_funcs": (NAME,)}, 9, "soft_punish_cache"),
        ({"soft_punish_cache": 3}, 9, "soft_punish_cache"),
        ({"reward_funcs": (NAME,), "soft_punish_cache": 10}, 9, "soft_punish_cache"),
        ({"reward_funcs": (NAME,), "soft_punish_cache": 3}, None, "reward_funcs"),  # no completions are sampled
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, longest, named):
    with pytest.raises(ConfigError, match=f"^{named}: "):
        registry.make_rewards(RewardConfig(**settings), Context(max_completion_len=longest))
