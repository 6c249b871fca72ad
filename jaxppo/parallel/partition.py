"""How parameters are split over devices: one table that every family adds to, and what a per-device program does.

Two axes split parameters; pure data parallelism has neither.

Over `FSDP` a program holds shards of a matrix, always along its hidden size, and gathers them where it computes with
them; rows of the batch are split over it, too. Over `TENSOR` a program has some columns of the column-parallel
matrices, the matching rows of the row-parallel ones, the heads of attention between them, and rows of the vocabulary;
all devices along it have the same rows of the batch, and the same residual stream.

Programs see from the shapes of their arrays which parts this device has: a matrix that is as wide as the hidden size is
whole. So one program serves one device and many.

Source: ZeRO stage 3 (arXiv:1910.02054) for `FSDP`; Megatron-LM (arXiv:1909.08053) for `TENSOR`.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxppo.parallel import platform
from jaxppo.parallel.stacks import ALL

DATA = "data"
FSDP = "fsdp"
TENSOR = "tensor"
AXES: tuple[str, ...] = (DATA, FSDP, TENSOR)
"""Names of the device axes: rows are split over the first two."""

# What a matrix [inputs, outputs] is split over: the way into a block by its outputs, the way out by
# its inputs. Between the two nothing is exchanged over `TENSOR`; only the way out needs a sum.
COLUMN_PARALLEL = (FSDP, TENSOR)
ROW_PARALLEL = (TENSOR, FSDP)

# End of a parameter's path -> the axis that each of its dimensions is split over. What has no entry
# is on every device: norms, adapters, heads with one output.
TABLE: dict[str, tuple[str | None, ...]] = {
    "embed_in/embedding": (TENSOR, FSDP),
    "lm_head/kernel": (FSDP, TENSOR),
}
"""What all families have; each adds its own layers, see `add`."""


def add(table: Mapping[str, tuple[str | None, ...]]) -> None:
    """Add the parameters of a family to the table.

    Raises:
        ValueError: another family splits parameters of the same name in another way.
    """
    for end, axes in table.items():
        if TABLE.setdefault(end, axes) != axes:
            raise ValueError(f"{end}: expected {TABLE[end]} as in another family, got {axes}")


def axes_of(path: str) -> tuple[str | None, ...]:
    """Return the entry for a path like "policy/trunk/layers/0/attention/dense/kernel"; () where there is none.

    Layers that are stacked have one axis more, the first, which nothing is split over.
    """
    parts = path.split("/")
    for length in (3, 2):
        end = "/".join(parts[-length:])
        axes = TABLE.get(end)
        if axes is not None:
            return (None, *axes) if ALL in parts else axes
    return ()


def path_of(keys: Any) -> str:
    """Return the path of a leaf, as `jax.tree_util` names it, in the words of the table."""
    path = jax.tree_util.keystr(keys, simple=True, separator="/")
    return path.removesuffix("/value")


def mesh_sizes() -> dict[str, int]:
    """Return how many devices each axis has where this is traced; 1 for an absent axis."""
    mesh = jax.sharding.get_abstract_mesh()
    sizes: dict[str, int] = {axis: 1 for axis in AXES}
    sizes.update(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    return sizes


# ------------------------------------------------------------------------- shards along the hidden size, over `FSDP`


def _fsdp_axis(keys: Any) -> int | None:
    """Return which dimension of a leaf is the one that `FSDP` splits; None where it has none."""
    axes = axes_of(path_of(keys))
    return axes.index(FSDP) if FSDP in axes else None


def whole(tree: Any, size: int, dtype: Any = None) -> Any:
    """Gather parameters of which this device may hold shards; the very same arrays where there is nothing to do.

    The gradient of what was gathered is summed over the devices, in float32, and split again.

    Args:
        tree: parameters.
        size: the hidden size, by which a shard is told from a whole matrix.
        dtype: of the result; shards travel in it. Default: as they are.
    """

    def gather(keys: Any, x: jax.Array) -> jax.Array:
        axis = _fsdp_axis(keys)
        result_dtype = jnp.dtype(x.dtype if dtype is None else dtype)
        # By the shape, not by a flag: the same program runs
        # where nothing is split, and XLA sees no gather there.
        if axis is None or x.shape[axis] == size:
            return x.astype(result_dtype)
        return gathered(x, axis, result_dtype)

    return jax.tree_util.tree_map_with_path(gather, tree)


def gathered(shard: jax.Array, axis: int, dtype: Any) -> jax.Array:
    """Gather one matrix along an axis, see `whole`."""
    return _gather(shard, axis, jnp.dtype(shard.dtype), jnp.dtype(dtype))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(shard: jax.Array, axis: int, stored: jnp.dtype, result: jnp.dtype) -> jax.Array:
    del stored
    # Cast first: in bfloat16 half as many bytes travel.
    shard = shard.astype(result)
    return jax.lax.all_gather(shard, FSDP, axis=axis, tiled=True)


def _gather_forward(
    shard: jax.Array, axis: int, stored: jnp.dtype, result: jnp.dtype
) -> tuple[jax.Array, None]:
    return _gather(shard, axis, stored, result), None


def _gather_backward(
    axis: int, stored: jnp.dtype, result: jnp.dtype, _: None, grad: jax.Array
) -> tuple[jax.Array]:
    del result
    return (scattered(grad, axis).astype(stored),)


def scattered(grad: jax.Array, axis: int) -> jax.Array:
    """Sum up a gradient over the devices in float32, as bfloat16 would lose digits; each keeps its part of an axis."""
    grad = grad.astype(jnp.float32)
    return jax.lax.psum_scatter(grad, FSDP, scatter_dimension=axis, tiled=True)


_gather.defvjp(_gather_forward, _gather_backward)


def to_columns(rows: jax.Array) -> jax.Array:
    """Exchange whole rows of this device for its columns of everyone's rows: [N, D] -> [F N, D / F]."""
    return jax.lax.all_to_all(rows, FSDP, split_axis=1, concat_axis=0, tiled=True)


