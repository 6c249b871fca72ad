"""Settings and their checks: one line for every value or combination that cannot be meant."""

import ast
import dataclasses
import inspect
import math

import pytest
import yaml

from jaxppo.config import (
    EvaluateConfig,
    LoopConfig,
    RewardModelConfig,
    RewardServerConfig,
    SamplingConfig,
    SFTConfig,
    TrainConfig,
    parse_sizes,
)
from jaxppo.config.sources import flatten, parse_cli, replace, write_yaml
from jaxppo.errors import ConfigError
from tests import quick_first

COMMANDS = {"train": TrainConfig, "sft": SFTConfig, "evaluate": EvaluateConfig}
CONFIGS = [*COMMANDS.values(), RewardModelConfig, RewardServerConfig]


def parse(*args, command="train"):
    return parse_cli(COMMANDS[command], command, list(args))


def yaml_file(folder, text):
    path = folder / "given.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def error_line(*args, command="train"):
    """The message of the ConfigError that these arguments raise, checked to be one line."""
    with pytest.raises(ConfigError) as caught:
        parse(*args, command=command)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


# What goes wrong: (settings, beginning of the message). The same for flags and for YAML.
CONTRADICTIONS = {
    "negative shots": ({"n_shots": -1}, "n_shots: expected an integer of at least 0, got -1"),
    "shots of text that is cut": (
        {"n_shots": 2, "input_min_text_length": 2, "input_max_text_length": 4},
        "n_shots: expected 0 with input_max_text_length",
    ),
    "two stop tokens": ({"stop_token": "eos", "stop_token_id": 5}, "stop_token: expected None beside stop_token_id"),
    "no stop token and one": ({"stop_token": "none", "stop_token_id": 0}, "stop_token: expected None beside"),
    "negative stop token": ({"stop_token_id": -1}, "stop_token_id: expected a token id of at least 0, got -1"),
    "too few rows to whiten": ({"whiten_rewards": True, "batch_size": 4}, "batch_size: expected at least 8 with whit"),
    "rloo alone": (
        {"algorithm": "rloo", "num_generations": 1},
        "num_generations: expected at least 2 with algorithm rloo, got 1",
    ),
    "no generations": ({"num_generations": 0}, "num_generations: expected at least 1, got 0"),
    "no target": ({"adap_kl_ctrl": True}, "kl_target: expected a number above 0 with adap_kl_ctrl, got None"),
    "nothing to adapt": (
        {"adap_kl_ctrl": True, "kl_target": 6.0, "kl_coef": 0.0},
        "kl_coef: expected a number above 0 with adap_kl_ctrl, got 0.0",
    ),
    "centred but not scaled": ({"use_score_norm": True}, "use_score_norm: expected use_score_scaling"),
    "clip range reversed": ({"reward_clip_range": (1.0, -1.0)}, "reward_clip_range: expected two finite numbers"),
    "clip range empty": ({"reward_clip_range": (1.0, 1.0)}, "reward_clip_range: expected two finite numbers"),
    "clip range open": ({"reward_clip_range": (-1.0, math.inf)}, "reward_clip_range: expected two finite numbers"),
    "normalised twice": ({"normalize_advantages": True}, "normalize_advantages: expected False with algorithm ppo"),
    "rloo has no token rewards": (
        {"algorithm": "rloo", "whiten_rewards": True},
        "whiten_rewards: expected False with algorithm rloo, got True",
    ),
    "rloo has no value model": (
        {"algorithm": "rloo", "value_model_path": "x"},
        "value_model_path: expected None with algorithm rloo, got 'x'",
    ),
    "adapter without adapters": ({"lora_path": "x"}, "lora_path: expected None without use_peft, got 'x'"),
    "adapter of rank 0": ({"use_peft": True, "lora_r": 0}, "lora_r: expected a number above 0, got 0"),
    "no reward": ({"reward_funcs": ()}, "reward_funcs: expected at least one function"),
    "a reward twice": ({"reward_funcs": ("plan", "plan")}, "reward_funcs: expected each function once"),
    "too many weights": ({"reward_weights": (1.0, 2.0)}, "reward_weights: expected 1 numbers, got (1.0, 2.0)"),
    "weights without end": ({"reward_weights": (math.inf,)}, "reward_weights: expected finite numbers"),
    "an unknown policy": ({"on_error": math.nan}, "on_error: expected stop, skip or a finite number, got nan"),
    "a penalty above 1": ({"length_penalty": 1.5}, "length_penalty: expected a number in [0, 1], got 1.5"),
    "invalid plans ahead": (
        {"length_penalty": 0.5},
        "partial_scale: expected at most 1 - length_penalty = 0.5, so that",
    ),
    "endless time": (
        {"reward_timeout_s": math.inf},
        "reward_timeout_s: expected a finite number of at least 0, got inf",
    ),
    "no time": ({"reward_timeout_s": 0.0}, "reward_timeout_s: expected a number above 0, got 0.0"),
    "an audit of more than all": ({"audit_rate": 1.5}, "audit_rate: expected a number in [0, 1], got 1.5"),
    "a negative profile": ({"profile": -1}, "profile: expected an integer of at least 0, got -1"),
    "no peak": ({"peak_tflops": 0.0}, "peak_tflops: expected a finite number above 0, got 0.0"),
    "a negative cache": ({"reward_cache_size": -1}, "reward_cache_size: expected at least 0, got -1"),
    "penalty without a stop token": (
        {"stop_token": "none", "missing_eos_penalty": 0.1},
        "missing_eos_penalty: expected None with stop_token none",
    ),
    "mask without a stop token": (
        {"stop_token": "none", "mask_truncated_completions": True},
        "mask_truncated_completions: expected False with stop_token none",
    ),
    "prompts": (
        {"algorithm": "rloo", "batch_size": 30},
        "batch_size: expected a multiple of num_generations (4), got 30",
    ),
    "mini-batches": (
        {"batch_size": 30, "num_mini_batches": 4},
        "batch_size: expected a multiple of num_mini_batches (4), got 30",
    ),
    "micro-batches": (
        {"batch_size": 32, "num_mini_batches": 4, "gradient_accumulation_steps": 3},
        "batch_size / num_mini_batches: expected a multiple of gradient_accumulation_steps (3), got 8",
    ),
    "a threshold of nothing": (
        {"curriculum": "success", "curriculum_threshold": 0.0},
        "curriculum_threshold: expected a number in (0, 1], got 0.0",
    ),
    "a threshold beyond all": (
        {"curriculum": "success", "curriculum_threshold": 1.5},
        "curriculum_threshold: expected a number in (0, 1], got 1.5",
    ),
    "no number as success": (
        {"curriculum": "success", "curriculum_success": float("nan")},
        "curriculum_success: expected a finite number, got nan",
    ),
    "success without a curriculum": (
        {"curriculum_success": 0.5},
        "curriculum_success: expected 1.0 with curriculum none, got 0.5",
    ),
    "fewer than no prefixes": (
        {"reference_prefixes": -1},
        "reference_prefixes: expected 0 or a positive number, got -1",
    ),
    "no output": ({"output_min_length": 0}, "output_min_length: expected 1 to response_length (53), got 0"),
    "too long an output": ({"output_min_length": 54}, "output_min_length: expected 1 to response_length (53), got 54"),
    "lengths without an upper end": ({"input_min_text_length": 3}, "input_min_text_length, input_max_text_length: "),
    "lengths without a lower end": ({"input_max_text_length": 3}, "input_min_text_length, input_max_text_length: "),
    "lengths reversed": (
        {"input_min_text_length": 4, "input_max_text_length": 3},
        "input_min_text_length, input_max_text_length: ",
    ),
    "prompts of no token": (
        {"input_min_text_length": 0, "input_max_text_length": 3},
        "input_min_text_length, input_max_text_length: ",
    ),
    "top_k": ({"top_k": -1}, "top_k: expected an integer of at least 0, got -1"),
    "top_p": ({"top_p": 0.0}, "top_p: expected a number in (0, 1], got 0.0"),
    "min_p": ({"min_p": 2.0}, "min_p: expected a number in [0, 1], got 2.0"),
    "eval_top_k": ({"eval_top_k": -1}, "eval_top_k: expected an integer of at least 0, got -1"),
    "eval_top_p": ({"eval_top_p": 1.5}, "eval_top_p: expected a number in (0, 1], got 1.5"),
    "save_steps neither whole nor fraction": (
        {"save_steps": 1.5},
        "save_steps: expected a whole number of updates, or",
    ),
    "save_steps infinite": ({"save_steps": math.inf}, "save_steps: expected a whole number of updates, or"),
    "eval_steps": ({"eval_steps": 0.0}, "eval_steps: expected a whole number of updates, or a fraction of the run"),
    "num_train_epochs": ({"num_train_epochs": math.inf}, "num_train_epochs: expected a finite number above 0, got inf"),
    "max_bad_updates": ({"max_bad_updates": 0}, "max_bad_updates: expected a number above 0, got 0"),
    "missing_eos_penalty": ({"missing_eos_penalty": -0.1}, "missing_eos_penalty: expected a finite number of at least"),
    "ratio_threshold": ({"ratio_threshold": 0.0}, "ratio_threshold: expected a number above 1, got 0.0"),
    "kl_horizon": ({"kl_horizon": 0}, "kl_horizon: expected a number above 0, got 0"),
    "short kl_horizon": (
        {"adap_kl_ctrl": True, "kl_target": 6.0, "batch_size": 64, "kl_horizon": 12},
        "kl_horizon: expected more than 0.2 batch_size (12.8)",
    ),
    "kl_target alone": ({"kl_target": 6.0}, "kl_target: expected None without adap_kl_ctrl, got 6.0"),
    "position for rloo": ({"algorithm": "rloo", "score_position": "after"}, "score_position: expected last with algo"),
    "values for rloo": ({"algorithm": "rloo", "value_model": "shared"}, "value_model: expected no such setting with"),
    "truncation for rloo": ({"algorithm": "rloo", "top_k": 5}, "logprobs: expected recompute with algorithm rloo"),
    "penalty for drawn lengths": (
        {"output_min_length": 2, "missing_eos_penalty": 0.1},
        "missing_eos_penalty: expected None with output_min_length",
    ),
    "greedy top_k": ({"eval_top_k": 5}, "eval_temperature: expected a number above 0 with eval_top_k"),
}


