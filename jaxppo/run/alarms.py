"""What a run watches for after every update: losses that are not finite, and KL estimates that cannot be right."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo.errors import TrainingError
from jaxppo.parallel import processes
from jaxppo.run.console import Console
from jaxppo.run.jsonl import JsonlLog
from jaxppo.types import Trajectories

BAD_BATCHES = "bad_batches"
"""Folder in a run folder for batches whose loss or gradient was not finite."""

NEGATIVE_KL = -1.0
"""Nats per completion below which a KL estimate is no sampling noise any more (TRL 0.11's threshold)."""


DISAGREEMENTS = "val_disagreements"
"""Folder in a run folder for plans on which the validators disagree."""

REWARD_ALARMS = {
    "reward/errors": (
        0,
        "the reward function failed on completions; samples.jsonl has the reasons, --on_error decides what they earn",
    ),
    "reward/timeouts": (
        0,
        "the reward function took too long; samples.jsonl has the completions; raise reward_timeout_s",
    ),
    "reward/validator_failed": (
        0,
        "VAL crashed or took too long; such plans count as not valid; raise val_timeout_s, or --validator builtin",
    ),
    "reward/val_failed": (0, "VAL crashed or took too long on plans that it was to check again; raise val_timeout_s"),
    "reward/invalid_with_reference": (
        0.25,
        "many plans hold the steps of their reference and are not valid: the partial reward may be gamed; lower "
        "partial_scale, or normalise by max",
    ),
    "reward/overlong": (
        0.25,
        "many plans are far longer than their reference: the partial reward may be gamed; normalise by max, or set "
        "missing_eos_penalty",
    ),
}
"""Metric to the highest value that is nothing to worry about, and what more may mean."""


class Health:
    """Watches the records of a run.

    Args:
        console: for warnings.
        folder: run folder.
        max_bad_updates: bad updates in a row that end the run.
        to_host: fetches a batch from the devices.
    """

    def __init__(
        self, console: Console, folder: Path, max_bad_updates: int, to_host: Callable[[Any], Any] = jax.device_get
    ):
        self._console, self._folder, self._max_bad_updates = console, folder, max_bad_updates
        self._to_host = to_host
        self._warned_of_kl = False
        self._warned_of_reward: set[str] = set()

    def is_over(self, record: dict[str, Any]) -> bool:
        """Whether too many updates in a row had a loss or gradient that was not finite."""
        return record["policy/bad_updates"] >= self._max_bad_updates

    def check(self, record: dict[str, Any], trajectories: Trajectories, samples: list[dict[str, Any]]) -> None:
        """Look at one update.

        Args:
            record: its metrics.
            trajectories: its batch, saved where the loss or the gradient was not finite.
            samples: its completions and scores, saved beside.

        Raises:
            TrainingError: there were too many of them.
        """
        if record["policy/nonfinite_steps"]:
            batch = self._to_host(trajectories)
            saved = processes.on_first(lambda: save_batch(self._folder / BAD_BATCHES, record["step"], batch, samples))
            self._console.warn(
                f"update {record['step']}: {record['policy/nonfinite_steps']} optimizer step(s) left out, "
                f"their loss or gradient was NaN or infinite; batch saved in {saved}; if it goes on, a lower "
                "learning_rate or max_grad_norm may help"
            )
            if self.is_over(record):
                raise TrainingError(
                    f"max_bad_updates: stopped after {record['policy/bad_updates']} updates in a row with a NaN or "
                    f"infinite loss or gradient; the last batch is in {saved}; a new run with a lower "
                    "learning_rate or max_grad_norm may help"
                )
        self._check_reward(record)
        kl = record.get("objective/kl_k1", 0.0)
        if kl < NEGATIVE_KL and not self._warned_of_kl:
            self._warned_of_kl = True
            self._console.warn(
                f"update {record['step']}: KL to the reference is {kl:.2f} nats per completion, below what chance "
                "explains. Likely causes: completions were not sampled from the policy's own distribution (top_k, "
                "top_p, min_p, another temperature), their log-probabilities were computed with other numbers (low "
                "precision, another matmul precision), or the reference is not the model that the policy started from. "
                "Leave out the truncation, or try --logprobs recompute and --dtype float32"
            )

    def _check_reward(self, record: dict[str, Any]) -> None:
        """Disagreements are told whenever they occur, what else is odd about the reward once."""
        if record.get("reward/val_disagreements"):
            self._console.warn(
                f"update {record['step']}: VAL and the in-process validator disagree on "
                f"{record['reward/val_disagreements']:g} of {record['reward/val_audited']:g} plans; the cases are in "
                f"{self._folder / DISAGREEMENTS}. Please report them; --validator val has VAL judge all plans"
            )
        for name, (most, message) in REWARD_ALARMS.items():
            if record.get(name, 0.0) > most and name not in self._warned_of_reward:
                self._warned_of_reward.add(name)
                self._console.warn(f"update {record['step']}: {name} is {record[name]:g}: {message}")


def save_batch(folder: Path, step: int, trajectories: Trajectories, samples: list[dict[str, Any]]) -> Path:
    """Write a batch as `update-<step>.npz` (arrays by name) and `.jsonl` (prompts, completions, scores)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"update-{step}.npz"
    named = jax.tree_util.tree_flatten_with_path(trajectories)[0]
    arrays = {".".join(key.name for key in keys): np.asarray(value) for keys, value in named}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    path.with_suffix(".jsonl").unlink(missing_ok=True)  # of the same update before a resume
    with JsonlLog(path.with_suffix(".jsonl")) as log:
        for sample in samples:
            log.append(sample)
    return path
