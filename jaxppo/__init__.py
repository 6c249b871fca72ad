"""jaxppo: PPO for causal language models in JAX, with rewards computed on the host.

A notebook needs no more than `import jaxppo`, which loads nothing yet. `jaxppo.train.train(config)` carries out a run,
`jaxppo.PPO` has the stages of one update, and the rooms (`jaxppo.data`, `jaxppo.hf`, ...) are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# ruff: noqa: F401 - imported for type checkers and editors alone, the same names as in NAMES
if TYPE_CHECKING:
    from jaxppo import (
        config,
        data,
        errors,
        evaluate,
        export,
        hf,
        models,
        nn,
        planning,
        report,
        reward_functions,
        reward_model,
        rewards,
        rl,
        run,
        self_train,
        sft,
        toys,
        train,
        types,
    )
    from jaxppo.config import (
        EvaluateConfig,
        ExportConfig,
        RewardModelConfig,
        SFTConfig,
        TrainConfig,
    )
    from jaxppo.config.sources import preset_values, replace
    from jaxppo.data import decode, encode_prompts, load_split, pad_left
    from jaxppo.evaluate.__main__ import evaluate as evaluate_models
    from jaxppo.hf import load_policy, load_pretrained, save_pretrained
    from jaxppo.models import apply, init_params
    from jaxppo.parallel.devices import DataParallel
    from jaxppo.planning import validate_plan
    from jaxppo.reward_functions.plan import make_plan_reward
    from jaxppo.rewards import Completions, Reward, Rewards, lccs, lcs
    from jaxppo.rl.learner import PPO
    from jaxppo.train import train as train_policy

__version__ = "0.1.0"

NAMES = {
    "train_policy": "train:train",
    "evaluate_models": "evaluate.__main__:evaluate",
    "TrainConfig": "config",
    "SFTConfig": "config",
    "RewardModelConfig": "config",
    "EvaluateConfig": "config",
    "ExportConfig": "config",
    "replace": "config.sources",
    "preset_values": "config.sources",
    "load_pretrained": "hf",
    "load_policy": "hf",
    "save_pretrained": "hf",
    "init_params": "models",
    "apply": "models",
    "load_split": "data",
    "encode_prompts": "data",
    "pad_left": "data",
    "decode": "data",
    "validate_plan": "planning",
    "make_plan_reward": "reward_functions.plan",
    "Reward": "rewards",
    "Rewards": "rewards",
    "Completions": "rewards",
    "lccs": "rewards",
    "lcs": "rewards",
    "DataParallel": "parallel.devices",
    "PPO": "rl.learner",
}
"""Name -> the module that defines it, or `module:name` where it is called something else there."""

MODULES = (
    *(
        "config",
        "data",
        "errors",
        "evaluate",
        "export",
        "hf",
        "models",
        "nn",
        "planning",
        "report",
        "reward_functions",
    ),
    *("reward_model", "rewards", "rl", "run", "self_train", "sft", "toys", "train", "types"),
)
"""Modules that need no import of their own. A name above must not be one of them: Python would replace it."""

__all__ = ["__version__", *NAMES, *MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # or a misspelt name would be of any type

    def __getattr__(name: str) -> Any:
        """Import what is asked for, on first use (PEP 562)."""
        if name in MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, there = NAMES[name].partition(":")
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), there or name)
        return value


def __dir__() -> list[str]:
    """Return everything that is offered, loaded or not."""
    return sorted({*globals(), *__all__})
