"""The layers of a model one after the other: each in its own place of the program, or all in one loop.

A loop is compiled once, however deep the model is, and says what the gradient keeps of every layer. It takes the
weights of its layers from one array for each kind of weight: a copy, unless they were cast just before; of weights that
are split over devices, a copy of the shards.

Shape letters: B rows, T tokens, R of them that are read, D hidden size.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxppo.nn.attention import KEPT, Cache, LayerCache
from jaxppo.nn.config import ModelConfig
from jaxppo.parallel import partition

LOOP_FROM = 8
"""On a CPU, the least layers that are one loop: as fast, and compiled sooner (docs/performance.md)."""

Layer: TypeAlias = tuple[nnx.GraphDef, nnx.State]
"""What a layer computes, and its weights."""


def run_layers(
    config: ModelConfig,
    layers: nnx.Dict,
    hidden: jax.Array,
    shared: tuple[Any, ...],
    cache: Cache | None,
    cache_index: jax.Array | None,
    read: jax.Array | None,
) -> tuple[jax.Array, Cache | None]:
    """Pass the residual stream through `layer(hidden, *shared, layer cache, cache_index, read)` for each in order.

    Layers of one shape are traced and lowered once, whatever their number. All but the last get `read` None: they read
    every token. The last one computes only keys and values of the tokens that are not read.

    Args:
        config: says whether they are a loop, and what their gradient keeps (`accelerated`, `gradient_checkpointing`);
            programs with a cache are never a loop, which would copy it.
        layers: modules by their numbers "0", "1", ...
        hidden: [B, T, D], the input of the first one.
        shared: what every layer gets.
        cache: of all layers, or None.
        cache_index: slot of the first token; None: the cache is empty.
        read: [B, R] int, tokens whose result is wanted; None: all.

    Returns:
        [B, R or T, D] and the new cache.
    """
    split = [nnx.split(layers[str(i)]) for i in range(len(layers))]
    if cache is not None:
        return _run_cached(split, hidden, shared, cache, cache_index, read)
    run = _remembering(config)
    first, last = 0, len(split) - 1
    if config.accelerated or config.gradient_checkpointing or len(split) >= LOOP_FROM:
        hidden, first = _run_loops(run, split[:last], hidden, shared), last
    for i, (graph, weights) in enumerate(split[first:], first):
        of_these = read if i == last else None
        # The gradient begins with the last layer: what it keeps of it is held for no time.
        hidden = (_keeping_all if config.gradient_checkpointing else run)(graph, weights, hidden, shared, of_these)
    return hidden, None


def _run_cached(
    layers: list[Layer],
    hidden: jax.Array,
    shared: tuple[Any, ...],
    cache: Cache,
    cache_index: jax.Array | None,
    read: jax.Array | None,
) -> tuple[jax.Array, Cache]:
    new_cache, last = [], len(layers) - 1
    for i, (graph, weights) in enumerate(layers):
        of_these = read if i == last else None
        hidden, layer_cache = _run_with_cache(graph, weights, hidden, shared, cache[i], cache_index, of_these)
        new_cache.append(layer_cache)
    return hidden, tuple(new_cache)


def _run_loops(
    run: Callable[..., jax.Array], layers: list[Layer], hidden: jax.Array, shared: tuple[Any, ...]
) -> jax.Array:
    """Make a loop of the layers of one kind that follow one another."""

    def kind(layer: Layer) -> Any:
        graph, weights = layer
        leaves, structure = jax.tree.flatten(weights)
        return graph, structure, [(leaf.shape, leaf.dtype) for leaf in leaves]

    for (graph, *_), alike in itertools.groupby(layers, kind):

        def step(hidden: jax.Array, weights: nnx.State, graph: nnx.GraphDef = graph) -> tuple[jax.Array, None]:
            return run(graph, weights, hidden, shared, None), None

        hidden, _ = jax.lax.scan(step, hidden, _stacked([weights for _, weights in alike]))
    return hidden


def _stacked(layers: list[nnx.State]) -> nnx.State:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)


# ------------------------------------------------------------------------------- what the gradient keeps of a layer


def _remembering(config: ModelConfig) -> Callable[..., jax.Array]:
    """Return `_run_layer` as the gradient of this model is to keep it."""
    if config.gradient_checkpointing:
        return _keeping_inputs
    return _keeping_named if config.accelerated else _keeping_all


def _gathered(weights: nnx.State, hidden: jax.Array) -> nnx.State:
    """Gather weights of which this device has shards: now, and again for the gradient, which does not keep them."""
    if not partition.is_split(weights, hidden.shape[-1]):
        return weights
    return checkpoint_name(partition.whole(weights, hidden.shape[-1], hidden.dtype), "gathered")


def _named(primitive: Any, *_: Any, **params: Any) -> bool:
    """Whether a value is kept: what bears the name, and results of kernels."""
    return primitive.name == "pallas_call" or (primitive.name == "name" and params["name"] == KEPT)


@partial(jax.jit, static_argnums=0)
def _run_layer(
    graph: nnx.GraphDef, weights: nnx.State, hidden: jax.Array, shared: tuple[Any, ...], read: jax.Array | None
) -> jax.Array:
    return nnx.merge(graph, _gathered(weights, hidden))(hidden, *shared, None, None, read)[0]


@partial(jax.jit, static_argnums=0)
def _run_with_cache(
    graph: nnx.GraphDef,
    weights: nnx.State,
    hidden: jax.Array,
    shared: tuple[Any, ...],
    cache: LayerCache,
    cache_index: jax.Array | None,
    read: jax.Array | None,
) -> tuple[jax.Array, LayerCache]:
    return nnx.merge(graph, _gathered(weights, hidden))(hidden, *shared, cache, cache_index, read)


@partial(jax.jit, static_argnums=0)
def _keeping_all(graph: nnx.GraphDef, weights: nnx.State, hidden: jax.Array, *rest: Any) -> jax.Array:
    """Keep all but gathered weights, so that no device ever holds all layers."""
    if not partition.is_split(weights, hidden.shape[-1]):
        return _run_layer(graph, weights, hidden, *rest)
    kept = jax.checkpoint_policies.save_anything_except_these_names("gathered")
    return jax.checkpoint(partial(_run_layer, graph), policy=kept)(weights, hidden, *rest)


@partial(jax.jit, static_argnums=0)
def _keeping_named(graph: nnx.GraphDef, weights: nnx.State, hidden: jax.Array, *rest: Any) -> jax.Array:
    """Keep the results of the large products; norms and activations are computed again, for 1 % of the arithmetic."""
    return jax.checkpoint(partial(_run_layer, graph), policy=_named, prevent_cse=False)(weights, hidden, *rest)


@partial(jax.jit, static_argnums=0)
def _keeping_inputs(graph: nnx.GraphDef, weights: nnx.State, hidden: jax.Array, *rest: Any) -> jax.Array:
    """Keep the input alone. In a loop: elsewhere XLA on the CPU finds that the second computation is the first."""
    return jax.checkpoint(partial(_run_layer, graph), prevent_cse=False)(weights, hidden, *rest)
