"""Checkpoints of a run: everything an update changes, written by orbax in the background, checked when read.

Orbax notices a missing or cut file, but gives back wrong numbers for flipped bytes in an array file. So each checkpoint
holds the checksums of its files, written before the checkpoint gets its name, and whoever reads it compares them first.
Of several processes each writes its part; one that cannot does not wait for the others, who end with its reason.
"""

import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import multihost

from jaxppo.errors import DataError
from jaxppo.parallel import processes, stacks
from jaxppo.run import checksums
from jaxppo.run.jsonl import to_plain_json
from jaxppo.types import PREFETCHED, Params, Prefetched, TrainState

# Folders of a checkpoint: an item can be read without the others.
PARAMS = "params"
OPT_STATE = "opt_state"
REST = "rest"
PREFETCHED_ITEM = "ahead"  # with `async_rollouts` alone
META = "meta"
ITEMS = (PARAMS, OPT_STATE, REST, PREFETCHED_ITEM, META)

_MIN_SLICE_BYTES = 2**20
"""Of an array that all devices have, each copies a part to the host, unless the parts are smaller than this."""

Warn = Callable[[str], None]


class Checkpoints:
    """The checkpoints of one run folder, named by the number of updates done; nothing is written before `save`.

    A context manager: leaving it waits for what is still being written.

    Args:
        folder: `<run>/checkpoints`.
        keep: how many of the latest to keep.
        best: name of a metric; the checkpoint with its best value is kept beside the latest.
        greater_is_better: whether the best value is the highest.
    """

    def __init__(
        self, folder: Path, keep: int, best: str | None = None, greater_is_better: bool = True
    ):
        self._folder = folder.absolute()
        self._best_metric = best
        self._policy = _LatestAndBest(keep, sign=1.0 if greater_is_better else -1.0)
        self._manager: ocp.CheckpointManager | None = None
        self._writing: int | None = None  # the step of the last `save`
        self._failed = threading.Event()  # this process's part of it, in a thread of orbax
        self._damaged: set[int] = set()  # as found by the last reader
        # Orbax remembers no values of an earlier process: they are read from its checkpoints.
        if best is not None:
            for step in self.steps:
                if self._damage(step, (META,)) is None:
                    self._note_value(step, self.read_meta(step))

    def _path(self, step: int) -> Path:
        return self._folder / str(step)

    @property
    def steps(self) -> list[int]:
        """Whatever is named like a checkpoint, in order; only reading one shows whether it is undamaged."""
        if not self._folder.is_dir():
            return []
        names = [entry.name for entry in self._folder.iterdir() if entry.is_dir()]
        return sorted(int(name) for name in names if name.isdecimal())

    @property
    def latest(self) -> int | None:
        """Updates done at the latest checkpoint that was written to its end, or None."""
        # The checksums are written last.
        complete = [step for step in self.steps if (self._path(step) / checksums.FILE).is_file()]
        return max(complete, default=None)

    @property
    def best_step(self) -> int | None:
        """Updates done at the checkpoint with the best value of the metric, or None."""
        return self._policy.best(self.steps)

    def save(
        self, step: int, state: TrainState, meta: dict[str, Any], prefetched: Prefetched = None
    ) -> None:
        """Begin to write a checkpoint; a process killed half-way leaves the earlier ones untouched.

        The arrays are copied before this returns, so an update may take over the memory of `state`.

        Args:
            step: updates done.
            state: arrays, placed in any way.
            meta: what else belongs to it; numbers, strings, lists and mappings. The best checkpoint is chosen by its
                "metrics".
            prefetched: the batch that was sampled ahead.

        Raises:
            DataError: this checkpoint, or the one before, cannot be written, for instance to a full disk.
        """
        # One at a time: the error of the one before is raised under its own number.
        self.wait()
        with self._write_errors(step):
            self._set_damaged_aside(step)
            meta = to_plain_json(meta)  # as it will be read
            self._note_value(step, meta)
            self._writing = step
            trees = _trees(state) | _prefetched_tree(prefetched)
            items = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
            if self._manager is None:
                self._manager = self._make_manager()
            arguments = ocp.args.Composite(**items, **{META: ocp.args.JsonSave(meta)})
            # Without `force` orbax skips a step before the newest without a word.
            self._manager.save(step, args=arguments, force=True)

    def wait(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            DataError: it cannot be.
        """
        if self._manager is not None:
            with self._write_errors(self._writing):
                self._manager.wait_until_finished()

    def check(self) -> None:
        """Wait for nothing, but report at once that the last checkpoint could not be written, where that is clear.

        Raises:
            DataError: see `wait`.
        """
        if self._failed.is_set():
            self.wait()

    def restore(self, like: TrainState, warn: Warn) -> tuple[TrainState, Prefetched]:
        """Restore the latest undamaged state; its layers are stacked where those of `like` are.

        A batch that was sampled ahead comes as arrays of numpy, for its lengths are its own.

        Args:
            like: its arrays say where the restored ones are placed, whatever devices they were saved from.
            warn: called with one line about damaged checkpoints that are passed over.

        Raises:
            DataError: there is no undamaged checkpoint, or it is that of another model.
        """
        self.wait()
        trained = {"params": like.params, "opt_state": like.opt_state}
        like = like._replace(**jax.tree.map(ocp.utils.to_shape_dtype_struct, trained))
        # One process decides for all which checkpoint it is, and reads the bytes of all for that.
        step, self._damaged = processes.on_first(
            lambda: (self._newest_undamaged(ITEMS, warn), self._damaged)
        )
        # Before the arrays are read, so that the error can name the one that differs.
        self._check_fits(step, like)
        restored = {}
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader:
            for name, tree in _trees(like).items():
                target = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
                restored[name] = reader.restore(
                    self._path(step) / name, args=ocp.args.StandardRestore(target)
                )
        # On disk every layer is an item of its own, so that a
        # checkpoint fits runs that stack layers and runs that do not.
        params = stacks.stacked_like(restored[PARAMS], like.params)
        opt_state = stacks.stacked_like(restored[OPT_STATE], like.opt_state)
        state = like._replace(params=params, opt_state=opt_state, **restored[REST])
        return state, self._read_prefetched(step)

    def resume(self, state: TrainState, warn: Warn) -> tuple[TrainState, Prefetched]:
        """`restore`, into the memory of a state that nobody needs any more.

        Args:
            state: says where arrays are placed; its parameters and optimizer state are deleted.
            warn: see `restore`.

        Raises:
            DataError: see `restore`.
        """
        trained = {"params": state.params, "opt_state": state.opt_state}
        like = state._replace(**jax.tree.map(ocp.utils.to_shape_dtype_struct, trained))
        # Deleted before the reading: the devices may have no memory for two states.
        for leaf in jax.tree.leaves(trained):
            leaf.delete()
        return self.restore(like, warn)

    def restore_params(self, step: int | None, warn: Warn) -> tuple[Params, dict[str, Any], int]:
        """Restore parameters alone, on the host, whatever the number of devices they were saved on.

        Args:
            step: which checkpoint; None: the latest undamaged one.
            warn: called with one line about damaged checkpoints that are passed over.

        Returns:
            Nested dict of numpy arrays; what was saved as `meta`; the step.

        Raises:
            DataError: there is no such checkpoint, or it is damaged.
        """
        self.wait()
        if step is None:
            step = self._newest_undamaged((PARAMS, META), warn)
        elif step not in self.steps:
            raise DataError(f"step: expected one of {self.steps} in {self._folder}, got {step}")
        elif (reason := self._damage(step, (PARAMS, META))) is not None:
            raise DataError(
                f"step: expected an undamaged checkpoint in {self._folder}, got {step}: {reason}"
            )
        return _read_on_host(self._path(step) / PARAMS), self.read_meta(step), step

    def read_meta(self, step: int) -> dict[str, Any]:
        """Read what was saved as `meta` of a checkpoint; orbax would wait for all processes, and one alone may ask."""
        return json.loads((self._path(step) / META / "metadata").read_text(encoding="utf-8"))

    def close(self) -> None:
        """Wait until the last checkpoint is written, and let go of threads.

        Raises:
            DataError: it cannot be written.
        """
        self.wait()
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing

    def _make_manager(self) -> ocp.CheckpointManager:
        async_options = ocp.AsyncOptions(
            post_finalization_callback=self._write_checksums, barrier_sync_fn=self._meet_others
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy,
            cleanup_tmp_directories=True,  # of killed processes
            lightweight_initialize=True,
            async_options=async_options,
        )
        writer = ocp.type_handlers.ArrayHandler(
            min_slice_bytes_for_replica_parallel=_MIN_SLICE_BYTES
        )
        ocp.type_handlers.register_type_handler(jax.Array, writer, override=True)
        return ocp.CheckpointManager(self._folder, options=options)

    def _write_checksums(self) -> None:
        """Called by orbax when the files are written, and before their folder gets its final name."""
        # The end of the name is orbax's; a second match would
        # be of a killed process, which orbax has removed.
        (partial,) = self._folder.glob(f"{self._writing}.orbax-checkpoint-tmp*")
        checksums.write(partial, ITEMS)

    def _meet_others(self, *, key: str, timeout_ms: int) -> None:
        """Wait for the other processes, as orbax asks, but not in a thread of orbax that has failed.

        After a failure orbax would meet the others here, who wait elsewhere for this process's part: nobody would hear.
        """
        error = sys.exc_info()[1]
        if error is not None and threading.current_thread() is not threading.main_thread():
            self._failed.set()
            raise error
        # The function that orbax would call without `barrier_sync_fn`.
        multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)

    def _set_damaged_aside(self, step: int) -> None:
        """Rename damaged checkpoints, so that they neither block a step nor count among those to keep."""
        if self._path(step).exists() and self._damage(step, ITEMS) is not None:
            self._damaged.add(step)
        if processes.is_first():
            for damaged in sorted(self._damaged):
                aside = self._folder / f"{damaged}.damaged"
                if aside.exists():
                    shutil.rmtree(aside)
                if self._path(damaged).exists():
                    self._path(damaged).rename(aside)
        processes.wait_for_all()
        if self._damaged and self._manager is not None:
            self._manager.reload()
        self._damaged.clear()

    @contextmanager
    def _write_errors(self, step: int | None) -> Iterator[None]:
        """Turn what the system refuses into a `DataError`."""
        try:
            yield
        except Exception as error:
            self._failed.clear()
            # It would raise the same again; another one clears what was left half-written
            self._manager = None
            reason = _system_reason(error)
            if reason is None:
                raise
            raise DataError(
                f"checkpoints: expected to write checkpoint {step} into {self._folder}, got: {reason}; "
                f"earlier checkpoints are as they were, the latest is {self.latest}"
            ) from error

    def _note_value(self, step: int, meta: dict[str, Any]) -> None:
        value = meta.get("metrics", {}).get(self._best_metric)
        if isinstance(value, int | float):
            self._policy.values[step] = float(value)

    # --- reading

    def _newest_undamaged(self, items: Sequence[str], warn: Warn) -> int:
        damaged: dict[int, str] = {}
        # From the newest on, until one is undamaged: to
        # compare all bytes of all of them would take long.
        for step in reversed(self.steps):
            reason = self._damage(step, items)
            if reason is None:
                break
            damaged[step] = reason
        else:
            raise DataError(
                f"checkpoints: expected at least one undamaged in {self._folder}, got {_listed(damaged) or 'none'}"
            )
        if damaged:
            self._damaged = set(damaged)
            warn(
                f"{self._folder} holds damaged checkpoints: {_listed(damaged)}; check the disk; using {step}"
            )
        return step

    def _damage(self, step: int, items: Sequence[str]) -> str | None:
        """Return what is wrong with the files of a checkpoint, or None."""
        return checksums.damage(self._path(step), items)

    def _read_prefetched(self, step: int) -> dict[str, Any] | None:
        """Read the batch that was sampled ahead, on the host; None where there is none."""
        path = self._path(step) / PREFETCHED_ITEM
        if not processes.on_first(path.is_dir):
            return None
        arrays_by_part = _read_on_host(path)
        batch = {}
        for name, record in PREFETCHED.items():
            arrays = dict.fromkeys(record._fields) | arrays_by_part[_name_on_disk(name)]
            batch[name] = record(**arrays)
        return batch

    def _check_fits(self, step: int, like: TrainState) -> None:
        """Raise a `DataError` that names the first array in which a checkpoint differs from `like`."""
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            for item, tree in _trees(like).items():
                metadata = reader.metadata(self._path(step) / item).item_metadata
                run_shapes = _shapes(tree)
                saved_shapes = _shapes(metadata.tree)  # type: ignore[union-attr]
                # Both: an array may be missing on either side.
                for name in [*run_shapes, *saved_shapes]:
                    if run_shapes.get(name) != saved_shapes.get(name):
                        raise DataError(
                            f"{item}.{name}: expected {run_shapes.get(name, 'no such array')} as in this run, "
                            f"got {saved_shapes.get(name, 'no such array')} in checkpoint {step} of {self._folder}; "
                            "a change of what is trained (algorithm, adapters, models) needs a new run"
                        )


@dataclass
class _LatestAndBest:
    """Orbax's preservation policy: which checkpoints stay."""

    keep: int
    sign: float  # -1: the lowest value is the best
    # Of the metric, by step; not every step has one
    values: dict[int, float] = field(default_factory=dict)

    def best(self, steps: Sequence[int]) -> int | None:
        """Return the first of the steps with the best value."""
        with_value = [step for step in steps if step in self.values]
        return max(with_value, key=lambda step: self.sign * self.values[step], default=None)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return one answer per checkpoint."""
        del context
        steps = sorted(info.step for info in checkpoints)
        preserved = {*steps[-self.keep :], self.best(steps)}
        return [info.step in preserved for info in checkpoints]


def can_be_saved(state: TrainState) -> bool:
    """Return whether a state can be saved after an error: no update has begun on it, and this process is alone."""
    return processes.is_alone() and not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def _trees(state: TrainState) -> dict[str, Any]:
    """Return the items of a checkpoint that hold arrays, every layer for itself."""
    other_arrays = {"step": state.step, "controls": state.controls}
    return {
        PARAMS: stacks.unstack(state.params),
        OPT_STATE: stacks.unstack(state.opt_state),
        REST: _without_none(other_arrays),  # orbax saves no None
    }


def _prefetched_tree(prefetched: Prefetched) -> dict[str, Any]:
    """Return the item of the batch that was sampled ahead, where there is one; arrays that it lacks are left out."""
    if prefetched is None:
        return {}
    batch = {
        _name_on_disk(name): _without_none(record._asdict()) for name, record in prefetched.items()
    }
    return {PREFETCHED_ITEM: batch}


def _name_on_disk(field: str) -> str:
    """Return what a field of a prefetched batch is called in checkpoints, which are older than its name."""
    return "scored" if field == "outputs" else field


def _without_none(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tree.items() if value is not None}


def _read_on_host(path: Path) -> dict[str, Any]:
    """Read an item of a checkpoint as nested dicts of numpy arrays."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        tree = reader.metadata(path).item_metadata.tree  # type: ignore[union-attr]
        restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return reader.restore(path, args=ocp.args.PyTreeRestore(restore_args=restore_args))


def _shapes(tree: Any) -> dict[str, str]:
    """{path: dtype and shape} of every array, in order."""
    shapes = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        shapes[name] = f"{np.dtype(leaf.dtype)} {list(leaf.shape)}"
    return shapes


def _listed(damaged: dict[int, str]) -> str:
    return ", ".join(f"{step} ({reason})" for step, reason in damaged.items())


def _system_reason(error: Exception) -> str | None:
    """Return the operating system's reason for an error, which tensorstore hides in a text; None: it has none."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return None if code is None else os.strerror(int(code[1]))
