"""Layers of one form as arrays with an axis of layers, and back."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxppo.nn import FAMILIES  # their parameters are in the table of what is split
from jaxppo.parallel import partition, stacks
from jaxppo.parallel.devices import DataParallel


class Moments(NamedTuple):
    mu: Any
    count: Any


def model(layers=3):
    return {
        "trunk": {
            "embed_in": {"embedding": jnp.ones((5, 4))},
            "layers": {
                str(i): {"attention": {"dense": {"kernel": i + jnp.arange(16.0).reshape(4, 4)}}} for i in range(layers)
            },
        }
    }


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_unstack_undoes_stack_whose_first_axis_is_not_split():
    tree = {"policy": model(12), "moments": (Moments(model(), jnp.int32(3)), None)}
    stack = stacks.stack(tree)
    assert stack["policy"]["trunk"]["layers"]["all"]["attention"]["dense"]["kernel"].shape == (12, 4, 4)
    assert_same(stacks.unstack(stack), tree)
    assert_same(jax.jit(stacks.unstack)(stack), tree)
    assert_same(stacks.stack(stack), stack)
    assert set(FAMILIES["gpt_neox"].partition) <= set(partition.TABLE)
    entry = partition.axes_of("policy/trunk/layers/0/attention/dense/kernel")
    assert partition.axes_of("policy/trunk/layers/all/attention/dense/kernel") == (None, *entry)
    assert partition.axes_of("policy/trunk/layers/all/input_layernorm/scale") == ()


def test_unstack_shapes_keep_their_places():
    parallel = DataParallel("fsdp", devices=jax.devices()[:2])
    stack = parallel.put(stacks.stack(model()))
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)  # noqa: E731
    kernel = stacks.unstack(jax.tree.map(shape, stack))["trunk"]["layers"]["1"]["attention"]["dense"]["kernel"]
    assert kernel.shape == (4, 4)
    assert kernel.sharding == NamedSharding(parallel.mesh, PartitionSpec("tensor", "fsdp"))


def test_layers_that_differ_cannot_be_stacked():
    tree = model()
    assert stacks.can_stack(tree) and stacks.can_stack(stacks.stack(tree)) and stacks.can_stack({})
    tree["trunk"]["layers"]["1"]["attention"]["dense"]["bias"] = jnp.zeros(4)
    assert not stacks.can_stack({"policy": model(), "value": tree})
    for adapted, can in (("012", True), ("01", False)):  # nor where only some have an adapter
        adapter = {"trunk": {"layers": {number: {"dense": {"lora_a": jnp.zeros((4, 1))}} for number in adapted}}}
        assert stacks.can_stack((model(), adapter)) == can


@pytest.mark.parametrize("mode", ["shard_map", "fsdp"])
def test_stacked_like_gives_the_places_of_the_other_and_deletes_what_it_stacked(mode):
    parallel = DataParallel(mode, devices=jax.devices()[:2])
    like = parallel.put({"a": stacks.stack(model()), "b": (model(), jnp.zeros(2))})
    parts = parallel.put({"a": model(), "b": (model(), jnp.ones(2))})
    kernel = parts["a"]["trunk"]["layers"]["0"]["attention"]["dense"]["kernel"]
    result = stacks.stacked_like(parts, like)
    assert kernel.is_deleted()
    assert jax.tree.map(lambda x: x.sharding, result) == jax.tree.map(lambda x: x.sharding, like)
    assert_same(result, {"a": stacks.stack(model()), "b": (model(), jnp.ones(2))})


def test_unstack_arrays_share_no_memory_with_the_device():
    """An update takes that over while a checkpoint of them is written."""
    stack = jnp.arange(12.0).reshape(3, 4)
    part = stacks.unstack({"layers": {"all": stack}})["layers"]["1"]
    assert isinstance(part, np.ndarray) and not np.shares_memory(part, np.asarray(stack))