def to_rows(columns: jax.Array) -> jax.Array:
    """Undo `to_columns`: [F N, D / F] -> [N, D]."""
    return jax.lax.all_to_all(columns, FSDP, split_axis=0, concat_axis=1, tiled=True)


def gather_rows(rows: jax.Array) -> jax.Array:
    """Return the rows of all devices: [N, ...] -> [F N, ...]."""
    return jax.lax.all_gather(rows, FSDP, axis=0, tiled=True)


def product(
    rows: jax.Array, kernel: jax.Array, axes: tuple[str, str], size: int, dtype: Any = None
) -> jax.Array:
    """Return rows @ kernel; of a kernel that is in shards these stay where they are, and the rows travel.

    For few rows, as decoding has, that is little beside the weights. Sums over devices are in float32.

    Args:
        rows: [N, inputs].
        kernel: [inputs, outputs], one of them the hidden size, of which there may be a shard.
        axes: `COLUMN_PARALLEL` or `ROW_PARALLEL`.
        size: the hidden size.
        dtype: of the result; default: that of the product.
    """
    if kernel.shape[axes.index(FSDP)] == size:
        return jnp.matmul(rows, kernel, preferred_element_type=dtype)
    if axes == ROW_PARALLEL:
        # Each device multiplies everyone's rows by its columns
        # of the kernel: columns of all results, which are exchanged.
        all_rows = gather_rows(rows)
        columns = jnp.matmul(all_rows, kernel, preferred_element_type=dtype)
        return to_rows(columns)
    # Each device multiplies everyone's rows by its rows of
    # the kernel: shares of all results, which are summed.
    columns = to_columns(rows)
    share = jnp.matmul(columns, kernel, preferred_element_type=jnp.float32)
    summed = jax.lax.psum_scatter(share, FSDP, scatter_dimension=0, tiled=True)
    result_dtype = jnp.result_type(rows, kernel) if dtype is None else dtype
    return summed.astype(result_dtype)


MAX_GATHERED_SHARE = 1 / 3
"""Share of a device's memory up to which weights to decode with are gathered once, for all tokens."""


def decodes_split(num_bytes: int) -> bool:
    """Return whether decoding leaves weights in their shards over `FSDP`, as they take too much of a device whole.

    Args:
        num_bytes: of all that would be on a device, gathered.
    """
    memory = platform.current().memory_bytes
    return memory is not None and num_bytes > MAX_GATHERED_SHARE * memory


def whole_bytes(tree: Any, size: int) -> int:
    """Return the bytes that parameters take, of which this device may hold shards, when these are gathered."""
    total = 0
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    for keys, leaf in leaves:
        leaf_bytes = leaf.size * leaf.dtype.itemsize
        axis = _fsdp_axis(keys)
        if axis is not None:
            num_shards = size // leaf.shape[axis]
            leaf_bytes *= num_shards
        total += leaf_bytes
    return total


