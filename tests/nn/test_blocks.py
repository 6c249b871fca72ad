"""Rows in equal parts."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.nn import blocks


@pytest.mark.parametrize(
    ("most", "rows"), [(None, 10), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (7, 5), (9, 5), (10, 10), (64, 10)]
)
def test_by_rows_takes_equal_parts(most, rows):
    seen = []

    def function(tree):
        seen.append(tree["x"].shape[0])
        return {"twice": 2 * tree["x"], "sum": tree["x"] + tree["y"][:, None]}

    tree = {"x": jnp.arange(20).reshape(10, 2), "y": jnp.arange(10)}
    results = blocks.by_rows(function, tree, most)
    np.testing.assert_array_equal(results["twice"], 2 * tree["x"])
    np.testing.assert_array_equal(results["sum"], tree["x"] + tree["y"][:, None])
    assert set(seen) == {rows}


@pytest.mark.parametrize(
    ("count", "most", "multiple", "size"), [(1696, 1024, 1, 848), (50304, 1024, 128, 1024), (7, 7, 1, 7), (8, 7, 1, 4)]
)
def test_equal_parts_are_few(count, most, multiple, size):
    assert blocks.equal_parts(count, most, multiple) == size
