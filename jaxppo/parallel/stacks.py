"""The layers of a model in one array for each kind of weight, as a loop over them takes them.

    {"layers": {"0": {"dense": [D, D]}, "1": {"dense": [D, D]}}}   as files, checkpoints and other programs have them
    {"layers": {"all": {"dense": [2, D, D]}}}                      stacked

Trees may be models, or anything that holds some, such as an optimizer's state.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

ALL = "all"
"""Name of what is stacked, in place of the numbers of layers."""


def is_stacked(layers: dict[str, Any]) -> bool:
    """Return whether these layers are stacked."""
    return ALL in layers


def can_stack(tree: Any) -> bool:
    """Return whether a model, or a model and what goes on it, has the same weights in all layers, and has all layers.

    Args:
        tree: a model, an adapter, or a tuple of both: one that is on some layers alone cannot be stacked with them.
    """
    # One pass over all layers in the tree, which notes what differs; nothing is changed.
    kinds: list[bool] = []
    numbers: set[frozenset[str]] = set()

    def note(layers: dict[str, Any]) -> dict[str, Any]:
        if not is_stacked(layers):
            distinct = {kind_of(layer) for layer in layers.values()}
            kinds.append(len(distinct) == 1)
            numbers.add(frozenset(layers))
        return layers

    _over_layers(note, tree)
    return all(kinds) and len(numbers) <= 1


def kind_of(layer: Any) -> Any:
    """Return what layers that can be stacked have in common: names, shapes and dtypes of their weights."""
    leaves, structure = jax.tree.flatten(layer)
    kinds = [(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
    return structure, tuple(kinds)


def stack(tree: Any) -> Any:
    """Stack the layers of every model, which must be alike; a copy of them."""

    def stack_layers(layers: dict[str, Any]) -> dict[str, Any]:
        if is_stacked(layers):
            return layers
        return {ALL: jax.tree.map(_stack_weights, *_in_order(layers))}

    return _over_layers(stack_layers, tree)


def _in_order(layers: dict[str, Any]) -> list[Any]:
    # By number, not as the dictionary has them: sorted as texts, "10" comes before "2".
    return [layers[str(number)] for number in range(len(layers))]


def _stack_weights(*weights: Any) -> jax.Array:
    return jnp.stack(weights)


def unstack(tree: Any) -> Any:
    """Undo `stack`, for arrays, tracers, or shapes with or without their places.

    Arrays that this process has whole come to the host, where layers are views: on the devices they would be a copy.
    """

    def layers_of(layers: dict[str, Any]) -> dict[str, Any]:
        if not is_stacked(layers):
            return layers
        leaves, structure = jax.tree.flatten(layers[ALL])
        parts_by_weight = [_parts(leaf) for leaf in leaves]
        layers = {}
        for number, weights in enumerate(zip(*parts_by_weight, strict=True)):
            layers[str(number)] = structure.unflatten(weights)
        return layers

    return _over_layers(layers_of, tree)


def _parts(x: Any) -> list[Any]:
    if isinstance(x, jax.ShapeDtypeStruct):
        num_layers, *part_shape = x.shape
        sharding = _of_part(x.sharding)
        part = jax.ShapeDtypeStruct(tuple(part_shape), x.dtype, sharding=sharding)
        return [part] * num_layers
    has_values = isinstance(x, jax.Array) and not isinstance(x, Tracer)
    if has_values and x.is_fully_addressable:
        x = np.asarray(x)
        if not x.flags.owndata:
            x = x.copy()  # on a CPU it may be the device's memory, which an update writes over
    return [x[i] for i in range(x.shape[0])]


def _of_part(sharding: Any) -> Any:
    if not isinstance(sharding, NamedSharding):
        return sharding
    # Without the entry for the axis of layers, which is the first.
    spec = PartitionSpec(*sharding.spec[1:])
    return NamedSharding(sharding.mesh, spec)


def stacked_like(tree: Any, like: Any) -> Any:
    """Stack the layers of `tree` where those of `like` are, whose arrays or shapes have places; deletes what it stacks.

    Args:
        tree: arrays on the devices.
        like: the same, stacked or not.
    """
    if isinstance(like, dict) and is_stacked(like):
        return {ALL: jax.tree.map(_stack_into, like[ALL], *_in_order(tree))}
    if isinstance(like, dict):
        return {name: stacked_like(tree[name], child) for name, child in like.items()}
    if isinstance(like, tuple):
        children = []
        for child, like_child in zip(tree, like, strict=True):
            children.append(stacked_like(child, like_child))
        return _same_kind(like, children)
    return tree


def _stack_into(like: Any, *parts: jax.Array) -> jax.Array:
    # Within one program, so that the result has its place from the start and is not copied there.
    stack_in_place = jax.jit(_stack_weights, out_shardings=like.sharding)
    result = stack_in_place(*parts)
    # Before what it is made of is deleted: layers and stack never stand in memory twice
    jax.block_until_ready(result)
    for part in parts:
        part.delete()
    return result


def _over_layers(change: Callable[[dict[str, Any]], dict[str, Any]], tree: Any) -> Any:
    """Apply `change` to the layers of every model in a tree."""
    if isinstance(tree, tuple):
        return _same_kind(tree, [_over_layers(change, child) for child in tree])
    if not isinstance(tree, dict):
        return tree
    changed = {}
    for name, child in tree.items():
        if name == "layers" and isinstance(child, dict):
            changed[name] = change(child)
        else:
            changed[name] = _over_layers(change, child)
    return changed


def _same_kind(like: tuple[Any, ...], values: list[Any]) -> tuple[Any, ...]:
    # A named tuple takes its fields one by one, a plain one takes them all at once.
    is_named_tuple = hasattr(like, "_fields")
    return type(like)(*values) if is_named_tuple else tuple(values)
