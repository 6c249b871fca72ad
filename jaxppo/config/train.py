"""The settings of `python -m jaxppo.train`."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from jaxppo.config.checks import (
    ComputeDtype,
    Validator,
    require,
    require_default,
    require_divisible,
    require_finite,
    require_positive,
    without_flag,
)
from jaxppo.config.data import DataConfig
from jaxppo.config.hub import HubConfig
from jaxppo.config.optimizer import OptimizerConfig, PeftConfig
from jaxppo.config.reward import RewardConfig
from jaxppo.config.rl import RLConfig
from jaxppo.config.run import LoopConfig, RunConfig, with_best_metric
from jaxppo.config.sampling import EvalConfig, SamplingConfig
from jaxppo.errors import ConfigError

MIN_ROWS_TO_WHITEN = 8
"""Fewest completions whose rewards may be whitened, as in TRL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """PPO on planning problems, rewarded by a plan validator."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "--preset tiny",
        "--sft_model_path Qwen/Qwen3-0.6B",
        "--dataset blocksworld",
        "--reward_funcs plan",
        "--algorithm rloo",
        "--response_length 128",
        "--total_episodes 15360",
        "--batch_size 64",
        "--learning_rate 1e-5",
        "--kl_coef 0.02",
        "--output_dir outputs/first",
        "--resume",
    )
    """What `--help` begins with: the flags that a newcomer needs, in the order of use."""
    UNREAD: ClassVar[tuple[str, ...]] = (
        "adam_beta2",
        "eval_validator",
        "eval_top_k",
        "eval_top_p",
    )
    """Fields of the groups that this command does not read."""

    run: RunConfig = field(default_factory=RunConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    data: DataConfig = field(default_factory=lambda: DataConfig(train_split="rl"))
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    peft: PeftConfig = field(default_factory=PeftConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    sft_model_path: str = "blocksworld-sft"
    """Policy to start from, also the reference: a Hugging Face folder, a hub id (user/name or user/name@revision), or
    a shipped model (`blocksworld-sft`, `planning-multi-sft`)."""
    dtype: ComputeDtype = "float32"
    """Numbers that all models compute in; trained parameters, logits and statistics are float32 in any case."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of all layers but the last for the gradient, and compute the rest again: less memory for
    deep models and long texts, for up to a third more arithmetic in learning, half with adapters."""
    validator: Validator = "builtin"
    """Who judges plans in training: the in-process validator, the VAL binary, or builtin where it covers the domain."""
    value_model: Literal["separate", "shared"] = "separate"
    """Value function: a model of its own (TRL's PolicyAndValueWrapper), or a head on the policy's trunk."""
    value_model_path: str | None = None
    """What to start the value function from: a model for value_model separate (a reward model, for instance; a fresh
    head where it has none), a folder with a value head for shared. Default: the policy's trunk and a fresh head."""
    num_train_epochs: float = 3.0
    """Passes over the prompts of train_split, where total_episodes is not given."""
    total_episodes: int | None = None
    """Completions to sample over the whole run, rounded up to whole updates; default: num_train_epochs passes."""
    batch_size: int = 64
    """Completions per update, over all devices."""
    num_sample_generations: int = 10
    """About how many times in the run sample completions are shown, beside those of the last update."""
    max_bad_updates: int = without_flag(3)
    """Stop after this many updates in a row with a loss or gradient that was not finite, or without any score."""
    profile: int = 0
    """Trace this many updates, from the third of this process on: <output_dir>/profile/ gets a trace for Perfetto
    (perfetto_trace.json.gz), TensorBoard and XProf."""

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "max_bad_updates", "total_episodes")
        require_finite(self, "profile", "num_sample_generations")
        epochs = self.num_train_epochs
        require(0.0 < epochs < math.inf, "num_train_epochs", "a finite number above 0", epochs)
        # Greedy completions of a prompt would all be the
        # same, and no action would be better than another.
        require_positive(self.sampling, "temperature")
        rl = self.rl
        require_divisible("batch_size", self.batch_size, "num_generations", rl.group_size)
        require_divisible("batch_size", self.batch_size, "num_mini_batches", rl.num_mini_batches)
        # How many there are by default depends on the devices, which divide the rows themselves.
        micro_batches = rl.gradient_accumulation_steps or 1
        mini_batch = "batch_size / num_mini_batches"
        require_divisible(
            mini_batch, self.mini_batch_size, "gradient_accumulation_steps", micro_batches
        )
        self._check_combinations()

    def _check_combinations(self) -> None:
        rl = self.rl
        with_algorithm = f"with algorithm {rl.algorithm}"
        if not rl.spec.needs_values:
            require_default(self, "value_model_path", with_algorithm)
            require_default(self, "value_model", with_algorithm)
        # The sampler's log-probabilities are of the truncated distribution, see `logprobs`.
        if rl.ratio_level != "token" and self.sampling.truncates:
            requirement = (
                f"recompute {with_algorithm} and top_k, top_p, min_p or repetition_penalty"
            )
            require(self.logprobs == "recompute", "logprobs", requirement, rl.logprobs)
        # The controller multiplies kl_coef by 1 + error *
        # batch_size / kl_horizon, where the error is at least -0.2.
        if rl.kl_target is not None:
            requirement = f"more than 0.2 batch_size ({0.2 * self.batch_size:g}), or kl_coef could change its sign"
            require(rl.kl_horizon > 0.2 * self.batch_size, "kl_horizon", requirement, rl.kl_horizon)
        if rl.whiten_rewards:
            requirement = f"at least {MIN_ROWS_TO_WHITEN} with whiten_rewards"
            require(
                self.batch_size >= MIN_ROWS_TO_WHITEN, "batch_size", requirement, self.batch_size
            )
        if self.sampling.stop_token == "none" or self.sampling.output_min_length is not None:
            no_end = (
                "stop_token none" if self.sampling.stop_token == "none" else "output_min_length"
            )
            for name in ("missing_eos_penalty", "mask_truncated_completions"):
                require_default(rl, name, f"with {no_end}, which cuts completions")

    @property
    def logprobs(self) -> str:
        """Where old log-probabilities come from: "sampler" or "recompute"."""
        if self.rl.logprobs is not None:
            return self.rl.logprobs
        # With what is cut off at every token, the ratio of
        # a completion would start at the product of that.
        is_product = self.rl.ratio_level != "token"
        if self.dtype != "float32" or (is_product and self.sampling.truncates):
            return "recompute"
        return "sampler"

    @property
    def scores_policy(self) -> bool:
        """Whether the policy's log-probabilities or entropies are computed after the rollout."""
        return self.logprobs == "recompute" or self.rl.top_entropy_quantile < 1.0

    @property
    def num_updates(self) -> int:
        """Rollout batches in the whole run."""
        if self.total_episodes is None:
            raise ConfigError(
                "total_episodes: expected a number, or `with_episodes(number of prompts)`, got None"
            )
        # Rounded up (-(-a // b)): every update has a whole batch, also the last one.
        return -(-self.total_episodes // self.batch_size)

    def with_episodes(self, num_prompts: int) -> "TrainConfig":
        """Return this configuration with `total_episodes`: as given, or num_train_epochs passes over the prompts."""
        if self.total_episodes is not None:
            return self
        episodes = max(1, int(self.num_train_epochs * num_prompts * self.rl.group_size))
        return dataclasses.replace(self, total_episodes=episodes)

    def with_best_metric(self) -> "TrainConfig":
        """Return this configuration with the metric filled in by which the best checkpoint is chosen."""
        headline = self.data.headline_split
        return with_best_metric(self, headline) if headline else self

    @property
    def num_prompts(self) -> int:
        """Prompts per update, over all devices."""
        return self.batch_size // self.rl.group_size

    @property
    def mini_batch_size(self) -> int:
        """Completions per optimizer step, over all devices."""
        return self.batch_size // self.rl.num_mini_batches

    @property
    def micro_batch_size(self) -> int:
        """Most completions per forward and backward pass, over all devices."""
        return self.mini_batch_size // (self.rl.gradient_accumulation_steps or 1)

    @property
    def sample_steps(self) -> int:
        """Updates between two shows of sample completions."""
        return max(1, self.num_updates // max(1, self.num_sample_generations))

    def samples_at(self, number: int) -> bool:
        """Return whether the samples of update `number` (from 0) are kept; those of the last one are."""
        due = number % self.sample_steps == 0 or number + 1 == self.num_updates
        return self.num_sample_generations > 0 and due

    def check_devices(self, row_shards: int) -> None:
        """Raise a `ConfigError` unless prompts and every micro-batch divide over the devices."""
        require_divisible(
            "batch_size / num_generations", self.num_prompts, "data x fsdp devices", row_shards
        )
        name = "batch_size / num_mini_batches / gradient_accumulation_steps"
        require_divisible(name, self.micro_batch_size, "data x fsdp devices", row_shards)
