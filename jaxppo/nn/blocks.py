"""Rows in equal parts, an axis in blocks: a program holds the results of a few at a time. Tokens that are read."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


def equal_parts(count: int, most: int, multiple: int = 1) -> int:
    """Return the size of the fewest equal parts of `count` that are no larger than `most`, rounded up to a multiple."""
    size = -(-count // -(-count // most))
    return -(-size // multiple) * multiple


def split_rows(tree: Any, most: int) -> Any:
    """Cut [B, ...] into [parts, rows of a part, ...], see `equal_parts`; the last part is filled up with zeros."""
    count = jax.tree.leaves(tree)[0].shape[0]
    rows = equal_parts(count, most)
    fill = lambda x: jnp.pad(x, ((0, -count % rows), *[(0, 0)] * (x.ndim - 1)))  # noqa: E731
    return jax.tree.map(lambda x: fill(x).reshape(-1, rows, *x.shape[1:]), tree)


def by_rows(function: Callable[[Any], Any], tree: Any, most: int | None) -> Any:
    """Compute `function(tree)` with at most `most` rows of every array at once; None: all.

    Args:
        function: of rows that do not depend on each other; it may see rows of zeros, whose results are dropped.
        tree: arrays [B, ...].
        most: rows at once, at least 1.
    """
    count = jax.tree.leaves(tree)[0].shape[0]
    if most is None or count <= most:
        return function(tree)
    results = jax.lax.map(function, split_rows(tree, most))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], results)


class Blocks(NamedTuple):
    """An axis in blocks of one size; the last one begins early where they do not fit evenly.

    Arrays may be longer along it than `total`: no block reaches what lies behind.
    """

    total: int
    size: int
    axis: int  # of the arrays that blocks are cut out of

    @property
    def numbers(self) -> jax.Array:
        """Number of each block."""
        return jnp.arange(-(-self.total // self.size))

    def start(self, i: jax.Array) -> jax.Array:
        """Return where block i begins."""
        return jnp.minimum(i * self.size, self.total - self.size)

    def new(self, i: jax.Array) -> jax.Array | None:
        """[size] bool, what of block i is in no block before; None where that is so for all of every block."""
        even = self.total % self.size == 0
        return None if even else self.start(i) + jnp.arange(self.size) >= i * self.size

    def holds(self, i: jax.Array, places: jax.Array) -> jax.Array:
        """Return whether block i is the one in which these places along the axis are new."""
        return (places // self.size == i) & (places < self.total)

    def of(self, x: jax.Array, i: jax.Array) -> jax.Array:
        """Cut block i out of an array."""
        return jax.lax.dynamic_slice_in_dim(x, self.start(i), self.size, self.axis)

    def put(self, x: jax.Array, i: jax.Array, values: jax.Array) -> jax.Array:
        """Put block i into an array."""
        return jax.lax.dynamic_update_slice_in_dim(x, values.astype(x.dtype), self.start(i), self.axis)


def where_new(new: jax.Array | None, values: jax.Array) -> jax.Array:
    """`values`, and 0 where they are not new, see `Blocks.new`."""
    return values if new is None else jnp.where(new, values, 0.0)


def columns(tree: Any, read: jax.Array | None, axis: int) -> Any:
    """Of the tokens along an axis of every array only those that are read: [B or 1, ..., T, ...] -> [B, ..., R, ...].

    Args:
        tree: arrays.
        read: [B, R] int, numbers of tokens; None: all, in their order.
        axis: that of the tokens, at least 1.
    """
    if read is None:
        return tree

    def take(x: jax.Array) -> jax.Array:
        shape = (read.shape[0], *[1] * (axis - 1), read.shape[1], *[1] * (x.ndim - axis - 1))
        return jnp.take_along_axis(x, read.reshape(shape), axis=axis)

    return jax.tree.map(take, tree)
