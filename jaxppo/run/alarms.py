"""Warn after an update that could not learn, or with a metric outside the range where its row raises an alarm."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo.errors import TrainingError
from jaxppo.parallel import processes
from jaxppo.run.console import Console
from jaxppo.run.jsonl import JsonlLog
from jaxppo.run.metrics import METRICS, side_of_band, without_backticks
from jaxppo.types import Trajectories

BAD_BATCHES = "bad_batches"
"""Folder in a run folder for batches whose loss or gradient was not finite."""

DISAGREEMENTS = "val_disagreements"
"""Folder in a run folder for plans on which the validators disagree."""

_NONFINITE = "policy/nonfinite_steps"
"""Has a warning of its own, which names the saved batch."""
_ALARMS = tuple(metric for metric in METRICS if metric.alarm and metric.name != _NONFINITE)


class Health:
    """Watch the records of a run.

    Args:
        console: for warnings.
        folder: run folder.
        max_bad_updates: so many bad updates in a row end the run: with a loss or gradient that was not finite, or
            without any score.
        to_host: fetches a batch from the devices.
    """

    def __init__(
        self,
        console: Console,
        folder: Path,
        max_bad_updates: int,
        to_host: Callable[[Any], Any] = jax.device_get,
    ):
        self._console = console
        self._folder = folder
        self._max_bad_updates = max_bad_updates
        self._to_host = to_host
        self._warned_metrics: set[str] = set()

    def is_over(self, record: dict[str, Any]) -> bool:
        """Return whether too many updates in a row were bad."""
        return record["policy/bad_updates"] >= self._max_bad_updates

    def check(
        self, record: dict[str, Any], trajectories: Trajectories, samples: list[dict[str, Any]]
    ) -> None:
        """Look at one update.

        Args:
            record: its metrics.
            trajectories: its batch, saved where the loss or the gradient was not finite.
            samples: its completions and scores, saved beside it.

        Raises:
            TrainingError: there were too many of them.
        """
        # Optimizer steps that are not finite have been left
        # out on the devices: the state is the one before them.
        if record[_NONFINITE]:
            self._save_and_warn(record, trajectories, samples)
        elif samples and all(sample["score"] is None for sample in samples):
            self._warn_unscored(record, samples)
        for metric in _ALARMS:
            value = record.get(metric.name, math.nan)  # NaN is outside no band
            side = side_of_band(value, metric.band)
            if side and (metric.alarm == "always" or metric.name not in self._warned_metrics):
                self._warned_metrics.add(metric.name)
                advice = without_backticks(metric.advice(side) or "")
                self._console.warn(
                    f"update {record['step']}: {metric.name} is {value:g}, {side}: {advice}"
                )

    def _save_and_warn(
        self, record: dict[str, Any], trajectories: Trajectories, samples: list[dict[str, Any]]
    ) -> None:
        # All processes fetch the batch, which lies on the
        # devices of all of them; the first one writes it.
        batch = self._to_host(trajectories)
        path = processes.on_first(
            lambda: save_batch(self._folder / BAD_BATCHES, record["step"], batch, samples)
        )
        self._console.warn(
            f"update {record['step']}: {record[_NONFINITE]} optimizer step(s) left out, "
            f"their loss or gradient was NaN or infinite; batch saved in {path}; if it goes on, a lower "
            "learning_rate or max_grad_norm may help"
        )
        if self.is_over(record):
            raise TrainingError(
                f"max_bad_updates: stopped after {record['policy/bad_updates']} updates in a row with a NaN or "
                f"infinite loss or gradient; the last batch is in {path}; a new run with a lower "
                "learning_rate or max_grad_norm may help"
            )

    def _warn_unscored(self, record: dict[str, Any], samples: list[dict[str, Any]]) -> None:
        """Warn that no completion of a batch had a score, and why."""
        failures = [
            value
            for name, value in samples[0].items()
            if name.endswith("_failed") and value is not None
        ]
        reason = failures[0] if failures else "every reward function returned None"
        if self.is_over(record):
            raise TrainingError(
                f"max_bad_updates: stopped after {record['policy/bad_updates']} updates in a row without any score, "
                f"the last time: {reason}; with --resume the run goes on from here"
            )
        self._console.warn(
            f"update {record['step']} is left out, as none of its completions has a score: {reason}"
        )


def save_batch(
    folder: Path, step: int, trajectories: Trajectories, samples: list[dict[str, Any]]
) -> Path:
    """Write a batch as `update-<step>.npz` (arrays by name) and `.jsonl` (prompts, completions, scores)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"update-{step}.npz"
    arrays = {}
    for keys, value in jax.tree_util.tree_leaves_with_path(trajectories):
        arrays[".".join(key.name for key in keys)] = np.asarray(value)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    # The log appends, and a run that resumed may have saved this update before.
    path.with_suffix(".jsonl").unlink(missing_ok=True)
    with JsonlLog(path.with_suffix(".jsonl")) as log:
        for sample in samples:
            log.append(sample)
    return path
