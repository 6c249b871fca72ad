"""From names in a configuration to reward functions: which names there are, and which settings they need."""

import sys

import pytest

from jaxppo import toys
from jaxppo.config import RewardConfig
from jaxppo.errors import ConfigError, ModelError
from jaxppo.reward_functions import registry
from jaxppo.reward_functions.registry import BuiltIn, check, make_rewards
from jaxppo.rewards import Completions

WRONG = {
    "an unknown reward": (
        {"reward_funcs": ("plans",)},
        "reward_funcs: expected plan, model, server, sentiment, soft_overlong_punishment or module:function, got",
    ),
    "no reward model": ({"reward_funcs": ("model",)}, "reward_model_path: expected a value with model in reward_funcs"),
    "an unused server": (
        {"reward_server_url": "http://x"},
        "reward_server_url: expected a value with server in reward_f",
    ),
}


@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=WRONG)
def test_check_names_the_setting_that_cannot_be_meant(settings, message):
    for use in (check, make_rewards):
        with pytest.raises(ConfigError) as caught:
            use(RewardConfig(**settings))
        assert str(caught.value).startswith(message)


def test_check_asks_for_a_missing_package_before_any_model_is_made(monkeypatch):
    config = RewardConfig(reward_funcs=("sentiment",), sentiment_model_path="toy-reviews-classifier")
    check(config)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(toys, "find", lambda name: pytest.fail("a toy is made"))
    for use in (check, make_rewards):
        with pytest.raises(ModelError, match=r"^sentiment: expected torch .*: pip install 'jaxppo\[sentiment\]'$"):
            use(config)


def test_a_new_built_in_function_takes_one_row(monkeypatch):
    def brevity(config, run):
        return lambda completions: [-float(len(text)) for text in completions]

    monkeypatch.setitem(registry.BUILT_IN, "brevity", BuiltIn(brevity))
    rewards = make_rewards(RewardConfig(reward_funcs=("brevity",)))
    assert rewards(Completions(["p"], ["abc"], [[1]], {})).values == [-3.0]


def test_a_reward_model_is_refused_where_none_can_be_computed():
    with pytest.raises(ConfigError, match="expected no reward model here"):
        make_rewards(RewardConfig(reward_funcs=("model",), reward_model_path="x"))