def is_split(tree: Any, size: int) -> bool:
    """Return whether this device holds shards of these parameters."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    for keys, leaf in leaves:
        axis = _fsdp_axis(keys)
        if axis is not None and leaf.shape[axis] != size:
            return True
    return False


# ------------------------------------------------------------------------ columns, heads and vocabulary, over `TENSOR`


@jax.custom_vjp
def copy_to_devices(x: jax.Array) -> jax.Array:
    """Pass on what all devices along `TENSOR` have to what each of them computes a part of; gradients are summed."""
    return x


def _copy_forward(x: jax.Array) -> tuple[jax.Array, None]:
    return x, None


def _copy_backward(_: None, grad: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.psum(grad, TENSOR),)


# Forward nothing, backward a sum: the other half of the pair
# is `sum_over_devices`. Megatron-LM calls them f and g.
copy_to_devices.defvjp(_copy_forward, _copy_backward)


@jax.custom_vjp
def sum_over_devices(share: jax.Array) -> jax.Array:
    """Sum up what each device along `TENSOR` has computed a share of: all of them go on with the same."""
    return jax.lax.psum(share, TENSOR)


def _sum_forward(share: jax.Array) -> tuple[jax.Array, None]:
    return sum_over_devices(share), None


def _sum_backward(_: None, grad: jax.Array) -> tuple[jax.Array]:
    # The gradient of the sum is the same on all devices
    # already. JAX's own rule for psum would sum it once more.
    return (grad,)


sum_over_devices.defvjp(_sum_forward, _sum_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather_parts(part: jax.Array, axis: int, size: int) -> jax.Array:
    """Gather the parts of an axis from all devices along `TENSOR`, which go on with the same; none if it has `size`."""
    if part.shape[axis] == size:
        return part
    return jax.lax.all_gather(part, TENSOR, axis=axis, tiled=True)


def _gather_parts_forward(part: jax.Array, axis: int, size: int) -> tuple[jax.Array, int]:
    return gather_parts(part, axis, size), part.shape[axis]


def _gather_parts_backward(
    axis: int, size: int, part_size: int, grad: jax.Array
) -> tuple[jax.Array]:
    # Every device goes on with the same, so each has the whole gradient, of which it keeps its part.
    if part_size != size:
        grad = local_part(grad, axis, part_size)
    return (grad,)


gather_parts.defvjp(_gather_parts_forward, _gather_parts_backward)


def local_part(x: jax.Array, axis: int, size: int, mesh_axis: str = TENSOR) -> jax.Array:
    """Take this device's `size` of an axis that it has whole."""
    start = jax.lax.axis_index(mesh_axis) * size
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def heads_of_device(heads: int, shared: int) -> int:
    """Return how many heads of keys and values the heads of queries of a device along `TENSOR` read.

    Where the devices do not divide them, several have the same one, or a copy for each of their queries.

    Args:
        heads: of queries, in all.
        shared: of keys and values, in all.
    """
    devices = mesh_sizes()[TENSOR]
    if shared % devices == 0:
        return shared // devices
    if devices % shared == 0:
        return 1
    return heads // devices


