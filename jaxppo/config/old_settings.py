"""Settings of older versions: the message for a flag that has one, and how a file that has one is read."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from jaxppo.config.data import DEFAULT_EVAL_SPLITS, DEFAULT_PARTS, as_list, merge_parts

_SCORE_SCALING = {(False, False): "none", (True, False): "scale", (True, True): "norm"}
"""Old `use_score_scaling` and `use_score_norm` -> `score_scaling`."""
_OLD_PROMPT_LENGTH = 512
"""`max_prompt_length` of older versions with `filter_overlong_prompts`, where none was set."""


class OldSetting(NamedTuple):
    """A setting that was removed.

    Attributes:
        advice: what to do instead, as the end of a message.
        neutral_values: values that say no more than leaving the setting out, as in the `config.yaml` of an old run.
        moved_to: the setting that holds its value now, and the key of the value in it; key "" for words DOMAIN:VALUE.
        lost_by: the classes of settings that lost it, where another command still has it; (): it is gone from all.
    """

    advice: str
    neutral_values: tuple[Any, ...] = (None,)
    moved_to: tuple[str, str] | None = None
    lost_by: tuple[str, ...] = ()

    def is_gone_from(self, config_class: type) -> bool:
        """Return whether a command with these settings had it: no other one need hear what became of it."""
        return not self.lost_by or config_class.__name__ in self.lost_by

    def is_neutral(self, value: Any) -> bool:
        """Return whether a file with this value means the same without it."""
        value = tuple(value) if isinstance(value, list) else value
        # In Python 0 == False and 1 == True: a switch is compared with switches alone.
        return any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
            for neutral in self.neutral_values
        )


def translate_old_settings(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file under their present names, without old ones whose value is neutral.

    Old settings that have neither a neutral value nor a successor stay: whoever checks the names refuses them.

    Args:
        values: of the file.
        names: the settings that the command has.
    """
    result = {}
    moved: dict[str, list[str]] = {}
    for name, value in _with_joined(values, names).items():
        setting = OLD_SETTINGS.get(name)
        # `stream_lengths` is an old name and a present one: text
        # was the old form, a list of KEY=VALUE is the new one.
        is_old = name not in names or (name == "stream_lengths" and isinstance(value, str))
        if setting is None or not is_old:
            result[name] = value
        elif setting.is_neutral(value):
            continue
        elif setting.moved_to is not None:
            successor, key = setting.moved_to
            words = (
                [f"{key}={value}"]
                if key
                else [word.replace(":", "=", 1) for word in as_list(value)]
            )
            moved.setdefault(successor, []).extend(words)
        else:
            result[name] = value
    for successor, words in moved.items():
        # Old words come first, so that a file which names
        # both forms means the present one: the last counts.
        result[successor] = [*words, *as_list(result.get(successor) or ())]
    return result


