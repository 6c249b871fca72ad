"""The settings of `python -m jaxppo.self_train`."""

from dataclasses import dataclass, field
from typing import ClassVar

from jaxppo.config.checks import (
    ComputeDtype,
    Validator,
    require,
    require_default,
    require_divisible,
    require_finite,
    require_positive,
)
from jaxppo.config.data import DataConfig
from jaxppo.config.hub import HubConfig
from jaxppo.config.optimizer import OptimizerConfig
from jaxppo.config.reward import TRAINING_REWARD_FIELDS, RewardConfig
from jaxppo.config.run import LoopConfig, RunConfig
from jaxppo.config.sampling import EvalConfig, SamplingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTrainConfig:
    """Self-training on planning problems: sample plans, keep the valid ones, learn from them, and again."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "--preset tiny",
        "--sft_model_path blocksworld-sft",
        "--dataset blocksworld",
        "--num_rounds 3",
        "--num_generations 4",
        "--total_episodes 15360",
        "--temperature 1.0",
        "--response_length 72",
        "--sft_episodes 12800",
        "--learning_rate 1e-3",
        "--output_dir outputs/rounds",
        "--resume",
    )
    """What `--help` begins with: the flags that a newcomer needs, in the order of use."""
    UNREAD: ClassVar[tuple[str, ...]] = (
        "value_learning_rate",
        "adam_beta2",
        "number_objects",
        "eval_validator",
        "eval_top_k",
        "eval_top_p",
        "target",
        "metric_for_best_model",
        "output_min_length",
        "drop_ended_rows",
        "min_p",
        "input_text_length",
        "prompt_column",
        "min_prompt_characters",
        "reward_funcs",
        "reward_model_path",
        *TRAINING_REWARD_FIELDS,
    )
    """Fields of the groups that this command does not read."""

    run: RunConfig = field(default_factory=RunConfig)
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(save_steps=100))
    data: DataConfig = field(default_factory=lambda: DataConfig(train_split="rl"))
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-4, warmup_steps=20)
    )
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    sft_model_path: str = "blocksworld-sft"
    """Policy to start from: a Hugging Face folder, a hub id (user/name or user/name@revision), or a shipped model
    (`blocksworld-sft`, `planning-multi-sft`)."""
    dtype: ComputeDtype = "float32"
    """Numbers that the model computes in; trained parameters, logits and statistics are float32 in any case."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of all layers but the last for the gradient, and compute the rest again: less memory for
    deep models and long texts, for up to a third more arithmetic in learning."""
    validator: Validator = "builtin"
    """Who judges the sampled plans: the in-process validator, the VAL binary, or builtin where it covers the domain."""
    num_rounds: int = 3
    """Rounds of sampling, keeping, learning and evaluating."""
    total_episodes: int | None = None
    """Plans to sample over the whole run, as of train, rounded up to whole problems of each round; default: each round
    samples for every problem of train_split once."""
    num_generations: int = 4
    """Plans sampled for each problem of a round."""
    max_plans_per_problem: int = 2
    """Most plans of a problem that are learned from: its shortest valid ones, all different; of plans of one length the
    one sampled first."""
    start_split: str = "train"
    """Split with data that the start was trained on; see start_ratio."""
    start_ratio: float = 1.0
    """Rows of start_split to learn from beside each kept plan, drawn anew in each round, so that a round does not
    forget what the start can do; 0 for none."""
    sft_episodes: int = 12800
    """Rows to learn from in each round, rounded up to whole steps; a row seen twice counts twice."""
    batch_size: int = 64
    """Rows per optimizer step, over all devices."""
    sample_batch_size: int = 256
    """Plans sampled at once; a killed run has lost no more than num_generations times as many."""

    def __post_init__(self) -> None:
        require_positive(self, "num_rounds", "num_generations", "max_plans_per_problem")
        require_positive(self, "sft_episodes", "batch_size", "sample_batch_size")
        require_positive(self, "total_episodes")
        require_finite(self, "start_ratio")
        require(len(self.data.eval_splits) > 0, "eval_splits", "at least one split", ())
        is_other_split = self.start_split != self.data.train_split
        require(
            is_other_split or self.start_ratio == 0,
            "start_split",
            "another than train_split",
            self.start_split,
        )
        self._check_groups()
        self._check_sampling()

    def _check_groups(self) -> None:
        """Refuse settings of the shared groups that other commands read and this one does not."""
        functions = self.reward.reward_funcs
        requirement = "plan alone: what is kept is what a validator accepts"
        require(functions == ("plan",), "reward_funcs", requirement, functions)
        metric = self.loop.best_metric
        require(
            metric is None, "metric_for_best_model", "None: a round takes its last step", metric
        )
        for group, name in (
            (self.optimizer, "value_learning_rate"),
            (self.data, "input_text_length"),
            (self.run, "target"),
            (self.sampling, "output_min_length"),
            (self.sampling, "min_p"),
            (self.sampling, "drop_ended_rows"),
        ):
            require_default(group, name, "with self_train")

    def _check_sampling(self) -> None:
        sampling = self.sampling
        if self.num_generations > 1 or self.num_rounds > 1:
            requirement = "a number above 0: greedy plans of a problem are all the same"
            require(sampling.temperature > 0, "temperature", requirement, sampling.temperature)
        require(
            sampling.stop_token != "none",
            "stop_token",
            "eos or None: a plan ends",
            sampling.stop_token,
        )

    def problems_per_round(self, num_problems: int) -> int:
        """Return how many problems each round samples plans for.

        Args:
            num_problems: rows of train_split.
        """
        if self.total_episodes is None:
            return num_problems
        return -(-self.total_episodes // (self.num_rounds * self.num_generations))

    @property
    def num_updates(self) -> int:
        """Optimizer steps of each round."""
        return -(-self.sft_episodes // self.batch_size)

    def check_devices(self, row_shards: int) -> None:
        """Raise a `ConfigError` unless every batch divides over the devices."""
        require_divisible("batch_size", self.batch_size, "data x fsdp devices", row_shards)
