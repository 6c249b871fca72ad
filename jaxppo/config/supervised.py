"""The settings of `python -m jaxppo.sft` and `python -m jaxppo.reward_model`."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from jaxppo.config.checks import (
    ComputeDtype,
    JsonMapping,
    require,
    require_default,
    require_divisible,
    require_finite,
    require_mapping,
    require_positive,
    without_flag,
)
from jaxppo.config.data import TOKENIZER_ARGUMENTS, DataConfig
from jaxppo.config.hub import HubConfig
from jaxppo.config.optimizer import OptimizerConfig, PeftConfig
from jaxppo.config.reward import TRAINING_REWARD_FIELDS, RewardConfig
from jaxppo.config.run import LoopConfig, RunConfig, with_best_metric
from jaxppo.config.sampling import EvalConfig

DEFAULT_PAIR_SPLITS = ("test",)
"""Splits that a reward model is evaluated on where none are named."""

MODEL_KWARGS = {"num_key_value_heads": int, "rotary_pct": (int, float), "tie_word_embeddings": bool}
"""What `model_kwargs` may say, with its types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig:
    """Supervised fine-tuning on reference plans, from scratch or from a model."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "--preset blocksworld",
        "--dataset blocksworld",
        "--train_split train",
        "--model_path Qwen/Qwen3-0.6B",
        "--max_length 512",
        "--total_episodes 76800",
        "--batch_size 64",
        "--learning_rate 1e-3",
        "--use_peft",
        "--eval_splits test",
        "--output_dir outputs/sft",
        "--resume",
    )
    """What `--help` begins with: the flags that a newcomer needs, in the order of use."""
    UNREAD: ClassVar[tuple[str, ...]] = (
        "value_learning_rate",
        "weight_decay",
        "eval_validator",
        "eval_top_k",
        "eval_top_p",
        "n_shots",
        "number_objects",
        "input_text_length",
        "min_prompt_characters",
        "prompt_column",
        "eval_temperature",
        "eval_rows",
        "metric_for_best_model",
        "adam_epsilon",
        "target",
        *TRAINING_REWARD_FIELDS,
    )
    """Fields of the groups that this command does not read."""

    run: RunConfig = field(default_factory=RunConfig)
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(save_steps=200))
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(
            learning_rate=3e-3, lr_scheduler_type="cosine", warmup_steps=50
        )
    )
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    peft: PeftConfig = field(default_factory=PeftConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    model_path: str | None = None
    """Hugging Face folder, hub id or shipped model to go on from; default: a fresh GPT-NeoX of the sizes below."""
    dtype: ComputeDtype = "float32"
    """Numbers that the model computes in; trained parameters, logits and statistics are float32 in any case."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of all layers but the last for the gradient, and compute the rest again: less memory for
    deep models and long texts, for up to a third more arithmetic in learning, half with adapters."""
    tokenizer_path: str | None = None
    """Fresh model: folder or hub id whose tokenizer it takes; default: one token for each word of the data set."""
    model_type: str = "gpt_neox"
    """Fresh model: gpt_neox, gpt2, llama, qwen2, qwen3, mistral, smollm3 or gemma3_text; see docs/models.md."""
    hidden_size: int = 128
    """Fresh model: width."""
    num_hidden_layers: int = 4
    """Fresh model: layers."""
    num_attention_heads: int = without_flag(4)
    """Fresh model: attention heads."""
    model_kwargs: JsonMapping = None
    """Fresh model: more of its configuration, as a YAML mapping or as JSON: num_key_value_heads (in families that let
    others share them; default: as many), rotary_pct (GPT-NeoX: fraction of each head that rotates with the position;
    default: 1), tie_word_embeddings (the head of the language model is the embedding of the words, so that to copy a
    name need not be learned for each one; default: as in the family)."""
    total_episodes: int = 76800
    """Rows to learn from over the whole run, rounded up to whole steps; a row seen twice counts twice."""
    batch_size: int = 64
    """Rows per optimizer step, over all devices."""
    assistant_only_loss: bool = False
    """Learn all turns of the assistant in a chat, instead of the last one alone: what the chat template has in
    `{% generation %}` blocks, else each turn with the token that ends it."""
    max_length: int | None = None
    """Most tokens of a row that is learned, prompt and completion together, in place of max_prompt_length. Default:
    what the model was made for (max_position_embeddings, or the tokenizer's model_max_length where that is less)."""
    overlong: Literal["cut", "drop", "error"] = without_flag("cut")
    """With max_length, what becomes of longer rows: they are cut and keep their beginning, left out, or refused. Those
    of which nothing is left to be learned are left out."""
    augment: str = "none"
    """What is drawn anew for every planning problem in every epoch, by seed, epoch and row: names (of its objects; the
    plan is renamed with them), order (of its atoms), states (of a stream: with which state of its plan every other
    problem begins), or some of them with commas between."""
    response_length: int = 64
    """Most tokens of a completion in the evaluation at the end."""

    def __post_init__(self) -> None:
        exists = {*self.augmented} <= {"names", "order", "states"}
        require(exists, "augment", "none, or some of names,order,states", self.augment)
        # Numbered objects have the names o1, o2, ... of the
        # prompt's order: there is nothing left to rename.
        renames_numbers = "names" in self.augmented and self.data.numbers_objects
        require(not renames_numbers, "augment", "no names with number_objects", self.augment)
        fits = self.is_endless or "states" not in self.augmented
        require(fits, "augment", "states only with train_split train of a stream", self.augment)
        require_default(self.run, "target", "as only `train` has it")
        require_positive(self, "total_episodes", "batch_size", "response_length")
        require_positive(self, "hidden_size", "num_hidden_layers", "num_attention_heads")
        require_divisible(
            "hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads
        )
        require_mapping(self, "model_kwargs")
        for name, value in (self.model_kwargs or {}).items():
            kind = MODEL_KWARGS.get(name)
            # A bool is an int in Python, so that True would pass as a number of heads.
            fits = (
                kind is not None
                and isinstance(value, kind)
                and isinstance(value, bool) == (kind is bool)
            )
            require(
                fits,
                "model_kwargs",
                f"some of {', '.join(MODEL_KWARGS)}, of their types",
                {name: value},
            )
        # Where it is not given there is nothing to check: 1 divides any number of heads.
        shared = (self.model_kwargs or {}).get("num_key_value_heads", 1)
        require(shared > 0, "model_kwargs", "num_key_value_heads above 0", shared)
        require_divisible(
            "num_attention_heads", self.num_attention_heads, "num_key_value_heads", shared
        )
        require_default(self.optimizer, "value_learning_rate", "as sft has no value model")
        self._check_rows()
        # An adapter on random weights could not be used without them, and they are nowhere else.
        if self.peft.use_peft:
            require(
                self.model_path is not None,
                "model_path",
                "a model under the adapter with use_peft",
                None,
            )
        if self.model_path is not None:
            require_default(self, "tokenizer_path", "with model_path, which has a tokenizer")
        require_default(self.data, "input_text_length", "as sft learns whole rows")

    @property
    def prompt_data(self) -> DataConfig:
        """The settings of the data, without their limit of prompts where there is one of whole rows."""
        if self.max_length is None:
            return self.data
        # A long prompt is part of a long row.
        return dataclasses.replace(self.data, max_prompt_length=None)

    def _check_rows(self) -> None:
        """Check what is learned of each row."""
        if self.max_length is None:
            require_default(self, "overlong", "without max_length")
        require_positive(self, "max_length")
        if self.augmented or self.is_endless:
            reason = "with augment or an endless stream, whose rows are not known before"
            require_default(self, "max_length", reason)
        if self.assistant_only_loss:
            # None passes: whether the tokenizer has a template is seen when it is loaded.
            use_chat_template = self.data.use_chat_template
            requirement = "a chat template with assistant_only_loss"
            require(
                use_chat_template is not False, "use_chat_template", requirement, use_chat_template
            )
            reason = "with assistant_only_loss, which would learn the examples"
            require_default(self.data, "n_shots", reason)

    def with_best_metric(self) -> "SFTConfig":
        """Return this configuration with the metric filled in by which the best checkpoint is chosen."""
        splits = self.data.eval_splits
        return with_best_metric(self, splits[0]) if splits else self

    @property
    def is_endless(self) -> bool:
        """Whether rows are those of an endless stream: the only split without an end is `train`."""
        return self.data.stream_domains is not None and self.data.train_split == "train"

    @property
    def augmented(self) -> tuple[str, ...]:
        """What is drawn anew for every row of every epoch: some of `names`, `order` and `states`."""
        return (
            ()
            if self.augment == "none"
            else tuple(part.strip() for part in self.augment.split(","))
        )

    @property
    def num_updates(self) -> int:
        """Optimizer steps in the whole run."""
        # Rounded up (-(-a // b)): every step learns from a whole batch, also the last one.
        return -(-self.total_episodes // self.batch_size)

    def check_devices(self, row_shards: int) -> None:
        """Raise a `ConfigError` unless every batch divides over the devices."""
        require_divisible("batch_size", self.batch_size, "data x fsdp devices", row_shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelConfig:
    """A reward model from preferences: of two completions of a prompt, the preferred one is to score higher."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "--preset tldr-pythia-1b",
        "--dataset trl-lib/tldr-preference",
        "--train_split train",
        "--eval_splits validation",
        "--model_path EleutherAI/pythia-160m",
        "--max_length 640",
        "--num_train_epochs 1",
        "--batch_size 64",
        "--learning_rate 1e-4",
        "--use_peft",
        "--output_dir outputs/reward",
        "--resume",
    )
    """What `--help` begins with: the flags that a newcomer needs, in the order of use."""
    UNREAD: ClassVar[tuple[str, ...]] = (
        "value_learning_rate",
        "lora_path",
        "target",
    )
    """Fields of the groups that this command does not read."""

    run: RunConfig = field(default_factory=RunConfig)
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(save_steps=100))
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=1e-4))
    peft: PeftConfig = field(default_factory=PeftConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    dataset: str | None = None
    """Folder with one <split>.jsonl (or .parquet, .json, .csv) per split or, through the `datasets` library, a hub id,
    a copy of its files, or a `save_to_disk` folder; columns chosen, rejected and maybe prompt and margin, texts or
    lists of turns."""
    dataset_config: str | None = None
    """Which one, where a hub id holds several data sets (its configurations); default: the only one."""
    train_split: str = "train"
    """Split to train on."""
    eval_splits: tuple[str, ...] = DEFAULT_PAIR_SPLITS
    """Splits to evaluate on, before and after; the first one gives the metrics named eval_... With none, and where the
    data do not have that of the default, nothing is evaluated."""
    use_chat_template: bool | None = None
    """Read prompt and completion as turns of a chat, by the tokenizer's chat template, as PPO will have them scored.
    Default: where the tokenizer has a template."""
    system_prompt: str | None = None
    """First turn of every chat that has no system turn of its own; default: none."""
    chat_template_kwargs: JsonMapping = None
    """Arguments for the tokenizer's chat template, as a YAML mapping or as JSON: `{"enable_thinking": false}`."""
    max_length: int = 1024
    """Pairs with a longer text (prompt, completion and end of sequence, in tokens) are left out and counted."""
    model_path: str | None = None
    """Language model, for its trunk, or reward model to start from: a Hugging Face folder or hub id."""
    dtype: ComputeDtype = "float32"
    """Numbers that the model computes in; trained parameters, scores and statistics are float32 in any case."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of all layers but the last for the gradient, and compute the rest again: less memory for
    deep models and long texts, for up to a third more arithmetic in learning, half with adapters."""
    center_rewards_coefficient: float | None = None
    """Weight of mean((chosen + rejected)^2) of the scores in the loss, which keeps them around 0; e.g. 0.01."""
    num_train_epochs: float = 3.0
    """Passes over the pairs of train_split, where total_episodes is not given."""
    total_episodes: int | None = None
    """Pairs to learn from over the whole run, rounded up to whole steps; default: num_train_epochs passes."""
    batch_size: int = 32
    """Pairs per optimizer step, over all devices."""
    eval_batch_size: int = 64
    """Texts scored at once in an evaluation."""

    def __post_init__(self) -> None:
        require_positive(self, "max_length", "batch_size", "eval_batch_size", "total_episodes")
        require_mapping(self, "chat_template_kwargs", TOKENIZER_ARGUMENTS)
        epochs = self.num_train_epochs
        require(0.0 < epochs < math.inf, "num_train_epochs", "a finite number above 0", epochs)
        require_finite(self, "center_rewards_coefficient")
        require_default(self.optimizer, "value_learning_rate", "as there is no value model")
        require_default(self.peft, "lora_path", "as a reward model's adapter is fresh")
        require_default(self.run, "target", "as only `train` has it")

    def num_updates(self, num_pairs: int) -> int:
        """Return the number of optimizer steps in the run."""
        episodes = self.total_episodes
        if episodes is None:
            # A small part of an epoch may be less than one pair.
            episodes = max(1, int(self.num_train_epochs * num_pairs))
        return -(-episodes // self.batch_size)

    def check_devices(self, row_shards: int) -> None:
        """Raise a `ConfigError` unless every batch divides over the devices."""
        require_divisible("batch_size", self.batch_size, "data x fsdp devices", row_shards)