def local_heads(x_bhtk: jax.Array, heads: int, shared: int) -> jax.Array:
    """Take the heads that this device's heads of queries read of what may hold all of them: see `heads_of_device`.

    Args:
        x_bhtk: [B, shared or fewer, T, K].
        heads: of queries, in all.
        shared: of x, in all.
    """
    count = heads_of_device(heads, shared)
    devices = mesh_sizes()[TENSOR]
    if x_bhtk.shape[1] < shared or devices == 1:
        return x_bhtk
    # Head h of the queries reads head h * shared // heads, so neighbours share one.
    queries = heads // devices
    first_query = jax.lax.axis_index(TENSOR) * queries
    query_heads = first_query + jnp.arange(count) * (queries // count)
    numbers = query_heads * shared // heads
    return jnp.take(copy_to_devices(x_bhtk), numbers, axis=1)


# ------------------------------------------------------------------------------------------- sums over all devices

_undivided: ContextVar[tuple[str, ...]] = ContextVar("undivided", default=())


@contextmanager
def tracing(undivided: tuple[str, ...]) -> Iterator[None]:
    """Say which parameters of the table are whole along `TENSOR`, as it does not divide them: their paths."""
    token = _undivided.set(undivided)
    try:
        yield
    finally:
        _undivided.reset(token)


def total(tree: Any, axes: str | tuple[str, ...] | None) -> Any:
    """Sum over all devices; gradients of what was gathered are summed over `FSDP` already, and stay split.

    Args:
        tree: anything; parameters' gradients are told by their paths.
        axes: that rows are split over.
    """
    if axes is None:
        return tree
    if isinstance(axes, str):
        # XLA would copy what it sums over one device.
        has_one_device = jax.lax.psum(1, axes) == 1
        return tree if has_one_device else jax.lax.psum(tree, axes)
    sizes = mesh_sizes()

    def sum_leaf(keys: Any, leaf: jax.Array) -> jax.Array:
        is_summed = _fsdp_axis(keys) is not None  # over `FSDP`, by `scattered`
        open_axes = []
        for axis in axes:
            # Summed twice, a gradient would be as many times too large as there are devices.
            is_open = not (is_summed and axis == FSDP)
            if is_open and sizes[axis] > 1:
                open_axes.append(axis)
        return jax.lax.psum(leaf, open_axes)

    return jax.tree_util.tree_map_with_path(sum_leaf, tree)


def largest(x: jax.Array) -> jax.Array:
    """Return the largest integer among the devices that gather shards together, so that all take one branch."""
    # A device that took another branch would not take part
    # in its gathers, and the others would wait for it.
    if FSDP in jax.sharding.get_abstract_mesh().axis_names:
        return jax.lax.pmax(x, FSDP)
    return x


def norm(tree: Any, axes: str | tuple[str, ...] | None) -> jax.Array:
    """Global norm of parameters or gradients that are the same on all devices, or split as the table says: [] fp32.

    Args:
        tree: {"policy": ..., "value": ...}, or one of them.
        axes: that rows are split over.
    """
    if not isinstance(axes, tuple):
        return optax.tree.norm(tree)
    sizes = mesh_sizes()
    # Leaves that are split over the same axes share one sum
    # over devices; what is whole everywhere needs none.
    leaves_by_axes: dict[tuple[str, ...], list[jax.Array]] = {}
    leaves_with_keys, _ = jax.tree_util.tree_flatten_with_path(tree)
    for keys, leaf in leaves_with_keys:
        path = path_of(keys)
        split_axes = {axis for axis in axes_of(path) if axis is not None and sizes[axis] > 1}
        # Undivided paths are those in all arguments of a program, of which this tree is a part.
        is_undivided = any(name.endswith(f"/{path}") for name in _undivided.get())
        if is_undivided:
            split_axes.discard(TENSOR)
        key = tuple(sorted(split_axes))
        leaves_by_axes.setdefault(key, []).append(leaf)
    squares = jnp.float32(0)
    for split_axes, leaves in leaves_by_axes.items():
        # Squares can be summed over devices, norms cannot.
        square = optax.tree.norm(leaves, squared=True)
        share = jnp.asarray(square, jnp.float32)
        if split_axes:
            share = jax.lax.psum(share, split_axes)
        squares += share
    return jnp.sqrt(squares)


def parse_mesh(text: str, num_devices: int) -> dict[str, int]:
    """Parse the sizes of the axes from a text like "data=2,fsdp=4": {axis: devices}; one of -1 takes what is left.

    Raises:
        ValueError: the text says something else, or the sizes do not multiply to the number of devices.
    """
    refusal = ValueError(
        f"axis=size for the axes {', '.join(AXES)}, each at most once, whose sizes (one may be -1, for what is left) "
        f"multiply to the {num_devices} devices, got {text!r}"
    )
    sizes: dict[str, int] = {axis: 1 for axis in AXES}
    named_axes: list[str] = []
    for part in text.split(","):
        name, _, size = (piece.strip() for piece in part.partition("="))
        is_new_axis = name in AXES and name not in named_axes
        is_integer = size.removeprefix("-").isdecimal()
        if not (is_new_axis and is_integer):
            raise refusal
        named_axes.append(name)
        sizes[name] = int(size)
    open_axes = [name for name, size in sizes.items() if size == -1]
    if len(open_axes) == 1:
        # The product of the others, but for its sign.
        num_others = -math.prod(sizes.values())
        sizes[open_axes[0]] = num_devices // max(1, num_others)
    num_named = math.prod(sizes.values())
    if min(sizes.values()) < 1 or num_named != num_devices:
        raise refusal
    return sizes
