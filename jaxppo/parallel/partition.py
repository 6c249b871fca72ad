"""How parameters are split over devices: one table that every family adds to, and what a per-device program does.

Two axes split parameters. Over `FSDP` a program holds shards of a matrix, always along its hidden size, and gathers
them where it computes with them; rows are split over it, too. Over `TENSOR` the compiler splits the products
themselves: columns of the matrices that widen, rows of those that narrow, heads of the attention. Neither is there in
pure data parallel.

Source: ZeRO stage 3 (arXiv:1910.02054) for `FSDP`; Megatron-LM (arXiv:1909.08053) for `TENSOR`.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from jaxppo.parallel.stacks import ALL

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
"""Names of the device axes: rows are split over the first two."""

WIDENS, NARROWS = (FSDP, TENSOR), (TENSOR, FSDP)

# End of a parameter's path -> the axis that each of its dimensions is split over. What has no entry is on every device:
# norms, adapters, heads with one output.
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
    entry = next((TABLE[end] for end in ("/".join(parts[-3:]), "/".join(parts[-2:])) if end in TABLE), ())
    return (None, *entry) if entry and ALL in parts else entry


def path_of(keys: Any) -> str:
    """Return the path of a leaf, as `jax.tree_util` names it, in the words of the table."""
    return jax.tree_util.keystr(keys, simple=True, separator="/").removesuffix("/value")


def whole(tree: Any, size: int, dtype: Any = None) -> Any:
    """Gather parameters of which this device may hold shards; the very same arrays where there is nothing to do.

    The gradient of what was gathered is summed over the devices, in float32, and split again.

    Args:
        tree: parameters.
        size: the hidden size, by which a shard is told from a whole matrix.
        dtype: of the result; shards travel in it. Default: as they are.
    """

    def gather(keys: Any, x: jax.Array) -> jax.Array:
        axes, result_dtype = axes_of(path_of(keys)), jnp.dtype(x.dtype if dtype is None else dtype)
        if FSDP not in axes or x.shape[axes.index(FSDP)] == size:
            return x.astype(result_dtype)
        return _gather(x, axes, jnp.dtype(x.dtype), result_dtype)

    return jax.tree_util.tree_map_with_path(gather, tree)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(shard: jax.Array, axes: tuple[str | None, ...], own: jnp.dtype, result: jnp.dtype) -> jax.Array:
    del own
    program = partial(jax.lax.all_gather, axis_name=FSDP, axis=axes.index(FSDP), tiled=True)
    return _beside_tensor(program, shard.astype(result), axes)


def _gather_forward(
    shard: jax.Array, axes: tuple[str | None, ...], own: jnp.dtype, result: jnp.dtype
) -> tuple[jax.Array, None]:
    return _gather(shard, axes, own, result), None


def _gather_backward(
    axes: tuple[str | None, ...], own: jnp.dtype, result: jnp.dtype, _: None, grad: jax.Array
) -> tuple[jax.Array]:
    del result
    program = partial(jax.lax.psum_scatter, axis_name=FSDP, scatter_dimension=axes.index(FSDP), tiled=True)
    of_all = grad.astype(jnp.float32)  # sums of bfloat16 would lose digits
    return (_beside_tensor(program, of_all, axes).astype(own),)


def _beside_tensor(program: Callable[[jax.Array], jax.Array], x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Run a collective over `FSDP` on an array that the compiler has split over `TENSOR`, and is to leave so."""
    sizes = _mesh_sizes()
    spec = [axis if axis == TENSOR and n % sizes[TENSOR] == 0 else None for axis, n in zip(axes, x.shape, strict=True)]
    if TENSOR not in spec or sizes[TENSOR] == 1:
        return program(x)
    inner = PartitionSpec(*spec)
    return jax.shard_map(program, in_specs=inner, out_specs=inner, axis_names={TENSOR}, check_vma=False)(x)


def by_heads(
    program: Callable[..., jax.Array], arrays: tuple[jax.Array, ...], rows: jax.Array | None
) -> jax.Array | None:
    """Run a program that the compiler cannot split, on the heads of each device along `TENSOR`.

    Args:
        program: of the arrays and `rows`, heads do not depend on each other.
        arrays: each [B, heads, ...].
        rows: what every head needs.

    Returns:
        [B, heads, ...], or None where the devices do not divide the heads.
    """
    devices = _mesh_sizes()[TENSOR]
    if TENSOR not in jax.sharding.get_abstract_mesh().axis_names:
        return program(*arrays, rows)
    # Also where it has one device: Mosaic refuses an axis that is left to the compiler.
    if any(x.shape[1] % devices for x in arrays):
        return None
    heads = PartitionSpec(None, TENSOR)
    specs = (*[heads] * len(arrays), PartitionSpec())
    mapped = jax.shard_map(program, in_specs=specs, out_specs=heads, axis_names={TENSOR}, check_vma=False)
    return mapped(*arrays, rows)


