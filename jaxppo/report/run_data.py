"""Read a run folder for a report: of `train`, `self_train`, `sft` or `reward_model`, finished or not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from jaxppo.config import (
    EvaluateConfig,
    RewardModelConfig,
    SelfTrainConfig,
    SFTConfig,
    TrainConfig,
)
from jaxppo.config.old_settings import translate_old_settings
from jaxppo.config.sources import (
    CALL_ONLY,
    CONFIG_FILE,
    fields_of,
    flatten,
    plain_values,
    preset_values,
    read_yaml,
)
from jaxppo.errors import DataError
from jaxppo.evaluate.plan_metrics import Results
from jaxppo.run.folder import EVAL_FILE, METRICS_FILE, read_json
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.metrics import COUNTERS, METRICS, Band, find
from jaxppo.run.trends import last_part

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
class RunData:
    """A run, as read from its folder.

    Args:
        folder: its folder.
        command: train, self_train, sft or reward_model.
        command_line: the command that began it, without secrets; None where unknown.
        settings: all that were saved, with today's defaults for newer ones.
        defaults: settings of the command without flags.
        records: of `metrics.jsonl`; none where there was no update yet.
        results_before: evaluation before training; empty where there is none.
        results_after: evaluation after training; empty as long as the run is not finished.
        headline_split: the split of the headline result; None where there was no evaluation yet.
    """

    folder: Path
    command: str
    command_line: str | None
    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    results_before: Results
    results_after: Results
    headline_split: str | None

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.folder.resolve().name

    @property
    def method(self) -> str:
        """Return the name of the algorithm."""
        if self.command == "train":
            return str(self.settings["algorithm"]).upper()
        return {"self_train": "self-training", "sft": "SFT", "reward_model": "reward model"}[
            self.command
        ]

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
        if self.results_after:
            return self.updates
        if self.command == "self_train":
            return int(self.settings["num_rounds"])
        episodes = self.settings.get("total_episodes")
        if episodes is None:
            return None
        return math.ceil(int(episodes) / int(self.settings["batch_size"]))

    @property
    def metric_names(self) -> list[str]:
        """Return the metrics of its records, in the order of the documentation, then unknown ones."""
        logged = set(chain.from_iterable(self.records)) - set(COUNTERS)
        documented = [metric.name for metric in METRICS if metric.name in logged]
        # A record may have a metric under TRL 0.11's name as well: one chart is enough.
        return documented + sorted(logged - set(documented) - _OLD_NAMES)

    def values(self, name: str) -> list[float]:
        """Return a metric in the records that have a number of it."""
        return [value for _, value in self.curve(name) if value is not None]

    def end(self, name: str) -> float | None:
        """Return where a metric has got to: the mean of its last tenth."""
        values = self.values(name)
        return fmean(last_part(values)) if values else None

    def curve(self, name: str, x: str = "step") -> list[tuple[float, float | None]]:
        """Return a metric in the records that have it, None where it is null, each over `step` or `episode`."""
        records = [record for record in self.records if name in record]
        return [(number(record.get(x)) or 0.0, number(record[name])) for record in records]

    def band(self, name: str) -> Band | None:
        """Return the healthy range of a metric; None where there is none, or where settings ask for something else."""
        # Completions without a stop token, or of a drawn length, are cut on purpose.
        has_no_end = self.settings.get("stop_token") == "none"
        has_drawn_length = self.settings.get("output_min_length") is not None
        if name == "completions/clipped_ratio" and (has_no_end or has_drawn_length):
            return None
        metric = find(name)
        if metric is None or metric.band is None:
            return None
        # Where an update is a single step on fresh samples, the
        # policy is still the one that sampled: no KL is fine.
        steps = [self.settings.get(setting) for setting in ("num_ppo_epochs", "num_mini_batches")]
        is_on_policy = steps == [1, 1] and not self.settings.get("async_rollouts")
        if name == "policy/approxkl_avg" and is_on_policy:
            return None, metric.band[1]
        return metric.band

    def measure(self, split: str | None) -> str | None:
        """Return the most important measure of a split; None where it was not evaluated."""
        measured = (self.results_after or self.results_before).get(split or "", {})
        return next((name for name in MEASURES if measured.get(name) is not None), None)

    @property
    def headline(self) -> str | None:
        """Return the most important measure of the headline split; None without an evaluation."""
        return self.measure(self.headline_split)

    @property
    def headline_title(self) -> str:
        """Return in words what the headline is; – without an evaluation."""
        return f"{MEASURES[self.headline]} on {self.headline_split}" if self.headline else "–"

    @property
    def headline_results(self) -> list[Any]:
        """Return the headline measure before and after training; None where it was not evaluated."""
        split = self.headline_split or ""
        moments = (self.results_before, self.results_after)
        return [results.get(split, {}).get(self.headline or "") for results in moments]


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def plain_number(measured: Any) -> float | None:
    """Return a measured value without its interval."""
    if isinstance(measured, dict):
        measured = measured.get("rate", measured.get("mean"))
    return number(measured)


def read_run(folder: Path | str) -> RunData:
    """Read a run folder; missing files are left out.

    Raises:
        DataError: it is no folder of a run, or a file in it is damaged.
        ConfigError: its `config.yaml` cannot be read.
    """
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise DataError(f"runs: expected {_FOLDERS}, got {folder} without {CONFIG_FILE}")
    values = translate_old_settings(read_yaml(folder / CONFIG_FILE), fields_of(TrainConfig))
    # The file does not say which command wrote it: its settings do.
    command = max(_COMMANDS, key=lambda name: _fit(values, _COMMANDS[name]))
    if command == "evaluate":
        raise DataError(f"runs: expected {_FOLDERS}, got the evaluation {folder}")
    # Settings that a run does not save, or that are newer than it, have the values of today.
    plain = plain_values(flatten(_COMMANDS[command]()))
    for name in CALL_ONLY:
        plain.pop(name, None)
    metrics = folder / METRICS_FILE
    records = read_metrics(metrics) if metrics.exists() else []
    evals = read_json(folder / EVAL_FILE)
    # `sft` writes the splits alone, once it is done.
    if evals and not {"before", "after"} & evals.keys():
        evals = {"after": evals}
    results_before = evals.get("before", {})
    results_after = evals.get("after", {})
    headline_split: Any = evals.get("headline_split") or next(
        iter(results_after or results_before), None
    )
    return RunData(
        folder=folder,
        command=command,
        command_line=_command_line(folder / CONFIG_FILE),
        settings=plain | values,
        defaults=plain | preset_values(command, "default"),
        records=[record for record in records if isinstance(record.get("step"), int)],
        results_before=results_before,
        results_after=results_after,
        headline_split=headline_split,
    )


def _fit(values: Mapping[str, Any], config_class: Any) -> int:
    """Count how well settings fit a command: those that both have, less those that only one has."""
    # Commands share most settings: what only one of the two has must count against it.
    names = flatten(config_class()).keys() - set(CALL_ONLY)
    shared = names & values.keys()
    different = names ^ values.keys()
    return len(shared) - len(different)


def _command_line(path: Path) -> str | None:
    """Return the command in the comment at the top of a configuration."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in comment)
    return text.removeprefix("command: ") if text.startswith("command: ") else None
