"""Devices and processes: the one place that knows about them.

Every device program is written for the rows of one device, with collectives of its own; `DataParallel.map` runs it on
all devices, and leaves nothing for a compiler to split. Parameters are whole on every device (`shard_map`, or literally
`pmap`), or split over the axes of a mesh (`fsdp`), see `parallel/partition.py`. One device is the trivial case of each.

With several processes (`processes.py`) the devices are those of all of them: rows are in the order of the processes,
and each has its own part of every array of rows.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxppo.errors import ConfigError
from jaxppo.parallel import partition, platform
from jaxppo.parallel.partition import DATA, FSDP, TENSOR
from jaxppo.types import Axes

RowAxis: TypeAlias = int | None
"""Which axis of every array in an argument or result counts rows; None: parameters, or the same on all devices."""


class DataParallel:
    """Rows split over devices, parameters on every one or split as well.

    Args:
        mode: "shard_map", "pmap" or "fsdp".
        devices: default: all devices of all processes.
        mesh: sizes of the device axes, as in "data=2,fsdp=4"; default: all in `data`, or all in `fsdp` (mode "fsdp").

    Raises:
        ConfigError: the mesh does not fit the devices or the mode.
    """

    def __init__(
        self,
        mode: str = "shard_map",
        devices: Sequence[Any] | None = None,
        mesh: str | None = None,
    ):
        self.mode = mode
        self.devices = list(jax.devices() if devices is None else devices)
        text = _default_mesh(mode) if mesh is None else mesh
        try:
            self.sizes = partition.parse_mesh(text, len(self.devices))
        except ValueError as error:
            raise ConfigError(f"mesh: expected {error}") from None
        if mode != "fsdp" and self.sizes[DATA] != len(self.devices):
            raise ConfigError(
                f"mesh: expected {DATA} alone with parallel {mode}, got {mesh!r}; use parallel fsdp"
            )
        self._check_processes()
        platform.give_back_memory_of_compilations()
        names = partition.AXES if mode == "fsdp" else (DATA,)
        shape = tuple(self.sizes[name] for name in names)
        grid = np.asarray(self.devices).reshape(shape)
        self.mesh = Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))

    def _check_processes(self) -> None:
        """Check that rows of a process are its own: an axis that splits no rows may not reach over processes."""
        owners = [device.process_index for device in self.devices]
        local = len(self.local_devices)
        num_owners = len(set(owners))
        # Rows are in the order of the processes, and each has as many.
        if owners != sorted(owners) or len(owners) != local * num_owners:
            raise ConfigError(
                f"num_processes: expected as many devices in each, got those of processes {owners}"
            )
        if local % self.sizes[TENSOR]:
            raise ConfigError(
                f"mesh: expected {TENSOR} to divide the {local} devices of a process, got {self.sizes[TENSOR]}"
            )

    @property
    def axes(self) -> Axes:
        """The mapped axes that rows are split over, for collectives inside of a program."""
        return (DATA, FSDP) if self.mode == "fsdp" else DATA

    @property
    def num_devices(self) -> int:
        """All devices."""
        return len(self.devices)

    @property
    def row_shards(self) -> int:
        """Parts that rows are split into; a batch must be a multiple of it."""
        return self.sizes[DATA] * self.sizes[FSDP]

    @property
    def local_devices(self) -> list[Any]:
        """The devices of this process."""
        this_process = jax.process_index()
        return [device for device in self.devices if device.process_index == this_process]

    def of_process(self) -> "DataParallel":
        """Return the devices of this process alone, used in the same way: for what each process computes by itself."""
        if jax.process_count() == 1:
            return self
        mesh = _default_mesh(self.mode)
        if self.sizes[TENSOR] > 1:
            mesh += f",{TENSOR}={self.sizes[TENSOR]}"
        return DataParallel(self.mode, self.local_devices, mesh)

    def check_model(self, model: Any) -> None:
        """Raise a `ConfigError` where a model cannot be split over this mesh.

        Args:
            model: its configuration, of which three sizes are read.
        """
        # Fewer heads of keys and values than devices are copied.
        needed = {FSDP: ("hidden_size",), TENSOR: ("num_attention_heads", "intermediate_size")}
        for axis, names in needed.items():
            for name in names:
                size = getattr(model, name)
                num_devices = self.sizes[axis]
                if size % num_devices:
                    raise ConfigError(
                        f"mesh: expected {axis} to divide the model's {name}={size}, got {axis}={num_devices}"
                    )

    def describe(self) -> str:
        """Describe the devices and how they are used."""
        words = [f"{self.num_devices} {self.devices[0].platform} device(s)"]
        if jax.process_count() > 1:
            words.append(f"in {jax.process_count()} processes")
        words.append(f"by {self.mode}")
        sizes = ",".join(f"{name}={size}" for name, size in self.sizes.items() if size > 1)
        if self.mode == "fsdp" and sizes:
            words.append(f"({sizes})")
        return " ".join(words)

    # --- placement

    def placement(self, path: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
        """Return where a parameter goes. A `Placement` of `hf.load_model`."""
        return NamedSharding(self.mesh, self._spec("/".join(path), shape))

    def shardings(self, tree: Any) -> Any:
        """Return where the arrays of a tree of parameters, or of what goes with them, are on the devices."""

        def sharding(keys: Any, x: Any) -> NamedSharding:
            spec = self._spec(partition.path_of(keys), x.shape)
            return NamedSharding(self.mesh, spec)

        return jax.tree_util.tree_map_with_path(sharding, tree)

    def row_shardings(self, tree: Any, axis: int) -> Any:
        """Return where the arrays of a tree are whose rows, counted by `axis`, are split over the devices."""
        sharding = NamedSharding(self.mesh, self._along_rows(axis))
        return jax.tree.map(lambda _: sharding, tree)

    def shards(self, tree: Any) -> Any:
        """Return the shapes of what one device holds of parameters, or of what goes with them."""

        def shard(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(sharding.shard_shape(x.shape), x.dtype)

        return jax.tree.map(shard, tree, self.shardings(tree))

    def put(self, tree: Any, row_axis: RowAxis = None) -> Any:
        """Move arrays that every process has whole to the devices: split along `row_axis`, or as parameters are."""
        if row_axis is None:
            shardings = self.shardings(tree)
        else:
            shardings = self.row_shardings(tree, row_axis)
        if jax.process_count() == 1:
            return jax.device_put(tree, shardings)
        return jax.tree.map(_put_local, tree, shardings)

    def local_rows(self, count: int) -> slice:
        """Return which of so many rows are those of this process."""
        size = count // jax.process_count()
        start = jax.process_index() * size
        return slice(start, start + size)

    def to_host(self, tree: Any) -> Any:
        """Whole arrays on the host, on every process; all of them must call this."""
        return jax.tree.map(_whole_on_host, tree)

    def _spec(self, path: str, shape: tuple[int, ...]) -> PartitionSpec:
        if self.mode != "fsdp":
            return PartitionSpec()
        axes = partition.axes_of(path)
        if len(axes) != len(shape):
            return PartitionSpec()
        spec = []
        for axis, size in zip(axes, shape, strict=True):
            # What an axis does not divide, such as an odd vocabulary, is whole on every device.
            divides = axis is not None and size % self.sizes[axis] == 0
            spec.append(axis if divides else None)
        return PartitionSpec(*spec)

    def _along_rows(self, axis: RowAxis) -> PartitionSpec:
        if axis is None:
            return PartitionSpec()
        axes_before = [None] * axis  # which are whole on every device
        return PartitionSpec(*axes_before, self.axes)

    # --- programs

    def map(
        self,
        program: Callable[..., Any],
        row_axes: Sequence[RowAxis],
        out_axes: RowAxis | tuple[RowAxis, ...],
        donate: tuple[int, ...] = (),
        compiler_options: dict[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compile a per-device program for all devices.

        Args:
            program: function of per-device arrays; it may use collectives over `axes`.
            row_axes: per positional argument, the axis that counts rows, or None for one that every device has whole,
                but for the parameters in it that are split.
            out_axes: the same for the result, or for each element of a tuple of results; whatever is None must have
                come out equal on all devices.
            donate: positions of arguments whose memory the result may take over; of the first of them, the first
                result has the structure.
            compiler_options: of XLA; `pmap` has none.

        Returns:
            A function of whole arrays that returns whole arrays.
        """
        if self.mode == "pmap":
            return self._pmap(program, tuple(row_axes), out_axes, donate)
        out_specs = self._out_specs(out_axes)

        def call(*args: Any) -> Any:
            in_specs: list[Any] = []
            for arg, axis in zip(args, row_axes, strict=True):
                if axis is None:
                    in_specs.append(jax.tree.map(lambda x: x.spec, self.shardings(arg)))
                else:
                    in_specs.append(self._along_rows(axis))
            specs = out_specs
            if donate and row_axes[donate[0]] is None:
                # What is donated comes back in the same places, parameters in their shards.
                donated = in_specs[donate[0]]
                specs = (donated, *specs[1:]) if isinstance(out_axes, tuple) else donated
            with partition.tracing(self._undivided(args)):
                # Programs sum their gradients over devices by themselves;
                # checked, shard_map would sum them once more.
                mapped = jax.shard_map(
                    program,
                    mesh=self.mesh,
                    in_specs=tuple(in_specs),
                    out_specs=specs,
                    check_vma=False,
                )
                return mapped(*args)

        # The name that the program has in profiles and logs of compilations; a partial has none of its own.
        function = getattr(program, "func", program)
        call.__name__ = getattr(function, "__name__", call.__name__)
        return jax.jit(call, donate_argnums=donate, compiler_options=compiler_options)

    def _out_specs(self, out_axes: RowAxis | tuple[RowAxis, ...]) -> Any:
        if isinstance(out_axes, tuple):
            return tuple(self._along_rows(axis) for axis in out_axes)
        return self._along_rows(out_axes)

    def _undivided(self, tree: Any) -> tuple[str, ...]:
        """Return the paths of the parameters that `TENSOR` should split, and does not divide."""
        if self.sizes[TENSOR] == 1:
            return ()
        undivided = []
        leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
        for keys, x in leaves:
            path = partition.path_of(keys)
            # The table asks for a split that the size of this array does not allow.
            if TENSOR in partition.axes_of(path) and TENSOR not in self._spec(path, x.shape):
                undivided.append(path)
        return tuple(undivided)

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
            split_args = []
            for arg, axis in zip(args, row_axes, strict=True):
                split_args.append(self._split(arg, axis))
            results = mapped(*split_args)
            if not isinstance(out_axes, tuple):
                return self._join(results, out_axes)
            joined = []
            for result, axis in zip(results, out_axes, strict=True):
                joined.append(self._join(result, axis))
            return tuple(joined)

        return call

    def _split(self, tree: Any, axis: RowAxis) -> Any:
        """Give every array an explicit device axis before its row axis; of several processes each has its devices'."""
        if axis is not None:

            def split(x: Any) -> Any:
                rows = x.shape[axis] // self.num_devices
                sizes_before = x.shape[:axis]
                sizes_after = x.shape[axis + 1 :]
                return x.reshape(*sizes_before, self.num_devices, rows, *sizes_after)

            tree = self.put(jax.tree.map(split, tree), axis)
        if jax.process_count() == 1:
            return tree
        return multihost_utils.global_array_to_host_local_array(
            tree, self.mesh, self._along_rows(axis)
        )

    def _join(self, tree: Any, axis: RowAxis) -> Any:
        """Merge the device axis back into the row axis that follows it."""
        if jax.process_count() > 1:
            tree = multihost_utils.host_local_array_to_global_array(
                tree, self.mesh, self._along_rows(axis)
            )
        if axis is None:
            return tree

        def join(x: Any) -> Any:
            sizes_before = x.shape[:axis]
            sizes_after = x.shape[axis + 2 :]
            return x.reshape(*sizes_before, -1, *sizes_after)

        return jax.tree.map(join, tree)


def _default_mesh(mode: str) -> str:
    """Return the mesh of all devices along one axis: the one that splits parameters, where the mode splits them."""
    return f"{FSDP}=-1" if mode == "fsdp" else f"{DATA}=-1"


def _whole_on_host(x: Any) -> Any:
    """Gather an array on this host; where other processes have parts of it, all of them must call this."""
    if isinstance(x, jax.Array):
        # What every process has a copy of needs no exchange.
        is_at_hand = x.is_fully_addressable or x.is_fully_replicated
        if not is_at_hand:
            return multihost_utils.process_allgather(
                x, tiled=True
            )  # a global array comes back whole
    return jax.device_get(x)


def _put_local(x: Any, sharding: NamedSharding) -> jax.Array:
    """Take the parts of this process of an array that all have; `device_put` would compare all of it first."""
    if isinstance(x, Tracer):
        return jax.device_put(x, sharding)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        if x.sharding.device_set == sharding.device_set:
            return jax.device_put(x, sharding)
        x = _whole_on_host(x)
    on_host = np.asarray(x)
    return jax.make_array_from_callback(on_host.shape, sharding, lambda index: on_host[index])
