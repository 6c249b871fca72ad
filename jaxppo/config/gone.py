"""Settings of older versions: what is said where one is given, and what a file that has one means."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from jaxppo.config.data import USUAL_PARTS, with_usual_parts


class Gone(NamedTuple):
    """A setting that there is no more.

    Attributes:
        instead: what to do, as the end of a message.
        harmless: values with which a file, such as the `config.yaml` of an old run, means what it means without them.
        part: the setting that has its value now, and the key of the value there; "" for words DOMAIN:VALUE.
    """

    instead: str
    harmless: tuple[Any, ...] = (None,)
    part: tuple[str, str] | None = None

    def changes_nothing(self, value: Any) -> bool:
        """Return whether a file with this value means the same without it."""
        value = tuple(value) if isinstance(value, list) else value
        return any(value == usual and isinstance(value, bool) == isinstance(usual, bool) for usual in self.harmless)


def renewed(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file by the names of today, without those that are gone where they change nothing.

    Args:
        values: of the file.
        names: the settings that the command has.
    """
    result, parts = {}, {}
    for name, value in values.items():
        gone = GONE.get(name)
        is_old = name not in names or (name == "stream_lengths" and isinstance(value, str))
        if gone is None or not is_old:
            result[name] = value
        elif gone.changes_nothing(value):
            continue
        elif gone.part is not None:
            setting, key = gone.part
            words = [f"{key}={value}"] if key else [word.replace(":", "=", 1) for word in value]
            parts[setting] = [*parts.get(setting, ()), *words]
        else:
            result[name] = value
    return result | {name: [*words, *(result.get(name) or ())] for name, words in parts.items()}


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with the usual values of those parts that they do not name."""
    parts = {name: usual for name, usual in USUAL_PARTS.items() if name in values}
    return dict(values) | {name: list(with_usual_parts(name, usual, values[name])) for name, usual in parts.items()}


def _moved(name: str, example: str, usual: Any, setting: str, key: str) -> dict[str, Gone]:
    return {name: Gone(f"say --{setting} {example}", (usual,), (setting, key))}


GONE: dict[str, Gone] = {
    **_moved("train_sizes", "train=3:2000", "3:2000,4:6000,5:24000", "sizes", "train"),
    **_moved("rl_sizes", "rl=5:400", "5:400,6:2600", "sizes", "rl"),
    **_moved("test_sizes", "test=4:40", "4:40,5:400", "sizes", "test"),
    **_moved("test_longer_sizes", "test_longer=6:1024", "6:1024", "sizes", "test_longer"),
    **_moved("stream_sizes", "blocksworld=2-6", (), "sizes", ""),
    **_moved("stream_lengths", "train=1-10", "1-10", "stream_lengths", "train"),
    **_moved("stream_rl_lengths", "rl=6-16", None, "stream_lengths", "rl"),
    **_moved("stream_long_lengths", "test_longer=12-20", "12-20", "stream_lengths", "test_longer"),
    **_moved("stream_problems", "train=16000", None, "stream_rows", "train"),
    **_moved("stream_rl_rows", "rl=500", 500, "stream_rows", "rl"),
    **_moved("stream_test_rows", "test=50", 50, "stream_rows", "test"),
    "num_processes": Gone("say --coordinator_address HOST:PORT,NUMBER/COUNT"),
    "process_id": Gone("say --coordinator_address HOST:PORT,NUMBER/COUNT"),
    "connect_timeout_s": Gone("set JAXPPO_CONNECT_TIMEOUT_S in the environment", (120,)),
    "adap_kl_ctrl": Gone("--kl_target with a number says it", (False, True)),
    "allow_missing_plans": Gone("say --allow_unmatched_plans", (False,)),
    "allow_unknown_plans": Gone("say --allow_unmatched_plans", (False,)),
    "num_key_value_heads": Gone("say --model_kwargs '{\"num_key_value_heads\": 2}'"),
    "rotary_pct": Gone("say --model_kwargs '{\"rotary_pct\": 0.25}'", (1.0,)),
    "tie_word_embeddings": Gone("say --model_kwargs '{\"tie_word_embeddings\": true}'"),
    "dynamic_sampling": Gone("--curriculum success draws prompts that teach something (docs/results.md)", (False,)),
    "max_resample": Gone("it went with dynamic_sampling", (3,)),
    "importance_cap": Gone("policy/sampler_gap_max says how far the sampler is off"),
    "lam_value": Gone("it made no difference (docs/results.md); --lam is that of the returns, too"),
    "value_warmup_updates": Gone("it made no difference (docs/results.md)", (0,)),
    "length_penalty": Gone("write a module:function for --reward_funcs (docs/own_reward.md)", (0.0,)),
    "reward_level": Gone("its gain was within the intervals (docs/results.md)", ("outcome",)),
    "soft_punish_cache": Gone("write a module:function for --reward_funcs (docs/own_reward.md)"),
    "greater_is_better": Gone("a metric_for_best_model that ends with loss is best where it is lowest", (True,)),
}
"""Name -> what became of it. A flag of these names is refused; a file is read where it means what there still is."""
