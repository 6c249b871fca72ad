"""The settings of the commands that learn nothing: evaluate, export, reward_server and report."""

import dataclasses
import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import tyro

from jaxppo.config.checks import (
    ComputeDtype,
    Validator,
    require,
    require_default,
    require_positive,
    without_flag,
)
from jaxppo.config.data import DataConfig
from jaxppo.config.hub import HubConfig
from jaxppo.config.reward import RewardConfig
from jaxppo.config.run import RunConfig
from jaxppo.config.sampling import EvalConfig, SamplingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Plans on held-out problems, of models or from a file, measured and compared."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "--preset planning-multi",
        "--model outputs/first/policy",
        "--plans answers.jsonl",
        "--pddl_dir instances",
        "--dataset blocksworld",
        "--eval_splits test test_longer",
        "--eval_rows 200",
        "--response_length 128",
        "--num_samples 8",
        "--eval_temperature 0.7",
        "--compare_with blocksworld-sft",
        "--output_dir outputs/eval",
    )
    """What `--help` begins with: the flags that a newcomer needs, in the order of use."""
    UNREAD: ClassVar[tuple[str, ...]] = (
        "allow_changes",
        "train_split",
        "on_error",
        "partial_scale",
        "reward_weights",
        "reward_timeout_s",
        "audit_rate",
        "target",
    )
    """Fields of the groups that this command does not read."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    model: tuple[str, ...] | None = None
    """Hugging Face folder or hub id (user/name or user/name@revision), or a shipped model (`blocksworld-sft`, the
    default, or `planning-multi-sft`); several are seeds of one method: 0, 1, ..."""
    plans: str | None = None
    """Instead of a model, plans made by anything: a file with a JSON object a line with `id`, and `plan` or
    `completion`; with pddl_dir or columns, PlanBench's result files, JSON lines, CSV, Parquet or files of plans, one or
    a folder of them (docs/judge_plans.md)."""
    pddl_dir: str | None = None
    """Folder with the domains and problems that the answers in `plans` are to; PlanBench's `configs` lie in or beside
    it."""
    columns: str | None = None
    """Columns of a file of answers, such as plan=answer,problem=task: plan, problem, domain, model, prompt, reference,
    correct; the others keep their usual names."""
    extract: Literal["strict", "last"] = "strict"
    """How a plan is cut out of an answer: not at all; or the last run of steps without words in between."""
    compare_with: tuple[str, ...] | None = None
    """What to compare with on the same rows: models, or one .jsonl file of plans such as the samples.jsonl of another
    evaluation."""
    label: str | None = None
    """Name of the model or plans in tables and on the page; default: where they come from."""
    compare_label: str | None = None
    """Name of what is compared with."""
    num_samples: int = 1
    """Answers of each model to each row, for pass@k; more need eval_temperature."""
    decoder: Literal["plain", "reground"] = "plain"
    """How plans are written: by the model alone, or one action at a time, the model being asked again from the state
    after it until the goal holds (reground)."""
    dtype: ComputeDtype = "float32"
    """Numbers that the model computes in; logits are float32 in any case."""
    response_length: int = 72
    """Most tokens of a completion; the default is that of the default run."""
    stop_token: Literal["eos"] | int = "eos"
    """What ends a completion, as in training: eos, or the id of another token."""
    stop_strings: tuple[str, ...] = ()
    """A completion also ends with the token that completes one of these strings."""
    repetition_penalty: float = without_flag(1.0)
    """Logits of tokens that prompt or completion have already are divided by it, negative ones multiplied (CTRL)."""

    def __post_init__(self) -> None:
        require_positive(self, "response_length", "num_samples")
        _ = self.sampling  # which checks its values
        self._check_sources()
        require_default(self.run, "target", "as `train` says what its programs take")
        # A split named twice would be one entry of the results, with the rows of both.
        splits = self.data.eval_splits
        require(len(splits) > 0, "eval_splits", "at least one split", splits)
        require(len(set(splits)) == len(splits), "eval_splits", "each split once", splits)
        # The results file has these two keys beside those of the splits.
        reserved = [split for split in splits if split in ("comparison", "compared_with")]
        require(
            not reserved, "eval_splits", "other names than comparison and compared_with", reserved
        )
        if self.decoder != "plain":
            reason = f"with decoder {self.decoder}"
            require_default(self, "plans", reason)
            require_default(self, "num_samples", f"{reason}, which is greedy")
            require_default(self.evaluation, "eval_temperature", f"{reason}, which is greedy")
            require_default(self.reward, "reward_funcs", reason)
            require_default(self, "stop_strings", reason)
            require_default(self, "repetition_penalty", reason)
        # Greedy answers to a row are equal: pass@k of them would only look like an estimate.
        if self.num_samples > 1:
            temperature = self.evaluation.eval_temperature
            requirement = (
                "a number above 0 with num_samples above 1: greedy samples are all the same"
            )
            require(temperature > 0.0, "eval_temperature", requirement, temperature)

    @property
    def sampling(self) -> SamplingConfig:
        """Where a completion ends, its most tokens, and the repetition penalty; the rest is in `evaluation`."""
        return SamplingConfig(
            response_length=self.response_length,
            stop_token=self.stop_token,
            stop_strings=self.stop_strings,
            repetition_penalty=self.repetition_penalty,
        )

    def _check_sources(self) -> None:
        has_two_sources = self.plans is not None and self.model is not None
        require(not has_two_sources, "plans", "a file of plans, or model, not both", self.plans)
        for name in ("model", "compare_with"):
            sources = getattr(self, name)
            if sources is not None:
                # In Python a single text would pass as a sequence: of its characters.
                is_sequence = not isinstance(sources, str) and len(sources) > 0
                require(is_sequence, name, "one or more", sources)
        # A file of plans has no model to sample from, so it cannot stand beside models.
        files = [source for source in self.compare_with or () if source.endswith(".jsonl")]
        fits = not files or len(self.compare_with or ()) == 1
        require(fits, "compare_with", "models, or one file of plans", self.compare_with)
        reads_plans = self.plans is not None or bool(files)
        compares = self.compare_with is not None
        if reads_plans or compares:
            reason = "with plans or compare_with, which compare plans; evaluate each model by itself for other rewards"
            require_default(self.reward, "reward_funcs", reason)
        self._check_answers()
        if not compares:
            require_default(self, "compare_label", "without compare_with")
        if self.plans is not None and (files or not compares):
            require_default(self, "num_samples", "without a model")

    def _check_answers(self) -> None:
        if self.judges_answers:
            require_default(self, "compare_with", "with files of answers")
            reason = "with files of answers, which are all judged"
            require_default(self.evaluation, "eval_rows", reason)
            return
        for name in ("pddl_dir", "columns"):
            require_default(self, name, "without plans")
        require_default(self, "extract", "without pddl_dir or columns")

    @property
    def judges_answers(self) -> bool:
        """Whether `plans` are answers to problems of their own, and not to the rows of the data set."""
        if self.plans is None:
            return False
        return (
            self.pddl_dir is not None
            or self.columns is not None
            or not self.plans.endswith(".jsonl")
        )

    @property
    def sources(self) -> tuple[str, ...]:
        """Models, or a file of plans, that are evaluated."""
        if self.plans is not None:
            return (self.plans,)
        return self.model or ("blocksworld-sft",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """The models of a checkpoint as Hugging Face folders."""

    preset: str | None = None
    """Named set of defaults shipped with jaxppo; without it, and without --config, the preset `default`."""
    config: str | None = None
    """YAML file of `flag: value` lines, laid over the preset; the command line goes over both."""
    hub: HubConfig = field(default_factory=HubConfig)
    run_dir: str | None = None
    """Run folder. With --push_to_hub and no option of what to export, the models that a finished run has written are
    pushed as they are."""
    output_dir: str | None = None
    """Where the folders of the models go; default: <run_dir>/exports/<step>."""
    step: int | None = None
    """Updates done at the checkpoint; default: the latest."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Numbers of the weights; trained were float32."""
    max_shard_size: str = "5GB"
    """Largest weights file."""
    dry_run: bool = False
    """Say what would be written, and stop."""
    quiet: bool = False
    """Print results and warnings only."""

    def __post_init__(self) -> None:
        well_formed = (
            re.fullmatch(r"[1-9]\d*\s*[KMGT]B", self.max_shard_size, re.IGNORECASE) is not None
        )
        require(well_formed, "max_shard_size", "a size such as 5GB or 200MB", self.max_shard_size)

    @property
    def has_export_options(self) -> bool:
        """Whether an option says which weights to export, how, or where to."""
        defaults = {spec.name: spec.default for spec in dataclasses.fields(self)}
        names = ("output_dir", "step", "dtype", "max_shard_size")
        return any(getattr(self, name) != defaults[name] for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardServerConfig:
    """A reward function served over HTTP, for runs on other machines."""

    preset: str | None = None
    """Named set of defaults shipped with jaxppo; without it, and without --config, the preset `default`."""
    config: str | None = None
    """YAML file of `flag: value` lines, laid over the preset; the command line goes over both."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    validator: Validator = "builtin"
    """Who judges plans: the in-process validator, the VAL binary, or builtin where it covers the domain."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach needs a token in JAXPPO_REWARD_TOKEN."""
    port: int = 8000
    """Port to listen on; 0 for any free one, which is printed."""
    workers: int = 1
    """Requests worked on at a time; above 1 the function has to be safe for threads."""

    def __post_init__(self) -> None:
        require(0 <= self.port < 2**16, "port", "a port, or 0 for a free one", self.port)
        require_positive(self, "workers")
        requirement = (
            "one function: a client asks a server for one score, and can weigh it with others"
        )
        require(
            len(self.reward.reward_funcs) == 1,
            "reward_funcs",
            requirement,
            self.reward.reward_funcs,
        )
        for name in ("reward_weights", "reward_timeout_s", "on_error"):
            reason = "with a server: it is a setting of the run that asks it"
            require_default(self.reward, name, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """The report of a run as one HTML file, or the comparison of several runs."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Run folders of `train`, `sft`, `self_train` or `reward_model`, finished or not; of several, the page compares
    them."""
    output: str | None = None
    """The HTML file; default: report.html in the folder of one run, for several report.html in the current folder."""

    def __post_init__(self) -> None:
        require(len(self.runs) > 0, "runs", "at least one run folder", self.runs)
