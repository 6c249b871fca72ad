"""Read a run folder for a report: of `train`, `self_train`, `sft` or `reward_model`, finished or not."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxppo.config import EvaluateConfig, RewardModelConfig, SelfTrainConfig, SFTConfig, TrainConfig
from jaxppo.config.gone import renewed
from jaxppo.config.sources import CALL_ONLY, CONFIG_FILE, fields_of, flatten, plain_values, preset_values, read_yaml
from jaxppo.errors import DataError
from jaxppo.run.folder import EVAL_FILE, read_json
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.metrics import COUNTERS, METRICS, Band, find

METRICS_FILE, SAMPLES_FILE = "metrics.jsonl", "samples.jsonl"

Results = Mapping[str, Mapping[str, Any]]
"""{split: measures}."""

_COMMANDS = {
    "train": TrainConfig,
    "self_train": SelfTrainConfig,
    "sft": SFTConfig,
    "reward_model": RewardModelConfig,
    "evaluate": EvaluateConfig,
}
_FOLDERS = "folders of train, self_train, sft or reward_model"
_OLD_NAMES = {metric.old_name for metric in METRICS} - {None}

MEASURES = {
    "validity": "valid plans",
    "accuracy": "pairs ordered right",
    "executability": "executable plans",
    "reward": "mean reward",
    "mean_reward": "mean reward",
    "margin": "margin",
    "loss": "loss",
}
"""Measures of an evaluation in words, the most important first."""

RATES = ("validity", "accuracy", "executability")
"""Measures that are fractions with an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run, as read from its folder.

    Args:
        folder: its folder.
        command: train, self_train, sft or reward_model.
        command_line: the command that began it, without secrets; None where unknown.
        settings: all that were saved, with today's defaults for newer ones.
        defaults: settings of the command without flags.
        records: of `metrics.jsonl`; none where there was no update yet.
        before: evaluation before training; empty where there is none.
        after: evaluation after training; empty as long as the run is not finished.
        headline_split: the split of the headline result; None where there was no evaluation yet.
    """

    folder: Path
    command: str
    command_line: str | None
    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    before: Results
    after: Results
    headline_split: str | None

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.folder.resolve().name

    @property
    def method(self) -> str:
        """Return the name of the algorithm."""
        names = {"self_train": "self-training", "sft": "SFT", "reward_model": "reward model"}
        return names.get(self.command) or str(self.settings["algorithm"]).upper()

    @property
    def changed(self) -> list[str]:
        """Return the settings that differ from those of the command without flags."""
        return [name for name, value in self.settings.items() if value != self.defaults.get(name)]

    @property
    def updates(self) -> int:
        """Return the number of updates done."""
        return int(self.records[-1]["step"]) if self.records else 0

    @property
    def unit(self) -> str:
        """Return what a record is of: updates, or rounds."""
        return "rounds" if self.command == "self_train" else "updates"

    @property
    def planned_updates(self) -> int | None:
        """Return the number of updates planned; None where unknown."""
        if self.after:
            return self.updates
        if self.command == "self_train":
            return int(self.settings["num_rounds"])
        episodes = self.settings.get("total_episodes")
        return None if episodes is None else -(-int(episodes) // int(self.settings["batch_size"]))

    @property
    def metric_names(self) -> list[str]:
        """Return the metrics of its records, in the order of the documentation, then unknown ones."""
        logged = {name for record in self.records for name in record if name not in COUNTERS}
        known = [metric.name for metric in METRICS if metric.name in logged]
        return known + sorted(logged - set(known) - _OLD_NAMES)

    def values(self, name: str) -> list[float | None]:
        """Return a metric in the records that have it; None where it is null."""
        return [value for _, value in self.curve(name)]

    def curve(self, name: str, x: str = "step") -> list[tuple[float, float | None]]:
        """Return the same, each with another metric, `step` or `episode`."""
        return [(number(record.get(x)) or 0.0, number(record[name])) for record in self.records if name in record]

    def band(self, name: str) -> Band | None:
        """Return the healthy range of a metric; None where there is none, or where settings ask for something else."""
        cut_on_purpose = self.settings.get("stop_token") == "none" or self.settings.get("output_min_length") is not None
        if name == "completions/clipped_ratio" and cut_on_purpose:
            return None
        metric = find(name)
        band = None if metric is None else metric.band
        if band is not None and name == "policy/approxkl_avg" and self._learns_once:
            return None, band[1]  # the policy is still the one that has sampled
        return band

    @property
    def _learns_once(self) -> bool:
        """Return whether an update is a single step, on what the policy of that moment has sampled."""
        steps = [self.settings.get(name) for name in ("num_ppo_epochs", "num_mini_batches")]
        return steps == [1, 1] and not self.settings.get("async_rollouts")

    @property
    def headline(self) -> str | None:
        """Return the most important measure of the headline split; None without an evaluation."""
        measured = (self.after or self.before).get(self.headline_split or "", {})
        return next((name for name in MEASURES if measured.get(name) is not None), None)

    @property
    def reproduce(self) -> str:
        """Return the command that repeats the run."""
        return f"python -m jaxppo.{self.command} --config {shlex.quote(str(self.folder / CONFIG_FILE))}"

    @property
    def report(self) -> str:
        """Return the command that writes the report again."""
        return f"python -m jaxppo.report {shlex.quote(str(self.folder))}"

    @property
    def resume(self) -> str:
        """Return the command that resumes the run."""
        return f"python -m jaxppo.{self.command} --resume --output_dir {shlex.quote(str(self.folder))}"


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else None


def plain_number(measured: Any) -> float | None:
    """Return a measured value without its interval."""
    return number(measured.get("rate", measured.get("mean")) if isinstance(measured, dict) else measured)


def read_run(folder: Path | str) -> Run:
    """Read a run folder; missing files are left out.

    Raises:
        DataError: it is no folder of a run, or a file in it is damaged.
        ConfigError: its `config.yaml` cannot be read.
    """
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        found = f"{folder} without {CONFIG_FILE}" if folder.is_dir() else f"{folder}, which is no folder"
        raise DataError(f"runs: expected {_FOLDERS}, got {found}")
    values = read_yaml(folder / CONFIG_FILE)
    values = renewed(values, fields_of(TrainConfig))
    command = max(_COMMANDS, key=lambda name: _fit(values, _COMMANDS[name]))
    if command == "evaluate":
        raise DataError(f"runs: expected {_FOLDERS}, got the evaluation {folder}")
    config = _COMMANDS[command]()
    plain = {name: value for name, value in plain_values(flatten(config)).items() if name not in CALL_ONLY}
    metrics = folder / METRICS_FILE
    before, after, headline_split = _evaluations(read_json(folder / EVAL_FILE))
    return Run(
        folder=folder,
        command=command,
        command_line=_command_line(folder / CONFIG_FILE),
        settings=plain | values,
        defaults=plain | preset_values(command, "default"),
        records=[r for r in read_metrics(metrics) if isinstance(r.get("step"), int)] if metrics.exists() else [],
        before=before,
        after=after,
        headline_split=headline_split,
    )


def _fit(values: Mapping[str, Any], config_class: Any) -> int:
    """Count how well settings fit a command: those that both have, less those that only one has."""
    names = flatten(config_class()).keys() - set(CALL_ONLY)
    return len(names & values.keys()) - len(names ^ values.keys())


def _command_line(path: Path) -> str | None:
    """Return the command in the comment at the top of a configuration."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    text = "\n".join(lines)
    return text.removeprefix("command: ") if text.startswith("command: ") else None


def _evaluations(content: Mapping[str, Any]) -> tuple[Results, Results, str | None]:
    """Return before, after and the headline split; `sft` writes the splits only, once it is done."""
    if content and not {"before", "after"} & content.keys():
        content = {"after": content}
    before, after = content.get("before", {}), content.get("after", {})
    return before, after, content.get("headline_split") or next(iter(after or before), None)