def _with_joined(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file, those that were two and are one now under its name.

    Where the two cannot be one, the old names stay.

    Args:
        values: of the file.
        names: the settings that the command has.
    """
    values = dict(values)
    # The function `server` had its address in a setting of its own.
    url = values.get("reward_server_url")
    functions = as_list(values.get("reward_funcs"))
    if url is not None and "server" in functions:
        functions = [url if function == "server" else function for function in functions]
        values |= {"reward_funcs": functions, "reward_server_url": None}
    if isinstance(values.get("early_stopping"), bool) and "target_kl" in names:
        # The target had a value in any case, which nothing read without early_stopping.
        target = values.pop("target_kl", None)
        if values.pop("early_stopping"):
            values["target_kl"] = 1.0 if target is None else target
    scaling = (values.get("use_score_scaling", False), values.get("use_score_norm", False))
    has_scaling = "use_score_scaling" in values or "use_score_norm" in values
    if has_scaling and scaling in _SCORE_SCALING and "score_scaling" not in values:
        values.pop("use_score_scaling", None)
        values.pop("use_score_norm", None)
        values["score_scaling"] = _SCORE_SCALING[scaling]
    has_lengths = {"input_min_text_length", "input_max_text_length"} <= values.keys()
    if has_lengths and "input_text_length" not in values:
        lengths = [values.pop("input_min_text_length"), values.pop("input_max_text_length")]
        values["input_text_length"] = None if lengths == [None, None] else lengths
    if isinstance(values.get("filter_overlong_prompts"), bool) and "max_prompt_length" in names:
        is_filtered = values.pop("filter_overlong_prompts")
        if is_filtered and values.get("max_prompt_length") is None:
            values["max_prompt_length"] = _OLD_PROMPT_LENGTH
    for old_name, name in (
        ("stop_token_id", "stop_token"),
        ("sentiment_model_path", "reward_model_path"),
    ):
        if values.get(old_name) is not None and values.get(name) is None:
            values[name] = values.pop(old_name)
    if values.get("stop_token", "eos") is None:
        values["stop_token"] = "eos"  # which it meant
    splits = as_list(values.get("eval_splits", DEFAULT_EVAL_SPLITS))
    headline = values.get("headline_split")
    if headline is not None and headline in splits:
        del values["headline_split"]
        if "eval_splits" in values or headline != splits[-1]:
            values["eval_splits"] = [split for split in splits if split != headline] + [headline]
    return values


def with_default_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, with the defaults of those parts (KEY=VALUE) that they do not name."""
    result = dict(values)
    for name in DEFAULT_PARTS.keys() & values.keys():
        result[name] = list(merge_parts(name, values[name]))
    return result


def _moved(setting: str, key: str, example: str, default: Any) -> OldSetting:
    return OldSetting(f"say --{setting} {example}", (default,), (setting, key))


def _lost_by_reward_model(default: Any) -> OldSetting:
    advice = "--model_path names a model to start from"
    return OldSetting(advice, (default,), lost_by=("RewardModelConfig",))


OLD_SETTINGS: dict[str, OldSetting] = {
    "train_sizes": _moved("sizes", "train", "train=3:2000", "3:2000,4:6000,5:24000"),
    "rl_sizes": _moved("sizes", "rl", "rl=5:400", "5:400,6:2600"),
    "test_sizes": _moved("sizes", "test", "test=4:40", "4:40,5:400"),
    "test_longer_sizes": _moved("sizes", "test_longer", "test_longer=6:1024", "6:1024"),
    "stream_sizes": _moved("sizes", "", "blocksworld=2-6", ()),
    "stream_lengths": _moved("stream_lengths", "train", "train=1-10", "1-10"),
    "stream_rl_lengths": _moved("stream_lengths", "rl", "rl=6-16", None),
    "stream_long_lengths": _moved("stream_lengths", "test_longer", "test_longer=12-20", "12-20"),
    "stream_problems": _moved("stream_rows", "train", "train=16000", None),
    "stream_rl_rows": _moved("stream_rows", "rl", "rl=500", 500),
    "stream_test_rows": _moved("stream_rows", "test", "test=50", 50),
    "early_stopping": OldSetting("--target_kl with a number says it"),
    "use_score_scaling": OldSetting("say --score_scaling scale"),
    "use_score_norm": OldSetting("say --score_scaling norm"),
    "input_min_text_length": OldSetting("a file has it as input_text_length: [LOW, HIGH]"),
    "input_max_text_length": OldSetting("a file has it as input_text_length: [LOW, HIGH]"),
    "filter_overlong_prompts": OldSetting("--max_prompt_length leaves longer prompts out"),
    "stop_token_id": OldSetting("say --stop_token with the id"),
    "sentiment_model_path": OldSetting("say --reward_model_path"),
    "headline_split": OldSetting("it is the last of --eval_splits"),
    "peak_tflops": OldSetting("divide throughput/tflops by the peak that is meant"),
    "num_processes": OldSetting("say --distributed HOST:PORT,NUMBER/COUNT"),
    "process_id": OldSetting("say --distributed HOST:PORT,NUMBER/COUNT"),
    "coordinator_address": OldSetting("say --distributed HOST:PORT,NUMBER/COUNT"),
    "connect_timeout_s": OldSetting("set JAXPPO_CONNECT_TIMEOUT_S in the environment", (120,)),
    "adap_kl_ctrl": OldSetting("--kl_target with a number says it", (False, True)),
    "allow_missing_plans": OldSetting(
        "write a line with `plan: null` for a missing plan", (False,)
    ),
    "allow_unknown_plans": OldSetting("leave plans for other rows out of the file", (False,)),
    "allow_unmatched_plans": OldSetting(
        "write a line with `plan: null` for a missing plan, and leave plans for other rows out",
        (False,),
    ),
    "num_key_value_heads": OldSetting("say --model_kwargs '{\"num_key_value_heads\": 2}'"),
    "rotary_pct": OldSetting("say --model_kwargs '{\"rotary_pct\": 0.25}'", (1.0,)),
    "tie_word_embeddings": OldSetting("say --model_kwargs '{\"tie_word_embeddings\": true}'"),
    "streaming": OldSetting("leave it out: rows are read before the first step", (False,)),
    "shuffle_buffer_size": OldSetting("leave it out: all rows are shuffled", (10000,)),
    "reference_prefixes": OldSetting("it made no difference (docs/results.md)", (0,)),
    "dynamic_sampling": OldSetting("it made no difference (docs/results.md)", (False,)),
    "curriculum": OldSetting(
        "it made no difference (docs/results.md); a run that had one can be exported, and cannot go on",
        ("none",),
    ),
    "curriculum_success": OldSetting("it went with curriculum", (1.0,)),
    "curriculum_threshold": OldSetting("it went with curriculum", (0.8,)),
    "max_resample": OldSetting("it went with dynamic_sampling", (3,)),
    "importance_cap": OldSetting("policy/sampler_gap_max says how far the sampler is off"),
    "lam_value": OldSetting(
        "it made no difference (docs/results.md); --lam is that of the returns, too"
    ),
    "value_warmup_updates": OldSetting("it made no difference (docs/results.md)", (0,)),
    "length_penalty": OldSetting(
        "write a module:function for --reward_funcs (docs/own_reward.md)", (0.0,)
    ),
    "reward_level": OldSetting("its gain was within the intervals (docs/results.md)", ("outcome",)),
    "repair_rounds": OldSetting(
        "--num_samples K solves as many problems (docs/experiments/repair.md)", (0,)
    ),
    "repair_with": OldSetting("it went with repair_rounds", ("reason",)),
    "repair_temperature": OldSetting("it went with repair_rounds"),
    "optimal_planner": OldSetting(
        "--planner with an optimal planner makes the reference plans themselves optimal"
    ),
    "obfuscated_domains": OldSetting("all of --domains are obfuscated"),
    "obfuscation": OldSetting(
        "half of the rows have each style, which their column `obfuscation` names", ("both",)
    ),
    "file_format": OldSetting("splits are JSON lines, which `datasets` reads", ("jsonl",)),
    "plans": OldSetting(
        "results of planners are kept in output_dir/plans.jsonl",
        lost_by=("BuildConfig", "ImportConfig"),
    ),
    "splits": OldSetting("`planning inspect` looks at all splits", lost_by=("InspectConfig",)),
    "validator": OldSetting(
        "`planning inspect` asks the built-in validator where it can", lost_by=("InspectConfig",)
    ),
    "json": OldSetting(
        "the status of `planning inspect` says whether something is wrong",
        lost_by=("InspectConfig",),
    ),
    "soft_punish_cache": OldSetting(
        "write a module:function for --reward_funcs (docs/own_reward.md)"
    ),
    "reward_server_url": OldSetting("say --reward_funcs http://HOST:8000 in place of server"),
    "reward_server_columns": OldSetting("a server always gets the columns", (False, True)),
    "max_waiting": OldSetting("it is 32", (32,)),
    "max_body_mib": OldSetting("it is 64", (64.0,)),
    "reward_cache_size": OldSetting("a function can keep its results itself (functools.cache)"),
    "center_on": OldSetting("the mean score of the chosen texts is always stored", ("chosen",)),
    "on_timeout": OldSetting("a completion that takes too long is left out", ("skip",)),
    "pool": OldSetting("its gain was within the intervals (docs/experiments/)", ("round",)),
    "start_from": OldSetting("every round trains the model that the run started from", ("start",)),
    "old_metric_names": OldSetting("docs/metrics.md has the names of TRL 0.11", (False,)),
    "adam_beta1": OldSetting("it is 0.9", (0.9,)),
    "reward_workers": OldSetting("a function with a time limit has two processes", (2,)),
    "stream_workers": OldSetting("one process prepares the rows of a stream", (1,)),
    "tokenizer_path": _lost_by_reward_model("blocksworld-sft"),
    "hidden_size": _lost_by_reward_model(128),
    "num_hidden_layers": _lost_by_reward_model(4),
    "num_attention_heads": _lost_by_reward_model(4),
    "greater_is_better": OldSetting(
        "a metric_for_best_model that ends with loss is best where it is lowest", (True,)
    ),
}
"""Name -> what became of it. A flag of these names is refused; a file is read where its meaning is still available."""
