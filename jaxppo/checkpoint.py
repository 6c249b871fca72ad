"""Checkpoints of a run: everything an update changes, saved and restored by orbax."""

import json
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxppo.errors import DataError


class Checkpoints:
    """The checkpoints of one run folder, named by the number of updates done.

    Args:
        folder: `<run>/checkpoints`.
        keep: how many of the latest to keep.
    """

    def __init__(self, folder: Path, keep: int):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    @property
    def latest(self) -> int | None:
        """Updates done at the latest complete checkpoint, or None."""
        steps = (step for step in self._manager.all_steps() if (self._manager.directory / str(step) / "state").is_dir())
        return max(steps, default=None)

    def save(self, step: int, state: Any, config: dict[str, Any]) -> None:
        """Write a checkpoint; a process killed half-way leaves the earlier ones untouched."""
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state), config=ocp.args.JsonSave(json.loads(json.dumps(config)))
        )
        self._manager.save(step, args=items, force=True)  # else it would skip a step before the newest, without a word

    def restore(self, like: Any) -> Any:
        """The latest state, placed as the arrays of `like`.

        Raises:
            DataError: there is no checkpoint.
        """
        if self.latest is None:
            raise DataError(f"checkpoints: expected at least one in {self._manager.directory}, got none")
        template = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        restored = self._manager.restore(self.latest, args=ocp.args.Composite(state=ocp.args.StandardRestore(template)))
        return restored["state"]

    def close(self) -> None:
        """Wait for pending writes."""
        self._manager.close()
