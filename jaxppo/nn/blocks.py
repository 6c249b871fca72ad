"""Rows in equal parts, so that a program holds the results of a few at a time; columns of the tokens that are read."""

from collections.abc import Callable
from typing import Any

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