def _mesh_sizes() -> dict[str, int]:
    """Return how many devices each axis has where this is traced; 1 for an axis that is not there."""
    mesh = jax.sharding.get_abstract_mesh()
    return {DATA: 1, FSDP: 1, TENSOR: 1} | dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))


_gather.defvjp(_gather_forward, _gather_backward)


def shard_of(matrix: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return this device's part of a matrix, whose shape tells along which axis it is split, if any."""
    for axis, (size, whole_size) in enumerate(zip(shape, matrix.shape, strict=True)):
        if size != whole_size:
            return jax.lax.dynamic_slice_in_dim(matrix, jax.lax.axis_index(FSDP) * size, size, axis)
    return matrix


def is_split(tree: Any, size: int) -> bool:
    """Return whether this device holds shards of these parameters."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    of_table = ((axes_of(path_of(keys)), leaf) for keys, leaf in leaves)
    return any(FSDP in axes and leaf.shape[axes.index(FSDP)] != size for axes, leaf in of_table)


def total(tree: Any, axes: str | tuple[str, ...] | None) -> Any:
    """Sum over all devices; gradients of what was gathered are summed over `FSDP` already, and stay split.

    Args:
        tree: anything; parameters' gradients are told by their paths.
        axes: that rows are split over.
    """
    if axes is None:
        return tree
    if not _splits(axes):
        # XLA would copy what it sums over one device.
        return tree if jax.lax.psum(1, axes) == 1 else jax.lax.psum(tree, axes)
    sizes = _mesh_sizes()

    def of_leaf(keys: Any, leaf: jax.Array) -> jax.Array:
        done = (FSDP,) if FSDP in axes_of(path_of(keys)) else ()
        return jax.lax.psum(leaf, [axis for axis in axes if axis not in done and sizes[axis] > 1])

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def largest(x: jax.Array, axes: str | tuple[str, ...] | None) -> jax.Array:
    """Return the largest integer among the devices that gather shards together, so that all take one branch."""
    return jax.lax.pmax(x, FSDP) if _splits(axes) else x


def norm(tree: Any, axes: str | tuple[str, ...] | None) -> jax.Array:
    """Global norm of parameters or gradients that are the same on all devices, or split over `FSDP`: [] fp32."""
    if not _splits(axes):
        return optax.tree.norm(tree)
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    shards = [leaf for keys, leaf in leaves if FSDP in axes_of(path_of(keys))]
    others = [leaf for keys, leaf in leaves if FSDP not in axes_of(path_of(keys))]
    squares = lambda of: jnp.asarray(optax.tree.norm(of, squared=True), jnp.float32)  # noqa: E731
    return jnp.sqrt(squares(others) + jax.lax.psum(squares(shards), FSDP))


def _splits(axes: str | tuple[str, ...] | None) -> bool:
    """Return whether programs over these axes may hold shards."""
    return isinstance(axes, tuple) and FSDP in axes


def over_tensor(x: jax.Array, axis: int | None) -> jax.Array:
    """Tell the compiler to split one axis of an array over `TENSOR`, or none; without effect where there is no such.

    Args:
        x: array of a program for the rows of one device.
        axis: which, if the devices divide it; None, or one that they do not: every device has it whole.
    """
    devices = _mesh_sizes()[TENSOR]
    if devices == 1:
        return x
    spec = PartitionSpec()
    if axis is not None and x.shape[axis] % devices == 0:
        spec = PartitionSpec(*[None] * axis, TENSOR)
    return jax.lax.with_sharding_constraint(x, spec)


def parse_mesh(text: str, num_devices: int) -> dict[str, int]:
    """Parse the sizes of the axes from a text like "data=2,fsdp=4": {axis: devices}; one of -1 takes what is left.

    Raises:
        ValueError: the text says something else, or the sizes do not multiply to the number of devices.
    """
    expected = f"axis=size for the axes {DATA}, {FSDP}, {TENSOR}, each at most once"
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (piece.strip() for piece in part.partition("="))
        if name not in (DATA, FSDP, TENSOR) or name in sizes or not size.removeprefix("-").isdecimal():
            raise ValueError(f"{expected}, got {text!r}")
        sizes[name] = int(size)
    open_axes = [name for name, size in sizes.items() if size == -1]
    if len(open_axes) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise ValueError(f"sizes of at least 1, one of them perhaps -1 for what is left, got {text!r}")
    given = math.prod(size for size in sizes.values() if size != -1)
    if open_axes and num_devices % given == 0:
        sizes[open_axes[0]] = num_devices // given
    if math.prod(sizes.values()) != num_devices:
        raise ValueError(f"sizes that multiply to the number of devices, {num_devices}, got {text!r}")
    return {name: sizes.get(name, 1) for name in (DATA, FSDP, TENSOR)}
