"""Where and how a run is carried out, and what happens between its updates."""

import dataclasses
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from jaxppo.config.checks import require, require_default, require_positive
from jaxppo.errors import ConfigError

_PROCESS = re.compile(r"(?P<address>[^,]+:\d+)(,(?P<number>\d+)/(?P<count>\d+))?")
"""`distributed`, unless it is `auto`."""


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
    allow_changes: tuple[str, ...] = ()
    """With --resume: settings that may have another value than the run so far had, e.g. save_steps total_episodes."""
    dry_run: bool = False
    """Print the plan of the run and stop before any training."""
    target: str | None = None
    """With --dry_run: compile the programs of this very configuration for an accelerator that need not be present, and
    say what they take and whether they fit, e.g. tpu-v5e-4, gpu-h100x8 or tpu:v5e:4x8 (docs/accelerators.md)."""
    parallel: Literal["shard_map", "pmap", "fsdp"] = "shard_map"
    """How the per-device programs are mapped over all devices: shard_map and pmap keep all weights on each device, fsdp
    splits them, gradients and optimizer over the axes of --mesh. The numbers are the same (docs/scaling.md)."""
    mesh: str | None = None
    """Sizes of the device axes, e.g. data=2,fsdp=4 or fsdp=4,tensor=2; -1 takes what is left. Rows are split over data
    and fsdp, weights over fsdp and tensor. Default: fsdp=-1 for --parallel fsdp, otherwise data=-1."""
    attention: Literal["auto", "plain", "blocks", "triton", "splash"] = "auto"
    """How attention is computed: with all scores at once (plain, the default on a CPU), with those of some queries at a
    time (blocks), or by a kernel for GPUs (triton, their default) or TPUs (splash, theirs)."""
    distributed: str | None = None
    """Join the other processes of this run. auto: as SLURM, Open MPI, Kubernetes or a TPU slice started them, or as the
    variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID say (docs/scaling.md). Else HOST:PORT of the
    first process, which the others connect to, and, where the cluster does not say so, the number of this process (from
    0) and of all: HOST:PORT,NUMBER/COUNT."""
    quiet: bool = False
    """Print results and warnings only."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**32, "seed", "an integer in [0, 2^32)", self.seed)
        # Number and count are for clusters that JAX does
        # not know; the others say them by themselves.
        address = self.distributed
        if address not in (None, "auto"):
            match = _PROCESS.fullmatch(address)
            fits = match is not None and (
                match["number"] is None or int(match["number"]) < int(match["count"])
            )
            require(
                fits,
                "distributed",
                "auto, HOST:PORT, or HOST:PORT,NUMBER/COUNT with NUMBER < COUNT",
                address,
            )
        if self.target is not None:
            require(self.dry_run, "target", "--dry_run with it", self.target)
            require(
                self.parallel != "pmap", "parallel", "shard_map or fsdp with target", self.parallel
            )
            require_default(self, "distributed", "with target")
        if self.resume:
            require(
                self.output_dir is not None, "resume", "--output_dir with the run to continue", None
            )
        else:
            require_default(self, "allow_changes", "without --resume")

    @property
    def process(self) -> tuple[str | None, int | None, int | None]:
        """HOST:PORT of the first process, number of this one, and number of all; None where only the cluster knows."""
        match = _PROCESS.fullmatch(self.distributed or "")
        if match is None:
            return None, None, None
        if match["number"] is None:
            return match["address"], None, None
        return match["address"], int(match["number"]), int(match["count"])


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
    """Keep, beside the latest, the checkpoint with the best value of this metric: objective/scores, or one of
    evaluations such as eval/test_longer/validity, for which each evaluated update is saved; `none`: keep no best one.
    The best value of a loss is the lowest, of other metrics the highest. Default: where plans are judged and eval_steps
    is set, eval/<split>/validity of the last of eval_splits (sft: of the first, or its loss where no answers are
    scored); otherwise none."""
    report_to: tuple[str, ...] = ("tensorboard",)
    """Where metrics and samples go beside metrics.jsonl and samples.jsonl: tensorboard (files in the run folder), wandb
    (pip install 'jaxppo[tracking]'), both, or none."""

    def __post_init__(self) -> None:
        require_positive(self, "save_total_limit")
        # `none` is no tracker that could stand beside others.
        trackers = self.report_to
        fits = 0 < len(trackers) == len(set(trackers)) and (
            len(trackers) == 1 or "none" not in trackers
        )
        require(fits, "report_to", "trackers, each once, or none alone", trackers)
        if self._evaluates_best:
            require(
                self.eval_steps is not None,
                "eval_steps",
                "a number with metric_for_best_model eval/...",
                None,
            )
        for name in ("save_steps", "eval_steps"):
            value = getattr(self, name)
            if value is not None:
                requirement = "a whole number of updates, or a fraction of the run between 0 and 1"
                require(0 < value < 1 or (value >= 1 and value % 1 == 0), name, requirement, value)

    @property
    def best_metric(self) -> str | None:
        """The metric that the best checkpoint is chosen by, or None."""
        return None if self.metric_for_best_model == "none" else self.metric_for_best_model

    @property
    def greater_is_better(self) -> bool:
        """Whether the best value of `best_metric` is the highest."""
        return not (self.best_metric or "").endswith("loss")

    def with_best_metric(self, default: str) -> "LoopConfig":
        """Return these settings with a default `metric_for_best_model`, where it is evaluated and none was named."""
        if self.metric_for_best_model is not None or self.eval_steps is None:
            return self
        return dataclasses.replace(self, metric_for_best_model=default)

    def saves_at(self, step: int, last: int) -> bool:
        """Return whether a checkpoint is due after update `step`.

        It is every `save_steps`, after the last update, and after an evaluation that may make it the best one.
        """
        may_be_best = self._evaluates_best and self.evaluates_at(step, last)
        return step % _updates(self.save_steps, last) == 0 or step == last or may_be_best

    def evaluates_at(self, step: int, last: int) -> bool:
        """Return whether an evaluation is due after update `step`; one follows the last update in any case."""
        return (
            self.eval_steps is not None
            and step % _updates(self.eval_steps, last) == 0
            and step != last
        )

    def check_record(self, record: dict[str, Any], last: int) -> None:
        """Raise a `ConfigError` unless the metric for the best checkpoint is in a record where it should be."""
        # A metric of training is in every record, one of
        # evaluations only in those after an evaluation.
        name = self.best_metric
        missing = name is not None and name not in record
        if missing and (not self._evaluates_best or self.evaluates_at(record["step"], last)):
            raise ConfigError(
                f"metric_for_best_model: expected a metric that this run logs, got {name!r}"
            )

    def check_evaluated(self, names: Collection[str]) -> None:
        """Raise a `ConfigError` where the metric for the best checkpoint is of an evaluation, and none of these."""
        if self._evaluates_best and self.best_metric not in names:
            evaluated = ", ".join(sorted(names)) or "nothing, as no split is evaluated"
            requirement = f"one of {evaluated}, or a metric of training"
            raise ConfigError(
                f"metric_for_best_model: expected {requirement}, got {self.best_metric!r}"
            )

    @property
    def _evaluates_best(self) -> bool:
        return self.best_metric is not None and self.best_metric.startswith("eval/")


def _updates(steps: float, last: int) -> int:
    """Return a number of updates, or a fraction of all of them, rounded up."""
    # Rounding to six digits first: 0.07 * 100 is 7.000000000000001, which must not become 8.
    return max(1, math.ceil(round(steps * last, 6))) if steps < 1 else int(steps)


def with_best_metric(config: Any, split: str) -> Any:
    """Return the configuration of a command with the default metric of the best checkpoint, where plans are judged."""
    if not config.reward.judges_plans:
        return config
    return dataclasses.replace(config, loop=config.loop.with_best_metric(f"eval/{split}/validity"))
