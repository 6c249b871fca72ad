"""Rows in equal parts and an axis in blocks, so that a program holds the results of a few at a time; chosen tokens."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.types import Array

einsum_fp32 = partial(jnp.einsum, preferred_element_type=jnp.float32)
"""`einsum` that accumulates in float32 and returns float32, for factors of any dtype."""


def equal_parts(count: int, max_size: int, multiple: int = 1) -> int:
    """Return the size of the fewest equal parts of `count`, none larger than `max_size`, rounded up to a multiple."""
    # -(-a // b) is a / b rounded up.
    num_parts = -(-count // max_size)
    size = -(-count // num_parts)
    return -(-size // multiple) * multiple


def split_rows(tree: Any, max_rows: int) -> Any:
    """Cut [B, ...] into [parts, rows of a part, ...], see `equal_parts`; the last part is filled up with zeros."""
    count = jax.tree.leaves(tree)[0].shape[0]
    # Parts of one size, so that a loop over them is compiled
    # once; equal ones, so that few zeros fill up the last.
    rows = equal_parts(count, max_rows)

    def split(x: Array) -> Array:
        padding = [(0, -count % rows)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, padding).reshape(-1, rows, *x.shape[1:])

    return jax.tree.map(split, tree)


def map_in_chunks(function: Callable[[Any], Any], tree: Any, max_rows: int | None) -> Any:
    """Compute `function(tree)` with at most `max_rows` rows of every array at once; None: all.

    Args:
        function: of rows that do not depend on each other; it may see rows of zeros, whose results are dropped.
        tree: arrays [B, ...].
        max_rows: at least 1.
    """
    count = jax.tree.leaves(tree)[0].shape[0]
    if max_rows is None or count <= max_rows:
        return function(tree)
    results = jax.lax.map(function, split_rows(tree, max_rows))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], results)


class Blocks(NamedTuple):
    """An axis of `total` entries in blocks of one size, so that a loop over them is compiled once.

    Where the blocks do not fit evenly, the last one begins early and overlaps the one before it. What is put into a
    block may be put twice; what is summed over blocks must count once: `new` tells which entries are.
    Arrays may be longer along the axis than `total`: no block reaches the entries after it.
    """

    total: int
    size: int
    axis: int  # of the arrays that blocks are cut out of

    @property
    def numbers(self) -> Array:
        """Number of each block."""
        return jnp.arange(-(-self.total // self.size))

    def start(self, i: Array) -> Array:
        """Return where block i begins."""
        # By `total`, not by the length of the array, which JAX itself would clamp to.
        return jnp.minimum(i * self.size, self.total - self.size)

    def new(self, i: Array) -> Array | None:
        """[size] bool, the entries of block i that no earlier block has; None if no blocks overlap."""
        if self.total % self.size == 0:
            return None
        return self.start(i) + jnp.arange(self.size) >= i * self.size

    def holds(self, i: Array, places: Array) -> Array:
        """Return whether block i is the one in which these places along the axis are new."""
        return (places // self.size == i) & (places < self.total)

    def get(self, x: Array, i: Array) -> Array:
        """Cut block i out of an array."""
        return jax.lax.dynamic_slice_in_dim(x, self.start(i), self.size, self.axis)

    def set(self, x: Array, i: Array, values: Array) -> Array:
        """Return an array with these values in block i."""
        return jax.lax.dynamic_update_slice_in_dim(
            x, values.astype(x.dtype), self.start(i), self.axis
        )


def where_new(new: Array | None, values: Array) -> Array:
    """Return the values, and 0 where they are not new, see `Blocks.new`."""
    return values if new is None else jnp.where(new, values, 0.0)


def select_tokens(tree: Any, read: Array | None, axis: int) -> Any:
    """Select the tokens that are read along an axis of every array: [B or 1, ..., T, ...] -> [B, ..., R, ...].

    Args:
        tree: arrays.
        read: [B, R] int, numbers of tokens; None: all, in their order.
        axis: that of the tokens, at least 1.
    """
    if read is None:
        return tree

    def take(x: Array) -> Array:
        # The same tokens along all other axes: the indices have size 1 there, and are broadcast.
        axes_between = [1] * (axis - 1)
        axes_after = [1] * (x.ndim - axis - 1)
        indices = read.reshape(read.shape[0], *axes_between, read.shape[1], *axes_after)
        return jnp.take_along_axis(x, indices, axis=axis)

    return jax.tree.map(take, tree)
