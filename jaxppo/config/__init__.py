"""Every setting of the commands: frozen dataclasses in groups, checked when made.

In: presets, YAML files and flags (`sources`). Out: one configuration per command. Names are TRL's where TRL has the
field, and unique over all groups.
"""

from jaxppo.config import old_settings, paths, reading, redact, sources
from jaxppo.config.algorithms import ALGORITHMS, Algorithm
from jaxppo.config.checks import JsonMapping, Validator, is_repo_id, require, require_repo_id
from jaxppo.config.commands import (
    EvaluateConfig,
    ExportConfig,
    ReportConfig,
    RewardServerConfig,
)
from jaxppo.config.data import (
    DEFAULT_EVAL_SPLITS,
    SPLITS,
    DataConfig,
    parse_sizes,
)
from jaxppo.config.hub import HubConfig
from jaxppo.config.optimizer import OptimizerConfig, PeftConfig
from jaxppo.config.reward import RewardConfig, is_reward_server, reward_name
from jaxppo.config.rl import RLConfig
from jaxppo.config.run import LoopConfig, RunConfig
from jaxppo.config.sampling import EvalConfig, SamplingConfig
from jaxppo.config.self_train import SelfTrainConfig
from jaxppo.config.supervised import DEFAULT_PAIR_SPLITS, RewardModelConfig, SFTConfig
from jaxppo.config.train import TrainConfig

__all__ = [
    "ALGORITHMS",
    "DEFAULT_EVAL_SPLITS",
    "DEFAULT_PAIR_SPLITS",
    "SPLITS",
    "Algorithm",
    "DataConfig",
    "EvalConfig",
    "EvaluateConfig",
    "ExportConfig",
    "HubConfig",
    "JsonMapping",
    "LoopConfig",
    "OptimizerConfig",
    "PeftConfig",
    "RLConfig",
    "ReportConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RewardServerConfig",
    "RunConfig",
    "SFTConfig",
    "SamplingConfig",
    "SelfTrainConfig",
    "TrainConfig",
    "Validator",
    "is_repo_id",
    "is_reward_server",
    "old_settings",
    "parse_sizes",
    "paths",
    "reading",
    "redact",
    "require",
    "require_repo_id",
    "reward_name",
    "sources",
]
