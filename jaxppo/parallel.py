"""Data parallelism: the one place that knows about devices.

Every device program is written for the rows of one device, with collectives over the axis `DATA`; `DataParallel.map`
runs it on all local devices, through `shard_map` or literally through `pmap`. One device is the trivial case.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA = "data"
"""Name of the mapped device axis."""

RowAxis: TypeAlias = int | None
"""Which axis of every array in an argument or result counts rows; None: the same on all devices."""


def _along_rows(axis: RowAxis) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, DATA)


class DataParallel:
    """Rows split over devices, parameters on every one.

    Args:
        mode: "shard_map" or "pmap".
        devices: default: all local devices.
    """

    def __init__(self, mode: str = "shard_map", devices: Sequence[Any] | None = None):
        self.mode = mode
        self.devices = list(jax.local_devices() if devices is None else devices)
        self.mesh = Mesh(np.asarray(self.devices), (DATA,), axis_types=(AxisType.Auto,))

    @property
    def num_devices(self) -> int:
        """Devices that rows are split over; a batch must be a multiple of it."""
        return len(self.devices)

    def replicated(self, path: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
        """Where a parameter goes: a copy on each device. A `Placement` of `hf.load_model`."""
        del path, shape
        return NamedSharding(self.mesh, PartitionSpec())

    def put(self, tree: Any, row_axis: RowAxis = None) -> Any:
        """Move host arrays to the devices: split along `row_axis`, or a copy on each."""
        return jax.device_put(tree, NamedSharding(self.mesh, _along_rows(row_axis)))

    def map(
        self,
        program: Callable[..., Any],
        row_axes: Sequence[RowAxis],
        out_axes: RowAxis | tuple[RowAxis, ...],
        donate: tuple[int, ...] = (),
    ) -> Callable[..., Any]:
        """Compile a per-device program for all devices.

        Args:
            program: function of per-device arrays; it may use collectives over `DATA`.
            row_axes: per positional argument, the axis that counts rows, or None for one that every device has whole.
            out_axes: the same for the result, or for each element of a tuple of results; whatever is None must have
                come out equal on all devices.
            donate: positions of arguments whose memory the result may take over.

        Returns:
            A function of whole arrays that returns whole arrays.
        """
        if self.mode == "pmap":
            return self._pmap(program, tuple(row_axes), out_axes, donate)
        out_specs = tuple(map(_along_rows, out_axes)) if isinstance(out_axes, tuple) else _along_rows(out_axes)
        mapped = jax.shard_map(
            program, mesh=self.mesh, in_specs=tuple(map(_along_rows, row_axes)), out_specs=out_specs, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=donate)

    def _pmap(
        self,
        program: Callable[..., Any],
        row_axes: tuple[RowAxis, ...],
        out_axes: RowAxis | tuple[RowAxis, ...],
        donate: tuple[int, ...],
    ) -> Callable[..., Any]:
        mapped = jax.pmap(
            program,
            axis_name=DATA,
            devices=self.devices,
            in_axes=row_axes,
            out_axes=out_axes,  # type: ignore[arg-type]
            donate_argnums=donate,
        )

        def call(*args: Any) -> Any:
            split = [self._split(arg, axis) for arg, axis in zip(args, row_axes, strict=True)]
            results = mapped(*split)
            if isinstance(out_axes, tuple):
                return tuple(_join(result, axis) for result, axis in zip(results, out_axes, strict=True))
            return _join(results, out_axes)

        return call

    def _split(self, tree: Any, axis: RowAxis) -> Any:
        """Give every array an explicit device axis before its row axis."""
        if axis is None:
            return tree

        def split(x: Any) -> Any:
            rows = x.shape[axis] // self.num_devices
            return x.reshape(*x.shape[:axis], self.num_devices, rows, *x.shape[axis + 1 :])

        return self.put(jax.tree.map(split, tree), axis)


def _join(tree: Any, axis: RowAxis) -> Any:
    """Merge the device axis back into the row axis that follows it."""
    if axis is None:
        return tree
    return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), tree)
