"""From names in a configuration to reward functions: which names there are, and which settings they need."""

from functools import partial

import pytest

from jaxppo.config import RewardConfig
from jaxppo.errors import ConfigError
from jaxppo.reward_functions.registry import Context, check, describe, make_rewards

NO_MODEL = Context(load_model=None)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"reward_funcs": ("plans",)}, "reward_funcs: .*sentiment"),
        ({"reward_funcs": ("model",)}, "reward_model_path: .*reward_funcs"),
        ({"reward_funcs": ("server",)}, "reward_funcs: .*http://"),
    ],
)
def test_check_names_the_setting_that_cannot_be_meant(settings, named):
    for use in (check, partial(make_rewards, run=NO_MODEL)):
        with pytest.raises(ConfigError, match=f"^{named}"):
            use(RewardConfig(**settings))


def test_an_address_is_a_reward_server_which_metrics_call_server():
    url = "http://me:hunter2@127.0.0.1:8000/score"
    config = RewardConfig(reward_funcs=("tests.reward_servers:length", url), reward_weights=(1.0, 0.5))
    length, server = make_rewards(config, NO_MODEL).rewards
    assert (length.name, server.name, server.weight) == ("length", "server", 0.5)
    assert server.function.address == "http://127.0.0.1:8000/score"
    assert "hunter2" not in describe(config) and "127.0.0.1:8000/score" in describe(config)
    with pytest.raises(ConfigError, match=r"^reward server: "):
        make_rewards(RewardConfig(reward_funcs=("http://",)), NO_MODEL)
