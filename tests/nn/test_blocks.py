"""Rows in equal parts."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.nn import blocks


@pytest.mark.parametrize(("most", "rows"), [(None, 10), (1, 1), (3, 3), (5, 5), (9, 5), (10, 10), (64, 10)])
def test_map_in_chunks_takes_equal_parts(most, rows):
    seen = []

    def function(tree):
        seen.append(tree["x"].shape[0])
        return {"twice": 2 * tree["x"], "sum": tree["x"] + tree["y"][:, None]}

    tree = {"x": jnp.arange(20).reshape(10, 2), "y": jnp.arange(10)}
    results = blocks.map_in_chunks(function, tree, most)
    np.testing.assert_array_equal(results["twice"], 2 * tree["x"])
    np.testing.assert_array_equal(results["sum"], tree["x"] + tree["y"][:, None])
    assert set(seen) == {rows}


@pytest.mark.parametrize(
    ("count", "most", "multiple", "size"), [(1696, 1024, 1, 848), (50304, 1024, 128, 1024), (7, 7, 1, 7), (8, 7, 1, 4)]
)
def test_equal_parts_are_few(count, most, multiple, size):
    assert blocks.equal_parts(count, most, multiple) == size


@pytest.mark.parametrize(("total", "size"), [(12, 4), (10, 4), (5, 5)])
def test_blocks_hold_everything_once(total, size):
    """Along the middle of three axes, of an array that goes on after the end."""
    x = jnp.arange(2 * (total + 3) * 2.0).reshape(2, -1, 2)
    cut = blocks.Blocks(total, size, 1)
    summed, put, held = jnp.zeros(x.shape), jnp.zeros(x.shape), np.zeros(total + 3, int)
    for i in cut.numbers:
        new = cut.new(i)
        fresh = blocks.where_new(None if new is None else new[:, None], cut.get(x, i))
        summed, put = cut.set(summed, i, cut.get(summed, i) + fresh), cut.set(put, i, cut.get(x, i))
        held += np.asarray(cut.holds(i, jnp.arange(total + 3)))
    expected = x.at[:, total:].set(0)
    np.testing.assert_array_equal(summed, expected)
    np.testing.assert_array_equal(put, expected)
    np.testing.assert_array_equal(held, np.arange(total + 3) < total)
