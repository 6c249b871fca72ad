"""Every setting of the commands: frozen dataclasses in groups, checked when made.

Names are TRL's where TRL has the field, and unique over all groups; `config_sources.py` reads them from presets, YAML
files and flags.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

import tyro

from jaxppo.errors import ConfigError

OBJECTS = range(2, 17)
"""How many objects a built-in problem may have: the vocabulary holds 16 names."""

MIN_ROWS_TO_WHITEN = 8
"""Fewest completions whose rewards may be whitened, as in TRL."""


"""Reward functions that have a name; others are given as module:function."""


def require(condition: bool, name: str, expected: str, value: object) -> None:
    """Raise a `ConfigError` that names the field unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{name}: expected {expected}, got {value!r}")


def _require_positive(config: object, *names: str) -> None:
    for name in names:
        require(getattr(config, name) > 0, name, "a number above 0", getattr(config, name))


def _require_finite(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(0.0 <= value < math.inf, name, "a finite number of at least 0", value)


def _require_fraction(config: object, *names: str) -> None:
    for name in names:
        require(0.0 <= getattr(config, name) <= 1.0, name, "a number in [0, 1]", getattr(config, name))


def parse_sizes(text: str, name: str = "sizes") -> dict[int, int]:
    """Read `"5:100,6:200"` as {objects: rows}.

    Raises:
        ConfigError: the text is not a comma-separated list of `objects:rows` with positive integers.
    """
    pairs = re.findall(r"(\d+):(\d+)", text)
    well_formed = re.fullmatch(r"\s*\d+:\d+(\s*,\s*\d+:\d+)*\s*", text) is not None
    require(well_formed, name, "a list such as '5:100,6:200' (objects:rows)", text)
    sizes = {int(objects): int(rows) for objects, rows in pairs}
    require(all(n > 0 for pair in sizes.items() for n in pair), name, "positive numbers of objects and rows", text)
    require(len(sizes) == len(pairs), name, "each number of objects once", text)
    require(all(objects in OBJECTS for objects in sizes), name, "2 to 16 objects", text)
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where a run writes, and how it is carried out."""

    output_dir: str | None = None
    """Run folder. Must not hold another run, unless --resume. Default: a new folder under outputs/."""
    preset: str | None = None
    """Named set of defaults shipped with jaxppo; without it, and without --config, the preset `default`."""
    config: str | None = None
    """YAML file of `flag: value` lines, laid over the preset; the command line goes over both."""
    seed: int = 42
    """Decides everything random: data order, sampling, mini-batches, fresh weights."""
    resume: bool = False
    """Continue the run in --output_dir from its last checkpoint; a finished run is left as it is."""
    dry_run: bool = False
    """Print the plan of the run and stop before any training."""
    parallel: Literal["shard_map", "pmap", "fsdp"] = "shard_map"
    """How the per-device programs are mapped over all devices: shard_map and pmap keep all weights on each device, fsdp
    splits them, gradients and optimizer over the axes of --mesh. The numbers are the same (docs/scaling.md)."""
    mesh: str | None = None
    """Sizes of the device axes, e.g. data=2,fsdp=4 or fsdp=4,tensor=2; -1 takes what is left. Rows are split over data
    and fsdp, weights over fsdp and tensor. Default: fsdp=-1 for --parallel fsdp, otherwise data=-1."""
    distributed: bool = False
    """Join the other processes of this run, as SLURM, Open MPI, Kubernetes or a TPU slice started them, or as the
    variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID say (docs/scaling.md)."""
    coordinator_address: str | None = None
    """HOST:PORT of the first process, which the others connect to; implies --distributed."""
    num_processes: int | None = None
    """Processes of this run; with --coordinator_address, where the cluster does not say."""
    process_id: int | None = None
    """Number of this process, from 0; with --coordinator_address, where the cluster does not say."""
    connect_timeout_s: int = 120
    """Seconds that a process waits for the others at the start."""
    quiet: bool = False
    """Print results and warnings only."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**32, "seed", "an integer in [0, 2^32)", self.seed)
        address = self.coordinator_address
        if address is not None:
            host, _, port = address.rpartition(":")
            require(bool(host) and port.isdecimal(), "coordinator_address", "HOST:PORT", address)
        for name in ("num_processes", "connect_timeout_s"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, "an integer >= 1", value)
        if self.process_id is not None:
            expected = f"an integer in [0, num_processes={self.num_processes})"
            fits = self.num_processes is not None and 0 <= self.process_id < self.num_processes
            require(fits, "process_id", expected, self.process_id)
        if self.resume:
            require(self.output_dir is not None, "resume", "--output_dir with the run to continue", None)

    @property
    def is_distributed(self) -> bool:
        """Whether there are other processes to connect to."""
        return self.distributed or self.coordinator_address is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """What happens between updates."""

    save_steps: float = 10
    """Updates between checkpoints; below 1: a fraction of the run."""
    save_total_limit: int = 2
    """Checkpoints kept."""
    eval_steps: float | None = None
    """Updates between evaluations during training; below 1: a fraction of the run; default: none during training."""
    metric_for_best_model: str | None = None
    """Keep, beside the latest, the checkpoint with the best value of this metric, e.g. eval/test_longer/validity (then
    each evaluated update is saved) or objective/scores; `none` for none. Default: with eval_steps, where plans are
    judged, eval/<split>/validity of headline_split (sft: of the first of eval_splits); otherwise none."""
    greater_is_better: bool = True
    """Whether the best value of metric_for_best_model is the highest."""
    report_to: tuple[Literal["tensorboard", "wandb", "none"], ...] = ("tensorboard",)
    """Where metrics and samples go beside metrics.jsonl and samples.jsonl: tensorboard (files in the run folder), wandb
    (pip install 'jaxppo[tracking]'), both, or none."""

    def __post_init__(self) -> None:
        _require_positive(self, "save_total_limit")
        trackers = self.report_to
        alone = len(trackers) == 1 or "none" not in trackers
        known = 0 < len(trackers) == len(set(trackers)) and {*trackers} <= {"tensorboard", "wandb", "none"} and alone
        require(known, "report_to", "tensorboard, wandb, both, or none alone", trackers)
        if self.best_metric is None:
            require(self.greater_is_better, "greater_is_better", "True without metric_for_best_model", False)
        elif self._evaluates_best:
            require(self.eval_steps is not None, "eval_steps", "a number with metric_for_best_model eval/...", None)
        for name in ("save_steps", "eval_steps"):
            value = getattr(self, name)
            if value is not None:
                expected = "a whole number of updates, or a fraction of the run between 0 and 1"
                require(0 < value < 1 or (value >= 1 and value % 1 == 0), name, expected, value)

    @property
    def best_metric(self) -> str | None:
        """The metric that the best checkpoint is chosen by, or None."""
        return None if self.metric_for_best_model == "none" else self.metric_for_best_model

    def with_best_metric(self, default: str) -> "LoopConfig":
        """These settings with the default for `metric_for_best_model`, where one is evaluated and none was named."""
        if self.metric_for_best_model is not None or self.eval_steps is None:
            return self
        return dataclasses.replace(self, metric_for_best_model=default)

    def saves_at(self, step: int, last: int) -> bool:
        """Whether a checkpoint is due after update `step`.

        It is every `save_steps`, after the last update, and after an evaluation that may make it the best one.
        """
        may_be_best = self._evaluates_best and self.evaluates_at(step, last)
        return step % _updates(self.save_steps, last) == 0 or step == last or may_be_best

    def evaluates_at(self, step: int, last: int) -> bool:
        """Whether an evaluation is due after update `step`; the last update is followed by one in any case."""
        return self.eval_steps is not None and step % _updates(self.eval_steps, last) == 0 and step != last

    def check_record(self, record: dict[str, Any], last: int) -> None:
        """Raise a `ConfigError` unless the metric for the best checkpoint is in a record where it should be."""
        name = self.best_metric
        missing = name is not None and name not in record
        if missing and (not self._evaluates_best or self.evaluates_at(record["step"], last)):
            raise ConfigError(f"metric_for_best_model: expected a metric that this run logs, got {name!r}")

    def check_evaluated(self, names: Collection[str]) -> None:
        """Raise a `ConfigError` where the metric for the best checkpoint is of an evaluation, and none of these."""
        if self._evaluates_best and self.best_metric not in names:
            expected = f"one of {', '.join(sorted(names))}, or a metric of training"
            raise ConfigError(f"metric_for_best_model: expected {expected}, got {self.best_metric!r}")

    @property
    def _evaluates_best(self) -> bool:
        return self.best_metric is not None and self.best_metric.startswith("eval/")


def _updates(steps: float, last: int) -> int:
    """A number of updates, or a fraction of all of them, rounded up."""
    return max(1, math.ceil(round(steps * last, 6))) if steps < 1 else int(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Which problems, in which splits and prompts."""

    dataset: str = "blocksworld"
    """`blocksworld` (built on first use and cached), a folder with one <split>.jsonl per split, or, through the
    `datasets` library, a hub id, a copy of its files, or a `save_to_disk` folder (alias --data)."""
    dataset_config: str | None = None
    """Which one, where a hub id holds several data sets (its configurations); default: the only one."""
    train_split: str = "train"
    """Split to train on."""
    eval_splits: tuple[str, ...] = ("test", "test_longer")
    """Splits to evaluate on (alias --splits); the first is the one called in-distribution."""
    prompt_style: Literal["atoms", "pddl", "nl"] = "atoms"
    """How a problem is written as a prompt, for built-in domains: its facts as words, PDDL, or English."""
    data_seed: int = 0
    """Seed of the built-in problem generators, and of the rows that eval_rows chooses (apart from --seed, so that runs
    share their problems)."""
    train_sizes: str = "3:2000,4:6000,5:24000"
    """Built-in domains: blocks:problems of split `train` (supervised warm start)."""
    rl_sizes: str = "5:400,6:2600"
    """Built-in domains: blocks:problems of split `rl`."""
    test_sizes: str = "4:40,5:400"
    """Built-in domains: blocks:problems of split `test` (same sizes as `train`, no shared problem)."""
    test_longer_sizes: str = "6:1024"
    """Built-in domains: blocks:problems of split `test_longer` (more blocks than `train`)."""
    prompt_column: str = "prompt"
    """Column of the prompts in data that are no planning problems, such as `text`."""
    min_prompt_characters: int = 0
    """Leave out rows of such data with a shorter prompt."""
    max_prompt_length: int = 512
    """Rows whose prompt has more tokens are an error, not a silent cut; or see filter_overlong_prompts."""
    filter_overlong_prompts: bool = False
    """Leave out rows whose prompt has more than max_prompt_length tokens, and say how many they are."""
    use_chat_template: bool | None = None
    """Give the model each prompt as the user's turn of a chat, by the tokenizer's chat template; rewards see the plain
    prompt. Default: where the tokenizer has a template and prompts are not cut."""
    system_prompt: str | None = None
    """First turn of every chat; default: none."""
    input_min_text_length: int | None = None
    """With input_max_text_length: cut each prompt to a number of tokens drawn once from this range (both ends may come
    out), as with TRL 0.11's LengthSampler; for text to be continued."""
    input_max_text_length: int | None = None
    """See input_min_text_length."""

    def __post_init__(self) -> None:
        low, high = self.input_min_text_length, self.input_max_text_length
        if low is not None or high is not None:
            given = low is not None and high is not None and 1 <= low <= high
            expected = "1 <= input_min_text_length <= input_max_text_length, or neither"
            require(given, "input_min_text_length, input_max_text_length", expected, (low, high))
            expected = "None or False with input_max_text_length: text to be continued is no turn of a chat"
            require(not self.use_chat_template, "use_chat_template", expected, self.use_chat_template)
        for name in ("train_sizes", "rl_sizes", "test_sizes", "test_longer_sizes"):
            parse_sizes(getattr(self, name), name)
        _require_positive(self, "max_prompt_length")
        least = self.min_prompt_characters
        require(least >= 0, "min_prompt_characters", "an integer of at least 0", least)

    @property
    def text_lengths(self) -> tuple[int, int] | None:
        """Fewest and most tokens that a prompt is cut to; None where prompts are whole."""
        low, high = self.input_min_text_length, self.input_max_text_length
        return None if low is None or high is None else (low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How completions are sampled."""

    response_length: int = 53
    """Most tokens a completion may have, stop token included."""
    output_min_length: int | None = None
    """With it, the most tokens of each completion are drawn anew from output_min_length ... response_length (both may
    come out), as with TRL 0.11's LengthSampler; default: response_length for all."""
    stop_token: Literal["eos", "none"] | None = None
    """A completion ends with the tokenizer's end of sequence (default, unless stop_token_id is given), or with nothing:
    `none` samples response_length tokens."""
    stop_token_id: int | None = None
    """A completion ends with this token instead, which stays in the text that rewards see."""
    temperature: float = 0.7
    """Logits are divided by it, in sampling and in every log-probability."""
    top_k: int = 0
    """Sample among the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Sample among the fewest tokens whose probabilities add up to this; 1 for all."""
    min_p: float | None = None
    """Sample among tokens at least this times as likely as the most likely one."""

    def __post_init__(self) -> None:
        _require_positive(self, "response_length")
        _require_finite(self, "temperature")
        require(self.top_k >= 0, "top_k", "an integer of at least 0", self.top_k)
        require(0.0 < self.top_p <= 1.0, "top_p", "a number in (0, 1]", self.top_p)
        if self.min_p is not None:
            _require_fraction(self, "min_p")
        if self.output_min_length is not None:
            expected = f"1 to response_length ({self.response_length})"
            fits = 1 <= self.output_min_length <= self.response_length
            require(fits, "output_min_length", expected, self.output_min_length)
        if self.stop_token_id is not None:
            require(self.stop_token is None, "stop_token", "None beside stop_token_id", self.stop_token)
            require(self.stop_token_id >= 0, "stop_token_id", "a token id of at least 0", self.stop_token_id)

    @property
    def truncates(self) -> bool:
        """Whether completions come from a truncated distribution, which is not the one the loss is about."""
        return self.top_k > 0 or self.top_p < 1.0 or bool(self.min_p)

    def stop_id(self, eos_id: int) -> int | None:
        """The token that ends a completion, or None."""
        if self.stop_token == "none":
            return None
        return eos_id if self.stop_token_id is None else self.stop_token_id


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = 3e-6
    """Peak learning rate."""
    value_learning_rate: float | None = None
    """Peak learning rate of the value model; default: learning_rate."""
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = "linear"
    """Decay to 0 over the run, after the warm-up."""
    warmup_steps: int = 0
    """Updates over which the learning rate rises from 0."""
    adam_beta1: float = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: float = 0.999
    """Decay of Adam's second moment."""
    adam_epsilon: float = 1e-5
    """Added to Adam's denominator. 1e-5 as in OpenAI's PPO: 1e-8 turns rounding noise of zero gradients into steps."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float | None = 1.0
    """Clip the global gradient norm to this; `None` for no clipping."""

    def __post_init__(self) -> None:
        _require_finite(self, "learning_rate")
        require(self.warmup_steps >= 0, "warmup_steps", "an integer of at least 0", self.warmup_steps)
        _require_positive(self, "adam_epsilon")
        _require_fraction(self, "weight_decay")
        for name in ("adam_beta1", "adam_beta2"):
            require(0.0 <= getattr(self, name) < 1.0, name, "a number in [0, 1)", getattr(self, name))
        if self.value_learning_rate is not None:
            _require_finite(self, "value_learning_rate")
        if self.max_grad_norm is not None:
            _require_positive(self, "max_grad_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """Training a low-rank adapter instead of all weights (LoRA); names as in TRL."""

    use_peft: bool = False
    """Train LoRA adapters of policy and value model on one frozen base, which is also the reference."""
    lora_r: int = 16
    """Rank."""
    lora_alpha: float = 32.0
    """The adapter's product is multiplied by lora_alpha / lora_r."""
    lora_target_modules: tuple[str, ...] | None = None
    """Linear layers with an adapter, by the end of their name in transformers (query_key_value, mlp.c_fc); default: all
    of the trunk."""
    use_rslora: bool = False
    """Multiply by lora_alpha / sqrt(lora_r) instead."""
    lora_path: str | None = None
    """PEFT folder to start the policy's adapter from; its shape takes the place of the settings above."""

    def __post_init__(self) -> None:
        _require_positive(self, "lora_r", "lora_alpha")
        if self.lora_path is not None:
            require(self.use_peft, "lora_path", "None without use_peft", self.lora_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RLConfig:
    """The algorithm and its coefficients; names as in TRL, defaults as in its PPO."""

    algorithm: Literal["ppo", "rloo"] = "ppo"
    """ppo: value model, GAE, ratio per token. rloo: several completions per prompt, each against the mean of the
    others, ratio per completion, no value model."""
    num_generations: int | None = None
    """Completions per prompt (RLOO's k). Default: 1 for ppo, 4 for rloo."""
    num_ppo_epochs: int = 4
    """Passes over each rollout batch."""
    num_mini_batches: int = 1
    """Optimizer steps per pass."""
    gradient_accumulation_steps: int | None = None
    """Micro-batches that a mini-batch is cut into to save memory; the optimizer step is the same. Default: 1 on
    accelerators, on a CPU as many as keep a layer's activations in its cache."""
    local_rollout_forward_batch_size: int | None = None
    """Completions per device scored at once, to save memory. Default: all on accelerators, on a CPU as many as its
    cache takes."""
    cliprange: float = 0.2
    """Policy ratio is clipped to 1 +- this."""
    cliprange_high: float | None = None
    """Upper clip range (1 + this), where it is not the lower one (TRL's epsilon_high)."""
    cliprange_value: float = 0.2
    """New values are clipped to the old ones +- this."""
    vf_coef: float = 0.1
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; 0 for none."""
    gamma: float = 1.0
    """Discount per token."""
    lam: float = 0.95
    """GAE's lambda."""
    score_position: Literal["last", "after"] = "last"
    """Where the score is added: to the last token (TRL 0.11), or to the state behind it where response_length leaves
    room, which then has a value of its own (TRL's later PPOTrainer)."""
    whiten_rewards: bool = False
    """ppo: divide token rewards by their standard deviation over the whole batch (mean kept)."""
    normalize_advantages: bool = False
    """rloo: advantages to zero mean and unit variance over the whole batch (ppo always does)."""
    mask_truncated_completions: bool = False
    """Learn nothing from completions that did not end."""
    kl_coef: float = 0.05
    """Weight of the KL penalty to the reference policy in the reward, at the start; 0 needs no reference."""
    kl_estimator: Literal["k1", "k2", "k3", "abs", "mse", "full"] = "k1"
    """Per-token KL: k1 = logp - ref, k2 = mse = k1^2 / 2, k3 = exp(-k1) - 1 + k1 (Schulman 2020), abs = |k1|, or full:
    exact over the vocabulary."""
    adap_kl_ctrl: bool = False
    """Adapt kl_coef so that the KL per completion approaches kl_target (Ziegler et al. 2019)."""
    kl_target: float | None = None
    """KL per completion to steer to, in nats (TRL 0.11: 6)."""
    kl_horizon: int = 10000
    """Completions over which kl_coef adapts."""
    missing_eos_penalty: float | None = None
    """Taken off the score of a completion without the stop token in force."""
    use_score_scaling: bool = False
    """Divide scores by their running standard deviation."""
    use_score_norm: bool = False
    """With use_score_scaling: subtract their running mean before."""
    reward_clip_range: tuple[float, float] | None = None
    """Clip scores to this range, after scaling and before the missing-EOS penalty."""
    ratio_threshold: float | None = 10.0
    """ppo: leave out an optimizer step whose mean ratio is above this; `None` for never."""
    early_stopping: bool = False
    """Leave out the rest of an update once the policy has moved by more than 1.5 target_kl."""
    target_kl: float = 1.0
    """Nats per token, for early_stopping."""
    logprobs: Literal["sampler", "recompute"] | None = None
    """Old log-probabilities: those kept by the sampler (default with dtype float32), or recomputed by the scoring
    program (default with bfloat16, where one pass over a completion and its steps round differently)."""

    def __post_init__(self) -> None:
        _require_positive(self, "num_ppo_epochs", "num_mini_batches", "target_kl")
        _require_positive(self, "cliprange", "cliprange_value", "kl_horizon")
        _require_fraction(self, "gamma", "lam")
        _require_finite(self, "kl_coef", "vf_coef", "entropy_coef")
        if self.ratio_threshold is not None:
            require(self.ratio_threshold > 1, "ratio_threshold", "a number above 1", self.ratio_threshold)
        rows = ("gradient_accumulation_steps", "local_rollout_forward_batch_size")
        for name in ("cliprange_high", "kl_target", *rows):
            if getattr(self, name) is not None:
                _require_positive(self, name)
        if self.missing_eos_penalty is not None:
            _require_finite(self, "missing_eos_penalty")
        self._check_scores()
        self._check_kl()
        self._check_algorithm()

    def _check_scores(self) -> None:
        if self.use_score_norm:
            require(self.use_score_scaling, "use_score_norm", "use_score_scaling beside it", False)
        if self.reward_clip_range is not None:
            low, high = self.reward_clip_range
            increasing = -math.inf < low < high < math.inf
            require(increasing, "reward_clip_range", "two finite numbers, the lower one first", self.reward_clip_range)

    def _check_kl(self) -> None:
        if self.adap_kl_ctrl:
            require(self.kl_target is not None, "kl_target", "a number above 0 with adap_kl_ctrl", self.kl_target)
            require(self.kl_coef > 0, "kl_coef", "a number above 0 with adap_kl_ctrl", self.kl_coef)
        else:
            require(self.kl_target is None, "kl_target", "None without adap_kl_ctrl", self.kl_target)

    def _check_algorithm(self) -> None:
        if self.algorithm == "rloo":
            require(self.group_size >= 2, "num_generations", "at least 2 with algorithm rloo", self.num_generations)
            require(not self.whiten_rewards, "whiten_rewards", "False with algorithm rloo", self.whiten_rewards)
            require(self.score_position == "last", "score_position", "last with algorithm rloo", self.score_position)
        else:
            require(self.group_size >= 1, "num_generations", "at least 1", self.num_generations)
            expected = "False with algorithm ppo, which always whitens"
            require(not self.normalize_advantages, "normalize_advantages", expected, self.normalize_advantages)

    @property
    def group_size(self) -> int:
        """Completions per prompt."""
        if self.num_generations is None:
            return 4 if self.algorithm == "rloo" else 1
        return self.num_generations


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """The reward of a completion: the weighted sum of what reward functions give it."""

    reward_funcs: tuple[str, ...] = ("plan",)
    """Functions of the sum: plan (1 if the plan is valid, else partial), model (a learned reward model), server (asked
    over HTTP), sentiment (a text classifier), or module:function in TRL's calling convention."""
    reward_weights: tuple[float, ...] | None = None
    """Weight of each function; default: 1."""
    partial: Literal["lccs", "lcs", "prefix", "goal"] = "lccs"
    """What an invalid plan earns: its longest common run of actions with the reference, contiguous (lccs) or with gaps
    (lcs); the steps that can be carried out (prefix); or the fraction of the goal's conditions that it reaches."""
    normalise_by: Literal["max", "reference", "prediction"] = "max"
    """lccs, lcs and prefix are divided by the length of the longer plan, the reference, or the predicted plan."""
    partial_scale: float = 1.0
    """Factor of what an invalid plan earns."""
    length_penalty: float = 0.0
    """A valid plan of cost C earns 1 - length_penalty (1 - min(1, C*/C)), C* being the reference's cost."""
    val_timeout_s: float = 30.0
    """A VAL process that runs longer is killed, and the plan counts as not valid."""
    audit_rate: float | None = None
    """Fraction of the plans judged in this process that VAL judges again; default: 0.01 where VAL is installed."""
    reward_model_path: str | None = None
    """Reward model of `model`: a sequence classification folder or hub id, or an adapter for the policy's base."""
    reward_server_url: str | None = None
    """Where `server` is asked, in LLaMA-Factory's contract; a bearer token is read from JAXPPO_REWARD_TOKEN."""
    reward_server_columns: bool = False
    """Send prompts, completions and data columns to the server too, which a plan reward there needs."""
    sentiment_model_path: str | None = None
    """Text classification folder or hub id of `sentiment`."""
    sentiment_label: str = "POSITIVE"
    """The label whose raw logit is the reward."""
    reward_timeout_s: float | None = None
    """Seconds for one completion, after which a module:function is killed (it runs in processes of its own then), or
    for one request to the server (default 30)."""
    reward_workers: int = 2
    """Processes of each module:function that has a time limit."""
    on_error: Literal["stop", "skip"] | float = "stop"
    """A completion whose reward function fails stops the run, is left out of the update, or gets this reward."""
    on_timeout: Literal["stop", "skip"] | float = "skip"
    """The same for a completion that takes too long."""
    reward_cache_size: int | None = None
    """Results that every function keeps for repeated completions of a prompt; default: 10000 for plan, and 0 for a
    module:function, which may look at the whole batch or draw numbers."""

    def __post_init__(self) -> None:
        _require_positive(self, "val_timeout_s", "reward_workers")
        _require_fraction(self, "partial_scale", "length_penalty")
        if self.audit_rate is not None:
            _require_fraction(self, "audit_rate")
        if self.reward_timeout_s is not None:
            _require_positive(self, "reward_timeout_s")
        require((self.reward_cache_size or 0) >= 0, "reward_cache_size", "at least 0", self.reward_cache_size)
        for name in ("on_error", "on_timeout"):
            value = getattr(self, name)
            finite = isinstance(value, str) or math.isfinite(value)
            require(finite, name, "stop, skip or a finite number", value)
        self._check_functions()

    def _check_functions(self) -> None:
        functions, weights = self.reward_funcs, self.reward_weights
        require(bool(functions), "reward_funcs", "at least one function", functions)
        require(len(set(functions)) == len(functions), "reward_funcs", "each function once", functions)
        names = {name.rpartition(":")[2] for name in functions}
        expected = "functions of different names, by which metrics and samples tell them apart"
        require(len(names) == len(functions), "reward_funcs", expected, functions)
        if weights is not None:
            require(len(weights) == len(functions), "reward_weights", f"{len(functions)} numbers", weights)
            require(all(map(math.isfinite, weights)), "reward_weights", "finite numbers", weights)
        most = 1.0 - self.length_penalty
        expected = f"at most 1 - length_penalty = {most:g}, so that no invalid plan earns more than a valid one"
        require(self.partial_scale <= most, "partial_scale", expected, self.partial_scale)

    @property
    def judges_plans(self) -> bool:
        """Whether the data are planning problems."""
        return "plan" in self.reward_funcs

    def reads_pddl_for(self, validator: str) -> str | None:
        """The validator that must understand the data where this one judges plans; None where plans are not judged."""
        if not self.judges_plans:
            return None
        # VAL does not say how far a plan gets, nor what a reference costs.
        return "builtin" if self.partial in ("prefix", "goal") or self.length_penalty else validator


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """How plans are evaluated."""

    eval_validator: Literal["builtin", "val"] | None = None
    """Who judges plans in evaluation; default: VAL where it is installed, else the in-process validator."""
    eval_temperature: float = 0.0
    """0 is greedy decoding."""
    eval_top_k: int = 0
    """Sample among the k most likely tokens; 0 for all."""
    eval_top_p: float = 1.0
    """Sample among the fewest tokens whose probabilities add up to this; 1 for all."""
    eval_batch_size: int = 256
    """Completions decoded at once."""
    eval_rows: int | None = None
    """Evaluations every eval_steps look at no more than this many rows of each split: always the same ones, as many of
    each domain as can be. Those before and after training look at all. Default: all."""
    length_edges: tuple[int, ...] = (0, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129)
    """Lengths of the reference plan at which the bins of the results begin; the last bin has no end."""

    def __post_init__(self) -> None:
        if self.eval_rows is not None:
            _require_positive(self, "eval_rows")
        edges = self.length_edges
        increasing = bool(edges) and edges[0] >= 0 and all(low < high for low, high in itertools.pairwise(edges))
        require(increasing, "length_edges", "increasing plan lengths from 0 on", edges)
        _require_positive(self, "eval_batch_size")
        _require_finite(self, "eval_temperature")
        require(self.eval_top_k >= 0, "eval_top_k", "an integer of at least 0", self.eval_top_k)
        require(0.0 < self.eval_top_p <= 1.0, "eval_top_p", "a number in (0, 1]", self.eval_top_p)
        if self.eval_temperature == 0.0:
            expected = "a number above 0 with eval_top_k or eval_top_p; 0 is greedy"
            require(self.eval_top_k == 0 and self.eval_top_p == 1.0, "eval_temperature", expected, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """PPO on planning problems, rewarded by a plan validator."""

    run: RunConfig = field(default_factory=RunConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    data: DataConfig = field(default_factory=lambda: DataConfig(train_split="rl"))
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    peft: PeftConfig = field(default_factory=PeftConfig)
    sft_model_path: str = "blocksworld-sft"
    """Policy to start from, also the reference: a Hugging Face folder, a hub id (user/name or user/name@revision), or
    the shipped model `blocksworld-sft`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers that all models compute in; trained parameters, logits and statistics are float32 in any case."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of all layers but the last for the gradient, and compute the rest again: less memory for
    deep models and long texts, for up to a third more arithmetic in learning, half with adapters."""
    validator: Literal["builtin", "val", "auto"] = "builtin"
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
    headline_split: str = "test_longer"
    """The evaluation split that the run is about."""
    num_sample_generations: int = 10
    """How many times in the run sample completions are shown."""
    max_bad_updates: int = 3
    """Stop after this many updates in a row with a loss or gradient that was not finite."""
    old_metric_names: bool = False
    """Log metrics under their TRL 0.11 names too, where these differ."""
    profile: int = 0
    """Trace this many updates, from the third of this process on: <output_dir>/profile/ gets a trace for Perfetto and
    the table of the ten most expensive operations, top_ops.txt."""
    peak_tflops: float | None = None
    """Most TFLOP/s of one device in dense matrix products, for throughput/mfu; default: as its maker says, where the
    device is known."""

    def __post_init__(self) -> None:
        _require_positive(self, "batch_size", "max_bad_updates")
        require(self.profile >= 0, "profile", "an integer of at least 0", self.profile)
        if self.peak_tflops is not None:
            finite = 0.0 < self.peak_tflops < math.inf
            require(finite, "peak_tflops", "a finite number above 0", self.peak_tflops)
        epochs = self.num_train_epochs
        require(0.0 < epochs < math.inf, "num_train_epochs", "a finite number above 0", epochs)
        if self.total_episodes is not None:
            _require_positive(self, "total_episodes")
        require(self.num_sample_generations >= 0, "num_sample_generations", "at least 0", self.num_sample_generations)
        _require_positive(self.sampling, "temperature")
        rl, splits = self.rl, self.data.eval_splits
        _require_divisible("batch_size", self.batch_size, "num_generations", rl.group_size)
        _require_divisible("batch_size", self.batch_size, "num_mini_batches", rl.num_mini_batches)
        mini, accumulated = self.mini_batch_size, rl.gradient_accumulation_steps or 1
        _require_divisible("batch_size / num_mini_batches", mini, "gradient_accumulation_steps", accumulated)
        require(self.headline_split in splits, "headline_split", f"one of eval_splits {splits}", self.headline_split)
        self._check_combinations()

    def _check_combinations(self) -> None:
        rl = self.rl
        if rl.algorithm == "rloo":
            require(
                self.value_model_path is None, "value_model_path", "None with algorithm rloo", self.value_model_path
            )
            require(self.value_model == "separate", "value_model", "no such setting with algorithm rloo", "shared")
            if self.sampling.truncates:
                # The ratio of a whole completion would start at the product of what was cut off at every token.
                expected = "recompute with algorithm rloo and top_k, top_p or min_p"
                require(self.logprobs == "recompute", "logprobs", expected, rl.logprobs)
        if rl.adap_kl_ctrl:
            expected = f"more than 0.2 batch_size ({0.2 * self.batch_size:g}), or kl_coef could change its sign"
            require(rl.kl_horizon > 0.2 * self.batch_size, "kl_horizon", expected, rl.kl_horizon)
        if rl.whiten_rewards:
            expected = f"at least {MIN_ROWS_TO_WHITEN} with whiten_rewards"
            require(self.batch_size >= MIN_ROWS_TO_WHITEN, "batch_size", expected, self.batch_size)
        if self.sampling.stop_token == "none" or self.sampling.output_min_length is not None:
            no_end = "stop_token none" if self.sampling.stop_token == "none" else "output_min_length"
            for name in ("missing_eos_penalty", "mask_truncated_completions"):
                value = getattr(rl, name)
                expected = (
                    f"{'None' if name == 'missing_eos_penalty' else 'False'} with {no_end}, which cuts completions"
                )
                require(not value, name, expected, value)

    @property
    def logprobs(self) -> str:
        """Where old log-probabilities come from: "sampler" or "recompute"."""
        if self.rl.logprobs is not None:
            return self.rl.logprobs
        return "sampler" if self.dtype == "float32" else "recompute"

    @property
    def num_updates(self) -> int:
        """Rollout batches in the whole run."""
        if self.total_episodes is None:
            raise ConfigError("total_episodes: expected a number, or `with_episodes(number of prompts)`, got None")
        return -(-self.total_episodes // self.batch_size)

    def with_episodes(self, num_prompts: int) -> "TrainConfig":
        """This configuration with `total_episodes` known: as given, or num_train_epochs passes over the prompts."""
        if self.total_episodes is not None:
            return self
        episodes = max(1, int(self.num_train_epochs * num_prompts * self.rl.group_size))
        return dataclasses.replace(self, total_episodes=episodes)

    def with_best_metric(self) -> "TrainConfig":
        """This configuration with the metric known by which the best checkpoint is chosen."""
        return _with_best_metric(self, self.headline_split)

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

    def check_devices(self, row_shards: int) -> None:
        """Raise a `ConfigError` unless prompts and every micro-batch divide over the devices."""
        _require_divisible("batch_size / num_generations", self.num_prompts, "data x fsdp devices", row_shards)
        name = "batch_size / num_mini_batches / gradient_accumulation_steps"
        _require_divisible(name, self.micro_batch_size, "data x fsdp devices", row_shards)


def _with_best_metric(config: Any, split: str) -> Any:
    if not config.reward.judges_plans:
        return config
    return dataclasses.replace(config, loop=config.loop.with_best_metric(f"eval/{split}/validity"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig:
    """Supervised fine-tuning on reference plans, from scratch or from a model."""

    run: RunConfig = field(default_factory=RunConfig)
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(save_steps=200))
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=3e-3, lr_scheduler_type="cosine", warmup_steps=50)
    )
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    model_path: str | None = None
    """Hugging Face folder or hub id to go on from (or `blocksworld-sft`); default: a fresh GPT-NeoX of the sizes
    below."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers that the model computes in; trained parameters, logits and statistics are float32 in any case."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of all layers but the last for the gradient, and compute the rest again: less memory for
    deep models and long texts, for up to a third more arithmetic in learning, half with adapters."""
    tokenizer_path: str | None = None
    """Fresh model: folder or hub id whose tokenizer it takes; default: one token for each word of the data set."""
    model_type: Literal["gpt_neox", "gpt2"] = "gpt_neox"
    """Fresh model: family."""
    hidden_size: int = 128
    """Fresh model: width."""
    num_hidden_layers: int = 4
    """Fresh model: layers."""
    num_attention_heads: int = 4
    """Fresh model: attention heads."""
    rotary_pct: float = 1.0
    """Fresh GPT-NeoX: fraction of each head that rotates with the position."""
    total_episodes: int = 76800
    """Rows to learn from over the whole run, rounded up to whole steps; a row seen twice counts twice."""
    batch_size: int = 64
    """Rows per optimizer step, over all devices."""
    response_length: int = 64
    """Most tokens of a completion in the evaluation at the end."""

    def __post_init__(self) -> None:
        sizes = (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "total_episodes",
            "batch_size",
            "response_length",
        )
        _require_positive(self, *sizes)
        _require_divisible("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)
        require(len(self.data.eval_splits) > 0, "eval_splits", "at least one split", self.data.eval_splits)
        rate, cut = self.optimizer.value_learning_rate, self.data.input_max_text_length
        require(rate is None, "value_learning_rate", "None: sft has no value model", rate)
        if self.model_path is not None:
            tokenizer = self.tokenizer_path
            require(tokenizer is None, "tokenizer_path", "None with model_path, which has a tokenizer", tokenizer)
        require(cut is None, "input_max_text_length", "None: sft learns whole rows", cut)

    def with_best_metric(self) -> "SFTConfig":
        """This configuration with the metric known by which the best checkpoint is chosen."""
        return _with_best_metric(self, self.data.eval_splits[0])

    @property
    def num_updates(self) -> int:
        """Optimizer steps in the whole run."""
        return -(-self.total_episodes // self.batch_size)

    def check_devices(self, row_shards: int) -> None:
        """Raise a `ConfigError` unless every batch divides over the devices."""
        _require_divisible("batch_size", self.batch_size, "data x fsdp devices", row_shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelConfig:
    """A reward model from preferences: of two completions of a prompt, the preferred one is to score higher."""

    run: RunConfig = field(default_factory=RunConfig)
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(save_steps=100))
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=1e-4))
    peft: PeftConfig = field(default_factory=PeftConfig)
    dataset: str | None = None
    """Folder with one <split>.jsonl per split or, through the `datasets` library, a hub id, a copy of its files, or a
    `save_to_disk` folder; columns chosen, rejected and maybe prompt and margin."""
    dataset_config: str | None = None
    """Which one, where a hub id holds several data sets (its configurations); default: the only one."""
    train_split: str = "train"
    """Split to train on."""
    eval_splits: tuple[str, ...] = ("test",)
    """Splits to evaluate on, before and after; the first one gives the metrics named eval_..."""
    max_length: int = 1024
    """Pairs with a longer text (prompt, completion and end of sequence, in tokens) are left out and counted."""
    model_path: str | None = None
    """Language model, for its trunk, or reward model to start from: a Hugging Face folder or hub id; default: a fresh
    GPT-NeoX of the sizes below."""
    tokenizer_path: str = "blocksworld-sft"
    """Fresh model: folder or hub id of the model whose tokenizer it takes, such as the policy to be rewarded."""
    hidden_size: int = 128
    """Fresh model: width."""
    num_hidden_layers: int = 4
    """Fresh model: layers."""
    num_attention_heads: int = 4
    """Fresh model: attention heads."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers that the model computes in; trained parameters, scores and statistics are float32 in any case."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of all layers but the last for the gradient, and compute the rest again: less memory for
    deep models and long texts, for up to a third more arithmetic in learning, half with adapters."""
    center_rewards_coefficient: float | None = None
    """Weight of mean((chosen + rejected)^2) of the scores in the loss, which keeps them around 0; e.g. 0.01."""
    center_on: Literal["chosen", "none"] = "chosen"
    """After training, a constant is stored with the model and subtracted from its scores in PPO: chosen makes the mean
    score of the chosen texts of train_split 0."""
    num_train_epochs: float = 3.0
    """Passes over the pairs of train_split, where total_episodes is not given."""
    total_episodes: int | None = None
    """Pairs to learn from over the whole run, rounded up to whole steps; default: num_train_epochs passes."""
    batch_size: int = 32
    """Pairs per optimizer step, over all devices."""
    eval_batch_size: int = 64
    """Texts scored at once in an evaluation."""

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_length")
        _require_positive(self, *sizes, "batch_size", "eval_batch_size")
        _require_divisible("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)
        epochs = self.num_train_epochs
        require(0.0 < epochs < math.inf, "num_train_epochs", "a finite number above 0", epochs)
        if self.total_episodes is not None:
            _require_positive(self, "total_episodes")
        if self.center_rewards_coefficient is not None:
            _require_finite(self, "center_rewards_coefficient")
        require(len(self.eval_splits) > 0, "eval_splits", "at least one split", self.eval_splits)
        rate = self.optimizer.value_learning_rate
        require(rate is None, "value_learning_rate", "None: a reward model has no value model", rate)
        require(
            self.peft.lora_path is None, "lora_path", "None: a reward model's adapter is fresh", self.peft.lora_path
        )
        if self.peft.use_peft:
            require(self.model_path is not None, "model_path", "a model under the adapter with use_peft", None)

    def num_updates(self, num_pairs: int) -> int:
        """Optimizer steps in the whole run."""
        episodes = self.total_episodes
        if episodes is None:
            episodes = max(1, int(self.num_train_epochs * num_pairs))
        return -(-episodes // self.batch_size)

    def check_devices(self, row_shards: int) -> None:
        """Raise a `ConfigError` unless every batch divides over the devices."""
        _require_divisible("batch_size", self.batch_size, "data x fsdp devices", row_shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Plans on held-out problems, of models or from a file, measured and compared."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    model: tuple[str, ...] | None = None
    """Hugging Face folder or hub id (user/name or user/name@revision), or `blocksworld-sft`, the default; several are
    seeds of one method: 0, 1, ..."""
    plans: str | None = None
    """Instead of a model, a file of plans made by anything: a JSON object a line with `id`, and `plan` or
    `completion`."""
    compare_with: tuple[str, ...] | None = None
    """What to compare with on the same rows: models, or one .jsonl file of plans such as the samples.jsonl of another
    evaluation."""
    label: str | None = None
    """Name of the model or plans in tables and on the page; default: where they come from."""
    compare_label: str | None = None
    """Name of what is compared with."""
    num_samples: int = 1
    """Answers of each model to each row, for pass@k and the number of different plans; more need eval_temperature."""
    allow_missing_plans: bool = False
    """A row without a plan in a file counts as failed, instead of being an error."""
    allow_unknown_plans: bool = False
    """Plans in a file whose row is in none of eval_splits are passed over, instead of being an error."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers that the model computes in; logits are float32 in any case."""
    response_length: int = 72
    """Most tokens of a completion; the default is that of the default run."""
    stop_token_id: int | None = None
    """A completion ends with this token; default: the tokenizer's end of sequence."""

    def __post_init__(self) -> None:
        _require_positive(self, "response_length", "num_samples")
        self._check_sources()
        splits = self.data.eval_splits
        require(len(splits) > 0, "eval_splits", "at least one split", splits)
        require(len(set(splits)) == len(splits), "eval_splits", "each split once", splits)
        taken = [split for split in splits if split in ("comparison", "compared_with")]
        require(not taken, "eval_splits", "other names than comparison and compared_with", taken)
        if self.num_samples > 1:
            temperature = self.evaluation.eval_temperature
            expected = "a number above 0 with num_samples above 1: greedy samples are all the same"
            require(temperature > 0.0, "eval_temperature", expected, temperature)

    def _check_sources(self) -> None:
        both = self.plans is not None and self.model is not None
        require(not both, "plans", "a file of plans, or model, not both", self.plans)
        for name in ("model", "compare_with"):
            sources = getattr(self, name)
            if sources is not None:
                given = not isinstance(sources, str) and len(sources) > 0
                require(given, name, "one or more", sources)
        files = [source for source in self.compare_with or () if source.endswith(".jsonl")]
        alone = not files or len(self.compare_with or ()) == 1
        require(alone, "compare_with", "models, or one file of plans", self.compare_with)
        reads_plans, compares = self.plans is not None or bool(files), self.compare_with is not None
        if reads_plans or compares:
            functions = self.reward.reward_funcs
            require(functions == ("plan",), "reward_funcs", "plan alone with plans or compare_with", functions)
        for name in ("allow_missing_plans", "allow_unknown_plans"):
            require(reads_plans or not getattr(self, name), name, "False without a file of plans", True)
        require(
            compares or self.compare_label is None, "compare_label", "None without compare_with", self.compare_label
        )
        has_models = self.plans is None or (compares and not files)
        require(self.num_samples == 1 or has_models, "num_samples", "1 without a model", self.num_samples)

    @property
    def sources(self) -> tuple[str, ...]:
        """Models, or a file of plans, that are evaluated."""
        if self.plans is not None:
            return (self.plans,)
        return self.model or ("blocksworld-sft",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """The models of a checkpoint as Hugging Face folders."""

    run: RunConfig = field(default_factory=RunConfig)
    run_dir: str | None = None
    """Run folder of `train` or `sft`; the folders go to --output_dir, by default to <run_dir>/exports/<step>."""
    step: int | None = None
    """Updates done at the checkpoint; default: the latest."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Numbers of the weights; trained were float32."""
    max_shard_size: str = "5GB"
    """Largest weights file."""

    def __post_init__(self) -> None:
        well_formed = re.fullmatch(r"[1-9]\d*\s*([KMGT]i?)?B", self.max_shard_size, re.IGNORECASE) is not None
        require(well_formed, "max_shard_size", "a size such as 5GB or 200MB", self.max_shard_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardServerConfig:
    """A reward function behind HTTP, for runs on other machines."""

    preset: str | None = None
    """Named set of defaults shipped with jaxppo; without it, and without --config, the preset `default`."""
    config: str | None = None
    """YAML file of `flag: value` lines, laid over the preset; the command line goes over both."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    validator: Literal["builtin", "val", "auto"] = "builtin"
    """Who judges plans: the in-process validator, the VAL binary, or builtin where it covers the domain."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach needs a token in JAXPPO_REWARD_TOKEN."""
    port: int = 8000
    """Port to listen on; 0 for any free one, which is printed."""
    workers: int = 1
    """Requests worked on at a time; above 1 the function has to be safe for threads."""
    max_waiting: int = 32
    """Requests that may wait beside them; one more is told to come again later (503)."""
    max_body_mib: float = 64.0
    """Longest request, in MiB."""

    def __post_init__(self) -> None:
        require(0 <= self.port < 2**16, "port", "a port, or 0 for a free one", self.port)
        require(self.max_waiting >= 0, "max_waiting", "an integer of at least 0", self.max_waiting)
        require(0 < self.max_body_mib < math.inf, "max_body_mib", "a finite number above 0", self.max_body_mib)
        _require_positive(self, "workers")
        expected = "one function: a client asks a server for one score, and can weigh it with others"
        require(len(self.reward.reward_funcs) == 1, "reward_funcs", expected, self.reward.reward_funcs)
        default = RewardConfig()
        for name in ("reward_weights", "reward_timeout_s", "reward_workers", "on_error", "on_timeout"):
            value, usual = getattr(self.reward, name), getattr(default, name)
            require(value == usual, name, f"{usual}: it is a setting of the run that asks the server", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """The report of a run as one HTML file, or the comparison of several runs."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Run folders of `train`, `sft` or `reward_model`, finished or not; of several, the page compares them."""
    output: str | None = None
    """The HTML file; default: report.html in the folder of one run, for several report.html in the current folder."""

    def __post_init__(self) -> None:
        require(len(self.runs) > 0, "runs", "at least one run folder", self.runs)


def _require_divisible(name: str, value: int, by_name: str, by: int) -> None:
    if value % by:
        raise ConfigError(f"{name}: expected a multiple of {by_name} ({by}), got {value}")
