"""Settings and their checks: one line for every value or combination that cannot be meant."""

import dataclasses
import math
import re

import pytest

from jaxppo.config import (
    DataConfig,
    EvaluateConfig,
    LoopConfig,
    RewardModelConfig,
    RewardServerConfig,
    SamplingConfig,
    SFTConfig,
    TrainConfig,
    parse_sizes,
)
from jaxppo.config.sources import flatten, replace
from jaxppo.errors import ConfigError

# Values that a setting of `train` cannot have.
BAD_VALUES = {
    "n_shots": [-1],
    "sizes": [("rl=17:2",), ("rl",)],
    "stream_rows": [("rl=0",), ("validation=3",)],
    "response_length": [0],
    "temperature": [0.0],
    "top_k": [-1],
    "top_p": [0.0],
    "min_p": [2.0],
    "stop_token": [-1],
    "output_min_length": [0],
    "eval_top_k": [-1],
    "eval_top_p": [1.5],
    "num_generations": [0],
    "gamma": [1.5],
    "cliprange": [math.nan],
    "ratio_threshold": [1.0],
    "num_train_epochs": [math.inf],
    "kl_coef": [-1.0, math.inf],
    "kl_horizon": [0],
    "reward_clip_range": [(1.0, 1.0), (-1.0, math.inf)],
    "missing_eos_penalty": [-0.1],
    "reward_funcs": [(), ("plan", "plan")],
    "reward_weights": [(1.0, 2.0), (math.inf,)],
    "on_error": [math.nan],
    "reward_timeout_s": [math.inf, 0.0],
    "audit_rate": [1.5],
    "adam_beta2": [1.0],
    "lora_r": [0],
    "max_grad_norm": [0.0],
    "seed": [-1, 2**32],
    "save_steps": [1.5],
    "eval_steps": [0.0],
    "report_to": [(), ("none", "wandb"), ("wandb", "wandb")],
    "max_bad_updates": [0],
    "profile": [-1],
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_value_that_cannot_be_meant_is_refused_with_the_name_of_the_setting(name):
    for value in BAD_VALUES[name]:
        with pytest.raises(ConfigError, match=f"^{name}: ") as refused:
            replace(TrainConfig(), **{name: value})
        assert "\n" not in str(refused.value)


# Settings of `train` that contradict each other, the one that is named first, and what else is named.
CONTRADICTIONS = [
    ({"n_shots": 2, "input_text_length": (2, 4)}, "n_shots", "input_text_length"),
    ({"input_text_length": (4, 3)}, "input_text_length", "(4, 3)"),
    ({"input_text_length": (0, 3)}, "input_text_length", "(0, 3)"),
    ({"output_min_length": 54}, "output_min_length", "response_length (53)"),
    ({"eval_top_k": 5}, "eval_temperature", "eval_top_k"),
    ({"batch_size": 30, "algorithm": "rloo"}, "batch_size", "num_generations (4)"),
    ({"batch_size": 30, "num_mini_batches": 4}, "batch_size", "num_mini_batches (4)"),
    (
        {"batch_size": 32, "num_mini_batches": 4, "gradient_accumulation_steps": 3},
        "batch_size / num_mini_batches",
        "gradient_accumulation_steps (3)",
    ),
    ({"batch_size": 4, "whiten_rewards": True}, "batch_size", "whiten_rewards"),
    ({"algorithm": "rloo", "num_generations": 1}, "num_generations", "rloo"),
    ({"normalize_advantages": True}, "normalize_advantages", "ppo"),
    ({"algorithm": "rloo", "whiten_rewards": True}, "whiten_rewards", "rloo"),
    ({"algorithm": "rloo", "value_model_path": "x"}, "value_model_path", "rloo"),
    ({"algorithm": "rloo", "value_model": "shared"}, "value_model", "rloo"),
    ({"algorithm": "rloo", "top_k": 5, "logprobs": "sampler"}, "logprobs", "rloo"),
    ({"kl_target": 6.0, "kl_coef": 0.0}, "kl_coef", "kl_target"),
    ({"kl_target": 6.0, "batch_size": 64, "kl_horizon": 12}, "kl_horizon", "batch_size (12.8)"),
    ({"missing_eos_penalty": 0.1, "stop_token": "none"}, "missing_eos_penalty", "stop_token none"),
    ({"missing_eos_penalty": 0.1, "output_min_length": 2}, "missing_eos_penalty", "output_min_length"),
    ({"mask_truncated_completions": True, "stop_token": "none"}, "mask_truncated_completions", "stop_token none"),
    ({"lora_path": "x"}, "lora_path", "use_peft"),
    ({"resume": True}, "resume", "--output_dir"),
    ({"allow_changes": ("kl_coef",)}, "allow_changes", "--resume"),
    ({"metric_for_best_model": "eval/test/validity"}, "eval_steps", "metric_for_best_model"),
]


@pytest.mark.parametrize(("settings", "name", "other"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_named(settings, name, other):
    with pytest.raises(ConfigError, match=f"^{name}: .*{re.escape(other)}") as refused:
        replace(TrainConfig(), **settings)
    assert "\n" not in str(refused.value)


# Values at the edge of what is refused.
ACCEPTED = [
    {"whiten_rewards": True, "batch_size": 8},
    {"algorithm": "rloo", "num_generations": 2, "batch_size": 2, "normalize_advantages": True},
    {"kl_target": 6.0},
    {"score_scaling": "norm", "reward_clip_range": (-1.0, 1.0)},
    {"output_min_length": 53},
    {"input_text_length": (3, 3)},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 1, "top_p": 1e-9, "min_p": 1.0},
    {"save_steps": 0.5, "eval_steps": 0.999},
    {"batch_size": 8, "num_mini_batches": 2, "gradient_accumulation_steps": 4, "num_generations": 4},
    {"seed": 2**32 - 1},
]


@pytest.mark.parametrize("settings", ACCEPTED)
def test_a_setting_at_the_edge_is_accepted(settings):
    flat = flatten(replace(TrainConfig(), **settings))
    assert {name: flat[name] for name in settings} == settings


def test_sampling_says_which_tokens_end_a_completion_and_whether_any_may_be_left_out():
    assert SamplingConfig().stop_ids((7, 3)) == SamplingConfig(stop_token="eos").stop_ids((7, 3)) == (7, 3)
    assert SamplingConfig(stop_token=0).stop_ids((7, 3)) == (0,)  # 0 is a token, not a missing value
    assert SamplingConfig(stop_token="none").stop_ids((7, 3)) == ()
    assert not SamplingConfig(min_p=0.0).truncates
    assert all(SamplingConfig(**setting).truncates for setting in ({"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}))


def test_check_devices_names_the_size_and_the_number_of_devices():
    for num_devices in (1, 2, 4, 8):
        replace(TrainConfig(), batch_size=32, num_mini_batches=4).check_devices(num_devices)
        replace(SFTConfig(), batch_size=8).check_devices(num_devices)
    micro = "batch_size / num_mini_batches / gradient_accumulation_steps"
    for changes, message in (
        ({"batch_size": 24, "num_mini_batches": 4}, rf"^{micro}: .*\(4\), got 6"),
        ({"batch_size": 32, "num_mini_batches": 4, "gradient_accumulation_steps": 4}, rf"^{micro}: .*\(4\), got 2"),
        ({"batch_size": 24, "num_generations": 4}, r"^batch_size / num_generations: .*\(4\), got 6"),
    ):
        train = replace(TrainConfig(), **changes)
        train.check_devices(2)
        with pytest.raises(ConfigError, match=message):
            train.check_devices(4)
    with pytest.raises(ConfigError, match=r"^batch_size: .*\(4\), got 6"):
        replace(SFTConfig(), batch_size=6).check_devices(4)


def test_train_config_derives_its_sizes():
    train = replace(TrainConfig(), total_episodes=100, batch_size=32, num_mini_batches=2, num_sample_generations=2)
    assert (train.num_updates, train.mini_batch_size, train.sample_steps) == (4, 16, 2)
    assert replace(train, num_sample_generations=0).sample_steps == 4
    assert (train.num_prompts, train.micro_batch_size) == (32, 16)
    grouped = replace(train, algorithm="rloo", gradient_accumulation_steps=4)
    assert (grouped.rl.group_size, grouped.num_prompts, grouped.mini_batch_size) == (4, 8, 16)
    assert (grouped.micro_batch_size, grouped.num_updates) == (4, 4)
    assert replace(grouped, num_generations=8).num_prompts == 4
    assert replace(train, num_generations=2).num_prompts == 16


@pytest.mark.parametrize(
    ("steps", "last", "expected"),
    [
        (0.25, 10, [3, 6, 9, 10]),  # 2.5 updates, rounded up
        (0.01, 4, [1, 2, 3, 4]),
        (3, 7, [3, 6, 7]),
        (20, 3, [3]),
    ],
)
def test_saves_at_and_evaluates_at_take_updates_or_a_fraction_of_the_run(steps, last, expected):
    loop = LoopConfig(save_steps=steps, eval_steps=steps)
    assert [step for step in range(1, last + 1) if loop.saves_at(step, last)] == expected
    # The last update is evaluated in any case, at the end of the run.
    assert [step for step in range(1, last + 1) if loop.evaluates_at(step, last)] == [s for s in expected if s < last]
    assert not any(LoopConfig().evaluates_at(step, last) for step in range(1, last + 1))


@pytest.mark.parametrize(
    ("changes", "episodes"),
    [
        ({"num_train_epochs": 0.5}, 50),
        ({"num_train_epochs": 0.001}, 1),  # at least one
        ({"num_train_epochs": 2.0, "algorithm": "rloo"}, 800),  # 4 completions of each of 100 prompts, twice
        ({"num_train_epochs": 2.0, "total_episodes": 7}, 7),
        ({}, 300),
    ],
)
def test_with_episodes_counts_completions_of_all_passes_unless_they_are_given(changes, episodes):
    train = replace(TrainConfig(), **changes).with_episodes(100)
    assert train.total_episodes == episodes
    assert train.num_updates == -(-episodes // 64)
    assert train.with_episodes(3) == train


def test_a_setting_of_parts_holds_what_was_given_and_is_read_and_saved_with_the_defaults_of_the_others():
    config = DataConfig(dataset="stream:ferry", stream_lengths=("rl=6-8",), sizes=("ferry=1-3", "ferry=1-2"))
    assert config.stream_lengths == ("rl=6-8",)
    assert flatten(config)["stream_lengths"] == ("train=1-10", "rl=6-8", "test_longer=12-20")
    assert (config.lengths_of("rl"), config.lengths_of("test")) == ("6-8", "1-10")
    assert config.domain_sizes == ("ferry:1-2",)  # of a key that comes twice the last counts


@pytest.mark.parametrize(
    "config_class", [TrainConfig, SFTConfig, EvaluateConfig, RewardModelConfig, RewardServerConfig]
)
def test_every_field_name_is_unique_over_all_groups(config_class):
    values = [getattr(config_class(), spec.name) for spec in dataclasses.fields(config_class)]
    groups = [type(value) for value in values if dataclasses.is_dataclass(value)]
    names = [spec.name for group in (config_class, *groups) for spec in dataclasses.fields(group)]
    assert len(names) == len(set(names)) == len(flatten(config_class())) + len(groups)


def test_parse_sizes_reads_a_list_or_names_what_it_cannot_read():
    assert parse_sizes("5:100, 6:200") == {5: 100, 6: 200}
    for text in ("", "5", "5:1,", "5:-1", "0:5", "5:0", "5:1,5:2", "17:2"):
        with pytest.raises(ConfigError, match=r"^sizes: "):
            parse_sizes(text)