def as_flags(settings):
    """The command line that sets these fields."""
    words = []
    for name, value in settings.items():
        words += [f"--{name}", *([] if value is True else map(str, value if isinstance(value, tuple) else [value]))]
    return words


def as_yaml(settings):
    """The YAML text that sets these fields."""
    return yaml.safe_dump({name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()})


@pytest.mark.parametrize("settings, beginning", quick_first(25, CONTRADICTIONS.values()), ids=CONTRADICTIONS)
def test_contradictions_are_one_line_that_begins_with_the_field_from_flags_and_from_yaml(tmp_path, settings, beginning):
    plain = yaml_file(tmp_path, "seed: 1")  # defaults instead of the default preset
    by_flag = error_line("--config", plain, *as_flags(settings))
    assert by_flag.startswith(beginning)
    assert error_line("--config", yaml_file(tmp_path, as_yaml(settings))) == by_flag


# Values at the edge of what is refused.
ACCEPTED = {
    "first token": {"stop_token_id": 0},
    "whitened": {"whiten_rewards": True, "batch_size": 8},
    "shortest group": {"algorithm": "rloo", "num_generations": 2, "batch_size": 2},
    "several completions under ppo": {"num_generations": 4},
    "adapted": {"adap_kl_ctrl": True, "kl_target": 6.0},
    "centred": {"use_score_scaling": True, "use_score_norm": True},
    "clipped": {"reward_clip_range": (-1.0, 1.0)},
    "normalised": {"algorithm": "rloo", "normalize_advantages": True},
    "no stop token": {"stop_token": "none"},
    "prefixes without a curriculum": {"reference_prefixes": 2},
    "a curriculum": {"curriculum": "success", "curriculum_success": -2.0, "curriculum_threshold": 1.0},
    "one output length": {"output_min_length": 53},
    "one input length": {"input_min_text_length": 3, "input_max_text_length": 3},
    "every token": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "most likely token": {"top_k": 1, "top_p": 1e-9, "min_p": 1.0},
    "fractions": {"save_steps": 0.5, "eval_steps": 0.999},
    "micro-batches of one": {"batch_size": 8, "num_mini_batches": 2, "gradient_accumulation_steps": 4},
}


