"""Rows in equal parts, so that a program holds the intermediate results of a few of them at a time."""

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
