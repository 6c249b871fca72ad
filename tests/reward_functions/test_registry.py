"""From names in a configuration to reward functions: which names there are, and which settings they need."""

import sys

import pytest

from jaxppo import toys
from jaxppo.config import RewardConfig
from jaxppo.errors import ConfigError, ModelError
from jaxppo.reward_functions.registry import check, make_rewards


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"reward_funcs": ("plans",)}, "reward_funcs: .*sentiment"),
        ({"reward_funcs": ("model",)}, "reward_model_path: .*reward_funcs"),
        ({"reward_server_url": "http://x"}, "reward_server_url: .*reward_funcs"),
    ],
)
def test_check_names_the_setting_that_cannot_be_meant(settings, named):
    for use in (check, make_rewards):
        with pytest.raises(ConfigError, match=f"^{named}"):
            use(RewardConfig(**settings))


def test_check_asks_for_a_missing_package_before_any_model_is_made(monkeypatch):
    config = RewardConfig(reward_funcs=("sentiment",), sentiment_model_path="toy-reviews-classifier")
    check(config)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(toys, "find", lambda name: pytest.fail("a toy is made"))
    for use in (check, make_rewards):
        with pytest.raises(ModelError, match=r"torch.*pip install 'jaxppo\[sentiment\]'"):
            use(config)


def test_a_reward_model_is_refused_where_none_can_be_computed():
    with pytest.raises(ConfigError, match=r"^reward_funcs: .*'model'"):
        make_rewards(RewardConfig(reward_funcs=("model",), reward_model_path="x"))