@pytest.mark.parametrize("settings", quick_first(4, ACCEPTED.values()), ids=ACCEPTED)
def test_settings_at_the_edge_are_taken_from_flags_and_from_yaml_and_survive_write_yaml(tmp_path, settings):
    made = parse("--config", yaml_file(tmp_path, "seed: 1"), *as_flags(settings))
    assert {name: flatten(made)[name] for name in settings} == settings
    again = parse("--config", yaml_file(tmp_path, as_yaml(settings | {"seed": 1})))
    write_yaml(made, tmp_path / "written.yaml")
    back = parse("--config", str(tmp_path / "written.yaml"))
    assert replace(made, config=None) == replace(again, config=None) == replace(back, config=None)


def test_stop_ids_are_those_in_force():
    assert SamplingConfig().stop_ids((7, 3)) == SamplingConfig(stop_token="eos").stop_ids((7, 3)) == (7, 3)
    assert SamplingConfig(stop_token_id=0).stop_ids((7, 3)) == (0,)  # 0 is a token, not a missing value
    assert SamplingConfig(stop_token="none").stop_ids((7, 3)) == ()


def test_truncates_says_whether_any_token_may_be_left_out():
    assert not SamplingConfig(min_p=0.0).truncates
    assert all(SamplingConfig(**setting).truncates for setting in ({"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}))


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8])
def test_check_devices_accepts_mini_batches_that_divide(num_devices):
    replace(TrainConfig(), batch_size=32, num_mini_batches=4).check_devices(num_devices)
    replace(SFTConfig(), batch_size=8).check_devices(num_devices)


def test_check_devices_names_the_size_and_the_number_of_devices():
    micro = r"batch_size / num_mini_batches / gradient_accumulation_steps"
    for changes, message in (
        ({"batch_size": 24, "num_mini_batches": 4}, rf"{micro}: expected a multiple of .* \(4\), got 6"),
        ({"batch_size": 32, "num_mini_batches": 4, "gradient_accumulation_steps": 4}, rf"{micro}: .*, got 2"),
        ({"batch_size": 24, "algorithm": "rloo"}, r"batch_size / num_generations: expected a .* \(4\), got 6"),
        ({"batch_size": 24, "num_generations": 4}, r"batch_size / num_generations: .*, got 6"),
    ):
        train = replace(TrainConfig(), **changes)
        train.check_devices(2)
        with pytest.raises(ConfigError, match=message):
            train.check_devices(4)
    with pytest.raises(ConfigError, match=r"batch_size: expected a multiple of data x fsdp devices \(4\), got 6"):
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
        (0.5, 10, [5, 10]),
        (0.01, 4, [1, 2, 3, 4]),
        (0.9, 4, [4]),
        (3, 7, [3, 6, 7]),
        (1, 3, [1, 2, 3]),
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
        ({"num_train_epochs": 2.0}, 200),
        ({"num_train_epochs": 0.5}, 50),
        ({"num_train_epochs": 0.001}, 1),  # at least one
        ({"num_train_epochs": 2.0, "algorithm": "rloo"}, 800),  # 4 completions of each of 100 prompts, twice
        ({"num_train_epochs": 2.0, "num_generations": 2}, 400),
        ({"num_train_epochs": 2.0, "total_episodes": 7}, 7),
        ({}, 300),
    ],
)
def test_with_episodes_counts_completions_of_all_passes_unless_they_are_given(changes, episodes):
    train = replace(TrainConfig(), **changes).with_episodes(100)
    assert train.total_episodes == episodes
    assert train.num_updates == -(-episodes // 64)
    assert train.with_episodes(3) == train


def groups(config_class):
    """The class and the classes of its groups."""
    values = [getattr(config_class(), spec.name) for spec in dataclasses.fields(config_class)]
    return [config_class, *(type(value) for value in values if dataclasses.is_dataclass(value))]


@pytest.mark.parametrize("config_class", CONFIGS)
def test_every_field_name_is_unique_over_all_groups(config_class):
    specs = [spec for group in groups(config_class) for spec in dataclasses.fields(group)]
    names = [spec.name for spec in specs]
    assert len(names) == len(set(names)) == len(flatten(config_class())) + len(groups(config_class)) - 1


@pytest.mark.parametrize("config_class", CONFIGS)
def test_every_field_has_a_sentence_of_help(config_class):
    for group in groups(config_class):
        body = ast.parse(inspect.getsource(group)).body[0].body
        for statement, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and not is_group(config_class, statement.target.id):
                text = after.value.value if isinstance(after, ast.Expr) else ""
                assert isinstance(text, str) and text.rstrip().endswith("."), f"{group.__name__}.{statement.target.id}"


def is_group(config_class, name):
    return dataclasses.is_dataclass(getattr(config_class(), name, None))


def test_parse_sizes_reads_a_list():
    assert parse_sizes("5:100, 6:200") == {5: 100, 6: 200}


@pytest.mark.parametrize("text", ["", "5", "5:", "5:1,", "5:1;6:2", "5:-1", "0:5", "5:0", "5:1,5:2", "a:b"])
def test_parse_sizes_names_what_it_cannot_read(text):
    with pytest.raises(ConfigError, match=r"rl_sizes: expected .* got "):
        parse_sizes(text, "rl_sizes")
